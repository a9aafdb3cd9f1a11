"""batches.jsonl: what became of the provider's batch jobs, as an append-only list of events.

Each event is on the disk before the next step is taken, so that after a crash the file says which steps may have had
an effect at the provider. The state of a job is what its events add up to; no line is ever changed.

::

    intent → uploaded → creating → submitted → seen ... → downloaded
                 └──────────┴───────────┴─→ abandoned (why), and the rows are free again

``creating`` stands before the one call that costs money: a job that stops there may exist at the provider or not, and
is looked for before anything is sent again.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, cast

from vlmbatch import jsonl
from vlmbatch.errors import IntegrityError
from vlmbatch.records import BATCH_SCHEMA
from vlmbatch.rundir import BATCHES, check_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from vlmbatch.records import FileRef
    from vlmbatch.rundir import RunDir

EventName = Literal["intent", "uploaded", "creating", "submitted", "seen", "downloaded", "abandoned"]
_DIGITS = 64
Range = tuple[int, int]
"""Manifest lines from the first number up to, not including, the second."""


@dataclass(slots=True)
class Job:
    """One job of ours, as the journal knows it.

    Attributes:
        key: The journal's own name of it.
        sha256: Digest of its lines: a shard's own where it is a whole shard.
        turn: How often this very job was meant to be submitted, from 1.
        bytes: Length of its lines.
        requests: Number of its lines.
        shard: The shard that it is, empty where it is a choice of rows.
        ranges: Which manifest lines it holds, in order.
        endpoint: The base URL that it was meant for.
        file_id: The uploaded file, empty where there is none (yet).
        file_expires_at: Until when the provider keeps that file, None = not told.
        creating_at: When the create call was about to be sent, None = it never was.
        batch_id: The provider's id, empty where none is known (yet).
        submitted_at: When that id became known.
        state: The provider's last word on it.
        files: What was downloaded: file, sha256, bytes.
        is_over: Whether nothing more can come of it.
        why: Why it was abandoned, empty where it was not.
        rehearsal: Whether a rehearsal's provider has it.
    """

    key: str
    sha256: str
    turn: int
    bytes: int
    requests: int
    shard: str
    ranges: tuple[Range, ...]
    endpoint: str
    file_id: str = ""
    file_expires_at: str | None = None
    creating_at: str | None = None
    batch_id: str = ""
    submitted_at: str | None = None
    state: str = ""
    files: list[FileRef] = field(default_factory=list)
    is_over: bool = False
    why: str = ""
    rehearsal: bool = False

    @property
    def is_submitted(self) -> bool:
        """Whether the provider is known to have it, and it is not over."""
        return bool(self.batch_id) and not self.is_over

    @property
    def is_doubtful(self) -> bool:
        """Whether the provider may have it, and nobody knows."""
        return self.creating_at is not None and not self.batch_id and not self.is_over

    @property
    def holds_rows(self) -> bool:
        """Whether its rows are in flight: sending them elsewhere might pay twice."""
        return self.is_submitted or self.is_doubtful

    @property
    def knows_rows(self) -> bool:
        """Whether ``ranges`` are its lines one by one; one that was found by its tag alone may hold any of the run."""
        return len(self.sha256) == _DIGITS

    def positions(self) -> Iterator[int]:
        """Yield the manifest lines that it holds."""
        for start, end in self.ranges:
            yield from range(start, end)


class Journal:
    """The journal of one run, read and written. Use as a context manager where it is to be written.

    Args:
        run: The run.
        rehearsal: Whether the jobs of rehearsals are meant, and they alone.

    Raises:
        SchemaVersionError: A newer vlmbatch wrote it.
        IntegrityError: It is of another run: it names rows that this one does not have.
        OSError: It cannot be read.
    """

    def __init__(self, run: RunDir, *, rehearsal: bool = False) -> None:
        self._path = run.file(BATCHES)
        self._rehearsal = rehearsal
        self._appender: jsonl.Appender | None = None
        self.jobs: dict[str, Job] = {}
        for event in _read(self._path):
            if (event.get("rehearsal") is True) == rehearsal:
                self._fold(event)
        if any(not 0 <= start <= end <= run.requests for job in self.jobs.values() for start, end in job.ranges):
            raise IntegrityError(
                f"{run.path}: {BATCHES} names rows that this run does not have",
                hint="it is the journal of another run: fetch this run's own",
            )

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._appender is not None:
            self._appender.close()
            self._appender = None

    def append(self, event: EventName, key: str, **values: Any) -> Job:
        """Write one event and wait until the disk has it; return the job as it stands now.

        Raises:
            OSError: It could not be written: the next step must not be taken.
        """
        job = self.jobs.get(key)
        line = {
            "schema": BATCH_SCHEMA,
            "event": event,
            "at": now(),
            "job": key,
            **({"rehearsal": True} if self._rehearsal else {}),
            **({"shard": job.shard, "batch_id": job.batch_id} if job else {}),
            **values,
        }
        line = {name: value for name, value in line.items() if value not in ("", None)}
        if self._appender is None:
            self._appender = jsonl.Appender(self._path)
        self._appender.append(jsonl.dumps(line))
        self._appender.sync()
        self._fold(line)
        return self.jobs[key]

    def intend(
        self, *, sha256: str, size: int, ranges: Sequence[Range], shard: str, endpoint: str, turn: int = 1
    ) -> Job:
        """Write that a job is about to be submitted, before anything is sent.

        Args:
            sha256: Digest of its lines.
            size: Length of its lines in bytes.
            ranges: The manifest lines that it holds.
            shard: The shard that it is, empty where it is a choice of rows.
            endpoint: The base URL that it goes to.
            turn: Which turn it is at least; one that the journal has already is never taken again.
        """
        turn = max([turn, *(job.turn + 1 for job in self.jobs.values() if job.sha256[:16] == sha256[:16])])
        return self.append(
            "intent",
            f"{sha256[:16]}-{turn}",
            sha256=sha256,
            turn=turn,
            bytes=size,
            requests=sum(end - start for start, end in ranges),
            shard=shard,
            rows=[list(one) for one in ranges],
            endpoint=endpoint,
        )

    def open_jobs(self) -> list[Job]:
        """Return the jobs whose rows are in flight, oldest first."""
        return [job for job in self.jobs.values() if job.holds_rows]

    def batch_ids(self) -> set[str]:
        """Return the ids of all jobs that the journal knows."""
        return {job.batch_id for job in self.jobs.values() if job.batch_id}

    def _fold(self, event: Mapping[str, Any]) -> None:
        """Take one event into account; what an older or newer writer left out or added does no harm."""
        key, name = str(event.get("job") or ""), event.get("event")
        if name == "intent":
            self.jobs[key] = _intended(key, event)
            return
        job = self.jobs.get(key)
        if job is None:
            return
        if name == "uploaded":
            job.file_id, job.file_expires_at = str(event.get("file_id") or ""), event.get("expires_at")
        elif name == "creating":
            job.creating_at = event.get("at")
        elif name == "submitted":
            job.batch_id, job.submitted_at = str(event.get("batch_id") or ""), event.get("at")
            job.is_over, job.why = False, ""  # a job that was given up for lost may turn up after all
        elif name == "downloaded":
            job.files, job.is_over = list(_files(event.get("files"))), True
        elif name == "abandoned":
            job.why, job.is_over = str(event.get("why") or "unknown"), True
        job.state = str(event.get("state") or job.state)


def _read(path: str) -> Iterator[dict[str, Any]]:
    """Yield the events of a journal; a torn or damaged line is passed over, for what it told had no effect yet."""
    if not os.path.exists(path):
        return
    for line in jsonl.iter_lines(path):
        event = jsonl.parse_object(line.data)
        if event is not None:
            check_schema(event.get("schema"), BATCH_SCHEMA, f"{BATCHES}:{line.number}")
            yield event


def _intended(key: str, event: Mapping[str, Any]) -> Job:
    return Job(
        key,
        str(event.get("sha256") or ""),
        _count(event.get("turn")) or 1,
        _count(event.get("bytes")),
        _count(event.get("requests")),
        str(event.get("shard") or ""),
        tuple(_ranges(event.get("rows"))),
        str(event.get("endpoint") or ""),
        rehearsal=event.get("rehearsal") is True,
    )


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


def _ranges(value: object) -> Iterator[Range]:
    """Yield the ranges that a value holds; what is none names no row."""
    for one in value if isinstance(value, list) else ():
        if isinstance(one, list) and [type(bound) for bound in one] == [int, int]:
            yield one[0], one[1]


def _files(value: object) -> Iterator[FileRef]:
    """Yield the references to files that a value holds; what is none names no file."""
    for one in value if isinstance(value, list) else ():
        if isinstance(one, dict) and isinstance(one.get("file"), str) and isinstance(one.get("sha256"), str):
            yield cast("FileRef", one)


def in_flight(run: RunDir) -> Iterator[int]:
    """Yield the manifest lines whose rows are in a batch job that may still answer them (some may come twice).

    Raises:
        SchemaVersionError: A newer vlmbatch wrote the journal.
        IntegrityError: It is of another run.
    """
    for job in Journal(run).open_jobs():
        yield from job.positions()


def ranges_of(positions: Iterable[int]) -> list[Range]:
    """Return ascending positions as ranges."""
    found: list[Range] = []
    for position in positions:
        if found and found[-1][1] == position:
            found[-1] = (found[-1][0], position + 1)
        else:
            found.append((position, position + 1))
    return found


def now() -> str:
    """Return the time as events carry it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
