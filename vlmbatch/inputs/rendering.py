"""The merged rows of a pipeline: fields made by templates from a row's values and the answers to it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from vlmbatch.inputs.base import RowError
from vlmbatch.inputs.strict import parse_row

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from jmespath.parser import ParsedResult


@functools.lru_cache(maxsize=256)
def compile_key(key: str) -> ParsedResult:
    """Compile a JMESPath expression.

    Raises:
        ValueError: It is none.
    """
    import jmespath

    return jmespath.compile(key)


def look_up(key: str, row: Mapping[str, Any]) -> Any:
    """Return what a JMESPath key finds in a row, None where it finds nothing.

    Raises:
        RowError: The expression cannot be applied to this row.
    """
    try:
        return compile_key(key).search(row)
    except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, RecursionError) as error:
        raise RowError("bad_key", f"key {key!r}: {str(error) or type(error).__name__}") from None


def templates_in(fields: Any, place: str) -> Iterator[tuple[str, str]]:
    """Yield (place, source) of every template in an output schema."""
    if isinstance(fields, str):
        yield place, fields
    elif isinstance(fields, dict):
        for key, inner in fields.items():
            yield from templates_in(inner, f"{place}.{key}")
    elif isinstance(fields, list):
        for at, inner in enumerate(fields):
            yield from templates_in(inner, f"{place}[{at}]")


def render_output(plan: Mapping[str, Any], row: bytes, answers: Mapping[str, Any]) -> dict[str, Any]:
    """Return one merged row.

    A template that is one ``{{ name }}`` alone keeps the value's type; an image input gives what the row says of it.
    A field that needs an answer which is not there, or a value which the row lacks, is null.

    Args:
        plan: As :meth:`vlmbatch.inputs.pipeline.Pipeline.merged_rows` gives it.
        row: The row's own JSON, in which numbers keep all digits.
        answers: The answer of each output by name: text, parsed JSON, or None.
    """
    from vlmbatch.inputs.template import without_null

    fields = parse_row(row)
    values = without_null({**fields, **_inputs(plan["inputs"], fields), **answers}, "")
    made: dict[str, Any] = _fill(plan["fields"], values)
    return {**fields, **made} if plan["keep_columns"] else made


def _inputs(inputs: Sequence[Mapping[str, Any]], row: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for one in inputs:
        try:
            found[one["name"]] = look_up(one["key"], row)
        except RowError:
            found[one["name"]] = None
    return found


def _fill(fields: Any, values: Mapping[str, Any]) -> Any:
    from vlmbatch.inputs.template import value_of

    if isinstance(fields, str):
        return value_of(fields, values)
    if isinstance(fields, dict):
        return {key: _fill(inner, values) for key, inner in fields.items()}
    if isinstance(fields, list):
        return [_fill(inner, values) for inner in fields]
    return fields
