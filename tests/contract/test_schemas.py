"""The published schemas: described, equal to the code's own shapes, and kept by everything that is written."""

from __future__ import annotations

import copy
import json
import types
import typing
from pathlib import Path
from typing import Any, Literal, NotRequired, get_args, get_origin, get_type_hints, is_typeddict

import pytest
from jsonschema import Draft202012Validator

from tests.contract import schemas, written
from vlmbatch import records
from vlmbatch.batch.carrier import UPLOAD_SCHEMA
from vlmbatch.stages.archive.redacting import REDACTED_SCHEMA

ROOT = Path(__file__).resolve().parents[2]
NAMES = schemas.NAMES
UNITLESS = {"boolean", "string", "object", "array", "null"}
SHAPES: dict[str, tuple[type, str]] = {
    "run": (records.RunInfo, ""),
    "manifest": (records.ManifestHead, ""),
    "attempt": (records.Attempt, ""),
    "record": (records.Record, ""),
    "run file": (records.FileRef, "file"),
    "run shard": (records.ShardRef, "shard"),
    "manifest image": (records.ImageRecord, "image"),
    "manifest sent": (records.SentImage, "sent"),
    "attempt error": (records.ErrorInfo, "error"),
    "attempt try": (records.Try, "try"),
    "record usage": (records.Usage, "usage"),
    "record superseded": (records.Superseded, "superseded"),
    "record review": (records.Review, "review"),
}
"""Where the shapes of records.py stand in the schemas: the schema's name and, for a part, its name in ``$defs``."""


def _ids() -> set[str]:
    ids = {value for name, value in vars(records).items() if name.endswith("_SCHEMA")}
    return ids | {REDACTED_SCHEMA, UPLOAD_SCHEMA}


# --- the schemas themselves ----------------------------------------------------------------------------------


def test_every_schema_id_has_its_file() -> None:
    """Each id of the code has one schema, whose $id and constant say the same name and major version."""
    known = {schemas.load(name)["$id"].replace("urn:vlmbatch:", "vlmbatch.").replace(":1", "/1") for name in NAMES}
    assert known == _ids()
    for name in NAMES:
        constant = schemas.load(name)["properties"].get("schema", {}).get("const", f"vlmbatch.{name}/1")
        assert constant == f"vlmbatch.{name}/1"


@pytest.mark.parametrize("name", NAMES)
def test_schema_is_valid_and_published_byte_for_byte(name: str) -> None:
    """A schema is one of draft 2020-12, and docs/schemas holds the same bytes as the package."""
    Draft202012Validator.check_schema(schemas.load(name))
    file = f"{name}.v1.json"
    assert (schemas.FOLDER / file).read_bytes() == (ROOT / "docs" / "schemas" / file).read_bytes()


def test_schemas_are_open() -> None:
    """No published schema closes an object: a field that a later version adds breaks no reader's check."""
    closed = [
        f"{name}{place}"
        for name in NAMES
        for place, schema in schemas.walk(schemas.load(name))
        if schema.get("additionalProperties") is False or "unevaluatedProperties" in schema
    ]
    assert closed == []


def test_every_property_is_described_with_its_unit() -> None:
    """Each property says what it is; each number says in what it counts."""
    lacking = []
    for name in NAMES:
        for place, schema in schemas.walk(schemas.load(name)):
            for key, inner in schema.get("properties", {}).items():
                if not inner.get("description", "").endswith("."):
                    lacking.append(f"{name}{place} {key}: no description")
            types_ = schema.get("type", [])
            if set([types_] if isinstance(types_, str) else types_) - UNITLESS and "x-unit" not in schema:
                lacking.append(f"{name}{place}: a number without a unit")
    assert lacking == []


def test_shapes_of_one_name_are_equal_everywhere() -> None:
    """What several schemas hold under one name in $defs is one and the same."""
    seen: dict[str, Any] = {}
    for name in NAMES:
        for key, shape in schemas.load(name).get("$defs", {}).items():
            assert seen.setdefault(key, shape) == shape, f"{name}: $defs/{key} differs: python -m tests.docs.generate"


def test_estimate_as_json_has_the_fields_of_its_line() -> None:
    """Estimate --json tells the line of estimates.jsonl, field by field, but for what the envelope says already."""
    line = schemas.load("estimate")["properties"]
    told = schemas.load("result")["$defs"]["estimate"]["properties"]
    assert {key: value for key, value in line.items() if key not in {"schema", "tool"}}.items() <= told.items()


# --- the code's own shapes -----------------------------------------------------------------------------------


def _types(hint: Any) -> set[str]:
    """Return the JSON types of an annotation; empty where it is anything."""
    origin = get_origin(hint)
    if origin in {typing.Union, types.UnionType}:
        return set().union(*(_types(one) for one in get_args(hint)))
    if origin is Literal:
        return set().union(*(_types(type(one)) for one in get_args(hint)))
    if origin in {list, dict} or is_typeddict(hint):
        return {"array" if origin is list else "object"}
    plain = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
    return set() if hint is Any else {plain[hint]}


def _said(schema: dict[str, Any], whole: dict[str, Any]) -> set[str]:
    """Return the JSON types that a schema allows; empty where it is anything."""
    if "$ref" in schema:
        return _said(whole["$defs"][schema["$ref"].removeprefix("#/$defs/")], whole)
    if "anyOf" in schema:
        return set().union(*(_said(one, whole) for one in schema["anyOf"]))
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if values is not None:
        return {{"str": "string", "int": "integer", "NoneType": "null"}[type(value).__name__] for value in values}
    found = schema.get("type", [])
    return {found} if isinstance(found, str) else set(found)


@pytest.mark.parametrize("name", SHAPES)
def test_schema_has_the_fields_of_the_typed_dict(name: str) -> None:
    """Keys, which of them may be absent, and their types are those of records.py."""
    shape, part = SHAPES[name]
    whole = schemas.load(name.split(maxsplit=1)[0])
    schema = whole["$defs"][part] if part else whole
    hints = get_type_hints(shape, include_extras=True)
    if shape is records.ManifestHead:
        hints["row"] = dict[str, Any]  # cut off as bytes before the line is parsed; it stands in the file all the same
    assert set(schema["properties"]) == set(hints)
    assert set(schema["required"]) == {key for key, hint in hints.items() if get_origin(hint) is not NotRequired}
    for key, hint in get_type_hints(shape).items():
        wanted, said = _types(hint), _said(schema["properties"][key], whole)
        if wanted:
            assert said == wanted, key


def test_statuses_and_channels_are_those_of_the_code() -> None:
    """The closed lists of the schemas are the code's."""
    record = schemas.load("record")["properties"]
    assert record["status"]["enum"] == [status.value for status in records.Status]
    assert set(record["channel"]["enum"]) == {*get_args(records.Channel), None}
    counts = schemas.load("summary")["$defs"]["counts"]
    assert list(counts["properties"]) == [status.value for status in records.Status]
    errors = schemas.load("attempt")["$defs"]["error"]["properties"]["type"]["description"]
    assert all(f"`{kind}`" in errors for kind in records.ErrorType)


# --- what is written -----------------------------------------------------------------------------------------

UNSEEN = {
    "attempt/properties/response_base64": "an answer in no encoding; tests/unit/test_realtime_parts.py",
    "attempt/properties/session/properties/server_version": "told by servers that the rehearsal does not play",
}
"""What the scenarios do not bring about, and why."""


def test_everything_written_is_described_and_nothing_else_is(tmp_path: Path) -> None:
    """No file and no output holds a field that its schema lacks, and each field that a schema has is written."""
    seen: set[str] = set()
    for scenario, write in written.SCENARIOS.items():
        (tmp_path / scenario).mkdir()
        made = write(tmp_path / scenario)
        told = [("result", value, f"--json of {value['command']}") for value in made.told]
        for name, value, where in [*told, *(one for run in made.runs for one in schemas.documents(run))]:
            schemas.check(value, name, f"{scenario}: {where}")
            seen |= schemas.met(value, name)
    lacking = set().union(*map(schemas.described, NAMES)) - seen - UNSEEN.keys()
    assert not lacking, "described, and written by nobody: " + ", ".join(sorted(lacking))


def test_undocumented_field_is_found(tmp_path: Path) -> None:
    """The strict copies have teeth: one more key in an object of ours is a fault, and none for the published schema."""
    made = written.refused(tmp_path)
    info = json.loads((made.runs[0] / "run.json").read_bytes())
    for name, value, inner in [("run", info, "request"), ("run", info, "source"), ("result", made.told[0], "data")]:
        for path in ([], [inner]):
            fuller = copy.deepcopy(value)
            place = fuller
            for key in path:
                place = place[key]
            place["surprise"] = 1
            assert schemas.faults(value, name) == []
            assert schemas.faults(fuller, name) != []
            assert schemas.faults(fuller, name, is_strict=False) == []
