"""Metadata, read as far as they matter here: which way is up, and whether they tell where the picture was taken.

An EXIF block is a TIFF file in small (Exif 3.0, CIPA DC-008, section 4.5.2). Nothing else of it is looked at, so
that a maker note gone wrong cannot spoil a good picture. XMP is searched, not parsed: XML parsers fetch things.
"""

from __future__ import annotations

import re
import struct
from typing import Final, NamedTuple

from vlmbatch.images.base import notes_of

_ORIENTATION: Final = 0x0112
_GPS_IFD: Final = 0x8825
_GPS_LATITUDE, _GPS_LONGITUDE = 2, 4
_SHORT, _LONG = 3, 4

TURNED: Final = frozenset(range(2, 9))
"""Orientations that mean something other than "as stored"."""


_XMP_TURN: Final = re.compile(rb'tiff:Orientation(?:\s*=\s*["\']|>)\s*[2-8]')


class Metadata(NamedTuple):
    """What an EXIF block says about the picture; ``is_broken`` = it could not be read to the end."""

    orientation: int | None = None
    has_gps: bool = False
    is_broken: bool = False


_NOTHING: Final = Metadata()
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
    if _ORIENTATION in entries:
        orientation = _number(entries[_ORIENTATION], order)
        is_whole = is_whole and orientation is not None
    if _GPS_IFD in entries:
        pointer = _number(entries[_GPS_IFD], order)
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


class Told:
    """What all the metadata of a picture say together, taken in as they come along."""

    __slots__ = ("_exif", "_has_position", "_has_xmp_turn")

    def __init__(self) -> None:
        self._exif: Metadata | None = None
        self._has_position = False
        self._has_xmp_turn = False

    def take_exif(self, block: bytes) -> None:
        """Take in an EXIF block; the first one counts, but a position in any other leaves with the file as well."""
        found = read(block)
        self._has_position |= found.has_gps
        if self._exif is None:
            self._exif = found

    def take_exif_of_another(self, block: bytes) -> None:
        """Take in an EXIF block that speaks of another picture in the same file."""
        self._has_position |= read(block).has_gps

    def take_xmp(self, packet: bytes) -> None:
        """Take in an XMP packet, or a part of one."""
        self._has_position |= b"GPSLatitude" in packet or b"GPSLongitude" in packet
        self._has_xmp_turn |= _XMP_TURN.search(packet) is not None

    @property
    def orientation(self) -> int | None:
        """The EXIF orientation as stored. That of XMP is none: browsers ignore it, and it is often left over."""
        return (self._exif or _NOTHING).orientation

    @property
    def has_gps(self) -> bool:
        """Whether a position is told anywhere."""
        return self._has_position

    @property
    def notes(self) -> tuple[str, ...]:
        """``broken_exif``; ``xmp_orientation``: a turn that only some programs (Pillow among them) make."""
        is_broken = (self._exif or _NOTHING).is_broken
        return notes_of(
            (("broken_exif", is_broken), ("xmp_orientation", self._has_xmp_turn and self.orientation is None))
        )


def only_orientation(orientation: int) -> bytes:
    """Return the smallest EXIF block that holds an orientation and nothing else, without ``Exif`` identifier."""
    return struct.pack(">2sHIHHHIHHI", b"MM", 42, 8, 1, _ORIENTATION, _SHORT, 1, orientation, 0, 0)
