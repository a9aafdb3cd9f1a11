"""Real photographs, beside the checkout: cameras of three decades, scans, and files on which others stumbled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from PIL import Image, ImageOps

from tests.unit.images_made import EVERYTHING, USUAL, difference, opened
from vlmbatch.images import ImageError, ImagePolicy, inspect, prepare

if TYPE_CHECKING:
    from pathlib import Path


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix.lower() not in {".md", ".heic"})


def test_photographs_all_decode_and_agree_with_pillow(photos: Path) -> None:
    """Size and orientation as Pillow reads them; quick and full agree; nothing sound is refused."""
    seen = 0
    for path in _files(photos):
        data = path.read_bytes()
        if path.name == "multipage_rgb.tif":  # 64-bit samples
            with pytest.raises(ImageError, match="64 bits"):
                inspect(data)
            continue
        facts = inspect(data)
        quick = inspect(data, check="quick")
        assert (quick.sha256, quick.orientation, quick.has_gps) == (facts.sha256, facts.orientation, facts.has_gps)
        with Image.open(path) as image:
            assert (facts.width, facts.height) == image.size
            for name in ("xmp", "XML:com.adobe.xmp"):
                image.info.pop(name, None)  # where EXIF has no orientation, Pillow takes XMP's
            assert facts.orientation == image.getexif().get(0x0112)
            assert facts.has_gps == bool({2, 4} & set(image.getexif().get_ifd(0x8825)))
        seen += 1
    assert seen > 40


def test_photographs_turned_all_show_the_same_landscape(photos: Path) -> None:
    """Eight orientations of one picture: applied, all equal but for the number written on each."""
    upright = []
    for path in sorted((photos / "orientation").iterdir()):
        data = path.read_bytes()
        new, _ = prepare(data, inspect(data), ImagePolicy(orient="apply", max_side=120), USUAL, animated_ok=False)
        upright.append(opened(new))
    assert len(upright) == 8
    for image in upright[1:]:
        assert image.size == upright[0].size
        right = difference(image, upright[0])
        for wrong in (Image.Transpose.FLIP_LEFT_RIGHT, Image.Transpose.FLIP_TOP_BOTTOM, Image.Transpose.ROTATE_180):
            assert 1.5 * right < difference(image.transpose(wrong), upright[0])


def test_photographs_stripped_keep_every_pixel_and_lose_their_place(photos: Path) -> None:
    """The lossless way works on what cameras really write."""
    for path in _files(photos):
        data = path.read_bytes()
        if path.suffix.lower() not in {".jpg", ".png", ".gif"}:
            continue
        facts = inspect(data)
        new, new_facts = prepare(data, facts, ImagePolicy(strip_metadata=True), EVERYTHING, animated_ok=True)
        assert not new_facts.has_gps
        assert len(new) <= len(data)
        one, other = ImageOps.exif_transpose(opened(data)), ImageOps.exif_transpose(opened(new))
        assert one.tobytes() == other.tobytes()


def test_photographs_cut_anywhere_are_refused(photos: Path) -> None:
    """A download that broke off is found, wherever it broke off; quick sees it too."""
    for path in [*sorted((photos / "cameras").rglob("*.jpg")), *sorted((photos / "science").glob("*.png"))]:
        data = path.read_bytes()
        if "trailing_bytes" in inspect(data, check="quick").notes:
            continue
        for length in range(1, len(data), len(data) // 37 + 1):
            with pytest.raises(ImageError):
                inspect(data[:length], check="quick")


def test_photograph_of_a_phone_is_read_without_a_decoder(photos: Path) -> None:
    """A tiled HEIC with position: size of the whole, not of a tile."""
    facts = inspect((photos / "heic" / "IMG_5195.HEIC").read_bytes(), check="quick")
    assert (facts.media_type, facts.width, facts.height) == ("image/heic", 2566, 3313)
    assert facts.has_gps
    assert facts.frames == 1
