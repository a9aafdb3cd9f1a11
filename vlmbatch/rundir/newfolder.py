"""A folder in the making: whole or not at all, whatever it is to hold."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import socket
from typing import TYPE_CHECKING, Self

from vlmbatch import jsonl
from vlmbatch.errors import InputError
from vlmbatch.rundir.lock import hold

if TYPE_CHECKING:
    from collections.abc import Iterator

_BUILDING = ".building"


class NewFolder:
    """A folder in the making: a hidden sibling of the target, renamed there by :meth:`put_in_place`.

    Use as a context manager; what was not put in place is gone when it ends, and so are the parents that were made for
    it. A process that is killed leaves its folder, but not the lock on it: the next one of the same name on the same
    machine removes it.

    Attributes:
        target: Where the folder will stand, absolute.
        path: Where it is made.
        removed: Names of the folders that killed processes had left, and that are gone now.
        others: Names of the folders beside it of which nobody can tell that whoever made them is dead.
    """

    def __init__(self, target: str | os.PathLike[str]) -> None:
        self.target = os.path.abspath(os.fspath(target))
        parent = os.path.dirname(self.target)
        self.path = os.path.join(parent, f"{_head(self.target)}{secrets.token_hex(4)}{_BUILDING}")
        self.removed: list[str] = []
        self.others: list[str] = []
        self._lock: int | None = None
        self._made_parents = missing_parents(parent)

    def __enter__(self) -> Self:
        for name in _made_for(self.target):
            is_gone = _remove_dead(self.target, name)
            (self.removed if is_gone else self.others).append(name)
        try:
            with self.writing():
                os.makedirs(self.path)
                self._lock = hold(self.path, wait=True)
                self._furnish()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _furnish(self) -> None:
        """Make what stands in the folder from the start."""

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Turn what the disk refuses into an error that names the target, which the disk's own does not.

        Raises:
            InputError: The disk is full, read-only, not ours ...
        """
        try:
            yield
        except OSError as error:
            raise InputError(
                f"{self.target}: cannot be written ({error.strerror or error}); nothing of it was left behind",
                hint="check permissions and space, or choose another place",
            ) from None

    def put_in_place(self) -> None:
        """Rename the folder to its target.

        Raises:
            InputError: The target came to exist in the meantime, or the disk gave out.
        """
        with self.writing():
            jsonl.fsync_dir(self.path)
            try:
                os.rename(self.path, self.target)
            except OSError:
                if not os.path.lexists(self.target):
                    raise
                raise InputError(
                    f"{self.target}: came to exist while this was being made", hint="choose a new name"
                ) from None
        jsonl.fsync_dir(os.path.dirname(self.target))

    def _end(self) -> None:
        """Remove what was not put in place, and the parents that were made for it and hold nothing else."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
        for folder in reversed(self._made_parents):
            with contextlib.suppress(OSError):
                os.rmdir(folder)


def _head(target: str) -> str:
    """Return how the names of the folders in the making begin that are made on this machine for a target."""
    return f".{os.path.basename(target)}.{jsonl.sha256(socket.gethostname().encode())[:8]}"


def _made_for(target: str) -> list[str]:
    """Return the names of the folders in the making for a target, from whatever machine."""
    try:
        found = os.listdir(os.path.dirname(target))
    except OSError:
        return []
    mark = re.compile(re.escape(f".{os.path.basename(target)}.") + "[0-9a-f]{16}" + re.escape(_BUILDING))
    return sorted(one for one in found if mark.fullmatch(one))


def _remove_dead(target: str, name: str) -> bool:
    """Remove a folder in the making whose maker is surely dead; tell whether it is gone.

    A free lock says so only on the machine on which it was taken, and only of a folder that holds something, for it is
    locked before it is filled.
    """
    path = os.path.join(os.path.dirname(target), name)
    if not name.startswith(_head(target)) or not _holds_something(path):
        return False
    lock = hold(path, wait=False)
    if lock is None:
        return False
    shutil.rmtree(path, ignore_errors=True)
    os.close(lock)
    return not os.path.lexists(path)


def _holds_something(folder: str) -> bool:
    try:
        return bool(os.listdir(folder))
    except OSError:
        return False


def missing_parents(folder: str) -> list[str]:
    """Return the parents that makedirs will have to make, outermost first."""
    missing: list[str] = []
    while folder and not os.path.isdir(folder):
        missing.insert(0, folder)
        folder = os.path.dirname(folder)
    return missing
