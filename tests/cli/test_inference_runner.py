"""The door for those who come from a single script: flags, defaults, output and resume of requirements R0."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.pictures import png
from tests.waiting import wait_until
from vlmbatch.inference_runner.__main__ import _parser, main
from vlmbatch.rehearsal.faults import Faults
from vlmbatch.rehearsal.server import Server, serve

KEY = "sk-CANARY-0123456789abcdef"
Row = dict[str, Any]


@pytest.fixture
def rows(tmp_path: Path) -> list[Row]:
    """Return five rows with absolute image paths, as the script's users have them."""
    made = []
    for number in range(5):
        path = tmp_path / "pictures" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(png(60 + number, 40))
        made.append(
            {
                "triplet_id": number // 2,
                "condition": "ab"[number % 2],
                "image_path": str(path),
                "question_string": f"What is picture {number}?",
                "big": 12345678901234567890,
            }
        )
    return made


def write(path: Path, rows: list[Row]) -> Path:
    """Write rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def call(tmp_path: Path, server: Server | None, *more: str, rows: list[Row] | None = None) -> int:
    """Call the door over ``in.jsonl`` and ``out.jsonl`` of a folder."""
    if rows is not None:
        write(tmp_path / "in.jsonl", rows)
    where = ["--endpoints", server.base_url] if server else []
    return main([*words(tmp_path), *where, *more])


def words(tmp_path: Path) -> list[str]:
    """Return what every call has to say."""
    files = ["--input", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "out.jsonl")]
    return ["--provider", "vllm_local", "--model-id", "m", *files]


def answers(tmp_path: Path) -> list[Row]:
    """Return the lines of the output."""
    return [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]


def keys(lines: list[Row]) -> list[tuple[int, str]]:
    """Return the ids of some lines, sorted."""
    return sorted((line["triplet_id"], line["condition"]) for line in lines)


# --- flags -----------------------------------------------------------------------------------------------------------


def test_defaults_are_those_of_the_scripts() -> None:
    """Every default of R0, as it stands there."""
    given = _parser().parse_args(["--provider", "openai", "--model-id", "m", "--input", "i", "--output", "o"])
    assert vars(given) == {
        "provider": "openai",
        "endpoints": [],
        "model_id": "m",
        "input": "i",
        "output": "o",
        "n_concurrent": 6,
        "max_tokens": 100,
        "temperature": 0.0,
        "api_key_env": None,
        "reasoning_effort": None,
        "thinking_budget": None,
        "rate_limit_delay": 0.0,
        "no_resume": False,
        "image_field": "image_path",
        "question_field": "question_string",
        "id_fields": "triplet_id,condition",
        "prompt_template": None,
    }


def test_provider_is_one_of_three() -> None:
    """Another provider is a usage error, status 2."""
    with pytest.raises(SystemExit) as caught:
        main(["--provider", "other", "--model-id", "m", "--input", "i", "--output", "o"])
    assert caught.value.code == 2


# --- answers ---------------------------------------------------------------------------------------------------------


def test_output_holds_rows_with_four_fields(
    tmp_path: Path, rows: list[Row], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each row comes out with all its own fields, model, raw_response, parsed_answer, and error null."""
    source = write(tmp_path / "in.jsonl", rows).read_bytes()
    with serve() as server:
        assert call(tmp_path, server) == 0
    lines = answers(tmp_path)
    assert keys(lines) == keys(rows)
    for line in lines:
        row = next(r for r in rows if keys([r]) == keys([line]))
        assert {name: line[name] for name in row} == row
        assert line["model"] == "m"
        assert str(60 + rows.index(row)) in line["raw_response"]
        assert line["parsed_answer"] == line["raw_response"]
        assert line["error"] is None
    assert (tmp_path / "in.jsonl").read_bytes() == source
    told = capsys.readouterr().out
    for words in ("total: 5 rows", "success: 5 (100.0%)", "errors: 0", "throughput:", str(tmp_path / "out.jsonl")):
        assert words in told


def test_run_folder_stands_beside_the_output(tmp_path: Path, rows: list[Row]) -> None:
    """OUTPUT.run is a run folder like any other, with the script's limits in its requests."""
    with serve() as server:
        call(tmp_path, server, rows=rows)
    info = json.loads((tmp_path / "out.jsonl.run" / "run.json").read_text())
    assert info["request"]["params"] == {"max_tokens": 100, "temperature": 0.0}
    assert info["counts"]["requests"] == 5


def test_failed_row_is_written_and_ends_nothing(
    tmp_path: Path, rows: list[Row], capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing picture and a refused answer are errors of their rows; the others are answered; the status is 1."""
    rows[2]["image_path"] = str(tmp_path / "gone.png")
    with serve(Faults(seed=1, rates={"refusal": 0.4})) as server:
        assert call(tmp_path, server, rows=rows) == 1
    lines = answers(tmp_path)
    assert keys(lines) == keys(rows)
    failed = [line for line in lines if line["error"] is not None]
    assert any("no such file" in line["error"] for line in failed)
    assert any("refusal" in line["error"] for line in failed)
    assert all(line["parsed_answer"] is None for line in failed)
    assert 2 <= len(failed) < 5
    assert f"errors: {len(failed)}" in capsys.readouterr().out


def test_rows_that_are_all_bad_are_written_too(tmp_path: Path, rows: list[Row]) -> None:
    """Where no row can be asked every row gets its error, and nothing is sent."""
    for row in rows:
        row["image_path"] = "gone.png"
    with serve() as server:
        assert call(tmp_path, server, rows=rows) == 1
        assert server.requests == 0
    assert all("gone.png" in line["error"] for line in answers(tmp_path))


def test_each_of_many_bad_rows_is_written_with_its_own_error(tmp_path: Path, rows: list[Row]) -> None:
    """However many different faults there are, and no good row: each row says its own, and the call ends as usual."""
    many = [{**rows[0], "triplet_id": number, "image_path": f"gone-{number}.png"} for number in range(1100)]
    with serve() as server:
        assert call(tmp_path, server, rows=many) == 1
        assert server.requests == 0
    lines = answers(tmp_path)
    assert [line["triplet_id"] for line in lines] == list(range(1100))
    assert all(line["image_path"] in line["error"] for line in lines)


@pytest.mark.parametrize("template", ["Look: {question_string} Now.", "Look: {{ question }} Now."])
def test_template_takes_either_spelling(tmp_path: Path, rows: list[Row], template: str) -> None:
    """A script's ``{field}`` and Jinja2 make the same prompt."""
    with serve() as server:
        assert call(tmp_path, server, "--prompt-template", template, rows=rows) == 0
    (shard,) = (tmp_path / "out.jsonl.run" / "shards").iterdir()
    assert "Look: What is picture 3? Now." in shard.read_text()


@pytest.mark.parametrize("place", ["here", "beside"])
def test_relative_paths_start_here_or_beside_the_input(
    tmp_path: Path, rows: list[Row], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative image paths start in the working folder, as in a script, or else where the input stands."""
    for row in rows:
        row["image_path"] = str(Path(row["image_path"]).relative_to(tmp_path))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path if place == "here" else elsewhere)
    with serve() as server:
        assert call(tmp_path, server, rows=rows) == 0


# --- resume ----------------------------------------------------------------------------------------------------------


def test_second_call_asks_nothing(tmp_path: Path, rows: list[Row]) -> None:
    """What is answered is left alone; the output stays as it is."""
    with serve() as server:
        call(tmp_path, server, rows=rows)
        before = (tmp_path / "out.jsonl").read_bytes()
        assert call(tmp_path, server) == 0
        assert server.requests == 5
    assert (tmp_path / "out.jsonl").read_bytes() == before


def test_output_of_another_script_is_gone_on_with(tmp_path: Path, rows: list[Row]) -> None:
    """An output that somebody else began counts by its id fields; a row with an error is asked again."""
    write(
        tmp_path / "out.jsonl",
        [
            {**rows[0], "model": "old", "raw_response": "x", "parsed_answer": "x", "error": None},
            {**rows[1], "model": "old", "raw_response": None, "parsed_answer": None, "error": "timeout"},
        ],
    )
    with (tmp_path / "out.jsonl").open("a") as file:
        file.write('{"triplet_id": 1, "cond')
    with serve() as server:
        assert call(tmp_path, server, rows=rows) == 0
        assert server.requests == 4
    good = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines() if line.endswith("}")]
    assert keys([line for line in good if line["error"] is None]) == keys(rows)


def test_new_rows_get_a_folder_of_their_own(tmp_path: Path, rows: list[Row]) -> None:
    """An input that has grown is asked about its new rows alone; the frozen folder stays what it was."""
    with serve() as server:
        call(tmp_path, server, rows=rows[:3])
        frozen = (tmp_path / "out.jsonl.run" / "run.json").read_bytes()
        assert call(tmp_path, server, rows=rows) == 0
        assert server.requests == 5
    assert (tmp_path / "out.jsonl.run" / "run.json").read_bytes() == frozen
    assert json.loads((tmp_path / "out.jsonl.run.2" / "run.json").read_text())["counts"]["requests"] == 2
    assert keys(answers(tmp_path)) == keys(rows)


def test_other_settings_are_another_run(tmp_path: Path, rows: list[Row]) -> None:
    """Rows that failed under an old limit are asked anew under the new one, not sent again as they were frozen."""
    with serve(Faults(rates={"truncated": 1.0})) as server:
        assert call(tmp_path, server, rows=rows) == 1
        assert call(tmp_path, server) == 1
        assert server.requests == 5
        assert len(answers(tmp_path)) == 5
        assert call(tmp_path, server, "--max-tokens", "200") == 1
        assert server.requests == 10
    info = json.loads((tmp_path / "out.jsonl.run.2" / "run.json").read_text())
    assert info["request"]["params"]["max_tokens"] == 200


def test_bad_row_says_so_once(tmp_path: Path, rows: list[Row]) -> None:
    """A row that fails in the same words again gets no second line; once mended it is asked."""
    gone = tmp_path / "gone.png"
    rows[1]["image_path"] = str(gone)
    with serve() as server:
        call(tmp_path, server, rows=rows)
        call(tmp_path, server)
        assert len(answers(tmp_path)) == 5
        gone.write_bytes(png(9, 9))
        assert call(tmp_path, server) == 0
    assert keys([line for line in answers(tmp_path) if line["error"] is None]) == keys(rows)


def test_no_resume_asks_everything_again(tmp_path: Path, rows: list[Row]) -> None:
    """--no-resume asks every row, in a new run folder, and appends."""
    with serve() as server:
        call(tmp_path, server, rows=rows)
        assert call(tmp_path, server, "--no-resume") == 0
        assert server.requests == 10
    assert len(answers(tmp_path)) == 10
    assert (tmp_path / "out.jsonl.run.2" / "run.json").is_file()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, -9), (signal.SIGINT, 130), (signal.SIGTERM, 130)])
def test_ended_call_loses_and_repeats_nothing(tmp_path: Path, number: signal.Signals, status: int) -> None:
    """Killed or interrupted half-way, the next call asks only for what is open; the output has each row once."""
    rows = []
    for index in range(40):
        path = tmp_path / f"{index}.png"
        path.write_bytes(png(30 + index, 20))
        row = {"triplet_id": index, "condition": "a", "image_path": str(path), "question_string": "What?"}
        rows.append(row)
    write(tmp_path / "in.jsonl", rows)
    with serve(Faults(latency_s=(0.05, 0.1))) as server:
        command = [sys.executable, "-m", "vlmbatch.inference_runner", *words(tmp_path), "--endpoints", server.base_url]
        process = subprocess.Popen([*command, "--n-concurrent", "2"], stdout=subprocess.DEVNULL)
        wait_until(lambda: _lines(tmp_path / "out.jsonl") >= 5, "no answers came")
        process.send_signal(number)
        assert process.wait() == status
        assert len(answers(tmp_path)) < 40
        assert call(tmp_path, server) == 0
        assert server.requests <= 40 + 2
    assert keys(answers(tmp_path)) == keys(rows)
    assert not (tmp_path / "out.jsonl.run.2").exists()


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


# --- before anything is sent -----------------------------------------------------------------------------------------


def test_server_that_does_not_answer_is_told(
    tmp_path: Path, rows: list[Row], capsys: pytest.CaptureFixture[str]
) -> None:
    """With one server missing nothing is sent and nothing is written."""
    write(tmp_path / "in.jsonl", rows)
    with serve() as server:
        assert main([*words(tmp_path), "--endpoints", server.base_url, "http://127.0.0.1:9"]) == 2
        assert server.requests == 0
    assert "127.0.0.1:9" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "pictures"]


@pytest.mark.parametrize(("provider", "name"), [("openai", "OPENAI_API_KEY"), ("gemini", "GOOGLE_API_KEY")])
def test_missing_key_is_told_by_its_name(
    tmp_path: Path,
    rows: list[Row],
    provider: str,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An API's key is looked for before anything is built."""
    monkeypatch.delenv(name, raising=False)
    write(tmp_path / "in.jsonl", rows)
    assert main([*words(tmp_path), "--provider", provider]) == 2
    assert name in capsys.readouterr().err
    assert not (tmp_path / "out.jsonl.run").exists()


def test_key_is_sent_and_kept_nowhere(tmp_path: Path, rows: list[Row], monkeypatch: pytest.MonkeyPatch) -> None:
    """A named key reaches the endpoint that was named with it, and no file."""
    monkeypatch.setenv("MINE", KEY)
    with serve() as server:
        done = call(tmp_path, server, "--provider", "openai", "--api-key-env", "MINE", rows=rows)
        assert done == 0
    assert not any(KEY.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "no rows"),
        ([{"triplet_id": 1}], "lacks an id field"),
        ([{"triplet_id": 1, "condition": "a"}, {"triplet_id": 1, "condition": "a"}], "the same id as line 1"),
    ],
    ids=["empty", "no id", "twice"],
)
def test_unusable_input_is_refused(
    tmp_path: Path, lines: list[Row], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows that cannot be told apart are refused with their lines, before anything else."""
    with serve() as server:
        assert call(tmp_path, server, rows=lines) == 2
    assert words in capsys.readouterr().err


def test_row_that_says_a_key_twice_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody knows which one was meant: no row, as a line that is no JSON."""
    (tmp_path / "in.jsonl").write_text('{"triplet_id": 1, "condition": "a", "question": "x", "question": "y"}\n[1]\n')
    assert call(tmp_path, None) == 2
    told = capsys.readouterr().err
    assert "in.jsonl:1: the key 'question' stands twice" in told
    assert "in.jsonl:2: a row is a JSON object" in told


def test_input_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing input is told by its path."""
    assert call(tmp_path, None) == 2
    assert "in.jsonl" in capsys.readouterr().err


def test_concurrency_is_per_server_of_ones_own(tmp_path: Path, rows: list[Row]) -> None:
    """Two local servers share the rows; all are asked, none twice."""
    write(tmp_path / "in.jsonl", rows)
    with serve() as one, serve() as two:
        assert main([*words(tmp_path), "--endpoints", f"{one.base_url},{two.base_url}"]) == 0
        assert one.requests + two.requests == 5
        assert min(one.requests, two.requests) > 0
