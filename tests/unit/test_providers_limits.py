"""Preflight by the dated limits: every rule on both sides of its line, the user's own values, the page for people."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from vlmbatch import providers
from vlmbatch.errors import InputError
from vlmbatch.providers import limits as preflight
from vlmbatch.providers.base import Limits
from vlmbatch.records import ImageFacts

PAGE = Path(__file__).parents[2] / "references" / "providers.md"
BIG = ("openai", "anthropic", "gemini")


def image(**changes: Any) -> ImageFacts:
    """Return the facts of a small PNG, with changes."""
    facts: dict[str, Any] = {"media_type": "image/png", "width": 100, "height": 100, "bytes": 3000, "sha256": "0" * 64}
    return ImageFacts(**{**facts, **changes})


def codes(name: str, *facts: ImageFacts, override: dict[str, Any] | None = None) -> tuple[list[str], list[str]]:
    """Return the codes of problems and of warnings."""
    provider = providers.get(name)
    problems, warnings = provider.check_images(facts, limits=provider.limits("m", override))
    return [problem.code for problem in problems], warnings


# --- media types, frames, colours ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("media_type", "taken_by"),
    [
        ("image/jpeg", set(providers.names())),
        ("image/png", set(providers.names())),
        ("image/webp", set(providers.names())),
        ("image/gif", set(providers.names()) - {"gemini"}),
        ("image/heic", {"gemini"}),
        ("image/heif", {"gemini"}),
        ("image/tiff", set()),
        ("image/bmp", set()),
        ("image/svg+xml", set()),
        ("image/jp2", set()),
    ],
)
def test_media_type_is_taken_by_those_that_document_it(media_type: str, taken_by: set[str]) -> None:
    """A type is refused where it is on no list, and the message names it and the list."""
    facts = image(media_type=media_type)
    assert {name for name in providers.names() if codes(name, facts) == ([], [])} == taken_by
    for name in set(providers.names()) - taken_by:
        (problem,), _ = providers.get(name).check_images([facts])
        assert (problem.code, media_type in problem.message, "image/png" in problem.message) == (
            "media_type",
            True,
            True,
        )


def test_animation_is_refused_or_told_never_sent_in_silence() -> None:
    """OpenAI and Gemini refuse several frames; where the first is looked at there is a warning."""
    gif, webp = image(media_type="image/gif", frames=3), image(media_type="image/webp", frames=3)
    assert codes("openai", gif) == (["animated"], [])
    assert codes("openai", webp) == (["animated"], [])
    assert codes("gemini", webp) == (["animated"], [])
    assert codes("anthropic", gif) == ([], ["animated"])
    assert codes("vllm", webp) == ([], ["animated"])
    assert codes("openai", image(media_type="image/gif")) == ([], [])
    assert "3 frames" in providers.get("openai").check_images([gif])[0][0].message


def test_cmyk_is_told_where_nobody_documents_it() -> None:
    """No provider says that it takes CMYK."""
    for name in providers.names():
        assert codes(name, image(media_type="image/jpeg", mode="CMYK")) == ([], ["cmyk"])


# --- numbers, on both sides of the line ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "code", "good", "bad"),
    [
        ("anthropic", "image_side_px", image(width=8000, height=10), image(width=10, height=8001)),
        ("anthropic", "image_base64_bytes", image(bytes=7_500_000), image(bytes=7_500_001)),
        ("vllm", "image_pixels", image(width=178_956_970, height=1), image(width=178_956_971, height=1)),
    ],
)
def test_image_over_a_limit_is_refused_with_both_numbers(
    name: str, code: str, good: ImageFacts, bad: ImageFacts
) -> None:
    """At the limit it is taken, one above it is not, and the message holds the measure and the limit."""
    assert codes(name, good)[0] == []
    assert codes(name, bad)[0] == [code]
    (problem,), _ = providers.get(name).check_images([bad])
    assert f"{getattr(providers.get(name).limits('m'), code):,}" in problem.message
    assert code in problem.message


@pytest.mark.parametrize(
    ("name", "code", "good", "odd"),
    [
        ("openai", "image_bytes", image(bytes=20_000_000), image(bytes=20_000_001)),
        ("openai", "image_pixels", image(width=30_720, height=1000), image(width=30_721, height=1000)),
        ("anthropic", "image_base64_bytes", image(bytes=3_932_160), image(bytes=3_932_161)),
    ],
)
def test_image_over_a_doubtful_limit_is_only_told(name: str, code: str, good: ImageFacts, odd: ImageFacts) -> None:
    """What is no longer or not everywhere so is a warning, and every code has its sentence."""
    assert codes(name, good) == ([], [])
    assert codes(name, odd) == ([], [code])
    assert preflight.SENTENCES[code]


def test_base64_rule_is_measured_on_the_base64_text() -> None:
    """A file of 4.0 MiB is over 5 MiB once it is base64: both numbers stand in the message."""
    provider = providers.get("anthropic")
    limits = provider.limits("m", {"image_base64_bytes": 5 * 1024 * 1024})
    (problem,), _ = provider.check_images([image(bytes=4 * 1024 * 1024)], limits=limits)
    assert problem.code == "image_base64_bytes"
    assert "4,194,304 bytes, 5,592,408 in base64" in problem.message
    assert "5,242,880" in problem.message


def test_many_images_rule_holds_for_each_request_by_itself() -> None:
    """21 pictures of 2001 pixels are refused, 20 are not; 21 smaller ones are not either."""
    large, small = image(width=2001, height=10), image(width=2000, height=10)
    assert codes("anthropic", *[large] * 20) == ([], [])
    assert codes("anthropic", *[small] * 21) == ([], [])
    assert codes("anthropic", *[large] * 21) == (["many_images_side_px"] * 21, [])
    assert codes("anthropic", *[small] * 20, large) == (["many_images_side_px"], [])
    assert codes("openai", *[large] * 21) == ([], [])


@pytest.mark.parametrize(("name", "most"), [("openai", 500), ("anthropic", 600), ("gemini", 3600)])
def test_images_of_one_request_are_counted(name: str, most: int) -> None:
    """At the limit a request is taken, one above it is not."""
    assert codes(name, *[image()] * most)[0] == []
    assert codes(name, *[image()] * (most + 1))[0] == ["images_per_request"]


def test_images_over_a_smaller_context_are_told() -> None:
    """Models of a smaller context take fewer: a warning, once per request."""
    assert codes("anthropic", *[image()] * 100) == ([], [])
    assert codes("anthropic", *[image()] * 101) == ([], ["images_per_request"])


@pytest.mark.parametrize(("name", "most"), [("openai", 50_000_000), ("anthropic", 32_000_000), ("gemini", 20_000_000)])
def test_request_bytes_are_measured(name: str, most: int) -> None:
    """At the limit a body is taken, one byte above it is not; a server of one's own has no such limit."""
    provider = providers.get(name)
    assert provider.check_request(most) == []
    (problem,) = provider.check_request(most + 1)
    assert problem.code == "request_bytes"
    assert f"{most:,}" in problem.message
    assert providers.get("vllm").check_request(10**12) == []


def test_every_bad_image_is_named_at_once() -> None:
    """All that is wrong with a request is told together, each image by its number."""
    provider = providers.get("anthropic")
    facts = [image(), image(media_type="image/tiff"), image(width=9000, height=9000)]
    problems, _ = provider.check_images(facts)
    assert [problem.code for problem in problems] == ["media_type", "image_side_px"]
    assert [problem.message[:8] for problem in problems] == ["image 2:", "image 3:"]


# --- the user's own values -----------------------------------------------------------------------------------


def test_override_replaces_a_limit_and_its_warning() -> None:
    """A measured value wins over the page, both ways, and None lifts a limit."""
    assert codes("anthropic", image(width=9000), override={"image_side_px": 10_000}) == ([], [])
    assert codes("anthropic", image(width=200), override={"image_side_px": 150}) == (["image_side_px"], [])
    assert codes("anthropic", image(bytes=7_000_000), override={"image_base64_bytes": 10**8}) == ([], [])
    assert codes("anthropic", image(width=10**6), override={"image_side_px": None}) == ([], [])
    assert codes("openai", image(media_type="image/gif", frames=2), override={"animated": 1}) == ([], ["animated"])
    assert codes("openai", image(media_type="image/bmp"), override={"media_types": ["image/bmp"]}) == ([], [])
    assert providers.get("openai").limits("m").animated is False


def test_override_of_an_unknown_name_is_refused_with_the_names() -> None:
    """A typing error must not pass for a limit."""
    with pytest.raises(InputError) as caught:
        providers.get("openai").limits("m", {"image_byte": 1})
    assert "image_bytes" in caught.value.hint
    assert "warn" not in caught.value.hint.split(", ")


# --- shards --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", providers.names())
def test_shard_limits_leave_headroom_below_the_providers_own(name: str) -> None:
    """One default for all, at least a fifth below what a job of the provider takes."""
    provider = providers.get(name)
    max_bytes, max_requests = provider.shard_limits("m")
    limits = provider.limits("m")
    assert (max_bytes, max_requests) == (90_000_000, 50_000)
    assert limits.batch_file_bytes is None or max_bytes <= 0.8 * limits.batch_file_bytes
    assert limits.batch_requests is None or max_requests <= limits.batch_requests


def test_shard_limits_shrink_with_a_smaller_job() -> None:
    """Where a job takes less, a shard fills at most three quarters of it."""
    limits = providers.get("openai").limits("m", {"batch_file_bytes": 20_000_000, "batch_requests": 100})
    assert preflight.shard_limits(limits) == (15_000_000, 100)


# --- the data itself, and the page for people ----------------------------------------------------------------


def test_rows_are_dated_facts_of_known_providers() -> None:
    """Each row has a source, a date and how sure it is; no fact stands twice; every provider has its types."""
    rows = preflight.rows()
    sure = {"documented", "sdk", "source", "report", "unverified"}
    for row in rows:
        assert row.provider in providers.names()
        assert row.name in Limits._fields
        assert row.act in {"refuse", "warn"}
        assert row.sure in sure
        assert row.source
        assert isinstance(row.as_of, date)
        assert re.compile(row.models)
    keys = [(row.provider, row.name, row.act, row.models) for row in rows]
    assert len(keys) == len(set(keys))
    for name in providers.names():
        assert {row.name for row in rows if row.provider == name} >= {"media_types", "animated"}


def test_rows_warn_below_where_they_refuse() -> None:
    """A warning above the refusal would never be heard."""
    for name in providers.names():
        limits = providers.get(name).limits("m")
        for code, soft in limits.warn.items():
            assert code in preflight.SENTENCES
            hard = getattr(limits, code)
            assert hard is None or soft < hard


def shown(value: Any) -> str:
    """Return a value as the page writes it."""
    if isinstance(value, list):
        return ", ".join(kind.removeprefix("image/") for kind in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}"


def test_page_and_data_hold_the_same_limits() -> None:
    """references/providers.md has one table row for each row of data/limits.toml, and no other."""
    text = PAGE.read_text(encoding="utf-8")
    section = text[text.index("## Limits") :].split("\n## ")[0]
    page = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("| ") and not line.startswith(("| provider", "| ---"))
    ]
    data = [
        [row.provider, row.name, shown(row.value), row.act, row.source, row.as_of.isoformat(), row.sure, row.note]
        for row in preflight.rows()
    ]
    assert page == data
