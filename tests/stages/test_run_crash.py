"""run when the world ends: SIGKILL at any moment, a full disk, too much to hold in memory."""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults import behaviour, faulty
from tests.sendable import attempts_of, make_run, row_id
from vlmbatch import jsonl
from vlmbatch.stages.run import RunOptions, run

if TYPE_CHECKING:
    from vlmbatch.rundir import RunDir

VICTIM = Path(__file__).with_name("run_victim.py")
KILLS = 200
AT_ONCE = 8
Send = Callable[..., dict[str, Any]]


@pytest.fixture
def victim() -> Iterator[Send]:
    """Return a function that runs the stage in a process of its own and may kill it."""
    with subprocess.Popen(
        [sys.executable, str(VICTIM)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        # One arena: else glibc keeps freed megabytes once for each thread, and the peak tells of it and not of us.
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "MALLOC_ARENA_MAX": "1"},
    ) as process:

        def send(
            run_dir: RunDir, base_url: str, *, kill_after_s: float | None = None, **options: Any
        ) -> dict[str, Any]:
            assert process.stdin is not None
            assert process.stdout is not None
            command = {"run": run_dir.path, "base_url": base_url, "options": options, "kill_after_s": kill_after_s}
            process.stdin.write(json.dumps(command) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield send
        assert process.stdin is not None
        process.stdin.close()


def answers(run_dir: RunDir) -> Counter[str]:
    """Return how often each row was answered on record."""
    return Counter(one["custom_id"] for one in attempts_of(run_dir) if one["error"] is None)


def test_killed_at_200_moments_no_answer_is_lost_or_doubled(tmp_path: Path, victim: Send) -> None:
    """However often it is killed: resumed to one answer per id, and no more paid twice than was in flight."""
    spec = behaviour("proc-sigkill")
    rows = 3000
    run_dir = make_run(tmp_path / "run", rows)
    moments = random.Random(5)
    script = {"steps": [{"delay_s": 0.005, "status": 200, "body": "ok"}]}
    with faulty(script) as server:
        for _ in range(KILLS):
            recorded = answers(run_dir)
            seen = len(server.seen)
            ended = victim(run_dir, server.base_url, kill_after_s=moments.uniform(0.02, 0.09), concurrency=AT_ONCE)
            assert ended["status"] in {-9, 0}
            assert {seen.row for seen in server.seen[seen:]}.isdisjoint(_rows(recorded))
        assert victim(run_dir, server.base_url, concurrency=AT_ONCE)["status"] == 0
    assert spec["check"]["max_extra_requests"] == "concurrency per kill"
    assert len(server.seen) <= rows + KILLS * AT_ONCE
    assert answers(run_dir) == {row_id(index): 1 for index in range(rows)}
    _every_line_is_whole_or_torn(run_dir)


def _rows(recorded: Counter[str]) -> set[int]:
    return {int(custom_id.split("-")[1]) for custom_id in recorded}


def _every_line_is_whole_or_torn(run_dir: RunDir) -> None:
    """No torn line was written on: each line is a whole attempt, or the start of one."""
    start = b'{"schema":"vlmbatch.attempt/1","custom_id":"'
    for path in run_dir.results():
        for line in jsonl.iter_lines(path):
            is_start = start.startswith(line.data[: len(start)]) or line.data.startswith(start)
            assert is_start
            assert line.data.count(start) <= 1


def test_full_disk_stops_the_run_and_loses_little(tmp_path: Path) -> None:
    """Sending stops at the first write that fails; what is on disk is whole; with room again the rest is sent."""
    spec = behaviour("disk-full")
    run_dir = make_run(tmp_path / "run", spec["rows"])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    script = {"steps": [{"delay_s": 0.005, "status": 200, "body": "ok"}]}
    with faulty(script) as server:
        options = RunOptions(base_urls=(server.base_url,), concurrency=AT_ONCE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (spec["script"]["results_limit_bytes"], before[1]))
        try:
            first = run(run_dir, options, key="sk-x")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert "cannot be written" in first.stopped
        assert first.problem() is not None
        paid = len(server.seen)
        kept = len(answers(run_dir))
        assert paid < spec["rows"]
        assert paid - kept == first.lost_lines <= 3 * AT_ONCE
        second = run(run_dir, options, key="sk-x")
    assert second.problem() is None
    assert answers(run_dir) == {row_id(index): 1 for index in range(spec["rows"])}
    _every_line_is_whole_or_torn(run_dir)


def test_memory_grows_with_what_is_in_flight_and_not_with_the_rows(tmp_path: Path, victim: Send) -> None:
    """load-memory: more than twice the rows take the same memory, and no more than the rows in flight explain.

    The smallest of three peaks is what the run needs; a longer run only has more chances of a larger one.
    """
    peaks: dict[int, float] = {}
    for rows in (80, 200):
        seen = []
        for number in range(3):
            run_dir = make_run(tmp_path / f"run-{rows}-{number}", rows, body_bytes=1_000_000)
            with faulty({"steps": [{"delay_s": 0.02, "body": "ok"}]}) as server:
                ended = victim(run_dir, server.base_url, concurrency=AT_ONCE)
            assert ended["status"] == 0
            seen.append(ended["rss_mb"])
        peaks[rows] = min(seen)
    assert peaks[200] - peaks[80] < 12
    assert peaks[200] < 80 + 2 * AT_ONCE


def test_memory_per_row_that_is_already_done_is_small(tmp_path: Path, victim: Send) -> None:
    """Resuming a long run keeps a few bytes a row, not its answers."""
    peaks = []
    for rows in (20_000, 60_000):
        run_dir = make_run(tmp_path / f"run-{rows}", rows)
        line = '{"schema":"vlmbatch.attempt/1","custom_id":"%s","line_sha256":"%s","text":"%s","answered":true}\n'
        entries = list(run_dir.iter_entries())[:-10]
        lines = [(line % (one.custom_id, one.line_sha256, "x" * 500)).encode() for one in entries]
        Path(run_dir.file("results/a.jsonl")).write_bytes(b"".join(lines))
        with faulty() as server:
            ended = victim(run_dir, server.base_url)
            assert (ended["status"], len(server.seen)) == (0, 10)
        peaks.append(ended["rss_mb"])
    assert (peaks[1] - peaks[0]) * 1e6 / 40_000 < 50
