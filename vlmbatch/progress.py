"""How far a run is, for other programs: a small file that is replaced whole, at most once a second."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from vlmbatch import jsonl, replacing
from vlmbatch.records import PROGRESS_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Mapping

_log = logging.getLogger(__name__)
_log.addHandler(logging.NullHandler())  # or Python itself prints what nobody listens to


class ProgressFileReporter:
    """Keeps ``{total, completed, failed, updated_at}`` in a file; the work is done when the first equals the other two.

    Every write replaces the file atomically. A file that cannot be written is logged once and never stops the work.
    Safe to use from several threads.

    Args:
        path: The file.
        total: Requests in all.
        min_write_interval: Seconds between two writes at least; ``start`` and ``finalize`` always write.
        extra: Further fields to keep in the file, the same at every write.

    Attributes:
        problem: Why the file could not be written, empty as long as it could.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        total: int,
        min_write_interval: float = 1.0,
        *,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self._path = os.path.abspath(os.fspath(path))
        self._total = total
        self._interval = min_write_interval
        self._extra = dict(extra or {})
        self._lock = threading.Lock()
        self._completed = 0
        self._failed = 0
        self._written_at = float("-inf")
        self.problem = ""

    def start(self, completed: int = 0, failed: int = 0) -> None:
        """Write the state from which the work starts."""
        with self._lock:
            self._completed, self._failed = completed, failed
            self._write()

    def record_completed(self, n: int = 1) -> None:
        """Count requests that ended well."""
        self._record(n, 0)

    def record_failed(self, n: int = 1) -> None:
        """Count requests that ended without an answer."""
        self._record(0, n)

    def finalize(self) -> None:
        """Write the state in which the work ended."""
        with self._lock:
            self._write()

    def _record(self, completed: int, failed: int) -> None:
        with self._lock:
            self._completed += completed
            self._failed += failed
            if time.monotonic() - self._written_at >= self._interval:
                self._write()

    def _write(self) -> None:
        self._written_at = time.monotonic()
        state = {
            "total": self._total,
            "completed": self._completed,
            "failed": self._failed,
            "updated_at": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "schema": PROGRESS_SCHEMA,
            **self._extra,
        }
        try:
            _replace(self._path, jsonl.dumps_pretty(state))
        except (OSError, ValueError) as error:
            if not self.problem:
                self.problem = str(getattr(error, "strerror", None) or error)
                _log.warning("%s: progress cannot be written (%s)", self._path, self.problem)


def _replace(path: str, data: bytes) -> None:
    """Replace a progress file, but nothing else: a run as root would take /dev/null from everybody."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise OSError(errno.EINVAL, "not a regular file")
    why = replacing.why_not(path, replacing.STATE)
    if why:
        raise OSError(errno.EEXIST, why)
    jsonl.write_atomic(path, data, durable=False)
