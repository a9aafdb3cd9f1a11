"""batches.jsonl: the state of a job is what its events add up to, and no crash makes it say too much."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sendable import make_run
from vlmbatch.errors import IntegrityError, SchemaVersionError
from vlmbatch.journal import Journal, in_flight, ranges_of

if TYPE_CHECKING:
    from vlmbatch.rundir import RunDir

SHA = "ab" * 32


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Return a run of ten requests in shards of five."""
    return make_run(tmp_path / "run", 10, per_shard=5)


def _intend(journal: Journal, **more: Any) -> str:
    about = {"sha256": SHA, "size": 7, "ranges": [(0, 5)], "shard": "shards/00000.jsonl", "endpoint": "http://h"}
    return journal.intend(**{**about, **more}).key


def test_steps_of_a_job_add_up(run: RunDir) -> None:
    """Each event moves the job on; rows are in flight from the create call until the results are there."""
    with Journal(run) as journal:
        key = _intend(journal)
        assert not journal.jobs[key].holds_rows
        journal.append("uploaded", key, file_id="f-1", expires_at="2026-12-30T00:00:00Z")
        assert not journal.jobs[key].holds_rows
        assert journal.append("creating", key).is_doubtful
        job = journal.append("submitted", key, batch_id="b-1", state="validating")
        assert (job.is_doubtful, job.is_submitted, job.batch_id, job.state) == (False, True, "b-1", "validating")
        assert list(in_flight(run)) == [0, 1, 2, 3, 4]
        assert journal.append("seen", key, state="in_progress", done=2, of=5).state == "in_progress"
        files = [{"file": "results/x.jsonl", "sha256": SHA, "bytes": 3}]
        job = journal.append("downloaded", key, state="completed", files=files)
        assert (job.is_over, job.holds_rows, job.files, job.state) == (True, False, files, "completed")
    assert list(in_flight(run)) == []


def test_what_is_read_back_is_what_was_folded(run: RunDir) -> None:
    """Another process sees the same state."""
    with Journal(run) as journal:
        first = _intend(journal)
        journal.append("creating", first)
        second = _intend(journal, sha256="cd" * 32, ranges=[(5, 7), (9, 10)], shard="")
        journal.append("creating", second)
        journal.append("submitted", second, batch_id="b-2")
        assert Journal(run).jobs == journal.jobs
        assert Journal(run).batch_ids() == {"b-2"}
    assert sorted(in_flight(run)) == [0, 1, 2, 3, 4, 5, 6, 9]


def test_same_job_meant_again_is_another_turn(run: RunDir) -> None:
    """A job that was given up and made again is told apart from the first."""
    with Journal(run) as journal:
        first = _intend(journal)
        journal.append("abandoned", first, why="queue full")
        second = _intend(journal)
        assert first != second
        assert (journal.jobs[first].turn, journal.jobs[second].turn) == (1, 2)
        assert (journal.jobs[first].is_over, journal.jobs[first].why) == (True, "queue full")


def test_job_that_was_given_up_may_turn_up(run: RunDir) -> None:
    """Adopting it brings it back to life."""
    with Journal(run) as journal:
        key = _intend(journal)
        journal.append("creating", key)
        journal.append("abandoned", key, why="no such job")
        assert journal.append("submitted", key, batch_id="b-1").is_submitted


def test_rehearsals_are_kept_apart(run: RunDir) -> None:
    """Neither sees the other's jobs, and a rehearsal holds no rows back."""
    with Journal(run, rehearsal=True) as journal:
        key = _intend(journal)
        journal.append("creating", key)
        journal.append("submitted", key, batch_id="b-1")
    assert Journal(run).jobs == {}
    assert list(Journal(run, rehearsal=True).jobs) == [key]
    assert list(in_flight(run)) == []


def test_run_without_a_journal_has_no_jobs_and_gets_no_file(run: RunDir) -> None:
    """Reading writes nothing."""
    with Journal(run) as journal:
        assert journal.jobs == {}
    assert list(in_flight(run)) == []
    assert not Path(run.file("batches.jsonl")).exists()


def test_newer_journal_is_refused(run: RunDir) -> None:
    """A newer major version may mean other things by the same words."""
    Path(run.file("batches.jsonl")).write_text('{"schema":"vlmbatch.batch/2","event":"intent","job":"x"}\n')
    with pytest.raises(SchemaVersionError, match="batch/2"):
        Journal(run)


@pytest.mark.parametrize("rows", [[[0, 11]], [[-1, 3]], [[5, 4]]])
def test_journal_of_another_run_is_refused(run: RunDir, rows: list[list[int]]) -> None:
    """Rows that there are not would be held back, or sent, at random."""
    event = {"schema": "vlmbatch.batch/1", "event": "intent", "job": "k", "sha256": SHA, "rows": rows}
    Path(run.file("batches.jsonl")).write_text(json.dumps(event) + "\n")
    with pytest.raises(IntegrityError, match="does not have"):
        Journal(run)


def test_events_carry_what_readers_of_results_need(run: RunDir) -> None:
    """Each line names the job, its shard and its id, with a time in UTC."""
    with Journal(run) as journal:
        key = _intend(journal)
        journal.append("creating", key)
        journal.append("submitted", key, batch_id="b-1")
        journal.append("seen", key, state="ended")
    lines = [json.loads(line) for line in Path(run.file("batches.jsonl")).read_bytes().splitlines()]
    assert [line["event"] for line in lines] == ["intent", "creating", "submitted", "seen"]
    assert all(line["schema"] == "vlmbatch.batch/1" and line["at"].endswith("Z") for line in lines)
    assert all(line["shard"] == "shards/00000.jsonl" and line["job"] == key for line in lines)
    assert [line.get("batch_id") for line in lines] == [None, None, "b-1", "b-1"]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_torn_journal_at_any_byte_never_frees_rows_that_may_be_in_flight(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Cut anywhere behind ``creating``, the journal still holds the rows; and it can be written on."""
    run = make_run(tmp_path_factory.mktemp("torn") / "run", 10, per_shard=5)
    with Journal(run) as journal:
        key = _intend(journal)
        journal.append("uploaded", key, file_id="f-1")
        journal.append("creating", key)
        path = Path(run.file("batches.jsonl"))
        safe = path.stat().st_size
        journal.append("submitted", key, batch_id="b-1")
        journal.append("seen", key, state="in_progress")
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(safe, len(whole)))])
    assert list(in_flight(run)) == [0, 1, 2, 3, 4]
    with Journal(run) as journal:
        journal.append("submitted", key, batch_id="b-1")
    assert Journal(run).jobs[key].is_submitted


@given(positions=st.sets(st.integers(0, 60)))
def test_ranges_hold_exactly_the_positions(positions: set[int]) -> None:
    """Nothing is lost, repeated or joined that does not touch."""
    ranges = ranges_of(sorted(positions))
    assert [p for start, end in ranges for p in range(start, end)] == sorted(positions)
    assert all(first[1] < second[0] for first, second in itertools.pairwise(ranges))
