"""Which rows make a job: every wanted row in exactly one, whole shards as they stand, whole lines otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sendable import make_run
from vlmbatch import jsonl
from vlmbatch.batch.plan import Planned, ids_of_lines, lines_of, plan, with_tokens
from vlmbatch.errors import IntegrityError

if TYPE_CHECKING:
    from vlmbatch.rundir import RunDir


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Return a run of 23 requests of about 300 bytes in shards of five."""
    return make_run(tmp_path_factory.mktemp("plan") / "run", 23, per_shard=5, body_bytes=100)


@settings(max_examples=80, deadline=None)
@given(wanted=st.lists(st.booleans(), min_size=23, max_size=23))
def test_every_wanted_row_is_in_exactly_one_job(run: RunDir, wanted: list[bool]) -> None:
    """Nothing is lost, repeated or added, jobs keep within the largest shard, and the bytes are the frozen ones."""
    jobs = plan(run, bytearray(wanted))
    rows = [p for job in jobs for start, end in job.ranges for p in range(start, end)]
    assert sorted(rows) == [p for p, is_wanted in enumerate(wanted) if is_wanted]
    assert all(0 < job.requests <= 5 for job in jobs)
    most = max(shard["bytes"] for shard in run.info["shards"])
    entries = list(run.iter_entries())
    for job in jobs:
        data = lines_of(run, job)
        assert len(data) <= most
        hashes = [entries[p].line_sha256 for start, end in job.ranges for p in range(start, end)]
        assert [jsonl.sha256(line) for line in data.splitlines()] == hashes


def test_whole_shard_is_its_own_file(run: RunDir) -> None:
    """With every row wanted, each job is a shard, byte for byte."""
    jobs = plan(run, bytearray(b"\x01" * 23))
    assert [job.shard for job in jobs] == [shard["file"] for shard in run.info["shards"]]
    assert [jsonl.sha256(lines_of(run, job)) for job in jobs] == [shard["sha256"] for shard in run.info["shards"]]


def test_single_rows_of_many_shards_share_a_job(run: RunDir) -> None:
    """A sample over all shards does not become a job per shard."""
    wanted = bytearray(23)
    for position in (1, 6, 11, 16):
        wanted[position] = 1
    (job,) = plan(run, wanted)
    assert (job.shard, job.ranges) == ("", ((1, 2), (6, 7), (11, 12), (16, 17)))


def test_nothing_wanted_is_no_job(run: RunDir) -> None:
    """The manifest is not even read."""
    assert plan(run, bytearray(23)) == []


def test_tokens_of_a_job_are_those_of_its_rows(run: RunDir) -> None:
    """Rows are counted one by one; jobs that overlap count a row each."""
    jobs = [Planned("", ((0, 2), (4, 5))), Planned("", ((0, 23),))]
    assert [job.tokens for job in with_tokens(run, jobs, lambda entry: 10 + entry.position)] == [10 + 11 + 14, 483]


def test_line_numbers_lead_to_custom_ids(run: RunDir) -> None:
    """The provider counts lines of what it was sent; the user needs the row."""
    ids = [entry.custom_id for entry in run.iter_entries()]
    assert ids_of_lines(run, ((2, 4), (9, 10)), {1, 3}) == {1: ids[2], 3: ids[9]}
    assert ids_of_lines(run, ((2, 4),), {7, 0}) == {}


@pytest.mark.parametrize("job", [Planned("shards/00001.jsonl", ((5, 10),)), Planned("", ((6, 8),))])
def test_changed_shard_gives_no_lines(tmp_path: Path, job: Planned) -> None:
    """One bit off, and nothing of it can be sent."""
    run = make_run(tmp_path / "run", 12, per_shard=5)
    path = Path(run.file("shards/00001.jsonl"))
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    entry = list(run.iter_entries())[6]
    data[entry.offset + 5] ^= 1
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match=r"shards/00001\.jsonl"):
        lines_of(run, job)


def test_missing_shard_is_told(tmp_path: Path) -> None:
    """A folder that was copied without its shards is no traceback."""
    run = make_run(tmp_path / "run", 5, per_shard=5)
    Path(run.file("shards/00000.jsonl")).unlink()
    with pytest.raises(IntegrityError, match="cannot be read"):
        lines_of(run, Planned("shards/00000.jsonl", ((0, 5),)))
