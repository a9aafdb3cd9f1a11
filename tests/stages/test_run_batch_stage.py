"""run --channel batch as a stage: what it sends, what it says of the rows, and how the two channels get along."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.stages.batch_runs import CHAT, KINDS, Heard, Kind, answers, ids, make
from vlmbatch.batch.base import BatchOptions
from vlmbatch.errors import InputError
from vlmbatch.rehearsal.faults import parse_faults
from vlmbatch.rehearsal.server import Server, serve
from vlmbatch.stages.run import RunOptions, run

if TYPE_CHECKING:
    from vlmbatch.rundir import RunDir
    from vlmbatch.stages.run import RunResult

QUICK = BatchOptions(poll_interval_s=0.01, settle_s=0.1)


def _run(folder: RunDir, server: Server | None, kind: Kind = CHAT, **more: Any) -> RunResult:
    urls = (server.base_url + kind.base,) if server else ()
    batch = replace(QUICK, **more.pop("batch", {}))
    heard = more.pop("on_event", None)
    options = RunOptions(**{"channel": "batch", "base_urls": urls, "batch": batch, **more})
    return run(folder, options, key="k", on_event=heard)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_all_rows_are_answered_and_counted(tmp_path: Path, kind: Kind) -> None:
    """The result counts rows by status, tokens as billed, and nothing is left to complain of."""
    folder = make(tmp_path, kind)
    with serve() as server:
        result = _run(folder, server, kind)
    assert (result.asked, result.statuses, result.in_batch, result.problem()) == (7, {"ok": 7}, 0, None)
    assert result.input_tokens > 0
    assert result.output_tokens > 0
    assert json.loads(Path(folder.file("progress.json")).read_text())["completed"] == 7


def test_rehearsal_needs_no_address_and_counts_nowhere(tmp_path: Path) -> None:
    """The same path against a provider of our own."""
    folder = make(tmp_path)
    result = _run(folder, None, rehearsal=True)
    assert (result.rehearsal, result.statuses, result.problem()) == (True, {"ok": 7}, None)
    assert folder.results() == []
    assert answers(folder, rehearsal=True) == dict.fromkeys(ids(folder), 1)
    assert _run(folder, None, rehearsal=True).answered_before == 7


def test_detached_rows_are_in_flight_and_no_complaint(tmp_path: Path) -> None:
    """What was handed over is not missing; realtime leaves it alone until it has ended."""
    folder = make(tmp_path)
    with serve() as server:
        first = _run(folder, server, batch={"detach": True})
        assert (first.in_batch, first.without_answer, first.problem()) == (7, 0, None)
        realtime = _run(folder, server, channel="realtime")
        assert (realtime.in_batch, realtime.tries, server.requests) == (7, 0, 0)
        last = _run(folder, server)
        assert (last.statuses, last.in_batch, last.problem()) == ({"ok": 7}, 0, None)


def test_realtime_sends_only_what_a_batch_left(tmp_path: Path) -> None:
    """After a batch has ended, rows without an answer go one by one, and no other."""
    folder = make(tmp_path)
    with serve(parse_faults({"seed": 1, "rates": {"http_500": 0.5}})) as server:
        result = _run(folder, server)
        left = 7 - len(answers(folder))
        assert 0 < left < 7
        assert (result.without_answer, result.errors) == (left, {"500": left})
        assert result.problem() is not None
    heard = Heard()
    with serve() as server:
        result = _run(folder, server, channel="realtime", on_event=heard)
        assert (result.tries, server.requests) == (left, left)
    assert result.problem() is None
    assert f"{left} row(s) that batch jobs left are sent in realtime, at full price" in heard.said()


def test_batch_sends_only_what_a_smoke_left(tmp_path: Path) -> None:
    """Rows that a realtime sample answered are in no job."""
    folder = make(tmp_path)
    with serve() as server:
        _run(folder, server, channel="realtime", limit=2, out="smoke.jsonl")
        smoked = set(answers(folder))
        _run(folder, server)
        rows = [row.custom_id for job in server.store.jobs for row in job.rows]
    assert len(smoked) == 2
    assert sorted(rows) == sorted(set(ids(folder)) - smoked)
    assert answers(folder) == dict.fromkeys(ids(folder), 1)


def test_limit_names_the_same_sample_as_realtime(tmp_path: Path) -> None:
    """--limit makes one job of single lines, and a repeat pays for nothing."""
    folder = make(tmp_path, rows=9)
    with serve() as server:
        first = _run(folder, server, limit=3)
        again = _run(folder, server, limit=3)
        assert [len(job.rows) for job in server.store.jobs] == [3]
    assert (first.asked, first.statuses, again.answered_before) == (3, {"ok": 3}, 3)


def test_ids_are_sent_whatever_they_have(tmp_path: Path) -> None:
    """--ids FILE sends those rows again, in a job of their own."""
    folder = make(tmp_path)
    named = tmp_path / "ids.txt"
    named.write_text(ids(folder)[4] + "\n")
    with serve() as server:
        _run(folder, server)
        result = _run(folder, server, ids=str(named))
        assert [row.custom_id for row in server.store.jobs[-1].rows] == [ids(folder)[4]]
    assert (result.asked, result.statuses) == (1, {"ok": 1})


def test_progress_path_in_the_run_folder_is_left_alone(tmp_path: Path) -> None:
    """A batch, like realtime, writes no further progress file where the run folder has its own use for the place."""
    folder, heard = make(tmp_path), Heard()
    before = Path(folder.file("manifest.jsonl")).read_bytes()
    with serve() as server:
        _run(folder, server, on_event=heard, progress_path=folder.file("manifest.jsonl"))
    assert Path(folder.file("manifest.jsonl")).read_bytes() == before
    assert "that place in the run folder has its own use" in heard.said()


def test_expired_rows_are_named_with_their_reason(tmp_path: Path) -> None:
    """A row that never ran has no HTTP status; its kind is the provider's code."""
    folder = make(tmp_path, rows=4, per_shard=4)
    with serve(parse_faults({"batch": {"end": "expired"}})) as server:
        result = _run(folder, server)
    assert (result.statuses, result.errors) == ({"network_error": 2, "ok": 2}, {"batch_expired": 2})
    assert result.without_answer == 2


def test_status_is_told_while_another_command_works_on_the_run(tmp_path: Path) -> None:
    """A look needs no lock and writes nothing, so whoever polls is not disturbed and does not disturb."""
    folder = make(tmp_path, rows=4, per_shard=4)
    with serve(parse_faults({"batch": {"looks": 100}})) as server:
        _run(folder, server, batch={"detach": True})
        before = {path: path.read_bytes() for path in Path(folder.path).rglob("*") if path.is_file()}
        with folder.lock():
            status = _run(folder, server, batch={"action": "status"})
            with pytest.raises(InputError, match="another process"):
                _run(folder, server)
    assert status.batch is not None
    assert [job.state for job in status.batch.jobs] == ["in_progress"]
    assert {path: path.read_bytes() for path in Path(folder.path).rglob("*") if path.is_file()} == before


def test_status_and_cancel_send_nothing(tmp_path: Path) -> None:
    """Looking and ending are commands too."""
    folder = make(tmp_path, rows=4, per_shard=4)
    with serve(parse_faults({"batch": {"looks": 100}})) as server:
        _run(folder, server, batch={"detach": True})
        status = _run(folder, server, batch={"action": "status"})
        assert status.batch is not None
        assert [job.state for job in status.batch.jobs] == ["in_progress"]
        assert (status.in_batch, status.problem()) == (4, None)
        cancelled = _run(folder, server, batch={"action": "cancel"})
        assert (cancelled.in_batch, cancelled.statuses["ok"]) == (0, 2)
        assert len(server.store.jobs) == 1


@pytest.mark.parametrize(
    "more",
    [
        {"base_urls": ("http://127.0.0.1:1", "http://127.0.0.1:2")},
        {"num_shards": 2},
        {"max_tokens_total": 5},
        {"out": "mine.jsonl"},
    ],
    ids=["two-addresses", "parts", "budget", "out"],
)
def test_options_of_the_other_channel_are_refused(tmp_path: Path, more: dict[str, Any]) -> None:
    """What batch jobs cannot honour is named, and nothing is sent."""
    folder = make(tmp_path, rows=2)
    with pytest.raises(InputError):
        _run(folder, None, **more)
    assert not Path(folder.file("batches.jsonl")).exists()


def test_missing_key_is_told_before_anything_is_sent(tmp_path: Path) -> None:
    """The provider's own address needs a key."""
    folder = make(tmp_path, rows=2)
    with pytest.raises(InputError, match="OPENAI_API_KEY"):
        run(folder, RunOptions(channel="batch", batch=QUICK), key=None)
    assert not Path(folder.file("batches.jsonl")).exists()
