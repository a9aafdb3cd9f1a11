"""What collect does after the records are written, where it is asked to: report, seal, bag, redacted copy."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from vlmbatch.console import Watch, number_bytes, safe, say
from vlmbatch.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vlmbatch.api.run import Run
    from vlmbatch.console import Console
    from vlmbatch.rundir import RunDir
    from vlmbatch.stages.collect import CollectResult


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """The flags of the hand-over, one field each.

    Attributes:
        report: Whether report.html is written.
        sample: Records drawn for reviewers.
        seed: Which sample is drawn.
        seal: Whether the folder is sealed.
        bag: Where a BagIt bag goes.
        license: The licence that the bag's description states; empty = it says that none is stated.
        redact: Where a copy goes that lacks what ``leave_out`` names.
        leave_out: ``images``, ``paths``, ``prompts``.
        keep_fields: Fields of the rows that may stay in the copy.
    """

    report: bool = False
    sample: int = 50
    seed: int = 0
    seal: bool = False
    bag: str | None = None
    license: str = ""
    redact: str | None = None
    leave_out: Sequence[str] = ()
    keep_fields: Sequence[str] = ()

    def check(self, run: RunDir, *, write: str | None) -> None:
        """Refuse what cannot work, before anything is read or written.

        Raises:
            InputError: A flag lacks another one, or a new folder cannot be made there.
        """
        if self.report and not write:
            raise InputError("--report shows the records, and none are written", hint="add --write RUN/merged.jsonl")
        if self.report:
            from vlmbatch.rundir import REPORT
            from vlmbatch.stages.report import check_place

            check_place(run.file(REPORT))
        if bool(self.redact) != bool(self.leave_out):
            raise InputError(
                "--redact DIR and --leave-out WHAT belong together",
                hint="--leave-out takes images, paths or prompts, and may be repeated",
            )
        if self.bag or self.redact:
            from vlmbatch.stages import archive

            if self.bag:
                archive.check_new(run, self.bag)
            if self.redact:
                archive.check_redact(run, self.redact, self.leave_out)

    def carry_out(self, run: Run, result: CollectResult, console: Console) -> dict[str, dict[str, Any]]:
        """Do what was asked for, in the order in which each holds what came before; return what each told.

        Where a check does not hold there is a report to look at, but nothing is handed over.
        """
        told: dict[str, dict[str, Any]] = {}
        if self.report:
            told["report"] = {"path": self._report(run, result, console)}
        if not (self.seal or self.bag or self.redact):
            return told
        if not all(check.holds for check in result.checks):
            console.warning("a check does not hold: nothing was sealed, packed or copied")
            return told
        if self.seal:
            with Watch(console, "sealing", unit="bytes") as watch:
                told["seal"] = asdict(run.seal(on_event=watch.on_event))
        if self.bag:
            from vlmbatch.stages.archive import BagOptions

            with Watch(console, "packing", unit="files") as watch:
                told["bag"] = asdict(run.bag(self.bag, BagOptions(license=self.license), on_event=watch.on_event))
        if self.redact:
            with Watch(console, "redacting", unit="files") as watch:
                what, kept = tuple(self.leave_out), tuple(self.keep_fields)
                copy = run.redact(self.redact, what, keep_fields=kept, on_event=watch.on_event)
                told["redact"] = asdict(copy)
        return told

    def _report(self, run: Run, result: CollectResult, console: Console) -> str:
        from vlmbatch.stages.report import ReportOptions

        options = ReportOptions(sample=self.sample, seed=self.seed)
        with Watch(console, "drawing the report") as watch:
            return run.report(result, options, on_event=watch.on_event)


def seal_warnings(result: CollectResult, told: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return what to say where something was written into the folder after its seal was set."""
    from vlmbatch.rundir import SEAL_BROKEN

    is_broken = result.breaks_seal or ("report" in told and result.run.is_sealed)
    return [SEAL_BROKEN] if is_broken and "seal" not in told else []


def print_hand_over(told: Mapping[str, Mapping[str, Any]]) -> None:
    """Say what was handed over, one line each."""
    if "report" in told:
        say(f"report: {safe(told['report']['path'])}")
    if "seal" in told:
        seal = told["seal"]
        say(f"seal: {safe(seal['path'])}, {seal['files']:,} files, {number_bytes(seal['bytes'])}")
        say(f"seal's SHA-256: {seal['sha256']}")
    if "bag" in told:
        bag = told["bag"]
        say(f"bag: {safe(bag['path'])}, {bag['files']:,} files, {number_bytes(bag['bytes'])}")
    if "redact" in told:
        copy = told["redact"]
        say(f"redacted copy: {safe(copy['path'])}, without {', '.join(copy['what'])}")
        if copy["openings"]:
            say(f"keep at home: {safe(copy['openings'])} proves the copy's rows")
