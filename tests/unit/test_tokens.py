"""Image tokens: every published number, how a rule is picked, laws that hold for any size, and a user's own table."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmbatch import tokens
from vlmbatch.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vlmbatch.tokens.table import Row, Table

DATA = Path(__file__).parents[1] / "data" / "tokens"
VECTORS: list[dict[str, Any]] = json.loads((DATA / "image_token_vectors.json").read_text(encoding="utf-8"))
TIERS = {"standard": {"max_edge": 1568, "max_tokens": 1568}, "high-res": {"max_edge": 2576, "max_tokens": 4784}}
OTHER_SETTINGS = ("class default max_pixels", "before multiplier")
"""Vectors for constants that no model has by default; they are reached through ``params`` alone."""

SIDES = st.integers(1, 12_000)


def _count(
    scheme: str,
    width: int,
    height: int,
    *,
    model: str = "",
    detail: str | None = None,
    params: Mapping[str, Any] | None = None,
    table: Table | None = None,
) -> tokens.ImageTokens:
    """Pick a scheme and count; ``params`` stand over the picked constants, None takes one away."""
    picked = tokens.pick(model, scheme, detail=detail, table=table)
    assert picked is not None
    constants = {**picked.params, **(params or {})}
    known = {key: value for key, value in constants.items() if value is not None}
    return replace(picked, params=known).count(width, height)


def _name(vector: dict[str, Any]) -> str:
    return f"{vector['scheme']}-{vector['width']}x{vector['height']}-{vector['detail'] or vector.get('tier') or ''}"


@pytest.mark.parametrize("vector", VECTORS, ids=_name)
def test_vector_with_its_params_agrees_exactly(vector: dict[str, Any]) -> None:
    """Every published vector comes out to the token, and the resized picture to the pixel."""
    params = {**vector.get("params", {}), **TIERS.get(vector.get("tier", ""), {})}
    counted = _count(
        vector["scheme"],
        vector["width"],
        vector["height"],
        model=vector["model"],
        detail=vector["detail"],
        params=params,
    )
    assert counted.tokens == vector["tokens"]
    assert counted.scheme == vector["scheme"]
    # One row of the provider's table differs by a pixel from the provider's own code (see the vector's note).
    if vector.get("resized") and "exact .5 tie" not in vector.get("note", ""):
        assert [counted.width, counted.height] == vector["resized"]


def test_vectors_are_all_there() -> None:
    """The file of vectors has not shrunk."""
    assert len(VECTORS) == 150


def _is_default(vector: dict[str, Any]) -> bool:
    default_budget = vector.get("params", {}).get("max_soft_tokens", 280) == 280
    return default_budget and not any(words in vector["model"] for words in OTHER_SETTINGS)


@pytest.mark.parametrize("vector", [v for v in VECTORS if _is_default(v)], ids=_name)
def test_auto_with_model_name_alone_agrees_exactly(vector: dict[str, Any]) -> None:
    """The model's name alone leads to the vector's scheme and constants."""
    picked = tokens.pick(vector["model"], detail=vector["detail"])
    assert picked is not None
    assert picked.name == vector["scheme"]
    assert picked.picked_by == "model"
    assert picked.count(vector["width"], vector["height"]).tokens == vector["tokens"]


# --- picking ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "scheme", "label"),
    [
        ("gpt-4o-2024-08-06", "openai-tile", "gpt-4o"),
        ("gpt-4o-mini-2024-07-18", "openai-tile", "gpt-4o-mini"),
        ("openai/gpt-4.1-mini", "openai-patch", "gpt-4.1-mini"),
        ("ft:gpt-4o-2024-08-06:org::abc123", "openai-tile", "gpt-4o"),
        ("gpt-5.4-nano-2026-03-05", "openai-patch", "gpt-5.4"),
        ("GPT-5", "openai-tile", "gpt-5,"),
        ("gpt-5-mini", "openai-patch", "gpt-5-mini"),
        ("gpt-5.1", "openai-tile", "gpt-5,"),
        ("claude-3-5-sonnet-20241022", "anthropic-patch28", "standard"),
        ("claude-sonnet-4-20250514", "anthropic-patch28", "standard"),
        ("claude-haiku-4-5@20251001", "anthropic-patch28", "standard"),
        ("us.anthropic.claude-opus-4-6-v1:0", "anthropic-patch28", "standard"),
        ("claude-opus-4-7", "anthropic-patch28", "high-resolution"),
        ("anthropic/claude-fable-5-1", "anthropic-patch28", "high-resolution"),
        ("claude-haiku-5-5", "anthropic-patch28", "Haiku 5.5"),
        ("models/gemini-3.8-flash", "gemini-media-resolution", "Gemini 3"),
        ("gemini-2.0-flash", "gemini-tile", "Gemini 2.0"),
        ("Qwen/Qwen2.5-VL-7B-Instruct-AWQ", "qwen2-vl", "Qwen2-VL"),
        ("Qwen/Qwen3-VL-235B-A22B-Instruct", "qwen3-vl", "Qwen3-VL"),
        ("zai-org/GLM-4.1V-9B-Thinking", "glm4v", "GLM"),
        ("OpenGVLab/InternVL3_5-8B", "internvl", "InternVL"),
        ("mistralai/Pixtral-12B-2409", "pixtral", "Pixtral"),
        ("mistralai/Mistral-Small-3.2-24B-Instruct-2506", "pixtral", "Mistral Small"),
        ("google/gemma-3-27b-it", "gemma3", "Gemma 3"),
        ("google/gemma-4-12b-it", "gemma4", "Gemma 4"),
        ("llava-hf/llava-v1.6-mistral-7b-hf", "llava-next", "LLaVA-NeXT"),
    ],
)
def test_pick_with_name_as_servers_spell_it_finds_the_row(model: str, scheme: str, label: str) -> None:
    """Prefixes, dates, tags and letter case around a model's name do not matter."""
    picked = tokens.pick(model)
    assert picked is not None
    assert (picked.name, label in picked.label) == (scheme, True)


@pytest.mark.parametrize("model", ["", "test-vlm-1", "gpt-9", "gpt-5-pro", "gpt-4", "claude", "gpt-4o-audio-preview"])
def test_pick_with_unknown_model_finds_nothing(model: str) -> None:
    """A name that no page speaks of is not taken for a neighbour."""
    assert tokens.pick(model) is None


def test_pick_with_alias_lets_the_model_decide() -> None:
    """An alias chooses among its schemes by the model, and finds nothing for a model of somebody else."""
    assert [p.name for m in ("gemini-3-flash", "gemini-2.0-flash") if (p := tokens.pick(m, "gemini"))] == [
        "gemini-media-resolution",
        "gemini-tile",
    ]
    high, standard = tokens.pick("claude-opus-5", "anthropic"), tokens.pick("claude-haiku-4-5", "anthropic")
    assert high is not None
    assert standard is not None
    assert (high.params["max_tokens"], standard.params["max_tokens"]) == (4784, 1568)
    assert tokens.pick("gpt-4o", "gemini") is None


def test_pick_with_named_scheme_and_foreign_model_takes_the_scheme() -> None:
    """A scheme that the user names holds whatever the model is called."""
    picked = tokens.pick("M", "openai-tile")
    assert picked is not None
    assert (picked.picked_by, picked.count(1024, 1024).tokens) == ("user", 765)


def test_pick_with_unknown_scheme_lists_those_there_are() -> None:
    """A misspelt scheme is refused, with the list."""
    with pytest.raises(InputError, match="no such scheme") as caught:
        tokens.pick("gpt-4o", "openai-tiles")
    assert "openai-tile" in caught.value.hint
    assert "anthropic" in caught.value.hint


def test_pick_with_detail_in_the_providers_words_finds_the_level() -> None:
    """A detail may be spelt as the provider's enumeration has it."""
    counts = {
        detail: _count("auto", 100, 100, model="gemini-3-flash", detail=detail).tokens
        for detail in ("low", "MEDIA_RESOLUTION_LOW", None, "MEDIA_RESOLUTION_UNSPECIFIED", "ultra_high")
    }
    assert list(counts.values()) == [280, 280, 1120, 1120, 2240]


def test_pick_with_media_resolution_on_gemini_25_changes_the_rule() -> None:
    """One model may count by tiles or by budget, as the detail has it."""
    by_detail = {d: tokens.pick("gemini-2.5-flash", detail=d) for d in (None, "low")}
    assert [picked.name for picked in by_detail.values() if picked] == ["gemini-tile", "gemini-media-resolution"]


def test_describe_tells_rule_source_and_certainty() -> None:
    """What was picked says by what, how sure, of what date and where from."""
    picked = tokens.pick("gpt-6-sol")
    assert picked is not None
    said = picked.describe()
    assert all(word in said for word in ("openai-patch", "model's name", "guess", "2026-11", "gpt-6-astra"))


def test_auto_detail_of_gpt55_costs_more_than_high() -> None:
    """The trap that the page warns of: no detail at all is the dearest one there."""
    dear, high, low = (_count("auto", 4000, 3000, model="gpt-5.5", detail=d).tokens for d in (None, "high", "low"))
    assert dear > 3 * high > low
    assert _count("auto", 4000, 3000, model="gpt-6-astra").tokens == 14_100


# --- odd sizes -------------------------------------------------------------------------------------------------


def test_count_with_unknown_size_falls_back_to_fixed_tokens() -> None:
    """An image whose size nobody knows counts as the fixed number, and says that it does."""
    picked = tokens.pick("gpt-4o", fixed_tokens=750)
    assert picked is not None
    assert picked.count(None, 480) == tokens.ImageTokens(750, "fixed")


def test_fixed_scheme_counts_what_the_user_says() -> None:
    """--scheme fixed counts one number for all sizes."""
    assert _count("fixed", 10, 10) == tokens.ImageTokens(1000, "fixed")
    picked = tokens.pick("anything", "fixed", fixed_tokens=258)
    assert picked is not None
    assert picked.count(4000, 3000).tokens == 258


@pytest.mark.parametrize(("width", "height"), [(0, 10), (10, -1)])
def test_count_with_impossible_size_is_refused(width: int, height: int) -> None:
    """A side must be positive."""
    with pytest.raises(InputError, match="no size"):
        _count("openai-tile", width, height)


def test_count_with_slim_image_says_that_the_processor_refuses_it() -> None:
    """What the model's own processor would raise on is told, not counted."""
    counted = _count("qwen2-vl", 2010, 10)
    assert counted.tokens == 0
    assert "200" in counted.refused
    assert not _count("qwen2-vl", 2000, 10).refused


def test_count_with_too_many_patches_says_that_the_request_is_refused() -> None:
    """More than 30,000 patches after resizing are refused by the provider."""
    counted = _count("auto", 6000, 6000, model="gpt-6-astra", detail="original")
    assert (counted.tokens, "30,000" in counted.refused) == (0, True)


@given(
    width=SIDES, height=SIDES, model=st.sampled_from(["gpt-4o", "gpt-5.4", "gpt-5.5", "gpt-4.1-mini", "claude-opus-5"])
)
def test_turning_an_image_changes_nothing(width: int, height: int, model: str) -> None:
    """Width and height swapped give the same count, so EXIF orientation does not matter for cost."""
    one, other = (_count("auto", *size, model=model, detail="high") for size in ((width, height), (height, width)))
    assert one.tokens == other.tokens


@given(width=SIDES, height=SIDES)
def test_patch_budget_is_never_passed(width: int, height: int) -> None:
    """Whatever the size, a budget of patches holds, and every image costs something."""
    for detail, budget in (("high", 2500), ("low", 6144), ("original", 10_000)):
        counted = _count("auto", width, height, model="gpt-5.4", detail=detail)
        assert 1 <= counted.tokens <= math.ceil(budget * 1.2)


@given(width=SIDES, height=SIDES, tier=st.sampled_from(list(TIERS)))
def test_searched_size_is_the_largest_that_fits(width: int, height: int, tier: str) -> None:
    """The result keeps both limits and the shape, and an image within them is not touched."""
    limits = TIERS[tier]
    counted = _count("anthropic-patch28", width, height, params=limits)
    assert counted.width is not None
    assert counted.height is not None
    assert counted.tokens <= limits["max_tokens"]
    assert max(counted.width, counted.height) <= limits["max_edge"]
    fits = max(width, height) <= limits["max_edge"] and -(-width // 28) * -(-height // 28) <= limits["max_tokens"]
    assert ((counted.width, counted.height) == (width, height)) == fits


@given(width=SIDES, height=SIDES)
def test_smart_resize_stays_within_its_pixels(width: int, height: int) -> None:
    """Merged patches stay within the bounds of area that the processor is given."""
    counted = _count("qwen3-vl", width, height)
    if not counted.refused:
        # Rounding up to whole patches may add a row, one side of a slim image being a single patch.
        assert counted.tokens * 32 * 32 <= 16_777_216
        assert counted.tokens >= 64


@given(width=SIDES, height=SIDES, scheme=st.sampled_from([s for s in tokens.load().schemes if s != "fixed"]))
def test_every_scheme_counts_any_size(width: int, height: int, scheme: str) -> None:
    """No size makes a rule fail: it counts at least one token, or says why the image is refused."""
    params = {"multiplier": 1.2} if scheme == "openai-patch" else {}
    counted = _count(scheme, width, height, params=params)
    assert counted.tokens >= 1 or counted.refused


@given(width=SIDES, height=SIDES)
def test_spread_holds_every_known_model(width: int, height: int) -> None:
    """The range for an unknown model holds what any known one would take by default."""
    low, high = tokens.spread(width, height)
    for model in ("gpt-4o", "gpt-5.4", "claude-haiku-4-5", "claude-opus-5", "gemini-3-flash", "Qwen3-VL-8B"):
        counted = _count("auto", width, height, model=model)
        assert counted.refused or low <= counted.tokens <= high


def test_spread_over_a_family_is_narrower() -> None:
    """Knowing the provider narrows the range."""
    everyone = tokens.spread(3000, 2000)
    family = tokens.spread(3000, 2000, settings=tokens.settings(family="anthropic"))
    assert everyone.low < family.low < family.high < everyone.high
    assert tokens.spread(None, 10) == (0, 0)


# --- a user's own table ----------------------------------------------------------------------------------------


def _write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_scheme_file_adds_a_model_without_code(tmp_path: Path) -> None:
    """A row of a file makes a new model known."""
    mine = """
        [[model]]
        scheme = "openai-patch"
        label = "house model"
        match = ['house-vlm(-.*)?']
        params = { multiplier = 2.0, max_dim = 1024, patch_budget = 500 }
        sure = "reported"
        as_of = "2026-12"
        source = "our own measurements"
    """
    picked = tokens.pick("house-vlm-7b", table=tokens.load(_write(tmp_path, mine)))
    assert picked is not None
    assert (picked.label, picked.sure) == ("house model", "reported")
    assert picked.count(320, 320).tokens == 200
    assert tokens.pick("house-vlm-7b") is None


def test_scheme_file_overrides_a_row_and_adds_a_scheme(tmp_path: Path) -> None:
    """A file's rows stand before ours, and a scheme of its own may use any rule."""
    mine = """
        [[scheme]]
        name = "house"
        rule = "pixels-are-free"
    """
    with pytest.raises(InputError) as caught:
        tokens.load(_write(tmp_path, mine))
    assert "rule" in caught.value.problems[0].message
    mine = """
        [alias]
        ours = ["house"]
        [[scheme]]
        name = "house"
        rule = "fixed"
        params = { tokens = 77 }
        [[model]]
        scheme = "house"
        match = ['gpt-4o']
    """
    table = tokens.load(_write(tmp_path, mine))
    assert _count("auto", 10, 10, model="gpt-4o", table=table).tokens == 77
    assert _count("house", 10, 10, table=table).tokens == 77
    assert _count("ours", 10, 10, model="gpt-4o", table=table).tokens == 77
    assert _count("auto", 10, 10, model="gpt-4.1", table=table).scheme == "openai-tile"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[model]]\nscheme = 'nowhere'\nmatch = ['x']", "no scheme of that name"),
        ("[[model]]\nscheme = 'openai-tile'\nmatch = ['x']\nparams = { tiel = 3 }", "no constant 'tiel'"),
        ("[[model]]\nscheme = 'openai-tile'\nmatch = ['x(']", "pattern"),
        ("[[model]]\nscheme = 'openai-tile'\nsure = 'quite'\nmatch = ['x']", "sure is one of"),
        ("[[model]]\nmatch = ['x']", "lacks 'scheme'"),
        ("[[model]]\nscheme = 'openai-tile'\nmodels = ['x']", "unknown key 'models'"),
        ("[[models]]\nscheme = 'openai-tile'", "unknown key 'models'"),
        ("[[model]]\nscheme = 'openai-tile'\nmatch = ['x']\nparams = 3", "not a dict"),
        ("scheme = 'openai-tile'", "no list of entries"),
        ("[[model]]\nscheme = 'openai-patch'\nmatch = ['x']\ndetail = { auto = 'high' }", "stands for 'high'"),
        ("[[model]]\nscheme = 'openai-patch'\nmatch = ['x']\ndetail = { low = 3 }", "stands for 3"),
        ("[[model]]\nscheme = 'openai-patch'\nmatch = ['x']\nparams = { multiplier = 'abc' }", "multiplier is 'abc'"),
        ("[[model]]\nscheme = 'openai-patch'\nmatch = ['x']\nparams = { multiplier = nan }", "multiplier is nan"),
        ("[[model]]\nscheme = 'openai-tile'\nmatch = ['x']\nparams = { tile = 1.5 }", "tile is 1.5"),
        ("[[model]]\nscheme = 'openai-tile'\nmatch = ['x']\nparams = { base_only = 1 }", "base_only is 1"),
        ("[[scheme]]\nname = 'h'\nrule = 'fixed'\nparams = { tokens = -5 }", "tokens is -5"),
        ("[[scheme]]\nname = 'h'\nrule = 'pinpoints'\nparams = { pinpoints = [3] }", "pinpoints is [3]"),
        ("alias = 3", "'alias' is no table"),
        ("[alias]\nours = 'openai-tile'", "'alias' is no table"),
        ("[alias]\nours = ['openai-tiel']", "no scheme 'openai-tiel'"),
    ],
)
def test_scheme_file_with_a_mistake_is_refused_by_name(tmp_path: Path, text: str, said: str) -> None:
    """A mistake in a scheme file is named, never passed over."""
    with pytest.raises(InputError) as caught:
        tokens.load(_write(tmp_path, text))
    assert any(said in problem.message for problem in caught.value.problems)


def test_scheme_file_with_a_bad_constant_is_no_traceback(tmp_path: Path) -> None:
    """A constant that makes no sense ends in a message when it is used."""
    table = tokens.load(_write(tmp_path, "[[model]]\nscheme='openai-tile'\nmatch=['x']\nparams={cell=0}"))
    with pytest.raises(InputError, match="openai-tile"):
        _count("auto", 100, 100, model="x", table=table)


def test_scheme_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    """As some editors save it."""
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xef\xbb\xbf[alias]\nours = ['openai-tile']\n")
    assert "ours" in tokens.load(str(path)).names()


@pytest.mark.parametrize("text", ["[[model]", "\udcff"])
def test_scheme_file_that_is_no_toml_is_refused(tmp_path: Path, text: str) -> None:
    """What is not TOML in UTF-8 is bad input."""
    path = tmp_path / "mine.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match="not TOML"):
        tokens.load(str(path))
    with pytest.raises(InputError, match="cannot be read"):
        tokens.load(str(tmp_path / "nowhere.toml"))


# --- the page --------------------------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "references" / "image-tokens.md").read_text(encoding="utf-8")


def _constants(values: Any) -> str:
    """Write constants as the page does."""
    if isinstance(values, str):
        return f"as {values}"
    return ", ".join(f"{key} {_plain(value)}" for key, value in values.items()) or "-"


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return " ".join("x".join(map(str, pair)) for pair in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _page_row(row: Row) -> str:
    details = "; ".join(f"{name}: {_constants(values)}" for name, values in row.detail.items())
    cells = (row.label, _constants(row.params), details or "-", row.sure, row.as_of, row.source or "-", row.note or "-")
    return f"| {' | '.join(cells)} |"


@pytest.mark.parametrize("name", list(tokens.load().schemes))
def test_page_holds_the_same_constants_as_the_table(name: str) -> None:
    """The page for people has one section for each scheme, with exactly the rows of the data."""
    table = tokens.load()
    head = re.escape(f"### {name}, rule {table.schemes[name].rule}")
    section = re.search(rf"^{head}\n(.*?)(?=^### |^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert section is not None
    rows = [line for line in section[1].splitlines() if line.startswith("| ")][1:]
    wanted = [_page_row(row) for row in (table.schemes[name], *(r for r in table.models if r.scheme == name))]
    assert rows == wanted
