"""Bytes of a file to :class:`~vlmbatch.records.ImageFacts`, or the reason why they are none.

Everything that goes into a frozen file is read from the container by our own readers, at either depth and on any
machine alike; a decoder only confirms it.
"""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING, Literal

from vlmbatch.images import decode, sniff
from vlmbatch.images.base import SLIM_RATIO, TINY_SIDE, ImageError, check_pixels, notes_of, truncated
from vlmbatch.images.formats import FORMATS
from vlmbatch.records import ImageFacts

if TYPE_CHECKING:
    from vlmbatch.images.base import Header

Check = Literal["full", "quick"]
"""How deep to look: every pixel decoded, or the container only."""


def inspect(data: bytes, *, check: Check = "full") -> ImageFacts:
    """Return what the bytes of one image say about it.

    Args:
        data: The whole file.
        check: ``quick`` reads the header and the container's structure to its end, without a decoder; ``full``
            decodes the pixels as well (of several frames or pages, the first).

    Raises:
        ImageError: The bytes cannot be used as an image; ``code`` and ``message`` say why.
    """
    media_type = sniff.media_type(data)
    try:
        header = _header(data, media_type)
        mode, notes = header.mode, header.notes + _size_notes(header)
        if check == "full":
            if decode.can_decode(media_type):
                with decode.room_for(header.width, header.height):
                    mode = decode.check(data, media_type) or mode
            else:
                notes += ("pixels_unchecked",)
    except ImageError as error:
        error.media_type = error.media_type or media_type
        raise
    return ImageFacts(
        media_type=media_type,
        width=header.width,
        height=header.height,
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        orientation=header.orientation,
        frames=header.frames,
        mode=mode,
        has_gps=header.has_gps,
        notes=notes,
    )


def _header(data: bytes, media_type: str) -> Header:
    try:
        header = FORMATS[media_type].read(data)
    except (IndexError, struct.error):
        raise truncated("the file ends too early") from None
    check_pixels(header.width, header.height)
    return header


def _size_notes(header: Header) -> tuple[str, ...]:
    short, long = sorted((header.width, header.height))
    return notes_of((("tiny", short < TINY_SIDE), ("slim", long > SLIM_RATIO * short)))
