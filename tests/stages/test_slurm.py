"""A run on a real SLURM (tests/slurm/cluster.sh): arrays, kills, retries and merging. Skipped where none answers."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults import FaultServer, faulty
from tests.sendable import attempts_of, make_run, row_id
from tests.slurm.finding import cluster
from vlmbatch import slurm
from vlmbatch.api.run import Run
from vlmbatch.errors import InputError, IntegrityError
from vlmbatch.retry import Policy
from vlmbatch.serve import Serve
from vlmbatch.slurm import Job, SlurmOptions, Submitted, submit
from vlmbatch.stages.run import RunOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from vlmbatch.rundir import RunDir

__all__ = ["cluster"]  # the fixture

SLOW = {"steps": [{"status": 200, "body": "ok", "delay_s": 0.1}]}


def job(run: RunDir, server: FaultServer | None = None, *, tasks: int = 2, **more: Any) -> Job:
    """Return a job over a run that is sent to a server of this process."""
    cluster = {name: more.pop(name) for name in ("max_retries", "merge", "partition", "time") if name in more}
    given: dict[str, Any] = {"concurrency": 2, "policy": Policy(max_tries=1, base_s=0.01, backoff_cap_s=0.02), **more}
    if server is not None:
        given["base_urls"] = (server.base_url,)
    return Job(run=run.path, slurm=SlurmOptions(tasks=tasks, time="5", **cluster), send=RunOptions(**given))


def until(what: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "SLURM took too long"
        time.sleep(0.1)


def states(submitted: Submitted) -> dict[str, str]:
    """Return the state of every task and job of a submission that SLURM still knows."""
    ids = ",".join(one for one in (submitted.array, submitted.follow_up) if one)
    told = subprocess.run(
        ["squeue", "--noheader", "--states=all", "--array", f"--jobs={ids}", "--format=%i %T"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    return dict(line.split() for line in told.splitlines())


def wait(submitted: Submitted) -> dict[str, str]:
    """Wait until everything of a submission has ended; return how."""
    active = {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING"}
    until(lambda: not active & set(states(submitted).values()))
    return states(submitted)


def queue() -> str:
    """Return what SLURM has to do."""
    return subprocess.run(["squeue", "--noheader"], capture_output=True, text=True, check=True).stdout


def logs(submitted: Submitted) -> str:
    """Return all that tasks have said."""
    return "".join(path.read_text() for path in sorted(Path(submitted.folder).glob("*.out")))


def ids_on_record(run: RunDir) -> list[str]:
    """Return the id of every attempt, sorted."""
    return sorted(attempt["custom_id"] for attempt in attempts_of(run))


# --- on a real SLURM -------------------------------------------------------------------------------------------------


def test_array_serves_sends_and_merges(cluster: None, tmp_path: Path) -> None:
    """Each task starts its own server, sends its part into a file of its own; the job behind the array collects."""
    run = make_run(tmp_path / "run", 31)
    served = Serve(f"{sys.executable} -m vlmbatch.rehearsal --port {{port}} --model {{model}}", wait_s=60)
    submitted = submit(job(run, tasks=3, merge=True, serve=served))
    ended = wait(submitted)
    assert set(ended.values()) == {"COMPLETED"}, logs(submitted)
    assert len(ended) == 4
    results = sorted(path.name for path in (tmp_path / "run" / "results").iterdir())
    assert results == ["task-0000.jsonl", "task-0001.jsonl", "task-0002.jsonl"]
    assert ids_on_record(run) == [row_id(number) for number in range(31)]
    records = (tmp_path / "run" / "merged.jsonl").read_text().splitlines()
    assert len(records) == 31
    assert sorted(path.name for path in (tmp_path / "run" / "logs").iterdir()) == [
        f"serve-000{i}.log" for i in range(3)
    ]
    servers = subprocess.run(["pgrep", "-f", "vlmbatch.rehearsal --port .* --model test-vlm-1"], check=False)
    assert servers.returncode == 1, "a server outlived its task"
    again = submit(job(run, tasks=3, serve=served))
    assert (again.array, again.follow_up) == (None, None)


def test_killed_task_is_continued_by_the_same_command(cluster: None, tmp_path: Path) -> None:
    """A task that is killed half-way loses nothing: the next submission sends the rest, one record for each id."""
    run = make_run(tmp_path / "run", 60)
    task = tmp_path / "run" / "results" / "task-0001.jsonl"
    with faulty(SLOW) as server:
        first = submit(job(run, server))
        until(lambda: task.exists() and task.read_bytes().count(b"\n") >= 4)
        subprocess.run(["scancel", "--signal=KILL", f"{first.array}_1"], check=True)
        ended = wait(first)
        assert ended[f"{first.array}_0"] == "COMPLETED", logs(first)
        assert ended[f"{first.array}_1"] != "COMPLETED"
        assert 34 <= len(ids_on_record(run)) < 60
        second = submit(job(run, server, merge=True))
        assert second.parts == (1,)
        assert set(wait(second).values()) == {"COMPLETED"}, logs(second)
        assert len(server.seen) <= 60 + 2, "only what was in flight was sent twice"
    assert ids_on_record(run) == [row_id(number) for number in range(60)]
    statuses = [record["status"] for record in Run.open(run.path).records()]
    assert statuses == ["ok"] * 60


def test_failed_parts_are_queued_again(cluster: None, tmp_path: Path) -> None:
    """Parts that are still open after the array are queued again, as often as it was allowed, and then collected."""
    run = make_run(tmp_path / "run", 6)
    with faulty({"steps": [{"status": 503, "body": "down"}, {"status": 200, "body": "ok"}]}) as server:
        first = submit(job(run, server, max_retries=2, merge=True))
        merged = tmp_path / "run" / "merged.jsonl"
        until(lambda: merged.exists() and not queue())
        assert set(server.tries.values()) == {2}, "the third turn was not needed"
    assert [state for one, state in states(first).items() if "_" in one] == ["FAILED", "FAILED"], logs(first)
    assert [record["status"] for record in Run.open(run.path).records()] == ["ok"] * 6
    assert "were queued again" in logs(first)


def test_preempted_task_goes_on_by_itself(cluster: None, tmp_path: Path) -> None:
    """A task that SLURM puts back into the queue starts again there and sends only what it has not sent."""
    run = make_run(tmp_path / "run", 40)
    with faulty(SLOW) as server:
        submitted = submit(job(run, server, tasks=1))
        task = tmp_path / "run" / "results" / "task-0000.jsonl"
        until(lambda: bool(attempts_of(run)))
        subprocess.run(["scontrol", "requeue", str(submitted.array)], check=True)
        assert set(wait(submitted).values()) == {"COMPLETED"}, logs(submitted)
        assert len(server.seen) <= 40 + 2
    assert ids_on_record(run) == [row_id(number) for number in range(40)]
    assert task.exists() is False, "a run of one part is the whole run"


def test_time_limit_ends_a_task_in_good_order(cluster: None, tmp_path: Path) -> None:
    """Submitit's word that the time is nearly up lets what is in flight finish; nothing is sent twice."""
    run = make_run(tmp_path / "run", 40)
    with faulty(SLOW) as server:
        first = submit(job(run, server, tasks=1))
        until(lambda: bool(attempts_of(run)))
        subprocess.run(["scancel", "--signal=USR2", str(first.array)], check=True)
        assert set(wait(first).values()) == {"FAILED"}
        assert "interrupted" in logs(first)
        assert len(attempts_of(run)) == len(server.seen) < 40


def test_slurm_refuses_in_its_own_words(cluster: None, tmp_path: Path) -> None:
    """What SLURM does not take is told with its reason."""
    run = make_run(tmp_path / "run", 2)
    with pytest.raises(InputError, match=r"SLURM took no job: .*partition"):
        submit(job(run, partition="nowhere", base_urls=("http://127.0.0.1:9/v1",)))


# --- without one -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"tasks": 0}, "--slurm must be positive"),
        ({"time": "soon"}, "--time takes"),
        ({"num_shards": 2}, "deals the rows out itself"),
        ({"out": "x.jsonl"}, "deals the rows out itself"),
        ({"ids": "ids.txt"}, "without --ids"),
        ({"channel": "batch"}, "sends realtime requests"),
        ({"rehearsal": True}, "sends realtime requests"),
        ({"max_tokens_total": 1}, "for one process"),
    ],
)
def test_options_that_make_no_sense_on_a_cluster_are_refused(tmp_path: Path, more: dict[str, Any], words: str) -> None:
    """They are told before anything is queued."""
    run = make_run(tmp_path / "run", 1)
    tasks = more.pop("tasks", 1)
    limit = more.pop("time", "5")
    cluster = SlurmOptions(tasks=tasks, time=limit)
    with pytest.raises(InputError, match=words):
        submit(Job(run=run.path, slurm=cluster, send=RunOptions(**more)))


def test_tampered_run_is_not_queued(tmp_path: Path) -> None:
    """The folder is checked before anything is queued."""
    run = make_run(tmp_path / "run", 2)
    shard = tmp_path / "run" / "shards" / "00000.jsonl"
    shard.chmod(0o644)
    shard.write_bytes(shard.read_bytes().replace(b"row 0000001", b"row 0000007"))
    with pytest.raises(IntegrityError):
        submit(job(run, base_urls=("http://127.0.0.1:9/v1",)))


def test_missing_submitit_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Submitit is an extra; without it the error says how to get it."""
    monkeypatch.setitem(sys.modules, "submitit", None)
    run = make_run(tmp_path / "run", 2)
    with pytest.raises(InputError, match="submitit") as caught:
        submit(job(run, base_urls=("http://127.0.0.1:9/v1",)))
    assert "vlmbatch[slurm]" in caught.value.hint


def test_job_that_travels_holds_no_key(tmp_path: Path) -> None:
    """What is pickled for the cluster names the key's variable; the value is looked up there."""
    names = Job(run="r", slurm=SlurmOptions(tasks=1), send=RunOptions(), key_env="MY_KEY")
    assert b"MY_KEY" in pickle.dumps(names)
    assert not {name for name in Job.__dataclass_fields__ if name == "key"}


@pytest.mark.parametrize(
    ("limit", "minutes"),
    [
        (None, 60),
        ("90", 90),
        ("90:30", 91),
        ("05:59:59", 360),
        ("12:00:00", 720),
        ("1-0", 1440),
        ("1-02", 1560),
        ("1-02:30", 1590),
        ("1-02:30:01", 1591),
    ],
)
def test_time_limits_are_read_as_sbatch_reads_them(limit: str | None, minutes: int) -> None:
    """Minutes, minutes:seconds, hours:minutes:seconds, days-hours and so on, rounded up to minutes."""
    assert slurm._minutes(limit) == minutes


def test_settings_reach_sbatch() -> None:
    """Everything that is asked of the cluster stands in the parameters; what was not said is left to it."""
    asked = SlurmOptions(
        tasks=8,
        partition="gpu",
        account="acc",
        time="05:59:59",
        gpus=4,
        cpus_per_task=32,
        job_name="vlm",
        sbatch={"qos": "long"},
    )
    assert slurm._parameters(asked) == {
        "job_name": "vlm",
        "partition": "gpu",
        "account": "acc",
        "stderr_to_stdout": True,
        "time": 360,
        "nodes": 1,
        "ntasks_per_node": 1,
        "gpus_per_node": 4,
        "cpus_per_task": 32,
        "array_parallelism": 8,
        "additional_parameters": {"time": "05:59:59", "qos": "long"},
        "srun_args": ["--cpus-per-task=32"],
    }
    plain = slurm._parameters(SlurmOptions(tasks=1))
    assert not {"partition", "account", "gpus_per_node", "cpus_per_task"} & set(plain)


def test_jobs_that_queue_jobs_hand_nothing_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside a job its own settings are hidden from sbatch, but not where SLURM is; outside nothing is hidden."""
    import submitit
    import submitit.helpers

    monkeypatch.setenv("SLURM_CONF", "/etc/other.conf")
    monkeypatch.setenv("SBATCH_ACCOUNT", "mine")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "7")
    names = ("SLURM_CONF", "SBATCH_ACCOUNT", "SLURM_CPUS_PER_TASK")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with slurm._as_from_outside(submitit):
        assert [os.environ.get(name) for name in names] == ["/etc/other.conf", "mine", "7"]
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    with slurm._as_from_outside(submitit):
        assert [os.environ.get(name) for name in names] == ["/etc/other.conf", None, None]
    assert [os.environ.get(name) for name in names] == ["/etc/other.conf", "mine", "7"]
