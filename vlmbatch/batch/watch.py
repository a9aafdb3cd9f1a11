"""Looking at jobs, fetching what they leave, ending them early."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vlmbatch import jsonl
from vlmbatch.batch.base import label
from vlmbatch.batch.calls import CallError, as_ending
from vlmbatch.batch.plan import ids_of_lines
from vlmbatch.errors import Problem
from vlmbatch.providers.base_batch import Phase
from vlmbatch.rundir import REHEARSAL_PREFIX, RESULTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from vlmbatch.batch.base import Work
    from vlmbatch.journal import Job
    from vlmbatch.providers.base_batch import Batch, ResultFile

_ALREADY_ENDED = frozenset({400, 409})
_SHOWN_FLAWS = 20
"""So many lines at fault are shown to a person; a result holds them all."""


async def ask(work: Work, job: Job) -> Batch | None:
    """Ask for a job once, and change nothing.

    Returns:
        The job as the provider tells of it, None where it could not be had now.

    Raises:
        RefusedError: The provider refuses everything of ours.
    """
    try:
        batch = work.api.read((await work.caller.once(work.api.look(job.batch_id))).body)
    except CallError as error:
        work.hindered(job, f"could not be looked at ({error}); it is kept and looked at again")
        return None
    if batch.state != job.state:
        work.note(f"{label(job)}: {batch.state}")
    return batch


async def look(work: Work, job: Job) -> Batch | None:
    """Look at a job once; write down what changed, and fetch what it left if it has ended.

    Returns:
        The job as the provider tells of it, None where it, or what it left, could not be had now: then the job stays
        as it is.

    Raises:
        RefusedError: The provider refuses everything of ours.
        OSError: Results could not be written.
    """
    batch = await ask(work, job)
    if batch is None:
        return None
    if batch.state != job.state:
        work.journal.append("seen", job.key, state=batch.state, done=batch.done, of=batch.requests)
    if batch.phase is Phase.FAILED:
        work.journal.append("abandoned", job.key, state=batch.state, why=_why_failed(batch))
        note_flaws(work, job, batch)
    elif batch.phase is Phase.ENDED and not await _fetch(work, job, batch):
        return None
    work.eased(job)
    return batch


def _why_failed(batch: Batch) -> str:
    first = next(iter(batch.flaws), None)
    return f"{first.code}: {first.message}" if first else "the provider gives no reason"


def note_flaws(work: Work, job: Job, batch: Batch) -> None:
    """Tell that nothing of a failed job ran, with the provider's words and the rows at fault; others have no flaws."""
    if batch.phase is not Phase.FAILED:
        return
    why = _why_failed(batch)
    if batch.is_queue_full:
        work.note(f"{label(job)}: the provider's queue was full ({why}); its rows wait for another turn")
        return
    flaws = work.flaws[job.key] = _located(work, job, batch.flaws) or (Problem("failed", why),)
    work.warn(f"{label(job)}: the provider refused it as a whole, nothing of it ran")
    for flaw in flaws[:_SHOWN_FLAWS]:
        work.warn(f"{flaw.code}: {flaw}")
    if len(flaws) > _SHOWN_FLAWS:
        work.warn(f"and {len(flaws) - _SHOWN_FLAWS:,} more")


def _located(work: Work, job: Job, flaws: tuple[Problem, ...]) -> tuple[Problem, ...]:
    """Add to each flaw the custom_id of its line, where it is known which lines the job holds."""
    if not job.knows_rows:
        return flaws
    ids = ids_of_lines(work.run, job.ranges, {flaw.line for flaw in flaws if flaw.line})
    return tuple(replace(flaw, where=ids.get(flaw.line or 0, "")) for flaw in flaws)


# --- results -------------------------------------------------------------------------------------------------


async def _fetch(work: Work, job: Job, batch: Batch) -> bool:
    """Store all files of an ended job raw, then write down that it is over; return whether that is done."""
    if batch.lacks_results and work.options.action != "cancel":
        work.hindered(job, f"it ended ({batch.state}) and its results are not there yet; --cancel gives it up")
        return False
    files, gone = [], ""
    for result in batch.results:
        try:
            files.append(await _store(work, job, result))
        except CallError as error:
            if not work.is_gone(error):
                work.hindered(job, f"its results could not be fetched ({error}); they are tried again")
                return False
            gone = f"its {result.kind} file is gone ({error})"
            work.warn(f"{label(job)}: {gone}")
    if gone and not files:
        work.journal.append("abandoned", job.key, state=batch.state, why=gone)
        return True
    lines = sum(ref.pop("lines") for ref in files)
    if not files:
        work.warn(f"{label(job)}: it ended ({batch.state}) without results: its rows are free again")
    elif lines < (batch.done or 0):
        work.warn(f"{label(job)}: {lines} line(s) of results for {batch.done} row(s) done: the others count as missing")
    work.journal.append("downloaded", job.key, state=batch.state, files=files)
    work.count("downloaded")
    return True


async def _store(work: Work, job: Job, result: ResultFile) -> dict[str, Any]:
    """Fetch one file of results; it is there whole or not at all."""
    prefix = REHEARSAL_PREFIX if work.options.rehearsal else ""
    word = re.sub(r"[^A-Za-z0-9._-]", "_", job.batch_id)
    name = f"{RESULTS}/{prefix}batch-{word}.{result.kind}.jsonl"
    os.makedirs(work.run.file(RESULTS), exist_ok=True)
    with jsonl.atomic_writer(work.run.file(name)) as file:
        digest, lines, last = hashlib.sha256(), 0, b"\n"

        def start_over() -> Callable[[bytes], object]:
            """Forget what a try that broke off has left, and take the next one's bytes."""
            nonlocal digest, lines, last
            file.seek(0)
            file.truncate()
            digest, lines, last = hashlib.sha256(), 0, b"\n"
            return take

        def take(piece: bytes) -> None:
            nonlocal lines, last
            file.write(piece)
            digest.update(piece)
            lines += piece.count(b"\n")
            last = piece[-1:] or last

        await work.caller.send(result.call, is_large=True, sink=start_over)
        size = file.tell()
    return {"file": name, "sha256": digest.hexdigest(), "bytes": size, "lines": lines + (last != b"\n")}


# --- ending early --------------------------------------------------------------------------------------------


async def cancel(work: Work, job: Job) -> None:
    """Ask the provider to end a job; what it has done by then is fetched when it has ended.

    Raises:
        RefusedError: The provider refuses everything of ours, or will not be asked.
    """
    try:
        await work.caller.send(work.api.cancel(job.batch_id))
    except CallError as error:
        if error.is_missing:
            work.journal.append("abandoned", job.key, why=f"the provider does not know it ({error})")
            work.warn(f"{label(job)}: the provider does not know it ({error}); its rows are free again")
        elif error.status_code not in _ALREADY_ENDED:
            raise as_ending(error, f"{label(job)} could not be cancelled", "try again later") from None
        return
    work.note(f"{label(job)}: asked to end")
