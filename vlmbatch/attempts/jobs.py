"""The journal of batch jobs, as far as reading results needs it: which job a raw file is from, and when that began."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from vlmbatch import jsonl, rundir

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from vlmbatch.rundir import RunDir


class Job(NamedTuple):
    """One provider batch job, as far as the journal tells.

    Attributes:
        batch_id: The provider's id.
        shard: The shard that it was, empty where it was a choice of rows.
        started_at: When it was submitted.
        sha256: Digest of its lines, empty = not told.
        requests: Number of its lines, 0 = not told.
        rehearsal: Whether a rehearsal's provider did it: its raw file does not say so itself.
    """

    batch_id: str = ""
    shard: str = ""
    started_at: str | None = None
    sha256: str = ""
    requests: int = 0
    rehearsal: bool = False


class Journal:
    """What batches.jsonl tells of the raw provider files: which job each is from, and when that began.

    A raw file is known by its name, or, where it was renamed, by its length and hash.
    """

    def __init__(self, events: Iterable[Mapping[str, Any]] = ()) -> None:
        self._jobs: dict[str, Job] = {}
        self._by_name: dict[str, str] = {}
        self._by_hash: dict[tuple[int, str], str] = {}
        for event in events:
            key = event.get("job") or event.get("batch_id")
            if key:  # a rehearsal's job over the same lines has the same key
                self._fold(f"{event.get('rehearsal') is True} {key}", event)

    @classmethod
    def load(cls, run: RunDir) -> Journal:
        """Read the run's journal; a run without one gives an empty journal, a damaged line is passed over."""
        path = run.file(rundir.BATCHES)
        if not os.path.exists(path):
            return cls()
        events = (jsonl.parse_object(line.data) for line in jsonl.iter_lines(path))
        return cls(event for event in events if event is not None)

    def _fold(self, key: str, event: Mapping[str, Any]) -> None:
        """Take one event into account; what it does not tell stays as it was told before."""
        name, at, known = event.get("event"), event.get("at"), self._jobs.get(key, Job())
        is_start = name == "submitted" or known.started_at is None
        self._jobs[key] = Job(
            str(event.get("batch_id") or known.batch_id),
            str(event.get("shard") or known.shard),
            at if is_start and isinstance(at, str) else known.started_at,
            str(event.get("sha256") or known.sha256),
            event["requests"] if isinstance(event.get("requests"), int) else known.requests,
            event.get("rehearsal") is True,
        )
        files = event.get("files") if name == "downloaded" else None
        for ref in files if isinstance(files, list) else ():
            if isinstance(ref, dict):
                self._note_file(key, ref)

    def _note_file(self, key: str, ref: Mapping[str, Any]) -> None:
        self._by_name[os.path.basename(str(ref.get("file")))] = key
        size, digest = ref.get("bytes"), ref.get("sha256")
        if isinstance(size, int) and isinstance(digest, str):
            self._by_hash[size, digest] = key

    def job(self, path: str) -> Job | None:
        """Return the job that a raw file came from, None where the journal does not know it."""
        key = self._by_name.get(os.path.basename(path))
        if key is None and self._by_hash:
            size = os.path.getsize(path)
            if any(size == known for known, _ in self._by_hash):
                key = self._by_hash.get((size, jsonl.sha256_file(path)[0]))
        return None if key is None else self._jobs[key]
