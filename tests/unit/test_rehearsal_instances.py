"""Values made to fit a schema: they fit, for any schema of the kind that providers take."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmbatch.rehearsal.instances import instance

FACTS = {"format": "PNG", "width": 640, "height": 480, "colour": "red"}
NAMES = st.sampled_from(["width", "height", "colour", "format", "total", "ünï"])


def _leaves() -> st.SearchStrategy[dict[str, Any]]:
    bounds = st.tuples(st.integers(-50, 50), st.integers(0, 50))
    return st.one_of(
        st.just({"type": "boolean"}),
        st.just({"type": "null"}),
        st.just({"type": "string"}),
        st.just({}),
        st.integers(0, 20).map(lambda n: {"type": "string", "minLength": n}),
        st.integers(0, 20).map(lambda n: {"type": "string", "maxLength": n}),
        bounds.map(lambda b: {"type": "integer", "minimum": b[0], "maximum": b[0] + b[1]}),
        bounds.map(lambda b: {"type": "number", "minimum": b[0], "maximum": b[0] + b[1]}),
        st.integers(-5, 5).map(lambda n: {"type": "integer", "exclusiveMinimum": n}),
        st.integers(-5, 5).map(lambda n: {"type": "integer", "exclusiveMaximum": n}),
        st.lists(st.sampled_from(["a", "b", 1, None]), min_size=1).map(lambda values: {"enum": values}),
        st.sampled_from(["x", 3, None, False]).map(lambda value: {"const": value}),
        st.just({"type": ["string", "null"]}),
    )


def _grown(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.one_of(
        st.dictionaries(NAMES, inner, max_size=4).map(
            lambda found: {
                "type": "object",
                "properties": found,
                "required": sorted(found),
                "additionalProperties": False,
            }
        ),
        st.tuples(inner, st.integers(0, 3)).map(lambda t: {"type": "array", "items": t[0], "minItems": t[1]}),
        st.lists(inner, min_size=1, max_size=3).map(lambda ways: {"anyOf": ways}),
    )


@given(schema=st.recursive(_leaves(), _grown, max_leaves=12), seed=st.text("0123456789abcdef", min_size=8, max_size=8))
def test_instance_fits_its_schema(schema: dict[str, Any], seed: str) -> None:
    """Whatever is made for a schema validates against it."""
    jsonschema.validate(instance(schema, FACTS, seed), schema)


def test_instance_follows_local_references() -> None:
    """References into $defs are followed, and a recursive one comes to an end."""
    schema = {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "colour": {"type": "string"},
                    "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                },
                "required": ["colour"],
            }
        },
        "$ref": "#/$defs/node",
    }
    value = instance(schema, FACTS, "0" * 8)
    jsonschema.validate(value, schema)
    assert value["colour"] == "red"


def test_instance_takes_values_from_the_picture() -> None:
    """Properties named like a fact get it, spelling of colour included."""
    names = {"width": {"type": "integer"}, "color": {"type": "string"}, "format": {"type": "STRING"}}
    assert instance({"type": "OBJECT", "properties": names}, FACTS, "0" * 8) == {
        "width": 640,
        "color": "red",
        "format": "PNG",
    }


def test_choice_among_values_differs_by_picture() -> None:
    """An enum is not answered with one label for all."""
    schema = {"enum": ["cat", "dog", "bird", "fish"]}
    assert len({instance(schema, FACTS, f"{seed:08x}") for seed in range(40)}) > 1


@pytest.mark.parametrize(
    "schema", [{"type": "object", "required": ["a"]}, {"$ref": "#/nowhere"}, {"allOf": [{"type": "integer"}]}]
)
def test_odd_schema_gives_a_value_and_no_traceback(schema: dict[str, Any]) -> None:
    """Schemas at the edge of what is covered still get an answer that fits."""
    value = instance(schema, FACTS, "0" * 8)
    if "$ref" not in schema:
        jsonschema.validate(value, schema)
