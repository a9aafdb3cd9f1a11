"""TIFF: the directories of its pages, and whether the pixels they point to lie inside the file (TIFF 6.0, BigTIFF)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from vlmbatch.images import exif
from vlmbatch.images.base import MAX_PIXELS, Header, ImageError, damaged, truncated

if TYPE_CHECKING:
    from collections.abc import Iterator

_KIND, _WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC = 254, 256, 257, 258, 259, 262
_SAMPLES, _STRIP_ROWS, _PLANAR, _TILE_WIDTH, _TILE_HEIGHT = 277, 278, 284, 322, 323
_XMP, _PROFILE, _DNG_VERSION = 700, 34675, 50706
_BYTES: Final = frozenset({1, 7})
_STRIPS: Final = (273, 279)
_TILES: Final = (324, 325)
"""Tags of where strips and tiles stand, and of how long they are."""

_UNCOMPRESSED, _YCBCR, _SEPARATE = 1, 6, 2
_ONE_VALUE: Final = frozenset(
    {_WIDTH, _HEIGHT, _COMPRESSION, _PHOTOMETRIC, 266, _SAMPLES, _STRIP_ROWS, _PLANAR, 317, _TILE_WIDTH, _TILE_HEIGHT}
)
_FOR_PIXELS: Final = _ONE_VALUE | {
    *(258, 273, 279, 292, 293, 320, 324, 325, 332, 338, 339, 347, 512, 513, 514, 515, 517, 519, 520, 521),
    *(529, 530, 531, 532, _PROFILE),
}
"""What is needed to decode a page: layout, compression, colours, profile. Not among them: the orientation."""

_MAX_SAMPLES: Final = 5
_DEPTHS: Final = frozenset({1, 2, 4, 8, 16, 32})
_FORMATS: Final = {1: "B", 2: "B", 3: "H", 4: "I", 7: "B", 13: "I", 16: "Q"}
"""Types whose values are whole numbers, as struct spells them; others are never asked for."""

_VALUE_BYTES: Final = {
    1: 1,
    2: 1,
    3: 2,
    4: 4,
    5: 8,
    6: 1,
    7: 1,
    8: 2,
    9: 4,
    10: 8,
    11: 4,
    12: 8,
    13: 4,
    16: 8,
    17: 8,
    18: 8,
}


class _Layout(NamedTuple):
    """How numbers stand in the file: byte order, and the wider fields of BigTIFF."""

    order: str
    is_big: bool

    @property
    def entry(self) -> struct.Struct:
        return struct.Struct(f"{self.order}{'HHQ8s' if self.is_big else 'HHI4s'}")

    @property
    def entries(self) -> struct.Struct:
        return struct.Struct(f"{self.order}{'Q' if self.is_big else 'H'}")

    @property
    def offset(self) -> struct.Struct:
        return struct.Struct(f"{self.order}{'Q' if self.is_big else 'I'}")


class _Entry(NamedTuple):
    kind: int
    values: int
    """How many there are."""
    value: bytes
    """The value itself where it fits, else where it stands."""
    position: int
    """Where the entry stands."""


_Page = dict[int, _Entry]


def read(data: bytes) -> Header:
    """Read the first page's header, and see that the pixels of every page lie inside the file.

    Raises:
        ImageError: ``truncated``, ``damaged``, or ``unsupported_type`` (camera raw, unusual samples).
    """
    layout = _layout(data)
    pages = list(_pages(data, layout))
    if not pages:
        raise damaged("no page")
    first = pages[0]
    if _DNG_VERSION in first or data[8:10] == b"CR" or _number(data, layout, first, _KIND, 0) & 1:
        raise ImageError("unsupported_type", "a camera raw file (DNG, CR2, NEF ...), of which only a thumbnail shows")
    _check_samples(data, layout, first)
    if sum(page[tag].values for page in pages for tag in _STRIPS + _TILES if tag in page) > len(data):
        raise damaged("more strips or tiles than the file has bytes")
    for page in pages:
        _check_values(data, layout, page)
        _check_places(data, layout, page)
    width, height = (_number(data, layout, first, tag, 0) for tag in (_WIDTH, _HEIGHT))
    meta = exif.Told()
    if not layout.is_big:
        meta.take_exif(data)  # an EXIF block is a TIFF file, and the other way round
    if _XMP in first:
        meta.take_xmp(_bytes(data, layout, first[_XMP]))
    return Header(width, height, meta.orientation, len(pages), "", meta.has_gps, meta.notes)


def _layout(data: bytes) -> _Layout:
    return _Layout("<" if data[:2] == b"II" else ">", 43 in data[2:4])


def _pages(data: bytes, layout: _Layout) -> Iterator[_Page]:
    (position,) = layout.offset.unpack_from(data, 8 if layout.is_big else 4)
    seen: set[int] = set()
    left = len(data)
    while position and position not in seen:
        seen.add(position)
        if position + layout.entries.size > len(data):
            raise truncated("the file ends before a page's directory")
        (count,) = layout.entries.unpack_from(data, position)
        start = position + layout.entries.size
        end = start + count * layout.entry.size
        if end + layout.offset.size > len(data):
            raise truncated("the file ends inside a page's directory")
        left -= end - position
        if left < 0:
            raise damaged("pages lie over each other")
        page: _Page = {}
        fields = layout.entry.iter_unpack(data[start:end])
        for number, (tag, kind, values, value) in enumerate(fields):
            page.setdefault(tag, _Entry(kind, values, value, start + number * layout.entry.size))
        yield page
        (position,) = layout.offset.unpack_from(data, end)


def _bytes(data: bytes, layout: _Layout, entry: _Entry) -> bytes:
    """Return the raw bytes of a value, wherever they stand.

    Raises:
        ImageError: ``damaged``: not whole numbers; ``truncated``: outside the file.
    """
    if entry.kind not in _FORMATS:
        raise damaged(f"a value of type {entry.kind} where a whole number belongs")
    size = _VALUE_BYTES[entry.kind] * entry.values
    if size <= len(entry.value):
        return entry.value[:size]
    start = _start(data, layout, entry, size)
    return data[start : start + size]


def _start(data: bytes, layout: _Layout, entry: _Entry, size: int) -> int:
    """Return where a value of so many bytes starts that does not stand in its entry.

    Raises:
        ImageError: ``truncated``: outside the file.
    """
    start: int = layout.offset.unpack(entry.value)[0]
    if start + size > len(data):
        raise truncated("the file ends inside a page's values")
    return start


def _numbers(data: bytes, layout: _Layout, page: _Page, tag: int) -> tuple[int, ...]:
    entry = page.get(tag)
    if entry is None:
        return ()
    raw = _bytes(data, layout, entry)
    return struct.unpack(f"{layout.order}{entry.values}{_FORMATS[entry.kind]}", raw)


def _number(data: bytes, layout: _Layout, page: _Page, tag: int, default: int) -> int:
    values = _numbers(data, layout, page, tag)
    return values[0] if values else default


def _check_places(data: bytes, layout: _Layout, page: _Page) -> None:
    """See that all strips or tiles of a page are there, and inside the file: decoders leave missing ones black."""
    places, lengths = _TILES if _TILES[0] in page else _STRIPS
    starts = _numbers(data, layout, page, places)
    sizes = _numbers(data, layout, page, lengths)
    needed = max((start + size for start, size in zip(starts, sizes or starts, strict=False)), default=0)
    if sizes and needed > len(data):
        raise truncated(f"{needed - len(data):,} of {needed:,} bytes are missing")
    pieces = _pieces(data, layout, page, is_tiled=places == _TILES[0])
    if len(starts) < pieces:
        raise truncated(f"pixels are missing: {len(starts)} of {pieces} strips or tiles are there")
    if sizes and _number(data, layout, page, _COMPRESSION, 1) == _UNCOMPRESSED:
        row_bytes = _row_bytes(data, layout, page)
        unfolded = row_bytes * _number(data, layout, page, _HEIGHT, 0)
        if sum(sizes) < unfolded:
            raise truncated(f"pixels are missing: {sum(sizes):,} of {unfolded:,} bytes are there")


def _pieces(data: bytes, layout: _Layout, page: _Page, *, is_tiled: bool) -> int:
    """Return how many strips or tiles make up a page."""
    width, height = (_number(data, layout, page, tag, 0) for tag in (_WIDTH, _HEIGHT))
    if is_tiled:
        across = -(-width // max(1, _number(data, layout, page, _TILE_WIDTH, 1)))
        pieces = across * -(-height // max(1, _number(data, layout, page, _TILE_HEIGHT, 1)))
    else:
        pieces = -(-height // max(1, _number(data, layout, page, _STRIP_ROWS, max(1, height))))
    is_separate = _number(data, layout, page, _PLANAR, 1) == _SEPARATE
    return pieces * (_number(data, layout, page, _SAMPLES, 1) if is_separate else 1)


def _row_bytes(data: bytes, layout: _Layout, page: _Page) -> int:
    """Return what a row takes at least, uncompressed; 0 where colours are subsampled."""
    if _number(data, layout, page, _PHOTOMETRIC, 0) == _YCBCR:
        return 0
    depths = _numbers(data, layout, page, _BITS) or (1,)
    samples = _number(data, layout, page, _SAMPLES, 1)
    bits = sum(depths) if len(depths) == samples else depths[0] * samples
    return _number(data, layout, page, _WIDTH, 0) * bits // 8


def _check_samples(data: bytes, layout: _Layout, page: _Page) -> None:
    samples = _number(data, layout, page, _SAMPLES, 1)
    depths = _numbers(data, layout, page, _BITS) or (1,)
    if not 1 <= samples <= _MAX_SAMPLES or not _DEPTHS.issuperset(depths):
        raise ImageError("unsupported_type", f"a TIFF of {samples} samples of {depths[0]} bits, which is not read here")
    tile = [_number(data, layout, page, tag, 1) for tag in (_TILE_WIDTH, _TILE_HEIGHT)]
    if tile[0] * tile[1] > MAX_PIXELS:
        raise ImageError("bomb", f"its tiles unfold to {tile[0]} x {tile[1]} pixels each")
    if any(tag in page and page[tag].values != 1 for tag in _ONE_VALUE):
        raise damaged("several values where one belongs")


def pixels(data: bytes) -> bytes:
    """Return the first page alone, under a new directory with nothing in it that does not make pixels.

    The new directory stands behind the old file, so that all offsets stay. Without it, a decoder warns of every odd
    tag, and Pillow turns the picture by itself.
    """
    layout = _layout(data)
    page = next(_pages(data, layout))
    entries = _for_pixels(page)
    body = data + b"\x00" * (len(data) & 1)
    directory = b"".join(data[entry.position : entry.position + layout.entry.size] for entry in entries)
    head = 8 if layout.is_big else 4
    return b"".join(
        (
            body[:head],
            layout.offset.pack(len(body)),
            body[head + layout.offset.size :],
            layout.entries.pack(len(entries)),
            directory,
            layout.offset.pack(0),
        )
    )


def _for_pixels(page: _Page) -> list[_Entry]:
    """Return the entries that a decoder needs, in the order of their tags."""
    return [
        page[tag]
        for tag in sorted(_FOR_PIXELS.intersection(page))
        if page[tag].kind in (_BYTES if tag == _PROFILE else _VALUE_BYTES)
    ]


def _check_values(data: bytes, layout: _Layout, page: _Page) -> None:
    """See that all values lie inside the file, and not one over the other: Pillow warns of such."""
    total = 0
    for entry in _for_pixels(page):
        size = _VALUE_BYTES[entry.kind] * entry.values
        if size > len(entry.value):
            _start(data, layout, entry, size)
            total += size
    if total > len(data):
        raise damaged("the values of a page are longer than the file")
