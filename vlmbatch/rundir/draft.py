"""The run folder in the making: whole or not at all."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, BinaryIO

from vlmbatch import jsonl
from vlmbatch.errors import InputError
from vlmbatch.rundir.names import INPUTS, RESULTS, RUN_JSON, SHA256SUMS, SHARDS
from vlmbatch.rundir.newfolder import NewFolder

if TYPE_CHECKING:
    from vlmbatch.records import FileRef, RunInfo


class Draft(NewFolder):
    """A run folder in the making; without :meth:`publish` nothing is left behind.

    Raises:
        InputError: Something stands at the target already.
    """

    def __init__(self, target: str | os.PathLike[str]) -> None:
        if os.path.lexists(target):
            raise InputError(
                f"{os.fspath(target)}: exists already", hint="a run is built once; choose a new name for --out"
            )
        super().__init__(target)
        self._sums: dict[str, str] = {}
        self._files: list[BinaryIO] = []

    def _furnish(self) -> None:
        for folder in (SHARDS, INPUTS):
            os.mkdir(self.file(folder))

    def _end(self) -> None:
        for file in self._files:
            with contextlib.suppress(OSError):  # what could not be flushed is thrown away anyway
                file.close()
        super()._end()

    def file(self, name: str) -> str:
        """Return the path of a file of the draft."""
        return os.path.join(self.path, *name.split("/"))

    def create(self, name: str) -> BinaryIO:
        """Open a new file of the draft for writing in pieces; it is closed at the latest when the draft ends."""
        file = open(self.file(name), "xb", buffering=1 << 20)  # noqa: SIM115  (closed by _end)
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
            for folder in (SHARDS, INPUTS):
                jsonl.fsync_dir(self.file(folder))
        self.put_in_place()
