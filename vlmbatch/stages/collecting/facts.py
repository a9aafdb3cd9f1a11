"""What the first pass over the results found out, for all who come after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vlmbatch.journal import Job
    from vlmbatch.stages.collecting.overlay import Ledger, Overlay, Part


@dataclass(slots=True)
class FileFacts:
    """What is known of one results file once it has been read.

    Attributes:
        path: Where it stands.
        name: How records name it.
        bytes: Its length when reading began; what was appended later is not read.
        sha256: Its digest, over ``hashed_bytes``.
        hashed_bytes: Its length when it was hashed.
        records: Lines that hold an attempt.
        torn_lines: Lines that hold none.
        left_out: Rehearsed answers in a file that is read for real ones, or the other way round.
        job: The batch job that it came from, None where the journal knows none.
    """

    path: str
    name: str
    bytes: int
    sha256: str = ""
    hashed_bytes: int = 0
    records: int = 0
    torn_lines: int = 0
    left_out: int = 0
    job: Job | None = None

    def add(self, part: Part) -> None:
        """Take a piece of the file into account."""
        self.records += part.records
        self.torn_lines += part.torn_lines
        self.left_out += part.left_out


@dataclass(slots=True)
class Read:
    """Everything that the first pass found out.

    Attributes:
        ledger: The manifest in memory.
        overlay: Every attempt as numbers.
        files: The results files in the order in which they were read.
    """

    ledger: Ledger
    overlay: Overlay
    files: list[FileFacts]
