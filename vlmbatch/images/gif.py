"""GIF: the blocks, from the screen's header to the trailer (GIF89a specification)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from vlmbatch.images import exif
from vlmbatch.images.base import Header, damaged, notes_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_EXTENSION, _IMAGE, _TRAILER = 0x21, 0x2C, 0x3B
_CONTROL, _COMMENT, _APPLICATION = 0xF9, 0xFE, 0xFF
_HEADER_BYTES: Final = 13
_XMP: Final = b"\x0bXMP DataXMP"
_LOOPS: Final = (b"\x0bNETSCAPE2.0", b"\x0bANIMEXTS1.0")


class _Block(NamedTuple):
    """One block: ``label`` tells extensions apart, ``body`` is where its data start."""

    kind: int
    label: int
    start: int
    body: int
    end: int


def read(data: bytes) -> Header:
    """Read the header and walk over all blocks to the trailer.

    Raises:
        ImageError: ``truncated`` or ``damaged``.
    """
    size: tuple[int, int] | None = None
    frames = end = 0
    meta = exif.Told()
    for block in _blocks(data):
        if block.kind == _IMAGE:
            frames += 1
            size = size or _size(data, block)
        elif block.label == _APPLICATION and data.startswith(_XMP, block.body):
            meta.take_xmp(data[block.body : block.end])
        end = block.end
    if size is None:
        raise damaged("no pixels")
    notes = meta.notes + notes_of((("trailing_bytes", end < len(data)),))
    return Header(*size, None, frames, "P", meta.has_gps, notes)


def _size(data: bytes, first: _Block) -> tuple[int, int]:
    """Return the screen's size, grown to hold the first frame: so decoders and browsers show it."""
    screen_width, screen_height = struct.unpack_from("<HH", data, 6)
    left, top, width, height = struct.unpack_from("<4H", data, first.start + 1)
    if not width or not height:
        raise damaged("the first frame has no pixels")
    return max(screen_width, left + width), max(screen_height, top + height)


def _table_bytes(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _blocks(data: bytes) -> Iterator[_Block]:
    """Yield all blocks, the trailer last. Running over the end raises IndexError."""
    position = _HEADER_BYTES + _table_bytes(data[10])
    while True:
        kind = data[position]
        start = position
        label = 0
        if kind == _TRAILER:
            yield _Block(kind, label, start, start + 1, start + 1)
            return
        if kind == _EXTENSION:
            label = data[start + 1]
            body = start + 2
        elif kind == _IMAGE:
            body = start + 11 + _table_bytes(data[start + 9])
        else:
            raise damaged(f"no block where one should start (byte {start})")
        position = body
        while length := data[position]:
            position += 1 + length
        position += 1
        yield _Block(kind, label, start, body, position)


def pixels(data: bytes) -> bytes:
    """Return the first frame as a GIF of its own, on a screen that holds it."""
    control = b""
    for block in _blocks(data):
        if block.kind == _IMAGE:
            break
        if block.label == _CONTROL:
            control = data[block.start : block.end]
    else:
        raise damaged("no pixels")
    # What happens to the frame afterwards does not matter; whether one colour is transparent does.
    control = control[:3] + bytes((control[3] & 0x01,)) + control[4:] if len(control) == 8 else b""
    header = data[:6] + struct.pack("<HH", *_size(data, block)) + data[10 : _HEADER_BYTES + _table_bytes(data[10])]
    return b"".join((header, control, data[block.start : block.end], b";"))


def strip(data: bytes, orientation: int | None) -> bytes:
    """Return the picture without comments, metadata and whatever stands behind it; no pixel is touched."""
    del orientation  # GIF has none
    pieces = [data[: _HEADER_BYTES + _table_bytes(data[10])]]
    for block in _blocks(data):
        is_loop = block.label == _APPLICATION and data.startswith(_LOOPS, block.body)
        if is_loop or block.label not in {_COMMENT, _APPLICATION}:
            pieces.append(data[block.start : block.end])
    return b"".join(pieces)
