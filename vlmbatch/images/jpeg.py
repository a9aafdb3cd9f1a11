"""JPEG: the markers, from the first to the end of the picture (ITU-T T.81, annex B).

The pixels lie between markers as entropy-coded bytes, in which 0xFF is always followed by 0x00 or by a restart
marker: so the end of a scan can be found without decoding it.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from vlmbatch.images import exif
from vlmbatch.images.base import Header, ImageError, damaged, notes_of, truncated

if TYPE_CHECKING:
    from collections.abc import Iterator

_SOI, _EOI, _SOS, _DRI, _COM = 0xD8, 0xD9, 0xDA, 0xDD, 0xFE
_APP0, _APP1, _APP2, _APP14 = 0xE0, 0xE1, 0xE2, 0xEE
_END: Final = b"\xff\xd9"
_SEQUENTIAL: Final = frozenset({0xC0, 0xC1})
_FRAMES: Final = _SEQUENTIAL | {0xC2, 0xC9, 0xCA}
"""Starts of frame that decoders in use understand: sequential and progressive, Huffman or arithmetic."""
_FOREIGN_FRAMES: Final = frozenset({0xC3, 0xC5, 0xC6, 0xC7, 0xCB, 0xCD, 0xCE, 0xCF})
_WITHOUT_LENGTH: Final = frozenset({0x01, *range(0xD0, 0xD8)})
_BETWEEN_SCANS: Final = frozenset({0xC4, 0xCC, _SOS, 0xDB, 0xDC, _DRI, _COM, _EOI, *range(0xE0, 0xF0)})
_MODES: Final = {1: "L", 3: "RGB", 4: "CMYK"}

_MARKER_IN_SCAN: Final = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")
_MARKER: Final = re.compile(rb"\xff[\x01-\xfe]")

_EXIF: Final = b"Exif\x00"
_LATER_EXIF: Final = re.compile(rb"\xff\xe1..Exif\x00", re.DOTALL)
"""The EXIF of a second picture or of a thumbnail of it, somewhere behind the first one's pixels."""
_XMP: Final = (b"http://ns.adobe.com/xap/1.0/\x00", b"http://ns.adobe.com/xmp/extension/\x00")
_ICC: Final = b"ICC_PROFILE\x00"


class _Segment(NamedTuple):
    """One marker with what belongs to it: ``body`` is where its payload starts, ``end`` where the next one may."""

    marker: int
    start: int
    body: int
    end: int


class _Frame(NamedTuple):
    marker: int
    width: int
    height: int
    sampling: tuple[int, ...]
    """Sampling factors of the components, horizontal in the high and vertical in the low four bits."""


def read(data: bytes) -> Header:
    """Read the header and find the end of the picture; an end marker as the very last bytes is taken for it.

    Whether the scans before it are in order shows when they are walked through, in :func:`pixels`.

    Raises:
        ImageError: ``truncated``, ``damaged`` or ``unsupported_type``.
    """
    told = _Told()
    segment = _Segment(_SOI, 0, 2, 2)
    while segment.marker != _SOS:
        segment = _segment(data, segment.end)
        told.take(data, segment)
    frame, meta = told.frame, told.meta
    for found in _LATER_EXIF.finditer(data, segment.end):
        length = int.from_bytes(data[found.start() + 2 : found.start() + 4], "big")
        meta.take_exif_of_another(data[found.start() + 4 : found.start() + 2 + length])
    if frame is None:
        raise damaged("the pixels start before a frame header")
    has_trailing = _end(data, segment) < len(data) and not told.has_second
    notes = meta.notes + notes_of((("second_picture", told.has_second), ("trailing_bytes", has_trailing)))
    return Header(frame.width, frame.height, meta.orientation, 1, _MODES[len(frame.sampling)], meta.has_gps, notes)


class _Told:
    """What the segments before the pixels have told so far."""

    __slots__ = ("frame", "has_second", "meta")

    def __init__(self) -> None:
        self.frame: _Frame | None = None
        self.meta = exif.Told()
        self.has_second = False

    def take(self, data: bytes, segment: _Segment) -> None:
        """Take note of one segment."""
        marker = segment.marker
        if marker == _APP1:
            payload = data[segment.body : segment.end]
            if payload.startswith(_EXIF):
                self.meta.take_exif(payload)
            elif payload.startswith(_XMP):
                self.meta.take_xmp(payload)
        elif marker == _APP2:
            self.has_second = self.has_second or data.startswith(b"MPF\x00", segment.body)
        elif marker in _FRAMES:
            if self.frame is not None:
                raise damaged("a second frame header")
            self.frame = _frame(data, segment)
        elif marker in _FOREIGN_FRAMES:
            raise ImageError("unsupported_type", "a lossless or hierarchical JPEG, which hardly any program reads")
        elif marker == _EOI:
            raise damaged("the end marker comes before any pixels")


def _segment(data: bytes, position: int) -> _Segment:
    """Return the segment at a position; a scan header stands without the pixels behind it."""
    start = position
    if data[start] != 0xFF or data[start + 1] in {0x00, 0xFF}:
        # Fill bytes are allowed here; stray ones are not, but every decoder passes over them.
        found = _MARKER.search(data, start)
        if found is None:
            raise truncated("the file ends between two markers")
        start = found.start()
    marker = data[start + 1]
    if marker in {_SOI, _EOI} or marker in _WITHOUT_LENGTH:
        return _Segment(marker, start, start + 2, start + 2)
    length: int = struct.unpack_from(">H", data, start + 2)[0]
    end = start + 2 + length
    if length < 2:
        raise damaged(f"segment ff{marker:02x} says it is {length} bytes long")
    if end > len(data):
        raise truncated(f"the file ends inside segment ff{marker:02x}")
    return _Segment(marker, start, start + 4, end)


def _frame(data: bytes, segment: _Segment) -> _Frame:
    body = data[segment.body : segment.end]
    if len(body) < 6 or len(body) < 6 + 3 * body[5]:
        raise damaged("the frame header is too short")
    precision, height, width, components = struct.unpack_from(">BHHB", body)
    if precision != 8:
        raise ImageError("unsupported_type", f"a JPEG of {precision} bits a channel, which hardly any program reads")
    if components not in _MODES:
        raise ImageError("unsupported_type", f"a JPEG of {components} channels, which no program reads")
    if height == 0:
        raise damaged("the header leaves the height open")
    return _Frame(segment.marker, width, height, tuple(body[6 + 3 * i + 1] for i in range(components)))


def _end(data: bytes, scan: _Segment) -> int:
    """Return where the picture ends, behind its end marker, given its first scan header."""
    if data.endswith(_END) and scan.end + len(_END) <= len(data):
        return len(data)
    end = scan.start
    for segment in _scans(data, scan):
        end = segment.end
    return end


def _scans(data: bytes, scan: _Segment) -> Iterator[_Segment]:
    """Yield the segments from the first scan to the end marker; those of scans end where their pixels do."""
    segment = scan
    while segment.marker != _EOI:
        if segment.marker == _SOS:
            found = _MARKER_IN_SCAN.search(data, segment.end)
            if found is None:
                raise truncated("the file ends inside the pixels")
            segment = segment._replace(end=found.start())
        yield segment
        segment = _segment(data, segment.end)
        if segment.marker not in _BETWEEN_SCANS:
            raise damaged(f"marker ff{segment.marker:02x} stands amid the pixels")
    yield segment


def _segments(data: bytes) -> Iterator[_Segment]:
    """Yield every segment of the picture, start marker excepted."""
    position = 2
    while True:
        segment = _segment(data, position)
        if segment.marker == _SOS:
            yield from _scans(data, segment)
            return
        yield segment
        position = segment.end


def pixels(data: bytes) -> bytes:
    """Return the picture without what a decoder could stumble over or warn of: pixels, tables and colours only.

    Raises:
        ImageError: ``truncated``, or ``damaged``: something stands amid the pixels.
    """
    return _rebuilt(data, b"")


def strip(data: bytes, orientation: int | None) -> bytes:
    """Return the picture without metadata and without whatever stands behind it; no pixel is touched.

    Kept are the colours (JFIF and Adobe markers, ICC profile) and, where it turns the picture, the orientation.
    """
    block = b""
    if orientation in exif.TURNED:
        payload = _EXIF + b"\x00" + exif.only_orientation(orientation)
        block = struct.pack(">BBH", 0xFF, _APP1, len(payload) + 2) + payload
    return _rebuilt(data, block)


def _rebuilt(data: bytes, exif_segment: bytes) -> bytes:
    pieces = [data[:2], exif_segment]
    for segment in _segments(data):
        kept = _kept(data, segment)
        if segment.marker == _APP0 and kept:
            pieces.insert(1, kept)  # JFIF wants to be first
        else:
            pieces.append(kept)
    return b"".join(pieces)


def _kept(data: bytes, segment: _Segment) -> bytes:
    marker, _, body, end = segment
    payload_bytes = end - body
    if marker == _APP0:
        # A thumbnail inside is metadata too: the segment is cut down to its fixed part.
        if data.startswith(b"JFIF\x00", body) and payload_bytes >= 14:
            return b"\xff\xe0\x00\x10" + data[body : body + 12] + b"\x00\x00"
        return b""
    if marker == _APP2:
        is_kept = data.startswith(_ICC, body) and payload_bytes > 14
    elif marker == _APP14:
        is_kept = data.startswith(b"Adobe", body) and payload_bytes >= 12
    else:
        is_kept = marker != _COM and not 0xE0 <= marker <= 0xEF
    return data[segment.start : end] if is_kept else b""


# --- pixels that are missing although the file ends as it should ------------------------------------------

_FILLER: Final = bytes((i * 73 + 41) % 255 for i in range(255))
"""Bytes that no decoder takes for a marker, and that stand for no flat area."""


def missing(data: bytes) -> str | None:
    """Return what a sequential picture lacks, as far as counting tells; None where nothing seems to be missing."""
    frame, scans, interval = _layout(data)
    if frame is None or len(scans) != 1:
        return None
    room, needed = scans[0].end - scans[0].body, (frame.width // 8) * (frame.height // 8) // 4
    if room < needed:  # a block of 8 x 8 takes two bits at the very least
        return f"{room:,} bytes cannot hold {frame.width} x {frame.height} pixels"
    if interval == 0:
        return None
    across = max(factor >> 4 for factor in frame.sampling) if len(frame.sampling) > 1 else 1
    down = max(factor & 15 for factor in frame.sampling) if len(frame.sampling) > 1 else 1
    if not across or not down:
        return None
    units = -(-frame.width // (8 * across)) * -(-frame.height // (8 * down))
    found = sum(data.count(bytes((0xFF, marker)), scans[0].body, scans[0].end) for marker in range(0xD0, 0xD8))
    lacking = -(-units // interval) - 1 - found
    return f"{lacking} restart markers are not there" if lacking > 0 else None


def padded(data: bytes) -> bytes | None:
    """Return a picture for the decoder with filler behind its pixels, None where that would prove nothing.

    libjpeg paints what is missing grey and says nothing. Filler behind the last pixel changes nothing where all
    pixels are there, and paints something else where some are missing: so the two can be told apart.
    """
    frame, scans, _ = _layout(data)
    if frame is None or len(scans) != 1:
        return None
    # 32 bytes for each block of 64 coefficients are more than random codes use.
    blocks = len(frame.sampling) * (frame.width // 8 + 2) * (frame.height // 8 + 2)
    filler = _FILLER * (32 * blocks // len(_FILLER) + 1)
    return b"".join((data[: scans[0].end], filler, _END))


def _layout(data: bytes) -> tuple[_Frame | None, list[_Segment], int]:
    """Return frame (None unless sequential), scans, and restart interval in coded units."""
    frame: _Frame | None = None
    scans: list[_Segment] = []
    interval = 0
    for segment in _segments(data):
        if segment.marker in _SEQUENTIAL:
            frame = _frame(data, segment)
        elif segment.marker == _SOS:
            scans.append(segment)
        elif segment.marker == _DRI:
            interval = struct.unpack_from(">H", data, segment.body)[0]
    return frame, scans, interval
