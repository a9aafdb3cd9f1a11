"""SIGKILL at every step of the batch channel: the next command adopts what was made, and no row is submitted twice."""

from __future__ import annotations

import multiprocessing
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.stages.batch_runs import KINDS, answers, ids, make, send
from tests.stages.batch_victim import Address, run_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from vlmbatch.rundir import RunDir

_MOST_STEPS = 200


@pytest.fixture(scope="module")
def provider() -> Iterator[str]:
    """Run the rehearsal provider as a process of its own, which outlives every victim."""
    command = [sys.executable, "-m", "vlmbatch.rehearsal", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


@pytest.fixture(scope="module")
def context() -> Any:
    """Return a maker of fresh processes that have everything imported already."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["tests.stages.batch_victim"])
    return made


def _jobs(base_url: str, run: RunDir) -> list[dict[str, Any]]:
    """Return the provider's jobs that hold rows of a run."""
    ours = set(ids(run))
    jobs = httpx.get(f"{base_url}/rehearsal", trust_env=False, timeout=60).json()["jobs"]
    return [job for job in jobs if ours.intersection(job["custom_ids"])]


def _killed(context: Any, run: RunDir, base_url: str, kind: str, step: int, *, torn: bool) -> bool:
    """Run a victim; return whether it died of the kill (False: it came to its end before)."""
    victim = context.Process(target=run_until, args=(run.path, base_url, kind, step), kwargs={"torn": torn})
    victim.start()
    victim.join(60)
    assert victim.exitcode in {0, -signal.SIGKILL}
    return bool(victim.exitcode)


def _finish(run: RunDir, base_url: str, kind: str) -> None:
    """Give the command again until nothing is left to wait for."""
    for _ in range(5):
        result = send(run, Address(base_url), KINDS[kind], settle_s=0.1)  # type: ignore[arg-type]
        if not result.rows_open and not result.rows_waiting:
            return
    raise AssertionError(f"rows are left: {result}")


def _assert_each_row_once(run: RunDir, base_url: str, where: str) -> None:
    """Count the provider's jobs and the answers in results/: one of each for every row."""
    submitted = Counter(name for job in _jobs(base_url, run) for name in job["custom_ids"])
    assert submitted == dict.fromkeys(ids(run), 1), where
    assert answers(run) == dict.fromkeys(ids(run), 1), where


WIRES = pytest.mark.parametrize("kind", ["chat", "messages", "gemini"])


@pytest.mark.parametrize("torn", [False, True], ids=["between", "torn"])
@WIRES
def test_kill_at_every_step_never_submits_a_row_twice(
    tmp_path: Path, provider: str, context: Any, kind: str, torn: bool
) -> None:
    """For each step: kill there, give the same command again, and count the jobs at the provider."""
    step = 0
    killed = True
    while killed:
        step += 1
        assert step < _MOST_STEPS
        folder = tmp_path / f"{step}"
        run = make(folder, KINDS[kind], rows=3, per_shard=2, prompt=f"{step} {torn}")
        killed = _killed(context, run, provider, kind, step, torn=torn)
        _finish(run, provider, kind)
        _assert_each_row_once(run, provider, f"step {step}")
        shutil.rmtree(folder)
    assert step > 8


@pytest.mark.parametrize("seed", range(2))
@WIRES
def test_kill_upon_kill_never_submits_a_row_twice(
    tmp_path: Path, provider: str, context: Any, kind: str, seed: int
) -> None:
    """Commands that are killed one after the other, each at another step, still make each job once."""
    run = make(tmp_path, KINDS[kind], rows=6, per_shard=2, prompt=f"again {seed}")
    chance = random.Random(seed)
    for _ in range(40):
        if not _killed(context, run, provider, kind, chance.randint(2, 10), torn=False):
            break
    _finish(run, provider, kind)
    _assert_each_row_once(run, provider, f"seed {seed}")
