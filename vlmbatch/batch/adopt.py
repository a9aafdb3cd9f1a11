"""Finding jobs that the provider has and the journal does not know of, so that none is ever made twice.

Where jobs carry a tag of ours (metadata, a display name, a file's name), the provider's list settles it. Where they
carry none, a job is told by its time, its size and, once it has ended, the custom_ids of its results; until all who
might be it are ruled out, the rows wait.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from vlmbatch import jsonl
from vlmbatch.batch.base import label
from vlmbatch.batch.calls import CallError, as_ending
from vlmbatch.batch.submit import tag_of
from vlmbatch.providers.base_batch import Phase, Tag, as_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from vlmbatch.batch.base import Work
    from vlmbatch.journal import Job
    from vlmbatch.providers.base_batch import Batch

_SKEW = timedelta(minutes=10)
"""How far the provider's clock may be from ours."""
_DAY = timedelta(days=1)
_MAX_PAGES = 200
_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 15.0


async def adopt(work: Work) -> None:
    """Look for every job that may be at the provider without the journal knowing its id.

    Raises:
        RefusedError: There are such jobs, and the provider cannot list its jobs.
    """
    doubtful = [job for job in work.journal.jobs.values() if job.is_doubtful]
    if not work.api.has_tags:
        for job in doubtful:
            work.touch(job)
            await settle(work, job)
        return
    try:
        found = await _tagged(work)
    except CallError as error:
        if doubtful or not error.is_missing:
            raise as_ending(
                error,
                "the provider's list of jobs cannot be had",
                "without it a job might be made twice; nothing was submitted. Try again later",
            ) from None
        work.warn(f"the provider does not list its jobs ({error}): one that this folder does not know of stays unknown")
        return
    for job in [one for one in work.journal.jobs.values() if not one.batch_id and one.creating_at]:
        batches = found.get(tag_of(work, job).name)
        if batches:
            _take_up(work, job, batches.pop(0))
        elif job.is_doubtful:
            work.touch(job)
            await settle(work, job)
    for batch in [one for batches in found.values() for one in batches]:
        _take_up_unknown(work, batch)


async def settle(work: Work, job: Job, since: datetime | None = None) -> None:
    """Look for one job that may have been made, until it is found or has had the time to show up.

    Where jobs carry no tag it may stay doubtful: then one that might be it is still open.

    Args:
        work: What the command works with.
        job: The job.
        since: When the create call ended; None = nobody knows, so that its beginning counts.
    """
    since = since or as_time(job.creating_at) or datetime.now(UTC)
    until = since + timedelta(seconds=work.options.settle_s)
    wait_s = _FIRST_WAIT_S
    while True:
        left_s = (until - datetime.now(UTC)).total_seconds()
        batch, open_ones = await (_find_tagged if work.api.has_tags else _find_untagged)(work, job)
        if batch is not None:
            _take_up(work, job, batch)
            return
        if open_ones:
            maybe = " or ".join(open_ones)
            work.hindered(job, f"may be {maybe}, which does not tell yet: waiting instead of submitting it again")
            return
        if left_s <= 0:
            work.eased(job)
            work.journal.append("abandoned", job.key, why="the provider has no such job: the create had no effect")
            return
        await asyncio.sleep(min(wait_s, left_s))
        wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


def _take_up(work: Work, job: Job, batch: Batch) -> None:
    """Write down that the provider has a job."""
    work.eased(job)
    taken = work.journal.append("submitted", job.key, batch_id=batch.id, state=batch.state)
    work.touch(taken)
    work.count("adopted")
    work.note(f"{label(taken)}: found at the provider and taken up; nothing was submitted again")


def _take_up_unknown(work: Work, batch: Batch) -> None:
    """Take up a job of this run of which the journal holds nothing, as when batches.jsonl was lost.

    One that failed as a whole holds no rows: it is written down so that its turn is not taken again.
    """
    known = Tag.read(batch.tag, work.run.fingerprint)
    if known is None:
        return
    job = work.journal.intend(**_lines_by_hash(work, known[0]), endpoint=work.endpoint, turn=known[1])
    if batch.phase is Phase.FAILED:
        work.journal.append("submitted", job.key, batch_id=batch.id, state=batch.state)
        work.journal.append("abandoned", job.key, why="it had failed as a whole before this folder knew of it")
    else:
        _take_up(work, job, batch)


def _lines_by_hash(work: Work, digest: str) -> dict[str, Any]:
    """Return which lines a job holds by the first digits of its hash: a shard's, or those of another turn.

    Where neither has that hash it is a choice of rows that nobody here knows: it may be any, so it holds all.
    """
    start = 0
    for shard in work.run.info["shards"]:
        end = start + shard["requests"]
        if shard["sha256"].startswith(digest):
            ranges = ((start, end),)
            return {"sha256": shard["sha256"], "size": shard["bytes"], "ranges": ranges, "shard": shard["file"]}
        start = end
    for job in work.journal.jobs.values():
        if job.sha256.startswith(digest):
            return {"sha256": job.sha256, "size": job.bytes, "ranges": job.ranges, "shard": job.shard}
    return {"sha256": digest, "size": 0, "ranges": ((0, work.run.requests),), "shard": ""}


# --- jobs with a tag -----------------------------------------------------------------------------------------


async def _tagged(work: Work) -> dict[str, list[Batch]]:
    """Return the jobs of this run that the journal does not know, by tag: oldest first, those that failed last."""
    known = work.journal.batch_ids()
    unknown = [batch async for batch in _listed(work) if batch.id not in known]
    names = await _names_of_files(work, [b.input_file for b in unknown if not b.tag and b.input_file])
    found: dict[str, list[Batch]] = {}
    for batch in reversed(unknown):
        tag = batch.tag or names.get(batch.input_file, "")
        if Tag.read(tag, work.run.fingerprint):
            found.setdefault(tag, []).append(batch._replace(tag=tag))
    for batches in found.values():
        batches.sort(key=lambda batch: batch.phase is Phase.FAILED)
        same = [batch.id for batch in batches if batch.phase is not Phase.FAILED]
        if len(same) > 1:
            work.warn(f"the provider has several jobs for the same rows: {', '.join(same)}")
    return found


async def _find_tagged(work: Work, job: Job) -> tuple[Batch | None, list[str]]:
    """Return a job's own batch, None where the list has none; there are no others that might be it."""
    batches = (await _tagged(work)).get(tag_of(work, job).name)
    return (batches[0] if batches else None), []


async def _listed(work: Work) -> AsyncIterator[Batch]:
    """Yield the provider's jobs, newest first, as far back as this run can have made any."""
    born = as_time(work.run.info["created_at"]) or datetime.fromtimestamp(0, UTC)
    after = ""
    for _ in range(_MAX_PAGES):
        page = work.api.read_page((await work.caller.send(work.api.list(after))).body)
        for batch in page.batches:
            if batch.created_at is not None and batch.created_at < born - _DAY:
                return
            yield batch
        after = page.after
        if not after:
            return


async def _names_of_files(work: Work, file_ids: list[str]) -> dict[str, str]:
    """Return the tags of uploaded files, for servers that keep no metadata with a job."""
    named = {job.file_id: tag_of(work, job).name for job in work.journal.jobs.values() if job.file_id}
    after = ""
    for _ in range(_MAX_PAGES):
        call = work.api.list_files(after)
        if call is None or all(file_id in named for file_id in file_ids):
            return named
        try:
            names, after = work.api.read_files((await work.caller.send(call)).body)
        except CallError:
            return named
        named.update({file_id: name.removesuffix(".jsonl") for file_id, name in names.items() if file_id not in named})
        if not after:
            return named
    return named


# --- jobs without a tag --------------------------------------------------------------------------------------


async def _find_untagged(work: Work, job: Job) -> tuple[Batch | None, list[str]]:
    """Return the batch whose results are of a job's rows, else the ids of those that might be it and do not tell."""
    open_ones: list[str] = []
    async for batch in _candidates(work, job):
        is_it = await _holds_rows_of(work, job, batch)
        if is_it:
            return batch, []
        if is_it is None:
            open_ones.append(batch.id)
    return None, open_ones


async def _candidates(work: Work, job: Job) -> AsyncIterator[Batch]:
    """Yield the jobs that might be one of ours: unknown, of its size, made at its time."""
    known = work.journal.batch_ids()
    made = as_time(job.creating_at) or datetime.now(UTC)
    first, last = made - _SKEW, made + timedelta(seconds=work.options.timeout_s) + _SKEW
    async for batch in _listed(work):
        if batch.created_at is not None and batch.created_at < first:
            return
        is_then = batch.created_at is None or batch.created_at <= last
        if batch.id not in known and is_then and batch.requests in {None, job.requests}:
            yield batch


class _EnoughError(Exception):
    """The first line has come."""


async def _holds_rows_of(work: Work, job: Job, batch: Batch) -> bool | None:
    """Tell whether a batch answered rows of a job, by the first line of its results; None while they cannot be had."""
    if batch.phase is Phase.OPEN or (batch.lacks_results and work.options.action != "cancel"):
        return None
    for result in batch.results:
        head = bytearray()

        def take(piece: bytes, head: bytearray = head) -> None:
            head.extend(piece)
            if b"\n" in piece:
                raise _EnoughError

        try:
            await work.caller.once(result.call, is_large=True, sink=take)
        except _EnoughError:
            pass
        except CallError as error:
            if not work.is_gone(error):
                return None
            work.warn(f"the results of {batch.id} are gone ({error}): nobody can tell any more whose they were")
            continue
        value = jsonl.parse_object(bytes(head).partition(b"\n")[0])
        custom_id = work.provider.read_batch_line(value).custom_id if value is not None else None
        position = work.index.position(custom_id)
        if any(start <= position < end for start, end in job.ranges):
            return True
    return False
