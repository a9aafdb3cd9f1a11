"""The manifest's lines: how they are read, whole or their head alone."""

from __future__ import annotations

import io
import os
from operator import itemgetter
from typing import TYPE_CHECKING, cast

from vlmbatch import jsonl
from vlmbatch.errors import IntegrityError
from vlmbatch.records import Entry, ManifestHead
from vlmbatch.rundir.names import MANIFEST

if TYPE_CHECKING:
    from collections.abc import Iterator

ID_KEY = b'{"custom_id":"'
"""How each line begins."""

ROW_KEY = b',"row":'
"""What stands before the row, the last member: inside a JSON string its quotes would be escaped."""

_BUFFER = 1 << 20
_always_there = itemgetter(
    "custom_id",
    "shard",
    "offset",
    "length",
    "body_offset",
    "body_length",
    "inner_sha256",
    "line_sha256",
    "images",
)
"""The fields that no manifest line lacks, in the order of :class:`~vlmbatch.records.Entry`."""


def iter_manifest(folder: str) -> Iterator[bytes]:
    """Yield the lines of a run folder's manifest in order, unparsed; a BOM and blank lines are left out.

    Raises:
        IntegrityError: The manifest cannot be read.
    """
    try:
        with io.BufferedReader(io.FileIO(os.path.join(folder, MANIFEST)), _BUFFER) as file:
            if file.peek(len(jsonl.BOM)).startswith(jsonl.BOM):
                file.read(len(jsonl.BOM))
            for raw in file:
                if data := raw.strip():
                    yield data
    except OSError as error:
        raise IntegrityError(f"{folder}: {MANIFEST} cannot be read ({error.strerror})") from None


def parse_head(data: bytes, position: int) -> ManifestHead:
    """Parse one manifest line for its head alone, in half the time of :func:`parse_entry`.

    Raises:
        IntegrityError: The line is damaged.
    """
    try:
        head: ManifestHead = jsonl.loads(data)
        _always_there(head)
        if "row" in head:
            return head
    except (ValueError, KeyError, TypeError):
        pass  # it may be the row alone, which is nobody's business here
    parse_entry(data, position)
    return cast("ManifestHead", jsonl.loads(data[: data.index(ROW_KEY)] + b"}"))


def parse_entry(data: bytes, position: int) -> Entry:
    """Parse one manifest line; the row is cut off as bytes, for it may be long and must not change.

    Raises:
        IntegrityError: The line is damaged.
    """
    try:
        cut = data.index(ROW_KEY)
        head: ManifestHead = jsonl.loads(data[:cut] + b"}")
        row = data[cut + len(ROW_KEY) : -1]
        return Entry._make((position, *_always_there(head), row, head.get("source_line"), head.get("output", "")))
    except (ValueError, KeyError, TypeError):
        raise damaged_line(position) from None


def damaged_line(position: int) -> IntegrityError:
    """Return the error of a manifest line that is not as build wrote it."""
    return IntegrityError(
        f"{MANIFEST}: line {position + 1} is damaged", hint="fetch the folder again: manifest.jsonl is damaged"
    )
