"""JSON read strictly: what two readers could understand in two ways is no row, and no value to be written again.

Refused are NaN and infinities, a key that stands twice, lone surrogates (they have no UTF-8 form), and nesting so deep
that readers differ in whether they can follow. Numbers keep their digits, for the row's own bytes are what is kept.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, NoReturn

from vlmbatch.inputs.base import RowError, describe

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_DEPTH = 200
"""Levels of lists and objects in a row; Python's own reader gives up near 1000, depending on who calls it."""

_WHITE = b" \t\r\n"
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_NESTING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[{]|[\]}]', re.DOTALL)
"""Possessive, so that a string of many megabytes costs no memory of its own."""


def parse_row(data: bytes, *, what: str = "row") -> dict[str, Any]:
    """Parse one row.

    Args:
        data: A JSON object in UTF-8, without a byte order mark.
        what: What messages call it.

    Raises:
        RowError: It is not one, or holds what is refused; column and cause are told.
    """
    try:
        text = data.strip(_WHITE).decode("utf-8")
    except UnicodeDecodeError as error:
        raise RowError("not_utf8", f"not UTF-8 at byte {error.start + 1} of the {what}") from None
    _check_depth(text)
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except json.JSONDecodeError as error:
        place = (
            f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno} of the {what}, column {error.colno}"
        )
        raise RowError("bad_json", f"not JSON: {error.msg} ({place})") from None
    except ValueError:
        raise RowError("bad_json", "holds an integer of more than 4,300 digits") from None
    if not isinstance(value, dict):
        raise RowError("not_an_object", f"a {what} is a JSON object, not {describe(value)}")
    if _SURROGATE_ESCAPE.search(text):
        _check_surrogates(value)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise RowError("duplicate_key", f"the key {describe(twice)} stands twice; which one was meant is unknown")
    return made


def _constant(name: str) -> NoReturn:
    raise RowError("not_a_number", f"{name} is not JSON")


def _check_depth(text: str) -> None:
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    for token in _NESTING.finditer(text):
        first = text[token.start()]
        depth += 1 if first in "[{" else -1 if first in "]}" else 0
        if depth > MAX_DEPTH:
            raise RowError("too_deep", f"nested more than {MAX_DEPTH} levels deep")


def _check_surrogates(row: dict[str, Any]) -> None:
    for path, text in _strings(row, ""):
        found = _LONE_SURROGATE.search(text)
        if found:
            where = f"field {path!r}" if path else "a key"
            half = f"\\u{ord(found[0]):04x}"
            raise RowError(
                "lone_surrogate",
                f"half a character ({half}) in {where}, character {found.start() + 1}: no UTF-8 has it",
            )


def _strings(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield every string of a value with the path of its field; keys come with an empty path."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield "", key
            yield from _strings(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from _strings(inner, f"{path}[{at}]")


# --- values that are written anew ----------------------------------------------------------------------------

_INT64 = range(-(2**63), 2**64)
"""Whole numbers that the writer of frozen bodies takes (orjson: 64 bits, signed or not)."""


def scalars(value: Any) -> Iterator[Any]:
    """Yield every key and every value of a structure that holds no others (the depth is that of the structure)."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from scalars(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from scalars(inner)
    else:
        yield value


def unwritable(value: Any) -> str | None:
    """Return why a single value would not stand in a frozen body as it was given; None where it would."""
    if isinstance(value, str):
        return f"{describe(value)} holds half a character; no UTF-8 has it" if _LONE_SURROGATE.search(value) else None
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value} is no number that JSON can write"
    if isinstance(value, int) and value not in _INT64:
        return f"{describe(value)} is an integer of more than 64 bits"
    if value is None or isinstance(value, int | float):
        return None
    return f"{describe(value)} is neither text nor a number; put it in quotes"
