"""Pixels that a program has in memory become a file: PNG, which loses nothing."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from vlmbatch.images import sniff
from vlmbatch.images.base import ImageError
from vlmbatch.images.encode import encode, plain

if TYPE_CHECKING:
    from PIL import Image

_KEPT: Final = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA"})
"""Colour models that are 8-bit grey or colour, with or without transparency, to the last bit."""


def as_png(value: Any) -> bytes | None:
    """Return a picture of Pillow's, or an array of 8-bit pixels, as a PNG; None where a value is neither.

    The same pixels give the same bytes with the same Pillow. Pixels are taken as they lie, and their colour profile
    with them; an EXIF orientation and other metadata are not. Of several frames the one at hand is taken.

    Args:
        value: A ``PIL.Image.Image``, or an array (height x width, or height x width x 3 or 4) of ``uint8``.

    Raises:
        ImageError: ``cannot_convert``: the pixels are of a kind that a plain PNG does not hold as they are.
    """
    image = _image_of(value)
    if image is None:
        return None
    if image.mode not in _KEPT or not image.width or not image.height:
        size = f"{image.width} x {image.height}"
        raise ImageError(
            "cannot_convert", f"{size} pixels of mode {image.mode} are no plain picture; image.convert('RGB') makes one"
        )
    pixels, profile = plain(image)
    return encode(pixels, sniff.PNG, quality=100, profile=profile, orientation=None)


def _image_of(value: Any) -> Image.Image | None:
    """Return a copy of a picture, or a picture of an array."""
    pillow = sys.modules.get("PIL.Image")
    try:
        if pillow is not None and isinstance(value, pillow.Image):
            copy: Image.Image = value.copy()  # whose metadata may be dropped, and which is read whole
            return copy
        if not hasattr(value, "__array_interface__"):
            return None
        from PIL import Image

        return Image.fromarray(value)
    except (OSError, SyntaxError, TypeError, ValueError, LookupError) as error:
        raise ImageError("cannot_convert", f"{type(value).__name__} is no picture that can be read ({error})") from None
