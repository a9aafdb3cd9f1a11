"""The trouble cases of images, as public bug reports tell them: each file behaves as its entry says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from PIL import Image, ImageOps

from tests.unit.images_made import DATA, USUAL, opened
from vlmbatch.images import ImageError, ImagePolicy, inspect, prepare

CASES: list[dict[str, Any]] = json.loads((DATA / "cases.json").read_text(encoding="utf-8"))
BAD_BYTES = {"image/not-an-image", "image/damage"}


def _with(*keys: str) -> list[Any]:
    """Return the cases whose check has one of these keys."""
    return [pytest.param(case, id=case["id"]) for case in CASES if set(keys) & set(case["check"])]


def _bytes(case: dict[str, Any]) -> bytes:
    return (DATA / case["files"][0]).read_bytes()


def _sent(case: dict[str, Any], **policy: Any) -> bytes:
    data = _bytes(case)
    return prepare(data, inspect(data), ImagePolicy(**policy), USUAL, animated_ok=False)[0]


def _corners(image: Image.Image) -> dict[str, tuple[int, ...]]:
    right, bottom = image.width - 4, image.height - 4
    places = {"top_left": (3, 3), "top_right": (right, 3), "bottom_left": (3, bottom), "bottom_right": (right, bottom)}
    return {name: image.convert("RGB").getpixel(place) for name, place in places.items()}  # type: ignore[misc]


def _assert_near(found: tuple[int, ...], wanted: list[int], tolerance: int) -> None:
    assert all(abs(one - other) <= tolerance for one, other in zip(found, wanted, strict=True)), (found, wanted)


@pytest.mark.parametrize("check", ["full", "quick"])
@pytest.mark.parametrize("case", _with("media_type", "size", "stored_size", "orientation", "frames", "accepted"))
def test_case_inspected_gives_what_it_says(case: dict[str, Any], check: Any) -> None:
    """Facts, or a refusal where the bytes are no picture, at either depth."""
    wanted = case["check"]
    if wanted.get("accepted") is False and (case["kind"] in BAD_BYTES or wanted["media_type"] == "image/svg+xml"):
        with pytest.raises(ImageError) as caught:
            inspect(_bytes(case), check=check)
        assert wanted.get("media_type") in {None, caught.value.media_type}
        return
    facts = inspect(_bytes(case), check=check)
    assert facts.media_type == wanted["media_type"]
    assert [facts.width, facts.height] == wanted.get("size", wanted.get("stored_size", [facts.width, facts.height]))
    assert facts.orientation == wanted.get("orientation", facts.orientation)
    assert facts.frames == wanted.get("frames", facts.frames)
    assert facts.bytes == len(_bytes(case))


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in CASES])
def test_case_without_policy_is_sent_as_the_file_stands(case: dict[str, Any]) -> None:
    """By default nobody touches a byte: the very same objects come back."""
    data = _bytes(case)
    try:
        facts = inspect(data)
    except ImageError:
        return
    sent, sent_facts = prepare(data, facts, ImagePolicy(), USUAL, animated_ok=False)
    assert sent is data
    assert sent_facts is facts


@pytest.mark.parametrize("case", _with("upright"))
def test_case_with_orient_apply_is_upright_once(case: dict[str, Any]) -> None:
    """The pixels are turned, the tag is gone or 1, and a second time turns nothing."""
    wanted = case["check"]["upright"]
    sent = _sent(case, orient="apply")
    image = opened(sent)
    assert image.getexif().get(0x0112, 1) in {0, 1}
    assert list(image.size) == wanted["size"]
    for name, colour in wanted["corners"].items():
        _assert_near(_corners(image)[name], colour, 12)
    again, _ = prepare(sent, inspect(sent), ImagePolicy(orient="apply"), USUAL, animated_ok=False)
    assert again is sent


@pytest.mark.parametrize("policy", [{"strip_metadata": True}, {"max_side": 40}, {"format": "png"}, {"format": "webp"}])
@pytest.mark.parametrize("case", _with("upright"))
def test_case_changed_otherwise_still_knows_its_way_up(case: dict[str, Any], policy: dict[str, Any]) -> None:
    """Where the orientation is kept, it is neither lost nor applied: a reader of EXIF sees the picture upright."""
    wanted = case["check"]["upright"]
    image = ImageOps.exif_transpose(opened(_sent(case, **policy)))
    assert image.width > image.height
    for name, colour in wanted["corners"].items():
        _assert_near(_corners(image)[name], colour, 12)


@pytest.mark.parametrize("policy", [{"format": "png"}, {"convert_unsupported": True}, {"max_side": 40}])
def test_cmyk_converted_shows_its_colours_not_their_negative(policy: dict[str, Any]) -> None:
    """Inverted ink, as print programs write it, becomes the colours that were meant."""
    case = next(case for case in CASES if case["id"] == "img-cmyk")
    assert inspect(_bytes(case), check="quick").mode == case["check"]["mode"]
    image = opened(_sent(case, **policy))
    assert image.mode == "RGB"
    for name, colour in case["check"]["if_converted"].items():
        _assert_near(_corners(image)[name], colour, 60)


@pytest.mark.parametrize("policy", [{"format": "jpeg"}, {"format": "webp"}, {"max_side": 48}, {"max_pixels": 700}])
def test_grey_of_16_bits_converted_stays_a_ramp(policy: dict[str, Any]) -> None:
    """The high bytes are what is seen; nothing is clipped to white."""
    case = next(case for case in CASES if case["id"] == "img-gray16")
    wanted = case["check"]["if_converted_ramp"]
    image = opened(_sent(case, **policy)).convert("L")
    levels = image.tobytes()
    assert len(set(levels)) >= wanted["min_levels"]
    middle = image.getpixel((image.width // 2, image.height // 2))
    assert abs(middle - wanted["middle"]) <= wanted["tolerance"]  # type: ignore[operator]
    assert levels.count(255) <= wanted["max_white_share"] * len(levels)


def test_transparent_palette_flattened_stands_on_the_stated_ground() -> None:
    """Where alpha has no place the ground is white, or the colour that was asked for; the square stays visible."""
    case = next(case for case in CASES if case["id"] == "img-pal-transparent")
    wanted = case["check"]["if_flattened"]
    image = opened(_sent(case, format="jpeg"))
    _assert_near(image.getpixel((1, 1)), wanted["ground"], 2)  # type: ignore[arg-type]
    _assert_near(image.getpixel((16, 16)), wanted["centre"], 6)  # type: ignore[arg-type]
    _assert_near(opened(_sent(case, format="jpeg", background="#00ff00")).getpixel((1, 1)), [0, 255, 0], 4)  # type: ignore[arg-type]


@pytest.mark.parametrize("case_id", ["img-la", "img-1bit", "img-rgb-trns", "img-pal-transparent"])
@pytest.mark.parametrize("policy", [{"max_side": 16}, {"format": "jpeg"}, {"format": "webp"}])
def test_odd_colour_models_are_resized_and_converted_without_noise(case_id: str, policy: dict[str, Any]) -> None:
    """Every mode comes out near what it shows over white when Pillow flattens it at full size."""
    case = next(case for case in CASES if case["id"] == case_id)
    original = opened(_bytes(case)).convert("RGBA")
    sent = opened(_sent(case, **policy)).convert("RGBA")
    for image in (original, sent):
        image.paste(Image.alpha_composite(Image.new("RGBA", image.size, "white"), image))
    shrunk = original.convert("RGB").resize(sent.size, Image.Resampling.BOX)
    differences = [abs(a - b) for a, b in zip(shrunk.tobytes(), sent.convert("RGB").tobytes(), strict=True)]
    assert sum(differences) / len(differences) < 12


@pytest.mark.parametrize("policy", [{"strip_metadata": True}, {"max_side": 30}, {"format": "png"}, {"format": "webp"}])
def test_colour_profile_survives_strip_and_conversion(policy: dict[str, Any]) -> None:
    """Colours are no metadata."""
    case = next(case for case in CASES if case["id"] == "img-icc")
    profile = opened(_bytes(case)).info["icc_profile"]
    assert len(profile) == case["check"]["icc_bytes"]
    assert opened(_sent(case, **policy)).info["icc_profile"] == profile


@pytest.mark.parametrize("policy", [{"strip_metadata": True}, {"max_side": 30}, {"orient": "apply", "format": "jpeg"}])
@pytest.mark.parametrize("case", _with("must_not_be_sent_when_stripped"))
def test_private_words_stay_here_when_stripped(case: dict[str, Any], policy: dict[str, Any]) -> None:
    """A position is noticed; stripped or written anew, neither it nor owner nor serial number leaves."""
    assert inspect(_bytes(case), check="quick").has_gps
    sent = _sent(case, **policy)
    assert not inspect(sent).has_gps
    for word in case["check"]["must_not_be_sent_when_stripped"]:
        assert word.encode() not in sent


@pytest.mark.parametrize("case_id", ["img-anim-gif", "img-anim-webp", "img-tiff"])
def test_frames_refused_or_first_taken_when_asked(case_id: str) -> None:
    """Naming a format does not drop frames; --convert-unsupported does, and says so."""
    case = next(case for case in CASES if case["id"] == case_id)
    data = _bytes(case)
    facts = inspect(data)
    for policy in ({"format": "png"}, {"max_side": 16}, {"strip_metadata": True}):
        kept, _ = prepare(data, facts, ImagePolicy(**policy), USUAL, animated_ok=False)  # type: ignore[arg-type]
        assert kept is data
    sent, sent_facts = prepare(data, facts, ImagePolicy(convert_unsupported=True), USUAL, animated_ok=False)
    assert sent_facts.frames == 1
    assert "first_frame" in sent_facts.notes
    assert sent_facts.media_type in USUAL
    first = opened(data)
    first.seek(0)
    _assert_near(opened(sent).convert("RGB").getpixel((5, 5)), list(first.convert("RGB").getpixel((5, 5))), 6)  # type: ignore[arg-type]


def test_damage_names_its_kind_in_code_and_words() -> None:
    """Programs get a code, people a reason."""
    wanted = {
        "img-zero": ("empty_file", "0 bytes"),
        "img-text-as-jpg": ("not_an_image", "text"),
        "img-lfs-pointer": ("not_an_image", "Git LFS pointer"),
        "img-svg": ("unsupported_type", "SVG"),
        "img-trunc-scan": ("truncated", "pixels"),
        "img-trunc-head": ("truncated", "ends"),
        "img-trunc-webp": ("truncated", "missing"),
    }
    cases = {case["id"]: case for case in CASES}
    for name, (code, words) in wanted.items():
        with pytest.raises(ImageError) as caught:
            inspect(_bytes(cases[name]), check="quick")
        assert caught.value.code == code
        assert words in caught.value.message


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("trailing.jpg", "trailing_bytes"),
        ("polyglot.jpg", "trailing_bytes"),
        ("mpo.jpg", "second_picture"),
        ("exif-broken.jpg", "broken_exif"),
        ("one-pixel.png", "tiny"),
        ("one-by-20000.png", "slim"),
    ],
)
def test_odd_but_sound_picture_is_accepted_with_a_note(name: str, note: str) -> None:
    """What is odd is said, not refused."""
    assert note in inspect((DATA / name).read_bytes(), check="quick").notes
    assert note in inspect((DATA / name).read_bytes()).notes
