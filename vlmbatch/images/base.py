"""What every reader of an image format gives: a header, or an :class:`ImageError`. No pixels in here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_PIXELS: Final = 178_956_970
"""Above this a picture is a decompression bomb: twice Pillow's ``MAX_IMAGE_PIXELS``, where Pillow itself, and so
every server that decodes with it, refuses to open a file."""

TINY_SIDE: Final = 28
"""Several models crash on, or refuse, a side shorter than one patch of 28 pixels (ollama/ollama#11297)."""

SLIM_RATIO: Final = 200
"""Above this ratio of the sides, models of the Qwen-VL family refuse a picture (``smart_resize``)."""


class ImageError(Exception):
    """The bytes cannot be used as an image. Build turns it into a rejection; it never reaches the user as it is.

    Args:
        code: Stable name of the reason, from the open list of docs/reference/rejections.md.
        message: The reason in a few words, without the file's name.
        media_type: What the bytes are, where that much is known.
    """

    def __init__(self, code: str, message: str, *, media_type: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.media_type = media_type


@dataclass(frozen=True, slots=True)
class Header:
    """What the container of one picture says, before any pixel is decoded.

    Attributes:
        width: Stored columns in pixels, before any EXIF orientation; a turn or crop that the container itself
            prescribes (HEIF) is applied.
        height: Stored rows in pixels, likewise.
        orientation: EXIF orientation as stored, None where there is none.
        frames: Frames or pages.
        mode: Colour model as Pillow names it, empty where only a decoder can tell.
        has_gps: Whether EXIF or XMP hold a position.
        notes: Codes of what is odd but not wrong.
    """

    width: int
    height: int
    orientation: int | None = None
    frames: int = 1
    mode: str = ""
    has_gps: bool = False
    notes: tuple[str, ...] = ()


def truncated(message: str) -> ImageError:
    """Return the error for bytes that end before the picture does."""
    return ImageError("truncated", message)


def damaged(message: str) -> ImageError:
    """Return the error for bytes that contradict their own format."""
    return ImageError("damaged", message)


def check_pixels(width: int, height: int) -> None:
    """Refuse a picture without pixels, and one that would unfold to too many of them.

    Raises:
        ImageError: ``damaged`` or ``bomb``.
    """
    if width < 1 or height < 1:
        raise damaged(f"the header says {width} x {height} pixels")
    if width * height > MAX_PIXELS:
        raise ImageError("bomb", f"unfolds to {width} x {height} pixels; more than {MAX_PIXELS:,} are never decoded")


def as_it_is(data: bytes) -> bytes:
    """Return a file whole: there is nothing in it that a decoder could stumble over."""
    return data


def notes_of(pairs: Iterable[tuple[str, bool]]) -> tuple[str, ...]:
    """Return the codes whose condition holds, in the given order."""
    return tuple(code for code, holds in pairs if holds)
