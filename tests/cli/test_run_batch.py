"""vlmbatch run --channel batch, as a person or a program calls it."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.doors import call
from tests.stages.batch_runs import answers, ids, make
from tests.waiting import wait_until
from vlmbatch.rehearsal.faults import parse_faults
from vlmbatch.rehearsal.jobs import Flaw, StoredJob
from vlmbatch.rehearsal.server import serve

if TYPE_CHECKING:
    from pathlib import Path

KEY = {"TEST_BATCH_KEY": "sk-test-secret"}
QUICK = ("--poll-interval", "0.01", "--api-key-env", "TEST_BATCH_KEY")


def test_jobs_are_listed_with_their_files(tmp_path: Path) -> None:
    """Results on stdout, what happens meanwhile on stderr; exit 0 when every row is answered."""
    run = make(tmp_path)
    with serve() as server:
        done = call("run", run.path, "--channel", "batch", "--base-url", f"{server.base_url}/v1", *QUICK, env=KEY)
    assert done.status == 0
    assert done.out.count("job batch_") == 3
    assert "3 submitted, 3 fetched" in done.out
    assert "7 ok" in done.out
    assert "submitted" in done.err
    assert "sk-test-secret" not in done.out + done.err


def test_json_answers_with_the_jobs(tmp_path: Path) -> None:
    """A program finds each job's id, state and files, and nothing else on stdout."""
    run = make(tmp_path, rows=3)
    with serve() as server:
        words = ("run", run.path, "--channel", "batch", "--base-url", f"{server.base_url}/v1", "--json", *QUICK)
        batch = call(*words, env=KEY).json()["data"]["batch"]
    (job,) = batch["jobs"]
    assert (job["requests"], job["state"], job["is_over"], job["why"]) == (3, "completed", True, None)
    assert job["files"] == [f"results/batch-{job['batch_id']}.output.jsonl"]
    assert (batch["submitted"], batch["rows_open"], batch["rows_waiting"]) == (1, 0, 0)


def test_failed_job_exits_1_and_shows_the_line_at_fault(tmp_path: Path) -> None:
    """The provider's words and the row's id are on the screen."""
    run = make(tmp_path, rows=2)
    faults = parse_faults({"batch": {"end": "failed", "fail_code": "model_mismatch"}})
    with serve(faults) as server:
        done = call("run", run.path, "--channel", "batch", "--base-url", f"{server.base_url}/v1", *QUICK, env=KEY)
    assert done.status == 1
    assert "model_mismatch" in done.out
    assert ids(run)[0] in done.out
    assert f"warning: model_mismatch: {ids(run)[0]}:1: Invented" in done.err
    assert "\\n" not in done.err


def test_many_lines_at_fault_are_shown_in_part_and_told_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person reads the first twenty, each with its row; a program gets all of them."""
    run = make(tmp_path, rows=30, per_shard=30)
    with serve() as server:
        add_job = server.store.add_job

        def fail(*args: Any, **more: Any) -> StoredJob:
            return add_job(*args, **{**more, "flaws": [Flaw("bad_line", "No.", number) for number in range(1, 31)]})

        monkeypatch.setattr(server.store, "add_job", fail)
        words = ("run", run.path, "--channel", "batch", "--base-url", f"{server.base_url}/v1", *QUICK)
        shown = call(*words, env=KEY)
        told = call(*words, "--json", env=KEY)
    assert shown.out.count("bad_line: ") == 21  # 20 lines, and the job's own sentence
    assert "and 10 more" in shown.out
    assert [flaw["custom_id"] for flaw in told.json()["data"]["batch"]["jobs"][0]["flaws"]] == ids(run)


def test_detach_status_and_cancel_work_one_after_the_other(tmp_path: Path) -> None:
    """Three commands on one folder: submit, look, end."""
    run = make(tmp_path, rows=4, per_shard=4)
    with serve(parse_faults({"batch": {"looks": 1000}})) as server:
        words = ("run", run.path, "--channel", "batch", "--base-url", f"{server.base_url}/v1", *QUICK)
        detached = call(*words, "--detach", env=KEY)
        assert (detached.status, "4 rows in jobs that have not ended" in detached.out) == (0, True)
        assert detached.out.splitlines()[-1].startswith(f"next: vlmbatch run {run.path} --channel batch ")
        status = call(*words, "--status", env=KEY)
        assert (status.status, "in_progress" in status.out) == (0, True)
        cancelled = call(*words, "--cancel", env=KEY)
        assert "cancelled" in cancelled.out
        assert len(server.store.jobs) == 1
    assert len(answers(run)) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--detach"], "--channel batch"),
        (["--max-in-flight-batches", "2"], "--channel batch"),
        (["--channel", "batch", "--status", "--cancel"], "exclude each other"),
        (["--channel", "batch", "--poll-interval", "0"], "positive"),
        (["--channel", "batch", "--max-enqueued-tokens", "0"], "positive"),
        (["--channel", "post"], "realtime or batch"),
    ],
)
def test_flags_that_make_no_sense_are_refused(tmp_path: Path, words: list[str], said: str) -> None:
    """Exit 2, and nothing was sent."""
    run = make(tmp_path, rows=2)
    done = call("run", run.path, "--rehearsal", *words)
    assert done.status == 2
    assert said in done.err
    assert run.results() == []


def test_interrupt_leaves_the_jobs_to_the_next_command(tmp_path: Path) -> None:
    """SIGINT while waiting: exit 130, state saved, and the same command fetches what was made."""
    run = make(tmp_path)
    with serve(parse_faults({"batch": {"looks": 100_000}})) as server:
        words = ["run", run.path, "--channel", "batch", "--base-url", f"{server.base_url}/v1", *QUICK]
        command = [sys.executable, "-m", "vlmbatch", *words]
        with subprocess.Popen(command, env=KEY, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            wait_until(lambda: sum(job.looks for job in server.store.jobs) >= 9)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
        assert process.returncode == 130
        server.store._faults = parse_faults({})
        assert call(*words, env=KEY).status == 0
        assert len(server.store.jobs) == 3
    assert answers(run) == dict.fromkeys(ids(run), 1)
