"""A sealed folder and collect: what was changed is seen, and nothing false is put under a seal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.stages.result_runs import attempt, completion, make_run, write_results
from vlmbatch import jsonl
from vlmbatch.errors import IntegrityError
from vlmbatch.stages.archive import seal
from vlmbatch.stages.collect import CollectOptions, CollectResult, collect

if TYPE_CHECKING:
    from collections.abc import Callable

    from vlmbatch.rundir import RunDir

PRICES = b'{"schema":"vlmbatch.estimate/1","price_in_usd_per_mtok":"1","price_out_usd_per_mtok":"2"}\n'


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Return a collected run of three answered rows, with prices on record."""
    run = make_run(tmp_path / "run", 3)
    Path(run.file("estimates.jsonl")).write_bytes(PRICES)
    write_results(run, "run.jsonl", [attempt(run, n, completion(f"answer {n}")) for n in range(3)])
    collect(run, (), CollectOptions(write=run.file("merged.jsonl")))
    return run


def _change(run: RunDir, name: str, old: bytes, new: bytes) -> None:
    path = Path(run.file(name))
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))


def _seal(run: RunDir) -> None:
    """Do what ``collect RUN --seal`` does."""
    collect(run, (), CollectOptions(seal=True))
    seal(run)


def _gate(run: RunDir) -> CollectResult:
    return collect(run, (), CollectOptions(gate=True))


def _swap_answers(run: RunDir) -> None:
    _change(run, "results/run.jsonl", b"answer 0", b"answer 9")


FALSE = {
    "merged.jsonl": lambda run: _change(run, "merged.jsonl", b"answer 1", b"answer X"),
    "summary.json": lambda run: _change(run, "summary.json", b'"ok": 3', b'"ok": 2'),
    "results/run.jsonl": _swap_answers,
}


@pytest.mark.parametrize("name", FALSE)
def test_seal_refuses_what_its_own_script_would_reject(name: str, run: RunDir) -> None:
    """A changed record, count or answer: no seal is set, and the file is named."""
    FALSE[name](run)
    with pytest.raises(IntegrityError, match="nothing was sealed") as caught:
        seal(run)
    assert name in str([str(problem) for problem in caught.value.problems])
    assert not Path(run.file("SEALED.sha256")).exists()


def test_broken_summary_is_named_by_seal_and_by_the_script(run: RunDir) -> None:
    """The file, not just the parser's word."""
    Path(run.file("summary.json")).write_bytes(b'{"counts": ')
    with pytest.raises(IntegrityError) as caught:
        seal(run)
    assert [problem.where for problem in caught.value.problems] == ["summary.json"]
    script = Path(seal.__code__.co_filename).parents[2] / "data" / "verify.py"
    done = subprocess.run([sys.executable, "-S", script, run.path], capture_output=True, text=True, check=False)
    assert "FAIL  summary.json" in done.stdout
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("summary.json", b'"total_usd": "0.00249"', b'"total_usd": "0.00149"', "cost.total_usd"),
        ("summary.json", b'"p50": 1.5', b'"p50": 0.5', "latency_s.p50"),
        ("merged.jsonl", b'"latency_s":1.5', b'"latency_s":0.5', "merged.jsonl"),
    ],
)
def test_numbers_that_the_results_do_not_give_are_not_sealed(
    name: str, old: bytes, new: bytes, said: str, run: RunDir
) -> None:
    """What the script cannot know, collect has just computed; a forged hash in the summary helps nobody."""
    _change(run, name, old, new)
    summary = jsonl.loads(Path(run.file("summary.json")).read_bytes())
    summary["merged"]["sha256"] = jsonl.sha256(Path(run.file("merged.jsonl")).read_bytes())
    Path(run.file("summary.json")).write_bytes(jsonl.dumps_pretty(summary))
    with pytest.raises(IntegrityError) as caught:
        _seal(run)
    assert said in str([str(problem) for problem in caught.value.problems])


def test_records_that_are_written_anew_can_be_sealed(run: RunDir) -> None:
    """--write with --seal mends the folder; where nothing was collected there is nothing to compare."""
    _change(run, "summary.json", b'"total_usd": "0.00249"', b'"total_usd": "0.00149"')
    collect(run, (), CollectOptions(seal=True, write=run.file("merged.jsonl")))
    _seal(run)
    for name in ("merged.jsonl", "summary.json"):
        Path(run.file(name)).unlink()
    _seal(run)


def test_one_of_two_files_alone_is_not_sealed(run: RunDir) -> None:
    """Records without their summary, or a summary without its records, say nothing that could be checked."""
    Path(run.file("summary.json")).unlink()
    with pytest.raises(IntegrityError, match="nothing was sealed"):
        _seal(run)


def test_gate_holds_the_folder_against_its_seal(run: RunDir) -> None:
    """An untouched folder passes; without a seal the gate has no such line."""
    assert "seal" not in [check.name for check in _gate(run).checks]
    _seal(run)
    told = _gate(run)
    assert [check.holds for check in told.checks if check.name == "seal"] == [True]
    assert collect(run).warnings == ()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("results/run.jsonl", _swap_answers),
        ("merged.jsonl", FALSE["merged.jsonl"]),
        ("estimates.jsonl", lambda run: _change(run, "estimates.jsonl", b'"1"', b'"9"')),
        ("verify.py", lambda run: Path(run.file("verify.py")).write_bytes(b"print('VERIFIED')")),
        ("summary.json", lambda run: Path(run.file("summary.json")).unlink()),
        ("results/more.jsonl", lambda run: Path(run.file("results/more.jsonl")).touch()),
        ("report.html", lambda run: Path(run.file("report.html")).touch()),
    ],
)
def test_sealed_folder_that_was_changed_fails_the_gate(
    name: str, change: Callable[[RunDir], object], run: RunDir
) -> None:
    """Whichever file it is: a line of the gate fails and names it; without a gate a warning does."""
    _seal(run)
    change(run)
    (check,) = [check for check in _gate(run).checks if not check.holds]
    assert (check.name, check.asked) == ("seal", "SEALED.sha256")
    assert name in check.detail
    (warning,) = collect(run).warnings
    assert "not what was sealed" in warning
    assert name in warning


def test_folder_can_be_sealed_again_after_more_work(run: RunDir) -> None:
    """The gate asks nothing of a seal that is about to be replaced; that it no longer held is said."""
    _seal(run)
    write_results(run, "more.jsonl", [attempt(run, 0, completion("later"), at=5)])
    options = CollectOptions(gate=True, seal=True, write=run.file("merged.jsonl"))
    told = collect(run, (), options)
    assert all(check.holds for check in told.checks if check.name == "seal")
    assert any("results/more.jsonl" in warning for warning in told.warnings)
    seal(run)
    assert [check.holds for check in _gate(run).checks if check.name == "seal"] == [True]
