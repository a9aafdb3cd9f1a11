"""Required fields of JSON answers: how they are named, which outputs they are asked of, and what counts as filled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from vlmbatch.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vlmbatch.records import Asked


class Field(NamedTuple):
    """A field of the answers that some outputs of a run give.

    Attributes:
        keys: The keys that lead to it.
        outputs: Numbers of the outputs that are to have it.
    """

    keys: tuple[str, ...]
    outputs: frozenset[int]


def find_field(path: str, outputs: Sequence[str], asked: Sequence[Asked]) -> Field:
    """Return the field that a path means: keys joined by dots, behind the name of the one output that is meant, if any.

    Args:
        path: Such as ``label``, ``box.width`` or, in a run with several outputs, ``caption.label``.
        outputs: Names of the run's outputs.
        asked: What each of them asked for; those that are to be JSON have fields.

    Raises:
        InputError: The outputs that are meant are not to be JSON.
    """
    named = max((name for name in outputs if path.startswith(f"{name}.")), key=len, default="")
    meant = {number for number, name in enumerate(outputs) if asked[number].json and named in {"", name}}
    if not meant:
        raise InputError(
            f"--require-field {path}: asks for JSON answers, and {named or 'this run'} has none",
            hint="add --expect-json, or name an output that is JSON",
        )
    keys = path[len(named) + 1 :] if named else path
    return Field(tuple(keys.split(".")), frozenset(meant))


def is_filled(value: Any, keys: Sequence[str]) -> bool:
    """Tell whether a JSON value holds something at a path of keys: not null, not an empty text, list or object."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value is not None and value not in ("", [], {}) and not (isinstance(value, str) and not value.strip())
