"""JPEG 2000: the boxes (JP2) or the bare codestream, whose first segment tells the size (ITU-T T.800)."""

from __future__ import annotations

import struct
from typing import Final

from vlmbatch.images.base import Header, ImageError, damaged, truncated
from vlmbatch.images.bmff import boxes

_START: Final = b"\xff\x4f\xff\x51"
_END: Final = b"\xff\xd9"
_MAX_CHANNELS: Final = 5


def read(data: bytes, *, deep: bool) -> Header:
    """Read the size, and see that the codestream ends with its end marker.

    Args:
        data: The file.
        deep: Makes no difference here.

    Raises:
        ImageError: ``truncated``, ``damaged`` or ``unsupported_type``.
    """
    del deep
    start, end = _codestream(data)
    if not data.startswith(_START, start):
        raise damaged("the codestream does not start as one")
    right, bottom, left, top = struct.unpack_from(">4I", data, start + 8)
    (channels,) = struct.unpack_from(">H", data, start + 40)
    if not 1 <= channels <= _MAX_CHANNELS:
        raise ImageError("unsupported_type", f"JPEG 2000 of {channels} channels, which hardly any program reads")
    if data[end - 2 : end] != _END:
        raise truncated("the file ends inside the pixels")
    return Header(max(0, right - left), max(0, bottom - top))


def _codestream(data: bytes) -> tuple[int, int]:
    if data.startswith(_START):
        return 0, len(data)
    for box in boxes(data, 0, len(data)):
        if box.kind == b"jp2c":
            return box.body, box.end
    raise truncated("the file ends before its codestream")


def pixels(data: bytes) -> bytes:
    """Return the file as it is: a decoder looks only at what it needs."""
    return data
