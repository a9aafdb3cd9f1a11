"""Records in other shapes: rows with answers, CSV, Parquet, a dataset folder; text never changes on the way."""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stages.result_runs import attempt, completion, failed, make_run, records, write_results
from vlmbatch import jsonl
from vlmbatch.errors import InputError
from vlmbatch.stages.collect import CollectOptions, collect
from vlmbatch.stages.collecting.export import IMAGES, OURS, join_kinds, kind_of, members

if TYPE_CHECKING:
    from vlmbatch.rundir import RunDir

ROW_KEYS = {"model", "raw_response", "parsed_answer", "error", "status"}


def _collect(run: RunDir, **options: Any) -> Any:
    return collect(run, (), CollectOptions(**options))


# --- the input row -------------------------------------------------------------------------------------------

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(row=st.dictionaries(st.text(max_size=6), _JSON, max_size=4), space=st.sampled_from(["", " ", "\t "]))
def test_members_give_back_every_key_and_value(row: dict[str, Any], space: str) -> None:
    """An object is taken apart into keys and raw values that mean what they meant."""
    import json

    text = json.dumps(row, separators=(f"{space},{space}", f"{space}:{space}"))
    found = dict(members(text.encode()))
    assert {key: json.loads(raw) for key, raw in found.items()} == row


def test_members_keep_raw_digits() -> None:
    """Numbers keep the digits that stand there."""
    assert dict(members(b'{ "a" : 1.10, "b":[1 ,2],"c":12345678901234567890123 }')) == {
        "a": "1.10",
        "b": "[1 ,2]",
        "c": "12345678901234567890123",
    }


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        *(("null", "null"), ("true", "bool"), ("false", "bool"), ('"x"', "str"), ("[1]", "json"), ("{}", "json")),
        *(
            ("1", "int"),
            ("-9223372036854775808", "int"),
            ("9223372036854775808", "json"),
            ("1.0", "float"),
            ("1e5", "float"),
        ),
    ],
)
def test_kind_of_raw_values(raw: str, kind: str) -> None:
    """The kind is read off the first character and the digits."""
    assert kind_of(raw) == kind


@pytest.mark.parametrize(
    ("one", "other", "is_exact", "joined"),
    [
        *(("int", "int", True, "int"), ("null", "int", True, "int"), ("int", "null", True, "int")),
        *(("int", "float", True, "float"), ("int", "float", False, "json"), ("bool", "int", True, "json")),
        *(("str", "int", True, "json"), ("json", "str", True, "json"), ("null", "null", True, "null")),
    ],
)
def test_kinds_are_joined_without_loss(one: str, other: str, is_exact: bool, joined: str) -> None:
    """A column takes the kind that holds all of its values; raw text where none does."""
    assert join_kinds(one, other, is_exact=is_exact) == joined


# --- rows ----------------------------------------------------------------------------------------------------


def test_rows_hold_every_field_and_five_of_ours(tmp_path: Path) -> None:
    """The input's bytes stand first, untouched; then model, raw_response, parsed_answer, error and status."""
    rows = [b'{"id":1.50,"q":"a"}', b'{ "id" : 2 }', b"{}", b'{"id":4}']
    run = make_run(tmp_path / "run", rows)
    write_results(run, "a.jsonl", [attempt(run, 0, completion("yes")), attempt(run, 1, completion("")), failed(run, 2)])
    out = tmp_path / "rows.jsonl"
    _collect(run, rows=str(out))
    lines = out.read_bytes().splitlines()
    assert lines[0].startswith(b'{"id":1.50,"q":"a","model":"test-vlm-1","raw_response":"yes","parsed_answer":"yes"')
    told = [jsonl.loads(line) for line in lines]
    assert [set(one) - {"id", "q"} for one in told] == [ROW_KEYS] * 4
    assert [one["status"] for one in told] == ["ok", "empty", "http_error", "missing"]
    assert told[0]["error"] is None
    assert told[1]["error"].startswith("empty")
    assert told[2]["error"].startswith("http_error: HTTP 500")
    assert told[3]["error"].startswith("missing")
    assert [one["parsed_answer"] for one in told] == ["yes", None, None, None]


def test_rows_json_answer_is_parsed_and_raw(tmp_path: Path) -> None:
    """Where JSON was asked for, the parsed answer is the value and the raw one the text."""
    run = make_run(tmp_path / "run", [b'{"id":1}'], answer={"json": True, "schema": None})
    write_results(run, "a.jsonl", [attempt(run, 0, completion('{"k": 1}'))])
    _collect(run, rows=str(tmp_path / "rows.jsonl"))
    (told,) = records(tmp_path / "rows.jsonl")
    assert (told["raw_response"], told["parsed_answer"]) == ('{"k": 1}', {"k": 1})


@pytest.mark.parametrize("row", [b'{"model":1.10,"x":"model","error":[1 ,2]}', b'{"mo\\u0064el":1.10,"error":[1 ,2]}'])
def test_rows_field_of_our_name_is_kept_under_another(tmp_path: Path, row: bytes) -> None:
    """A row that is itself an answer of a model loses nothing: its fields are renamed, not overwritten."""
    run = make_run(tmp_path / "run", [row])
    write_results(run, "a.jsonl", [attempt(run, 0, completion("a"))])
    _collect(run, rows=str(tmp_path / "rows.jsonl"))
    data = (tmp_path / "rows.jsonl").read_bytes()
    told = jsonl.loads(data)
    assert b'"input_model":1.10' in data
    assert (told["model"], told["input_error"], told["error"]) == ("test-vlm-1", [1, 2], None)
    assert data.count(b'"model":') == 1


def test_rows_of_several_outputs_are_joined(tmp_path: Path) -> None:
    """One input row is one line again: each of the four holds the outputs by name."""
    answer = {"json": False, "outputs": {"a": {"json": False}, "b": {"json": True}}}
    run = make_run(tmp_path / "run", [b'{"id":1}', b'{"id":1}'], outputs=("a", "b"), answer=answer)
    values = [attempt(run, 0, completion("x")), attempt(run, 1, completion("[1]")), attempt(run, 2, completion("y"))]
    write_results(run, "a.jsonl", values)
    _collect(run, rows=str(tmp_path / "rows.jsonl"))
    first, second = records(tmp_path / "rows.jsonl")
    assert first["parsed_answer"] == {"a": "x", "b": [1]}
    assert (first["id"], first["error"]) == (1, None)
    assert second["raw_response"] == {"a": "y", "b": None}
    assert list(second["error"]) == ["b"]


@pytest.mark.parametrize("rows", [3, [b"{}"] * 3], ids=["folder", "table"])
def test_rows_stay_apart_where_outputs_of_them_were_rejected(tmp_path: Path, rows: Any) -> None:
    """A row that lost its second output and one that lost its first are two rows, also where no line numbers tell."""
    answer = {"json": False, "outputs": {"a": {"json": False}, "b": {"json": False}}}
    run = make_run(tmp_path / "run", rows, outputs=("a", "b"), answer=answer, rejected={1, 2})
    write_results(run, "a.jsonl", [attempt(run, n, completion(text)) for n, text in enumerate("wxyz")])
    _collect(run, rows=str(tmp_path / "rows.jsonl"))
    told = records(tmp_path / "rows.jsonl")
    assert [one["raw_response"] for one in told] == [{"a": "w"}, {"b": "x"}, {"a": "y", "b": "z"}]


def test_rows_field_of_a_rejected_output_is_null_whatever_the_row_calls_so(tmp_path: Path) -> None:
    """An output that was never asked for is no answer; a field of the row of the same name is none either."""
    plan = {"inputs": [], "keep_columns": False, "fields": {"said": "{{ a }}", "more": "{{ b }}"}}
    answer = {"json": False, "outputs": {"a": {"json": False}, "b": {"json": False}}, "output_schema": plan}
    run = make_run(tmp_path / "run", [b'{"b":"old"}'], outputs=("a", "b"), answer=answer, rejected={1})
    write_results(run, "a.jsonl", [attempt(run, 0, completion("new"))])
    _collect(run, rows=str(tmp_path / "rows.jsonl"))
    assert records(tmp_path / "rows.jsonl") == [{"said": "new", "more": None, "error": None}]


def test_whole_numbers_of_an_answer_keep_every_digit(tmp_path: Path) -> None:
    """A number beyond 64 bits comes out of each export as the model wrote it."""
    text = '{"n":123456789012345678901234567890}'
    run = make_run(tmp_path / "run", [b'{"id":1}'], answer={"json": True, "schema": None})
    write_results(run, "a.jsonl", [attempt(run, 0, completion(text))])
    _collect(run, rows=str(tmp_path / "rows.jsonl"), csv=str(tmp_path / "t.csv"), write=run.file("merged.jsonl"))
    assert f'"parsed_answer":{text}' in (tmp_path / "rows.jsonl").read_text()
    assert _read_csv(tmp_path / "t.csv")[0]["json"] == text
    assert f'"json":{text}' in Path(run.file("merged.jsonl")).read_text()


def test_rows_of_an_output_schema_are_what_it_says(tmp_path: Path) -> None:
    """A pipeline's merged rows have the fields of its output_schema, and error."""
    plan = {
        "inputs": [{"name": "question", "key": "q", "image": False}],
        "keep_columns": False,
        "fields": {"asked": "{{ question }}", "said": "{{ answer }}"},
    }
    answer = {"json": False, "outputs": {"answer": {"json": False}}, "output_schema": plan}
    run = make_run(tmp_path / "run", [b'{"q":"why"}', b'{"q":"how"}'], outputs=("answer",), answer=answer)
    write_results(run, "a.jsonl", [attempt(run, 0, completion("because"))])
    _collect(run, rows=str(tmp_path / "rows.jsonl"))
    first, second = records(tmp_path / "rows.jsonl")
    assert first == {"asked": "why", "said": "because", "error": None}
    assert (second["asked"], second["said"], list(second["error"])) == ("how", None, ["answer"])


def test_rows_of_rehearsals_say_so(tmp_path: Path) -> None:
    """Each line of a rehearsal is marked."""
    run = make_run(tmp_path / "run", [b'{"id":1}'])
    write_results(run, "rehearsal-1.jsonl", [attempt(run, 0, completion("a"), rehearsal=True)])
    _collect(run, rows=str(tmp_path / "rows.jsonl"), rehearsal=True)
    assert records(tmp_path / "rows.jsonl")[0]["rehearsal"] is True


# --- CSV -----------------------------------------------------------------------------------------------------


def _read_csv(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_csv_has_row_fields_images_and_answers(tmp_path: Path) -> None:
    """Columns are those of all rows in order of first appearance; values stand as they were written."""
    rows = [b'{"id":"007","n":1.10}', b'{"status":"old","z":[1 ,2],"n":null,"b":true}']
    run = make_run(tmp_path / "run", rows)
    write_results(run, "a.jsonl", [attempt(run, 0, completion('say "a",\nb'))])
    _collect(run, csv=str(tmp_path / "t.csv"))
    first, second = _read_csv(tmp_path / "t.csv")
    assert list(first) == ["custom_id", "id", "n", "input_status", "z", "b", *IMAGES, *OURS]
    assert (first["id"], first["n"], first["text"]) == ("007", "1.10", 'say "a",\nb')
    assert (first["status"], first["input_tokens"], first["rehearsal"]) == ("ok", "812", "false")
    assert (second["input_status"], second["z"], second["n"], second["b"]) == ("old", "[1 ,2]", "", "true")
    assert (second["status"], second["text"], second["image_path"]) == ("missing", "", "set/001.png")


@pytest.mark.parametrize("is_safe", [False, True])
def test_csv_formulas_are_counted_and_changed_only_when_asked(tmp_path: Path, is_safe: bool) -> None:
    """Text that a spreadsheet would run stands as it came, and is told; --csv-safe puts an apostrophe before it."""
    run = make_run(tmp_path / "run", [b'{"a":"=1+1","b":"-3.5","c":-3,"=H()":1}', b'{"a":"@x"}'])
    write_results(run, "a.jsonl", [attempt(run, 0, completion("+SUM(A1)"))])
    result = _collect(run, csv=str(tmp_path / "t.csv"), csv_safe=is_safe)
    first, second = _read_csv(tmp_path / "t.csv")
    mark = "'" if is_safe else ""
    assert (first["a"], first["text"], second["a"]) == (f"{mark}=1+1", f"{mark}+SUM(A1)", f"{mark}@x")
    assert (first["b"], first["c"], first[f"{mark}=H()"]) == ("-3.5", "-3", "1")
    assert any("4 cell(s)" in sentence for sentence in result.warnings) is not is_safe


@given(text=st.text(min_size=1, max_size=30).map(lambda text: f"x{text}x"))
def test_csv_text_comes_back_as_it_was(tmp_path: Path, text: str) -> None:
    """Quotes, commas, line breaks and NUL survive the round trip."""
    folder = tmp_path / str(len(os.listdir(tmp_path)))
    run = make_run(folder, 1)
    write_results(run, "a.jsonl", [attempt(run, 0, completion(text))])
    _collect(run, csv=str(folder / "t.csv"))
    assert _read_csv(folder / "t.csv")[0]["text"] == text


def test_csv_lone_surrogate_stands_as_an_escape(tmp_path: Path) -> None:
    """What UTF-8 cannot hold is written as an escape, not dropped."""
    run = make_run(tmp_path / "run", 1)
    line = jsonl.dumps(attempt(run, 0, completion("MARK"))).replace(b"MARK", b"\\ud83d")
    write_results(run, "a.jsonl", [line + b"\n"])
    _collect(run, csv=str(tmp_path / "t.csv"))
    assert _read_csv(tmp_path / "t.csv")[0]["text"] == "\\ud83d"


# --- Parquet and the dataset folder --------------------------------------------------------------------------


def _table(path: Path) -> Any:
    parquet = pytest.importorskip("pyarrow.parquet")
    return parquet.read_table(path)


def test_parquet_columns_have_types(tmp_path: Path) -> None:
    """Integers, floats and truth values are what they are; mixed columns are their own JSON; images are lists."""
    rows = [
        b'{"i":1,"f":1,"b":true,"m":1,"s":"x","big":9223372036854775808,"n":null}',
        b'{"i":2,"f":1.5,"b":false,"m":"y","s":"\\u00e9","big":1,"n":null}',
    ]
    run = make_run(tmp_path / "run", rows, answer={"json": True, "schema": None})
    write_results(run, "a.jsonl", [attempt(run, 0, completion('{"k":1}'))])
    pytest.importorskip("pyarrow")
    _collect(run, parquet=str(tmp_path / "t.parquet"))
    table = _table(tmp_path / "t.parquet")
    kinds = {field.name: str(field.type) for field in table.schema}
    assert [kinds[name] for name in ("i", "f", "b", "m", "s", "big", "n")] == [
        *("int64", "double", "bool", "string", "string", "string", "string"),
    ]
    first, second = table.to_pylist()
    assert (first["i"], first["f"], first["m"], second["m"], second["s"]) == (1, 1.0, "1", '"y"', "\u00e9")
    assert (first["big"], second["big"], first["n"]) == ("9223372036854775808", "1", None)
    assert first["image_path"] == ["set/000.png"]
    assert (first["json"], first["status"], first["output_tokens"]) == ('{"k":1}', "ok", 9)
    assert (second["json"], second["status"], second["output_tokens"]) == (None, "missing", None)


def test_parquet_of_many_rows_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are written in batches; none is lost at a boundary."""
    pytest.importorskip("pyarrow")
    monkeypatch.setattr("vlmbatch.stages.collecting.dataset._BATCH_ROWS", 3)
    run = make_run(tmp_path / "run", 7)
    _collect(run, parquet=str(tmp_path / "t.parquet"))
    found = _table(tmp_path / "t.parquet").column("custom_id").to_pylist()
    assert found == [entry.custom_id for entry in run.iter_entries()]


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra, nothing is written and the hint names it."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    run = make_run(tmp_path / "run", 1)
    with pytest.raises(InputError, match="pyarrow") as caught:
        _collect(run, write=run.file("merged.jsonl"), parquet=str(tmp_path / "t.parquet"))
    assert "vlmbatch[parquet]" in caught.value.hint
    assert not os.path.exists(run.file("merged.jsonl"))
    assert os.listdir(tmp_path) == ["run"]


def test_dataset_folder_holds_table_and_card(tmp_path: Path) -> None:
    """The card tells model, counts, hash and prompt as the run has them, and guesses no licence."""
    pytest.importorskip("pyarrow")
    run = make_run(tmp_path / "run", 2)
    write_results(run, "a.jsonl", [attempt(run, 0, completion("a"))])
    _collect(run, hf=str(tmp_path / "set"))
    assert sorted(os.listdir(tmp_path)) == ["run", "set"]
    card = (tmp_path / "set" / "README.md").read_text(encoding="utf-8")
    data = tmp_path / "set" / "data" / "records.parquet"
    assert _table(data).num_rows == 2
    for told in (
        jsonl.sha256_file(str(data))[0],
        run.fingerprint,
        "test-model",
        "test-vlm-1",
        "What is this?",
        "| ok | 1 |",
    ):
        assert told in card
    head = card.split("---")[1]
    assert "licen" not in head.lower()
    assert "language" not in head


def test_dataset_card_head_is_yaml_that_names_the_data(tmp_path: Path) -> None:
    """A hub finds the Parquet file by the card's head."""
    import yaml

    pytest.importorskip("pyarrow")
    run = make_run(tmp_path / "run", 1)
    _collect(run, hf=str(tmp_path / "set"))
    head = yaml.safe_load((tmp_path / "set" / "README.md").read_text(encoding="utf-8").split("---")[1])
    assert head["configs"] == [{"config_name": "default", "data_files": "data/records.parquet"}]
    assert head["size_categories"] == ["n<1K"]


def test_dataset_folder_that_exists_is_let_be(tmp_path: Path) -> None:
    """Nothing is written into a folder of somebody's."""
    pytest.importorskip("pyarrow")
    run = make_run(tmp_path / "run", 1)
    (tmp_path / "set").mkdir()
    with pytest.raises(InputError):
        _collect(run, hf=str(tmp_path / "set"))
    assert os.listdir(tmp_path / "set") == []


def test_dataset_card_text_cannot_break_out(tmp_path: Path) -> None:
    """A model name or prompt full of marks stays text."""
    from vlmbatch.stages.collecting.dataset import _code, _prompt

    run = make_run(tmp_path / "run", 1)
    os.chmod(run.file("inputs/prompt.txt"), 0o600)
    Path(run.file("inputs/prompt.txt")).write_text("a\n````\n# not a heading\n```")
    assert _prompt(run).splitlines()[2] == "`````text"
    assert _prompt(run).splitlines()[-1] == "`````"
    assert _code("a`b|c\nd") == "``a`b\\|c d``"


def test_dataset_of_a_rehearsal_says_so(tmp_path: Path) -> None:
    """No reader takes made-up answers for a model's."""
    pytest.importorskip("pyarrow")
    run = make_run(tmp_path / "run", 1)
    write_results(run, "rehearsal-1.jsonl", [attempt(run, 0, completion("a"), rehearsal=True)])
    _collect(run, hf=str(tmp_path / "set"), rehearsal=True)
    assert "REHEARSED" in (tmp_path / "set" / "README.md").read_text(encoding="utf-8")
    assert _table(tmp_path / "set" / "data" / "records.parquet").column("rehearsal").to_pylist() == [True]
