"""collect: attempts become records, exactly one for each request, and the numbers that describe them.

Without ``write`` and the exports nothing is written: that is the reviewer's command, and it checks every hash of the
folder too. Bad results (of another run, of other bytes) end it before anything is written over.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from vlmbatch import attempts, classify, journal, jsonl, providers, rundir
from vlmbatch.attempts import Origins
from vlmbatch.errors import InputError, IntegrityError, Problem, cannot_read
from vlmbatch.rundir import RunDir
from vlmbatch.stages.collecting import gate, outputs
from vlmbatch.stages.collecting.compare import Side, compare
from vlmbatch.stages.collecting.fields import find_field
from vlmbatch.stages.collecting.merge import Merge
from vlmbatch.stages.collecting.options import CollectOptions
from vlmbatch.stages.collecting.overlay import Ledger
from vlmbatch.stages.collecting.reviews import load_reviews
from vlmbatch.stages.collecting.spool import Spool
from vlmbatch.stages.collecting.standing import check_seal, check_written
from vlmbatch.stages.collecting.summary import Sources, summarise
from vlmbatch.stages.collecting.targets import breaks_seal, check_named, check_targets, choose_files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from vlmbatch.journal import Job
    from vlmbatch.providers.base import Provider
    from vlmbatch.records import Asked, Event, Review
    from vlmbatch.stages.collecting.facts import FileFacts, Read
    from vlmbatch.stages.collecting.gate import Check
    from vlmbatch.stages.collecting.standing import SealState

    OnEvent = Callable[[Event], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectResult:
    """What collect found and wrote.

    Attributes:
        run: The run.
        summary: summary.json.
        checks: The lines of the gate, empty where none was asked for.
        comparisons: One for each run that this one was held against.
        written: What was written, by flag (``--write`` ...); the summary is ``summary``.
        seal: Whether the folder is what it was when it was sealed, None where it was not.
        in_batch: Requests without an attempt that are in a batch job which may still answer them.
        breaks_seal: Whether something was written into the folder after it was sealed, so that its seal no longer
            holds.
        warnings: Sentences for people.
    """

    run: RunDir
    summary: dict[str, Any]
    checks: tuple[Check, ...] = ()
    comparisons: tuple[dict[str, Any], ...] = ()
    written: Mapping[str, str] = field(default_factory=dict)
    seal: SealState | None = None
    in_batch: int = 0
    breaks_seal: bool = False
    warnings: tuple[str, ...] = ()


def collect(
    run: str | os.PathLike[str] | RunDir,
    results: Sequence[str] = (),
    options: CollectOptions | None = None,
    *,
    on_event: Callable[[Event], None] | None = None,
) -> CollectResult:
    """Join the results of a run into one record for each request.

    Args:
        run: The run folder.
        results: Results files; empty = all of results/ but the rehearsals (with ``rehearsal``: they alone).
        options: What to write, check and compare.
        on_event: Called with progress, from the calling thread.

    Raises:
        InputError: A file or condition is not what it should be; nothing was written.
        IntegrityError: Frozen bytes differ, results of another run were mixed in, or (to be sealed) the folder's
            records are not those of its results; nothing was written.
    """
    options = options or CollectOptions()
    run = run if isinstance(run, RunDir) else RunDir.open(run)
    conditions = gate.conditions(gate=options.gate, require=options.require, fields=options.require_fields)
    _check_frozen(run, full=not options.write, on_event=on_event)
    paths = choose_files(run, results, rehearsal=options.rehearsal)
    check_targets(run, options.outputs(), [*paths, *filter(None, (options.reviews, options.json_schema))])
    fields = gate.required_fields(conditions)
    with ExitStack() as stack:
        gatherer = _Gatherer(options, stack, on_event)
        side, reviews = gatherer.gather(run, paths, fields, options.reviews)
        empty = check_named(run, results, side.read.files, rehearsal=options.rehearsal)
        summary = dict(side.summary)
        checks = gate.check(conditions, gate.figures(run, side.read, summary, fields), summary) if conditions else []
        seal = check_seal(run, side.read.files)
        if seal and options.gate and not options.seal:
            checks.append(seal.as_check())
        if options.seal and not _writes_records(run, options):
            check_written(side, reviews)
        summary["checks"] = [check._asdict() for check in checks]
        comparisons = tuple(gatherer.compare(side, other) for other in options.compare)
        warnings = empty + _warnings(side.read, summary, options) + _seal_warnings(seal, options)
        warnings += outputs.write(side, reviews, summary, options, on_event)
    return CollectResult(
        run=run,
        summary=summary,
        checks=tuple(checks),
        comparisons=comparisons,
        written=options.outputs(),
        seal=seal,
        in_batch=0 if options.rehearsal else _count_in_batch(run, side.read),
        breaks_seal=breaks_seal(run, options.outputs().values()),
        warnings=tuple(warnings),
    )


# --- reading -------------------------------------------------------------------------------------------------


def _check_frozen(run: RunDir, *, full: bool, on_event: OnEvent | None = None) -> None:
    """Check the frozen files: every hash, or sizes and the manifest's hash (all that records are made of).

    Raises:
        IntegrityError: Something differs.
    """
    run.verify(on_event=on_event, depth="full" if full else "quick")
    if full:
        return
    found, _ = jsonl.sha256_file(run.file(rundir.MANIFEST))
    expected = run.info["manifest"]["sha256"]
    if found != expected:
        raise IntegrityError(
            f"{run.path}: the manifest differs from what build wrote",
            hint="nothing was written; fetch the folder again",
            problems=[Problem("hash_mismatch", f"SHA-256 {found}, expected {expected}", rundir.MANIFEST)],
        )


def _check_jobs(run: RunDir, jobs: Sequence[tuple[str, Job]]) -> None:
    """Check that the shards that were submitted are the run's: a raw file names no line hashes, its job does.

    Raises:
        IntegrityError: A job held other bytes.
    """
    shards = {shard["file"]: shard["sha256"] for shard in run.info["shards"]}
    problems = [
        Problem("foreign_job", f"answers a job over {job.shard} with other bytes than ours", os.path.basename(path))
        for path, job in jobs
        if job.shard and job.sha256 and shards.get(job.shard) != job.sha256
    ]
    if problems:
        raise IntegrityError("batch results of another run were mixed in", problems=problems)


def _asked(run: RunDir, provider: Provider, ledger: Ledger, options: CollectOptions) -> list[Asked]:
    """Return what each output asked for, and what the user expects of it besides."""
    wanted = [attempts.asked(run, provider, output) for output in ledger.outputs]
    if options.json_schema:
        schema = _schema(options.json_schema)
        return [replace(one, json=True, schema=schema) for one in wanted]
    return [replace(one, json=True) for one in wanted] if options.expect_json else wanted


def _schema(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            value = jsonl.parse_object(file.read().removeprefix(jsonl.BOM))
    except OSError as error:
        raise cannot_read(f"--json-schema {path}", error) from None
    problem = "not a JSON object" if value is None else classify.schema_problem(value)
    if value is None or problem:
        raise InputError(f"--json-schema {path}: {problem}", hint="mend the schema")
    return value


@dataclass(frozen=True, slots=True)
class _Gatherer:
    """Reads runs, this one and those that it is compared with; scratch data lives as long as ``stack``."""

    options: CollectOptions
    stack: ExitStack
    on_event: OnEvent | None

    def gather(
        self, run: RunDir, paths: Sequence[str], fields: Sequence[str] = (), reviewed: str | None = None
    ) -> tuple[Side, dict[int, Review]]:
        """Read the results of a run, and what reviewers said of it."""
        options, origins = self.options, Origins.load(run)
        provider = providers.get(run.info["provider"], run.info["request"]["url"])
        ordered = attempts.order_files(paths, origins)
        _check_jobs(run, [(path, job) for path in ordered if (job := origins.job(path))])
        ledger = Ledger(run)
        asked = _asked(run, provider, ledger, options)
        found = [find_field(path, ledger.outputs, asked) for path in fields]
        reviews = None if options.rehearsal else load_reviews(run, ledger, reviewed)
        spool = self.stack.enter_context(Spool(self._scratch()))
        merge = Merge(run, provider, ledger, asked, found, spool if options.needs_records else None, options.rehearsal)
        read = merge.read(ordered, origins, self.on_event)
        sources = Sources(run=run, read=read, asked=asked, rehearsal=options.rehearsal, reviews=reviews)
        return Side(run, read, spool, summarise(sources), options.rehearsal), reviews or {}

    def _scratch(self) -> str | None:
        """Return where there is room for scratch data: beside the first output, else the system's own place."""
        first = next(iter(self.options.outputs().values()), None)
        return os.path.dirname(os.path.abspath(first)) if first else None

    def compare(self, side: Side, other: str) -> dict[str, Any]:
        """Hold another run against this one."""
        run = RunDir.open(other)
        _check_frozen(run, full=False)
        theirs, _ = self.gather(run, run.results(rehearsal=self.options.rehearsal))
        return {"run": run.name, **compare(side, theirs)}


def _warnings(read: Read, summary: Mapping[str, Any], options: CollectOptions) -> list[str]:
    """Return what a person should know of the numbers, one sentence each."""
    said = [
        f"{file['file']}: {file['torn_lines']:,} damaged line(s), counted and passed over"
        for file in summary["files"]
        if file["torn_lines"]
    ]
    said += [
        f"{file.name} grew while it was being read; collect again"
        for file in read.files
        if file.hashed_bytes != file.bytes
    ]
    said += [
        f"batch {job.batch_id}: {job.requests:,} requests went in, its files hold {lines:,} lines"
        for job, lines in _lines_by_job(read.files)
        if lines < job.requests
    ]
    left_out = sum(file["left_out"] for file in summary["files"])
    if left_out:
        kind = "real" if options.rehearsal else "rehearsed"
        said.append(f"{left_out:,} {kind} answer(s) stand among the others and were left out")
    if len(summary["models"]) > 1:
        said.append(f"more than one model answered: {', '.join(summary['models'])}")
    unknown = sum(summary["unknown_usage"].values())
    if unknown:
        said.append(f"{unknown:,} sending(s) told no usage: tokens and cost are lower bounds")
    return said


def _count_in_batch(run: RunDir, read: Read) -> int:
    return len({position for position in journal.in_flight(run) if read.overlay.winner[position] < 0})


def _writes_records(run: RunDir, options: CollectOptions) -> bool:
    """Tell whether the folder's own records are written anew."""
    return options.write is not None and os.path.realpath(options.write) == os.path.realpath(run.file(rundir.MERGED))


def _seal_warnings(seal: SealState | None, options: CollectOptions) -> list[str]:
    """Return what to say of a seal that does not hold, where no line of the gate says it."""
    if seal is None or not seal.problems or (options.gate and not options.seal):
        return []
    return [f"the folder is not what was sealed: {seal.said}"]


def _lines_by_job(files: Sequence[FileFacts]) -> list[tuple[Job, int]]:
    """Return the batch jobs that the files are from, each with the lines in its files."""
    jobs = {id(file.job): file.job for file in files if file.job is not None}
    return [(job, sum(file.records for file in files if file.job is job)) for job in jobs.values()]
