"""The published schemas, and a strict copy of each: what we write may hold nothing that they do not describe.

:func:`check_run_folder` is for any test that has made a run folder; :func:`check_result` for any that has read the
output of ``--json``.
"""

from __future__ import annotations

import json
import os
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonschema import Draft202012Validator, FormatChecker
from referencing import Registry, Resource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jsonschema import ValidationError

FOLDER = Path(__file__).resolve().parents[2] / "vlmbatch" / "data" / "schemas"
NAMES = sorted(path.name.removesuffix(".v1.json") for path in FOLDER.glob("*.v1.json"))
"""Names of the schemas of files; pipeline.schema.json describes what users write, and is closed as it is."""

_SUBSCHEMAS = ("items", "additionalProperties")
_SUBSCHEMA_MAPS = ("properties", "$defs")
_SUBSCHEMA_LISTS = ("anyOf",)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z")
_RAW = re.compile(r"(rehearsal-)?batch-.*\.(output|error|results)\.jsonl")
_formats = FormatChecker(formats=())


@_formats.checks("date-time")
def _is_time(value: object) -> bool:
    return not isinstance(value, str) or _TIME.fullmatch(value) is not None


@cache
def load(name: str) -> dict[str, Any]:
    """Return a published schema."""
    value: dict[str, Any] = json.loads((FOLDER / f"{name}.v1.json").read_text(encoding="utf-8"))
    return value


def walk(schema: dict[str, Any], place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every schema inside a schema, itself first, with its place; conditions (``allOf``) are let be."""
    yield place, schema
    for key in _SUBSCHEMAS:
        if isinstance(schema.get(key), dict):
            yield from walk(schema[key], f"{place}/{key}")
    for key in _SUBSCHEMA_MAPS:
        for name, inner in schema.get(key, {}).items():
            yield from walk(inner, f"{place}/{key}/{name}")
    for key in _SUBSCHEMA_LISTS:
        for number, inner in enumerate(schema.get(key, [])):
            yield from walk(inner, f"{place}/{key}/{number}")


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a copy in which every object of ours is closed; free objects (a row, an answer) and maps stay open."""
    copy: dict[str, Any] = json.loads(json.dumps(schema))
    for _, inner in walk(copy):
        if "properties" in inner:
            inner.setdefault("additionalProperties", False)
    return copy


@cache
def validator(name: str, *, is_strict: bool = True) -> Draft202012Validator:
    """Return the validator of one schema; references to the others are settled among copies of the same kind."""
    schemas = [strict(load(one)) if is_strict else load(one) for one in NAMES]
    registry = Registry().with_resources([(one["$id"], Resource.from_contents(one)) for one in schemas])
    whole = next(one for one in schemas if one["$id"] == f"urn:vlmbatch:{name}:1")
    return Draft202012Validator(whole, registry=registry, format_checker=_formats)


def faults(value: Any, name: str, *, is_strict: bool = True) -> list[str]:
    """Return where a value breaks a schema, one sentence each."""
    found = map(_cause, validator(name, is_strict=is_strict).iter_errors(value))
    return [f"{error.json_path}: {error.message[:300]}" for error in found]


def _cause(error: ValidationError) -> ValidationError:
    """Return what is behind an error of a choice: of the schemas that did not fit, the one that came farthest."""
    while error.context:
        error = max(error.context, key=lambda one: (len(one.absolute_path), one.validator != "type"))
    return error


def described(name: str) -> set[str]:
    """Return the place of every property that a schema describes; a shape in $defs is one, wherever it stands."""
    return {
        _place(name, f"{place}/properties/{key}")
        for place, schema in walk(load(name))
        for key in schema.get("properties", {})
    }


def _place(name: str, place: str) -> str:
    return place if place.startswith("/$defs/") else name + place


def met(value: Any, name: str) -> set[str]:
    """Return the places of the properties that a value has."""
    return set(_met(value, load(name), name, ""))


def _met(value: Any, schema: dict[str, Any], name: str, place: str) -> Iterator[str]:
    reference = schema.get("$ref", "")
    if reference.startswith("#/$defs/"):
        key = reference.removeprefix("#/$defs/")
        yield from _met(value, load(name)["$defs"][key], name, f"/$defs/{key}")
    elif reference:
        yield from met(value, reference.split(":")[2])
    for number, inner in enumerate(schema.get("anyOf", [])):
        yield from _met(value, inner, name, f"{place}/anyOf/{number}")
    for rule in schema.get("allOf", []):
        if Draft202012Validator(rule["if"]).is_valid(value):
            yield from _met(value, rule["then"], name, f"{place}/then")
    for key in value if isinstance(value, dict) else ():
        if key in schema.get("properties", {}):
            yield _place(name, f"{place}/properties/{key}")
    for inner, at, one in _members(value, schema):
        yield from _met(one, inner, name, place + at)


def _members(value: Any, schema: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Yield what a value holds, each with the schema that describes it and that one's place."""
    if isinstance(value, list):
        yield from ((schema.get("items", {}), "/items", one) for one in value)
    if isinstance(value, dict):
        known, others = schema.get("properties", {}), schema.get("additionalProperties", {})
        for key, one in value.items():
            yield (known[key], f"/properties/{key}", one) if key in known else (others, "/additionalProperties", one)


def check(value: Any, name: str, where: str = "") -> None:
    """Fail where a value is not what its schema describes, or holds more than that."""
    found = faults(value, name)
    assert not found, f"{where or name} is not as urn:vlmbatch:{name}:1 has it:\n" + "\n".join(found)


def check_result(value: Any) -> None:
    """Fail where the output of ``--json`` is not what its schema describes."""
    check(value, "result", f"--json of {value.get('command')!r}")


def check_run_folder(folder: Path | str) -> None:
    """Fail where a file of a run folder is not what its schema describes."""
    for name, value, where in documents(folder):
        check(value, name, where)


def documents(folder: Path | str) -> Iterator[tuple[str, Any, str]]:
    """Yield everything in a run folder that has a schema: the schema's name, the value, and where it stands.

    Lines of append-only files that are no JSON (a crash tore them) are passed over, as every reader does.
    """
    for path, name, is_appended in _files(Path(folder)):
        data = path.read_bytes()
        where = os.path.relpath(path, folder)
        lines = data.split(b"\n") if path.suffix == ".jsonl" else [data]
        for number, line in enumerate(lines, start=1):
            value = _parse(line, is_appended=is_appended) if line.strip() else None
            if value is not None:
                yield name, value, f"{where}:{number}"


def _files(folder: Path) -> Iterator[tuple[Path, str, bool]]:
    """Yield the files that have a schema: path, name of the schema, whether a line may be torn."""
    whole = {"run.json": "run", "summary.json": "summary", "REDACTED.json": "redacted"}
    uploads = folder.with_name(f"{folder.name}.uploads.jsonl")
    if uploads.exists():
        yield uploads, "upload", True
    frozen = {"manifest.jsonl": "manifest", "rejected.jsonl": "rejected", "merged.jsonl": "record"}
    appended = {"estimates.jsonl": "estimate", "batches.jsonl": "batch"}
    for path in sorted(folder.iterdir()):
        if path.name in appended:
            yield path, appended[path.name], True
        elif path.name in whole or path.name in frozen:
            yield path, {**whole, **frozen}[path.name], False
        elif path.name.endswith(".summary.json"):
            yield path, "summary", False
        elif path.name.startswith("progress") and path.suffix == ".json":
            yield path, "progress", False
    for path in sorted((folder / "results").glob("*.jsonl")):
        if not _RAW.fullmatch(path.name):
            yield path, "attempt", True


def _parse(line: bytes, *, is_appended: bool) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        if is_appended:
            return None
        raise
