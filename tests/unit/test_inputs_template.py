"""Prompt templates: places of images, values as text, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmbatch.errors import InputError
from vlmbatch.inputs import template
from vlmbatch.inputs.base import RowError
from vlmbatch.inputs.template import TemplateText, value_of, without_null


def _parts(
    source: str, row: dict[str, Any] | None = None, images: dict[str, list[int]] | None = None, **more: Any
) -> object:
    groups = {"image": [0]} if images is None else images
    return TemplateText(source, list(groups), "t", **more).parts(row or {}, groups)


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("{{ image }}\nWhat?\n", (0, "\nWhat?")),
        ("Look: {{ image }} What?", ("Look: ", 0, " What?")),
        ("What? {{ image }}", ("What? ", 0)),
        ("What?", (0, "What?")),
        ("{{ image }} twice {{ image }}", (0, " twice ", 0)),
        ("{% for i in images %}Image {{ loop.index }}: {{ i }}{% endfor %}", ("Image 1: ", 0)),
        ("{% macro m(i) %}[{{ i }}]{% endmacro %}{{ m(image) }}", ("[", 0, "]")),
        ("{{ images[0] }}x{{ images | length }}", (0, "x1")),
    ],
)
def test_template_places_the_image_where_it_says(source: str, parts: object) -> None:
    """{{ image }} is the place, text keeps its own white space, and blanks alone are no part."""
    assert _parts(source) == parts


def test_template_places_several_images_by_name_and_number() -> None:
    """A field's name places its own images in order; image and images mean all of them."""
    groups = {"left": [0], "right": [1, 2]}
    assert _parts("{{ left }} or {{ right }}?", images=groups) == (0, " or ", 1, 2, "?")
    assert _parts("{{ image }} all", images=groups) == (0, 1, 2, " all")
    assert _parts("{{ images[2] }} then {{ images[0] }}", images=groups) == (2, " then ", 0)
    assert _parts("text", images=groups) == (0, 1, 2, "text")
    assert _parts("text", images=groups, images_first=False) == ("text", 0, 1, 2)
    assert _parts("{{ row.left }}{{ image }}", {"left": "a.jpg"}, images=groups) == ("a.jpg", 0, 1, 2)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip))
def test_row_text_is_never_a_place_or_a_template(text: str) -> None:
    """Whatever a row says stays text: braces, marks of ours with another key, image tags."""
    for said in (text, f"{{{{ image }}}}{text}", f"\ue000{'0' * 32}:0\ue001{text}", f"<image>{text}"):
        assert _parts("{{ image }}|{{ q }}|", {"q": said}) == (0, f"|{said}|")


def test_row_text_that_holds_a_torn_mark_is_refused() -> None:
    """A mark cut by a filter would leave rubbish in the prompt: the row is refused instead."""
    with pytest.raises(RowError, match="place"):
        _parts("{% set x %}{{ image }}{% endset %}{{ x[:20] }} text")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "a"),
        (17, "17"),
        (0.5, "0.5"),
        (True, "true"),
        ([1, "ü"], '[1,"ü"]'),
        ({"a": {"b": 2}}, '{"a":{"b":2}}'),
        (10**30, str(10**30)),
    ],
)
def test_template_writes_values_by_one_rule(value: Any, text: str) -> None:
    """Text as it is, all else as JSON writes it; no escapes for web pages."""
    assert _parts("{{ v }}", {"v": value}) == (0, text)
    assert _parts("{{ v | tojson }}", {"v": "<&>"}) == (0, '"<&>"')


@pytest.mark.parametrize(
    "source",
    [
        "{{ n }}",
        "{{ missing }}",
        "{{ n ~ 'x' }}",
        "{{ 'x%s' | format(n) }}",
        "{{ m.inner }}",
        "{{ m }}",
        "{{ [n] | join(',') }}",
        "{{ none }}",
        "{{ n | string }}",
        "{{ inf }}",
        "{{ image ~ 'x' }}",
        "{{ image | upper }}",
        "{{ images[5] }} x",
        "{{ 1 / 0 }}",
        "{{ 'a' + 1 }}",
        "{{ ''.__class__ }}",
        "{{ range(10) }}",
        "{% for x in range(10000000) %}{% endfor %}",
        "   ",
        "{{ image }}",
    ],
)
def test_template_that_cannot_speak_refuses_the_row(source: str) -> None:
    """Null, missing fields, failing expressions and blank prompts are a bad row, never the word None."""
    with pytest.raises(RowError) as caught:
        _parts(source, {"n": None, "m": {"inner": None}, "inf": float("inf"), "q": 1})
    assert caught.value.code in {"template", "no_question"}


def test_template_names_the_field_that_is_null_or_missing() -> None:
    """The message says which."""
    with pytest.raises(RowError, match="'author' is null"):
        _parts("{{ meta.author }}", {"meta": {"author": None}})
    with pytest.raises(RowError, match="'color' is undefined"):
        _parts("{{ color }}", {"colour": 1})


def test_template_can_ask_whether_a_value_is_there() -> None:
    """Null is false, none, and caught by default."""
    row = {"n": None}
    assert _parts("{% if n %}x{% else %}no{% endif %}", row) == (0, "no")
    assert _parts("{{ n | default('n/a') }}", row) == (0, "n/a")
    assert _parts("{{ 'yes' if n is none else 'no' }}", row) == (0, "yes")


@pytest.mark.parametrize(
    "source", ["{{ x", "{% if %}", "{% include 'x' %}", "{% extends 'x' %}", "{{ x | nofilter }}", "{{ x | random }}"]
)
def test_text_that_is_no_template_is_refused_at_once(source: str) -> None:
    """Syntax, unknown filters, other files and chance are found before any row is read."""
    with pytest.raises(InputError):
        TemplateText(source, [], "t")


def test_templates_have_nothing_that_depends_on_chance() -> None:
    """Two machines render alike: no random filter, no lorem ipsum."""
    environment = template.environment()
    assert "random" not in environment.filters
    assert "lipsum" not in environment.globals


def test_text_inputs_named_like_ours_win() -> None:
    """A text input called image is that input; images are placed by their own names."""
    groups = {"photo": [0]}
    assert _parts("{{ image }}: {{ photo }}", {"image": "caption"}, groups, text_names=["image"]) == ("caption: ", 0)


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("{{ n }}", 18528528433540659662),
        (" {{ d }} ", {"a": [1, None]}),
        ("{{ d.a[0] }}", 1),
        ("{{ null }}", None),
        ("{{ gone }}", None),
        ("n={{ n }}", "n=18528528433540659662"),
        ("{{ null }} and {{ n }}", None),
        ("{{ n }}{{ n }}", "1852852843354065966218528528433540659662"),
        ("plain", "plain"),
        ("{{ t | upper }}", "X"),
    ],
)
def test_value_of_keeps_types_and_gives_null_for_nothing(source: str, value: Any) -> None:
    """An expression alone keeps its value; text around it makes text; what needs a missing value is null."""
    values = {"n": 18528528433540659662, "d": {"a": [1, None]}, "null": None, "t": "x"}
    assert value_of(source, without_null(values, "")) == value


def test_template_that_wants_more_than_all_memory_refuses_the_row() -> None:
    """A text of a hundred terabytes is that row's fault, not the program's."""
    with pytest.raises(RowError, match="MemoryError"):
        _parts("{{ 'x' * n }}", {"n": 10**14})
