"""Tables of text (JSON lines, a JSON array, CSV, TSV): rows in order, each with the line that an editor counts.

A fault that is one row's own makes that row a bad one. A fault after which it is unknown where rows begin (an open
quote, a broken array, the wrong encoding) makes the whole table a bad one.
"""

from __future__ import annotations

import csv
import re
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from vlmbatch import jsonl
from vlmbatch.errors import InputError, Problem
from vlmbatch.inputs.base import RowError, those_there
from vlmbatch.inputs.strict import parse_row

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vlmbatch.inputs.textfile import TextFile

_CELL_LIMIT = 1 << 26
"""Characters in one cell of a CSV; the csv module's own limit of 128 Ki is below what tables hold."""

_DELIMITERS = ",;\t|"
_SEP_LINE = re.compile(r"sep=(.)\r?\n?")
_QUOTED = re.compile(r'"[^"]*"')
_WHITE = b" \t\r\n"


class Row(NamedTuple):
    """One row: its 1-based line (row number in binary tables), its own JSON on one line, and its fields.

    ``fault`` says why it is none; then the rest is empty.
    """

    line: int
    data: bytes
    fields: dict[str, Any]
    fault: RowError | None = None


class Table(Protocol):
    """A table, opened once and read once."""

    name: str
    image_columns: frozenset[str]
    """Columns whose bytes are images, set before the rows are read; text holds no bytes."""

    def columns(self) -> tuple[str, ...] | None:
        """Return the names of the columns, None where rows have no common ones.

        Raises:
            InputError: The header is broken.
        """
        ...

    def count(self) -> int | None:
        """Return the number of rows, None where only reading to the end would tell."""
        ...

    def rows(self) -> Iterator[Row]:
        """Yield the rows in order.

        Raises:
            InputError: The table as a whole cannot be read.
        """
        ...

    def sha256(self) -> str:
        """Return the digest of the table's bytes, once it has been read to its end."""
        ...

    def close(self) -> None:
        """Close its files."""
        ...


def json_row(line: int, data: bytes) -> Row:
    """Return the row that some JSON bytes hold, or their fault."""
    try:
        fields = parse_row(data)
    except RowError as fault:
        return Row(line, b"", {}, fault)
    return Row(line, jsonl.one_line(data.strip(_WHITE)), fields)


class _TextTable:
    """What tables of text have in common: the file that they are in."""

    def __init__(self, file: TextFile) -> None:
        self._file = file
        self.name = file.name
        self.image_columns: frozenset[str] = frozenset()
        self.sha256 = file.sha256
        self.close = file.close

    def columns(self) -> tuple[str, ...] | None:
        """Return None: each row has its own fields."""
        return None

    def count(self) -> int | None:
        """Return None: text is read once."""
        return None


class JsonLines(_TextTable):
    """One JSON object a line; blank lines count as lines and are no rows."""

    def rows(self) -> Iterator[Row]:
        """Yield the rows (see :class:`Table`)."""
        is_first = True
        for number, line in enumerate(self._file.lines(), start=1):
            bare = line.strip(_WHITE)
            if not bare:
                continue
            if is_first and bare == b"[":
                raise InputError(f"{self.name}: a JSON array, not one object a line", hint="name it .json")
            is_first = False
            yield json_row(number, line)


class JsonArray(_TextTable):
    """One JSON array of objects, walked element by element; a .json file may also hold one object a line."""

    def rows(self) -> Iterator[Row]:
        """Yield the elements (see :class:`Table`)."""
        pieces = self._file.pieces()
        start = b""
        for piece in pieces:
            start += piece
            if start.strip(_WHITE):
                break
        if start.lstrip(_WHITE).startswith(b"["):
            yield from _ArrayWalk(self.name, start, pieces).elements()
        else:
            yield from self._as_lines(_in_lines(start, pieces))

    def _as_lines(self, lines: Iterator[bytes]) -> Iterator[Row]:
        is_first = True
        for number, line in enumerate(lines, start=1):
            if not line.strip(_WHITE):
                continue
            row = json_row(number, line)
            if is_first and row.fault and row.fault.code == "bad_json":
                raise InputError(
                    f"{self.name}: neither a JSON array nor one object a line (line {number}: {row.fault})",
                    hint="write the rows as [{…}, {…}], or one {…} a line",
                )
            is_first = False
            yield row


def _in_lines(start: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the lines of some pieces, without their ends."""
    rest = start
    for piece in pieces:
        *whole, rest = rest.split(b"\n")
        yield from whole
        rest += piece
    yield from rest.split(b"\n")


class _ArrayWalk:
    """Finds where the elements of an array begin and end, by quotes and brackets alone, piece by piece."""

    _TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["\[\]{},]', re.DOTALL)
    """Possessive, so that a string of many megabytes costs no memory of its own."""

    def __init__(self, name: str, start: bytes, rest: Iterator[bytes]) -> None:
        self._name = name
        self._rest = rest
        self._buffer = start
        self._at = start.index(b"[") + 1
        self._line = 1 + start.count(b"\n", 0, self._at)

    def elements(self) -> Iterator[Row]:
        """Yield one row per element.

        Raises:
            InputError: The array is broken: it is unknown where elements begin.
        """
        count = 0
        while True:
            data, closing = self._next()
            bare = data.strip(_WHITE)
            line = self._line + data[: len(data) - len(data.lstrip(_WHITE))].count(b"\n")
            if bare:
                yield json_row(line, data)
                count += 1
            elif closing == b"," or count:
                raise self._broken(line, "an element is missing beside a comma")
            self._line += data.count(b"\n")
            if closing == b"]":
                break
        self._check_end()

    def _next(self) -> tuple[bytes, bytes]:
        """Return the bytes of the next element and the token that ends it (a comma, or the array's bracket)."""
        depth, scan = 0, self._at
        while True:
            for token in self._TOKEN.finditer(self._buffer, scan):
                sign = token[0][:1]
                if token[0] == b'"':  # a string that goes on beyond what was read
                    scan = token.start()
                    break
                scan = token.end()
                if depth == 0 and sign in b",]":
                    data = self._buffer[self._at : token.start()]
                    self._at = token.end()
                    return data, sign
                depth += 1 if sign in b"[{" else -1 if sign in b"]}" else 0
                if depth < 0:
                    raise self._broken(self._line, "a bracket is closed that was not opened")
            scan = self._read_more(scan)

    def _read_more(self, scan: int) -> int:
        """Drop what is done, read on; return where scanning goes on in the new buffer."""
        pieces = [self._buffer[self._at :]]
        wanted, got = len(pieces[0]), 0  # an open string is scanned again: doubling keeps that linear
        for piece in self._rest:
            pieces.append(piece)
            got += len(piece)
            if got >= wanted:
                break
        if not got:
            raise self._broken(self._line, "the file ends inside the array")
        scan -= self._at
        self._buffer, self._at = b"".join(pieces), 0
        return scan

    def _check_end(self) -> None:
        tail = self._buffer[self._at :]
        while not tail.strip(_WHITE):
            self._line += tail.count(b"\n")
            tail = next(self._rest, b"")
            if not tail:
                return
        raise self._broken(self._line, "something stands behind the array")

    def _broken(self, line: int, what: str) -> InputError:
        return InputError(f"{self._name}: near line {line}: {what}", hint="mend the file: it is not one JSON array")


def sniff(header: str) -> str:
    """Return the delimiter of a CSV: of comma, semicolon, tab and bar the one that is most frequent in the header.

    What stands between quotes does not count; with none, or with as many of another, the first of that list wins.
    """
    bare = _QUOTED.sub("", header)
    return max(_DELIMITERS, key=bare.count)


class Delimited(_TextTable):
    """CSV or TSV with a header; every cell is the text that it is.

    Args:
        file: The table.
        kind: ``csv`` or ``tsv``.
        delimiter: None = a tab in a TSV; else what a first line ``sep=;`` says; else by :func:`sniff`.
    """

    def __init__(self, file: TextFile, kind: str, delimiter: str | None = None) -> None:
        super().__init__(file)
        self._delimiter = delimiter or ("\t" if kind == "tsv" else None)
        self._lines_before = 0
        self._header: tuple[str, ...] | None = None
        self._cells: Iterator[tuple[int, list[str]]] = iter(())

    def columns(self) -> tuple[str, ...]:
        """Return the header (empty where the file is); see :class:`Table`."""
        if self._header is None:
            csv.field_size_limit(max(csv.field_size_limit(), _CELL_LIMIT))
            self._cells = self._read(self._file.text_lines())
            _, header = next(self._cells, (0, []))
            self._header = tuple(header)
            self._check_header(header)
        return self._header

    def _check_header(self, header: Sequence[str]) -> None:
        problems = [
            Problem("bad_header", f"two columns are called {name!r}", self.name)
            for name in dict.fromkeys(header)
            if header.count(name) > 1 and name
        ]
        problems += [
            Problem("bad_header", f"column {at} has no name", self.name) for at, n in enumerate(header, 1) if not n
        ]
        if any("\0" in name for name in header):
            problems.append(Problem("bad_header", "a name holds a NUL byte", self.name))
        if problems:
            raise InputError(f"{self.name}: the header is broken", hint="name every column once", problems=problems)

    def _read(self, lines: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
        """Yield (line on which the record starts, its cells); blank lines are left out."""
        first = ""
        for first in lines:
            if first.strip():
                break
            self._lines_before += 1
        said = _SEP_LINE.fullmatch(first)
        if said:
            self._lines_before += 1
            first = next(lines, "")
        delimiter = self._delimiter or (said[1] if said else sniff(first))
        yield from self._records(_chain(first, lines), delimiter)

    def _records(self, lines: Iterator[str], delimiter: str) -> Iterator[tuple[int, list[str]]]:
        try:
            reader = csv.reader(lines, delimiter=delimiter, strict=True)
        except (TypeError, ValueError):
            raise InputError(
                f"--delimiter {delimiter!r}: not one character", hint="for example --delimiter ';'"
            ) from None
        width = 0
        while True:
            start = reader.line_num + self._lines_before + 1
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise self._broken(start, reader.line_num + self._lines_before, error) from None
            width = width or len(cells)
            if cells and not (len(cells) == 1 < width and not cells[0].strip()):
                yield start, cells

    def _broken(self, start: int, end: int, error: csv.Error) -> InputError:
        place = f"line {start}" if end <= start else f"lines {start} to {end}"
        return InputError(
            f"{self.name}: {place}: {error}",
            hint="rows can no longer be told apart: a quote is open or undoubled, or lines end in CR alone",
        )

    def rows(self) -> Iterator[Row]:
        """Yield the rows; a row of another width than the header's, or with a NUL byte, is a bad one."""
        header = self.columns()
        for line, cells in self._cells:
            if len(cells) != len(header):
                message = f"{len(cells)} cell(s), the header names {len(header)}"
                yield Row(line, b"", {}, RowError("cells", message))
            elif any("\0" in cell for cell in cells):
                column = next(name for name, cell in zip(header, cells, strict=True) if "\0" in cell)
                yield Row(line, b"", {}, RowError("nul", f"a NUL byte in column {column!r}"))
            else:
                fields = dict(zip(header, cells, strict=True))
                yield Row(line, jsonl.dumps(fields), fields)


def _chain(first: str, rest: Iterator[str]) -> Iterator[str]:
    if first:
        yield first
        yield from rest


def check_columns(table: Table, wanted: Sequence[str]) -> list[Problem]:
    """Return a problem for each wanted column that a table with a header lacks."""
    columns = table.columns()
    if not columns:
        return []
    is_strange = isinstance(table, Delimited) and not set(wanted) & set(columns)
    taken = "; the first line was taken for the header" if is_strange else ""
    return [
        Problem("no_column", f"no column {field!r}; {those_there(field, columns)}{taken}", table.name)
        for field in dict.fromkeys(wanted)
        if field not in columns
    ]
