"""BMP: the two headers, and room for the rows that they promise (Windows DIB formats)."""

from __future__ import annotations

import struct
from typing import Final

from vlmbatch.images.base import Header, damaged, truncated

_OS2_HEADER_BYTES: Final = 12
_UNCOMPRESSED: Final = frozenset({0, 3, 6})


def read(data: bytes) -> Header:
    """Read the header and see that the rows fit into the file.

    Raises:
        ImageError: ``truncated`` or ``damaged``.
    """
    (offset,) = struct.unpack_from("<I", data, 10)
    (header_bytes,) = struct.unpack_from("<I", data, 14)
    compression = 0
    if header_bytes == _OS2_HEADER_BYTES:
        width, height, _, bits = struct.unpack_from("<HHHH", data, 18)
    else:
        width, height, _, bits = struct.unpack_from("<iiHH", data, 18)
        if header_bytes >= 20:
            (compression,) = struct.unpack_from("<I", data, 30)
    height = abs(height)  # negative = the top row comes first
    if width < 1 or height < 1 or bits not in {1, 2, 4, 8, 16, 24, 32}:
        raise damaged("the header holds values that do not exist")
    needed = offset + (width * bits + 31) // 32 * 4 * height
    if compression in _UNCOMPRESSED and needed > len(data):
        raise truncated(f"{needed - len(data):,} of {needed:,} bytes are missing")
    return Header(width, height)
