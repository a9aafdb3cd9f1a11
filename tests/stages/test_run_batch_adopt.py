"""Jobs that the journal does not know of are found at the provider and taken up, however they got lost."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.stages.batch_runs import CHAT, GEMINI, KINDS, MESSAGES, Heard, Kind, answers, events, ids, make, send
from vlmbatch import jsonl
from vlmbatch.errors import RefusedError
from vlmbatch.providers.base import Call
from vlmbatch.providers.openai_batch import FilesAndBatches
from vlmbatch.rehearsal.faults import parse_faults
from vlmbatch.rehearsal.server import Server, serve
from vlmbatch.rundir import RunDir

EVERY_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
TAGGED = pytest.mark.parametrize("kind", [CHAT, GEMINI], ids=["chat", "gemini"])


def _submitted(server: Server) -> Counter[str]:
    """Return how many jobs hold each row."""
    return Counter(row.custom_id for job in server.store.jobs for row in job.rows)


def _cut_journal(run: RunDir, last: str, *more: dict[str, str]) -> None:
    """Cut the journal behind its first event of a name, as a crash would, and append further events."""
    lines = []
    for event in events(run):
        lines.append(jsonl.dumps(event) + b"\n")
        if event["event"] == last:
            lines += [jsonl.dumps({**event, **one}) + b"\n" for one in more]
            break
    Path(run.file("batches.jsonl")).write_bytes(b"".join(lines))


@EVERY_KIND
def test_create_without_an_answer_makes_one_job(tmp_path: Path, kind: Kind) -> None:
    """The connection breaks after the job was made: it is found, and not made again."""
    run = make(tmp_path, kind)
    heard = Heard()
    with serve(parse_faults({"batch": {"lost_creates": 3}})) as server:
        result = send(run, server, kind, heard=heard)
        assert _submitted(server) == dict.fromkeys(ids(run), 1)
    assert (result.submitted, result.adopted, result.rows_open) == (0, 3, 0)
    assert answers(run) == dict.fromkeys(ids(run), 1)
    assert "nothing was submitted again" in heard.said()


@EVERY_KIND
def test_create_that_never_arrived_is_made_after_all(tmp_path: Path, kind: Kind) -> None:
    """A crash right before the create leaves a doubt that the provider's list settles: there is no such job."""
    run = make(tmp_path, kind)
    with serve() as server:
        send(run, server, kind, detach=True)
        server.store.jobs.clear()
        _cut_journal(run, "creating")
        result = send(run, server, kind)
        assert _submitted(server) == dict.fromkeys(ids(run), 1)
    assert result.submitted == 3
    assert answers(run) == dict.fromkeys(ids(run), 1)


def test_command_about_some_rows_sends_no_more_than_those(tmp_path: Path) -> None:
    """An earlier command's job came to nothing: a command about one row does not send the others along."""
    run = make(tmp_path, rows=3)
    with serve() as server:
        send(run, server, detach=True)
        server.store.jobs.clear()
        _cut_journal(run, "creating")
        send(run, server, rows=[1])
        assert _submitted(server) == {ids(run)[1]: 1}
        send(run, server)
        assert _submitted(server) == dict.fromkeys(ids(run), 1)


@TAGGED
def test_lost_journal_is_made_good_from_the_list(tmp_path: Path, kind: Kind) -> None:
    """Without batches.jsonl the tags still tell which jobs are ours, and of which shard."""
    run = make(tmp_path, kind)
    with serve() as server:
        send(run, server, kind, detach=True)
        os.unlink(run.file("batches.jsonl"))
        result = send(run, server, kind)
        assert _submitted(server) == dict.fromkeys(ids(run), 1)
    assert (result.submitted, result.adopted) == (0, 3)
    assert sorted(job.shard for job in result.jobs) == [shard["file"] for shard in run.info["shards"]]
    assert answers(run) == dict.fromkeys(ids(run), 1)


def test_lost_journal_of_a_job_of_single_rows_holds_everything_back_until_it_ends(tmp_path: Path) -> None:
    """Nobody can tell which rows it holds: so none is sent while it is open."""
    run = make(tmp_path, rows=6)
    with serve(parse_faults({"seed": 2, "rates": {"http_500": 0.4}})) as server:
        send(run, server)
    left = [name for name in ids(run) if name not in answers(run)]
    assert left
    with serve() as server:
        send(run, server, detach=True)
        os.unlink(run.file("batches.jsonl"))
        result = send(run, server)
        assert _submitted(server) == dict.fromkeys(left, 1)
    assert (result.submitted, result.adopted) == (0, 1)
    assert answers(run) == dict.fromkeys(ids(run), 1)


def test_server_without_metadata_is_searched_by_file_name(tmp_path: Path) -> None:
    """A compatible server that forgets metadata still lists the files that jobs were made of."""
    run = make(tmp_path)
    with serve() as server:
        send(run, server, detach=True)
        for job in server.store.jobs:
            job.marks = {**job.marks, "metadata": None}
        os.unlink(run.file("batches.jsonl"))
        result = send(run, server)
        assert _submitted(server) == dict.fromkeys(ids(run), 1)
    assert (result.submitted, result.adopted) == (0, 3)


def test_doubtful_job_without_metadata_is_known_by_its_file(tmp_path: Path) -> None:
    """The uploaded file's id, written down before the create, tells the job."""
    run = make(tmp_path, rows=3)
    with serve() as server:
        send(run, server, detach=True)
        server.store.jobs[0].marks = {**server.store.jobs[0].marks, "metadata": {}}
        _cut_journal(run, "creating")
        result = send(run, server)
        assert len(server.store.jobs) == 1
    assert result.adopted == 1


def test_doubt_that_no_list_can_settle_stops_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the provider lists nothing and a job may be there, nothing is submitted."""
    run = make(tmp_path, rows=3)
    with serve() as server:
        send(run, server, detach=True)
        server.store.jobs.clear()
        _cut_journal(run, "creating")
        monkeypatch.setattr(FilesAndBatches, "list", lambda self, after: Call("GET", "/v1/no-such-list"))
        with pytest.raises(RefusedError, match="list of jobs"):
            send(run, server)
        assert server.store.jobs == []


def test_provider_without_a_list_is_used_when_nothing_is_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing list is told, and takes nothing from those who lost nothing."""
    run = make(tmp_path, rows=3)
    heard = Heard()
    monkeypatch.setattr(FilesAndBatches, "list", lambda self, after: Call("GET", "/v1/no-such-list"))
    with serve() as server:
        assert send(run, server, heard=heard).downloaded == 1
    assert "does not list its jobs" in heard.said()


def test_job_that_shows_up_late_is_taken_up_after_all(tmp_path: Path) -> None:
    """A list may lag: a job that was given up for never made is adopted when it appears, and its rows are not sent."""
    run = make(tmp_path, rows=3)
    with serve() as server:
        send(run, server, detach=True)
        _cut_journal(run, "creating", {"event": "abandoned", "why": "the provider has no such job"})
        result = send(run, server)
        assert len(server.store.jobs) == 1
    assert (result.submitted, result.adopted, result.downloaded) == (0, 1, 1)


def test_two_jobs_with_one_tag_are_told_and_both_are_fetched(tmp_path: Path) -> None:
    """Somebody else's double submission is visible, its answers are paid for and kept, and there is no third."""
    run = make(tmp_path, rows=3)
    heard = Heard()
    with serve() as server:
        send(run, server, detach=True)
        (first,) = server.store.jobs
        second = server.store.add_job(first.api, first.rows, data=b"again", marks=first.marks)
        os.unlink(run.file("batches.jsonl"))
        result = send(run, server, heard=heard)
        assert [job.batch_id for job in result.jobs] == [f"batch_{first.id}", f"batch_{second.id}"]
        assert len(server.store.jobs) == 2
    assert result.downloaded == 2
    assert "several jobs for the same rows" in heard.said()


@EVERY_KIND
def test_another_machine_with_the_folder_goes_on(tmp_path: Path, kind: Kind) -> None:
    """Two copies of a folder fetch the same jobs; neither makes another."""
    run = make(tmp_path, kind)
    with serve() as server:
        send(run, server, kind, detach=True)
        shutil.copytree(run.path, tmp_path / "copy")
        other = RunDir.open(tmp_path / "copy")
        for one in (run, other):
            assert send(one, server, kind).submitted == 0
            assert answers(one) == dict.fromkeys(ids(run), 1)
        assert _submitted(server) == dict.fromkeys(ids(run), 1)


@TAGGED
def test_copy_from_before_the_submission_submits_nothing_again(tmp_path: Path, kind: Kind) -> None:
    """A folder copied before the jobs were made finds them by their tags."""
    run = make(tmp_path, kind)
    shutil.copytree(run.path, tmp_path / "copy")
    with serve() as server:
        send(run, server, kind, detach=True)
        assert send(RunDir.open(tmp_path / "copy"), server, kind).submitted == 0
        assert len(server.store.jobs) == 3


# --- where jobs carry no tag --------------------------------------------------------------------------------


def _with_doubt(folder: Path, server: Server) -> RunDir:
    """Return a run whose one job was about to be made when the process died; it never was."""
    run = make(folder, MESSAGES, rows=3, prompt=str(folder))
    send(run, server, MESSAGES, detach=True)
    server.store.jobs.pop()
    _cut_journal(run, "creating")
    return run


def test_open_candidate_is_waited_for_and_nothing_is_submitted(tmp_path: Path) -> None:
    """While a job of the same size and time is open, it may be ours: the rows wait."""
    with serve(parse_faults({"batch": {"looks": 1000}})) as server:
        run = _with_doubt(tmp_path / "ours", server)
        theirs = make(tmp_path / "theirs", MESSAGES, rows=3, prompt="another")
        send(theirs, server, MESSAGES, detach=True)
        heard = Heard()
        result = send(run, server, MESSAGES, detach=True, heard=heard)
        assert len(server.store.jobs) == 1
    assert (result.submitted, result.rows_open) == (0, 3)
    assert "waiting instead of submitting it again" in heard.said()


def test_candidate_that_turns_out_to_be_another_is_ruled_out(tmp_path: Path) -> None:
    """Its results hold foreign ids: so ours was never made, and is made now, once."""
    with serve(parse_faults({"batch": {"looks": 6}})) as server:
        run = _with_doubt(tmp_path / "ours", server)
        theirs = make(tmp_path / "theirs", MESSAGES, rows=3, prompt="another")
        send(theirs, server, MESSAGES, detach=True)
        result = send(run, server, MESSAGES)
        counts = _submitted(server)
    assert result.submitted == 1
    assert {name: counts[name] for name in ids(run)} == dict.fromkeys(ids(run), 1)
    assert answers(run) == dict.fromkeys(ids(run), 1)


def test_own_job_among_candidates_is_known_by_its_results(tmp_path: Path) -> None:
    """Of two jobs of one size and time, the one that answered our rows is ours."""
    with serve(parse_faults({"batch": {"looks": 6}})) as server:
        run = make(tmp_path / "ours", MESSAGES, rows=3)
        send(run, server, MESSAGES, detach=True)
        theirs = make(tmp_path / "theirs", MESSAGES, rows=3, prompt="another")
        send(theirs, server, MESSAGES, detach=True)
        _cut_journal(run, "creating")
        result = send(run, server, MESSAGES)
        assert len(server.store.jobs) == 2
    assert (result.submitted, result.adopted) == (0, 1)
    assert answers(run) == dict.fromkeys(ids(run), 1)


def test_job_of_another_size_is_no_candidate(tmp_path: Path) -> None:
    """The number of requests rules others out at once, so nobody waits for them."""
    with serve(parse_faults({"batch": {"looks": 1000}})) as server:
        run = _with_doubt(tmp_path / "ours", server)
        theirs = make(tmp_path / "theirs", MESSAGES, rows=4, per_shard=4, prompt="another")
        send(theirs, server, MESSAGES, detach=True)
        result = send(run, server, MESSAGES, detach=True)
        assert [len(job.rows) for job in server.store.jobs] == [4, 3]
    assert result.submitted == 1


def test_cancel_ends_a_job_whose_create_was_lost(tmp_path: Path) -> None:
    """A job that is found only while cancelling is ended too."""
    with serve(parse_faults({"batch": {"looks": 5}})) as server:
        run = make(tmp_path, MESSAGES, rows=4, per_shard=4)
        send(run, server, MESSAGES, detach=True)
        _cut_journal(run, "creating")
        result = send(run, server, MESSAGES, action="cancel")
        assert len(server.store.jobs) == 1
    assert (result.adopted, result.rows_open) == (1, 0)


def test_doubtful_job_is_only_told_by_status(tmp_path: Path) -> None:
    """--status settles nothing."""
    run = make(tmp_path, rows=3)
    with serve() as server:
        send(run, server, detach=True)
        _cut_journal(run, "creating")
        result = send(run, server, action="status")
    assert (result.rows_open, result.adopted) == (3, 0)
    assert "nobody knows" in result.jobs[0].why
