"""Locks: who works on a part of a run, and who must not at the same time."""

from __future__ import annotations

import os
from typing import IO

from vlmbatch.errors import InputError
from vlmbatch.rundir.names import LOCKS


class Lock:
    """A lock on one part of a run: two runs on the same part of one folder refuse each other.

    It is held by the operating system (flock), so a killed process leaves none behind. A shared lock refuses only
    those who want the part for themselves.
    """

    def __init__(self, folder: str, part: str, *, shared: bool = False) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._shared = shared
        self.part = part

    def __enter__(self) -> Lock:
        """Take the lock.

        Raises:
            InputError: Another process holds it, or the folder cannot be locked at all.
        """
        try:
            self._file = self._take()
        except BlockingIOError:
            raise InputError(
                f"another process is working on this run (part {self.part!r})",
                hint="wait for it, or stop it; the same command then goes on where it ended",
            ) from None
        except OSError as error:
            raise InputError(
                f"{self._folder}: cannot be locked ({error.strerror or error})",
                hint=f"work on it where you may write into {LOCKS}/ and where the file system has locks (flock)",
            ) from None
        return self

    def _take(self) -> IO[bytes]:
        import fcntl

        folder = os.path.join(self._folder, LOCKS)
        os.makedirs(folder, exist_ok=True)
        file = open(os.path.join(folder, f"{self.part}.lock"), "ab")  # noqa: SIM115  (held until __exit__)
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if self._shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise
        return file

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
