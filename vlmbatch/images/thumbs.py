"""Small pictures for people to look at. What is sent is never made here."""

from __future__ import annotations

from io import BytesIO

from vlmbatch.images.base import ImageError

_QUALITY = 62


def thumbnail(data: bytes, side_px: int) -> bytes:
    """Return a picture as a small WebP, upright, its longer side at most ``side_px`` pixels; it is never enlarged.

    Raises:
        ImageError: ``undrawable``: Pillow cannot decode it here.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(BytesIO(data)) as picture:
            picture.draft("RGB", (2 * side_px, 2 * side_px))
            upright = ImageOps.exif_transpose(picture)
            if upright.mode not in {"RGB", "RGBA", "L"}:
                upright = upright.convert("RGBA" if upright.has_transparency_data else "RGB")
            upright.thumbnail((side_px, side_px))
            out = BytesIO()
            upright.save(out, "WEBP", quality=_QUALITY, method=4)
            return out.getvalue()
    except Exception as error:  # noqa: BLE001  (decoders raise whatever they like on damaged bytes)
        raise ImageError("undrawable", f"cannot be drawn: {error}") from None
