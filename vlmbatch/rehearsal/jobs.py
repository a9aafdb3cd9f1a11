"""The rehearsal provider's files and batch jobs: kept in memory, moved on by being looked at. No HTTP in here.

A job passes ``validating``, ``in_progress`` and, where it is looked at often enough, ``finalizing``; its rows are
answered when it ends, by the same rules as a realtime request, and come out in another order than they went in.
Everything is kept until the server stops, so a job that was submitted twice is there twice.
"""

from __future__ import annotations

import secrets
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from vlmbatch import jsonl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from vlmbatch.rehearsal.faults import Faults
    from vlmbatch.rehearsal.replies import Reply

State = Literal["validating", "in_progress", "finalizing", "cancelling", "completed", "expired", "failed", "cancelled"]
ENDED = frozenset({"completed", "expired", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One uploaded file, or one that a job made. ``created_at`` is in seconds since 1970."""

    id: str
    name: str
    data: bytes
    purpose: str
    created_at: float
    media_type: str = ""


class Row(NamedTuple):
    """One request of a job: its id and the body that the provider consumes."""

    custom_id: str
    body: bytes


class Flaw(NamedTuple):
    """What is wrong with a job's input; ``line`` is 1-based, None where it is not one line's fault."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class Done(NamedTuple):
    """What became of one row: a reply, or none where the job ended before it was its turn."""

    custom_id: str
    reply: Reply | None

    @property
    def is_good(self) -> bool:
        """Whether the model answered."""
        return self.reply is not None and self.reply.status == 200


@dataclass(slots=True)
class StoredJob:
    """One batch job.

    Attributes:
        id: The provider's id, without a prefix of the API's own.
        api: Which API made it.
        model: The model that answers, empty where each body names its own.
        rows: The requests in input order.
        marks: What the client gave to find the job again (metadata, a display name).
        input_sha256: Digest of what was submitted: the same twice = the same job twice.
        created_at: Seconds since 1970.
        flaws: Why the input does not validate; the job fails with them.
        looks: How often it was looked at.
        state: Where it stands.
        end: How it is going to end.
        results: Ids of the files that it made, by kind.
        done: What became of the rows, in the order of the output, once it has ended.
    """

    id: str
    api: str
    model: str
    rows: Sequence[Row]
    marks: Mapping[str, Any]
    input_sha256: str
    created_at: float
    flaws: Sequence[Flaw] = ()
    looks: int = 0
    state: State = "validating"
    end: State = "completed"
    results: dict[str, str] = field(default_factory=dict)
    done: Sequence[Done] = ()

    def count(self, *, good: bool) -> int:
        """Return how many rows were answered well, or how many were answered with an error."""
        return sum(one.reply is not None and one.is_good == good for one in self.done)


class Store:
    """Files and jobs; safe to use from threads.

    Args:
        faults: What happens to jobs.
        answer: Answers one row of a job, given the row and its body's hash.
    """

    def __init__(self, faults: Faults, answer: Callable[[StoredJob, Row, str], Reply]) -> None:
        self._faults = faults
        self._answer = answer
        self._lock = threading.RLock()
        self.files: dict[str, StoredFile] = {}
        self.jobs: list[StoredJob] = []

    def add_file(self, prefix: str, name: str, data: bytes, purpose: str, media_type: str = "") -> StoredFile:
        """Keep a file and return it."""
        file = StoredFile(prefix + secrets.token_hex(8), name, data, purpose, time.time(), media_type)
        with self._lock:
            self.files[file.id] = file
        return file

    def file_bytes(self, file_id: str) -> bytes | None:
        """Return a file's bytes, None where there is no such file."""
        file = self.files.get(file_id)
        return file.data if file else None

    def add_job(
        self,
        api: str,
        rows: Sequence[Row],
        *,
        data: bytes,
        model: str = "",
        marks: Mapping[str, Any] | None = None,
        flaws: Sequence[Flaw] = (),
    ) -> StoredJob:
        """Make a job of what was submitted and return it."""
        with self._lock:
            end = self._planned_end(len(self.jobs))
            if end == "failed" and not flaws:
                flaws = (Flaw(self._faults.batch.fail_code, "Invented by the faults file.", 1),)
            job = StoredJob(
                secrets.token_hex(12), api, model, rows, marks or {}, jsonl.sha256(data), time.time(), flaws
            )
            job.end = end
            self.jobs.append(job)
            return job

    def _planned_end(self, number: int) -> State:
        batch = self._faults.batch
        return batch.ends[number] if number < len(batch.ends) else batch.end

    def job(self, job_id: str) -> StoredJob | None:
        """Return a job by its id without moving it on."""
        return next((job for job in self.jobs if job.id == job_id), None)

    def look(self, job: StoredJob) -> StoredJob:
        """Look at a job, which moves it on."""
        with self._lock:
            if job.state in ENDED:
                return job
            job.looks += 1
            if job.state == "cancelling":
                self._end(job, "cancelled")
            elif job.flaws:
                job.state = "failed"
            elif job.looks >= max(self._faults.batch.looks, 1):
                self._end(job, job.end)
            else:
                is_last = job.looks == self._faults.batch.looks - 1 and job.looks > 1
                job.state = "finalizing" if is_last else "in_progress"
            return job

    def cancel(self, job: StoredJob) -> StoredJob:
        """Ask a job to end; it has ended at the next look."""
        with self._lock:
            if job.state not in ENDED:
                job.state = "cancelling"
            return job

    def _end(self, job: StoredJob, state: State) -> None:
        """Answer the rows (half of them where the job was cut short) and put them into another order."""
        batch = self._faults.batch
        order = sorted(job.rows, key=lambda row: self._faults.chance(f"order:{job.id}:{row.custom_id}"))
        reached = len(order) if state == "completed" else len(order) // 2
        done = [self._done(job, row) for row in order[:reached]]
        done += [Done(row.custom_id, None) for row in order[reached:]]
        done = done[: max(len(done) - batch.missing_rows, 0)]
        job.done = [*done, *done[: batch.repeat_rows]]
        job.state = state

    def _done(self, job: StoredJob, row: Row) -> Done:
        return Done(row.custom_id, self._answer(job, row, jsonl.sha256(row.body)))

    def describe(self) -> list[dict[str, Any]]:
        """Return what tests count: one object per job, in the order of their making."""
        return [
            {
                "id": job.id,
                "api": job.api,
                "state": job.state,
                "requests": len(job.rows),
                "input_sha256": job.input_sha256,
                "marks": dict(job.marks),
                "custom_ids": [row.custom_id for row in job.rows],
            }
            for job in self.jobs
        ]
