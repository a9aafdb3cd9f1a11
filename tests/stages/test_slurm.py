"""A run on a real SLURM (tests/slurm/cluster.sh): arrays, kills, retries and merging. Skipped where none answers."""

from __future__ import annotations

import os
import pickle
import re
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults import FaultServer, faulty
from tests.sendable import attempts_of, make_run, row_id
from tests.slurm.finding import cluster
from tests.waiting import wait_until
from vlmbatch.api.run import Run
from vlmbatch.errors import InputError, IntegrityError
from vlmbatch.retry import Policy
from vlmbatch.serve import Serve
from vlmbatch.slurm import SlurmOptions, Submission, Submitted, sbatch, submit
from vlmbatch.stages import archive
from vlmbatch.stages.run import RunOptions

if TYPE_CHECKING:
    from vlmbatch.rundir import RunDir

__all__ = ["cluster"]  # the fixture

SLOW = {"steps": [{"status": 200, "body": "ok", "delay_s": 0.1}]}


OF_SLURM = {"max_retries", "merge", "partition", "time", "account", "job_name", "ntasks_per_node", "sbatch", "environ"}


def job(run: RunDir, server: FaultServer | None = None, *, tasks: int = 2, **more: Any) -> Submission:
    """Return a job over a run that is sent to a server of this process."""
    cluster = {"time": "5", **{name: more.pop(name) for name in OF_SLURM & set(more)}}
    keys = {name: more.pop(name) for name in ("key_env", "key_file") if name in more}
    given: dict[str, Any] = {"concurrency": 2, "policy": Policy(max_tries=1, base_s=0.01, backoff_cap_s=0.02), **more}
    if server is not None:
        given["base_urls"] = (server.base_url,)
    return Submission(run=run.path, slurm=SlurmOptions(tasks=tasks, **cluster), send=RunOptions(**given), **keys)


def served(tmp_path: Path, *, latency_s: float = 0.0) -> Serve:
    """Return a server that each task starts for itself."""
    faults = tmp_path / "faults.json"
    faults.write_text(f'{{"latency_s": {latency_s}}}')
    python = f"{sys.executable} -m vlmbatch.rehearsal --port {{port}} --model {{model}}"
    return Serve(f"{python} --faults {shlex.quote(str(faults))}", wait_s=60)


def servers(tmp_path: Path) -> list[int]:
    """Return the processes of such servers."""
    told = subprocess.run(["pgrep", "-f", f"^{sys.executable} -m .*{tmp_path}"], capture_output=True, check=False)
    return [int(pid) for pid in told.stdout.split()]


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
    wait_until(lambda: not active & set(states(submitted).values()))
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


@pytest.mark.parametrize("name", ["run", 'it\'s a "rün" #1 of $HOME; `ls`*'])
def test_array_serves_sends_and_merges(cluster: None, tmp_path: Path, name: str) -> None:
    """Each task starts its own server, sends its part into a file of its own; the job behind the array collects."""
    run = make_run(tmp_path / name, 31)
    asked = job(run, tasks=3, merge=True, serve=served(tmp_path))
    submitted = submit(asked, os.environ)
    ended = wait(submitted)
    assert set(ended.values()) == {"COMPLETED"}, logs(submitted)
    assert len(ended) == 4
    results = sorted(path.name for path in (tmp_path / name / "results").iterdir())
    assert results == ["task-0000.jsonl", "task-0001.jsonl", "task-0002.jsonl"]
    assert ids_on_record(run) == [row_id(number) for number in range(31)]
    records = (tmp_path / name / "merged.jsonl").read_text().splitlines()
    assert len(records) == 31
    assert sorted(path.name for path in (tmp_path / name / "logs").iterdir()) == [f"serve-000{i}.log" for i in range(3)]
    assert servers(tmp_path) == [], "a server outlived its task"
    archive.seal(run)
    assert archive.bag(run, str(tmp_path / "bag")).sealed
    again = submit(replace(asked, slurm=SlurmOptions(tasks=3)), os.environ)
    assert (again.array, again.follow_up) == (None, None)


def test_killed_task_is_continued_by_the_same_command(cluster: None, tmp_path: Path) -> None:
    """A task that is killed half-way loses nothing: the next submission sends the rest, one record for each id."""
    run = make_run(tmp_path / "run", 60)
    task = tmp_path / "run" / "results" / "task-0001.jsonl"
    with faulty(SLOW) as server:
        first = submit(job(run, server), os.environ)
        wait_until(lambda: task.exists() and task.read_bytes().count(b"\n") >= 4)
        subprocess.run(["scancel", "--signal=KILL", f"{first.array}_1"], check=True)
        ended = wait(first)
        assert ended[f"{first.array}_0"] == "COMPLETED", logs(first)
        assert ended[f"{first.array}_1"] != "COMPLETED"
        assert 34 <= len(ids_on_record(run)) < 60
        second = submit(job(run, server, merge=True), os.environ)
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
        first = submit(job(run, server, max_retries=2, merge=True), os.environ)
        merged = tmp_path / "run" / "merged.jsonl"
        wait_until(lambda: merged.exists() and not queue())
        assert set(server.tries.values()) == {2}, "the third turn was not needed"
    assert [state for one, state in states(first).items() if "_" in one] == ["FAILED", "FAILED"], logs(first)
    assert [record["status"] for record in Run.open(run.path).records()] == ["ok"] * 6
    assert "were queued again" in logs(first)


def test_preempted_task_goes_on_by_itself(cluster: None, tmp_path: Path) -> None:
    """A task that SLURM puts back into the queue starts again there and sends only what it has not sent."""
    run = make_run(tmp_path / "run", 40)
    with faulty(SLOW) as server:
        submitted = submit(job(run, server, tasks=1), os.environ)
        task = tmp_path / "run" / "results" / "task-0000.jsonl"
        wait_until(lambda: bool(attempts_of(run)))
        subprocess.run(["scontrol", "requeue", str(submitted.array)], check=True)
        assert set(wait(submitted).values()) == {"COMPLETED"}, logs(submitted)
        assert len(server.seen) <= 40 + 2
    assert ids_on_record(run) == [row_id(number) for number in range(40)]
    assert task.exists() is False, "a run of one part is the whole run"


def test_time_limit_ends_a_task_in_good_order(cluster: None, tmp_path: Path) -> None:
    """Submitit's word that the time is nearly up lets what is in flight finish; nothing is sent twice."""
    run = make_run(tmp_path / "run", 40)
    with faulty(SLOW) as server:
        first = submit(job(run, server, tasks=1), os.environ)
        wait_until(lambda: bool(attempts_of(run)))
        subprocess.run(["scancel", "--signal=USR2", str(first.array)], check=True)
        assert set(wait(first).values()) == {"FAILED"}
        assert "interrupted" in logs(first)
        assert len(attempts_of(run)) == len(server.seen) < 40


def test_time_limit_spares_the_tasks_own_server(cluster: None, tmp_path: Path) -> None:
    """The word that the time is nearly up may reach all processes of a task; its server still answers what is open."""
    run = make_run(tmp_path / "run", 40)
    first = submit(job(run, tasks=1, serve=served(tmp_path, latency_s=1.0)), os.environ)
    wait_until(lambda: bool(attempts_of(run)))
    subprocess.run(["scancel", "--signal=USR2", str(first.array)], check=True)
    assert set(wait(first).values()) == {"FAILED"}
    assert {attempt["status_code"] for attempt in attempts_of(run)} == {200}, logs(first)
    assert len(attempts_of(run)) < 40
    assert servers(tmp_path) == []


def test_task_that_is_killed_outright_leaves_no_server(cluster: None, tmp_path: Path) -> None:
    """Nothing tells a process of ``kill -9``; its server ends all the same."""
    run = make_run(tmp_path / "run", 40)
    submitted = submit(job(run, tasks=1, serve=served(tmp_path, latency_s=1.0)), os.environ)
    wait_until(lambda: bool(attempts_of(run)))
    assert len(servers(tmp_path)) == 1
    command = ["pgrep", "-f", f"^{sys.executable} .*_submit {submitted.folder}"]
    told = subprocess.run(command, capture_output=True, check=True)
    os.kill(int(told.stdout), signal.SIGKILL)
    wait_until(lambda: not servers(tmp_path))
    assert set(wait(submitted).values()) == {"FAILED"}


def test_submission_waits_for_what_is_at_work(cluster: None, tmp_path: Path) -> None:
    """However many parts a later submission makes, no row is sent twice, and it is merged when all is done."""
    run = make_run(tmp_path / "run", 40)
    with faulty(SLOW) as server:
        first = submit(job(run, server), os.environ)
        wait_until(lambda: bool(attempts_of(run)))
        second = submit(job(run, server, tasks=3, merge=True), os.environ)
        assert (second.behind, second.parts) == ((first.array,), (0, 1, 2))
        assert set(wait(second).values()) == {"COMPLETED"}, logs(second)
        assert set(states(first).values()) == {"COMPLETED"}
        assert set(server.tries.values()) == {1}
    assert [record["status"] for record in Run.open(run.path).records()] == ["ok"] * 40
    assert len((tmp_path / "run" / "merged.jsonl").read_text().splitlines()) == 40


def test_several_processes_of_a_task_send_once(cluster: None, tmp_path: Path) -> None:
    """The first process sends, however early the others end (WaitTime of cluster.sh)."""
    run = make_run(tmp_path / "run", 60)
    with faulty(SLOW) as server:
        submitted = submit(job(run, server, tasks=1, ntasks_per_node=2), os.environ)
        assert set(wait(submitted).values()) == {"COMPLETED"}, logs(submitted)
        assert set(server.tries.values()) == {1}
    assert len(ids_on_record(run)) == 60


def test_task_hears_nothing_of_where_it_was_queued(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules in the folder of the command, and an environment that is not handed on, change nothing in a task."""
    run = make_run(tmp_path / "run", 4)
    for name in ("queue.py", "vlmbatch.py"):
        (tmp_path / name).write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    with faulty(SLOW) as server:
        submitted = submit(job(run, server, merge=True, sbatch={"export": "PYTHONPATH"}), os.environ)
        assert set(wait(submitted).values()) == {"COMPLETED"}, logs(submitted)


def test_key_stands_nowhere_but_in_the_environment(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key reaches the server; scripts, pickles, logs and what SLURM shows of the jobs do not hold it."""
    secret = "k-8d1f6c2a9b"
    monkeypatch.setenv("MY_KEY", secret)
    run = make_run(tmp_path / "run", 4)
    with faulty(SLOW) as server:
        submitted = submit(job(run, server, merge=True, key_env="MY_KEY"), os.environ)
        told = [subprocess.run(["scontrol", "show", "job", "-dd"], capture_output=True, check=True).stdout]
        told.append(subprocess.run(["ps", "-eo", "args"], capture_output=True, check=True).stdout)
        assert set(wait(submitted).values()) == {"COMPLETED"}, logs(submitted)
        assert {seen.headers.get("authorization") for seen in server.seen} == {f"Bearer {secret}"}
    told += [path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not any(secret.encode() in text for text in told)


def test_slurm_refuses_in_its_own_words(cluster: None, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What SLURM does not take is told with its reason, and once."""
    run = make_run(tmp_path / "run", 2)
    for more, reason in (
        ({"partition": "nowhere"}, "invalid partition specified: nowhere; Batch job submission failed: Invalid"),
        ({"sbatch": {"no-such-thing": "1"}}, "unrecognized option '--no-such-thing=1'"),
    ):
        with pytest.raises(InputError, match=re.escape(f"SLURM took no job: {reason}")):
            submit(job(run, base_urls=("http://127.0.0.1:9/v1",), **more), os.environ)
    assert capfd.readouterr() == ("", "")


def test_array_is_not_left_without_the_job_behind_it(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the second job is refused the first one is taken back: the error says that nothing is queued."""
    real = shutil.which("sbatch")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "sbatch"
    program.write_text(
        f'#!/bin/sh\ngrep -q dependency= "$1" && {{ echo "sbatch: error: no" >&2; exit 1; }}\n{real} "$1"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    run = make_run(tmp_path / "run", 40)
    with faulty(SLOW) as server, pytest.raises(InputError, match=r"SLURM took no job: no$"):
        submit(job(run, server, merge=True), os.environ)
    (script,) = (tmp_path / "run" / "slurm").glob("*_submission.sh")
    taken_back = Submitted(script.name.partition("_")[0], (), None, "")
    assert set(wait(taken_back).values()) == {"CANCELLED"}


def test_variables_of_sbatch_do_not_displace_what_is_said(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flag comes before ``SBATCH_...`` of the shell; what no flag says is the shell's, for all jobs of the run."""
    for name, value in {"ACCOUNT": "shell", "TIMELIMIT": "7", "ARRAY_INX": "0-9", "PARTITION": "nowhere"}.items():
        monkeypatch.setenv(f"SBATCH_{name}", value)
    run = make_run(tmp_path / "run", 4)
    further: dict[str, str | bool] = {"job-name": "mine", "requeue": True, "comment": 'it\'s "so" & $HOME'}
    with faulty({"steps": [{"status": 503, "body": "down"}, {"status": 200, "body": "ok"}]}) as server:
        submitted = submit(
            job(run, server, tasks=1, partition="debug", max_retries=1, merge=True, sbatch=further), os.environ
        )
        merged = tmp_path / "run" / "merged.jsonl"
        wait_until(lambda: merged.exists() and not sbatch.at_work(submitted.folder, os.environ))
    scripts = [path.name.partition("_")[0] for path in Path(submitted.folder).glob("*_submission.sh")]
    command = ["squeue", "--noheader", "--states=all", f"--jobs={','.join(scripts)}", "--format=%a|%l|%P|%j|%k"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    array, follow_up = (f'shell|{rest}|it\'s "so" & $HOME' for rest in ("5:00|debug|mine", "5:00|debug|vlmbatch-next"))
    assert sorted(told.splitlines()) == sorted([array, array, follow_up, follow_up]), logs(submitted)
    assert [record["status"] for record in Run.open(run.path).records()] == ["ok"] * 4


# --- without one -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"tasks": 0}, "--slurm must be positive"),
        ({"time": "soon"}, "--time takes"),
        ({"time": "\u0665"}, "--time takes"),
        ({"time": "2"}, "--time below 3 minutes"),
        ({"num_shards": 2}, "deals the rows out itself"),
        ({"shard_id": 1}, "deals the rows out itself"),
        ({"out": "x.jsonl"}, "deals the rows out itself"),
        ({"ids": "ids.txt"}, "without --ids"),
        ({"channel": "batch"}, "sends realtime requests"),
        ({"rehearsal": True}, "sends realtime requests"),
        ({"max_tokens_total": 1}, "for one process"),
        ({"job_name": "a\nb"}, "must not hold line breaks"),
        ({"sbatch": {"comment": "a\nb"}}, "must not hold line breaks"),
        ({"sbatch": {"array": "0-3"}}, "takes neither array nor wrap"),
        ({"concurrency": 0}, "--concurrency must be positive"),
        ({"serve": Serve("serve {model}"), "base_urls": ()}, "does not say where the port goes"),
        ({"serve": Serve("serve {port}")}, "--serve goes without --base-url"),
        ({"base_urls": ("nowhere",)}, "not an http or https URL"),
        ({"base_urls": ("http://me:secret@127.0.0.1",)}, "holds a user name or a password"),
        ({"base_urls": ()}, "there is no base URL"),
        ({"key_env": "sk-aaaaaaaaaaaaaaaaaaaaaaaa"}, "looks like a key"),
        ({"key_env": "sk-aaaaaaaaaaaaaaaaaaaaaaaa", "sbatch": {"export": "NONE"}}, "looks like a key"),
        ({"key_env": "NO_SUCH_KEY"}, "NO_SUCH_KEY is not set"),
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path: Path, more: dict[str, Any], words: str) -> None:
    """They are told before anything is queued or written: what travels would tell them hours later."""
    run = make_run(tmp_path / "run", 1, provider="vllm")
    given = {"base_urls": ("http://127.0.0.1:9/v1",), **more}
    with pytest.raises(InputError, match=words):
        submit(job(run, **given), os.environ)
    assert not (tmp_path / "run" / "slurm").exists()


def test_missing_key_is_told_before_anything_is_queued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks get this environment: a provider's own address without its key would fail in each of them."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(InputError, match="OPENAI_API_KEY is not set"):
        submit(job(make_run(tmp_path / "run", 1)), os.environ)


@pytest.mark.parametrize("name", ["100%A", "50%%", "back\\slash", "new\nline"])
def test_folder_in_whose_path_slurm_fills_in_is_refused(tmp_path: Path, name: str) -> None:
    """Logs would land elsewhere, or nowhere, and the tasks with them."""
    run = make_run(tmp_path / name, 1)
    with pytest.raises(InputError, match="SLURM cannot keep logs"):
        submit(job(run, base_urls=("http://127.0.0.1:9/v1",)), os.environ)


def test_tampered_run_is_not_queued(tmp_path: Path) -> None:
    """The folder is checked before anything is queued."""
    run = make_run(tmp_path / "run", 2)
    shard = tmp_path / "run" / "shards" / "00000.jsonl"
    shard.chmod(0o644)
    shard.write_bytes(shard.read_bytes().replace(b"row 0000001", b"row 0000007"))
    with pytest.raises(IntegrityError):
        submit(job(run, base_urls=("http://127.0.0.1:9/v1",)), os.environ)


def test_missing_submitit_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Submitit is an extra; without it the error says how to get it."""
    monkeypatch.setitem(sys.modules, "submitit", None)
    run = make_run(tmp_path / "run", 2)
    with pytest.raises(InputError, match="submitit") as caught:
        submit(job(run, base_urls=("http://127.0.0.1:9/v1",)), os.environ)
    assert "vlmbatch[slurm]" in caught.value.hint


def test_machine_that_queues_no_jobs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where sbatch cannot be found, the error says where it would be."""
    monkeypatch.setenv("PATH", str(tmp_path))
    run = make_run(tmp_path / "run", 2)
    with pytest.raises(InputError, match="sbatch, srun, squeue cannot be found") as caught:
        submit(job(run, base_urls=("http://127.0.0.1:9/v1",)), os.environ)
    assert "login node" in caught.value.hint


def test_job_that_travels_holds_no_key(tmp_path: Path) -> None:
    """What is pickled for the cluster names the key's variable; the value is looked up there."""
    names = Submission(run="r", slurm=SlurmOptions(tasks=1), send=RunOptions(), key_env="MY_KEY")
    assert b"MY_KEY" in pickle.dumps(names)
    assert not {name for name in Submission.__dataclass_fields__ if name == "key"}


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
    assert sbatch.minutes(limit) == minutes


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
        sbatch={"qos": "long", "mem": "64G", "ntasks-per-node": "2", "requeue": True, "dependency": "afterok:5"},
        environ={"HF_HOME": "/a b,c"},
    )
    assert sbatch.parameters(asked, ("7", "9")) == {
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
        "additional_parameters": {
            "time": "05:59:59",
            "qos": "long",
            "mem": "64G",
            "ntasks_per_node": "2",
            "requeue": True,
            "dependency": "afterok:5,afterany:7:9",
        },
        "setup": ["export HF_HOME='/a b,c'"],
        "srun_args": ["--export=ALL", "--wait=0", "--cpus-per-task=32"],
    }
    plain = sbatch.parameters(SlurmOptions(tasks=1), ())
    assert not {"partition", "account", "gpus_per_node", "cpus_per_task", "setup"} & set(plain)


@pytest.mark.parametrize(("limit", "minutes"), [(None, 60), ("10", 10), ("05:59:59", 60), ("0", 60)])
def test_job_behind_the_array_is_small_and_at_the_same_place(limit: str | None, minutes: int) -> None:
    """It goes where the tasks go, but asks for nothing that they need, and for no more time than they may have."""
    further: dict[str, str | bool] = {"qos": "long", "mem": "64G", "gres": "gpu:1", "exclusive": True, "chdir": "/a"}
    asked = SlurmOptions(tasks=8, partition="gpu", time=limit, gpus=4, nodes=2, sbatch=further)
    assert sbatch.follow_up_parameters(asked, ("7",)) == {
        "job_name": "vlmbatch-next",
        "partition": "gpu",
        "stderr_to_stdout": True,
        "time": minutes,
        "cpus_per_task": 1,
        "use_srun": False,
        "additional_parameters": {"qos": "long", "chdir": "/a", "dependency": "afterany:7"},
    }


def test_jobs_that_queue_jobs_hand_nothing_down() -> None:
    """Inside a job its own settings are hidden from sbatch, but not where SLURM is, nor what the user's shell says."""
    users = {"SLURM_CONF": "/etc/other.conf", "SBATCH_ACCOUNT": "mine", "HOME": "/home/me"}
    jobs = {"SBATCH_MEM_BIND": "local", "SLURM_CPUS_PER_TASK": "7", "SUBMITIT_EXECUTOR": "slurm", "SRUN_DEBUG": "3"}
    plain = SlurmOptions(tasks=1)
    assert sbatch.environment({**users, **jobs}, plain) == {**users, **jobs}
    inside = {**users, **jobs, "SLURM_JOB_ID": "1"}
    assert sbatch.environment(inside, plain) == users
    assert "SBATCH_ACCOUNT" not in sbatch.environment(inside, replace(plain, account="said"))
