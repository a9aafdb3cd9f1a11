"""JPEG 2000: the boxes (JP2) or the bare codestream, whose first segment tells the size (ITU-T T.800)."""

from __future__ import annotations

import struct
from typing import Final

from vlmbatch.images.base import Header, ImageError, damaged, truncated
from vlmbatch.images.bmff import boxes

_START: Final = b"\xff\x4f\xff\x51"
_END: Final = b"\xff\xd9"
_MAX_CHANNELS: Final = 5


def read(data: bytes) -> Header:
    """Read the size, and see that the codestream ends with its end marker.

    Raises:
        ImageError: ``truncated``, ``damaged`` or ``unsupported_type``.
    """
    start, end, announced = _codestream(data)
    if not data.startswith(_START, start):
        raise damaged("the codestream does not start as one")
    right, bottom, left, top = struct.unpack_from(">4I", data, start + 8)
    (channels,) = struct.unpack_from(">H", data, start + 40)
    if not 1 <= channels <= _MAX_CHANNELS:
        raise ImageError("unsupported_type", f"JPEG 2000 of {channels} channels, which hardly any program reads")
    if data[end - 2 : end] != _END:
        raise truncated("the file ends inside the pixels")
    size = right - left, bottom - top
    if announced not in {None, size}:
        # Pillow makes room for what the box says, before it looks at the codestream.
        raise damaged(f"the box says {announced}, the codestream {size} pixels")
    return Header(*size)


def _codestream(data: bytes) -> tuple[int, int, tuple[int, int] | None]:
    """Return where the codestream starts and ends, and the size that the box before it announces."""
    if data.startswith(_START):
        return 0, len(data), None
    announced = None
    for box in boxes(data, 0, len(data)):
        if box.kind == b"jp2c":
            return box.body, box.end, announced
        if box.kind == b"jp2h" and announced is None:
            header = next((inner for inner in boxes(data, box.body, box.end) if inner.kind == b"ihdr"), None)
            if header is None:
                raise damaged("the header box is missing")
            height, width = struct.unpack_from(">II", data, header.body)
            announced = width, height
    raise truncated("the file ends before its codestream")
