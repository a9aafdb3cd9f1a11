"""A pipeline file as a file: strict YAML, checked against the published schema, every fault told at once.

The schema (data/schemas/pipeline.schema.json, also in docs/schemas) is the one rule of what a file may hold.
This module needs PyYAML and jsonschema and is loaded only where a pipeline file is read.
"""

from __future__ import annotations

import difflib
import functools
import json
from importlib import resources
from typing import TYPE_CHECKING, Any

import jsonschema
import yaml

from vlmbatch.errors import InputError, Problem
from vlmbatch.inputs.base import describe
from vlmbatch.inputs.strict import unwritable

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHOWN = 200
_MAX_NODES = 100_000
"""Values in a pipeline file: aliases of aliases can make billions of a few lines."""


class _StrictLoader(yaml.SafeLoader):
    """YAML without tags, in which no key stands twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for at, key in enumerate(keys):
            if key in keys[:at]:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} stands twice", node.start_mark)
        return super().construct_mapping(node, deep=deep)


def read(data: bytes, where: str) -> dict[str, Any]:
    """Parse a pipeline file.

    Args:
        data: YAML, or JSON.
        where: How messages name it.

    Raises:
        InputError: It is no YAML, or not what the schema allows; every fault is listed.
    """
    try:
        value = yaml.load(data, _StrictLoader)  # noqa: S506  (a safe loader, with one rule more)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}: " if mark else ""
        raise InputError(f"{where}: {place}{error.problem or 'not YAML'}", hint="mend the file") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{where}: not YAML ({type(error).__name__})", hint="save it as UTF-8 YAML") from None
    problems = _unwritable(value) or list(_faults(value))
    if problems:
        raise InputError(
            f"{where}: {len(problems)} fault(s) in the pipeline file",
            hint="docs/how-to/pipeline-file.md says what each key means",
            problems=problems,
        )
    checked: dict[str, Any] = value
    return checked


def _unwritable(value: Any) -> list[Problem]:
    """Return what JSON could not hold: keys that are no text, NaN, dates; and structures too large to look at."""
    problems: list[Problem] = []
    todo, count = [value], 0
    while todo:
        one = todo.pop()
        count += 1
        if count > _MAX_NODES:
            return [Problem("too_large", f"more than {_MAX_NODES:,} values, or an alias inside itself")]
        if isinstance(one, dict):
            problems += [
                Problem("bad_key", f"the key {describe(key)} is no text; put it in quotes")
                for key in one
                if not isinstance(key, str) or unwritable(key)
            ]
            todo += one.values()
        elif isinstance(one, list):
            todo += one
        elif fault := unwritable(one):
            problems.append(Problem("not_json", fault))
    return problems


@functools.lru_cache(maxsize=1)
def schema() -> dict[str, Any]:
    """Return the published schema."""
    text = (resources.files("vlmbatch") / "data" / "schemas" / "pipeline.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def _faults(value: Any) -> Iterator[Problem]:
    validator = jsonschema.Draft202012Validator(schema())
    for error in sorted(validator.iter_errors(value), key=lambda error: list(map(str, error.absolute_path))):
        yield from _explain(error)


def _explain(error: jsonschema.ValidationError) -> Iterator[Problem]:
    """Say what is wrong in our words: unknown keys with the near name, refused ones with the reason."""
    place = _dotted(error.absolute_path)
    rule = error.schema if isinstance(error.schema, dict) else {}
    allowed: Any = error.validator_value
    instance: Any = error.instance
    refused = rule.get("x-refused", {})
    if error.validator == "additionalProperties" and isinstance(instance, dict):
        known = rule["properties"]
        for key in instance:
            if key not in known:
                yield _unknown(key, f"{place}.{key}" if place else key, list(known), refused)
    elif error.validator == "required":
        missing = [key for key in allowed if key not in instance]
        message = f"lacks {', '.join(map(repr, missing))}"
        if error.message.startswith(repr(missing[0])):  # one error comes for each missing key: say it once
            yield Problem("missing_key", message, place)
    elif error.validator == "enum":
        yield _not_among(instance, place, allowed, refused)
    elif error.validator == "anyOf" and "description" in rule:
        yield Problem("bad_value", f"{describe(instance)}: {rule['description']}", place)
    else:
        yield Problem("bad_value", _shortened(error.message), place)


def _unknown(key: str, place: str, known: list[str], refused: dict[str, str]) -> Problem:
    if key in refused:
        return Problem("refused_key", f"not taken: {refused[key]}", place)
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known)}"
    return Problem("unknown_key", f"unknown key; {hint}", place)


def _not_among(value: Any, place: str, known: list[Any], refused: dict[str, str]) -> Problem:
    if isinstance(value, str) and value in refused:
        return Problem("refused_value", f"{value!r} is not taken: {refused[value]}", place)
    same = {str(one).lower(): one for one in known}
    near = difflib.get_close_matches(str(value).lower(), same, n=1, cutoff=0.5)
    hint = f"did you mean {same[near[0]]!r}?" if near else f"known here: {', '.join(map(str, known))}"
    return Problem("bad_value", f"{describe(value)} is not known; {hint}", place)


def _shortened(message: str) -> str:
    return message if len(message) <= _SHOWN else f"{message[:_SHOWN]}…"


def _dotted(path: Any) -> str:
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text
