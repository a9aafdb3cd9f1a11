"""WebP: the RIFF chunks and the sizes in their headers (RFC 9649)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from vlmbatch.images import exif
from vlmbatch.images.base import MAX_PIXELS, Header, ImageError, damaged, notes_of, truncated

if TYPE_CHECKING:
    from collections.abc import Iterator

_ANIMATION_FLAG, _XMP_FLAG, _EXIF_FLAG, _ALPHA_FLAG = 0x02, 0x04, 0x08, 0x10
_MAX_SIDE: Final = 1 << 14
_MAX_ANIMATED_PIXELS: Final = MAX_PIXELS // 4
"""libwebp holds three canvases at once in order to decode the first frame of an animation."""

_PICTURES: Final = frozenset({b"VP8 ", b"VP8L", b"ANMF"})
_STRIPPED: Final = frozenset({b"VP8X", b"ICCP", b"ANIM", b"ALPH"}) | _PICTURES


class _Chunk(NamedTuple):
    kind: bytes
    start: int
    body: int
    end: int


def read(data: bytes) -> Header:
    """Read the header and walk over all chunks to the end of the container.

    Raises:
        ImageError: ``truncated``, ``damaged`` or ``bomb``.
    """
    end = _end(data)
    first: _Chunk | None = None
    counts = dict.fromkeys(_PICTURES, 0)
    meta = exif.Told()
    for chunk in _chunks(data, end):
        first = first or chunk
        if chunk.kind in counts:
            counts[chunk.kind] += 1
        elif chunk.kind == b"EXIF":
            meta.take_exif(data[chunk.body : chunk.end])
        elif chunk.kind == b"XMP ":
            meta.take_xmp(data[chunk.body : chunk.end])
    if first is None or not any(counts.values()):
        raise damaged("no pixels")
    width, height, has_alpha, is_animated = _canvas(data, first)
    if max(width, height) > _MAX_SIDE:
        raise damaged(f"a canvas of {width} x {height} pixels, which no WebP picture can fill")
    if is_animated and width * height > _MAX_ANIMATED_PIXELS:
        raise ImageError("bomb", f"an animation that unfolds to {width} x {height} pixels, several times over")
    notes = meta.notes + notes_of((("trailing_bytes", end < len(data)),))
    frames = max(1, counts[b"ANMF"]) if is_animated else 1
    mode = "RGBA" if has_alpha else "RGB"
    return Header(width, height, meta.orientation, frames, mode, meta.has_gps, notes)


def _end(data: bytes) -> int:
    size = int.from_bytes(data[4:8], "little")
    if size < 12:
        raise damaged(f"the container says it is {size} bytes long")
    if 8 + size > len(data):
        raise truncated(f"{8 + size - len(data):,} of {8 + size:,} bytes are missing")
    return 8 + size


def _chunks(data: bytes, end: int) -> Iterator[_Chunk]:
    position = 12
    while position + 8 <= end:
        kind, size = struct.unpack_from("<4sI", data, position)
        chunk = _Chunk(kind, position, position + 8, position + 8 + size)
        if chunk.end > end:
            raise damaged(f"a chunk of {size:,} bytes reaches over the end of its container")
        yield chunk
        position = chunk.end + (size & 1)


def _canvas(data: bytes, first: _Chunk) -> tuple[int, int, bool, bool]:
    """Return width, height, whether there is alpha, whether it is animated."""
    body = data[first.body : first.end]
    if first.kind == b"VP8X" and len(body) >= 10:
        width, height = (1 + int.from_bytes(body[i : i + 3], "little") for i in (4, 7))
        return width, height, bool(body[0] & _ALPHA_FLAG), bool(body[0] & _ANIMATION_FLAG)
    if first.kind == b"VP8L" and len(body) >= 5 and body[0] == 0x2F:
        bits = int.from_bytes(body[1:5], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF), bool(bits >> 28 & 1), False
    if first.kind == b"VP8 " and len(body) >= 10 and body[3:6] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", body, 6)
        return width & 0x3FFF, height & 0x3FFF, False, False
    raise damaged("the first chunk is no picture header")


def pixels(data: bytes) -> bytes:
    """Return the container alone, without what stands behind it."""
    return data[: _end(data)]


def strip(data: bytes, orientation: int | None) -> bytes:
    """Return the picture without metadata and without whatever stands behind it; no pixel is touched.

    Kept are the colour profile, the animation and, where it turns the picture, the orientation.
    """
    pieces: list[bytes] = []
    for chunk in _chunks(data, _end(data)):
        if chunk.kind not in _STRIPPED:
            continue
        body = data[chunk.body : chunk.end]
        if chunk.kind == b"VP8X":
            flags = body[0] & ~(_XMP_FLAG | _EXIF_FLAG)
            body = bytes((flags | (_EXIF_FLAG if orientation in exif.TURNED else 0),)) + body[1:]
        pieces.append(_chunk(chunk.kind, body))
    # Only the extended form (VP8X) can hold metadata, so where an orientation was read, its flag stands already.
    if orientation in exif.TURNED:
        pieces.append(_chunk(b"EXIF", exif.only_orientation(orientation)))
    container = b"WEBP" + b"".join(pieces)
    return b"RIFF" + struct.pack("<I", len(container)) + container


def _chunk(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("<I", len(body)) + body + b"\x00" * (len(body) & 1)
