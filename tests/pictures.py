"""Small pictures made in memory, for tests that need real image bytes."""

from __future__ import annotations

import io

from PIL import Image


def picture(width: int, height: int, kind: str = "PNG", colour: tuple[int, int, int] | None = None) -> bytes:
    """Return an encoded picture whose colour depends on its size unless it is given."""
    fill = colour or (width * 7 % 256, height * 11 % 256, (width + height) * 13 % 256)
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), fill).save(buffer, kind)
    return buffer.getvalue()


def png(width: int, height: int, colour: tuple[int, int, int] | None = None) -> bytes:
    """Return a PNG."""
    return picture(width, height, "PNG", colour)


def jpeg(width: int, height: int, colour: tuple[int, int, int] | None = None) -> bytes:
    """Return a JPEG."""
    return picture(width, height, "JPEG", colour)
