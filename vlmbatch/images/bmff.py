"""HEIF (HEIC, AVIF): the boxes around the pixels, read without a decoder (ISO/IEC 14496-12, 23008-12).

The size is that of the picture as every decoder delivers it: crop and turn that the container prescribes (``clap``,
``irot``) are part of decoding. EXIF's orientation is not: in HEIF it is a remark that readers must not act on, so none
is reported.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from vlmbatch.images import exif
from vlmbatch.images.base import Header, ImageError, damaged, notes_of, truncated

if TYPE_CHECKING:
    from collections.abc import Iterator

_SEQUENCE_BRANDS: Final = frozenset({b"avis", b"msf1", b"hevc", b"hevx"})
_TELLING: Final = frozenset({b"Exif", b"mime"})
_SAMPLES_PATH: Final = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"stsz")


class Box(NamedTuple):
    """One box: its type, and where its contents start and end."""

    kind: bytes
    body: int
    end: int


class _Reader:
    """Reads big-endian numbers one after the other."""

    def __init__(self, data: bytes, position: int, end: int) -> None:
        self._data = data
        self.position = position
        self._end = end

    def number(self, size: int) -> int:
        """Return an unsigned number of so many bytes (none: 0)."""
        start = self.position
        self.position += size
        if self.position > self._end:
            raise damaged("a box is too short for what it holds")
        return int.from_bytes(self._data[start : self.position], "big")


@dataclass(slots=True)
class _Meta:
    """What the ``meta`` box says.

    Attributes:
        primary: Id of the item that is the picture.
        properties: All properties, in the order in which they are numbered from 1.
        owned: Numbers of the properties that each item has.
        extents: Where each item's bytes stand in the file, as (start, length).
        kinds: Four-letter type of each item, and where it stands.
    """

    primary: int = 0
    properties: list[Box] = field(default_factory=list)
    owned: dict[int, list[int]] = field(default_factory=dict)
    extents: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    kinds: dict[int, tuple[bytes, int]] = field(default_factory=dict)


def boxes(data: bytes, start: int, end: int) -> Iterator[Box]:
    """Yield the boxes between two offsets.

    Raises:
        ImageError: ``truncated``: a box reaches over the end; ``damaged``: one is too small to be one.
    """
    position = start
    while position + 8 <= end:
        size, kind = struct.unpack_from(">I4s", data, position)
        body = position + 8
        if size == 1:
            if body + 8 > end:
                raise truncated(f"the file ends inside box {_name(kind)}")
            (size,) = struct.unpack_from(">Q", data, body)
            body += 8
        elif size == 0:
            size = end - position
        if size < body - position:
            raise damaged(f"box {_name(kind)} says it is {size} bytes long")
        if position + size > end:
            raise truncated(f"the file ends inside box {_name(kind)}: {position + size - end:,} bytes are missing")
        yield Box(kind, body, position + size)
        position += size


def _name(kind: bytes) -> str:
    return kind.decode("ascii", "replace") if kind.isalnum() else kind.hex()


def read(data: bytes) -> Header:
    """Read the size from the boxes, and see that all boxes and all items end inside the file.

    Raises:
        ImageError: ``truncated``, ``damaged``, or ``unsupported_type`` (a film without a still picture).
    """
    top: dict[bytes, Box] = {}
    is_complete = False
    trailing = False
    try:
        for box in boxes(data, 0, len(data)):
            top.setdefault(box.kind, box)
            is_complete = b"meta" in top and b"mdat" in top
    except ImageError:
        # Behind the last box that belongs to the picture anything may stand, as behind a JPEG.
        if not is_complete:
            raise
        trailing = True
    if b"meta" not in top:
        if b"moov" in top:
            raise ImageError("unsupported_type", "a film in a HEIF container, without a still picture")
        raise truncated("the file ends before the box that describes the picture")
    meta = _meta(data, top[b"meta"])
    _check_extents(data, meta)
    width, height = _size(data, meta)
    told = _metadata(data, meta)
    notes = notes_of((("broken_exif", "broken_exif" in told.notes), ("trailing_bytes", trailing)))
    return Header(width, height, None, _frames(data), "", told.has_gps, notes)


def _meta(data: bytes, box: Box) -> _Meta:
    meta = _Meta()
    for inner in boxes(data, box.body + 4, box.end):
        version = data[inner.body] if inner.body < inner.end else 0
        reader = _Reader(data, inner.body + 4, inner.end)
        if inner.kind == b"pitm":
            meta.primary = reader.number(2 if version == 0 else 4)
        elif inner.kind == b"iloc":
            _read_locations(reader, version, meta)
        elif inner.kind == b"iinf":
            start = inner.body + (6 if version == 0 else 8)
            _read_kinds(data, boxes(data, start, inner.end), meta)
        elif inner.kind == b"iprp":
            for part in boxes(data, inner.body, inner.end):
                if part.kind == b"ipco":
                    meta.properties = list(boxes(data, part.body, part.end))
                elif part.kind == b"ipma":
                    _read_owned(data, part, meta)
    return meta


def _read_locations(reader: _Reader, version: int, meta: _Meta) -> None:
    sizes = reader.number(2)
    offset_bytes, length_bytes, base_bytes, index_bytes = (sizes >> shift & 15 for shift in (12, 8, 4, 0))
    for _ in range(reader.number(2 if version < 2 else 4)):
        item = reader.number(2 if version < 2 else 4)
        method = reader.number(2) & 15 if version in {1, 2} else 0
        reader.number(2)  # which file; always this one in practice
        base = reader.number(base_bytes)
        extents = []
        count = reader.number(2)
        if count > 1 and not offset_bytes + length_bytes:
            raise damaged("pieces of an item that stand nowhere")
        for _ in range(count):
            reader.number(index_bytes if version in {1, 2} else 0)
            offset = reader.number(offset_bytes)
            extents.append((base + offset, reader.number(length_bytes)))
        if method == 0:  # others count from inside the meta box
            meta.extents[item] = extents


def _read_kinds(data: bytes, entries: Iterator[Box], meta: _Meta) -> None:
    for entry in entries:
        version = data[entry.body] if entry.body < entry.end else 0
        if entry.kind != b"infe" or version < 2:
            continue
        reader = _Reader(data, entry.body + 4, entry.end)
        item = reader.number(2 if version == 2 else 4)
        reader.number(2)
        meta.kinds[item] = (reader.number(4).to_bytes(4, "big"), reader.position - 4)


def _read_owned(data: bytes, box: Box, meta: _Meta) -> None:
    version, is_wide = data[box.body], data[box.body + 3] & 1
    reader = _Reader(data, box.body + 4, box.end)
    for _ in range(reader.number(4)):
        item = reader.number(2 if version == 0 else 4)
        # The highest bit says that the property is essential; the rest is its number.
        numbers = [reader.number(2) & 0x7FFF if is_wide else reader.number(1) & 0x7F for _ in range(reader.number(1))]
        meta.owned.setdefault(item, []).extend(numbers)


def _check_extents(data: bytes, meta: _Meta) -> None:
    needed = max((start + length for extents in meta.extents.values() for start, length in extents), default=0)
    if needed > len(data):
        raise truncated(f"{needed - len(data):,} of {needed:,} bytes are missing")


def _size(data: bytes, meta: _Meta) -> tuple[int, int]:
    size: tuple[int, int] | None = None
    for number in meta.owned.get(meta.primary, []):
        if not 1 <= number <= len(meta.properties):
            continue
        kind, body, end = meta.properties[number - 1]
        if kind == b"ispe" and end - body >= 12:
            size = struct.unpack_from(">II", data, body + 4)
        elif kind == b"clap" and end - body >= 16 and size is not None:
            size = _cropped(size, struct.unpack_from(">IIII", data, body))
        elif kind == b"irot" and end > body and data[body] & 1 and size is not None:
            size = size[1], size[0]
    if size is None:
        raise damaged("the container does not say how large its picture is")
    return size


def _cropped(size: tuple[int, int], clap: tuple[int, ...]) -> tuple[int, int]:
    """Return the size of the clean aperture, where it is one."""
    width_n, width_d, height_n, height_d = clap
    if not width_d or not height_d:
        raise damaged("a crop by zero")
    width, height = width_n // width_d, height_n // height_d
    return (width, height) if 0 < width <= size[0] and 0 < height <= size[1] else size


def _metadata(data: bytes, meta: _Meta) -> exif.Told:
    told = exif.Told()
    left = len(data)
    for item, (kind, _) in meta.kinds.items():
        extents = meta.extents.get(item, [])
        left -= sum(length for _, length in extents) if kind in _TELLING else 0
        if kind not in _TELLING or left < 0:  # below 0, items lie over each other: it could go on for ever
            continue
        payload = b"".join(data[start : start + length] for start, length in extents)
        if kind == b"mime":
            told.take_xmp(payload)
        elif len(payload) > 4:
            told.take_exif(payload[4 + int.from_bytes(payload[:4], "big") :])
    return told


def _frames(data: bytes) -> int:
    if data[8:12] not in _SEQUENCE_BRANDS:
        return 1
    start, end = 0, len(data)
    for wanted in _SAMPLES_PATH:
        found = next((box for box in boxes(data, start, end) if box.kind == wanted), None)
        if found is None:
            return 1
        start, end = found.body, found.end
    return max(1, int.from_bytes(data[start + 8 : start + 12], "big")) if end - start >= 12 else 1


def pixels(data: bytes) -> bytes:
    """Return the file with its EXIF items renamed, so that no decoder stumbles over them; all offsets stay."""
    meta_box = next(box for box in boxes(data, 0, len(data)) if box.kind == b"meta")
    changed = bytearray(data)
    for kind, position in _meta(data, meta_box).kinds.values():
        if kind == b"Exif":
            changed[position : position + 4] = b"free"
    return bytes(changed)
