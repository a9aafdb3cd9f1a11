"""What belongs to a run folder is said in one place, and everybody who writes for the user asks there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.doors import call
from tests.sendable import make_run
from vlmbatch import rundir

NAMES = sorted(rundir.FILES | rundir.FOLDERS | {rundir.progress_of(7)})


@pytest.mark.parametrize("name", [*NAMES, "logs/mine.csv", "slurm/mine.csv", "."])
def test_no_users_file_takes_a_place_of_the_run(tmp_path: Path, name: str) -> None:
    """``run --pending`` and ``collect --csv`` refuse the same places, through links and in other runs, too."""
    run = make_run(tmp_path / "run", 1)
    (tmp_path / "link").symlink_to(run.path)
    (tmp_path / "run" / "logs").mkdir()
    (tmp_path / "run" / "slurm").mkdir()
    before = sorted(path for path in (tmp_path / "run").rglob("*") if ".locks" not in path.parts)
    target = tmp_path / "link" / name
    other = make_run(tmp_path / "other", 1)
    for asked in (run, other):
        pending = call("run", asked.path, "--pending", target)
        assert (pending.status, "its own use" in pending.err) == (2, True)
        csv = call("collect", asked.path, "--csv", target)
        assert csv.status == 2, csv.out
    assert sorted(path for path in (tmp_path / "run").rglob("*") if ".locks" not in path.parts) == before


@pytest.mark.parametrize("name", ["left.jsonl", "notes/progress.json", "progress-mine.json", "logs.csv"])
def test_other_places_are_the_users(tmp_path: Path, name: str) -> None:
    """A file of the user's may lie in the run folder under another name."""
    run = make_run(tmp_path / "run", 1)
    (tmp_path / "run" / "notes").mkdir()
    assert not rundir.belongs_to_run(str(tmp_path / "run" / name))
    assert call("run", run.path, "--pending", tmp_path / "run" / name).status == 0


def test_place_outside_of_runs_belongs_to_none(tmp_path: Path) -> None:
    """A name alone makes no run folder."""
    assert not rundir.belongs_to_run(str(tmp_path / "run.json"))
    assert rundir.run_around(str(tmp_path / "run.json")) is None
