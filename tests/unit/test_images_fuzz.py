"""Any bytes at all: facts, or an ImageError; never another exception, a warning, or a decoder's word against ours."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.images_made import DATA, EVERYTHING, USUAL, samples
from tests.unit.test_images_inspect import frozen_facts
from vlmbatch.images import ImageError, ImagePolicy, inspect, prepare

if TYPE_CHECKING:
    from vlmbatch.records import ImageFacts

FILES = [*samples().values(), *(p.read_bytes() for p in sorted(DATA.iterdir()) if 0 < p.stat().st_size < 5000)]
STARTS = [b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n\x00\x00\x00\x0dIHDR", b"GIF89a", b"II*\x00\x08\x00\x00\x00", b"BM"]
STARTS += [
    b"MM\x00+\x00\x08\x00\x00",
    b"RIFF\x40\x00\x00\x00WEBPVP8X",
    b"\x00\x00\x00\x18ftypheic",
    b"\xff\x4f\xff\x51",
]
STARTS += [b"\x00\x00\x00\x18ftypavif\x00\x00\x00\x00avifmif1\x00\x00\x00\x40meta", b"\x00\x00\x00\x0cjP  \r\n\x87\n"]
ODD_VALUES = [
    b"\x00",
    b"\xff",
    b"\x7f",
    b"\x80",
    b"\x00\x00\x00\x00",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x01",
]
POLICIES = [
    ImagePolicy(convert_unsupported=True, max_side=16, orient="apply", strip_metadata=True),
    ImagePolicy(strip_metadata=True),
    ImagePolicy(format="jpeg", convert_unsupported=True),
]


@st.composite
def mutants(draw: st.DrawFn) -> bytes:
    """Draw a real picture with up to six wounds: bytes changed, cut out, doubled, or the rest lost."""
    data = bytearray(draw(st.sampled_from(FILES)))
    for _ in range(draw(st.integers(1, 6))):
        # Half of the wounds fall into the first bytes, where the structure is.
        place = draw(st.integers(0, max(0, min(len(data), draw(st.sampled_from([120, 1 << 20]))) - 1)))
        wound = draw(st.sampled_from(["set", "cut", "insert", "end", "copy"]))
        if wound == "set":
            value = draw(st.one_of(st.sampled_from(ODD_VALUES), st.binary(min_size=1, max_size=2)))
            data[place : place + len(value)] = value
        elif wound == "cut":
            del data[place : place + draw(st.integers(1, 40))]
        elif wound == "insert":
            data[place:place] = draw(st.binary(min_size=1, max_size=8))
        elif wound == "end":
            del data[place:]
        else:
            data[place : place + 12] = data[place // 2 : place // 2 + 12]
    return bytes(data)


def _inspected(data: bytes, check: Any) -> ImageFacts | None:
    try:
        return inspect(data, check=check)
    except ImageError as error:
        refusal = error
    assert refusal.code
    assert 0 < len(refusal.message) < 400
    return None


def _hold_all_laws(data: bytes) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        quick, full = _inspected(data, "quick"), _inspected(data, "full")
        if full is not None:
            assert quick is not None, "full passes what quick refuses"
            assert frozen_facts(quick) == frozen_facts(full)
        for policy in POLICIES if quick is not None else ():
            _prepare(data, quick, policy, is_decoded=full is not None)
    assert [str(warning.message) for warning in said] == []


def _prepare(data: bytes, facts: ImageFacts, policy: ImagePolicy, *, is_decoded: bool) -> None:
    for accepts in (USUAL, EVERYTHING):
        code = "ok"
        try:
            new, new_facts = prepare(data, facts, policy, accepts, animated_ok=False)
        except ImageError as error:
            code = error.code
        assert not is_decoded or code in {"ok", "cannot_convert", "no_decoder"}
        if code != "ok":
            continue
        assert (new is data) is (new_facts is facts)
        if new is not data and is_decoded:
            assert inspect(new).sha256 == new_facts.sha256
        assert policy.max_side is None or new is data or max(new_facts.width, new_facts.height) <= policy.max_side


@settings(max_examples=250)
@given(mutants())
def test_wounded_pictures_give_facts_or_an_image_error(data: bytes) -> None:
    """Real pictures with wounds of every kind, at every place."""
    _hold_all_laws(data)


@settings(max_examples=150)
@given(st.sampled_from(STARTS), st.binary(max_size=200))
@example(b"\x00\x00\x00\x00ftyp", b"")
def test_any_bytes_give_facts_or_an_image_error(start: bytes, rest: bytes) -> None:
    """Nonsense behind every signature."""
    _hold_all_laws(start + rest)


@pytest.mark.parametrize("number", range(len(FILES)))
def test_whole_pictures_hold_the_same_laws(number: int) -> None:
    """The laws hold for what is sound as well, so that they cannot hold by refusing everything."""
    _hold_all_laws(FILES[number])
