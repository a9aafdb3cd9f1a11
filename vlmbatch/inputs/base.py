"""What every source of inputs gives: items in a fixed order, and what could not become one.

An item is one request before it is frozen: its images (not yet read), the order of text and images, and the
row's own bytes. Sources stream: nothing is kept but what a report at the end needs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vlmbatch.records import FileRef


@dataclass(frozen=True, slots=True)
class ImageSource:
    r"""One image of an item, named but not yet read.

    Attributes:
        path: Relative to the image root, ``/``-separated, never normalised; bytes that are not UTF-8 as ``\xNN``.
        path_bytes: The name's own bytes where they are not UTF-8, else None.
        location: Where the file stands (bytes, so that any name can be opened); empty where ``data`` is given.
        data: The bytes themselves, where the table holds them.
    """

    path: str
    path_bytes: bytes | None = None
    location: bytes = b""
    data: bytes | None = None

    def read(self) -> bytes:
        """Return the image's bytes, read once: hash, size and what is sent all come from this read.

        Raises:
            OSError: The file cannot be read.
        """
        if self.data is not None:
            return self.data
        fd = os.open(self.location, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(fd, "rb", buffering=0) as file:
            return file.readall()


@dataclass(frozen=True, slots=True)
class Item:
    """One request before it is frozen.

    Attributes:
        index: 0-based place in the input (several outputs of a row count on); it stands in the custom_id, so that
            the ids of good rows do not depend on bad ones.
        parts: The user's message in order: text, or the number of an image in ``images``.
        images: The images, in the order in which the row names them.
        row: The input row's own JSON object, byte for byte, on one line; ``{}`` for files and folders.
        where: How messages name it: the path, or the table's name.
        source_line: 1-based line (row for binary tables) in the table, None for files and folders.
        key: The values of the id fields joined for messages, empty where there are none.
        output: Name of the pipeline output, else empty.
    """

    index: int
    parts: tuple[str | int, ...]
    images: tuple[ImageSource, ...]
    row: bytes = b"{}"
    where: str = ""
    source_line: int | None = None
    key: str = ""
    output: str = ""


@dataclass(frozen=True, slots=True)
class Rejected:
    """An input that cannot become a request. Codes are an open list, documented in docs/reference/rejections.md."""

    index: int
    code: str
    message: str
    where: str = ""
    source_line: int | None = None
    path: str = ""


@dataclass(slots=True)
class SourceReport:
    """What a source knows once it has been read to its end.

    Attributes:
        left_out: Files that a folder scan left out, by reason (``hidden``, ``litter``, ``suffix``, ``link`` ...).
        warnings: Sentences for people.
        sha256: Digest of the input as a whole: of a table, the file's bytes; None for folders (build makes it from
            the images).
    """

    left_out: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    sha256: str | None = None


class Source(Protocol):
    """Somewhere that inputs come from. Iterate once; then ``report`` is complete."""

    kind: str
    """``folder``, ``files``, ``jsonl``, ``json``, ``csv``, ``tsv``, ``parquet``, ``arrow`` or ``stdin``."""
    path: str
    """Base name only: nothing absolute goes into a frozen file."""
    report: SourceReport
    total: int | None
    """Number of inputs, once iteration has begun; None where only reading to the end would tell (a stream)."""

    def __iter__(self) -> Iterator[Item | Rejected]:
        """Yield items and rejected inputs in input order."""
        ...


@dataclass(frozen=True, slots=True)
class Verbatim:
    """A file that build copies into inputs/ as it is."""

    name: str
    data: bytes

    def as_ref(self, sha256: str) -> FileRef:
        """Return the reference that run.json keeps."""
        return {"file": f"inputs/{self.name}", "sha256": sha256, "bytes": len(self.data)}


def describe(value: Any, *, limit: int = 60) -> str:
    """Return a value shortened for a message: no message prints a whole base64 string."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}… ({len(text)} characters)"
