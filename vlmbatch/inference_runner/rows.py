"""The script's two files: rows that come in, and the output that grows line by line."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vlmbatch import InputError, Problem, jsonl
from vlmbatch.errors import cannot_read
from vlmbatch.inputs.base import RowError
from vlmbatch.inputs.strict import parse_row
from vlmbatch.jsonl import Appender
from vlmbatch.stages.collecting.export import with_members

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Key = tuple[str, ...]
"""The values of a row's id fields, each as JSON."""


@dataclass(frozen=True, slots=True)
class Row:
    """One input row: its id, its own bytes, its fields, and where it stands (1-based)."""

    key: Key
    data: bytes
    fields: dict[str, Any]
    line: int


def key_of(row: Mapping[str, Any], id_fields: Sequence[str]) -> Key | None:
    """Return a row's id, None where it lacks one of the fields."""
    if any(name not in row for name in id_fields):
        return None
    return tuple(jsonl.dumps(row[name]).decode() for name in id_fields)


def read_rows(path: str, id_fields: Sequence[str]) -> dict[Key, Row]:
    """Read the input.

    Raises:
        InputError: It cannot be read, or lines are no rows, lack an id or repeat one; all are listed.
    """
    rows: dict[Key, Row] = {}
    problems: list[Problem] = []
    name = os.path.basename(path)
    try:
        for line in jsonl.iter_lines(path):
            try:
                row = _row(line, id_fields, rows)
                rows[row.key] = row
            except RowError as fault:
                problems.append(Problem(fault.code, fault.message, name, line.number))
    except OSError as error:
        raise cannot_read(f"--input {path}", error) from None
    if problems or not rows:
        what = f"{len(problems)} line(s) cannot be used" if problems else "no rows"
        raise InputError(f"--input {path}: {what}", hint="mend them, or name other --id-fields", problems=problems)
    return rows


def _row(line: jsonl.Line, id_fields: Sequence[str], earlier: Mapping[Key, Row]) -> Row:
    """Return the row that a line is.

    Raises:
        RowError: It is none, or has no id, or that of an earlier row.
    """
    fields = parse_row(line.data)
    key = key_of(fields, id_fields)
    if key is None:
        raise RowError("no_id", f"lacks an id field ({', '.join(id_fields)})")
    if key in earlier:
        raise RowError("duplicate_id", f"the same id as line {earlier[key].line}")
    return Row(key, line.data, fields, line.number)


class Output:
    """The output file: what it has, and what is appended to it.

    Attributes:
        answered: Ids of the rows that it has an answer for.
    """

    def __init__(self, path: str, id_fields: Sequence[str], *, resume: bool) -> None:
        self.answered: set[Key] = set()
        self._last: dict[Key, str] = {}
        self._id_fields = id_fields
        self._resume = resume
        if resume and os.path.exists(path):
            for line in jsonl.iter_lines(path):
                self._note(line.data)
        self._file = Appender(path)

    def _note(self, line: bytes) -> None:
        try:
            value = jsonl.loads_exact(line)
        except ValueError:
            return
        key = key_of(value, self._id_fields) if isinstance(value, dict) else None
        if key is not None:
            self._last[key] = jsonl.sha256(line)
            if value.get("error", "") is None:
                self.answered.add(key)

    def put(self, row: Row, answer: Mapping[str, Any]) -> None:
        """Append a row with its answer; going on, one that fails again in the same words gets no second line."""
        line = with_members(row.data, answer)
        if not self._resume or self._last.get(row.key) != jsonl.sha256(line):
            self._file.append(line)
            self._note(line)

    def close(self) -> None:
        """Wait until the disk has it."""
        self._file.close()
