"""What adapters share: addresses, the user's extra fields, JSON Schema subsets, and small readers of untrusted JSON."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from vlmbatch.errors import InputError, Problem
from vlmbatch.records import Ended

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from vlmbatch.providers.base import Ask
    from vlmbatch.records import Usage

DETAILS = ("auto", "low", "high", "original")
_MOST = 1 << 53
"""The most that every reader of JSON holds exactly (RFC 8259, section 6); no request has so many tokens."""

_VERSION = re.compile(r"v\d+((alpha|beta)\d*)?")
_ENDPOINTS = (("chat", "completions"), ("responses",), ("messages",))
"""Ends of whole endpoints that users paste where a base URL is asked for."""
_THINK_TAGS = (("<think>", "</think>"), ("◁think▷", "◁/think▷"))
"""Around thoughts in plain text; the second pair is Kimi-VL's."""


# --- addresses -----------------------------------------------------------------------------------------------


def join_url(base_url: str, path: str) -> str:
    """Put a path behind a base URL, keeping one version segment: the base's where it has one.

    ``http://h/v1`` and ``http://h`` give the same for ``/v1/chat/completions``, and so does a base that is the whole
    endpoint already: its end is left off, for whatever path is wanted. A query of either is kept.

    Raises:
        InputError: The base URL is empty or no http address.
    """
    if not base_url:
        raise InputError("there is no base URL", hint="give --base-url, such as http://127.0.0.1:8000/v1")
    base = urlsplit(base_url)
    if base.scheme not in {"http", "https"} or not base.netloc:
        raise InputError(f"{base_url!r} is no base URL", hint="give one such as http://127.0.0.1:8000/v1")
    target, _, query = path.partition("?")
    have = [segment for segment in base.path.split("/") if segment]
    want = [segment for segment in target.split("/") if segment]
    if want and _VERSION.fullmatch(want[0]) and any(_VERSION.fullmatch(segment) for segment in have):
        want = want[1:]
    have = _without_endpoint(have, want)
    queries = "&".join(part for part in (base.query, query) if part)
    return urlunsplit((base.scheme, base.netloc, "/" + "/".join(have + want), queries, ""))


def _without_endpoint(have: list[str], want: list[str]) -> list[str]:
    """Leave off what makes a base's path a whole endpoint: the wanted one, or another of the same provider."""
    for end in (want, *map(list, _ENDPOINTS)):
        if end and have[-len(end) :] == end:
            return have[: -len(end)]
    is_call = bool(have) and have[-1].endswith(":generateContent")
    return have[:-2] if is_call else have  # models/MODEL:generateContent


def is_own_host(base_url: str, default_base_url: str) -> bool:
    """Tell whether a base URL leads to a provider's own address (a regional name under it counts).

    Empty means the default; a provider without an address of its own (a server of the user's) is always direct.
    """
    if not base_url or not default_base_url:
        return True
    given, own = urlsplit(base_url), urlsplit(default_base_url)
    host, own_host = given.hostname or "", own.hostname or ""
    return given.scheme == own.scheme and (host == own_host or host.endswith(f".{own_host}"))


# --- options -------------------------------------------------------------------------------------------------


def no_such_option(provider: str, option: str, instead: str) -> Problem:
    """Return the problem of an option that a provider has no field for."""
    return Problem("option", f"{provider} has no field for it; {instead}", where=option)


def check_detail(ask: Ask) -> list[Problem]:
    """Check that ``detail`` is a known word."""
    if ask.detail is None or ask.detail in DETAILS:
        return []
    return [Problem("option", f"{ask.detail!r} is none of {', '.join(DETAILS)}", where="--detail")]


def check_path(ask: Ask, end: str, what: str) -> list[Problem]:
    """Check that the endpoint's path, where the user gives one, is one of this wire format: it ends in ``end``."""
    if not ask.url or ask.url.endswith(end):
        return []
    return [Problem("option", f"{ask.url!r} is no path of {what}, which ends in {end}", where="--url")]


def check_extra(ask: Ask, refused: Mapping[str, str]) -> list[Problem]:
    """Check the user's extra fields: some would make the frozen line mean another thing than run.json says.

    Args:
        ask: What is asked.
        refused: Why, by the field's name.
    """
    problems = [
        Problem("extra_body", f"{key!r}: {why}", where="--extra-body")
        for key, why in refused.items()
        if key in ask.extra_body
    ]
    if ask.extra_body.get("n", 1) != 1:
        problems.append(Problem("extra_body", "'n': one answer is kept of each request", where="--extra-body"))
    return problems


def merge_extra(body: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Lay the user's extra fields over a body's top level: each replaces what stands there, whole."""
    return {**body, **extra}


# --- JSON Schema subsets of structured output ----------------------------------------------------------------


_MAPS_OF_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_LISTS_OF_SCHEMAS = frozenset({"anyOf", "allOf", "oneOf", "prefixItems"})
_SCHEMAS = frozenset({"items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"})


def iter_schemas(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a schema and every schema inside it, each with its path."""
    waiting: list[tuple[str, Any]] = [("$", schema)]
    while waiting:
        path, node = waiting.pop(0)
        if not isinstance(node, dict):
            continue
        yield path, node
        for key, value in node.items():
            if key in _MAPS_OF_SCHEMAS:
                waiting += [(f"{path}.{key}.{name}", inner) for name, inner in as_dict(value).items()]
            elif key in _LISTS_OF_SCHEMAS:
                waiting += [(f"{path}.{key}[{index}]", inner) for index, inner in enumerate(as_list(value))]
            elif key in _SCHEMAS:
                waiting.append((f"{path}.{key}", value))


def is_object(schema: dict[str, Any]) -> bool:
    """Tell whether a schema is one of objects."""
    kind = schema.get("type")
    return kind == "object" or (isinstance(kind, list) and "object" in kind) or "properties" in schema


def strict_misfits(schema: dict[str, Any]) -> list[str]:
    """Return the paths at which a schema leaves the strict subset of OpenAI's structured output.

    There the root is an object, every object closes with ``additionalProperties: false``, and every property is
    required (OpenAI guide, structured outputs, as of 2026-11-30).
    """
    misfits = [] if schema.get("type") == "object" else ["$"]
    for path, node in iter_schemas(schema):
        is_closed = node.get("additionalProperties") is False
        optional = set(as_dict(node.get("properties"))) - set(as_list(node.get("required")))
        if is_object(node) and (not is_closed or optional) and path not in misfits:
            misfits.append(path)
    return misfits


# --- reading untrusted JSON ----------------------------------------------------------------------------------


def as_dict(value: Any) -> dict[str, Any]:
    """Return an object, an empty one where it is none."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """Return a list, an empty one where it is none."""
    return value if isinstance(value, list) else []


def as_text(value: Any) -> str | None:
    """Return text that holds more than blanks, else None."""
    return value if isinstance(value, str) and value and not value.isspace() else None


def as_count(value: Any) -> int | None:
    """Return a count that is one: no truth value, nothing negative, no fraction, nothing past exact numbers."""
    if type(value) is int and 0 <= value <= _MOST:  # nearly all are; the rest of the rule takes ten times as long
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST or value != value // 1:
        return None
    return int(value)


def add_counts(*counts: int | None) -> int | None:
    """Return the sum of those that are known, None where none is."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def join_texts(texts: list[str], between: str = "") -> str | None:
    """Join texts in order; None where all of it is blank."""
    return as_text(between.join(texts))


def split_think(text: str) -> tuple[str, str | None]:
    """Split thoughts off the start of an answer: servers without a reasoning parser leave them there.

    The first block may lack its opening tag (a chat template that ends in it), the last one its end (cut off: then
    nothing is answer). Returns the answer and the thoughts; None where no block starts the text.
    """
    thoughts: list[str] = []
    while (block := _leading_block(text, is_first=not thoughts)) is not None:
        thoughts.append(block[0])
        text = block[1]
    return text, "\n".join(filter(None, thoughts)) if thoughts else None


def _leading_block(text: str, *, is_first: bool) -> tuple[str, str] | None:
    """Return the thought that starts a text and what stands behind it, None where none does."""
    bare = text.lstrip()
    for opening, closing in _THINK_TAGS:
        if bare.startswith(opening):
            thought, _, answer = bare[len(opening) :].partition(closing)
            return thought.strip(), answer.lstrip()
    opening, closing = _THINK_TAGS[0]
    thought, found, answer = text.partition(closing)
    return (thought.strip(), answer.lstrip()) if is_first and found and opening not in thought else None


def ended_by(table: Mapping[str, Ended], finish_reason: str | None, notes: list[str]) -> Ended:
    """Return what a finish reason means; one that no table knows is kept as it came, noted, and taken for a stop.

    What stands behind a colon only adds to the reason (``content_filter: RECITATION``, from Gemini's OpenAI endpoint).
    """
    if finish_reason is None:
        return Ended.STOP
    ended = table.get(finish_reason) or table.get(finish_reason.partition(":")[0])
    if ended is None:
        notes.append("unknown_finish_reason")
    return ended or Ended.STOP


def include_reasoning(usage: Usage) -> None:
    """Add reasoning to the output where a service of OpenAI's format counts it apart: its own total tells.

    xAI does so on chat completions, and so do relays to Gemini; elsewhere the total is input plus output.
    """
    spent, thought = usage["output_tokens"], usage["reasoning_tokens"]
    if not thought or spent is None or usage["input_tokens"] is None:
        return
    if usage["total_tokens"] == usage["input_tokens"] + spent + thought:
        usage["output_tokens"] = spent + thought


def note_zero(usage: Usage, notes: list[str]) -> None:
    """Note a usage that cannot be: a request has input."""
    if usage["input_tokens"] == 0:
        notes.append("usage_zero")
