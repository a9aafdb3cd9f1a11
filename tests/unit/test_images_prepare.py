"""The bytes that are sent: untouched unless asked, and then what was asked and nothing else."""

from __future__ import annotations

import io
import struct
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image, ImageCms, ImageOps

from tests.unit.images_made import (
    DATA,
    EVERYTHING,
    USUAL,
    difference,
    exif_block,
    opened,
    samples,
    saved,
    scene,
    with_exif,
)
from vlmbatch.errors import InputError
from vlmbatch.images import ImageError, ImagePolicy, encode, inspect, prepare

if TYPE_CHECKING:
    from vlmbatch.records import ImageFacts

SAMPLES = sorted(samples())
STILL = [name for name in SAMPLES if not name.endswith("frames")]
STRIPPED = ("JPEG", "PNG", "WEBP", "GIF")
"""Formats out of which metadata are cut without touching a pixel."""


def sent(data: bytes, accepts: frozenset[str] = USUAL, *, animated_ok: bool = False, **policy: Any) -> bytes:
    """Return what is sent of a file under a policy."""
    return prepare(data, inspect(data), ImagePolicy(**policy), accepts, animated_ok=animated_ok)[0]


def facts_sent(data: bytes, accepts: frozenset[str] = USUAL, **policy: Any) -> ImageFacts:
    """Return the facts of what is sent."""
    return prepare(data, inspect(data), ImagePolicy(**policy), accepts, animated_ok=False)[1]


# --- nothing asked, nothing done --------------------------------------------------------------------------


@pytest.mark.parametrize("name", SAMPLES)
def test_prepare_without_need_returns_the_same_objects(name: str) -> None:
    """Wishes that an image fulfils already change nothing, not even by a copy."""
    data = samples()[name]
    facts = inspect(data)
    policies = (
        ImagePolicy(),
        ImagePolicy(orient="apply"),
        ImagePolicy(max_side=50, max_pixels=50 * 41),
        ImagePolicy(convert_unsupported=facts.mode != "CMYK"),
    )
    for policy in policies:
        back, back_facts = prepare(data, facts, policy, EVERYTHING, animated_ok=True)
        assert back is data
        assert back_facts is facts


@pytest.mark.parametrize("name", [name for name in STILL if name.startswith(("TIFF", "BMP", "AVIF", "JPEG2000"))])
def test_prepare_of_a_refused_type_changes_nothing_unless_converted(name: str) -> None:
    """Shrinking is no wish for another type: the provider's check then refuses it with the reason."""
    data = samples()[name]
    for policy in ({"max_side": 20}, {"strip_metadata": True}, {"orient": "apply"}):
        assert sent(data, **policy) is data  # type: ignore[arg-type]
    assert inspect(sent(data, convert_unsupported=True)).media_type in USUAL
    assert inspect(sent(data, format="webp")).media_type == "image/webp"


# --- conversion -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("media_type", ["jpeg", "png", "webp"])
@pytest.mark.parametrize("name", STILL)
def test_prepare_to_any_format_looks_like_the_original(name: str, media_type: Any) -> None:
    """Every mode of every format, to every format: same size, colours near, facts true."""
    data = samples()[name]
    facts = inspect(data)
    new, new_facts = prepare(data, facts, ImagePolicy(format=media_type), EVERYTHING, animated_ok=False)
    assert new_facts.media_type == f"image/{media_type}"
    assert (new_facts.width, new_facts.height) == (50, 41)
    assert new_facts == inspect(new, check="quick")
    assert (new is data) is (facts.media_type == f"image/{media_type}" and facts.mode != "CMYK")
    assert difference(opened(data), opened(new)) < 5


@pytest.mark.parametrize("name", STILL)
def test_prepare_twice_gives_the_same_bytes(name: str) -> None:
    """No clock, no chance: building again gives the same hash."""
    for policy in ({"max_side": 30}, {"format": "jpeg", "quality": 60}, {"format": "webp"}, {"format": "png"}):
        assert sent(samples()[name], EVERYTHING, **policy) == sent(samples()[name], EVERYTHING, **policy)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("BMP RGB {}", "image/png"),
        ("TIFF RGB {}", "image/png"),
        ("TIFF CMYK {}", "image/png"),
        ("AVIF RGB {}", "image/jpeg"),
        ("AVIF RGBA {}", "image/png"),
        ("JPEG2000 RGB {}", "image/jpeg"),
    ],
)
def test_prepare_converted_type_loses_nothing_more_than_it_must(name: str, wanted: str) -> None:
    """Lossless stays lossless, alpha stays alpha, photographs become JPEG; else whatever the provider takes."""
    assert facts_sent(samples()[name], convert_unsupported=True).media_type == wanted
    for only in ("image/jpeg", "image/png", "image/webp"):
        assert facts_sent(samples()[name], frozenset({only}), convert_unsupported=True).media_type == only


def test_prepare_cmyk_with_a_profile_is_converted_by_it_and_drops_it() -> None:
    """An ink profile must not stand on an RGB picture; without one, plain subtraction."""
    data = saved(Image.new("CMYK", (40, 40), (0, 255, 255, 0)), "JPEG", quality=100)
    image = opened(sent(data, convert_unsupported=True))
    assert image.mode == "RGB"
    assert image.getpixel((20, 20)) == (254, 0, 0) or image.getpixel((20, 20)) == (255, 0, 0)
    fake = b"\x00" * 16 + b"CMYK" + b"\x00" * 108
    with_profile = saved(Image.new("CMYK", (40, 40), (0, 255, 255, 0)), "JPEG", quality=100, icc_profile=fake)
    assert "icc_profile" not in opened(sent(with_profile, convert_unsupported=True)).info


def test_prepare_keeps_a_profile_only_where_it_fits_the_new_colour_model() -> None:
    """RGB stays RGB and keeps its profile; grey written as colours (WebP) loses a profile for grey."""
    rgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    grey = rgb[:16] + b"GRAY" + rgb[20:]
    assert opened(sent(saved(scene(), "PNG", icc_profile=rgb), format="webp")).info["icc_profile"] == rgb
    grey_png = saved(scene(mode="L"), "PNG", icc_profile=grey)
    assert opened(sent(grey_png, format="jpeg")).info["icc_profile"] == grey
    assert "icc_profile" not in opened(sent(grey_png, format="webp")).info


def test_prepare_of_pixels_without_a_known_white_is_refused() -> None:
    """32-bit numbers could be stretched to look like anything: the user decides, not we."""
    data = saved(scene(mode="L").convert("F"), "TIFF")
    with pytest.raises(ImageError) as caught:
        sent(data, convert_unsupported=True)
    assert caught.value.code == "cannot_convert"


def test_prepare_too_large_for_the_format_is_refused_with_its_size() -> None:
    """WebP ends at 16,383 pixels a side."""
    data = saved(Image.new("L", (20_000, 2)), "PNG")
    with pytest.raises(ImageError, match="20000 x 2") as caught:
        sent(data, format="webp")
    assert caught.value.code == "cannot_convert"


def test_prepare_heic_without_a_decoder_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way out is in the message."""
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    data = (DATA / "phone.heic").read_bytes()
    for policy in ({"convert_unsupported": True}, {"format": "jpeg"}):
        with pytest.raises(ImageError, match=r"vlmbatch\[heif\]") as caught:
            sent(data, **policy)  # type: ignore[arg-type]
        assert caught.value.code == "no_decoder"


def test_prepare_heic_with_a_decoder_becomes_a_jpeg() -> None:
    """The extra turns what phones write into what all providers take; one that takes HEIC gets the file."""
    pytest.importorskip("pillow_heif")
    data = (DATA / "phone.heic").read_bytes()
    facts = facts_sent(data, convert_unsupported=True)
    assert (facts.media_type, facts.width, facts.height) == ("image/jpeg", 96, 64)
    assert sent(data, EVERYTHING, convert_unsupported=True) is data


def test_prepare_damaged_pixels_that_quick_let_pass_are_refused() -> None:
    """Whoever writes an image anew decodes it first."""
    data = samples()["JPEG RGB {}"]
    start = data.rindex(b"\xff\xda") + 14
    cut = data[: start + 10] + b"\xff\xd8" + data[start + 40 :]
    facts = inspect(cut, check="quick")
    with pytest.raises(ImageError):
        prepare(cut, facts, ImagePolicy(max_side=20), USUAL, animated_ok=False)


# --- orientation ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_prepare_orient_apply_turns_as_pillow_does(kind: str, orientation: int) -> None:
    """All eight, in all formats that carry the tag: upright pixels, no tag, other formats included."""
    tag = Image.Exif()
    tag[0x0112] = orientation
    data = saved(scene(40, 20), kind, exif=tag, **({"quality": 95} if kind == "JPEG" else {}))
    assert inspect(data, check="quick").orientation == orientation
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        upright = ImageOps.exif_transpose(image)  # Pillow has turned a TIFF by now
    for policy in ({}, {"format": "png"}, {"max_side": 30}):
        new = sent(data, EVERYTHING, orient="apply", **policy)
        image = opened(new)
        assert 0x0112 not in image.getexif() or image.getexif()[0x0112] == 1
        assert image.width == 2 * image.height if orientation < 5 else image.height == 2 * image.width
        assert difference(upright.resize(image.size, Image.Resampling.LANCZOS), image) < 6


@pytest.mark.parametrize("orientation", [0, 1, 9, 77])
def test_prepare_orient_apply_of_no_turn_changes_nothing(orientation: int) -> None:
    """Values that no table has are taken as 1."""
    block = exif_block([(0x0112, 3, 1, struct.pack(">HH", orientation, 0))])
    data = with_exif(samples()["JPEG RGB {}"], block)
    assert sent(data, orient="apply") is data


@pytest.mark.parametrize("orientation", range(1, 9))
def test_prepare_avif_is_turned_by_its_container_whatever_the_policy(orientation: int) -> None:
    """A turn that every decoder applies is applied once: by decoding."""
    tag = Image.Exif()
    tag[0x0112] = orientation
    data = saved(scene(40, 20), "AVIF", exif=tag.tobytes(), quality=100)
    upright = ImageOps.exif_transpose(opened(data))
    for policy in ({"orient": "keep"}, {"orient": "apply"}):
        image = opened(sent(data, format="png", **policy))
        assert image.size == upright.size
        assert 0x0112 not in image.getexif()
        assert difference(upright, image) < 2


# --- size -------------------------------------------------------------------------------------------------

SIDES = st.integers(1, 40_000)
LIMITS = st.one_of(st.none(), st.integers(1, 50_000))


@given(SIDES, SIDES, LIMITS, st.one_of(st.none(), st.integers(1, 1 << 31)))
@example(35, 367, 152, 2018)  # rounded for one limit and again for the other, it was too slim
def test_shrunk_size_keeps_the_limits_and_the_shape(
    width: int, height: int, max_side: int | None, max_pixels: int | None
) -> None:
    """Never above a limit, never enlarged, never a side of none, stable, and of the same shape to a pixel."""
    new_width, new_height = encode.shrunk_size(width, height, max_side, max_pixels)
    assert 1 <= new_width <= width
    assert 1 <= new_height <= height
    assert max_side is None or max(new_width, new_height) <= max_side
    assert max_pixels is None or new_width * new_height <= max_pixels
    assert encode.shrunk_size(new_width, new_height, max_side, max_pixels) == (new_width, new_height)
    if min(new_width, new_height) > 1:
        assert abs(new_width * height / width - new_height) <= 1 + height / width


@pytest.mark.parametrize("name", STILL)
def test_prepare_shrunk_keeps_limits_and_is_not_shrunk_again(name: str) -> None:
    """What comes out is within the limits, so a second time nothing happens."""
    for limits in ({"max_side": 20}, {"max_pixels": 333}, {"max_side": 33, "max_pixels": 500}):
        new = sent(samples()[name], EVERYTHING, **limits)  # type: ignore[arg-type]
        facts = inspect(new)
        assert max(facts.width, facts.height) <= limits.get("max_side", 50)
        assert facts.width * facts.height <= limits.get("max_pixels", 50 * 41)
        assert sent(new, EVERYTHING, **limits) is new  # type: ignore[arg-type]


def test_prepare_shrunk_does_not_let_hidden_colours_bleed() -> None:
    """Transparent black beside opaque red gives no dark seam."""
    image = Image.new("RGBA", (40, 40), (0, 0, 0, 0))
    image.paste((255, 0, 0, 255), (0, 0, 21, 40))
    shrunk = opened(sent(saved(image, "PNG"), max_side=10))
    assert all(pixel[0] > 200 for pixel in shrunk.crop((0, 0, 6, 10)).get_flattened_data() if pixel[3] > 30)  # type: ignore[attr-defined]


# --- metadata ---------------------------------------------------------------------------------------------

SECRET = b"Jane Roe 48.8577N"


def _secretive(kind: str, orientation: int) -> bytes:
    """Return a picture full of metadata, and with something behind its end."""
    tag = Image.Exif()
    tag[0x0112] = orientation
    tag[0x013B] = SECRET.decode()
    tag.get_ifd(0x8825).update({2: (48.0, 51.0, 27.7), 4: (2.0, 17.0, 40.0)})
    image = scene(40, 20)
    options: dict[str, Any] = {} if kind == "GIF" else {"exif": tag}
    if kind == "JPEG":
        options |= {"comment": SECRET, "xmp": b"<x>" + SECRET + b"</x>"}
    elif kind == "WEBP":
        options |= {"xmp": b"<x>" + SECRET + b"</x>", "lossless": True}
    elif kind == "GIF":
        options |= {"comment": SECRET}
    else:
        from PIL.PngImagePlugin import PngInfo

        info = PngInfo()
        info.add_text("Author", SECRET.decode())
        info.add_itxt("XML:com.adobe.xmp", SECRET.decode())
        info.add(b"prVt", SECRET)
        options |= {"pnginfo": info}
    return saved(image, kind, **options) + SECRET


@pytest.mark.parametrize("orientation", [1, 3, 6])
@pytest.mark.parametrize("kind", STRIPPED)
def test_prepare_strip_drops_every_word_and_no_pixel(kind: str, orientation: int) -> None:
    """Pixels are bit for bit the same and as upright as before; a second time nothing is left to strip."""
    data = _secretive(kind, orientation)
    assert SECRET in data
    new = sent(data, strip_metadata=True)
    assert SECRET not in new
    assert SECRET[:8] not in new
    facts = inspect(new)
    assert not facts.has_gps
    assert facts.notes == ("tiny",)
    assert facts.orientation == (orientation if orientation > 1 and kind != "GIF" else None)
    assert opened(new).convert("RGB").tobytes() == opened(data).convert("RGB").tobytes()
    assert sent(new, strip_metadata=True) is new


@pytest.mark.parametrize("name", [name for name in SAMPLES if name.split(" ")[0] in STRIPPED])
def test_prepare_strip_of_any_sample_keeps_pixels_and_frames(name: str) -> None:
    """Alpha, palettes, profiles, restart markers and animations come through untouched."""
    data = samples()[name]
    new = sent(data, EVERYTHING, animated_ok=True, strip_metadata=True)
    one, other = Image.open(io.BytesIO(data)), Image.open(io.BytesIO(new))
    assert getattr(one, "n_frames", 1) == getattr(other, "n_frames", 1)
    for number in range(getattr(one, "n_frames", 1)):
        one.seek(number)
        other.seek(number)
        assert one.convert("RGBA").tobytes() == other.convert("RGBA").tobytes()


def test_prepare_strip_of_a_tiff_that_is_taken_writes_it_anew() -> None:
    """Where metadata cannot be cut out, a picture without any is made."""
    data = saved(scene(), "TIFF", tiffinfo={315: SECRET.decode()})
    new = sent(data, EVERYTHING, strip_metadata=True)
    assert SECRET not in new
    assert opened(new).tobytes() == opened(data).tobytes()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF"])
def test_prepare_written_anew_carries_nothing_along(kind: str) -> None:
    """A new file holds pixels, profile and orientation, whether or not stripping was asked for."""
    for policy in ({"max_side": 30}, {"format": "jpeg", "max_side": 30}, {"format": "png", "max_side": 30}):
        assert SECRET[:8] not in sent(_secretive(kind, 6), **policy)  # type: ignore[arg-type]


def test_prepare_strip_drops_the_thumbnail_inside_jfif_and_the_second_picture() -> None:
    """A thumbnail can show what was cropped away; so can what stands behind the picture."""
    data = saved(scene(), "MPO", save_all=True, append_images=[scene(20, 10)])
    new = sent(data, strip_metadata=True)
    assert inspect(new).notes == ()
    assert len(new) < len(data)
    base = samples()["JPEG RGB {}"]
    start = base.index(b"JFIF\x00")
    fat = base[: start - 2] + struct.pack(">H", 16 + 12) + base[start : start + 12] + b"\x02\x02" + bytes(range(12))
    fat += base[start + 14 :]
    assert inspect(fat).notes == ()
    assert sent(fat, strip_metadata=True) == base


# --- policy -----------------------------------------------------------------------------------------------


def test_policy_default_changes_nothing_and_records_only_what_was_asked() -> None:
    """run.json says how images were checked, and nothing that had no part in it."""
    assert not ImagePolicy().changes_bytes
    assert ImagePolicy().as_record() == {"check": "full", "orient": "keep"}
    assert ImagePolicy(max_side=1024).as_record() == {
        "check": "full",
        "orient": "keep",
        "max_side": 1024,
        "quality": 90,
        "background": "white",
    }


@pytest.mark.parametrize(
    "asked",
    [
        {"orient": "apply"},
        {"max_side": 9},
        {"max_pixels": 9},
        {"format": "png"},
        {"strip_metadata": True},
        {"convert_unsupported": True},
    ],
)
def test_policy_that_may_change_bytes_says_so(asked: dict[str, Any]) -> None:
    """Pillow's version goes into run.json exactly then."""
    policy = ImagePolicy(**asked)
    assert policy.changes_bytes
    assert policy.as_record().items() >= asked.items()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ({"check": "deep"}, ["--check"]),
        ({"orient": "6", "max_side": 0}, ["--orient", "--max-side"]),
        ({"format": "gif"}, ["--format"]),
        ({"max_pixels": -1}, ["--max-pixels"]),
        ({"max_side": True}, ["--max-side"]),
        ({"format": "jpeg", "quality": 0}, ["--quality"]),
        ({"format": "jpeg", "quality": 101}, ["--quality"]),
        ({"background": "mauve"}, ["--background"]),
        ({"background": "#12345"}, ["--background"]),
    ],
)
def test_policy_of_wrong_words_names_all_of_them(words: dict[str, Any], named: list[str]) -> None:
    """Everything wrong at once, by the flag that the user typed."""
    with pytest.raises(InputError) as caught:
        ImagePolicy.make(**words)
    assert [problem.where for problem in caught.value.problems] == named


def test_policy_quality_without_anything_to_encode_is_refused() -> None:
    """A flag without effect is a misunderstanding."""
    with pytest.raises(InputError, match=r"^--quality given"):
        ImagePolicy.make(check="full", orient="keep", format=None, quality=80)
    assert ImagePolicy.make(format="jpeg", quality=80, max_side=None).quality == 80


def test_policy_ground_is_read_from_name_or_hex() -> None:
    """The colour behind transparent pixels."""
    assert ImagePolicy().ground == (255, 255, 255)
    assert ImagePolicy(background="black").ground == (0, 0, 0)
    assert ImagePolicy(background="#0a0B0c").ground == (10, 11, 12)
