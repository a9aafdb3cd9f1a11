"""Decoded pixels to the bytes of a new image: colours made plain, sides shrunk, nothing carried along unseen.

A new image holds its pixels, their colour profile, and the EXIF orientation where it still turns them. All encoder
settings are fixed here, so that the same Pillow gives the same bytes everywhere.
"""

from __future__ import annotations

import io
from math import isqrt
from typing import TYPE_CHECKING, Any, Final

from vlmbatch.images import exif
from vlmbatch.images.base import ImageError

if TYPE_CHECKING:
    from PIL import Image

_PLAIN: Final = {"RGBX": "RGB", "YCbCr": "RGB", "HSV": "RGB", "PA": "RGBA", "RGBa": "RGBA", "La": "LA"}
_PROFILE_SPACES: Final = {"L": b"GRAY", "LA": b"GRAY", "RGB": b"RGB ", "RGBA": b"RGB "}
_PNG_LEVEL: Final = 6
_WEBP_METHOD: Final = 4
_FULL_COLOUR_QUALITY: Final = 90
"""From this quality on a JPEG keeps its colours at full resolution, as coloured print needs it."""


def plain(image: Image.Image) -> tuple[Image.Image, bytes | None]:
    """Return the picture as 8-bit L, LA, RGB or RGBA, and its profile where that still describes it.

    Raises:
        ImageError: ``cannot_convert``: pixels without a known white (32-bit numbers), or a rare colour model.
    """
    profile = image.info.get("icc_profile") or None
    mode = image.mode
    if mode.startswith("I;16"):
        image = _high_bytes(image)
    elif mode == "CMYK":
        image = _without_ink(image, profile)
    elif mode in {"1", "L", "P", "RGB"}:
        image = _without_key(image)
    elif mode in _PLAIN:
        image = image.convert(_PLAIN[mode])
    elif mode not in _PROFILE_SPACES:
        raise ImageError("cannot_convert", f"pixels of mode {mode} have no one way to become colours; convert it first")
    is_fitting = profile is not None and profile[16:20] == _PROFILE_SPACES[image.mode]
    return image, profile if is_fitting else None


def _high_bytes(image: Image.Image) -> Image.Image:
    """Return 16-bit grey as 8-bit grey by its high bytes (Pillow's own conversion cuts all above 255 to white)."""
    from PIL import Image

    first = 0 if image.mode == "I;16B" else 1
    return Image.frombytes("L", image.size, image.tobytes()[first::2])


def _without_ink(image: Image.Image, profile: bytes | None) -> Image.Image:
    """Return CMYK as RGB: by its profile where it has one, else by plain subtraction."""
    if profile is None or profile[16:20] != b"CMYK":
        return image.convert("RGB")
    from PIL import ImageCms

    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        converted = ImageCms.profileToProfile(image, source, ImageCms.createProfile("sRGB"), outputMode="RGB")
    except (OSError, ImageCms.PyCMSError):
        return image.convert("RGB")
    return image.convert("RGB") if converted is None else converted


def _without_key(image: Image.Image) -> Image.Image:
    """Return 1-bit, grey, palette or colour pixels plain; a colour that means "transparent" becomes alpha."""
    is_grey = image.mode in {"1", "L"}
    if image.has_transparency_data:
        return image.convert("LA" if is_grey else "RGBA")
    return image.convert("L" if is_grey else "RGB")


def shrunk_size(width: int, height: int, max_side: int | None, max_pixels: int | None) -> tuple[int, int]:
    """Return the largest size of the same shape that keeps both limits; never a larger one than given.

    Whole numbers all the way, so that no machine rounds otherwise.
    """
    long, short = max(width, height), min(width, height)
    limit = long if max_side is None else min(long, max_side)
    if max_pixels is not None and long * short > max_pixels:
        limit = min(limit, isqrt(max_pixels * long // short))
    if limit == long:
        return width, height
    new_short = max(1, (2 * short * limit + long) // (2 * long))
    if max_pixels is not None and limit * new_short > max_pixels:
        # Rounded down it fits; a side that cannot fall below 1 leaves less room for the other.
        new_short = max(1, short * limit // long)
        limit = min(limit, max_pixels // new_short)
    return (limit, new_short) if width >= height else (new_short, limit)


def shrink(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Return the picture at a size; transparent pixels do not bleed their hidden colour into others."""
    from PIL.Image import Resampling

    return image if image.size == size else image.resize(size, Resampling.LANCZOS)


def has_alpha(image: Image.Image) -> bool:
    """Return whether a plain picture has transparency."""
    return image.mode in {"LA", "RGBA"}


def flattened(image: Image.Image, ground: tuple[int, int, int]) -> Image.Image:
    """Return the picture over a ground of one colour."""
    from PIL import Image

    if not has_alpha(image):
        return image
    base = Image.new("RGB", image.size, ground)
    base.paste(image.convert("RGB"), mask=image.getchannel("A"))
    return base


def encode(
    image: Image.Image, media_type: str, *, quality: int, profile: bytes | None, orientation: int | None
) -> bytes:
    """Return the bytes of a plain picture (without alpha, for JPEG).

    Args:
        image: The pixels.
        media_type: ``image/jpeg``, ``image/png`` or ``image/webp``.
        quality: 1 to 100; PNG has none.
        profile: ICC profile of the pixels.
        orientation: EXIF orientation that the pixels still need, None where they are upright.

    Raises:
        ImageError: ``cannot_convert``: the format has no room for the picture (WebP ends at 16,383 pixels a side).
    """
    # The plugin must have been loaded before Pillow looks for it, or it loads all it has.
    from PIL import JpegImagePlugin, PngImagePlugin, WebPImagePlugin  # noqa: F401

    image.info = {}  # comments and the like travel in here
    options: dict[str, Any]
    if media_type == "image/jpeg":
        subsampling = "4:4:4" if quality >= _FULL_COLOUR_QUALITY else "4:2:0"
        options = {"format": "JPEG", "quality": quality, "subsampling": subsampling, "optimize": True}
    elif media_type == "image/webp":
        options = {"format": "WEBP", "quality": quality, "method": _WEBP_METHOD}
        profile = profile if image.mode in {"RGB", "RGBA"} else None  # WebP has no grey: a profile for it is wrong
    else:
        options = {"format": "PNG", "compress_level": _PNG_LEVEL}
    if profile is not None:
        options["icc_profile"] = profile
    if orientation in exif.TURNED:
        options["exif"] = b"Exif\x00\x00" + exif.only_orientation(orientation)
    out = io.BytesIO()
    try:
        image.save(out, **options)
    except (OSError, ValueError) as error:
        size = f"{image.width} x {image.height}"
        raise ImageError("cannot_convert", f"{size} pixels cannot be written as {media_type} ({error})") from None
    return out.getvalue()
