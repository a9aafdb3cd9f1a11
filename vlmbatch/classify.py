"""What became of an answer: one pure function from what was read to one of the nine statuses.

No provider's name stands in here. The rules are asked in this order, and the first that holds names the one cause:
the error code, the finish reason, the output tokens against the frozen limit, the text, the JSON.
"""

from __future__ import annotations

import json
import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, assert_never

from vlmbatch import jsonl
from vlmbatch.records import MODEL_ANSWERS, Asked, Ended, ErrorInfo, Reading, Status, Verdict

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

MAX_DEPTH = 200
"""Levels of nesting that an answer may have; deeper ones are a model's loop, and JSON writers choke on them."""

_JSON_SPACE = " \t\r\n"
_FENCE = "```"
_FENCE_INFO = re.compile(r"[A-Za-z0-9_+-]*")
_SHOWN = 300


def classify(reading: Reading, asked: Asked) -> Verdict:
    """Return the status of an answer, its cause, and the parsed JSON where JSON was asked for and came.

    Args:
        reading: The answer as the provider's adapter read it.
        asked: What the frozen request asked for.
    """
    if reading.error is not None and reading.refusal is None:
        return _failure(reading.error)
    if reading.refusal is not None:
        return Verdict(Status.REFUSAL, _shorten(reading.refusal))
    match reading.ended:
        case Ended.FILTER:
            return Verdict(Status.REFUSAL, reading.finish_reason)
        case Ended.ERROR:
            return Verdict(Status.HTTP_ERROR, f"the server gave up (finish reason {reading.finish_reason})")
        case Ended.CAP:
            return _cut(reading, f"finish reason {reading.finish_reason}")
        case Ended.STOP | Ended.TOOL:
            return _complete(reading, asked)
        case _:
            assert_never(reading.ended)


def rank(status: Status) -> int:
    """Return how firm a status stands in the overlay: a lower rank never displaces a higher one.

    3 for ok, 2 for any other answer of the model, 1 for a failure, 0 for no attempt at all.
    """
    if status is Status.OK:
        return 3
    if status in MODEL_ANSWERS:
        return 2
    return 0 if status is Status.MISSING else 1


def _failure(error: ErrorInfo) -> Verdict:
    """Tell an answer that was an error from no answer at all."""
    code = error.get("code")
    cause = f"{code}: {error['message']}" if code else error["message"]
    if error["status_code"] is None:
        return Verdict(Status.NETWORK_ERROR, _shorten(cause))
    return Verdict(Status.HTTP_ERROR, _shorten(f"HTTP {error['status_code']} {cause}"))


def _cut(reading: Reading, cause: str) -> Verdict:
    """Name the status of an answer that the output limit ended."""
    if reading.text is not None and reading.text.strip():
        return Verdict(Status.TRUNCATED, cause)
    return Verdict(Status.EMPTY_AT_CAP, f"{cause}; raise the output limit in a new run")


def _complete(reading: Reading, asked: Asked) -> Verdict:
    """Name the status of an answer whose finish reason holds nothing against it."""
    spent = reading.usage["output_tokens"]
    if asked.max_tokens is not None and spent is not None and spent >= asked.max_tokens:
        return _cut(reading, f"{spent} output tokens, the limit is {asked.max_tokens}")
    text = reading.text
    if text is None or not text.strip():
        return Verdict(Status.EMPTY, _why_empty(reading))
    if not asked.json and asked.schema is None:
        return Verdict(Status.OK)
    return _json_verdict(text, asked.schema)


def _why_empty(reading: Reading) -> str:
    if "no_choices" in reading.notes:
        return "no choices"
    if reading.ended is Ended.TOOL:
        return f"a tool call instead of an answer (finish reason {reading.finish_reason})"
    return f"no text (finish reason {reading.finish_reason})"


# --- JSON ----------------------------------------------------------------------------------------------------


def _json_verdict(text: str, schema: dict[str, Any] | None) -> Verdict:
    notes: list[str] = []
    body = text.strip(_JSON_SPACE)
    inside = _without_fence(body)
    if inside is not None:
        notes.append("code_fence")
        body = inside
    try:
        value = _parse(body, notes)
    except ValueError as error:
        return Verdict(Status.INVALID_JSON, f"not JSON: {error}", notes=tuple(notes))
    misfit = None if schema is None else _misfit(value, schema)
    if misfit is not None:
        return Verdict(Status.INVALID_JSON, misfit, notes=tuple(notes))
    return Verdict(Status.OK, json=value, notes=tuple(notes))


def _without_fence(text: str) -> str | None:
    """Return what stands inside one code fence around the whole text, None where there is no such fence."""
    if len(text) < 2 * len(_FENCE) or not text.startswith(_FENCE) or not text.endswith(_FENCE):
        return None
    inside = text[len(_FENCE) : -len(_FENCE)]
    info, line_end, rest = inside.partition("\n")
    if line_end and _FENCE_INFO.fullmatch(info.strip()):
        return rest
    return inside.removeprefix("json")


def _parse(text: str, notes: list[str]) -> Any:
    """Parse one JSON value and nothing beside it.

    The standard library's parser, not the fast one: it keeps the digits of big integers. Of a key that stands twice
    in an object the last value counts, as in most parsers, and the doubling is noted.

    Raises:
        ValueError: It is no JSON value, or one that no JSON file of ours could hold (NaN, 1e999, too deep).
    """

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(items)
        if len(value) != len(items) and "duplicate_keys" not in notes:
            notes.append("duplicate_keys")
        return value

    try:
        value = json.loads(text, object_pairs_hook=pairs, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if text.count("[") + text.count("{") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise ValueError("nested too deeply")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:20]} is out of range")
    return number


def _depth(value: Any) -> int:
    """Return the levels of nesting, without recursion: 0 for a plain value, 1 for a list of such."""
    nodes, depth = [value], 0
    while any(isinstance(node, dict | list) for node in nodes):
        nodes = [child for node in nodes for child in _children(node)]
        depth += 1
    return depth


def _children(node: Any) -> list[Any]:
    if isinstance(node, dict):
        return list(node.values())
    return node if isinstance(node, list) else []


# --- JSON Schema ---------------------------------------------------------------------------------------------


def schema_problem(schema: dict[str, Any]) -> str | None:
    """Return what is wrong with a JSON Schema that answers are to fit, None where it can be used.

    The draft is the one that ``$schema`` names, else 2020-12. Only references inside the schema itself are allowed:
    nothing is fetched.
    """
    _, problem = _validator(jsonl.dumps(schema, sort_keys=True))
    return problem


@lru_cache(maxsize=16)
def _validator(schema: bytes) -> tuple[Validator, str | None]:
    """Return the validator of a schema given as JSON, and what is wrong with it."""
    import jsonschema
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import EMPTY_REGISTRY

    value = jsonl.loads(schema)
    kind = jsonschema.validators.validator_for(value, default=jsonschema.Draft202012Validator)
    validator = kind(value, registry=EMPTY_REGISTRY)
    try:
        validator.check_schema(value)
    except jsonschema.SchemaError as error:
        return validator, f"{error.json_path}: {_shorten(error.message)}"
    except RecursionError:
        return validator, "nested too deeply"
    for reference in _references(value):
        if not reference.startswith("#"):
            return validator, f"$ref {reference}: only references inside the schema itself (#/...) are followed"
        try:
            list(validator.evolve(schema={"$ref": reference}).iter_errors(None))
        except Unresolvable:
            return validator, f"$ref {reference}: there is no such place in the schema"
        except RecursionError:
            return validator, f"$ref {reference}: leads back to itself"
    return validator, None


def _references(schema: Any) -> list[str]:
    nodes, found = [schema], []
    while nodes:
        found += [node["$ref"] for node in nodes if isinstance(node, dict) and isinstance(node.get("$ref"), str)]
        nodes = [child for node in nodes for child in _children(node)]
    return found


def _misfit(value: Any, schema: dict[str, Any]) -> str | None:
    """Return where a value breaks a schema, None where it fits."""
    from jsonschema.exceptions import best_match

    validator, problem = _validator(jsonl.dumps(schema, sort_keys=True))
    if problem is not None:
        return f"the schema cannot be applied: {problem}"
    try:
        error = best_match(validator.iter_errors(value))
    except RecursionError:
        return "the schema cannot be applied: it leads back to itself"
    return None if error is None else f"breaks the schema at {error.json_path}: {_shorten(error.message)}"


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
