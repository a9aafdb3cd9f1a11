"""Bytes: serialising, reading back, and the three writers."""

from __future__ import annotations

import contextlib
import json
import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmbatch import jsonl

if TYPE_CHECKING:
    from collections.abc import Iterator

_text = st.text(st.characters(codec=None, categories=None), max_size=20)  # lone surrogates included
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_text, inner, max_size=4),
    max_leaves=12,
)


@given(_values)
def test_dumps_reads_back_equal(value: Any) -> None:
    """Whatever JSON can hold, huge integers and lone surrogates too, survives writing and reading."""
    data = jsonl.dumps(value)
    assert b"\n" not in data
    assert jsonl.loads(data) == value


@given(_values)
def test_dumps_splices_fragments_as_they_stand(value: Any) -> None:
    """A fragment's bytes stand in the line unchanged."""
    inner = json.dumps(value, indent=None).encode()
    assert jsonl.dumps({"a": 1, "row": jsonl.Fragment(inner)}) == b'{"a":1,"row":' + inner + b"}"


@pytest.mark.parametrize("beside", ["\ud83d", 2**64, {"a": ["\ud83d"]}])
def test_dumps_splices_fragments_beside_what_is_written_slowly(beside: Any) -> None:
    """Digits and spaces of a fragment stand, also where the value needs the standard library."""
    value = {"beside": beside, "rows": [jsonl.Fragment(b'{ "a":1.10}'), jsonl.Fragment(b"[2.0 ]")]}
    for data in (jsonl.dumps(value), jsonl.dumps_pretty(value)):
        assert data.index(b'{ "a":1.10}') < data.index(b"[2.0 ]")
        assert jsonl.loads(data) == {"beside": beside, "rows": [{"a": 1.1}, [2.0]]}


@pytest.mark.parametrize(
    "bad", [b"NaN", b"[1,Infinity]", b"-Infinity", b'{"a":1,}', b"", b"\xff", b"{", b"[" * 100_000]
)
def test_loads_refuses_what_is_not_json(bad: bytes) -> None:
    """NaN, stray commas, half values, bad UTF-8 and bottomless nesting are one kind of error."""
    with pytest.raises(ValueError):  # noqa: PT011  (any wording)
        jsonl.loads(bad)


def test_loads_keeps_a_lone_surrogate() -> None:
    """A lone surrogate escape is no damage."""
    assert jsonl.loads(b'{"a":"\\ud83d"}') == {"a": "\ud83d"}


@given(_values)
def test_one_line_changes_no_value(value: Any) -> None:
    """Pretty JSON put on one line still says the same."""
    pretty = json.dumps(value, indent=2).replace("\n", "\r\n").encode()
    line = jsonl.one_line(pretty)
    assert b"\n" not in line
    assert jsonl.loads(line) == value


@given(
    lines=st.lists(st.binary(min_size=1, max_size=8), max_size=6),
    cut=st.integers(0, 60),
    more=st.binary(min_size=1, max_size=5),
)
def test_appender_never_glues_onto_a_torn_line(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], cut: int, more: bytes
) -> None:
    """Wherever a crash cut the file, what stands in it is kept and the next line starts on a line of its own."""
    path = tmp_path_factory.mktemp("append") / "a.jsonl"
    before = b"".join(line.replace(b"\n", b"_") + b"\n" for line in lines)[:cut]
    path.write_bytes(before)
    ours = more.replace(b"\n", b"_")
    with jsonl.Appender(os.fspath(path)) as file:
        file.append(ours)
    after = path.read_bytes()
    assert after.startswith(before)
    assert after.split(b"\n")[-2] == ours
    assert after.endswith(b"\n")


@given(parts=st.lists(st.binary(max_size=9).map(lambda b: b.replace(b"\n", b"x").replace(b"\r", b"y")), max_size=8))
def test_iter_lines_offsets_point_at_the_data(tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]) -> None:
    """Each line's offset is where its bytes stand, blank lines and a BOM notwithstanding."""
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    data = jsonl.BOM + b"\r\n".join(parts)
    path.write_bytes(data)
    found = list(jsonl.iter_lines(os.fspath(path)))
    assert [line.data for line in found] == [p for p in parts if p.strip()]
    for line in found:
        assert data[line.offset : line.offset + len(line.data)] == line.data


def test_write_atomic_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When replacing fails, the old contents stand and no temporary file is left."""
    path = tmp_path / "a.json"
    path.write_bytes(b"old")

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="No space"):
        jsonl.write_atomic(os.fspath(path), b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text())
def test_loads_exact_keeps_every_digit(value: Any) -> None:
    """Whole numbers of any size come back as they are, and nothing else comes back otherwise than from loads."""
    data = json.dumps({"a": [value]}).encode()
    assert jsonl.loads_exact(data) == json.loads(data)
    assert type(jsonl.loads_exact(data)["a"][0]) is type(value)
    with pytest.raises(ValueError, match="NaN is not JSON"):
        jsonl.loads_exact(b'{"a": 1234567890123456789012, "b": NaN}')


@contextlib.contextmanager
def _little_room() -> Iterator[None]:
    """Let no file grow beyond 64 kB: the system refuses a write as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_write_that_fails_names_the_file(tmp_path: Path) -> None:
    """Whoever writes, in pieces or at once or line by line: the error names the file that was meant."""
    whole, new, lines = (str(tmp_path / name) for name in ("whole", "new", "lines"))
    data = bytes(1 << 21)
    with _little_room():
        with pytest.raises(OSError, match="whole") as told_whole:
            jsonl.write_atomic(whole, data)
        with pytest.raises(OSError, match="new") as told_new, jsonl.new_file(new) as file:
            file.write(data)
        with pytest.raises(OSError, match="lines") as told_lines, jsonl.Appender(lines) as appender:
            appender.append(data)
    assert [told.value.filename for told in (told_whole, told_new, told_lines)] == [whole, new, lines]
    assert not os.path.exists(whole)


def test_file_that_cannot_be_made_is_named_as_it_was_asked_for(tmp_path: Path) -> None:
    """The temporary name beside it is nobody's business."""
    path = str(tmp_path / "none" / "out.jsonl")
    with pytest.raises(FileNotFoundError) as told:
        jsonl.write_atomic(path, b"")
    assert told.value.filename == path
