"""The run folder in the making: whole or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import socket
from typing import TYPE_CHECKING, BinaryIO

from vlmbatch import jsonl
from vlmbatch.errors import InputError
from vlmbatch.rundir.lock import hold
from vlmbatch.rundir.names import INPUTS, RESULTS, RUN_JSON, SHA256SUMS, SHARDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vlmbatch.records import FileRef, RunInfo

_BUILDING = ".building"


class Draft:
    """A run folder in the making: a hidden sibling of the target, renamed into place by :meth:`publish`.

    Use as a context manager; without ``publish`` nothing is left behind. A process that is killed leaves its draft, but
    not the lock on it: the next draft of the same name on the same machine removes it.

    Attributes:
        target: Where the run folder will stand, absolute.
        path: Where it is made.
        removed: Names of the drafts that killed builds had left, and that are gone now.
        others: Names of the drafts beside it of which nobody can tell that their build is dead.
    """

    def __init__(self, target: str | os.PathLike[str]) -> None:
        self.target = os.path.abspath(os.fspath(target))
        parent = os.path.dirname(self.target)
        if os.path.lexists(self.target):
            raise InputError(
                f"{os.fspath(target)}: exists already",
                hint="a run is built once; choose a new name for --out",
            )
        self.path = os.path.join(parent, f"{_head(self.target)}{secrets.token_hex(4)}{_BUILDING}")
        self.removed: list[str] = []
        self.others: list[str] = []
        self._lock: int | None = None
        self._sums: dict[str, str] = {}
        self._files: list[BinaryIO] = []
        self._made_parents = missing_parents(parent)

    def __enter__(self) -> Draft:
        for name in _drafts_of(self.target):
            is_gone = _remove_dead(self.target, name)
            (self.removed if is_gone else self.others).append(name)
        try:
            with self.writing():
                os.makedirs(self.path)
                self._lock = hold(self.path, wait=True)
                for folder in (SHARDS, INPUTS):
                    os.mkdir(self.file(folder))
        except BaseException:
            self._sweep()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._sweep()

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
                hint="check permissions and space, or name another place with --out",
            ) from None

    def _sweep(self) -> None:
        """Remove the draft, if it was not published, and the folders that were made for it."""
        for file in self._files:
            with contextlib.suppress(OSError):  # what could not be flushed is thrown away anyway
                file.close()
        if self._lock is not None:
            os.close(self._lock)
        if os.path.isdir(self.target) and not os.path.isdir(self.path):
            return  # it was renamed into place
        shutil.rmtree(self.path, ignore_errors=True)
        for folder in reversed(self._made_parents):
            with contextlib.suppress(OSError):
                os.rmdir(folder)

    def file(self, name: str) -> str:
        """Return the path of a file of the draft."""
        return os.path.join(self.path, *name.split("/"))

    def create(self, name: str) -> BinaryIO:
        """Open a new file of the draft for writing in pieces; it is closed at the latest when the draft ends."""
        file = open(self.file(name), "xb", buffering=1 << 20)  # noqa: SIM115  (closed by __exit__)
        self._files.append(file)
        return file

    def write(self, name: str, data: bytes) -> FileRef:
        """Write one whole frozen file; return its reference ``{file, sha256, bytes}``."""
        with open(self.file(name), "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return self.add(name, jsonl.sha256(data), len(data))

    def add(self, name: str, sha256: str, size: int) -> FileRef:
        """Note a frozen file that was written in pieces; return its reference."""
        self._sums[name] = sha256
        return {"file": name, "sha256": sha256, "bytes": size}

    def publish(self, info: RunInfo) -> None:
        """Write run.json and SHA256SUMS, take the write bits, and rename the whole into place.

        Raises:
            InputError: The target came to exist in the meantime, or the disk gave out.
        """
        with self.writing():
            self.write(RUN_JSON, jsonl.dumps_pretty(info))
            sums = b"".join(f"{digest}  {name}\n".encode() for name, digest in sorted(self._sums.items()))
            self.write(SHA256SUMS, sums)
            os.mkdir(self.file(RESULTS))
            for name in (*self._sums, SHA256SUMS):
                # A courtesy, for the hashes are the guard: not every file system has write bits.
                with contextlib.suppress(OSError):
                    os.chmod(self.file(name), 0o444)
            for folder in (SHARDS, INPUTS, ""):
                jsonl.fsync_dir(self.file(folder) if folder else self.path)
            self._rename()
        jsonl.fsync_dir(os.path.dirname(self.target))

    def _rename(self) -> None:
        try:
            os.rename(self.path, self.target)
        except OSError:
            if not os.path.lexists(self.target):
                raise
            raise InputError(
                f"{self.target}: came to exist while this run was being built",
                hint="choose a new name for --out",
            ) from None


def _head(target: str) -> str:
    """Return how the names of a run's drafts begin that are made on this machine."""
    return f".{os.path.basename(target)}.{jsonl.sha256(socket.gethostname().encode())[:8]}"


def _drafts_of(target: str) -> list[str]:
    """Return the names of the drafts of a run, from whatever machine."""
    try:
        found = os.listdir(os.path.dirname(target))
    except OSError:
        return []
    mark = re.compile(re.escape(f".{os.path.basename(target)}.") + "[0-9a-f]{16}" + re.escape(_BUILDING))
    return sorted(one for one in found if mark.fullmatch(one))


def _remove_dead(target: str, name: str) -> bool:
    """Remove a draft whose build is surely dead; tell whether it is gone.

    A free lock says so only on the machine on which it was taken, and only of a draft that holds something, for it is
    locked before it is filled.
    """
    path = os.path.join(os.path.dirname(target), name)
    if not name.startswith(_head(target)) or not os.path.isdir(os.path.join(path, SHARDS)):
        return False
    lock = hold(path, wait=False)
    if lock is None:
        return False
    shutil.rmtree(path, ignore_errors=True)
    os.close(lock)
    return not os.path.lexists(path)


def missing_parents(folder: str) -> list[str]:
    """Return the parents that makedirs will have to make, outermost first."""
    missing: list[str] = []
    while folder and not os.path.isdir(folder):
        missing.insert(0, folder)
        folder = os.path.dirname(folder)
    return missing
