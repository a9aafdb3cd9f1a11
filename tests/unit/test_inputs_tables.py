"""Table readers: rows in order, bytes kept, faults told; and whatever bytes come, no other exception than ours."""

from __future__ import annotations

import csv
import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmbatch.errors import InputError
from vlmbatch.inputs import SourceOptions, open_source
from vlmbatch.inputs.base import Item, Rejected, RowError
from vlmbatch.inputs.strict import MAX_DEPTH, parse_row
from vlmbatch.inputs.tables import Delimited, JsonArray, JsonLines, Row, sniff
from vlmbatch.inputs.textfile import TextFile

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
ROWS = st.lists(st.dictionaries(TEXT, VALUES, max_size=4), max_size=5)


def _file(data: bytes, encoding: str | None = None) -> TextFile:
    return TextFile(io.BytesIO(data), "table", encoding)


def _lines(data: bytes, encoding: str | None = None) -> list[Row]:
    return list(JsonLines(_file(data, encoding)).rows())


def _array(data: bytes) -> list[Row]:
    return list(JsonArray(_file(data)).rows())


def _csv(data: bytes, delimiter: str | None = None, encoding: str | None = None) -> list[Row]:
    return list(Delimited(_file(data, encoding), "csv", delimiter).rows())


# --- strict JSON ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "code", "said"),
    [
        (b'{"a": 1,}', "bad_json", "column 9"),
        (b'{"a": NaN}', "not_a_number", "NaN"),
        (b'{"a": [1, -Infinity]}', "not_a_number", "-Infinity"),
        (b'{"a": {"b": 1, "b": 2}}', "duplicate_key", "'b'"),
        (b'{"a": {"b": ["x\\ud83d"]}}', "lone_surrogate", "'a.b[0]', character 2"),
        (b'{"\\udc00": 1}', "lone_surrogate", "a key"),
        (b'{"a": "\xff"}', "not_utf8", "byte 8"),
        (b"[1]", "not_an_object", "[1]"),
        (b'"' + b"x" * 5000 + b'"', "not_an_object", "characters"),
        (b'{"a": ' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}", "too_deep", str(MAX_DEPTH)),
        (b"[" * 100_000 + b"]" * 100_000, "too_deep", str(MAX_DEPTH)),
        (b'{"a": ' + b"1" * 5000 + b"}", "bad_json", "4,300 digits"),
        (b'{"a": "tab\there"}', "bad_json", "column"),
        (b"\x0b{}", "bad_json", "column 1"),
    ],
)
def test_parse_row_refuses_what_is_ambiguous(data: bytes, code: str, said: str) -> None:
    """Each kind of bad row has its code, and the message tells the cause and the place without printing much."""
    with pytest.raises(RowError) as caught:
        parse_row(data)
    assert caught.value.code == code
    assert said in caught.value.message
    assert len(caught.value.message) < 250


def test_parse_row_takes_what_is_only_unusual() -> None:
    """A pair of surrogate escapes is one character; brackets in strings are no nesting; big integers stay exact."""
    row = parse_row(b'{"a": "\\ud83d\\ude00", "b": "' + b"[{" * 300 + b'", "c": 18528528433540659662, "d": [[1], [2]]}')
    assert (row["a"], len(row["b"]), row["c"], row["d"]) == ("\U0001f600", 600, 18528528433540659662, [[1], [2]])
    deep = b'{"a": ' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}"
    assert list(parse_row(deep)) == ["a"]


# --- JSON lines and arrays -------------------------------------------------------------------------------------


@given(ROWS, st.sampled_from([b"\n", b"\r\n", b"\n\n", b" \n\t\n"]), st.booleans(), st.booleans())
def test_json_lines_keep_each_row_to_the_byte(rows: list[dict[str, Any]], end: bytes, bom: bool, last: bool) -> None:
    """Whatever ends the lines, the rows come in order with their own bytes and their editor's line."""
    written = [json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass") for row in rows]
    data = (b"\xef\xbb\xbf" if bom else b"") + end.join(written) + (end if last else b"")
    found = _lines(data)
    assert [row.data for row in found] == written
    assert [row.fields for row in found] == rows
    assert [row.line for row in found] == [1 + at * end.count(b"\n") for at in range(len(rows))]


@given(ROWS, st.sampled_from([None, 1, 3]), st.integers(0, 3))
def test_json_array_gives_the_same_rows_as_lines(rows: list[dict[str, Any]], indent: int | None, before: int) -> None:
    """An array, pretty-printed or not, is its elements, each on one line with equal meaning, in order."""
    data = b"\n" * before + json.dumps(rows, indent=indent, ensure_ascii=False).encode() + b"\n "
    found = _array(data)
    assert [json.loads(row.data) for row in found] == rows
    assert all(b"\n" not in row.data for row in found)
    assert [row.line for row in found] == sorted(row.line for row in found)
    if indent is None:
        assert [row.data for row in found] == [json.dumps(row, ensure_ascii=False).encode() for row in rows]
        assert {row.line for row in found} <= {before + 1}


def test_json_array_counts_lines_as_an_editor() -> None:
    """An element's line is that on which it begins; a bad element is a bad row, and the rest goes on."""
    data = b'\n[\n  {"a": 1},\n\n  {"a": NaN}, {"a": 3},\n  {"a": "[,]\\""\n}]\n'
    found = _array(data)
    assert [(row.line, row.fault.code if row.fault else None) for row in found] == [
        (3, None),
        (5, "not_a_number"),
        (5, None),
        (6, None),
    ]


@pytest.mark.parametrize("size", [10, 1 << 16, 3 << 16])
def test_json_array_elements_larger_than_a_piece_are_whole(size: int) -> None:
    """Strings that cross the pieces in which the file is read stay whole, escapes at the border included."""
    rows = [{"a": "x" * (size + n) + '\\"' * 5 + "]", "n": n} for n in range(4)]
    assert [row.fields for row in _array(json.dumps(rows).encode())] == rows
    assert [row.fields for row in _array(json.dumps(rows, indent=1).encode())] == rows


@pytest.mark.parametrize(
    "data",
    [
        b"[{}",
        b"[{},",
        b"[{},]",
        b"[,{}]",
        b"[{},,{}]",
        b"[{}]]",
        b"[{}] {}",
        b"[{}}",
        b'[{"a": "x]',
        b"[",
        b'{"a": 1,\n"b": 2}',
    ],
)
def test_json_array_that_is_broken_is_refused_as_a_whole(data: bytes) -> None:
    """Where it is unknown what the elements are, the table is refused, with a line."""
    with pytest.raises(InputError, match=r"line|neither"):
        _array(data)


def test_json_file_of_lines_is_read_as_lines() -> None:
    """A .json file that holds one object a line is what it holds."""
    assert [row.fields for row in _array(b'\n{"a": 1}\n\n{"a": 2}\n')] == [{"a": 1}, {"a": 2}]
    assert [row.line for row in _array(b'\n{"a": 1}\n\n{"a": 2}\n')] == [2, 4]


def test_json_lines_that_are_an_array_say_so() -> None:
    """An array under the name of lines is refused with the way out, not row by row."""
    with pytest.raises(InputError, match="array"):
        _lines(b'[\n{"a": 1},\n{"a": 2}\n]\n')


# --- CSV -------------------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), min_size=1),
        min_size=2,
        max_size=4,
        unique=True,
    ),
    st.lists(
        st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r")), min_size=4, max_size=4),
        max_size=4,
    ),
    st.sampled_from([",", ";", "\t", "|"]),
)
def test_csv_cells_survive_writing_and_reading(header: list[str], rows: list[list[str]], delimiter: str) -> None:
    """What the csv module writes comes back cell by cell, all text, in the header's order."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, delimiter=delimiter, quoting=csv.QUOTE_ALL)
    writer.writerow(header)
    cut = [row[: len(header)] for row in rows]
    writer.writerows(cut)
    found = _csv(buffer.getvalue().encode(), delimiter)
    assert [list(row.fields.items()) for row in found] == [list(zip(header, row, strict=True)) for row in cut]
    assert [json.loads(row.data) for row in found] == [row.fields for row in found]


@pytest.mark.parametrize(
    ("header", "delimiter"),
    [
        ("id;image;question", ";"),
        ("id,image,question", ","),
        ("id\timage", "\t"),
        ("a|b|c", "|"),
        ("one", ","),
        ('"a,b,c,d";"x"', ";"),
        ("a,b;c", ","),
    ],
)
def test_sniff_takes_the_most_frequent_outside_quotes(header: str, delimiter: str) -> None:
    """The rule is one line, and this is its table."""
    assert sniff(header) == delimiter


def test_csv_sep_line_names_the_delimiter() -> None:
    """A spreadsheet's first line sep=; is no header, and lines are still counted with it."""
    (row,) = _csv(b"sep=;\r\nid;text\r\n1;a,b\r\n")
    assert (row.line, row.fields) == (3, {"id": "1", "text": "a,b"})


def test_csv_lines_are_those_of_an_editor() -> None:
    """Blank lines and line breaks inside quotes count; a row's line is where it begins."""
    rows = _csv(b'\n\nid,text\n1,"two\nlines"\n\n  \n2,x\n3\n4,y,z\n5,\x00\n6,end')
    assert [(row.line, row.fault.code if row.fault else row.fields["id"]) for row in rows] == [
        (4, "1"),
        (8, "2"),
        (9, "cells"),
        (10, "cells"),
        (11, "nul"),
        (12, "6"),
    ]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'a,b\n1,"open\n2,x\n', "lines 2 to 3"),
        (b'a,b\n1,"x"y\n2,x\n', "line 2"),
        (b"a,b\r1,2\r", "line 1"),
        (b"a,b\n1,\xe4\n", "line 2 is not UTF-8 .byte 3"),
        (b"a,a\n1,2\n", "header"),
        (b"a,\n1,2\n", "header"),
    ],
)
def test_csv_that_cannot_be_cut_into_rows_is_refused_as_a_whole(data: bytes, said: str) -> None:
    """Faults after which row borders are unknown name their line and stop the table."""
    with pytest.raises(InputError, match=said):
        _csv(data)


def test_csv_delimiter_of_two_characters_is_wrong_usage() -> None:
    """A delimiter is one character."""
    with pytest.raises(InputError, match="one character"):
        _csv(b"a;;b\n", ";;")


# --- encodings -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
def test_tables_are_read_by_their_mark(encoding: str) -> None:
    """A byte order mark names the encoding, for lines and for CSV."""
    assert [r.fields for r in _lines('{"a": "ü\u2028"}\n{"a": 2}\n'.encode(encoding))] == [{"a": "ü\u2028"}, {"a": 2}]
    assert [r.fields for r in _csv("a,b\nü,2\n".encode(encoding))] == [{"a": "ü", "b": "2"}]


def test_tables_are_read_in_the_named_encoding() -> None:
    """--encoding serves what has no mark; the row's bytes are then UTF-8."""
    (row,) = _lines('{"a": "Äpfel"}\n'.encode("latin-1"), "latin-1")
    assert row.data == '{"a": "Äpfel"}'.encode()
    assert _csv("a,b\nÄ,1\n".encode("cp1252"), None, "cp1252")[0].fields == {"a": "Ä", "b": "1"}


@pytest.mark.parametrize("name", ["latin-nope", "base64", "rot13", ""])
def test_unknown_encodings_are_wrong_usage(name: str) -> None:
    """What is no encoding of text is said to be none."""
    with pytest.raises(InputError, match="--encoding"):
        _lines(b"{}", name)


def test_wrong_encoding_is_refused_as_a_whole() -> None:
    """Bytes that the named encoding has not are never replaced."""
    with pytest.raises(InputError, match="not ascii"):
        _lines(b'{"a": "\xe4"}', "ascii")
    with pytest.raises(InputError, match="not utf-16"):
        _csv(b"\xff\xfea\x00,")


# --- any bytes -------------------------------------------------------------------------------------------------

_PIECES = st.sampled_from(
    [
        *(b'{"image": "a.jpg", "id": 1}', b"id,image,question\n", b'"\\ud800"', b"sep=;\n", b"NaN", b"null", b"1e999"),
        *(b"{", b"}", b"[", b"]", b",", b'"', b"\\", b"\n", b"\r\n", b"\r", b"\0", b";", b"\t", b" ", b"a.jpg"),
        *(b"\xef\xbb\xbf", b"\xff\xfe", b"\xff"),
    ]
)
_ANY = st.binary(max_size=80) | st.lists(_PIECES, max_size=25).map(b"".join)


@settings(max_examples=400)
@given(
    _ANY,
    st.sampled_from(["t.jsonl", "t.json", "t.csv", "t.tsv"]),
    st.sampled_from([None, "latin-1", "utf-16", "shift_jis"]),
)
def test_any_bytes_give_items_rejections_or_our_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, name: str, encoding: str | None
) -> None:
    """No bytes make a reader fail in any other way, and indices count every row once."""
    folder = tmp_path_factory.getbasetemp() / "fuzz"
    folder.mkdir(exist_ok=True)
    (folder / "a.jpg").write_bytes(b"x")
    (folder / name).write_bytes(data)
    options = SourceOptions(image_fields=("image",), prompt="what?", id_fields=("id",), encoding=encoding)
    try:
        made = list(open_source([str(folder / name)], options))
    except InputError:
        return
    assert [one.index for one in made] == list(range(len(made)))
    for one in made:
        assert isinstance(one, Item | Rejected)
        if isinstance(one, Item):
            json.loads(one.row)
            assert b"\n" not in one.row


@given(
    st.lists(
        st.sampled_from([b'{"image": "a.jpg"}', b'{"image": "none.jpg"}', b"{", b"", b"[]"]), min_size=1, max_size=8
    )
)
def test_items_and_rejections_add_up_to_the_rows(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> None:
    """Every row that is not blank becomes exactly one of the two, in order."""
    folder = tmp_path_factory.getbasetemp() / "law"
    folder.mkdir(exist_ok=True)
    (folder / "a.jpg").write_bytes(b"x")
    (folder / "t.jsonl").write_bytes(b'{"image": "a.jpg"}\n' + b"\n".join(lines))
    source = open_source([str(folder / "t.jsonl")], SourceOptions(image_fields=("image",), prompt="what?"))
    made = list(source)
    rows = [(at, line) for at, line in enumerate([b'{"image": "a.jpg"}', *lines], start=1) if line]
    assert [(one.source_line, isinstance(one, Item)) for one in made] == [(at, b"a.jpg" in line) for at, line in rows]


@pytest.mark.parametrize("name", ["t.json", "t.jsonl"])
def test_long_string_of_escapes_costs_a_few_times_its_size(tmp_path: Path, name: str) -> None:
    """A field of a megabyte of escapes and brackets is read in memory of its own order, not hundreds of times more."""
    (tmp_path / "a.jpg").write_bytes(b"x")
    row = b'{"image":"a.jpg","pad":"' + b"[\\n" * 500_000 + b'"}'
    (tmp_path / name).write_bytes(b"[" + row + b"]" if name.endswith("json") else row)
    options = SourceOptions(image_fields=("image",), prompt="what?")
    tracemalloc.start()
    try:
        (item,) = open_source([str(tmp_path / name)], options)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(item, Item)
    assert item.row == row
    assert peak < 12 * len(row)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"delimiter": ";"}, "CSV and TSV"), ({"follow_links": True}, "--follow-links speaks of folders")],
)
def test_options_that_no_table_heeds_are_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    """An option that would do nothing is a misunderstanding."""
    (tmp_path / "t.jsonl").write_bytes(b'{"image": "a.jpg"}')
    with pytest.raises(InputError) as caught:
        open_source([str(tmp_path / "t.jsonl")], SourceOptions(prompt="what?", **options))
    assert said in str(caught.value.problems[0])
