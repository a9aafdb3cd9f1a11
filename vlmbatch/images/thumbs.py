"""Small pictures for people to look at. What is sent is never made here."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

from vlmbatch.images import decode, sniff
from vlmbatch.images.base import ImageError

if TYPE_CHECKING:
    from PIL import Image

_QUALITY = 62
_PLAIN_MODES = frozenset({"RGB", "RGBA", "L"})


def thumbnail(data: bytes, side_px: int) -> bytes:
    """Return a picture as a small WebP, upright, its longer side at most ``side_px`` pixels; it is never enlarged.

    Raises:
        ImageError: The bytes are no picture, or none that can be decoded here.
    """
    from PIL import ImageOps

    media_type = sniff.media_type(data)
    try:
        picture = _small_jpeg(data, side_px) if media_type == sniff.JPEG else decode.decode(data, media_type)
        if picture.mode not in _PLAIN_MODES:
            picture = picture.convert("RGBA" if picture.has_transparency_data else "RGB")
        picture.thumbnail((side_px, side_px))
        out = BytesIO()
        ImageOps.exif_transpose(picture).save(out, "WEBP", quality=_QUALITY)
        return out.getvalue()
    except ImageError:
        raise
    # Fed with broken bytes, decoders fail in every way there is.
    except Exception as error:  # noqa: BLE001
        raise ImageError("undecodable", f"the pixels cannot be decoded ({error})", media_type=media_type) from None


def _small_jpeg(data: bytes, side_px: int) -> Image.Image:
    """Decode a JPEG at the smallest scale that its format offers above the size that is wanted: many times faster."""
    from PIL.JpegImagePlugin import JpegImageFile

    picture = JpegImageFile(BytesIO(data))
    picture.draft("RGB", (2 * side_px, 2 * side_px))
    return picture
