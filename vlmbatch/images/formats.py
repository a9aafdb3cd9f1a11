"""The formats that are read, one row each: who reads the header, what the decoder is given, what can be stripped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from vlmbatch.images import bmff, bmp, gif, jpeg, jpeg2000, png, sniff, tiff, webp
from vlmbatch.images.base import as_it_is

if TYPE_CHECKING:
    from collections.abc import Callable

    from vlmbatch.images.base import Header


class Format(NamedTuple):
    """How one media type is handled.

    Attributes:
        read: Gives the header, or raises ImageError; IndexError and struct.error mean that the bytes end too early.
        pixels: Gives the bytes for a decoder: what makes pixels, nothing that it could warn of.
        plugin: Pillow's module and class; empty where only pillow-heif decodes it.
        is_lossless: Whether re-encoding as PNG loses nothing that was there, and as JPEG would.
        strip: Takes out the metadata without touching a pixel; None where that needs a new file.
        may_hold_metadata: Whether there can be anything to strip.
    """

    read: Callable[[bytes], Header]
    pixels: Callable[[bytes], bytes]
    plugin: str
    is_lossless: bool = False
    strip: Callable[[bytes, int | None], bytes] | None = None
    may_hold_metadata: bool = True


_HEIF: Final = Format(bmff.read, bmff.pixels, "")
_JPEG2000: Final = Format(jpeg2000.read, as_it_is, "Jpeg2KImagePlugin.Jpeg2KImageFile")

FORMATS: Final = {
    sniff.JPEG: Format(jpeg.read, jpeg.pixels, "JpegImagePlugin.JpegImageFile", strip=jpeg.strip),
    sniff.PNG: Format(png.read, png.pixels, "PngImagePlugin.PngImageFile", True, png.strip),
    sniff.WEBP: Format(webp.read, webp.pixels, "WebPImagePlugin.WebPImageFile", strip=webp.strip),
    sniff.GIF: Format(gif.read, gif.pixels, "GifImagePlugin.GifImageFile", True, gif.strip),
    sniff.TIFF: Format(tiff.read, tiff.pixels, "TiffImagePlugin.TiffImageFile", True),
    sniff.BMP: Format(bmp.read, as_it_is, "BmpImagePlugin.BmpImageFile", True, may_hold_metadata=False),
    sniff.JP2: _JPEG2000,
    sniff.J2C: _JPEG2000,
    sniff.AVIF: Format(bmff.read, bmff.pixels, "AvifImagePlugin.AvifImageFile"),
    sniff.HEIC: _HEIF,
    sniff.HEIF: _HEIF,
}
