"""Locks: who works on a part of a run, and who must not at the same time."""

from __future__ import annotations

import os
from typing import IO

from vlmbatch.errors import InputError
from vlmbatch.rundir.names import LOCKS


def hold(folder: str, *, wait: bool) -> int | None:
    """Lock a folder itself, for as long as the descriptor that is returned stays open or the process lives.

    Args:
        folder: The folder.
        wait: Whether to wait for another one who holds it.

    Returns:
        The descriptor; None where another one holds it, or where the file system has no such locks.
    """
    try:
        fd = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    import fcntl

    try:
        fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def known_parts(folder: str) -> list[str]:
    """Return the names of the parts (``I-of-DEALING``) that were ever locked in a run folder."""
    names = (name.removesuffix(".lock") for name in os.listdir(os.path.join(folder, LOCKS)))
    return sorted(name for name in names if "-of-" in name)


class Lock:
    """A lock on one part of a run: two runs on the same part of one folder refuse each other.

    It is held by the operating system (flock), so a killed process leaves none behind. A shared lock refuses only
    those who want the part for themselves. One that waits is for what takes moments: it refuses nobody.
    """

    def __init__(self, folder: str, part: str, *, shared: bool = False, wait: bool = False) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._shared, self._wait = shared, wait
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
        how = fcntl.LOCK_SH if self._shared else fcntl.LOCK_EX
        try:
            fcntl.flock(file, how if self._wait else how | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise
        return file

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
