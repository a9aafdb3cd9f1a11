"""Pixels: what Pillow (for HEIC, pillow-heif) makes of the bytes.

Pillow's plugins are called directly, not through ``Image.open``: that would try every format in turn, warn of large
pictures through the process-wide ``warnings`` module, and take an MPO for something else than a JPEG. Nothing global
is touched, so any number of threads may be here at once; only large pictures wait for one another.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import threading
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from vlmbatch.images import exif, jpeg, png, sniff
from vlmbatch.images.base import ImageError, truncated
from vlmbatch.images.formats import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable

    from PIL import Image, ImageFile

P = ParamSpec("P")
T = TypeVar("T")

_OPTIONAL: Final = {sniff.AVIF: "avif", sniff.WEBP: "webp", sniff.JP2: "jpg_2000", sniff.J2C: "jpg_2000"}
"""Formats that a build of Pillow may lack, as ``PIL.features`` names them."""

_GREY: Final = {128, (127, 127, 127, 127), (127, 127, 127, 128), (128, 128, 128, 128)}
"""What libjpeg paints where pixels are missing, in grey and (inverted or not) in CMYK."""

_LARGE_PIXELS: Final = 64_000_000
_one_large = threading.Lock()


def room_for(width: int, height: int) -> contextlib.AbstractContextManager[object]:
    """Return a context in which a picture may be decoded: large ones one at a time, or memory grows with the workers.

    A picture of the largest size that is accepted takes more than a gigabyte while it is decoded and shrunk.
    """
    return _one_large if width * height > _LARGE_PIXELS else contextlib.nullcontext()


def can_decode(media_type: str) -> bool:
    """Return whether this installation decodes a media type."""
    if media_type in {sniff.HEIC, sniff.HEIF}:
        try:
            importlib.import_module("pillow_heif")
        except ImportError:
            return False
        return True
    feature = _OPTIONAL.get(media_type)
    if feature is None:
        return True
    from PIL import features

    return bool(features.check(feature))


def check(data: bytes, media_type: str) -> str:
    """Decode a whole picture (of several frames or pages, the first) in order to see that it can be done.

    Of a JPEG the compressed data of every pixel are decoded, but not turned into full-size colours: that is
    arithmetic, which cannot fail, and takes half the time and most of the memory.

    Returns:
        The colour model as Pillow names it; empty for PNG, which is checked without it.

    Raises:
        ImageError: ``truncated`` or ``undecodable``.
    """
    if media_type == sniff.PNG:
        png.check_rows(data)
        return ""
    if media_type == sniff.JPEG:
        _check_jpeg(jpeg.pixels(data))
        return ""
    return decode(data, media_type).mode


def decode(data: bytes, media_type: str) -> Image.Image:
    """Decode the first picture of a file. EXIF's orientation is not applied, a turn by the container (HEIF) is.

    Raises:
        ImageError: ``truncated``, ``undecodable``, or ``no_decoder``.
    """
    if not can_decode(media_type):
        hint = "install vlmbatch[heif]" if media_type in {sniff.HEIC, sniff.HEIF} else "this Pillow lacks it"
        raise ImageError("no_decoder", f"no decoder for {media_type} here ({hint})", media_type=media_type)
    given = FORMATS[media_type].pixels(data)
    if media_type in {sniff.HEIC, sniff.HEIF}:
        return _guarded(_load_heif, given)
    image = _guarded(_load, given, FORMATS[media_type].plugin)
    return _guarded(_turn_as_container_says, image) if media_type == sniff.AVIF else image


def _guarded(step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run one step of a decoder.

    Raises:
        ImageError: Whatever it was that went wrong inside.
    """
    try:
        return step(*args, **kwargs)
    except ImageError:
        raise
    # Fed with broken bytes, decoders fail in every way there is: OSError, SyntaxError, struct.error, TypeError ...
    except Exception as error:  # noqa: BLE001
        text = str(error).split("\n", 1)[0][:120]
        if "truncat" in text.lower():
            raise truncated("the file ends inside the pixels") from None
        raise ImageError("undecodable", f"the pixels cannot be decoded ({text or type(error).__name__})") from None


def _open(data: bytes, plugin: str) -> ImageFile.ImageFile:
    module, name = plugin.split(".")
    file_class = getattr(importlib.import_module(f"PIL.{module}"), name)
    image: ImageFile.ImageFile = file_class(io.BytesIO(data))
    return image


def _load(data: bytes, plugin: str) -> Image.Image:
    from PIL import Image

    image = _open(data, plugin)
    if image.format == "TIFF":
        # Given its memory beforehand, Pillow does not ask whether to warn of the size, which is checked already.
        image.im = Image.new(image.mode, image.size).im
    image.load()
    return image


def _load_heif(data: bytes) -> Image.Image:
    heif: Any = importlib.import_module("pillow_heif")
    image: Image.Image = heif.open_heif(data, convert_hdr_to_8bit=True).to_pillow()
    image.load()
    return image


def _turn_as_container_says(image: Image.Image) -> Image.Image:
    """Turn an AVIF: Pillow leaves that undone and writes it down as EXIF (which decoders are not given otherwise)."""
    told = exif.read(image.info.pop("exif", b""))
    return turned(image, told.orientation)


def turned(image: Image.Image, orientation: int | None) -> Image.Image:
    """Return the picture upright, given the EXIF orientation of its stored pixels; a value that is none turns nothing.

    The table is that of Exif 3.0, 4.6.5.1.6 (tag Orientation).
    """
    from PIL.Image import Transpose

    steps = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    step = steps.get(orientation or 1)
    return image if step is None else image.transpose(step)


# --- JPEG --------------------------------------------------------------------------------------------------


def _check_jpeg(data: bytes) -> None:
    image = _guarded(_load_eighth, data, "L")
    if image.getpixel((image.width - 1, image.height - 1)) not in _GREY:
        return
    # Grey to the last pixel: so it was painted, or nothing was there to be decoded.
    missing = jpeg.missing(data)
    if missing is not None:
        raise truncated(f"pixels are missing: {missing}")
    padded = jpeg.padded(data)
    if padded is None:
        return
    if _guarded(_load_eighth, data, "RGB").tobytes() != _guarded(_load_eighth, padded, "RGB").tobytes():
        raise truncated("pixels are missing: their data end before the picture does")


def _load_eighth(data: bytes, mode: str) -> Image.Image:
    """Decode all data of a JPEG into a picture of an eighth of its sides."""
    image = _open(data, "JpegImagePlugin.JpegImageFile")
    image.draft(mode, (1, 1))
    image.load()
    return image
