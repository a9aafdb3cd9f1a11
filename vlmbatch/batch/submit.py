"""Making a job: intent, upload, create. Each step stands in the journal before the next one is taken."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from vlmbatch import jsonl
from vlmbatch.batch.base import label
from vlmbatch.batch.calls import CallError, as_ending
from vlmbatch.batch.plan import lines_of
from vlmbatch.errors import RefusedError, VlmbatchError
from vlmbatch.providers.base_batch import Tag, as_time

if TYPE_CHECKING:
    from vlmbatch.batch.base import Work
    from vlmbatch.batch.plan import Planned
    from vlmbatch.journal import Job

_QUEUE_FULL = 429
_TOO_LARGE = 413
_REFUSED = "refused"
_FILE_SLACK = timedelta(hours=1)


class Effect(Enum):
    """What trying to make a job did at the provider."""

    MADE = "made"
    """The provider has it."""
    NOT_NOW = "not_now"
    """Nothing was made: the queue is full, or nobody answers."""
    DOUBTFUL = "doubtful"
    """Nobody knows: it has to be looked for."""


class Submission(NamedTuple):
    """What it did, the job, and for ``NOT_NOW`` the wait that was asked for (None = none) and the reason."""

    effect: Effect
    job: Job
    wait_s: float | None = None
    reason: str = ""


def tag_of(work: Work, job: Job) -> Tag:
    """Return what a job is known by at the provider."""
    return Tag(work.run.fingerprint, job.sha256, job.turn)


async def submit(work: Work, planned: Planned) -> Submission:
    """Make one job of some rows.

    Raises:
        IntegrityError: The lines are not what build wrote.
        RefusedError: The provider takes no such job, from nobody or not from us.
        OSError: The journal could not be written; nothing was sent after that.
    """
    lines = lines_of(work.run, planned)
    job = work.journal.intend(
        sha256=jsonl.sha256(lines),
        size=len(lines),
        ranges=planned.ranges,
        shard=planned.shard,
        endpoint=work.endpoint,
    )
    view = memoryview(lines)
    file_id = await _upload(work, job, view) if work.api.has_upload else ""
    call = work.api.create(tag_of(work, job), job.shard, file_id, view)
    work.journal.append("creating", job.key)
    try:
        reply = await work.caller.once(call, is_large=True)
    except RefusedError as error:
        work.journal.append("abandoned", job.key, why=error.message)
        raise
    except CallError as error:
        return _not_made(work, job, error)
    batch = work.api.read(reply.body)
    if not batch.id:
        work.hindered(job, "the create was answered without an id; looking whether the job was made")
        return Submission(Effect.DOUBTFUL, work.touch(job))
    work.journal.append("submitted", job.key, batch_id=batch.id, state=batch.state)
    work.count("submitted")
    work.note(f"{label(job)}: submitted, {job.requests} row(s)")
    return Submission(Effect.MADE, work.touch(job))


def _not_made(work: Work, job: Job, error: CallError) -> Submission:
    """Say what a create without a good answer means.

    Raises:
        RefusedError: The provider said no, for good.
    """
    if error.may_have_acted:
        work.hindered(job, f"no answer to the create ({error}); looking whether the job was made")
        return Submission(Effect.DOUBTFUL, work.touch(job))
    is_later = error.status_code is None or error.status_code == _QUEUE_FULL
    work.journal.append("abandoned", job.key, state="" if is_later else _REFUSED, why=f"not made: {error}")
    if is_later:
        return Submission(Effect.NOT_NOW, job, error.retry_after_s, str(error))
    raise _refused(job, "create", error)


async def _upload(work: Work, job: Job, lines: memoryview) -> str:
    """Put the lines into the provider's store, unless an earlier turn of the same job left them there.

    Raises:
        RefusedError: The provider does not take the file.
    """
    kept = _kept_file(work, job)
    if kept:
        work.journal.append("uploaded", job.key, file_id=kept.file_id, expires_at=kept.file_expires_at)
        return kept.file_id
    work.note(f"{label(job)}: uploading {len(lines):,} bytes")
    try:
        upload = await work.caller.follow(lambda: work.api.upload(tag_of(work, job), lines))
    except RefusedError as error:
        work.journal.append("abandoned", job.key, why=error.message)
        raise
    except CallError as error:
        work.journal.append("abandoned", job.key, why=f"upload: {error}")
        raise _refused(job, "upload", error) from None
    if not upload.file_id:
        work.journal.append("abandoned", job.key, why="upload: the answer names no file")
        raise RefusedError(f"{label(job)}: the upload was answered without a file's id", hint="is this a batch API?")
    work.journal.append("uploaded", job.key, file_id=upload.file_id, expires_at=upload.expires_at)
    return upload.file_id


def _kept_file(work: Work, job: Job) -> Job | None:
    """Return an earlier turn of the same job whose file the provider still keeps and made no trouble with."""
    soon = datetime.now(UTC) + _FILE_SLACK
    jobs = work.journal.jobs.values()
    refused = {other.file_id for other in jobs if other.state == _REFUSED}
    for other in jobs:
        is_same = (other.sha256, other.endpoint) == (job.sha256, job.endpoint)
        until = as_time(other.file_expires_at)
        if is_same and other.file_id not in {"", *refused} and until is not None and until > soon:
            return other
    return None


def _refused(job: Job, step: str, error: CallError) -> VlmbatchError:
    """Return the error of a step that the provider refused, or never heard of, with what to do about it."""
    if error.status_code == _TOO_LARGE:
        hint = f"its {job.bytes:,} bytes are too many: build again with a smaller --shard-max-bytes"
    elif error.is_missing:
        hint = (
            "is there a batch API at this address, and the model? vLLM and SGLang have none: "
            "docs/how-to/batch.md shows `vllm run-batch`; or use --channel realtime"
        )
    else:
        hint = "nothing of it was made; the same command goes on when the reason is gone"
    what = job.shard or f"{job.requests} row(s)"
    how = "was refused" if error.status_code else "failed"
    return as_ending(error, f"the {step} of {what} ({job.bytes:,} bytes) {how}", hint)
