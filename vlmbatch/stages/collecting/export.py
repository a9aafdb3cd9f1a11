"""Records in the shapes that others ask for: the input's own rows with the answer beside them, and flat tables.

A sink takes the records one by one, in manifest order, while merged.jsonl is written. Text is never changed on the
way: what a format cannot hold is escaped, counted and told.
"""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from vlmbatch import jsonl
from vlmbatch.records import Status
from vlmbatch.rundir import input_index

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import BinaryIO

    from vlmbatch.rundir import RunDir
    from vlmbatch.stages.collecting.splice import Line

OURS: Final = {
    "status": "str",
    "reason": "str",
    "text": "str",
    "json": "json",
    "reasoning": "str",
    "model": "str",
    "finish_reason": "str",
    "input_tokens": "int",
    "output_tokens": "int",
    "reasoning_tokens": "int",
    "cached_tokens": "int",
    "total_tokens": "int",
    "channel": "str",
    "latency_s": "float",
    "error": "str",
    "review": "str",
    "rehearsal": "bool",
}
"""Columns of a flat table behind those of the input row, with their kinds."""

FIRST: Final = ("custom_id",)
IMAGES: Final = ("image_path", "image_sha256")
_RESERVED: Final = frozenset({*OURS, *FIRST, *IMAGES})
_INT64: Final = 1 << 63
_EXACT_FLOAT: Final = 1 << 53
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
_DECODER = json.JSONDecoder()
_SPACE: Final = " \t\r\n"


class Sink(Protocol):
    """Something that takes records."""

    def put(self, line: Line, record: dict[str, Any]) -> None:
        """Take one record, as bytes and parsed."""
        ...

    def close(self) -> None:
        """Write what is still held back; the file itself is closed by whoever opened it."""
        ...


# --- the input row, member by member -------------------------------------------------------------------------


def members(row: bytes) -> Iterator[tuple[str, str]]:
    """Yield key and raw JSON text of each member of an object, digits and all as they stand."""
    text = row.decode("utf-8", "surrogatepass")
    at = _skip(text, text.index("{") + 1)
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        at = _skip(text, text.index(":", at) + 1)
        _, end = _DECODER.raw_decode(text, at)
        yield key, text[at:end]
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    while text[at] in _SPACE:
        at += 1
    return at


def kind_of(raw: str) -> str:
    """Return the kind of a raw JSON value: ``null``, ``bool``, ``int``, ``float``, ``str`` or ``json``."""
    first = raw[0]
    if first == '"':
        return "str"
    if first in "{[":
        return "json"
    if first in "tf":
        return "bool"
    if first == "n":
        return "null"
    if set(raw) & set(".eEIN"):
        return "float"
    return "int" if -_INT64 <= int(raw) < _INT64 else "json"


def join_kinds(one: str, other: str, *, is_exact: bool) -> str:
    """Return the kind that holds values of both; ``json`` (their raw text) where no plain one does."""
    if one == other or other == "null":
        return one
    if one == "null":
        return other
    return "float" if {one, other} == {"int", "float"} and is_exact else "json"


def free_name(name: str, taken: frozenset[str] | set[str]) -> str:
    """Return the name under which an input field stands where one of ours has its name: ``input_`` before it."""
    while name in taken:
        name = f"input_{name}"
    return name


class Column(NamedTuple):
    """One column of a flat table: its name there, the field's name in the row, and the kind of its values."""

    name: str
    field: str
    kind: str


def row_columns(run: RunDir) -> list[Column]:
    """Return the columns that the input rows make, in order of first appearance (one pass over the manifest)."""
    kinds: dict[str, str] = {}
    inexact: set[str] = set()
    for entry in run.iter_entries():
        if entry.row == b"{}":
            continue
        for key, raw in members(entry.row):
            kind = kind_of(raw)
            if kind == "int" and abs(int(raw)) > _EXACT_FLOAT:
                inexact.add(key)
            kinds[key] = join_kinds(kinds.get(key, "null"), kind, is_exact=key not in inexact)
    taken = set(_RESERVED)
    columns = []
    for key, kind in kinds.items():
        name = free_name(key, taken)
        taken.add(name)
        columns.append(Column(name, key, "str" if kind == "null" else kind))
    return columns


def cell(raw: str | None, kind: str) -> Any:
    """Return the value of a raw JSON member in a column of a kind; None for null and for nothing."""
    if raw is None or raw == "null":
        return None
    if kind == "json":
        return raw
    value = json.loads(raw)
    return float(value) if kind == "float" else value


def our_cells(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of :data:`OURS` for one record."""
    error, review, value = record["error"], record["review"], record["json"]
    is_json = record["authoritative"] == "json"
    return {
        **{name: record[name] for name in ("status", "reason", "text")},
        "json": jsonl.dumps(value).decode() if is_json else None,
        **{name: record[name] for name in ("reasoning", "model", "finish_reason")},
        **record["usage"],
        "channel": record["channel"],
        "latency_s": record["latency_s"],
        "error": error["message"] if error else None,
        "review": review["verdict"] if review else None,
        "rehearsal": record["rehearsal"],
    }


# --- CSV -----------------------------------------------------------------------------------------------------


class CsvSink:
    """A CSV file in UTF-8, quoted and ended as RFC 4180 has it, one record after the other.

    Text stands as it came, so a cell may begin with a character that spreadsheets take for a formula; such cells
    are counted. With ``is_safe`` an apostrophe is put before them, which changes the text, so it has to be asked for.

    Attributes:
        formulas: Cells that a spreadsheet would take for a formula.
    """

    def __init__(self, file: BinaryIO, columns: Sequence[Column], *, is_safe: bool = False) -> None:
        # A lone surrogate has no UTF-8 form: it stands as a backslash escape.
        self._text = io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", newline="")
        self._writer = csv.writer(self._text)
        self._columns = columns
        self._is_safe = is_safe
        self.formulas = 0
        self._writer.writerow([*FIRST, *(self._guard(column.name) for column in columns), *IMAGES, *OURS])

    def put(self, line: Line, record: dict[str, Any]) -> None:
        """Take one record."""
        row = dict(members(line.row)) if self._columns else {}
        cells = [self._cell(row.get(column.field)) for column in self._columns]
        images = [_one_or_list([image[key] for image in record["images"]]) for key in ("path", "sha256")]
        ours = [self._guard(_plain(value)) for value in our_cells(record).values()]
        self._writer.writerow([record["custom_id"], *cells, self._guard(images[0]), images[1], *ours])

    def _cell(self, raw: str | None) -> str:
        if raw is None or raw == "null":
            return ""
        return self._guard(json.loads(raw)) if raw[0] == '"' else raw

    def _guard(self, text: str) -> str:
        if not text.startswith(_FORMULA) or _is_number(text):
            return text
        self.formulas += 1
        return f"'{text}" if self._is_safe else text

    def close(self) -> None:
        """Flush; the file stays open for its owner."""
        self._text.flush()
        self._text.detach()


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _one_or_list(values: Sequence[str]) -> str:
    if len(values) == 1:
        return values[0]
    return jsonl.dumps(values).decode() if values else ""


# --- rows ----------------------------------------------------------------------------------------------------


class RowsSink:
    """JSON lines: every input row with all its fields as they were, and five fields of ours behind them.

    These are ``model``, ``raw_response``, ``parsed_answer``, ``error`` (null on success) and ``status``. Several
    outputs of one row are joined into one line: then each is an object by output name (``error`` holds those that
    failed).
    Where the run has an output schema, the line is what that says, and ``error``. A field of the input that has one of
    our names is kept under ``input_NAME``.

    Args:
        file: Where the lines go.
        run: The run.
        outputs: The name of each record's output, in manifest order.
    """

    def __init__(self, file: BinaryIO, run: RunDir, outputs: Iterable[str]) -> None:
        answer = run.info.get("answer") or {}
        self._file = file
        self._schema = answer.get("output_schema")
        self._names = list(answer.get("outputs") or ())
        self._outputs = iter(outputs)
        self._held: dict[str, dict[str, Any]] = {}
        self._number = -1
        self._row = b""

    def put(self, line: Line, record: dict[str, Any]) -> None:
        """Take one record; a row is written once the record of another row comes."""
        if not self._names:
            answer = {**row_answer(record), "status": record["status"]}
            self._write(line.row, answer, is_rehearsal=record["rehearsal"])
            return
        number = input_index(record["custom_id"]) // len(self._names)  # inputs count on over a row's outputs
        if number != self._number:
            self.close()
        self._number, self._row = number, line.row
        self._held[next(self._outputs)] = record

    def close(self) -> None:
        """Write the last row."""
        if self._held:
            self._release()

    def _release(self) -> None:
        records, self._held = self._held, {}
        is_rehearsal = any(record["rehearsal"] for record in records.values())
        answers = {name: row_answer(record) for name, record in records.items()}
        plain = ("model", "raw_response", "parsed_answer")
        joined: dict[str, Any] = {key: {name: answer[key] for name, answer in answers.items()} for key in plain}
        errors = {name: answer["error"] for name, answer in answers.items() if answer["error"] is not None}
        joined["error"] = errors or None
        joined["status"] = {name: record["status"] for name, record in records.items()}
        if self._schema is None:
            self._write(self._row, joined, is_rehearsal=is_rehearsal)
            return
        from vlmbatch.inputs.rendering import render_output

        parsed = dict.fromkeys(self._names) | joined["parsed_answer"]
        rendered = render_output(self._schema, self._row, parsed)
        marks = {"error": joined["error"]} | ({"rehearsal": True} if is_rehearsal else {})
        self._file.write(jsonl.dumps(rendered | marks) + b"\n")

    def _write(self, row: bytes, answer: Mapping[str, Any], *, is_rehearsal: bool) -> None:
        marks = dict(answer) | ({"rehearsal": True} if is_rehearsal else {})
        self._file.write(with_members(row, marks) + b"\n")


def row_answer(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the four fields of ours that stand behind an input row."""
    is_ok = record["status"] == Status.OK
    value = record["json"] if record["authoritative"] == "json" else record["text"]
    reason = record["reason"]
    return {
        "model": record["model"],
        "raw_response": record["text"],
        "parsed_answer": value if is_ok else None,
        "error": None if is_ok else record["status"] + (f": {reason}" if reason else ""),
    }


def with_members(row: bytes, more: Mapping[str, Any]) -> bytes:
    """Return an object with members of ours behind its own, whose bytes stay as they are.

    A member that has one of our names is renamed (``input_NAME``); then the row's members are put together anew, each
    with its own raw value.
    """
    tail = jsonl.dumps(more)[1:]
    if b"\\" not in row and not any(jsonl.dumps(name) in row for name in more):
        head = row.rstrip()[:-1].rstrip()
        return head + (b"," if not head.endswith(b"{") else b"") + tail
    own = list(members(row))
    taken = {key for key, _ in own if key not in more} | set(more)
    parts = []
    for key, raw in own:
        name = free_name(key, taken) if key in more else key
        taken.add(name)
        parts.append(jsonl.dumps(name) + b":" + raw.encode("utf-8", "surrogatepass"))
    return b"{" + b",".join([*parts, tail])
