"""The run folder: opening, ids, locks, schema versions."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sendable import make_run
from vlmbatch import jsonl, rundir
from vlmbatch.errors import InputError, IntegrityError, SchemaVersionError
from vlmbatch.freeze import custom_id
from vlmbatch.rundir import Draft, IdIndex, Lock, RunDir

if TYPE_CHECKING:
    from pathlib import Path

    from vlmbatch.records import Event

_hex8 = st.text("0123456789abcdef", min_size=8, max_size=8)


@given(
    rows=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=30),
    row=st.integers(0, 40),
    place=st.integers(0, 90),
    byte=st.sampled_from(list(b'0123456789abcdefABCDEF-" ')),
)
def test_index_reads_ids_off_a_line_as_it_reads_them_by_themselves(
    rows: list[int], row: int, place: int, byte: int
) -> None:
    """Whatever stands in an attempt's id and hash: read off its bytes it names the same line, or none."""
    names = [custom_id("abc123", number, f"{digits:08x}") for number, digits in enumerate(rows)]
    hashes = [jsonl.sha256(name.encode()) for name in names]
    index = IdIndex("abc123")
    index.add_lines(
        b'{"custom_id":"%b","line_sha256":"%b"}\n' % (name.encode(), digest.encode())
        for name, digest in zip(names, hashes, strict=True)
    )
    which = row % len(names)
    line = bytearray(
        b'{"custom_id":"%b","line_sha256":"%b","answered":true}' % (names[which].encode(), hashes[which].encode())
    )
    start = len(b'{"custom_id":"')
    assert index.at(bytes(line), start) == index.position(names[which], hashes[which]) == which
    line[start + place % 60] = byte
    raw = bytes(line)
    told = jsonl.parse_object(raw) or {}
    found = index.position(told.get("custom_id"), told.get("line_sha256", ""))
    assert index.at(raw, start) in {found, -1}


@given(st.dictionaries(st.integers(0, 3_000_000), _hex8, max_size=30), st.integers(0, 3_000_001), _hex8)
def test_id_index_knows_its_own_ids_alone(ids: dict[int, str], other: int, tail: str) -> None:
    """Every id of the manifest is found at its line; any other one, alike or not, is found nowhere."""
    stem = "x_abc123"
    index = IdIndex(stem)
    for number, digits in sorted(ids.items()):
        index.add(custom_id(stem, number, digits))
    for position, (number, digits) in enumerate(sorted(ids.items())):
        assert index.position(custom_id(stem, number, digits)) == position
    if ids.get(other) != tail:
        assert index.position(custom_id(stem, other, tail)) == -1
    for foreign in ("", "x", f"{stem}-1", f"{stem}-٣-{tail}", f"y_abc123-000001-{tail}", None, 7, f"{stem}-1-zzzzzzzz"):
        assert index.position(foreign) == -1


def test_id_index_takes_an_id_as_it_is_written_alone() -> None:
    """The same numbers written otherwise are no id of the manifest: fewer or more zeros, capital digits."""
    index = IdIndex("abc123")
    index.add("abc123-000001-7c82785f")
    assert index.position("abc123-000001-7c82785f") == 0
    for other in ("abc123-1-7c82785f", "abc123-0000001-7c82785f", "abc123-000001-7C82785F"):
        assert index.position(other) == -1


@given(st.text("ab\\\"',:{}rowé\n ", max_size=30), st.text("ab\\\"',:{}row", max_size=30))
def test_parse_entry_cuts_the_row_where_it_stands(path: str, cell: str) -> None:
    """Whatever a path or a cell holds, the row comes out byte for byte."""
    row = json.dumps({"row": cell, ',"row":': [cell]}).encode()
    image = {"path": path, "sha256": "0" * 64, "bytes": 1, "width": 1, "height": 1, "media_type": "image/png"}
    head = {
        "custom_id": "a",
        "shard": "shards/00000.jsonl",
        "offset": 0,
        "length": 1,
        "body_offset": 0,
        "body_length": 1,
        "inner_sha256": "",
        "line_sha256": "",
        "images": [image],
    }
    line = json.dumps(head, separators=(",", ":")).encode()[:-1] + b',"row":' + row + b"}"
    entry = rundir.parse_entry(line, 0)
    assert entry.row == row
    assert entry.images == [image]
    assert rundir.parse_head(line, 0)["images"] == [image]


_HEAD = (
    b'{"custom_id":"a","shard":"s","offset":0,"length":1,"body_offset":0,"body_length":1,'
    b'"inner_sha256":"","line_sha256":"","images":[]'
)


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b"7",
        b"{}",
        _HEAD + b"}",
        _HEAD.replace(b'"shard":"s",', b"") + b',"row":{}}',
        _HEAD[:-1] + b',"row":{}}',
        _HEAD.replace(b'"custom_id"', b'"custom\xff"') + b',"row":{}}',
    ],
)
def test_damaged_manifest_line_is_named(line: bytes) -> None:
    """Whether the whole line is wanted or its head alone, damage is an integrity error that names the line."""
    for parse in (rundir.parse_entry, rundir.parse_head):
        with pytest.raises(IntegrityError, match="line 8 is damaged"):
            parse(line, 7)


@pytest.mark.parametrize("row", [b"[" * 3000 + b"]" * 3000, b"123456789012345678901234567890", b'"\\ud800"', b"{ }"])
def test_head_does_not_depend_on_what_the_row_holds(row: bytes) -> None:
    """A row of any depth, any number, any text: the head is read, and the row is kept byte for byte."""
    line = _HEAD + b',"row":' + row + b"}"
    assert rundir.parse_head(line, 0)["custom_id"] == "a"
    assert rundir.parse_entry(line, 0).row == row


def test_iter_entries_passes_over_blank_lines_and_the_bom(tmp_path: Path) -> None:
    """Lines are counted as they stand for requests; how an editor ended them does not matter."""
    line = _HEAD + b',"row":{"a":" "}}'
    run = RunDir(str(tmp_path), {}, b"")  # type: ignore[typeddict-item]
    (tmp_path / "manifest.jsonl").write_bytes(b"\xef\xbb\xbf" + line + b"\r\n\n  \n" + line)
    assert [(entry.position, entry.row) for entry in run.iter_entries()] == [(0, b'{"a":" "}'), (1, b'{"a":" "}')]


def test_iter_entries_of_a_missing_manifest_is_an_integrity_fault(tmp_path: Path) -> None:
    """A folder without its manifest is damaged, and says so in words."""
    run = RunDir(str(tmp_path), {}, b"")  # type: ignore[typeddict-item]
    with pytest.raises(IntegrityError, match=r"manifest\.jsonl cannot be read"):
        next(run.iter_entries())


@pytest.mark.parametrize("ref", [{"sha256": "0"}, {"file": "manifest.jsonl"}, "manifest.jsonl", ["manifest.jsonl"]])
@pytest.mark.parametrize("key", ["manifest", "shards", "inputs", "rejected"])
def test_file_named_without_its_name_or_hash_is_an_integrity_fault(key: str, ref: object) -> None:
    """A run.json whose damage left it JSON is named as damaged, whichever reference was hit."""
    info = {"manifest": {"file": "manifest.jsonl", "sha256": "0"}, "shards": []}
    run = RunDir("run", info | {key: [ref] if key in {"shards", "inputs"} else ref}, b"")  # type: ignore[arg-type]
    with pytest.raises(IntegrityError, match=r"run\.json: names a file without its name or its hash"):
        run.frozen_files()


@pytest.mark.parametrize(
    ("path", "message", "hint"),
    [
        ("none", "there is no such folder", "check the path; give the folder that build made"),
        ("dangling", "there is no such folder", "check the path"),
        ("empty", "not a run folder (it holds no run.json)", "give the folder that build made"),
        ("file", "a file, not a run folder", "give the folder that build made"),
        ("file/run", "there is no such folder", "check the path"),
        ("run/run.json", "a file, not a run folder", "give {place}/run"),
        ("odd", "run.json cannot be read (Is a directory)", "check its rights"),
    ],
)
def test_open_what_is_no_run_folder_says_what_to_give(tmp_path: Path, path: str, message: str, hint: str) -> None:
    """Nothing there, a folder of something else, a file: each is told as what it is, with what to do."""
    for folder in ("empty", "run", "odd/run.json"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("file", "run/run.json"):
        (tmp_path / file).write_text("{}")
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(InputError) as caught:
        RunDir.open(tmp_path / path)
    assert caught.value.message == f"{tmp_path / path}: {message}"
    assert caught.value.hint.startswith(hint.format(place=tmp_path))


def test_open_newer_major_is_refused(tmp_path: Path) -> None:
    """A folder written by a newer major version is refused, with exit status 2."""
    (tmp_path / "run.json").write_text('{"schema":"vlmbatch.run/2"}')
    with pytest.raises(SchemaVersionError) as caught:
        RunDir.open(tmp_path)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", "a\\b"])
def test_file_never_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    """A name in run.json that leads out of the folder is an integrity error, not an open file."""
    run = RunDir(str(tmp_path), {}, b"")  # type: ignore[typeddict-item]
    with pytest.raises(IntegrityError):
        run.file(name)


def test_lock_second_holder_is_refused(tmp_path: Path) -> None:
    """One part of a run has one worker; another part may have its own."""
    with Lock(str(tmp_path), "all"):
        with pytest.raises(InputError, match="another process"), Lock(str(tmp_path), "all"):
            pass
        with Lock(str(tmp_path), "0001"):
            pass
    with Lock(str(tmp_path), "all"):
        pass


@pytest.mark.parametrize("code", [errno.ENOTSUP, errno.EPERM, errno.ENOLCK])
def test_lock_that_the_file_system_refuses_is_no_other_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Where the file system has no locks, the folder and the reason are named, and nobody is sent to wait."""

    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(InputError) as caught, Lock(str(tmp_path), "all"):
        raise AssertionError("unreachable")
    assert str(caught.value) == f"{tmp_path}: cannot be locked ({os.strerror(code)})"


def test_lock_in_a_place_that_takes_no_file_is_refused_in_words(tmp_path: Path) -> None:
    """Where the lock file cannot even be made, that is said, not a traceback."""
    (tmp_path / ".locks").write_bytes(b"")
    with pytest.raises(InputError, match=r"cannot be locked \("), Lock(str(tmp_path), "all"):
        raise AssertionError("unreachable")


def test_verify_that_is_stopped_reads_no_further_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while a large folder is checked waits for the files in hand, not for all of them."""
    run = make_run(tmp_path / "run", 60, per_shard=1)
    read: list[str] = []
    is_stopped = threading.Event()
    hashed = jsonl.sha256_file

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            is_stopped.set()
            super().shutdown(wait)

    def counted(path: str) -> tuple[str, int]:
        read.append(path)
        if len(read) > 1:
            is_stopped.wait(10)
        return hashed(path)

    def interrupted(event: Event) -> None:
        if event.kind == "progress":
            raise KeyboardInterrupt

    monkeypatch.setattr("vlmbatch.rundir.checks.ThreadPoolExecutor", Pool)
    monkeypatch.setattr(jsonl, "sha256_file", counted)
    with pytest.raises(KeyboardInterrupt):
        run.verify(on_event=interrupted)
    assert len(read) < 10


def test_draft_without_publish_leaves_nothing(tmp_path: Path) -> None:
    """A build that ends early leaves neither folder nor parents."""
    target = tmp_path / "a" / "b" / "run"

    def end_early() -> None:
        with Draft(target) as draft:
            draft.write("inputs/x", b"1")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        end_early()
    assert list(tmp_path.iterdir()) == []


def test_draft_is_published_where_the_disk_has_no_write_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Network and memory-card file systems refuse chmod; the hashes guard the files there too."""

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "chmod", refuse)
    run = make_run(tmp_path / "run", 3)
    run.verify()


def test_draft_that_cannot_be_made_whole_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk refuses in the middle of making it, the target is named and no part and no parent is left."""
    monkeypatch.setattr("vlmbatch.rundir.draft.INPUTS", "x" * 300)  # no file system takes that name
    with pytest.raises(InputError, match="run: cannot be written"), Draft(tmp_path / "deep" / "run"):
        raise AssertionError("unreachable")
    assert list(tmp_path.iterdir()) == []


def test_draft_below_a_file_is_refused_in_words(tmp_path: Path) -> None:
    """A target whose parent is a file cannot be made."""
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(InputError, match="cannot be written"), Draft(tmp_path / "file" / "run"):
        raise AssertionError("unreachable")
    assert (tmp_path / "file").read_bytes() == b"x"
