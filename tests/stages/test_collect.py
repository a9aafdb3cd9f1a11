"""Results become records: exactly one each, by the overlay's rules, whatever files they stand in."""

from __future__ import annotations

import os
import resource
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stages.result_runs import EARLIER, attempt, completion, failed, make_run, records, write_results
from vlmbatch import jsonl, providers
from vlmbatch.errors import InputError, IntegrityError, VlmbatchError
from vlmbatch.journal import in_flight
from vlmbatch.records import BATCH_SCHEMA, MODEL_ANSWERS, Record, Status
from vlmbatch.resume import read_standing
from vlmbatch.stages.collect import CollectOptions, collect
from vlmbatch.stages.report import write_report

if TYPE_CHECKING:
    from vlmbatch.rundir import RunDir


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return make_run(tmp_path / "run", 3)


def _collect(run: RunDir, *results: str, **options: Any) -> list[dict[str, Any]]:
    write = run.file("merged.jsonl")
    collect(run, results, CollectOptions(write=write, **options))
    return records(write)


# --- one record each -----------------------------------------------------------------------------------------


def test_records_have_every_key_always(run: RunDir) -> None:
    """An answered, a failed and a missing row have the same keys: those of the published shape."""
    write_results(run, "a.jsonl", [attempt(run, 0, completion("a")), failed(run, 1)])
    merged = _collect(run)
    assert [record["status"] for record in merged] == ["ok", "http_error", "missing"]
    for record in merged:
        assert set(record) == set(Record.__annotations__)


def test_records_stand_in_manifest_order(run: RunDir) -> None:
    """The order of answers does not matter."""
    write_results(run, "a.jsonl", [attempt(run, n, completion(f"answer {n}")) for n in (2, 0, 1)])
    merged = _collect(run)
    assert [record["custom_id"] for record in merged] == [entry.custom_id for entry in run.iter_entries()]
    assert [record["text"] for record in merged] == ["answer 0", "answer 1", "answer 2"]
    assert [record["source_line"] for record in merged] == [2, 3, 1]


def test_record_of_a_missing_row_knows_its_inputs_alone(run: RunDir) -> None:
    """A row without an attempt keeps its images and row; all else is null."""
    (missing, *_) = _collect(run)
    (entry, *_) = run.iter_entries()
    assert missing["images"] == entry.images
    assert missing["row"] == {}
    told = {key for key, value in missing.items() if value not in (None, [], {}, False)}
    assert told == {"custom_id", "status", "reason", "usage", "images"}
    assert set(missing["usage"].values()) == {None}


@pytest.mark.parametrize(
    "row",
    [
        b'{"a":1.10,"b":123456789012345678901234567890,"row":{"images":[1]},"z":"\\u00e9\\"row\\":"}',
        b'{ "k" : [ 1 , 2 ] }',
        b'{"output":"x","source_line":7,"images":null}',
        '{"täg":"\U0001f600\u2028"}'.encode(),
    ],
)
def test_record_row_is_the_input_byte_for_byte(tmp_path: Path, row: bytes) -> None:
    """Digits, key order, spaces and escapes of the input row survive."""
    run = make_run(tmp_path / "run", [row, row])
    write_results(run, "a.jsonl", [attempt(run, 0, completion("a"))])
    write = run.file("merged.jsonl")
    collect(run, (), CollectOptions(write=write))
    lines = Path(write).read_bytes().splitlines()
    assert all(b'"row":' + row + b"}" in line for line in lines)
    assert [jsonl.loads(line)["row"] for line in lines] == [jsonl.loads(row)] * 2


def test_record_text_with_a_lone_surrogate_is_kept(run: RunDir) -> None:
    """Half a character pair goes through as an escape; the file stays strict JSON."""
    line = jsonl.dumps(attempt(run, 0, completion("MARK"))).replace(b"MARK", b"\\ud83d")
    write_results(run, "a.jsonl", [line + b"\n"])
    assert _collect(run)[0]["text"] == "\ud83d"


@given(text=st.text(max_size=40), blank=st.sampled_from(["", " ", "\n"]))
def test_record_text_is_what_the_model_said(tmp_path: Path, text: str, blank: str) -> None:
    """Any text comes out as it went in, on one line."""
    folder = tmp_path / str(len(os.listdir(tmp_path)))
    run = make_run(folder, 1)
    said = f"word {text}{blank}"
    write_results(run, "a.jsonl", [attempt(run, 0, completion(said))])
    write = run.file("merged.jsonl")
    collect(run, (), CollectOptions(write=write))
    assert Path(write).read_bytes().count(b"\n") == 1
    assert records(write)[0]["text"] == said


# --- the overlay ---------------------------------------------------------------------------------------------

_ANSWERS: dict[str, Any] = {
    "ok": completion("fine"),
    "truncated": completion("fi", finish="length"),
    "empty": completion(""),
    "refusal": completion(None, finish="content_filter"),
    "http_error": 500,
    "network_error": None,
}
_KINDS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(sorted(_ANSWERS))), max_size=8)


def _attempt(run: RunDir, position: int, kind: str, at: int) -> dict[str, Any]:
    answer = _ANSWERS[kind]
    return failed(run, position, at=at) if answer == 500 else attempt(run, position, answer, at=at)


def _by_the_book(kinds: list[tuple[int, str]], position: int) -> str:
    """Return the status that the contract's sentence gives: ok before answers before failures, else the later one."""
    winner = "missing"
    for where, kind in kinds:
        if where != position:
            continue
        old_is_firm = winner == "ok" and kind != "ok"
        was_answer = winner in MODEL_ANSWERS and kind not in MODEL_ANSWERS
        if not old_is_firm and not was_answer:
            winner = kind
    return winner


@given(kinds=_KINDS, cuts=st.sets(st.integers(0, 8)), names=st.permutations([0, 1, 2, 3, 4, 5, 6, 7, 8]))
def test_merging_is_the_same_however_results_are_split(
    tmp_path: Path, kinds: list[tuple[int, str]], cuts: set[int], names: list[int]
) -> None:
    """Cut into files that keep the order, and named at will, the same attempts make the same records."""
    folder = tmp_path / str(len(os.listdir(tmp_path)))
    run = make_run(folder, 3)
    values = [_attempt(run, where, kind, at) for at, (where, kind) in enumerate(kinds)]
    one = write_results(run, "one.jsonl", values)
    write = run.file("merged.jsonl")
    summary = collect(run, [one], CollectOptions(write=write)).summary
    whole = records(write)
    bounds = sorted({0, len(values), *(cut for cut in cuts if cut < len(values))})
    parts = [
        write_results(run, f"part-{names[number]}.jsonl", values[start:end])
        for number, (start, end) in enumerate(pairwise(bounds))
    ]
    os.unlink(one)
    split_summary = collect(run, (), CollectOptions(write=write)).summary
    assert [_without_place(record) for record in records(write)] == [_without_place(record) for record in whole]
    assert {**split_summary, "files": 0, "merged": 0} == {**summary, "files": 0, "merged": 0}
    assert len(split_summary["files"]) == len(parts)
    for position, record in enumerate(whole):
        assert record["status"] == _by_the_book(kinds, position)
        assert len(record["superseded"]) == max(sum(where == position for where, _ in kinds) - 1, 0)
    assert sum(summary["counts"].values()) == len(whole) == summary["requests"] == 3


def _without_place(record: dict[str, Any]) -> dict[str, Any]:
    beaten = [{k: v for k, v in one.items() if k not in {"source_file", "source_line"}} for one in record["superseded"]]
    return {**record, "source_file": None, "source_line": None, "superseded": beaten}


def test_superseded_attempts_are_listed_with_place_and_tokens(run: RunDir) -> None:
    """What an attempt beat stands beside it, in the order of reading, so that all tokens can be summed from records."""
    write_results(run, "b.jsonl", [attempt(run, 0, completion("first", made=5), at=1), failed(run, 0, at=2)])
    write_results(run, "a.jsonl", [attempt(run, 0, completion("second", made=7), at=3)])
    (record, *_) = _collect(run)
    assert record["text"] == "second"
    assert [(one["source_file"], one["source_line"], one["status"]) for one in record["superseded"]] == [
        ("results/b.jsonl", 1, "ok"),
        ("results/b.jsonl", 2, "http_error"),
    ]
    assert [one["usage"]["output_tokens"] for one in record["superseded"]] == [5, None]


# --- which files ---------------------------------------------------------------------------------------------


def test_rehearsals_count_nowhere_unless_asked_and_then_alone(run: RunDir) -> None:
    """By name or by mark, a rehearsed answer is no answer; asked for, nothing else is one, and every output says so."""
    real = write_results(
        run, "full.jsonl", [attempt(run, 0, completion("real")), attempt(run, 1, completion("made up"), rehearsal=True)]
    )
    dress = write_results(run, "rehearsal-1.jsonl", [attempt(run, 2, completion("dress"), rehearsal=True)])
    merged = _collect(run, real, dress)
    assert [record["status"] for record in merged] == ["ok", "missing", "missing"]
    assert not any(record["rehearsal"] for record in merged)
    result = collect(run, [real, dress], CollectOptions(write=run.file("merged.jsonl"), rehearsal=True))
    assert result.summary["rehearsal"] is True
    assert result.summary["counts"]["ok"] == 1
    assert [r["rehearsal"] for r in records(run.file("merged.jsonl")) if r["status"] == "ok"] == [True]


def test_a_file_named_twice_is_read_once(run: RunDir) -> None:
    """The same file under two names does not double its attempts."""
    path = write_results(run, "a.jsonl", [attempt(run, 0, completion("a"))])
    summary = collect(run, [path, os.path.join(run.path, ".", "results", "a.jsonl")]).summary
    assert summary["attempts"] == {"total": 1, "superseded": 0}


def test_results_that_are_not_there_are_all_named(run: RunDir) -> None:
    """A pattern that matched nothing, or a wrong path, is an error that names each."""
    with pytest.raises(InputError) as caught:
        collect(run, ["nope-1.jsonl", "nope-2.jsonl"])
    assert [problem.where for problem in caught.value.problems] == ["nope-1.jsonl", "nope-2.jsonl"]


def test_results_elsewhere_are_named_by_base_name(run: RunDir, tmp_path: Path) -> None:
    """A results file outside the folder leaves no absolute path in the records."""
    inside = write_results(run, "a.jsonl", [attempt(run, 0, completion("a"))])
    outside = tmp_path / "copy.jsonl"
    os.rename(inside, outside)
    assert _collect(run, str(outside))[0]["source_file"] == "copy.jsonl"


# --- integrity -----------------------------------------------------------------------------------------------


def test_foreign_lines_are_counted_and_the_first_few_named(run: RunDir) -> None:
    """Results of another run stop collect with their number and some examples, and nothing is written."""
    stranger = attempt(run, 0, completion("a"))
    values = [attempt(run, 0, completion("a"))] + [{**stranger, "custom_id": f"s-{n:06d}-00000000"} for n in range(9)]
    write_results(run, "a.jsonl", values)
    with pytest.raises(IntegrityError, match=r"9 line\(s\)") as caught:
        _collect(run)
    assert len(caught.value.problems) == 5
    assert not os.path.exists(run.file("merged.jsonl"))
    assert not os.path.exists(run.file("summary.json"))


@pytest.mark.parametrize("digest", ["0" * 64, "zz", ""])
def test_answer_to_another_line_is_refused(run: RunDir, digest: str) -> None:
    """A known id with another line's hash, or none at all, is an answer to another request."""
    write_results(run, "a.jsonl", [attempt(run, 0, completion("a"), line_sha256=digest)])
    with pytest.raises(IntegrityError):
        collect(run)


@pytest.mark.parametrize("name", ["shards/00000.jsonl", "manifest.jsonl", "inputs/prompt.txt", "run.json"])
def test_reading_alone_checks_every_hash(run: RunDir, name: str) -> None:
    """The reviewer's command finds one changed byte anywhere in the frozen files."""
    path = Path(run.file(name))
    os.chmod(path, 0o600)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(IntegrityError):
        collect(run.path)


def test_writing_checks_the_manifest_it_is_made_of(run: RunDir) -> None:
    """A changed row of the same length is found although the big files are not hashed."""
    path = Path(run.file("manifest.jsonl"))
    os.chmod(path, 0o600)
    path.write_bytes(path.read_bytes().replace(b"set/000.png", b"set/999.png"))
    with pytest.raises(IntegrityError):
        _collect(run)


# --- where things go -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target",
    [
        *("run.json", "manifest.jsonl", "shards/00000.jsonl", "shards/new", "inputs/x", "results/a.jsonl", "results/b"),
        *("SHA256SUMS", "estimates.jsonl", "batches.jsonl", "progress.json", ".", "nowhere/merged.jsonl"),
        *("SEALED.sha256", "verify.py", "report.html", "reviews.jsonl", "REDACTED.json"),
    ],
)
def test_outputs_never_go_over_what_is_not_collects(run: RunDir, target: str) -> None:
    """Frozen files, results and the other stages' files cannot be written over."""
    write_results(run, "a.jsonl", [attempt(run, 0, completion("a"))])
    before = {path: path.read_bytes() for path in Path(run.path).rglob("*") if path.is_file()}
    for option in ("write", "rows", "csv", "retry_ids"):
        with pytest.raises(InputError):
            collect(run, (), CollectOptions(**{option: os.path.join(run.path, target)}))
    assert {path: path.read_bytes() for path in Path(run.path).rglob("*") if path.is_file()} == before


def test_outputs_that_are_one_file_are_refused(run: RunDir) -> None:
    """Two outputs, or an output and the summary, cannot share a place."""
    for other in ("merged.jsonl", "summary.json"):
        with pytest.raises(InputError):
            collect(run, (), CollectOptions(write=run.file("merged.jsonl"), csv=run.file(other)))


def test_records_are_for_write_alone(run: RunDir) -> None:
    """No other output takes the place of merged.jsonl or of the summary."""
    for option in ("rows", "csv", "retry_ids"):
        for name in ("merged.jsonl", "summary.json"):
            with pytest.raises(InputError):
                collect(run, (), CollectOptions(**{option: run.file(name)}))


@pytest.mark.parametrize("name", ["manifest.jsonl", "run.json", "results/a.jsonl", "merged.jsonl", "summary.json"])
def test_outputs_never_go_over_files_of_another_run(run: RunDir, tmp_path: Path, name: str) -> None:
    """A slip in a path does not cost the other run its bytes; an export may stand there."""
    other = make_run(tmp_path / "other", 2)
    write_results(other, "a.jsonl", [attempt(other, 0, completion("a"))])
    before = {path: path.read_bytes() for path in Path(other.path).rglob("*") if path.is_file()}
    for option in ("write", "csv"):
        with pytest.raises(InputError):
            collect(run, (), CollectOptions(**{option: other.file(name)}))
    assert {path: path.read_bytes() for path in Path(other.path).rglob("*") if path.is_file()} == before
    collect(run, (), CollectOptions(csv=other.file("ours.csv")))


def test_outputs_take_the_place_of_no_pipe_and_of_no_input(run: RunDir, tmp_path: Path) -> None:
    """What is no plain file stays what it is (think of /dev/null), and so does a file that is read."""
    pipe, schema = tmp_path / "pipe", tmp_path / "schema.json"
    os.mkfifo(pipe)
    schema.write_bytes(b"{}")
    with pytest.raises(InputError):
        collect(run, (), CollectOptions(csv=str(pipe)))
    with pytest.raises(InputError):
        collect(run, (), CollectOptions(csv=str(schema), json_schema=str(schema)))
    assert pipe.is_fifo()
    assert schema.read_bytes() == b"{}"


def test_output_through_a_link_goes_where_the_link_leads(run: RunDir, tmp_path: Path) -> None:
    """The link stays one, what it points to is replaced whole, and nothing else is left beside either."""
    far = tmp_path / "far"
    far.mkdir()
    (far / "there.jsonl").write_bytes(EARLIER)
    names = {"write": "merged.jsonl", "rows": "rows.jsonl", "csv": "t.csv", "retry_ids": "ids.txt"}
    for name in names.values():
        Path(run.file(name)).symlink_to(far / ("there.jsonl" if name == "merged.jsonl" else name))
    collect(run, (), CollectOptions(**{option: run.file(name) for option, name in names.items()}))  # type: ignore[arg-type]
    assert all(Path(run.file(name)).is_symlink() for name in names.values())
    assert sorted(os.listdir(far)) == ["ids.txt", "rows.jsonl", "t.csv", "there.jsonl"]
    assert len(records(far / "there.jsonl")) == 3
    assert Path(run.file("summary.json")).is_file()


def test_output_through_a_link_onto_a_frozen_file_is_refused(run: RunDir) -> None:
    """A link is no way around what may not be written."""
    Path(run.file("merged.jsonl")).symlink_to(run.file("manifest.jsonl"))
    with pytest.raises(InputError):
        _collect(run)


def test_writing_into_a_sealed_folder_is_said(run: RunDir, tmp_path: Path) -> None:
    """A seal does not know what came after it; what is written elsewhere does not concern it."""
    write = run.file("merged.jsonl")
    assert not collect(run, (), CollectOptions(write=write)).breaks_seal
    Path(run.file("SEALED.sha256")).write_bytes(b"")
    assert not collect(run).breaks_seal
    assert not collect(run, (), CollectOptions(csv=str(tmp_path / "t.csv"))).breaks_seal
    assert collect(run, (), CollectOptions(csv=run.file("t.csv"))).breaks_seal
    assert collect(run, (), CollectOptions(write=write)).breaks_seal


def test_many_outputs_of_a_row_are_told_apart(tmp_path: Path) -> None:
    """More than a byte can number."""
    names = [f"o{number}" for number in range(300)]
    answer = {"json": False, "outputs": {name: {"json": False} for name in names}}
    run = make_run(tmp_path / "many", 1, outputs=names, answer=answer)
    write_results(run, "a.jsonl", [attempt(run, 299, completion("last"))])
    told = collect(run).summary["by_output"]
    assert [name for name in names if told[name]["ok"]] == ["o299"]


def test_reading_alone_leaves_the_folder_as_it_was(run: RunDir) -> None:
    """The reviewer's command works on a folder that nobody may write to."""
    write_results(run, "a.jsonl", [attempt(run, 0, completion("a"))])
    before = sorted(Path(run.path).rglob("*"))
    folders = [path for path in (Path(run.path), *before) if path.is_dir()]
    for folder in folders:
        os.chmod(folder, 0o500)
    try:
        assert collect(run).summary["counts"]["ok"] == 1
        assert sorted(Path(run.path).rglob("*")) == before
    finally:
        for folder in folders:
            os.chmod(folder, 0o700)


@pytest.mark.parametrize(
    ("write", "summary"), [("merged.jsonl", "summary.json"), ("teacher-a.jsonl", "teacher-a.summary.json")]
)
def test_summary_stands_beside_the_records(run: RunDir, tmp_path: Path, write: str, summary: str) -> None:
    """merged.jsonl has summary.json, another name has its own summary; both are whole JSON."""
    result = collect(run, (), CollectOptions(write=str(tmp_path / write)))
    told = jsonl.loads((tmp_path / summary).read_bytes())
    assert told == jsonl.loads(jsonl.dumps(result.summary))
    sha256, size = jsonl.sha256_file(str(tmp_path / write))
    assert told["merged"] == {"file": write, "sha256": sha256, "bytes": size, "records": 3}


def test_collecting_again_gives_the_same_bytes(run: RunDir) -> None:
    """No clock and no order of chance in records or summary."""
    write_results(run, "a.jsonl", [attempt(run, n, completion(f"{n}")) for n in (1, 0)])
    write, summary = Path(run.file("merged.jsonl")), Path(run.file("summary.json"))
    seen = set()
    for _ in range(2):
        collect(run, (), CollectOptions(write=str(write)))
        seen.add((write.read_bytes(), summary.read_bytes()))
    assert len(seen) == 1


def test_a_failure_while_writing_leaves_the_old_files(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the pass breaks off, no output is half new: the old ones stand and no scratch file is left."""
    write_results(run, "a.jsonl", [attempt(run, 0, completion("a"))])
    write, rows = Path(run.file("merged.jsonl")), Path(run.file("rows.jsonl"))
    write.write_bytes(EARLIER)

    def broken(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vlmbatch.stages.collecting.export.RowsSink.put", broken)
    names = sorted(os.listdir(run.path))
    with pytest.raises(OSError, match="No space"):
        collect(run, (), CollectOptions(write=str(write), rows=str(rows)))
    assert write.read_bytes() == EARLIER
    assert sorted(os.listdir(run.path)) == names


REHEARSED = {"rehearsal": True}


@pytest.mark.parametrize(
    ("name", "rehearsal", "said"),
    [
        ("mine.jsonl", False, "holds a rehearsal"),
        ("real.jsonl", True, "holds real answers"),
        ("run/results/rehearsal-1.jsonl", False, "holds a rehearsal"),
        ("run/results/run.jsonl", True, "holds real answers"),
        ("run/manifest.jsonl", False, "no line that is an attempt"),
        ("run/shards/00000.jsonl", False, "no line that is an attempt"),
        ("run/inputs/prompt.txt", False, "no line that is an attempt"),
        ("torn.jsonl", False, "no line that is an attempt"),
    ],
)
def test_named_file_without_results_is_refused(
    name: str, rehearsal: bool, said: str, run: RunDir, tmp_path: Path
) -> None:
    """What the user named is never passed over without a word: the file is named, and why; nothing is written."""
    write_results(run, "run.jsonl", [attempt(run, 0, completion("a"))])
    write_results(run, "rehearsal-1.jsonl", [attempt(run, 0, completion("a"), **REHEARSED)])
    (tmp_path / "mine.jsonl").write_bytes(jsonl.dumps(attempt(run, 0, completion("a"), **REHEARSED)) + b"\n")
    (tmp_path / "real.jsonl").write_bytes(jsonl.dumps(attempt(run, 0, completion("a"))) + b"\n")
    (tmp_path / "torn.jsonl").write_bytes(b'{"custom_id": "t0f')
    write = tmp_path / "out.jsonl"
    with pytest.raises(InputError) as caught:
        collect(run, [str(tmp_path / name)], CollectOptions(write=str(write), rehearsal=rehearsal))
    assert (caught.value.problems[0].where, said in str(caught.value.problems[0])) == (str(tmp_path / name), True)
    assert not write.exists()


def test_named_rehearsal_of_another_name_is_read_where_it_is_asked_for(run: RunDir, tmp_path: Path) -> None:
    """Its lines say what they are; a pattern that names the real ones as well leaves them out."""
    write_results(run, "run.jsonl", [attempt(run, 0, completion("real"))])
    mine = tmp_path / "mine.jsonl"
    mine.write_bytes(jsonl.dumps(attempt(run, 1, completion("made up"), **REHEARSED)) + b"\n")
    merged = _collect(run, str(mine), run.file("results/run.jsonl"), rehearsal=True)
    assert [record["text"] for record in merged] == [None, "made up", None]


def test_file_of_results_that_a_crash_left_without_a_whole_line_is_let_be(run: RunDir, tmp_path: Path) -> None:
    """A pattern names it too; an empty file is told of."""
    whole = write_results(run, "a.jsonl", [attempt(run, 0, completion("a"))])
    torn = write_results(run, "b.jsonl", [b'{"custom_id": "t0f'])
    empty = write_results(run, "c.jsonl", [])
    told = collect(run, [whole, torn, empty])
    assert told.summary["counts"]["ok"] == 1
    assert told.warnings[0] == "results/c.jsonl is empty"


def test_full_disk_is_named_whichever_file_it_strikes(run: RunDir, tmp_path: Path) -> None:
    """Records, a table, or the scratch data between: the error says which file had no room."""
    write_results(run, "a.jsonl", [attempt(run, 0, completion("a" * 3_000_000))])
    outputs = {"write": str(tmp_path / "m.jsonl"), "rows": str(tmp_path / "rows.jsonl"), "csv": str(tmp_path / "t.csv")}
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size, named in ((1 << 20, {str(tmp_path)}), (4 << 20, set(outputs.values()))):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            with pytest.raises(OSError, match="too large") as told:
                collect(run, (), CollectOptions(**outputs))  # type: ignore[arg-type]
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert told.value.filename in named
    assert os.listdir(tmp_path) == ["run"]


# --- what may be sent again ----------------------------------------------------------------------------------


def test_retry_and_cap_ids_part_what_failed(run: RunDir, tmp_path: Path) -> None:
    """Passing failures and missing rows may be sent again; cut answers need another run; the rest neither."""
    run = make_run(tmp_path / "more", 7)
    write_results(
        run,
        "a.jsonl",
        [
            attempt(run, 0, completion("fine")),
            failed(run, 1, 503),
            failed(run, 2, 400),
            attempt(run, 3),
            attempt(run, 4, completion("cu", finish="length")),
            attempt(run, 5, completion("", finish="length")),
        ],
    )
    again, capped = tmp_path / "again.txt", tmp_path / "capped.txt"
    summary = collect(run, (), CollectOptions(retry_ids=str(again), cap_ids=str(capped))).summary
    ids = [entry.custom_id for entry in run.iter_entries()]
    assert again.read_text().split() == [ids[1], ids[3], ids[6]]
    assert capped.read_text().split() == [ids[4], ids[5]]
    assert (summary["worth_sending_again"], summary["needs_higher_limit"]) == (3, 2)


# --- JSON answers --------------------------------------------------------------------------------------------


def test_expected_json_is_parsed_whole_and_named_authoritative(run: RunDir) -> None:
    """A JSON answer is kept as value and as text; the value counts; a fence is tolerated and noted, prose is not."""
    said = ['{"a": 1}', '```json\n{"a": 1}\n```', '{"a": 1} I hope this helps']
    write_results(run, "a.jsonl", [attempt(run, n, completion(text)) for n, text in enumerate(said)])
    merged = _collect(run, expect_json=True)
    assert [record["status"] for record in merged] == ["ok", "ok", "invalid_json"]
    assert [record["json"] for record in merged] == [{"a": 1}, {"a": 1}, None]
    assert [record["text"] for record in merged] == said
    assert [record["authoritative"] for record in merged] == ["json", "json", "text"]
    assert [record["notes"] for record in merged] == [[], ["code_fence"], []]


def test_json_null_is_an_answer(run: RunDir) -> None:
    """The value null is told from no value: it is the authoritative answer."""
    write_results(run, "a.jsonl", [attempt(run, 0, completion("null"))])
    record = _collect(run, expect_json=True)[0]
    assert (record["status"], record["json"], record["authoritative"]) == ("ok", None, "json")


def test_own_schema_is_applied_although_the_run_had_none(run: RunDir, tmp_path: Path) -> None:
    """--json-schema judges answers anew; a value that breaks it is invalid_json."""
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object", "required": ["label"]}')
    write_results(run, "a.jsonl", [attempt(run, 0, completion('{"label": 1}')), attempt(run, 1, completion("{}"))])
    merged = _collect(run, json_schema=str(schema))
    assert [record["status"] for record in merged[:2]] == ["ok", "invalid_json"]


@pytest.mark.parametrize("text", ["[]", "{", '{"type": 7}', '{"$ref": "http://example.com/s"}'])
def test_schema_that_cannot_be_used_is_refused(run: RunDir, tmp_path: Path, text: str) -> None:
    """A broken schema ends collect before anything is read."""
    schema = tmp_path / "schema.json"
    schema.write_text(text)
    with pytest.raises(InputError):
        collect(run, (), CollectOptions(json_schema=str(schema)))


# --- reviews -------------------------------------------------------------------------------------------------


def _reviews(run: RunDir, *values: Any) -> None:
    Path(run.file("reviews.jsonl")).write_bytes(b"".join(jsonl.dumps(value) + b"\n" for value in values))


def test_reviews_come_back_into_records_and_summary(run: RunDir) -> None:
    """What the report exported is read in; a later word on the same record counts."""
    ids = [entry.custom_id for entry in run.iter_entries()]
    _reviews(
        run,
        {"custom_id": ids[0], "verdict": "accept", "comment": ""},
        {"custom_id": ids[1], "verdict": "accept"},
        {"custom_id": ids[1], "verdict": "reject", "comment": "wrong animal"},
    )
    write_results(run, "a.jsonl", [attempt(run, n, completion("a")) for n in range(3)])
    merged = _collect(run)
    assert [record["review"] for record in merged] == [
        {"verdict": "accept", "comment": ""},
        {"verdict": "reject", "comment": "wrong animal"},
        None,
    ]
    assert collect(run).summary["reviews"] == {"accept": 1, "reject": 1, "comments": 1}


def test_reviews_of_another_run_are_refused(run: RunDir) -> None:
    """A review of a record that is not there stops collect."""
    _reviews(run, {"custom_id": "s-000000-00000000", "verdict": "accept", "comment": ""})
    with pytest.raises(IntegrityError):
        collect(run)


@pytest.mark.parametrize(
    "value", [[], {}, {"custom_id": "x", "verdict": "maybe"}, {"custom_id": 1, "verdict": "accept"}]
)
def test_reviews_that_are_none_are_refused_with_their_line(run: RunDir, value: Any) -> None:
    """A line that is no review is named."""
    _reviews(run, value)
    with pytest.raises(InputError) as caught:
        collect(run)
    assert [problem.line for problem in caught.value.problems] == [1]


def test_reviews_named_but_absent_are_an_error(run: RunDir) -> None:
    """A file that was asked for must be there."""
    with pytest.raises(InputError):
        collect(run, (), CollectOptions(reviews="nope.jsonl"))


def test_statuses_cover_the_closed_list(run: RunDir) -> None:
    """The counts name all nine statuses, zeros too."""
    assert list(collect(run).summary["counts"]) == [status.value for status in Status]


# --- batch jobs ----------------------------------------------------------------------------------------------


def _job(run: RunDir, name: str, **intent: Any) -> None:
    """Write the journal of one job whose output file is ``name``."""
    sha256, size = jsonl.sha256_file(run.file(f"results/{name}"))
    file = {"file": f"results/{name}", "sha256": sha256, "bytes": size}
    events = [
        {"event": "intent", "job": "k", "at": "2026-01-01T00:00:00Z", **intent},
        {"event": "submitted", "job": "k", "at": "2026-01-01T00:01:00Z", "batch_id": "b"},
        {"event": "downloaded", "job": "k", "at": "2026-01-01T09:00:00Z", "batch_id": "b", "files": [file]},
    ]
    lines = (jsonl.dumps({"schema": BATCH_SCHEMA, **event}) + b"\n" for event in events)
    Path(run.file("batches.jsonl")).write_bytes(b"".join(lines))


def _raw(run: RunDir, position: int, text: str) -> dict[str, Any]:
    custom_id = [entry.custom_id for entry in run.iter_entries()][position]
    return {"custom_id": custom_id, "response": {"status_code": 200, "body": completion(text)}, "error": None}


def test_batch_file_with_fewer_lines_than_its_job_is_told(run: RunDir) -> None:
    """What the provider took in and did not give back is said, although no line names it."""
    write_results(run, "batch-b.output.jsonl", [_raw(run, 0, "a")])
    shard = run.info["shards"][0]
    _job(run, "batch-b.output.jsonl", shard=shard["file"], sha256=shard["sha256"], requests=3)
    result = collect(run)
    assert any("3 requests went in, its files hold 1 lines" in sentence for sentence in result.warnings)
    assert result.summary["counts"]["missing"] == 2


def test_batch_of_other_bytes_is_refused(run: RunDir) -> None:
    """A raw file whose job was another shard than ours is of another run, whatever its ids say."""
    write_results(run, "batch-b.output.jsonl", [_raw(run, 0, "a")])
    _job(run, "batch-b.output.jsonl", shard="shards/00000.jsonl", sha256="0" * 64, requests=3)
    with pytest.raises(IntegrityError, match="another run"):
        collect(run)


def test_batch_answer_is_older_than_what_was_sent_after_it(run: RunDir) -> None:
    """A raw file stands at the time of its submission: a later realtime answer wins, whatever the files are named."""
    write_results(run, "batch-b.output.jsonl", [_raw(run, 0, "from the batch")])
    _job(run, "batch-b.output.jsonl", requests=1)
    write_results(run, "a.jsonl", [attempt(run, 0, completion("later"), at=5)])
    (record, *_) = _collect(run)
    assert (record["text"], record["channel"]) == ("later", "realtime")
    assert [one["channel"] for one in record["superseded"]] == ["batch"]


def test_renamed_raw_file_of_a_rehearsal_counts_as_no_answer(run: RunDir) -> None:
    """A provider's file does not say that it was rehearsed; the journal does, whatever the file is called now."""
    path = write_results(run, "rehearsal-batch-b.output.jsonl", [_raw(run, 0, "made up")])
    _job(run, "rehearsal-batch-b.output.jsonl", requests=1)
    journal = Path(run.file("batches.jsonl"))
    journal.write_bytes(journal.read_bytes().replace(b'"job":"k"', b'"job":"k","rehearsal":true'))
    os.rename(path, run.file("results/answers.jsonl"))
    result = collect(run)
    assert result.summary["counts"]["missing"] == 3
    assert result.summary["files"][0]["left_out"] == 1
    standing = read_standing(run, providers.get("openai"), run.index())
    assert not any(standing.marks)


@pytest.mark.parametrize("files", ["abc", [5], {"a": 1}, [{"file": 5, "bytes": [1], "sha256": {}}], [{}]])
def test_journal_of_any_shape_is_read(run: RunDir, files: object) -> None:
    """What is no reference to a file names none, and what is no range of rows holds none."""
    write_results(run, "batch-b.output.jsonl", [_raw(run, 0, "a")])
    _job(run, "batch-b.output.jsonl", rows=files, turn=files, requests=files, bytes=files)
    journal = Path(run.file("batches.jsonl"))
    last = jsonl.loads(journal.read_bytes().splitlines()[-1])
    journal.write_bytes(journal.read_bytes() + jsonl.dumps({**last, "files": files}) + b"\n")
    assert collect(run).summary["counts"]["ok"] == 1
    assert list(in_flight(run)) == []


# --- strange files -------------------------------------------------------------------------------------------

_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


_KEYS = (
    *("schema", "custom_id", "line_sha256", "channel", "endpoint", "started_at", "latency_s", "tries", "status_code"),
    *("response", "response_text", "response_base64", "request_id", "error", "rehearsal", "final", "direct"),
    *("choices", "usage", "model", "system_fingerprint", "type", "code", "message", "is_retryable"),
)


@given(key=st.sampled_from(_KEYS), value=_ANYTHING, inside=st.sampled_from(["", "response", "error"]))
def test_any_value_in_an_attempt_is_read_or_refused(tmp_path: Path, key: str, value: Any, inside: str) -> None:
    """A results file of any writer, with anything in any place, gives one record each or an error of ours."""
    folder = tmp_path / str(len(os.listdir(tmp_path)))
    run = make_run(folder, 1)
    whole = attempt(run, 0, completion("a")) if inside != "error" else attempt(run, 0)
    if inside:
        whole[inside][key] = value
    else:
        whole[key] = value
    write_results(run, "a.jsonl", [whole])
    write = run.file("merged.jsonl")
    try:
        summary = collect(run, (), CollectOptions(write=write)).summary
    except VlmbatchError:
        return
    assert sum(summary["counts"].values()) == len(records(write)) == 1


@pytest.mark.parametrize("count", [2**53 + 1, 2**63, 10**40, 1e300])
def test_count_that_no_reader_holds_exactly_is_none(run: RunDir, tmp_path: Path, count: float) -> None:
    """A server's nonsense makes no number of ours, and every export is written all the same."""
    answer = completion("a")
    answer["usage"] = {"prompt_tokens": count, "completion_tokens": count, "total_tokens": count}
    write_results(run, "a.jsonl", [attempt(run, 0, answer)])
    options = CollectOptions(
        write=run.file("merged.jsonl"), csv=str(tmp_path / "t.csv"), parquet=str(tmp_path / "t.parquet")
    )
    summary = collect(run, (), options).summary
    write_report(run, records=run.file("merged.jsonl"), summary=summary)
    (first, *_) = records(run.file("merged.jsonl"))
    assert first["status"] == "ok"
    assert set(first["usage"].values()) == {None}
    assert summary["unknown_usage"]["realtime"] == 1
