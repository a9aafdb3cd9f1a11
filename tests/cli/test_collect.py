"""vlmbatch collect, as a person, a program or a reviewer calls it."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.doors import call
from tests.stages.result_runs import attempt, completion, failed, make_run, records, write_results

if TYPE_CHECKING:
    from vlmbatch.rundir import RunDir


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Return a run of three requests: one answered, one failed, one missing."""
    run = make_run(tmp_path / "run", 3)
    write_results(run, "full.jsonl", [attempt(run, 0, completion("a cat")), failed(run, 1, 503)])
    return run


def test_collect_writes_records_and_says_what_came(run: RunDir) -> None:
    """Counts, cause, files and the next command stand on stdout; missing rows leave the status 0."""
    done = call("collect", run.path, run.file("results/full.jsonl"), "--write", run.file("merged.jsonl"))
    assert done.status == 0, done.err
    for said in ("ok", "33.3 %", "HTTP 503", "fingerprint: " + run.fingerprint, f"vlmbatch run {run.path}"):
        assert said in done.out
    assert [record["status"] for record in records(run.file("merged.jsonl"))] == ["ok", "http_error", "missing"]
    assert os.path.exists(run.file("summary.json"))


def test_collect_reads_only_without_write(run: RunDir) -> None:
    """The reviewer's command leaves no file."""
    before = sorted(path for path in Path(run.path).rglob("*"))
    assert call("collect", run.path).status == 0
    assert sorted(path for path in Path(run.path).rglob("*")) == before


def test_collect_json_is_the_envelope_and_nothing_else(run: RunDir) -> None:
    """With --json, stdout is one object that holds the summary."""
    told = call("collect", run.path, "--json").json()
    assert (told["command"], told["status"], told["exit_code"]) == ("collect", "success", 0)
    assert told["data"]["summary"]["counts"]["ok"] == 1
    assert told["data"]["fingerprint"] == run.fingerprint


def test_collect_foreign_results_are_integrity(run: RunDir) -> None:
    """Results of another run end with status 3, and name a line."""
    stranger = attempt(run, 0, completion("a")) | {"custom_id": "s-000000-00000000"}
    write_results(run, "other.jsonl", [stranger])
    done = call("collect", run.path, "--write", run.file("merged.jsonl"))
    assert done.status == 3
    assert "results/other.jsonl:1" in done.err
    assert "hint: " in done.err
    assert not os.path.exists(run.file("merged.jsonl"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing.jsonl"], "cannot be read"),
        (["--require", "refusals<=2%"], "not a number"),
        (["--require", "refusal"], "not a condition"),
        (["--require-field", "a"], "--expect-json"),
        (["--explain", "counts.refusals"], "counts.refusal"),
        (["--report"], "--write"),
        (["--redact", "copy"], "--leave-out"),
        (["--leave-out", "images"], "--redact"),
        (["--compare", "none"], "no such folder"),
        (["--hf", "."], "--hf"),
    ],
)
def test_collect_wrong_usage_says_what_to_do(run: RunDir, words: list[str], said: str) -> None:
    """A slip ends with status 2 and a hint, and no traceback."""
    done = call("collect", run.path, *words)
    assert done.status == 2
    assert said in done.err
    assert "Traceback" not in done.err


def test_collect_no_run_folder_is_bad_input(tmp_path: Path) -> None:
    """A folder that build did not make is told."""
    done = call("collect", tmp_path)
    assert done.status == 2
    assert "not a run folder" in done.err


def test_gate_prints_each_line_and_fails(run: RunDir) -> None:
    """Every line stands there with its figure; one that does not hold gives status 1, and the records are written."""
    done = call("collect", run.path, "--gate", "--write", run.file("merged.jsonl"))
    assert done.status == 1
    assert "FAIL" in done.out
    assert "pass" in done.out
    assert "1 of 3 (33.33 %)" in done.out
    assert "complete: 1 of 3" in done.err
    assert os.path.exists(run.file("merged.jsonl"))


def test_gate_json_says_partial(run: RunDir) -> None:
    """A program reads the failed checks from the same object."""
    done = call("collect", run.path, "--require", "missing==0", "--require", "ok>=1", "--json")
    told = done.json()
    assert done.status == told["exit_code"] == 1
    assert told["status"] == "partial"
    assert [error["code"] for error in told["errors"]] == ["check_failed", "check"]
    assert [check["holds"] for check in told["data"]["summary"]["checks"]] == [False, True]


def test_explain_prints_number_and_query(run: RunDir) -> None:
    """A number comes with the command that computes it."""
    done = call("collect", run.path, "--explain", "counts.http_error")
    assert "counts.http_error = 1" in done.out
    assert "query: sed " in done.out
    assert "merged.jsonl | jq -n" in done.out
    told = call("collect", run.path, "--explain", "counts.ok", "--json").json()
    assert told["data"]["explained"]["value"] == 1


def test_compare_prints_columns(run: RunDir, tmp_path: Path) -> None:
    """Two runs stand side by side, with how often they agree."""
    other = make_run(tmp_path / "other", 3)
    write_results(other, "a.jsonl", [attempt(other, 0, completion("a cat"))])
    done = call("collect", run.path, "--compare", other.path)
    assert "compared on 3 inputs" in done.out
    assert "equal answers: 1 of 1" in done.out


def test_exports_are_named_on_stdout(run: RunDir, tmp_path: Path) -> None:
    """Each output that was asked for exists and is named."""
    paths = {name: tmp_path / f"out.{name}" for name in ("rows", "csv", "retry-ids", "cap-ids")}
    words = [word for name, path in paths.items() for word in (f"--{name}", path)]
    done = call("collect", run.path, *words)
    assert done.status == 0, done.err
    for name, path in paths.items():
        assert f"{name}: {path}" in done.out
        assert path.exists()
    with open(paths["csv"], newline="", encoding="utf-8") as file:
        assert [row["status"] for row in csv.DictReader(file)] == ["ok", "http_error", "missing"]


def test_rehearsal_says_so(run: RunDir) -> None:
    """Nobody takes a rehearsal's figures for a model's."""
    write_results(run, "rehearsal-1.jsonl", [attempt(run, n, completion("x"), rehearsal=True) for n in range(3)])
    done = call("collect", run.path, "--rehearsal")
    assert done.out.startswith("REHEARSAL")
    assert "100.0 %" in done.out
    assert "REHEARSAL" not in call("collect", run.path).out


def test_untrusted_text_cannot_steer_the_terminal(run: RunDir) -> None:
    """Control characters in a provider's message are shown, not obeyed."""
    body = {"error": {"message": "\x1b[2J\x07gone"}}
    write_results(run, "full.jsonl", [attempt(run, 0, body, status_code=500)])
    done = call("collect", run.path)
    assert "\x1b" not in done.out + done.err
    assert "\\x1b[2J" in done.out


def test_report_and_seal_follow_the_records(run: RunDir) -> None:
    """The page is written and the folder sealed, in this order, and both are named."""
    done = call("collect", run.path, "--write", run.file("merged.jsonl"), "--report", "--seal")
    assert done.status == 0, done.err
    assert f"report: {run.file('report.html')}" in done.out
    assert "seal: " in done.out
    sums = Path(run.file("SEALED.sha256")).read_text()
    assert "report.html" in sums
    assert "merged.jsonl" in sums


def test_writing_after_the_seal_is_warned_of_unless_it_is_set_again(run: RunDir) -> None:
    """One line says that the seal no longer holds, and what to do; with --seal in the same command it holds."""
    write = ("--write", run.file("merged.jsonl"))
    said = "SEALED.sha256 no longer holds; seal it again with collect --seal"
    assert said not in call("collect", run.path, *write, "--seal").err
    assert said not in call("collect", run.path, *write, "--seal").err
    assert said not in call("collect", run.path).err
    done = call("collect", run.path, *write)
    assert (done.status, done.err.count(said)) == (0, 1)
    told = call("collect", run.path, "--write", f"{run.path}.jsonl", "--report", "--json")
    assert said in told.json()["data"]["warnings"][-1]


def test_failed_gate_hands_nothing_over(run: RunDir, tmp_path: Path) -> None:
    """What does not pass is neither sealed nor packed; the report is there to see why."""
    bag = tmp_path / "bag"
    words = ["--write", run.file("merged.jsonl"), "--gate", "--report", "--seal", "--bag", bag]
    done = call("collect", run.path, *words)
    assert done.status == 1
    assert os.path.exists(run.file("report.html"))
    assert not os.path.exists(run.file("SEALED.sha256"))
    assert not bag.exists()
    assert "nothing was sealed" in done.err


def test_bag_and_redacted_copy_are_made(run: RunDir, tmp_path: Path) -> None:
    """A bag and a copy without images are new folders; what must stay at home is named."""
    bag, copy = tmp_path / "bag", tmp_path / "copy"
    words = ["--write", run.file("merged.jsonl"), "--bag", bag, "--redact", copy, "--leave-out", "prompts"]
    done = call("collect", run.path, *words)
    assert done.status == 0, done.err
    assert (bag / "bagit.txt").exists()
    assert (copy / "run.json").exists()
    assert "redacted copy: " in done.out


def test_explained_number_does_not_hide_a_check_that_fails(run: RunDir) -> None:
    """The exit status is that of the checks, whatever is printed."""
    done = call("collect", run.path, "--require", "ok==0", "--explain", "requests")
    assert (done.status, "requests = 3" in done.out) == (1, True)
    assert "1 of 1 checks do not hold" in done.err


@pytest.mark.parametrize(
    "words",
    [
        ["--bag", "there"],
        ["--redact", "there", "--leave-out", "images"],
        ["--redact", "new", "--leave-out", "everything"],
        ["--bag", "file/bag"],
    ],
)
def test_hand_over_that_cannot_be_is_refused_before_anything_is_written(
    run: RunDir, tmp_path: Path, words: list[str]
) -> None:
    """Exit 2 means that nothing was written, the records neither."""
    (tmp_path / "there").mkdir()
    (tmp_path / "file").write_bytes(b"")
    where = [str(tmp_path / word) if word in {"there", "new", "file/bag"} else word for word in words]
    done = call("collect", run.path, "--write", run.file("merged.jsonl"), *where)
    assert done.status == 2, done.err
    assert not os.path.exists(run.file("merged.jsonl"))
    assert not os.path.exists(run.file("summary.json"))


# --- what comes next -----------------------------------------------------------------------------------------------


def _whole(folder: Path, *last: dict[str, object], count: int = 2) -> RunDir:
    """Return a run whose rows are answered, but for the last ones, which have the attempts that are given."""
    run = make_run(folder, count)
    good = [attempt(run, n, completion("a cat")) for n in range(count - len(last))]
    write_results(run, "run.jsonl", [*good, *(attempt(run, count - 1, None) | one for one in last)])
    return run


def _refusal(code: int) -> dict[str, object]:
    error = {"type": "invalid_request", "message": "no", "status_code": code, "is_retryable": False}
    return {"status_code": code, "response": {"error": {"message": "no"}}, "error": error}


def _next(out: str) -> list[str]:
    return [line.removeprefix("next: ") for line in out.splitlines() if line.startswith("next: ")]


def test_collect_before_any_run_says_that_nothing_was_sent(tmp_path: Path) -> None:
    """Missing rows alone leave the status 0, but nothing is worth sending again: nothing was sent."""
    run = make_run(tmp_path / "run", 2)
    done = call("collect", run.path)
    assert (done.status, "nothing was sent yet" in done.out, "again" in done.out) == (0, True, False)
    assert _next(done.out) == [f"vlmbatch run {run.path}"]
    rehearsed = call("collect", run.path, "--rehearsal")
    assert _next(rehearsed.out) == [f"vlmbatch run {run.path} --rehearsal"]


def test_collect_with_missing_rows_names_the_command_for_the_rest(run: RunDir) -> None:
    """Of the real run, and of a rehearsal."""
    assert _next(call("collect", run.path).out) == [f"vlmbatch run {run.path}"]
    write_results(run, "rehearsal-1.jsonl", [attempt(run, 0, completion("a"), rehearsal=True)])
    assert _next(call("collect", run.path, "--rehearsal").out) == [f"vlmbatch run {run.path} --rehearsal"]


@pytest.mark.parametrize("code", [400, 404])
def test_collect_after_a_refusal_of_frozen_bytes_says_that_only_a_new_build_helps(code: int, tmp_path: Path) -> None:
    """Sending the same bytes again ends the same way, so no command of run is proposed."""
    done = call("collect", _whole(tmp_path / "run", _refusal(code)).path)
    assert f"1 request(s) were refused as they are (HTTP {code})" in done.out
    assert "only a new build" in done.out
    assert _next(done.out) == []


def test_collect_after_a_refused_key_says_so(tmp_path: Path) -> None:
    """The bytes are not at fault."""
    run = _whole(tmp_path / "run", _refusal(401) | {"final": False})
    done = call("collect", run.path)
    assert "refused for key" in done.out
    assert "new build" not in done.out
    assert _next(done.out) == [f"vlmbatch run {run.path}"]


def test_collect_of_a_whole_run_names_what_delivers_it(tmp_path: Path) -> None:
    """The flags that decide what the records say go with it; behind the seal nothing is left to do."""
    run = _whole(tmp_path / "run")
    (following,) = _next(call("collect", run.path, run.file("results/run.jsonl"), "--expect-json").out)
    merged = run.file("merged.jsonl")
    words = f"collect {run.path} {run.file('results/run.jsonl')} --expect-json --write {merged} --report --seal"
    assert following == f"vlmbatch {words}"
    done = call(*words.split())
    assert (done.status, _next(done.out)) == (0, [])


def test_collect_of_a_whole_rehearsal_names_the_run(tmp_path: Path) -> None:
    """A rehearsal is not delivered."""
    run = make_run(tmp_path / "run", 1)
    write_results(run, "rehearsal-1.jsonl", [attempt(run, 0, completion("a"), rehearsal=True)])
    assert _next(call("collect", run.path, "--rehearsal").out) == [f"vlmbatch run {run.path}"]


@pytest.mark.parametrize(
    ("last", "hint", "other"),
    [
        ({"response": completion("a", finish="length"), "status_code": 200, "error": None}, "--cap-ids", "--retry-ids"),
        ({"response": completion(""), "status_code": 200, "error": None}, "--write", "--retry-ids"),
        ({}, "--retry-ids", "--cap-ids"),
        (_refusal(400), "--require", "--retry-ids"),
    ],
)
def test_hint_of_the_gate_fits_the_lines_that_fail(
    last: dict[str, object], hint: str, other: str, tmp_path: Path
) -> None:
    """Cut and empty answers are in no list of what is worth sending again."""
    done = call("collect", _whole(tmp_path / "run", last).path, "--gate")
    assert done.status == 1
    (said,) = [line for line in done.err.splitlines() if line.startswith("hint:")]
    assert hint in said
    assert other not in said


def test_error_stands_behind_the_table_where_both_go_to_one_file(run: RunDir) -> None:
    """Stdout is not kept back until the program ends."""
    words = [sys.executable, "-m", "vlmbatch", "collect", run.path, "--gate"]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.stdout.index("FAIL") < done.stdout.index("\nerror:")


def test_foreign_file_of_the_users_is_not_written_over(run: RunDir, tmp_path: Path) -> None:
    """A slip that names a picture ends with status 2 and names it."""
    picture = tmp_path / "coins.png"
    picture.write_bytes(b"\x89PNG....")
    for flag in ("--write", "--csv", "--rows", "--parquet", "--retry-ids"):
        done = call("collect", run.path, flag, picture)
        assert (done.status, str(picture) in done.err) == (2, True)
    Path(run.file("report.html")).write_bytes(b"<p>mine")
    assert call("collect", run.path, "--write", run.file("merged.jsonl"), "--report").status == 2
    assert not os.path.exists(run.file("merged.jsonl"))


def test_seal_over_false_numbers_is_status_three(tmp_path: Path) -> None:
    """Nothing is sealed, and what differs is named; the same command with --write mends it."""
    run = _whole(tmp_path / "run")
    assert call("collect", run.path, "--write", run.file("merged.jsonl"), "--seal").status == 0
    summary = Path(run.file("summary.json"))
    summary.write_bytes(summary.read_bytes().replace(b'"input_tokens": 1624', b'"input_tokens": 624'))
    assert call("collect", run.path, "--gate").status == 1
    done = call("collect", run.path, "--seal")
    assert (done.status, "input_tokens is 624" in done.err) == (3, True)
    assert call("collect", run.path, "--write", run.file("merged.jsonl"), "--seal").status == 0
    done = call("collect", run.path, "--gate")
    assert (done.status, _next(done.out)) == (0, [])


def test_prose_breaks_between_words_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left to do is told in whole words; the command that comes next stays on one line."""
    path = _whole(tmp_path / "run", _refusal(400)).path
    monkeypatch.setattr("vlmbatch.console.is_terminal", lambda stream: stream is sys.stdout)
    lines = call("collect", path, env={"COLUMNS": "60"}).out.splitlines()
    start = next(number for number, line in enumerate(lines) if "were refused as they are" in line)
    assert all(len(line) <= 60 for line in lines[start:])
    assert "only a new build" in " ".join(" ".join(lines[start:]).split())
