"""vlmbatch run, as a person, a program and a signal meet it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.doors import call
from tests.faults import FaultServer, behaviour, faulty
from tests.sendable import attempts_of, make_run, row_id
from tests.waiting import wait_until

if TYPE_CHECKING:
    from vlmbatch.rundir import RunDir

KEY = "sk-CANARY-0123456789"
ENV = {"MY_KEY": KEY}
ROOT = Path(__file__).parents[2]


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """Return a run of twenty rows."""
    return make_run(tmp_path / "run", 20)


def to(server: FaultServer) -> tuple[str, ...]:
    """Return the flags that send to a server with a key."""
    return ("--base-url", server.base_url, "--api-key-env", "MY_KEY")


# --- what is printed -----------------------------------------------------------------------------------------


def test_summary_names_what_one_wants_to_know(run_dir: RunDir) -> None:
    """Rows, errors by kind, throughput, tokens, the concurrency really reached, the relay, the next command."""
    bad = {"status": 400, "body": {"error": {"message": "invented", "code": "x"}}}
    with faulty({"steps": [bad], "only_row": 5, "others": {"body": "ok"}}) as server:
        called = call("run", run_dir.path, *to(server), "--concurrency", 4, env=ENV)
    assert called.status == 1
    for words in (
        "20 asked for",
        "19 ok",
        "400: 1",
        "requests/s",
        "1,900 in, 190 out",
        "concurrency 4 asked, 4 at most",
        "relay",
        "results/run.jsonl",
        "vlmbatch collect",
        run_dir.fingerprint,
    ):
        assert words in called.out
    assert "1 of 20 rows have no answer" in called.err
    assert KEY not in called.out + called.err


def test_json_is_one_object_with_the_figures(run_dir: RunDir) -> None:
    """A program reads the same as a person."""
    with faulty() as server:
        called = call("run", run_dir.path, *to(server), "--json", env=ENV)
    value = called.json()
    assert (called.status, value["status"], value["exit_code"]) == (0, "success", 0)
    assert value["data"]["statuses"] == {"ok": 20}
    assert value["data"]["concurrency"]["asked"] == 32
    assert value["data"]["endpoints"] == [{"base_url": server.base_url, "direct": False}]


def test_json_of_a_run_with_failed_rows_is_partial(run_dir: RunDir) -> None:
    """Exit status and figures stand in one object, and nothing else on stdout."""
    bad = {"status": 400, "body": {"error": {"message": "invented", "code": "x"}}}
    with faulty({"steps": [bad], "only_row": 5, "others": {"body": "ok"}}) as server:
        value = call("run", run_dir.path, *to(server), "--json", env=ENV).json()
    assert (value["status"], value["exit_code"], value["data"]["without_answer"]) == ("partial", 1, 1)


def test_refusal_is_one_message_and_status_4(run_dir: RunDir) -> None:
    """What the provider said, and what to do next."""
    with faulty(behaviour("http-404-model")["script"]) as server:
        called = call("run", run_dir.path, *to(server), env=ENV)
    assert called.status == 4
    assert called.err.count("error:") == 1
    assert "no such model" in called.err


def test_rehearsal_needs_nothing_and_says_what_it_is(run_dir: RunDir) -> None:
    """The newcomer's first run."""
    called = call("run", run_dir.path, "--rehearsal")
    assert called.status == 0
    assert "rehearsal" in called.out
    assert "collect" in called.out
    assert "--rehearsal" in called.out.splitlines()[-1]


def test_single_retries_are_told_with_verbose_alone(run_dir: RunDir) -> None:
    """-v says what happens to single requests."""
    script = {"steps": [{"status": 500, "body": {"error": {"message": "invented trouble"}}}, {"body": "ok"}]}
    with faulty(script) as server:
        quiet = call("run", run_dir.path, *to(server), "--limit", 1, env=ENV)
        loud = call("run", run_dir.path, *to(server), "--ids", _ids(run_dir, 3), "-v", env=ENV)
    assert "invented trouble" not in quiet.err
    assert f"{row_id(3)}: try 1 failed (invented trouble)" in loud.err


def _ids(run_dir: RunDir, *rows: int) -> Path:
    path = Path(run_dir.path).parent / "ids.txt"
    path.write_text("".join(f"{row_id(row)}\n" for row in rows), encoding="utf-8")
    return path


def test_control_characters_of_a_server_do_not_reach_the_terminal(run_dir: RunDir) -> None:
    """A provider's words are data."""
    script = {"steps": [{"status": 401, "body": {"error": {"message": "\x1b[2Jgone", "code": "invalid_api_key"}}}]}
    with faulty(script) as server:
        called = call("run", run_dir.path, *to(server), env=ENV)
    assert "\x1b" not in called.err
    assert "\\x1b[2Jgone" in called.err


# --- keys ----------------------------------------------------------------------------------------------------


def test_key_with_a_line_end_is_trimmed_with_a_note(run_dir: RunDir) -> None:
    """key-newline: a .env file from Windows does no harm, and the key is shown nowhere."""
    with faulty() as server:
        called = call("run", run_dir.path, *to(server), env={"MY_KEY": f"{KEY}\r\n"})
        assert server.seen[0].headers["authorization"] == f"Bearer {KEY}"
    assert called.status == 0
    assert "MY_KEY" in called.err
    assert KEY not in called.out + called.err


@pytest.mark.parametrize("value", ["sk-ö-0123456789", "", None])
def test_odd_key_sends_nothing(run_dir: RunDir, value: str | None) -> None:
    """key-odd: a key that is none is refused by its variable's name, before anything is sent."""
    with faulty() as server:
        called = call("run", run_dir.path, *to(server), env={} if value is None else {"MY_KEY": value})
        assert server.seen == server.looked == []
    assert called.status == 2
    assert "MY_KEY" in called.err
    assert not value or value not in called.err


def test_conventional_key_stays_at_home(run_dir: RunDir) -> None:
    """The provider's own variable is not sent to another address unless it is named."""
    with faulty() as server:
        called = call("run", run_dir.path, "--base-url", server.base_url, env={"OPENAI_API_KEY": KEY})
        assert "authorization" not in server.seen[0].headers
    assert "OPENAI_API_KEY is not sent" in called.err


def test_missing_key_for_the_provider_itself_is_told(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a key there is nothing to try."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    called = call("run", run_dir.path)
    assert called.status == 2
    assert "OPENAI_API_KEY" in called.err
    assert "--rehearsal" in called.err.splitlines()[-1]


def test_key_file_that_is_not_there_is_told_in_the_systems_words(run_dir: RunDir, tmp_path: Path) -> None:
    """No name of an exception."""
    called = call("run", run_dir.path, "--api-key-file", tmp_path / "none")
    assert called.status == 2
    assert f"--api-key-file {tmp_path / 'none'}: cannot be read (No such file or directory)" in called.err


def test_rehearsal_with_an_address_is_refused(run_dir: RunDir) -> None:
    """Of two places one would be passed over without a word."""
    with faulty() as server:
        called = call("run", run_dir.path, "--rehearsal", "--base-url", server.base_url)
        assert server.seen == []
    assert called.status == 2
    assert "--rehearsal goes without --base-url" in called.err


@pytest.mark.parametrize(
    ("name", "status", "hint"),
    [
        ("http-404-model", 404, "build a new run"),
        ("http-400", 400, "build a new run"),
        ("http-401", 401, "give the command again"),
        ("http-402", 402, "give the command again"),
    ],
)
def test_refusal_says_whether_the_same_command_can_help(run_dir: RunDir, name: str, status: int, hint: str) -> None:
    """A key can be changed under a run; its model and parameters are frozen."""
    body = {"error": {"message": f"invented {name}", "code": "x"}}
    with faulty({"steps": [{"status": status, "body": body}]}) as server:
        called = call("run", run_dir.path, *to(server), env=ENV)
    assert called.status == 4
    assert hint in called.err.splitlines()[-1]


def test_key_from_a_file(run_dir: RunDir, tmp_path: Path) -> None:
    """--api-key-file reads the first line."""
    path = tmp_path / "key"
    path.write_text(f"{KEY}\nsecond line\n", encoding="utf-8")
    with faulty() as server:
        call("run", run_dir.path, "--base-url", server.base_url, "--api-key-file", path)
        assert server.seen[0].headers["authorization"] == f"Bearer {KEY}"


# --- flags ---------------------------------------------------------------------------------------------------


def test_out_is_a_path_into_results_or_a_name(run_dir: RunDir, tmp_path: Path) -> None:
    """The path of the contract's command line, or a bare name; anything else is refused."""
    with faulty() as server:
        call("run", run_dir.path, *to(server), "--limit", 2, "--out", f"{run_dir.path}/results/smoke.jsonl", env=ENV)
        call("run", run_dir.path, *to(server), "--limit", 4, "--out", "more.jsonl", env=ENV)
        called = call("run", run_dir.path, *to(server), "--out", tmp_path / "x.jsonl", env=ENV)
        assert len(server.seen) == 6
    assert sorted(Path(path).name for path in run_dir.results()) == ["more.jsonl", "smoke.jsonl"]
    assert (called.status, "results" in called.err) == (2, True)


def test_several_endpoints_in_one_flag_or_repeated(run_dir: RunDir) -> None:
    """Both spellings add up."""
    slow = {"steps": [{"delay_s": 0.02, "body": "ok"}]}
    with faulty(slow) as one, faulty(slow) as two, faulty(slow) as three:
        flags = ("--endpoints", f"{one.base_url}, {two.base_url}", "--base-url", three.base_url)
        call("run", run_dir.path, *flags, "--n-concurrent", 2)
        assert all(server.seen for server in (one, two, three))


def test_part_comes_from_a_variable(run_dir: RunDir) -> None:
    """A task of an array names itself by its scheduler's variable."""
    with faulty() as server:
        flags = ("--num-shards", 4, "--shard-id", "$SLURM_ARRAY_TASK_ID")
        called = call("run", run_dir.path, *to(server), *flags, env={**ENV, "SLURM_ARRAY_TASK_ID": "3"})
        assert sorted(seen.row for seen in server.seen) == [3, 7, 11, 15, 19]
        assert called.status == 0
        odd = call("run", run_dir.path, *to(server), *flags, env={**ENV, "SLURM_ARRAY_TASK_ID": "x"})
    assert (odd.status, "SLURM_ARRAY_TASK_ID" in odd.err) == (2, True)


def test_unknown_status_is_told_with_those_there_are(run_dir: RunDir) -> None:
    """A typo is answered with the list."""
    called = call("run", run_dir.path, "--retry-status", "refused")
    assert called.status == 2
    assert "refusal" in called.err


def test_no_run_folder_is_told(tmp_path: Path) -> None:
    """A wrong path is bad input."""
    assert call("run", tmp_path / "none").status == 2


# --- signals -------------------------------------------------------------------------------------------------


def start(run_dir: RunDir, server: FaultServer, *flags: str) -> subprocess.Popen[str]:
    """Start the program as a process of its own."""
    words = [sys.executable, "-m", "vlmbatch", "run", run_dir.path, *to(server), "--concurrency", "4", *flags]
    env = {**os.environ, **ENV, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_once_finishes_what_is_in_flight(tmp_path: Path, number: signal.Signals) -> None:
    """proc-sigint: exit 130, every answer that came is on disk, the same command finishes."""
    spec = behaviour("proc-sigint")
    run_dir = make_run(tmp_path / "run", spec["rows"])
    with faulty(spec["script"]) as server:
        process = start(run_dir, server)
        wait_until(lambda: len(server.seen) >= spec["script"]["after_rows"])
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert process.returncode == spec["check"]["exit"]
        assert "the same command goes on" in err
        assert "stopping" in err
        assert KEY not in out + err
        assert len(attempts_of(run_dir)) == sum(server.answered.values()) < spec["rows"]
        with start(run_dir, server) as again:
            again.communicate(timeout=60)
        assert again.returncode == 0
    ids = [one["custom_id"] for one in attempts_of(run_dir)]
    assert sorted(ids) == [row_id(index) for index in range(spec["rows"])]


def test_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    """proc-sigterm: files are whole, what was in flight is on record as such, the rest follows later."""
    spec = behaviour("proc-sigterm")
    run_dir = make_run(tmp_path / "run", spec["rows"])
    script = {"steps": [{"delay_s": 20, "status": 200, "body": "ok"}]}
    with faulty(script) as server:
        process = start(run_dir, server)
        wait_until(lambda: len(server.seen) == 4)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        wait_until(lambda: "stopping" in process.stderr.readline())  # type: ignore[union-attr]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=15)
        assert process.returncode == 130
    assert [one["error"]["code"] for one in attempts_of(run_dir)] == ["interrupted"] * 4
    with faulty() as server:
        assert call("run", run_dir.path, *to(server), env=ENV).status == 0
        assert len(server.seen) == spec["check"]["second_run_ok"]


def test_signal_before_anything_is_sent_ends_at_once(tmp_path: Path) -> None:
    """Nothing to save: no grace is needed."""
    run_dir = make_run(tmp_path / "run", 10)
    with faulty() as server:
        server.is_held = True
        process = start(run_dir, server)
        wait_until(lambda: server.looked)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
        assert process.returncode == 130
        assert server.seen == []
    assert attempts_of(run_dir) == []


def test_python_m_and_the_flags_of_the_contract_work(tmp_path: Path) -> None:
    """The contract's own line, as a process: run RUN --base-url URL --api-key-env NAME --limit 30 --out FILE."""
    run_dir = make_run(tmp_path / "run", 40)
    with faulty() as server:
        process = start(run_dir, server, "--limit", "30", "--out", f"{run_dir.path}/results/smoke.jsonl", "--json")
        out, _ = process.communicate(timeout=30)
        assert process.returncode == 0
        assert json.loads(out)["data"]["results"] == "results/smoke.jsonl"
        assert len(server.seen) == 30
