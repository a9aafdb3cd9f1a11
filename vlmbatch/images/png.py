"""PNG: the chunks, their checksums, and whether the compressed pixels unfold to all rows (W3C PNG, third edition)."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

from vlmbatch.images import exif
from vlmbatch.images.base import Header, ImageError, damaged, notes_of, truncated

if TYPE_CHECKING:
    from collections.abc import Iterator

_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"

_TEXT_MAX_BYTES: Final = 1 << 20
"""What one compressed chunk may unfold to: Pillow's ``MAX_TEXT_CHUNK``, so what servers that use it take."""

_TEXT_MAX_TOTAL_BYTES: Final = 64 << 20
"""What all texts of a picture may come to: Pillow's ``MAX_TEXT_MEMORY``."""

_MODES: Final = {
    (0, 1): "1",
    (0, 2): "L",
    (0, 4): "L",
    (0, 8): "L",
    (0, 16): "I;16",
    (2, 8): "RGB",
    (2, 16): "RGB",
    (3, 1): "P",
    (3, 2): "P",
    (3, 4): "P",
    (3, 8): "P",
    (4, 8): "LA",
    (4, 16): "RGBA",
    (6, 8): "RGBA",
    (6, 16): "RGBA",
}
"""Colour type and bit depth: the combinations that exist, with Pillow's name for what it makes of them."""

_CHANNELS: Final = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_ADAM7: Final = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""First column, first row, column step and row step of the seven interlaced passes."""

_FOR_PIXELS: Final = frozenset({b"IHDR", b"PLTE", b"tRNS", b"iCCP", b"IDAT", b"IEND"})
_FOR_COLOURS: Final = frozenset({b"cHRM", b"gAMA", b"sRGB", b"cICP", b"mDCV", b"cLLI", b"sBIT", b"bKGD", b"pHYs"})
_FOR_ANIMATION: Final = frozenset({b"acTL", b"fcTL", b"fdAT"})
_TEXTS: Final = frozenset({b"tEXt", b"zTXt", b"iTXt", b"iCCP"})
_TELLING: Final = _TEXTS | {b"eXIf", b"acTL", b"fcTL", b"tRNS"}
_RAW_PROFILES: Final = (b"Raw profile type exif\x00", b"Raw profile type APP1\x00")
_TRANSPARENCY_BYTES: Final = {0: 2, 2: 6}

_STEP: Final = 1 << 18


class _Chunk(NamedTuple):
    kind: bytes
    start: int
    body: int
    end: int
    """Where the payload ends; four bytes of checksum follow."""


class _Shape(NamedTuple):
    width: int
    height: int
    depth: int
    colour: int
    interlaced: int


def read(data: bytes) -> Header:
    """Read the header and walk over all chunks to the end, checksums included.

    Raises:
        ImageError: ``truncated``, ``damaged``, or ``bomb`` (compressed text that unfolds to more than a mebibyte).
    """
    shape = _shape(data)
    seen: set[bytes] = set()
    state = _State()
    end = 0
    for chunk in _chunks(data, is_checked=False):
        kind = chunk.kind
        if kind == b"IHDR" and seen:
            raise damaged("a second header chunk")
        if kind in _TELLING:
            state.take(kind, data[chunk.body : chunk.end], shape, is_before_pixels=b"IDAT" not in seen)
        seen.add(kind)
        end = chunk.end + 4
    if b"IDAT" not in seen:
        raise damaged("no pixels")
    if shape.colour == 3 and b"PLTE" not in seen:
        raise damaged("the palette is missing")
    meta = state.meta()
    notes = meta.notes + notes_of((("trailing_bytes", end < len(data)),))
    mode = _MODES[shape.colour, shape.depth]
    return Header(shape.width, shape.height, meta.orientation, max(1, state.frames), mode, meta.has_gps, notes)


def _shape(data: bytes) -> _Shape:
    if data[8:16] != b"\x00\x00\x00\x0dIHDR":
        raise damaged("the header chunk does not come first")
    width, height, depth, colour, compression, filtering, interlaced = struct.unpack_from(">IIBBBBB", data, 16)
    if (colour, depth) not in _MODES or compression or filtering or interlaced > 1:
        raise damaged("the header chunk holds values that do not exist")
    return _Shape(width, height, depth, colour, interlaced)


def _chunks(data: bytes, *, is_checked: bool = True) -> Iterator[_Chunk]:
    """Yield all chunks; ``is_checked`` = the checksums were found right before."""
    view = memoryview(data)
    position = len(_SIGNATURE)
    while True:
        if position + 8 > len(data):
            raise truncated("the file ends before its end chunk")
        length, kind = struct.unpack_from(">I4s", data, position)
        end = position + 8 + length
        if not kind.isalpha():
            raise damaged(f"no chunk where one should start (byte {position})")
        if end + 4 > len(data):
            raise truncated(f"the file ends inside chunk {kind.decode('ascii')}")
        if not is_checked and zlib.crc32(view[position + 4 : end]) != int.from_bytes(view[end : end + 4], "big"):
            raise damaged(f"the checksum of chunk {kind.decode('ascii')} is wrong")
        yield _Chunk(kind, position, position + 8, end)
        if kind == b"IEND":
            return
        position = end + 4


class _State:
    """What the chunks beside the pixels have told so far."""

    def __init__(self) -> None:
        self.frames = 0
        self._meta = exif.Told()
        self._raw_exif: bytes | None = None
        self._has_first_frame = False
        self._text_bytes = 0

    def meta(self) -> exif.Told:
        """Return what the metadata say, at the end; an EXIF chunk goes before the older way of hiding it in text."""
        if self._raw_exif is not None:
            self._meta.take_exif(self._raw_exif)
        return self._meta

    def take(self, kind: bytes, body: bytes, shape: _Shape, *, is_before_pixels: bool) -> None:
        """Take note of one chunk."""
        if kind == b"eXIf":
            self._meta.take_exif(body)
        elif kind in _TEXTS:
            self._take_text(kind, body)
        elif kind == b"acTL" and is_before_pixels:
            self.frames = int.from_bytes(body[:4], "big")
        elif kind == b"fcTL" and not self._has_first_frame:
            self._has_first_frame = True
            # A picture that is no part of the animation stands before it, for programs that show only one.
            self.frames += self.frames > 0 and not is_before_pixels
        elif kind == b"tRNS" and len(body) < _TRANSPARENCY_BYTES.get(shape.colour, 0):
            raise damaged("the transparency chunk is too short")

    def _take_text(self, kind: bytes, body: bytes) -> None:
        keyword, text = _text(kind, body)
        self._text_bytes += len(text)
        if self._text_bytes > _TEXT_MAX_TOTAL_BYTES:
            raise ImageError("bomb", f"its texts unfold to more than {_TEXT_MAX_TOTAL_BYTES:,} bytes")
        if keyword == b"XML:com.adobe.xmp":
            self._meta.take_xmp(text)
        elif kind != b"iCCP" and body.startswith(_RAW_PROFILES):
            self._raw_exif = _raw_exif(text)


def _text(kind: bytes, body: bytes) -> tuple[bytes, bytes]:
    """Return keyword and text of a text chunk (of a colour profile: its name and bytes), unfolded."""
    keyword, _, rest = body.partition(b"\x00")
    if kind == b"tEXt":
        return keyword, rest
    if kind in {b"zTXt", b"iCCP"}:
        return keyword, _unfolded(kind, rest[1:])
    is_compressed = rest[:1] == b"\x01"
    text = rest[2:].split(b"\x00", 2)[-1]
    return keyword, _unfolded(kind, text) if is_compressed else text


def _unfolded(kind: bytes, packed: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(packed, _TEXT_MAX_BYTES)
        # One byte more settles whether it ends here or goes on; what is left over inside zlib counts as well.
        more = inflater.decompress(inflater.unconsumed_tail, 1)
    except zlib.error:
        return b""  # text that cannot be read harms no pixel
    if more:
        raise ImageError("bomb", f"chunk {kind.decode('ascii')} unfolds to more than {_TEXT_MAX_BYTES:,} bytes")
    return text


def _raw_exif(text: bytes) -> bytes:
    """Return EXIF as ImageMagick writes it into text: a name, a length, then hexadecimal lines."""
    lines = text.strip().split(b"\n")
    try:
        return bytes.fromhex(b"".join(lines[2:]).decode("ascii"))
    except ValueError:
        return b""  # which is broken EXIF


def check_rows(data: bytes) -> None:
    """Unfold the compressed pixels, in pieces, and see that every row is there and of a filter that exists.

    Nothing else can fail in decoding a PNG: undoing the filters is arithmetic. Pillow itself leaves missing rows
    black without a word, so its word is not asked.

    Raises:
        ImageError: ``truncated`` or ``damaged``.
    """
    shape = _shape(data)
    view = memoryview(data)
    inflater = zlib.decompressobj()
    rows = _Rows(shape)
    try:
        for chunk in _chunks(data):
            if chunk.kind != b"IDAT":
                continue
            packed: bytes | memoryview = view[chunk.body : chunk.end]
            while len(packed) and not rows.is_complete and not inflater.eof:
                rows.take(inflater.decompress(packed, _STEP))
                packed = inflater.unconsumed_tail
    except zlib.error as error:
        raise damaged(f"the compressed pixels are broken ({error})") from None
    if not rows.is_complete:
        raise truncated(f"pixels are missing: {rows.done:,} of {rows.total:,} bytes are there")


class _Rows:
    """Counts unfolded bytes against the rows that the header promises, and looks at each row's filter byte."""

    def __init__(self, shape: _Shape) -> None:
        bits = shape.depth * _CHANNELS[shape.colour]
        self._passes = [(rows, 1 + (columns * bits + 7) // 8) for columns, rows in _passes(shape)]
        self._next_pass = 0
        self.total = sum(rows * stride for rows, stride in self._passes)
        self.done = 0
        self._pass_start = 0

    @property
    def is_complete(self) -> bool:
        return self.done >= self.total

    def take(self, piece: bytes) -> None:
        """Count one piece, in order.

        Raises:
            ImageError: ``damaged``: a row starts with a filter that does not exist.
        """
        start, end = self.done, min(self.done + len(piece), self.total)
        while self._next_pass < len(self._passes):
            rows, stride = self._passes[self._next_pass]
            pass_end = self._pass_start + rows * stride
            first = max(start - self._pass_start, 0)
            first = self._pass_start + -(-first // stride) * stride
            filters = piece[first - start : min(end, pass_end) - start : stride]
            if filters and max(filters) > 4:
                raise damaged("a row of pixels has a filter that does not exist")
            if end < pass_end:
                break
            self._pass_start = pass_end
            self._next_pass += 1
        self.done = end


def _passes(shape: _Shape) -> list[tuple[int, int]]:
    """Return columns and rows of each pass that has any pixel."""
    if not shape.interlaced:
        return [(shape.width, shape.height)]
    sizes = (
        (-(-(shape.width - column) // column_step), -(-(shape.height - row) // row_step))
        for column, row, column_step, row_step in _ADAM7
    )
    return [(columns, rows) for columns, rows in sizes if columns > 0 and rows > 0]


def pixels(data: bytes) -> bytes:
    """Return the first picture without what a decoder could stumble over: pixels, palette and colours only."""
    return b"".join((_SIGNATURE, *_kept(data, _FOR_PIXELS)))


def strip(data: bytes, orientation: int | None) -> bytes:
    """Return the picture without metadata and without whatever stands behind it; no pixel is touched.

    Kept are the colours, the animation and, where it turns the picture, the orientation.
    """
    pieces = list(_kept(data, _FOR_PIXELS | _FOR_COLOURS | _FOR_ANIMATION))
    if orientation in exif.TURNED:
        body = b"eXIf" + exif.only_orientation(orientation)
        pieces.insert(1, struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body)))
    return b"".join((_SIGNATURE, *pieces))


def _kept(data: bytes, kinds: frozenset[bytes]) -> Iterator[bytes]:
    for chunk in _chunks(data):
        if chunk.kind in kinds and (chunk.kind != b"iCCP" or _is_deflated(data[chunk.body : chunk.end])):
            yield data[chunk.start : chunk.end + 4]


def _is_deflated(profile: bytes) -> bool:
    """Return whether a profile chunk names the one compression method that exists."""
    return profile.partition(b"\x00")[2][:1] == b"\x00"
