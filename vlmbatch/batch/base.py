"""What the batch channel is told, what it tells, and what its rooms share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from vlmbatch.records import Event

if TYPE_CHECKING:
    from collections.abc import Callable

    from vlmbatch.batch.calls import Caller, CallError
    from vlmbatch.errors import Problem
    from vlmbatch.journal import Job, Journal, Range
    from vlmbatch.providers.base import Provider
    from vlmbatch.providers.base_batch import BatchApi
    from vlmbatch.rundir import IdIndex, RunDir

Action = Literal["send", "status", "cancel"]
_GONE = 410


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """How jobs are sent and watched.

    Attributes:
        base_url: Where to; empty = the provider's own address.
        key: The key's value, None where none is needed.
        action: ``send`` what is wanted and watch; only look (``status``); or end what is open (``cancel``).
        detach: Whether to return once everything is submitted (or cancelled), without waiting for the end.
        poll_interval_s: Longest time between two looks; the first ones come sooner.
        max_in_flight: Jobs open at once, None = as many as there are.
        max_enqueued_tokens: Input tokens (estimated) in open jobs at once, None = no limit.
        timeout_s: Deadline of one upload, create or download.
        settle_s: How long a job that may have been made is looked for before it counts as never made.
        rehearsal: Whether a rehearsal provider answers, so that nothing of it counts.
    """

    base_url: str = ""
    key: str | None = field(default=None, repr=False)
    action: Action = "send"
    detach: bool = False
    poll_interval_s: float = 60.0
    max_in_flight: int | None = None
    max_enqueued_tokens: int | None = None
    timeout_s: float = 600.0
    settle_s: float = 90.0
    rehearsal: bool = False


@dataclass(frozen=True, slots=True)
class JobReport:
    """One job at the end of a command.

    Attributes:
        batch_id: The provider's id, empty where it is not known to have the job.
        shard: The shard that it is, empty where it is a choice of rows.
        requests: How many rows it holds.
        state: The provider's last word on it.
        is_over: Whether nothing more can come of it.
        why: Why it was abandoned, or what stands in the way now; empty where all is well.
        flaws: What the provider says is wrong with its lines; ``where`` is the custom_id of the line at fault.
        files: What was downloaded, relative to the run folder.
    """

    batch_id: str
    shard: str
    requests: int
    state: str
    is_over: bool
    why: str = ""
    flaws: tuple[Problem, ...] = ()
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What one command did.

    Attributes:
        jobs: Every job that was open at its start or came to be in it, oldest first.
        submitted: Jobs made.
        adopted: Jobs found at the provider that the journal did not know of.
        downloaded: Jobs whose results were fetched.
        rows_open: Rows in jobs that may still answer.
        open_ranges: Which manifest lines these jobs hold.
        rows_waiting: Wanted rows that are in no job yet (the queue was full, or the command was stopped).
        is_interrupted: Whether it was stopped.
    """

    jobs: tuple[JobReport, ...]
    submitted: int
    adopted: int
    downloaded: int
    rows_open: int
    open_ranges: tuple[Range, ...]
    rows_waiting: int
    is_interrupted: bool = False


@dataclass(slots=True)
class Work:
    """What the rooms of this family share while one command runs.

    Attributes:
        run: The run.
        provider: Its adapter.
        api: Its batch API.
        options: What was asked for.
        endpoint: The base URL as it may be written down.
        journal: The journal, open for writing.
        caller: Sends calls.
        index: The run's ids.
        on_event: Hears what happens.
        touched: Jobs of this command by their key.
        flaws: What the provider says is wrong with a job, by the job's key.
        trouble: What stands in the way of a job, by the job's key.
        counts: ``submitted``, ``adopted``, ``downloaded``.
    """

    run: RunDir
    provider: Provider
    api: BatchApi
    options: BatchOptions
    endpoint: str
    journal: Journal
    caller: Caller
    index: IdIndex
    on_event: Callable[[Event], None]
    touched: dict[str, Job] = field(default_factory=dict)
    flaws: dict[str, tuple[Problem, ...]] = field(default_factory=dict)
    trouble: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=lambda: {"submitted": 0, "adopted": 0, "downloaded": 0})

    def touch(self, job: Job) -> Job:
        """Keep a job in the report of this command."""
        self.touched[job.key] = job
        return job

    def count(self, what: str) -> None:
        """Count something that was done."""
        self.counts[what] += 1

    def note(self, message: str) -> None:
        """Say something that is good to know."""
        self.on_event(Event("note", "batch", message))

    def warn(self, message: str) -> None:
        """Say something that should not go unseen."""
        self.on_event(Event("warning", "batch", message))

    def hindered(self, job: Job, why: str) -> None:
        """Note what stands in the way of a job; the same twice is told once."""
        if self.trouble.get(job.key) != why:
            self.trouble[job.key] = why
            self.warn(f"{label(job)}: {why}")

    def is_gone(self, error: CallError) -> bool:
        """Tell whether what was asked for will not come any more; a 404 may pass, unless one gives up waiting."""
        return error.status_code == _GONE or (error.is_missing and self.options.action == "cancel")

    def eased(self, job: Job) -> None:
        """Note that nothing stands in its way any more."""
        self.trouble.pop(job.key, None)


def label(job: Job) -> str:
    """Return how messages name a job."""
    what = job.shard or f"{job.requests} row(s)"
    return f"batch {job.batch_id} ({what})" if job.batch_id else f"the batch of {what}"
