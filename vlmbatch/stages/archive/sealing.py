"""seal: one hash list over everything in the folder, and a script that checks it with bare Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlmbatch import jsonl
from vlmbatch.data import verify
from vlmbatch.errors import IntegrityError, Problem
from vlmbatch.rundir import SEALED, VERIFY
from vlmbatch.stages.archive.base import Hashed, check_frozen, hash_files, list_files, sums_text, verify_script

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vlmbatch.records import Event
    from vlmbatch.rundir import RunDir


@dataclass(frozen=True, slots=True)
class SealResult:
    """What was sealed.

    Attributes:
        fingerprint: The run's fingerprint.
        sha256: SHA-256 of SEALED.sha256: the one number that stands for the whole folder as it is.
        files: Files that the seal covers.
        bytes: Their bytes.
        path: The seal.
    """

    fingerprint: str
    sha256: str
    files: int
    bytes: int
    path: str


def seal(run: RunDir, *, on_event: Callable[[Event], None] | None = None) -> SealResult:
    """Write SEALED.sha256 over every file of the folder, and verify.py. SHA256SUMS stays as build made it.

    A folder may be sealed again after more work on it; the new seal takes the old one's place.

    What verify.py would reject is refused by verify.py's own checks. Whether the records are those that the results
    make is a question for collect (its option ``seal``).

    Raises:
        InputError: The folder holds links, or is a redacted copy; or somebody is working on it.
        IntegrityError: Frozen files differ from what build wrote, or the folder contradicts itself; no seal is set on
            damage.
        OSError: A file cannot be read or written.
    """
    script = verify_script()
    with run.lock(), run.lock("rehearsal"):
        names = [name for name in list_files(run.path) if name not in {SEALED, VERIFY}]
        hashed = hash_files(run.path, names, on_event=on_event)
        check_frozen(run, hashed)
        _check_contents(run, hashed)
        hashed[VERIFY] = Hashed(jsonl.sha256(script), len(script))
        text = sums_text(hashed)
        jsonl.write_atomic(run.file(VERIFY), script)
        jsonl.write_atomic(run.file(SEALED), text)
    size = sum(facts.bytes for facts in hashed.values())
    return SealResult(run.fingerprint, jsonl.sha256(text), len(hashed), size, run.file(SEALED))


class _Findings(verify.Report):
    """What verify.py finds wrong, kept instead of printed."""

    def __init__(self) -> None:
        super().__init__()
        self.problems: list[Problem] = []

    def tell(self, subject: str, said: str, problems: list[str]) -> None:  # noqa: ARG002  (what it is called with)
        """Keep the problems of one subject."""
        self.problems += [Problem("contradiction", problem, subject) for problem in problems]

    def note(self, said: str) -> None:
        """Let a note be."""


def _check_contents(run: RunDir, hashed: Mapping[str, Hashed]) -> None:
    """Check what verify.py checks.

    Raises:
        IntegrityError: It finds something; all of it is listed.
    """
    findings = _Findings()
    hashes = {name: facts.sha256 for name, facts in hashed.items()}
    verify.check_contents(verify.Folder(run.path, findings, hashes))
    if findings.problems:
        raise IntegrityError(
            f"{run.path}: the folder contradicts itself, and verify.py would reject it; nothing was sealed",
            hint="where records or numbers are at fault, --write RUN/merged.jsonl makes them anew from the results",
            problems=findings.problems,
        )
