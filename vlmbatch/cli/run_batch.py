"""The batch half of vlmbatch run: its flags, and what a person reads about the jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from vlmbatch.cli.base import option
from vlmbatch.console import safe, say
from vlmbatch.errors import InputError, counted

if TYPE_CHECKING:
    from vlmbatch.batch.base import BatchOptions, BatchResult, JobReport

PANEL = "Batch jobs (--channel batch)"
_SHOWN_FLAWS = 20

PollIntervalOption = Annotated[
    float, option(PANEL, "Longest time in seconds between two looks at the jobs.", "--poll-interval", metavar="S")
]
DetachOption = Annotated[bool, option(PANEL, "Submit and return; the same command fetches.", "--detach")]
StatusOption = Annotated[bool, option(PANEL, "Only say where open jobs stand.", "--status")]
CancelOption = Annotated[bool, option(PANEL, "End open jobs and fetch what they did.", "--cancel")]
MaxInFlightOption = Annotated[
    int | None, option(PANEL, "Jobs open at once, at most.", "--max-in-flight-batches", metavar="N")
]
MaxEnqueuedOption = Annotated[
    int | None, option(PANEL, "Input tokens in open jobs, at most.", "--max-enqueued-tokens", metavar="N")
]


def batch_options(
    *,
    channel: str,
    poll_interval: float,
    detach: bool,
    status: bool,
    cancel: bool,
    max_in_flight: int | None,
    max_enqueued: int | None,
) -> BatchOptions:
    """Return what the flags say.

    Raises:
        InputError: They make no sense, or are for the other channel.
    """
    from vlmbatch.batch.base import BatchOptions

    given = {
        "--detach": detach,
        "--status": status,
        "--cancel": cancel,
        "--max-in-flight-batches": max_in_flight is not None,
        "--max-enqueued-tokens": max_enqueued is not None,
    }
    named = [flag for flag, is_given in given.items() if is_given]
    if named and channel != "batch":
        raise InputError(f"{', '.join(named)}: for batch jobs alone", hint="add --channel batch, or leave it out")
    if status and cancel:
        raise InputError("--status and --cancel exclude each other", hint="give one of them")
    counts = [number for number in (max_in_flight, max_enqueued) if number is not None]
    if poll_interval <= 0 or any(number < 1 for number in counts):
        raise InputError("--poll-interval, --max-in-flight-batches and --max-enqueued-tokens must be positive")
    return BatchOptions(
        action="status" if status else "cancel" if cancel else "send",
        detach=detach,
        poll_interval_s=poll_interval,
        max_in_flight=max_in_flight,
        max_enqueued_tokens=max_enqueued,
    )


def batch_data(result: BatchResult | None) -> dict[str, Any] | None:
    """Return what became of the jobs, as JSON; None for the other channel."""
    if result is None:
        return None
    return {
        "submitted": result.submitted,
        "adopted": result.adopted,
        "downloaded": result.downloaded,
        "rows_open": result.rows_open,
        "rows_waiting": result.rows_waiting,
        "jobs": [_job_data(job) for job in result.jobs],
    }


def _job_data(job: JobReport) -> dict[str, Any]:
    return {
        "batch_id": job.batch_id or None,
        "shard": job.shard or None,
        "requests": job.requests,
        "state": job.state or None,
        "is_over": job.is_over,
        "why": job.why or None,
        "flaws": [
            {"code": flaw.code, "message": flaw.message, "custom_id": flaw.where or None, "line": flaw.line}
            for flaw in job.flaws
        ],
        "files": list(job.files),
    }


def print_batch(result: BatchResult) -> None:
    """Say what became of each job, and what is left."""
    for job in result.jobs:
        say(f"job {safe(job.batch_id or '(no id yet)')}: {_about(job)}")
        for flaw in job.flaws[:_SHOWN_FLAWS]:
            say(f"  {safe(flaw.code)}: {safe(str(flaw))}")
        if len(job.flaws) > _SHOWN_FLAWS:
            say(f"  and {len(job.flaws) - _SHOWN_FLAWS:,} more (--json has them all)")
    done = [
        f"{result.submitted} submitted",
        f"{result.adopted} found and taken up" if result.adopted else "",
        f"{result.downloaded} fetched",
    ]
    say(f"jobs: {', '.join(part for part in done if part)}")
    if result.rows_open:
        rows = counted(result.rows_open, "[row|rows]")
        say(f"open: {rows} in jobs that have not ended or wait to be fetched by the same command")
    if result.rows_waiting:
        waiting = counted(result.rows_waiting, "[row|rows] in no job yet; the same command submits [it|them]")
        say(f"waiting: {waiting}")


def _about(job: JobReport) -> str:
    what = job.shard or "single rows"
    state = job.state or "not known at the provider"
    files = f" -> {', '.join(job.files)}" if job.files else ""
    why = f" ({job.why})" if job.why else ""
    return safe(f"{what}, {counted(job.requests, '[row|rows]')}, {state}{why}{files}")
