"""EXIF, read as far as it matters here: which way is up, and whether it tells where the picture was taken.

The block is a TIFF file in small (Exif 3.0, CIPA DC-008, section 4.5.2). Nothing else of it is looked at, so that
a maker note gone wrong cannot spoil a good picture.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

ORIENTATION: Final = 0x0112
GPS_IFD: Final = 0x8825
_GPS_LATITUDE, _GPS_LONGITUDE = 2, 4
_SHORT, _LONG = 3, 4

TURNED: Final = frozenset(range(2, 9))
"""Orientations that mean something other than "as stored"."""


class Metadata(NamedTuple):
    """What metadata say about the picture; ``is_broken`` = they could not be read to the end."""

    orientation: int | None = None
    has_gps: bool = False
    is_broken: bool = False


NOTHING: Final = Metadata()
_BROKEN: Final = Metadata(is_broken=True)


def read(block: bytes) -> Metadata:
    """Read an EXIF block, given from its byte order mark on (a leading ``Exif`` identifier is skipped).

    Never raises: broken metadata are a remark, not an error.
    """
    tiff = block[6:] if block.startswith(b"Exif\x00") else block
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None or len(tiff) < 8:
        return _BROKEN
    magic, offset = struct.unpack_from(f"{order}HI", tiff, 2)
    entries, is_whole = _entries(tiff, order, offset)
    if magic != 42 or not entries:
        return _BROKEN
    orientation: int | None = None
    has_gps = False
    if ORIENTATION in entries:
        orientation = _number(entries[ORIENTATION], order)
        is_whole = is_whole and orientation is not None
    if GPS_IFD in entries:
        pointer = _number(entries[GPS_IFD], order)
        gps, is_gps_whole = _entries(tiff, order, pointer or 0)
        has_gps = _GPS_LATITUDE in gps or _GPS_LONGITUDE in gps
        is_whole = is_whole and is_gps_whole
    return Metadata(orientation, has_gps, not is_whole)


def _entries(tiff: bytes, order: str, offset: int) -> tuple[dict[int, tuple[int, bytes]], bool]:
    """Return one directory as {tag: (type, value field)}, and whether all of it lay inside the block."""
    if not 8 <= offset <= len(tiff) - 2:
        return {}, False
    (count,) = struct.unpack_from(f"{order}H", tiff, offset)
    start = offset + 2
    fitting = min(count, (len(tiff) - start) // 12)
    entries: dict[int, tuple[int, bytes]] = {}
    for tag, kind, _, value in struct.iter_unpack(f"{order}HHI4s", tiff[start : start + 12 * fitting]):
        entries.setdefault(tag, (kind, value))  # of a tag given twice the first counts, as for Pillow
    return entries, fitting == count


def _number(entry: tuple[int, bytes], order: str) -> int | None:
    """Return a value that stands in the entry itself, None where it is not a whole number."""
    kind, value = entry
    if kind == _SHORT:
        return int(struct.unpack_from(f"{order}H", value)[0])
    if kind == _LONG:
        return int(struct.unpack(f"{order}I", value)[0])
    return None


def tells_position(xmp: bytes) -> bool:
    """Return whether an XMP packet holds a position: it is searched, not parsed (XML parsers fetch things)."""
    return b"GPSLatitude" in xmp or b"GPSLongitude" in xmp


def only_orientation(orientation: int) -> bytes:
    """Return the smallest EXIF block that holds an orientation and nothing else, without ``Exif`` identifier."""
    return struct.pack(">2sHIHHHIHHI", b"MM", 42, 8, 1, ORIENTATION, _SHORT, 1, orientation, 0, 0)
