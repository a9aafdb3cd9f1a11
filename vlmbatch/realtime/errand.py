"""What a run is to send and by what rules, and how it may come to an end before its last row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vlmbatch.providers.base import Provider
    from vlmbatch.realtime.budget import Budget
    from vlmbatch.realtime.exchange import Pending, Understood
    from vlmbatch.records import Asked, Entry, Status
    from vlmbatch.retry import Policy
    from vlmbatch.rundir import LineReader

_ALIKE: Final = 8
"""So many identical final errors before anything was answered end the run."""


@dataclass(slots=True)
class Errand:
    """What a run is to send, and by what rules.

    Attributes:
        entries: The rows, as a stream.
        lines: Reads their frozen bytes.
        provider: Reads the answers.
        asked: What the frozen requests ask for, by pipeline output.
        headers: Of every request; the key is in here and nowhere else.
        policy: How patient the run is.
        budget: What it may spend.
        rehearsal: Whether a rehearsal's provider answers.
        is_fresh: Whether the run folder has no answer yet, so that identical errors say something about all rows.
        retry_status: Answers of these statuses are sent again ...
        retry_times: ... so often, counting earlier runs.
        times: How often each row came to one of them before, None where none is asked for.
        total: Rows that the command is about, for progress.
        done: Those of them that were settled before.
    """

    entries: Iterator[Entry]
    lines: LineReader
    provider: Provider
    asked: dict[str, Asked]
    headers: dict[str, str] = field(repr=False)
    policy: Policy
    budget: Budget
    rehearsal: bool = False
    is_fresh: bool = True
    retry_status: frozenset[Status] = frozenset()
    retry_times: int = 0
    times: bytearray | None = None
    total: int = 0
    done: int = 0


@dataclass(slots=True)
class Ending:
    """Why a run ended before its last row, where it did.

    Attributes:
        refused: The provider refuses whatever is sent (key, quota, credit, model, shape).
        is_frozen: What it refuses stands in the frozen requests (model, shape): sending them again mends nothing.
        stopped: Something else: a budget is used up, nothing answers, the disk is full.
        is_interrupted: The user asked to stop.
        fault: An exception that has to be raised again once all is saved.
    """

    refused: str = ""
    is_frozen: bool = False
    stopped: str = ""
    is_interrupted: bool = False
    fault: BaseException | None = None

    def __bool__(self) -> bool:
        return bool(self.refused or self.stopped or self.is_interrupted or self.fault)


@dataclass(slots=True)
class Held:
    """Identical final errors at the very start, not yet written: they may turn out to end the run.

    Attributes:
        is_over: Whether something else has come since, so that errors are single rows' own.
        kept: Rows with their last try and what to add to its message.
    """

    is_over: bool
    kept: list[tuple[Pending, Understood, str]] = field(default_factory=list)

    def takes(self, pending: Pending, understood: Understood, note: str) -> bool:
        """Hold one more final error if it says the same as those before; return whether it was taken."""
        if self.is_over or understood.error is None:
            return False
        if self.kept:
            first = self.kept[0][1].error
            mine = (understood.error["status_code"], understood.error["message"])
            if first is None or (first["status_code"], first["message"]) != mine:
                return False
        self.kept.append((pending, understood, note))
        return True

    @property
    def is_damning(self) -> bool:
        """Whether there are so many that the next row would fare alike."""
        return len(self.kept) >= _ALIKE
