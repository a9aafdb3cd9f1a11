"""Pixels in memory become a PNG that holds just these pixels, the same every time; what is no plain picture says so."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vlmbatch.images import ImageError, as_png, inspect


class Array:
    """What arrays of NumPy's and its kin show of themselves."""

    def __init__(self, shape: tuple[int, ...], data: bytes, kind: str = "|u1") -> None:
        self.__array_interface__ = {"shape": shape, "typestr": kind, "strides": (1,), "version": 3}
        self._data = data

    def tobytes(self) -> bytes:
        return self._data


def read(data: bytes | None) -> Image.Image:
    """Return what a reader sees of a file."""
    assert data is not None
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


@given(st.sampled_from(["L", "LA", "RGB", "RGBA"]), st.integers(1, 9), st.integers(1, 9), st.randoms())
def test_pixels_come_back_as_they_were(mode: str, width: int, height: int, rng: Any) -> None:
    """Every mode that a PNG holds is read back to the bit, and the same pixels are the same file."""
    pixels = rng.randbytes(width * height * len(mode))
    image = Image.frombytes(mode, (width, height), pixels)
    data = as_png(image)
    assert read(data).mode == mode
    assert read(data).tobytes() == pixels
    assert as_png(Image.frombytes(mode, (width, height), pixels)) == data


@pytest.mark.parametrize(("mode", "key"), [("1", None), ("P", None), ("P", 0), ("RGB", (9, 8, 7)), ("L", 5)])
def test_pictures_look_as_they_did(mode: str, key: Any) -> None:
    """Palettes, single bits and colours that mean "transparent" look the same after the way through the file."""
    image = Image.new(mode, (3, 2), {"1": 1, "P": 0, "RGB": (9, 8, 7), "L": 5}[mode])
    if key is not None:
        image.info["transparency"] = key
    assert read(as_png(image)).convert("RGBA").tobytes() == image.convert("RGBA").tobytes()


def test_picture_of_the_caller_is_left_alone() -> None:
    """Metadata and profile of the caller's own object stand as they did; the file has the profile, not the rest."""
    image = Image.new("RGBA", (2, 2), (1, 2, 3, 4))
    profile = b"\0" * 16 + b"RGB " + b"\0" * 108
    image.info |= {"comment": "mine", "icc_profile": profile}
    made = read(as_png(image))
    assert image.info == {"comment": "mine", "icc_profile": profile}
    assert made.info.get("icc_profile") == profile
    assert "comment" not in made.info


def test_pixels_are_taken_as_they_lie() -> None:
    """An orientation that the file told beside its pixels is not that of the new one."""
    exif = Image.Exif()
    exif[0x0112] = 6
    out = io.BytesIO()
    Image.new("RGB", (4, 2)).save(out, "JPEG", exif=exif)
    with Image.open(out) as image:
        data = as_png(image)
    assert data is not None
    facts = inspect(data)
    assert (facts.width, facts.height, facts.orientation, facts.media_type) == (4, 2, None, "image/png")


@pytest.mark.parametrize(("shape", "mode"), [((2, 3), "L"), ((2, 3, 3), "RGB"), ((2, 3, 4), "RGBA")])
def test_arrays_of_bytes_are_pictures(shape: tuple[int, ...], mode: str) -> None:
    """Height x width, with or without channels behind: rows first, as arrays of pixels have it."""
    data = bytes(range(2 * 3 * len(mode)))
    made = read(as_png(Array(shape, data)))
    assert (made.mode, made.size, made.tobytes()) == (mode, (3, 2), data)


@pytest.mark.parametrize(
    "value",
    [
        Image.new("CMYK", (2, 2)),
        Image.new("F", (2, 2)),
        Image.new("I;16", (2, 2)),
        Image.new("RGB", (0, 2)),
        Array((2, 3), b"\0" * 24, "<f4"),
        Array((3, 2, 5), b"\0" * 30),
        Array((), b"\0"),
        Array((2, 2), b"\0"),
    ],
    ids=["cmyk", "float", "deep", "empty", "floats", "channels", "scalar", "short"],
)
def test_what_a_plain_png_does_not_hold_is_refused(value: object) -> None:
    """Nothing is rounded, cut or guessed: such pixels are for the caller to convert."""
    with pytest.raises(ImageError) as caught:
        as_png(value)
    assert caught.value.code == "cannot_convert"


def test_file_that_breaks_off_is_refused() -> None:
    """A picture that was opened and not read yet is read here; where that fails the error is ours."""
    whole = io.BytesIO()
    Image.effect_noise((64, 64), 90).save(whole, "JPEG")
    with Image.open(io.BytesIO(whole.getvalue()[:-200])) as image, pytest.raises(ImageError, match="JpegImageFile"):
        as_png(image)


@pytest.mark.parametrize("value", [None, "a.png", 7, b"\x89PNG", [1], {"bytes": b""}])
def test_other_values_are_no_pixels(value: object) -> None:
    """Whatever is neither picture nor array is left to others."""
    assert as_png(value) is None
