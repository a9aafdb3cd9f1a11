"""The work on pieces: in order and the same, whether it is done here or by helpers."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.stages.result_runs import attempt, completion, failed, make_run, records, write_results
from vlmbatch.errors import IntegrityError
from vlmbatch.stages.collect import CollectOptions, collect
from vlmbatch.stages.collecting.forked import can_fork, in_order

ROOT = Path(__file__).resolve().parents[2]


def _alone(script: str, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of one thread, where helpers may be forked."""
    command = [sys.executable, "-W", "error", "-c", script, *map(str, words)]
    return subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=120)


_WORK = """
import os, sys, time
from vlmbatch.stages.collecting.forked import can_fork, in_order
assert can_fork()
home = os.getpid()
def work(piece):
    assert os.getpid() != home
    time.sleep(0.02 * (piece % 3 == 0))
    return piece * piece
assert list(in_order(range(20), work, workers=3)) == [n * n for n in range(20)]
"""


def test_helpers_answer_in_order() -> None:
    """Results come in the order of the pieces, however long each takes, and each from a process of its own."""
    done = _alone(_WORK)
    assert done.returncode == 0, done.stderr


_FAIL = """
from vlmbatch.errors import IntegrityError, Problem
from vlmbatch.stages.collecting.forked import in_order
def work(piece):
    if piece == 3:
        raise IntegrityError("bad", hint="h", problems=[Problem("c", "m")])
    return piece
seen = []
try:
    for result in in_order(range(50), work, workers=4):
        seen.append(result)
except IntegrityError as error:
    assert (error.message, error.hint, len(error.problems)) == ("bad", "h", 1)
    assert seen == [0, 1, 2], seen
    import os
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        print("no child left")
"""


def test_helper_that_fails_raises_here_and_leaves_no_child() -> None:
    """An error of ours crosses over whole; the other helpers are ended."""
    done = _alone(_FAIL)
    assert done.stdout.strip() == "no child left", done.stderr


_KILLED = """
import os, signal
from vlmbatch.stages.collecting.forked import in_order
def work(piece):
    os.kill(os.getpid(), signal.SIGKILL)
try:
    list(in_order([1, 2], work, workers=2))
except OSError as error:
    print(error)
"""


def test_helper_that_is_killed_is_told() -> None:
    """A helper that the system ended (memory, say) is an error, not an empty result."""
    done = _alone(_KILLED)
    assert "without an answer" in done.stdout, done.stderr


def test_process_of_several_threads_does_not_fork() -> None:
    """Forking beside other threads is not safe: then the work is done here."""
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    thread.start()
    try:
        assert not can_fork()
        mine = threading.get_ident()
        assert list(in_order([1, 2, 3], lambda _: threading.get_ident(), workers=3)) == [mine] * 3
    finally:
        go.set()
        thread.join()


@pytest.mark.parametrize(("pieces", "workers"), [([], 4), ([1], 4), ([1, 2], 1), ([1, 2], 0)])
def test_few_pieces_or_workers_need_no_helper(pieces: list[int], workers: int) -> None:
    """One piece, or one worker, is worked on here."""
    assert list(in_order(pieces, lambda piece: piece + 1, workers=workers)) == [piece + 1 for piece in pieces]


# --- collect -------------------------------------------------------------------------------------------------

_COLLECT = """
import sys
from vlmbatch.stages.collecting import merge
from vlmbatch.stages.collect import CollectOptions, collect
from vlmbatch.stages.collecting.forked import can_fork
assert can_fork()
merge._SMALL_BYTES = 0
merge._PIECE_BYTES = int(sys.argv[3])
collect(sys.argv[1], (), CollectOptions(write=sys.argv[2]))
"""


@pytest.mark.parametrize("piece_bytes", [1, 700, 5000])
def test_collect_by_helpers_is_the_same_to_the_byte(tmp_path: Path, piece_bytes: int) -> None:
    """Cut into pieces of one line or of many, read by helpers or here: the same records, lines and numbers."""
    run = make_run(tmp_path / "run", 12)
    answers: list[Any] = [completion(f"answer {n}" * n) for n in range(12)]
    first = [attempt(run, n, answers[n], at=n) for n in range(0, 12, 2)]
    write_results(
        run, "a.jsonl", [b"\n", *first, b"\r\n", b'{"torn\n', b"\n\n", failed(run, 1), failed(run, 0), b'{"torn']
    )
    write_results(run, "b.jsonl", [attempt(run, n, answers[n], at=30) for n in range(0, 12, 3)])
    write_results(run, "c.jsonl", [])
    here = tmp_path / "here" / "merged.jsonl"
    there = tmp_path / "there" / "merged.jsonl"
    here.parent.mkdir()
    there.parent.mkdir()
    collect(run, (), CollectOptions(write=str(here)))
    done = _alone(_COLLECT, run.path, there, piece_bytes)
    assert done.returncode == 0, done.stderr
    assert there.read_bytes() == here.read_bytes()
    assert (there.parent / "summary.json").read_bytes() == (here.parent / "summary.json").read_bytes()
    lines = Path(run.file("results/b.jsonl")).read_bytes().splitlines()
    for record in records(here):
        if record["source_file"] == "results/b.jsonl":
            assert record["custom_id"].encode() in lines[record["source_line"] - 1]


def test_foreign_line_of_a_later_piece_has_its_place_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line number that is told counts from the start of the file, blank lines too."""
    monkeypatch.setattr("vlmbatch.stages.collecting.merge._PIECE_BYTES", 1)
    run = make_run(tmp_path / "run", 2)
    stranger = attempt(run, 0, completion("a")) | {"custom_id": "s-000000-00000000"}
    write_results(run, "a.jsonl", [b"\n", attempt(run, 0, completion("a")), b"\n\n", attempt(run, 1), stranger])
    with pytest.raises(IntegrityError) as caught:
        collect(run)
    assert [problem.line for problem in caught.value.problems] == [6]


def test_results_that_grow_while_they_are_read_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is still going on appends lines: what was there is collected, and the rest is said to come."""
    run = make_run(tmp_path / "run", 2)
    path = write_results(run, "a.jsonl", [attempt(run, 0, completion("a"))])
    sizes: dict[str, int] = {}

    def size_before(name: str) -> int:
        size = sizes.setdefault(name, Path(name).stat().st_size)
        if name == path and len(sizes) == 1:
            write_results(run, "a.jsonl", [attempt(run, 0, completion("a")), attempt(run, 1, completion("b"))])
        return size

    monkeypatch.setattr("vlmbatch.stages.collecting.merge.os.path.getsize", size_before)
    result = collect(run)
    assert result.summary["counts"]["ok"] == 1
    assert any("grew while" in sentence for sentence in result.warnings)
