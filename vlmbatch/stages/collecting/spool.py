"""Scratch: what records will say of their attempts, as finished JSON, between reading results and writing records."""

from __future__ import annotations

import contextlib
import os
import tempfile
from typing import IO, TYPE_CHECKING

from vlmbatch import jsonl

if TYPE_CHECKING:
    from vlmbatch.stages.collecting.overlay import Overlay

_SPOOL_BUFFER = 1 << 20
_PART_BITS = 40
_PART_MASK = (1 << _PART_BITS) - 1


class SpoolPart:
    """One scratch file of a :class:`Spool`, filled by whoever reads one piece of the results."""

    def __init__(self, number: int, folder: str | None) -> None:
        self._folder = folder or tempfile.gettempdir()
        with jsonl.named(self._folder):
            self.file: IO[bytes] = tempfile.TemporaryFile(dir=folder, buffering=_SPOOL_BUFFER)  # noqa: SIM115
        self._at = number << _PART_BITS

    def put(self, data: bytes) -> tuple[int, int]:
        """Append; return the place in the spool, and the length.

        Raises:
            OSError: There is no room, say; the error names the folder, for the file has no name.
        """
        place, length = self._at, len(data)
        with jsonl.named(self._folder):
            self.file.write(data)
        self._at += length
        return place, length

    def flush(self) -> None:
        """Make what was put readable.

        Raises:
            OSError: As for :meth:`put`.
        """
        with jsonl.named(self._folder):
            self.file.flush()


class Spool:
    """Finished halves of records, fetched by place; gone when closed.

    Args:
        folder: Where the scratch files stand (without a name); None = the system's place for such files.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._parts: list[SpoolPart] = []
        self._fds: list[int] = []

    def new_part(self) -> SpoolPart:
        """Make room for the next piece."""
        part = SpoolPart(len(self._parts), self._folder)
        self._parts.append(part)
        self._fds.append(part.file.fileno())
        return part

    def get(self, place: int, length: int) -> bytes:
        """Return what a part's ``put`` took and flushed."""
        return os.pread(self._fds[place >> _PART_BITS], length, place & _PART_MASK)

    def of_attempt(self, overlay: Overlay, row: int) -> bytes:
        """Return the half record of an attempt."""
        return self.get(overlay.spool_offset[row], overlay.spool_length[row])

    def close(self) -> None:
        """Give the space back."""
        for part in self._parts:
            with contextlib.suppress(OSError):  # what could not be written is not needed any more
                part.file.close()

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
