"""Rows that a Python program hands over, and the JSON that each of them has.

What JSON lacks is written by one rule per type: paths, UUIDs and decimals as text, times and dates in ISO 8601, members
of an enumeration as their values, arrays and their numbers as lists and numbers, bytes as base64; NaN, infinities and
what pandas has for a missing value as null (counted in a warning). What fits no rule makes its row a bad one. In an
image field bytes are the file itself, and pixels become a file; in the row's own JSON nothing of an image stays but its
path.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

from vlmbatch import jsonl
from vlmbatch.errors import InputError
from vlmbatch.inputs.base import RowError
from vlmbatch.inputs.strict import MAX_DEPTH
from vlmbatch.inputs.tables import Row, json_row
from vlmbatch.inputs.values import carried, is_image

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vlmbatch.inputs.base import SourceReport

KIND = "rows"

Encode: TypeAlias = Callable[[Any], bytes | None]
"""Returns pixels as an image file, None where a value is none; raises RowError where no file could hold them."""


def check_rows(rows: object) -> None:
    """Refuse what is no series of rows, though one can iterate over it.

    Raises:
        InputError: It is a single object, a text, or a table with columns.
    """
    if isinstance(rows, Mapping | str | bytes) or not isinstance(rows, Iterable) or hasattr(rows, "columns"):
        raise InputError(
            f"rows come as a list of objects, one for each request, not as {type(rows).__name__}",
            hint="[{...}, {...}]; a DataFrame gives them with .to_dict('records')",
        )


@dataclass(frozen=True, slots=True)
class Memory:
    """Rows of the caller's, and what makes files of the pixels in them."""

    rows: Iterable[Mapping[str, Any]]
    encode: Encode


class MemoryRows:
    """The rows as a table (see :class:`~vlmbatch.inputs.tables.Table`), read once."""

    kind = KIND
    name = KIND

    def __init__(self, memory: Memory, report: SourceReport) -> None:
        self._memory = memory
        self._report = report
        self._digest = hashlib.sha256()
        self._nulls: Counter[str] = Counter()
        self.image_columns: frozenset[str] = frozenset()

    def columns(self) -> None:
        """Return None: each row has its own fields."""

    def count(self) -> int | None:
        """Return the number of rows, None where only iterating would tell (see :class:`Table`)."""
        rows = self._memory.rows
        return len(rows) if isinstance(rows, Sized) else None

    def rows(self) -> Iterator[Row]:
        """Yield the rows; ``line`` is the row's 1-based number."""
        for number, row in enumerate(self._memory.rows, start=1):
            made = self._row(number, row)
            self._digest.update(made.data + b"\n")
            yield made
        for name, count in self._nulls.items():
            self._report.warnings.append(
                f"{self.name}: {count:,} missing, NaN or infinite value(s) of field {name!r} stand as null"
            )

    def sha256(self) -> str:
        """Return the digest of the rows as lines of JSON."""
        return self._digest.hexdigest()

    def close(self) -> None:
        """Do nothing: the rows are the caller's."""

    def _row(self, number: int, row: object) -> Row:
        fields: dict[str, Any] = {}
        pictures: dict[str, Any] = {}
        try:
            for name, value in _named(row).items():
                if name in self.image_columns:
                    pictures[name] = self._pictures(name, value)
                    fields[name] = carried(pictures[name], in_image_column=True)
                else:
                    fields[name] = self._plain(name, value)
        except RowError as fault:
            return Row(number, b"", {}, fault)
        made = json_row(number, jsonl.dumps(fields))
        return made if made.fault else made._replace(fields={**made.fields, **pictures})

    def _pictures(self, name: str, value: Any) -> Any:
        """Return an image field's value as files see it: a path, bytes, {bytes, path}, or a list of such."""
        if isinstance(value, list | tuple):
            return [self._picture(name, one) for one in value]
        return self._picture(name, value)

    def _picture(self, name: str, value: Any) -> Any:
        if is_image(value):
            return value
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        if value is None or isinstance(value, str | float | os.PathLike):
            return self._plain(name, value)
        data = self._memory.encode(value)
        if data is None:
            return self._plain(name, value)
        self._report.encoded += 1
        return data

    def _plain(self, name: str, value: Any, room: int = MAX_DEPTH) -> Any:
        """Return a value as JSON has it.

        Args:
            name: The field that it is in or below.
            value: Anything.
            room: Levels of nesting that are left.

        Raises:
            RowError: JSON has no form for it.
        """
        if room < 0:
            raise RowError("too_deep", f"nested more than {MAX_DEPTH} levels deep")
        if isinstance(value, Enum):
            return self._plain(name, value.value, room - 1)
        if value is None or isinstance(value, str | int):
            return value
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else self._null(name)
        if isinstance(value, Mapping):
            return {key: self._plain(name, inner, room - 1) for key, inner in _named(value).items()}
        if isinstance(value, list | tuple):
            return [self._plain(name, inner, room - 1) for inner in value]
        if hasattr(value, "tolist"):
            return self._plain(name, _out_of_array(name, value), room - 1)
        return self._null(name) if _is_missing(value) else _text(name, value)

    def _null(self, name: str) -> None:
        self._nulls[name] += 1


def _named(value: object) -> dict[str, Any]:
    """Return an object with the names of its fields as text."""
    if not isinstance(value, Mapping):
        raise RowError("not_an_object", f"a row is an object with named fields, not {type(value).__name__}")
    named = {_name(key): inner for key, inner in value.items()}
    if len(named) < len(value):
        raise RowError("duplicate_key", "a number and a text name the same field")
    return named


def _name(key: Any) -> str:
    """Return a field's name; pandas numbers columns that have none."""
    if isinstance(key, str):
        return key
    if isinstance(key, int):
        return str(key)
    raise RowError("bad_value", f"a field is called {key!r:.60}, which is no text")


def _out_of_array(name: str, value: Any) -> Any:
    """Return an array of NumPy's or its kin, or a number out of one, as Python has it."""
    if getattr(getattr(value, "dtype", None), "kind", "") in {"M", "m"}:
        raise RowError(
            "bad_value", f"field {name!r} holds times of NumPy's, which become bare numbers; give them as text"
        )
    return value.tolist()


def _is_missing(value: Any) -> bool:
    """Tell whether a value stands for a missing one: it differs from itself (NaT), or cannot tell (pandas' NA)."""
    try:
        return bool(value != value)
    except TypeError:
        return True


def _text(name: str, value: Any) -> Any:
    """Return what JSON has only as text, and null for pictures that nobody asks about."""
    from uuid import UUID

    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if isinstance(value, UUID | Decimal):
        return str(value)
    if type(value).__module__.startswith("PIL."):
        return {"path": None}
    raise RowError("bad_value", f"field {name!r} holds {type(value).__name__}, which JSON has no form for")
