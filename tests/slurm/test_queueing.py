"""What queuing does to the run folder, to this process and to whoever queues at the same time (no SLURM is needed)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.sendable import make_run
from tests.slurm.standins import Standins, standins
from tests.waiting import wait_until
from vlmbatch.api.run import Run
from vlmbatch.errors import InputError
from vlmbatch.serve import Serve
from vlmbatch.slurm import SlurmOptions, Submitted
from vlmbatch.stages.running.task import RunOptions

__all__ = ["standins"]  # the fixture

NOWHERE = "http://127.0.0.1:9/v1"


def queue(run: str | Path, *, url: str = NOWHERE, environ: dict[str, str] | None = None, **slurm: Any) -> Submitted:
    """Queue a run in two parts."""
    options = SlurmOptions(tasks=2, time="5", **slurm)
    return Run.open(run).submit(options, RunOptions(base_urls=(url,)), environ=environ)


# --- the run folder --------------------------------------------------------------------------------------------------


def test_queued_run_is_handed_over_without_what_the_cluster_works_with(standins: Standins, tmp_path: Path) -> None:
    """Sealed, packed and redacted: pickles, scripts and submitit's links stay at home, what servers said does not."""
    run = Run(make_run(tmp_path / "run", 4))
    assert queue(run.path, merge=True).follow_up == "2"
    left = [path for path in (tmp_path / "run" / "slurm").rglob("*") if not path.is_dir()]
    assert {path.suffix for path in left} == {".pkl", ".sh"}
    assert any(path.is_symlink() for path in left), "submitit's own"
    (tmp_path / "run" / "logs").mkdir()
    (tmp_path / "run" / "logs" / "serve-0000.log").write_text("ready")
    run.seal()
    check = subprocess.run([sys.executable, "-I", tmp_path / "run" / "verify.py"], capture_output=True, check=False)
    assert check.returncode == 0, check.stdout
    run.bag(str(tmp_path / "bag"))
    run.redact(str(tmp_path / "copy"), ["paths"])
    packed = {path.relative_to(tmp_path / "bag" / "data").as_posix() for path in (tmp_path / "bag").rglob("data/**/*")}
    assert "logs/serve-0000.log" in packed
    for folder in ("bag", "copy"):
        files = [path for path in (tmp_path / folder).rglob("*") if path.is_file()]
        assert not [path for path in files if "slurm" in path.parts or path.suffix in {".pkl", ".sh"}]
        assert not [path for path in files if b"slurm/" in path.read_bytes()], "no list names them either"


def test_folder_that_is_called_slurm_elsewhere_is_sealed(tmp_path: Path) -> None:
    """Only the run folder's own slurm/ is the cluster's."""
    run = Run(make_run(tmp_path / "run", 1))
    (tmp_path / "run" / "notes" / "slurm").mkdir(parents=True)
    (tmp_path / "run" / "notes" / "slurm" / "mine.txt").write_text("x")
    run.seal()
    assert "notes/slurm/mine.txt" in (tmp_path / "run" / "SEALED.sha256").read_text()
    check = subprocess.run([sys.executable, "-I", tmp_path / "run" / "verify.py"], capture_output=True, check=False)
    assert check.returncode == 0, check.stdout


@pytest.mark.parametrize("behind", ["?api_key=s3cr3t", "#s3cr3t"])
def test_address_that_may_hold_a_secret_is_not_written_down(standins: Standins, tmp_path: Path, behind: str) -> None:
    """What travels to the cluster is a file of the run folder."""
    run = make_run(tmp_path / "run", 2)
    with pytest.raises(InputError, match="can be secret") as caught:
        queue(run.path, url=NOWHERE + behind)
    assert "s3cr3t" not in str(caught.value) + caught.value.hint
    assert not (tmp_path / "run" / "slurm").exists()


@pytest.mark.parametrize("to", [{"base_urls": (NOWHERE,)}, {"serve": Serve("serve {port}")}])
def test_images_in_a_providers_store_are_not_sent_elsewhere(
    standins: Standins, tmp_path: Path, to: dict[str, Any]
) -> None:
    """What each task would refuse is refused before anything is queued."""
    make_run(tmp_path / "run", 2)
    path = tmp_path / "run" / "run.json"
    info = json.loads(path.read_bytes())
    info["carrier"] = {"endpoint": "https://api.example.com/v1"}
    path.chmod(0o644)
    path.write_text(json.dumps(info))
    with pytest.raises(InputError, match=r"file store of api\.example\.com"):
        Run.open(tmp_path / "run").submit(SlurmOptions(tasks=2), RunOptions(**to))
    assert not standins.is_asked()


def test_folder_that_cannot_be_written_to_is_told(standins: Standins, tmp_path: Path) -> None:
    """A file where scripts and logs go."""
    run = make_run(tmp_path / "run", 2)
    (tmp_path / "run" / "slurm").touch()
    with pytest.raises(InputError, match="slurm: ") as caught:
        queue(run.path)
    assert caught.value.hint == "check path, permissions and space"


# --- what is at work already -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["#!/bin/sh\nexec /bin/sleep 300\n", "\0", None])
def test_queue_that_cannot_be_looked_at_is_not_taken_for_empty(
    standins: Standins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None
) -> None:
    """A squeue that hangs, cannot be started or says an error: nothing is queued beside what may be at work."""
    monkeypatch.setenv("PATH", str(standins.programs))  # a real one would be found behind one that cannot be started
    monkeypatch.setattr("vlmbatch.slurm.sbatch._SQUEUE_TIMEOUT_S", 0.2)
    if program is None:
        (standins.home / "says").write_text("slurm_load_jobs error: Unable to contact slurm controller\n")
    else:
        standins.write("squeue", program)
    with pytest.raises(InputError, match="does not say what it has in the queue") as caught:
        queue(make_run(tmp_path / "run", 2).path)
    assert ("Unable to contact" in str(caught.value)) is (program is None)
    assert not standins.is_asked()


def test_machine_without_squeue_is_told(standins: Standins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is wanted as sbatch is."""
    (standins.programs / "squeue").unlink()
    monkeypatch.setenv("PATH", str(standins.programs))
    with pytest.raises(InputError, match="squeue cannot be found"):
        queue(make_run(tmp_path / "run", 2).path)


def test_colleagues_jobs_on_the_folder_are_waited_for(
    standins: Standins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever queued them, and whatever squeue leaves out for this user by itself."""
    monkeypatch.setenv("SQUEUE_USERS", "me")
    run = make_run(tmp_path / "run", 2)
    (standins.home / "queue").write_text(
        f"CLUSTER: one\n77|{run.path}/slurm/a.sh\n77|{run.path}/slurm/a.sh\n78|/elsewhere/slurm/a.sh\n"
    )
    assert queue(run.path).behind == ("77",)


def test_of_two_who_queue_at_once_one_waits_for_the_other(
    standins: Standins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody comes between looking and queuing: the later one sees what the earlier one has queued."""
    monkeypatch.setenv("HOLD", "1")
    run = make_run(tmp_path / "run", 2)
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(queue, run.path) for _ in range(2)]
        wait_until(standins.is_asked)
        (standins.home / "go").touch()
        first, second = sorted((one.result() for one in both), key=lambda one: str(one.array))
    assert (first.behind, second.behind) == ((), (first.array,))


# --- this process ----------------------------------------------------------------------------------------------------


def test_queuing_changes_nothing_in_this_process(
    standins: Standins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While sbatch is called without what would displace the flags, other threads see environment and stderr whole."""
    monkeypatch.setenv("HOLD", "1")
    monkeypatch.setenv("SBATCH_ACCOUNT", "shell")
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    before, stderr = dict(os.environ), sys.stderr
    run = make_run(tmp_path / "run", 2)
    with ThreadPoolExecutor(1) as pool:
        queued = pool.submit(queue, run.path, account="said")
        wait_until(standins.is_asked)
        now, is_same = dict(os.environ), sys.stderr is stderr
        (standins.home / "go").touch()
        assert queued.result().array == "1"
    assert now == before
    assert is_same
    assert not {"SBATCH_ACCOUNT", "SLURM_JOB_ID"} & standins.environment(1).keys()


def test_jobs_get_the_environment_that_was_handed_in(standins: Standins, tmp_path: Path) -> None:
    """The key is looked up there, and nothing of this process's own variables goes along."""
    run = make_run(tmp_path / "run", 2)
    mine = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ["PYTHONPATH"]}
    options, slurm = RunOptions(base_urls=(NOWHERE,)), SlurmOptions(tasks=2)
    with pytest.raises(InputError, match="MY_KEY is not set"):
        Run(run).submit(slurm, options, environ=mine, key_env="MY_KEY")
    Run(run).submit(slurm, options, environ={**mine, "MY_KEY": "k-1"}, key_env="MY_KEY")
    assert standins.environment(1)["MY_KEY"] == "k-1"
    assert "PYTEST_CURRENT_TEST" not in standins.environment(1)


def test_what_is_half_queued_when_interrupted_is_taken_back(
    standins: Standins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while sbatch works: the array that it then queues does not stay behind."""
    run = make_run(tmp_path / "run", 2)
    words = ["run", run.path, "--base-url", NOWHERE, "--slurm", "2"]
    with subprocess.Popen(
        [sys.executable, "-m", "vlmbatch", *words],
        env={**os.environ, "HOLD": "1"},
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    ) as command:
        wait_until(standins.is_asked)
        os.killpg(command.pid, signal.SIGINT)
        (standins.home / "go").touch()
    assert command.returncode == 130
    assert standins.cancelled() == ["1"]


def test_python_that_does_not_work_in_that_environment_is_told(standins: Standins, tmp_path: Path) -> None:
    """Tasks would fail hours later; here it is an error in words, and nothing is queued."""
    broken = {"PATH": os.environ["PATH"], "PYTHONHOME": str(tmp_path / "none")}
    with pytest.raises(InputError, match="what queues jobs failed"):
        queue(make_run(tmp_path / "run", 2).path, environ=broken)
    assert not standins.is_asked()


def test_second_job_that_is_refused_takes_the_array_back(standins: Standins, tmp_path: Path) -> None:
    """The error says that nothing is queued, and it is so."""
    real = shutil.move(standins.programs / "sbatch", standins.programs / "queues")
    standins.write(
        "sbatch",
        f'#!/bin/sh\ngrep -q dependency= "$1" && {{ echo "sbatch: error: no" >&2; exit 1; }}\nexec {real} "$1"\n',
    )
    with pytest.raises(InputError, match=r"SLURM took no job: no$"):
        queue(make_run(tmp_path / "run", 2).path, merge=True)
    assert standins.cancelled() == ["1"]
