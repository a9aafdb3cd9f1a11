"""Where raw provider files come from: the journal tells which batch job each is of, and when that began."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from vlmbatch import jsonl
from vlmbatch.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vlmbatch.journal import Job
    from vlmbatch.rundir import RunDir


class Origins:
    """The batch jobs of raw provider files. A file is known by its name, or, where it was renamed, by length and hash.

    Args:
        jobs: The jobs that left files.
    """

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._by_name: dict[str, Job] = {}
        self._by_hash: dict[tuple[int | None, str], Job] = {}
        for job in jobs:
            for ref in job.files:
                self._by_name[os.path.basename(ref["file"])] = job
                self._by_hash[ref.get("bytes"), ref["sha256"]] = job

    @classmethod
    def load(cls, run: RunDir) -> Origins:
        """Read the run's journal, for real jobs and rehearsed ones.

        Raises:
            SchemaVersionError: A newer vlmbatch wrote it.
            IntegrityError: It is of another run.
            OSError: It cannot be read.
        """
        return cls(job for kind in (False, True) for job in Journal(run, rehearsal=kind).jobs.values())

    def job(self, path: str) -> Job | None:
        """Return the job that a raw file came from, None where the journal does not know it.

        Raises:
            OSError: The file cannot be read.
        """
        job = self._by_name.get(os.path.basename(path))
        if job is None and self._by_hash:
            size = os.path.getsize(path)
            if any(size == known for known, _ in self._by_hash):
                job = self._by_hash.get((size, jsonl.sha256_file(path)[0]))
        return job
