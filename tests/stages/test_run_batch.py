"""The batch channel against the rehearsal provider: every row answered once, nothing paid twice, nothing lost."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.stages.batch_runs import CHAT, GEMINI, KINDS, MESSAGES, Heard, Kind, answers, events, ids, make, send
from tests.waiting import wait_until
from vlmbatch import jsonl
from vlmbatch.errors import InputError, IntegrityError, RefusedError
from vlmbatch.providers.openai_batch import FilesAndBatches
from vlmbatch.rehearsal.faults import parse_faults
from vlmbatch.rehearsal.server import serve
from vlmbatch.rundir import LineReader
from vlmbatch.stop import Stop

if TYPE_CHECKING:
    from vlmbatch.providers.base_batch import Batch

EVERY_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@EVERY_KIND
def test_whole_run_is_one_job_per_shard_and_every_row_is_answered(tmp_path: Path, kind: Kind) -> None:
    """Submit, watch, download: the journal tells each step, and what was uploaded is the frozen shard."""
    run = make(tmp_path, kind)
    with serve(parse_faults({"batch": {"looks": 4}})) as server:
        result = send(run, server, kind)
        assert [job.requests for job in result.jobs] == [3, 3, 1]
        assert [len(job.rows) for job in server.store.jobs] == [3, 3, 1]
    assert (result.submitted, result.downloaded, result.rows_open, result.rows_waiting) == (3, 3, 0, 0)
    assert answers(run) == dict.fromkeys(ids(run), 1)
    names = [event["event"] for event in events(run) if event.get("shard") == "shards/00000.jsonl"]
    steps = ["intent", *(["uploaded"] if kind is not MESSAGES else []), "creating", "submitted"]
    assert names[: len(steps)] == steps
    assert set(names[len(steps) : -1]) <= {"seen"}
    assert names[-1] == "downloaded"


@EVERY_KIND
def test_downloaded_files_are_raw_with_their_hash_in_the_journal(tmp_path: Path, kind: Kind) -> None:
    """The journal's hash and length are those of the file on the disk."""
    run = make(tmp_path, kind)
    with serve(parse_faults({"rates": {"http_500": 0.4}})) as server:
        send(run, server, kind)
    refs = [ref for event in events(run) if event["event"] == "downloaded" for ref in event["files"]]
    assert sorted(os.path.basename(ref["file"]) for ref in refs) == sorted(os.listdir(run.file("results")))
    for ref in refs:
        assert jsonl.sha256_file(run.file(ref["file"])) == (ref["sha256"], ref["bytes"])


@pytest.mark.parametrize("kind", [KINDS["chat"], GEMINI], ids=["chat", "gemini"])
def test_uploaded_file_is_the_frozen_shard_byte_for_byte(tmp_path: Path, kind: Kind) -> None:
    """Nothing is parsed and rewritten on the way."""
    run = make(tmp_path, kind)
    with serve() as server:
        send(run, server, kind)
        uploads = [file.data for file in server.store.files.values() if file.name.startswith("vlmbatch-")]
    assert uploads == [Path(run.file(shard["file"])).read_bytes() for shard in run.info["shards"]]


def test_anthropic_create_holds_the_frozen_lines_spliced(tmp_path: Path) -> None:
    """The create's body is the shard's own lines between brackets."""
    run = make(tmp_path, MESSAGES, rows=3)
    with serve() as server:
        send(run, server, MESSAGES)
        (job,) = server.store.jobs
    lines = Path(run.file("shards/00000.jsonl")).read_bytes().splitlines()
    assert job.input_sha256 == jsonl.sha256(b'{"requests":[' + b",".join(lines) + b"]}")


@EVERY_KIND
def test_same_command_again_sends_nothing(tmp_path: Path, kind: Kind) -> None:
    """What is answered is not paid for twice, and nobody is even asked."""
    run = make(tmp_path, kind)
    with serve() as server:
        send(run, server, kind)
        before = len(server.store.jobs)
        result = send(run, server, kind)
        assert len(server.store.jobs) == before
    assert (result.submitted, result.jobs) == (0, ())


@EVERY_KIND
def test_rows_that_failed_go_into_one_job_of_whole_frozen_lines(tmp_path: Path, kind: Kind) -> None:
    """A second command gathers what is left of all shards, copied byte for byte and hashed in the journal."""
    run = make(tmp_path, kind, rows=9)
    with serve(parse_faults({"seed": 2, "rates": {"http_500": 0.4}})) as server:
        send(run, server, kind)
    left = [name for name in ids(run) if name not in answers(run)]
    before = len(events(run))
    assert 0 < len(left) < 9
    with serve() as server:
        send(run, server, kind)
        assert sorted(row.custom_id for job in server.store.jobs for row in job.rows) == left
        assert len(server.store.jobs) < 4
    assert answers(run) == dict.fromkeys(ids(run), 1)
    entries = list(run.iter_entries())
    with LineReader(run) as reader:
        for event in events(run)[before:]:
            if event["event"] == "intent":
                rows = [entries[position] for start, end in event["rows"] for position in range(start, end)]
                lines = b"".join(reader.line(entry) + b"\n" for entry in rows)
                assert (event["sha256"], event["bytes"]) == (jsonl.sha256(lines), len(lines))
                assert {entry.custom_id for entry in rows} <= set(left)


def test_detached_command_returns_and_the_next_one_fetches(tmp_path: Path) -> None:
    """Submitting and fetching can be two commands, on two machines that have the folder."""
    run = make(tmp_path)
    with serve() as server:
        first = send(run, server, detach=True)
        assert (first.submitted, first.downloaded, first.rows_open) == (3, 0, 7)
        second = send(run, server)
        assert (second.submitted, second.downloaded) == (0, 3)
        assert len(server.store.jobs) == 3
    assert answers(run) == dict.fromkeys(ids(run), 1)


def test_status_looks_and_changes_nothing_here_or_there(tmp_path: Path) -> None:
    """--status tells where each job stands; it fetches, submits and writes nothing, not even into the journal."""
    run = make(tmp_path)
    with serve(parse_faults({"batch": {"looks": 1, "ends": ["completed", "failed"], "fail_code": "bad"}})) as server:
        send(run, server, detach=True)
        before = Path(run.file("batches.jsonl")).read_bytes()
        result = send(run, server, action="status")
        assert [job.state for job in result.jobs] == ["completed", "failed", "completed"]
        assert [[flaw.code for flaw in job.flaws] for job in result.jobs] == [[], ["bad"], []]
        assert (result.downloaded, result.rows_open, len(server.store.jobs)) == (0, 4, 3)
    assert Path(run.file("batches.jsonl")).read_bytes() == before
    assert run.results() == []


@EVERY_KIND
def test_cancel_ends_open_jobs_and_keeps_what_they_did(tmp_path: Path, kind: Kind) -> None:
    """--cancel waits for the end, fetches the partial results, and frees the other rows."""
    run = make(tmp_path, kind, rows=6)
    with serve(parse_faults({"batch": {"looks": 100}})) as server:
        send(run, server, kind, detach=True)
        result = send(run, server, kind, action="cancel")
        assert {job.state for job in server.store.jobs} == {"cancelled"}
    assert (result.rows_open, result.submitted) == (0, 0)
    assert len(answers(run)) == (0 if kind is GEMINI else 2)
    with serve() as server:
        send(run, server, kind)
    assert answers(run) == dict.fromkeys(ids(run), 1)


def test_cancel_of_a_job_that_the_provider_forgot_frees_its_rows(tmp_path: Path) -> None:
    """A job that is gone there can be given up here."""
    run = make(tmp_path, rows=3)
    with serve() as server:
        send(run, server, detach=True)
        server.store.jobs.clear()
        result = send(run, server, action="cancel")
    assert result.rows_open == 0
    assert "does not know it" in result.jobs[0].why


@EVERY_KIND
def test_expired_job_keeps_its_rows_and_the_next_command_sends_the_rest(tmp_path: Path, kind: Kind) -> None:
    """What was done before the window closed is kept; the rest is retryable."""
    run = make(tmp_path, kind, rows=6, per_shard=6)
    with serve(parse_faults({"batch": {"ends": ["expired"]}})) as server:
        first = send(run, server, kind)
        done = len(answers(run))
        assert done == (0 if kind is GEMINI else 3)
        assert first.jobs[0].is_over
        send(run, server, kind)
        assert [len(job.rows) for job in server.store.jobs] == [6, 6 - done]
    assert answers(run) == dict.fromkeys(ids(run), 1)


def test_failed_job_is_told_with_the_lines_at_fault_and_sent_again_only_when_asked(tmp_path: Path) -> None:
    """A whole-job refusal shows the provider's words and names the row; the command does not go round in circles."""
    run = make(tmp_path, rows=3)
    heard = Heard()
    faults = parse_faults({"batch": {"ends": ["failed"], "fail_code": "model_mismatch"}})
    with serve(faults) as server:
        result = send(run, server, heard=heard)
        assert len(server.store.jobs) == 1
        (flaw,) = result.jobs[0].flaws
        assert (flaw.code, flaw.line, flaw.where) == ("model_mismatch", 1, ids(run)[0])
        assert "Invented by the faults file" in heard.said()
        assert ids(run)[0] in heard.said()
        send(run, server)
    assert answers(run) == dict.fromkeys(ids(run), 1)


@pytest.mark.parametrize("kind", [CHAT, GEMINI], ids=["chat", "gemini"])
def test_job_that_failed_for_a_full_queue_is_made_again_when_there_is_room(tmp_path: Path, kind: Kind) -> None:
    """token_limit_exceeded is nobody's fault: the same file goes again, by the same command, and is uploaded once."""
    run = make(tmp_path, kind)
    heard = Heard()
    with serve(parse_faults({"batch": {"ends": ["completed", "failed", "failed"]}})) as server:
        result = send(run, server, kind, heard=heard)
        assert [job.state for job in server.store.jobs].count("failed") == 2
        assert len(server.store.jobs) == 5
        assert len([f for f in server.store.files.values() if f.name.startswith("vlmbatch-")]) == 3
    assert not any(job.flaws for job in result.jobs)
    assert answers(run) == dict.fromkeys(ids(run), 1)
    assert "full" in heard.said()


@EVERY_KIND
def test_full_queue_at_create_is_waited_out(tmp_path: Path, kind: Kind) -> None:
    """A 429 on create makes no job and loses no row."""
    run = make(tmp_path, kind)
    with serve(parse_faults({"batch": {"full_creates": 3}, "retry_after_s": 0})) as server:
        send(run, server, kind)
        assert len(server.store.jobs) == 3
    assert answers(run) == dict.fromkeys(ids(run), 1)


def test_full_queue_leaves_the_rest_waiting_when_detached(tmp_path: Path) -> None:
    """A detached command does not wait: it says how many rows are in no job yet."""
    run = make(tmp_path)
    with serve(parse_faults({"batch": {"full_creates": 1}})) as server:
        result = send(run, server, detach=True)
        assert (result.submitted, result.rows_waiting, len(server.store.jobs)) == (0, 7, 0)
        assert send(run, server, detach=True).submitted == 3


def test_no_more_jobs_are_open_than_allowed(tmp_path: Path) -> None:
    """--max-in-flight-batches holds at every moment, and all rows get their turn."""
    run = make(tmp_path, rows=8, per_shard=2)
    with serve(parse_faults({"batch": {"looks": 3}})) as server:
        most = 0
        ended = {"completed"}

        def watch(event: object) -> None:
            nonlocal most
            most = max(most, sum(job.state not in ended for job in server.store.jobs))

        heard = Heard()
        heard.append = watch  # type: ignore[method-assign]
        send(run, server, heard=heard, max_in_flight=1)
        assert (most, len(server.store.jobs)) == (1, 4)
    assert answers(run) == dict.fromkeys(ids(run), 1)


def test_enqueued_tokens_stay_within_the_budget(tmp_path: Path) -> None:
    """With a budget below two jobs' tokens, one job is open at a time, earlier commands' jobs counted."""
    run = make(tmp_path, rows=6, per_shard=3)
    with serve(parse_faults({"batch": {"looks": 2}})) as server:
        first = send(run, server, detach=True, max_enqueued_tokens=10)
        assert (first.submitted, first.rows_waiting) == (1, 3)
        second = send(run, server, detach=True, max_enqueued_tokens=10)
        assert second.submitted == 0
        send(run, server, max_enqueued_tokens=10)
        assert len(server.store.jobs) == 2
    assert answers(run) == dict.fromkeys(ids(run), 1)


def test_polling_goes_on_through_errors_and_keeps_the_job(tmp_path: Path) -> None:
    """500, 404 and a broken connection are told, and the job is looked at again."""
    run = make(tmp_path, rows=3)
    heard = Heard()
    with serve(parse_faults({"batch": {"look_statuses": [500, 404, 0, 503]}})) as server:
        send(run, server, heard=heard)
        assert len(server.store.jobs) == 1
    assert answers(run) == dict.fromkeys(ids(run), 1)
    assert "HTTP 404" in heard.said()
    assert "kept and looked at again" in heard.said()


def test_upload_that_is_too_large_is_refused_once_and_leaves_nothing_half_done(tmp_path: Path) -> None:
    """413 names the bytes and the flag that helps; no job stays behind."""
    run = make(tmp_path)
    size = run.info["shards"][0]["bytes"]
    with serve(parse_faults({"batch": {"upload_status": 413}})) as server:
        with pytest.raises(RefusedError, match=f"{size:,} bytes") as caught:
            send(run, server)
        assert "--shard-max-bytes" in caught.value.hint
        assert server.store.jobs == []
    assert [event["event"] for event in events(run)] == ["intent", "abandoned"]


def test_address_without_a_batch_api_is_told(tmp_path: Path) -> None:
    """A server that knows no such path ends the command with a word on what does."""
    run = make(tmp_path, rows=2)
    with serve() as server, pytest.raises(RefusedError, match="404") as caught:
        send(run, server, base_url=f"{server.base_url}/nowhere/v1")
    assert "run-batch" in caught.value.hint


def test_lost_upload_is_sent_again_and_makes_one_job(tmp_path: Path) -> None:
    """An upload may be repeated: a second file costs nothing, a second job would."""
    run = make(tmp_path, rows=3)
    with serve(parse_faults({"batch": {"lost_uploads": 1}})) as server:
        send(run, server)
        assert len(server.store.jobs) == 1
    assert answers(run) == dict.fromkeys(ids(run), 1)


def test_results_that_are_not_there_yet_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that says it is done and names no file is looked at again; nothing is given up."""
    run = make(tmp_path, rows=3)
    heard = Heard()
    read = FilesAndBatches.read
    held = 3

    def late(self: FilesAndBatches, body: Any) -> Batch:
        nonlocal held
        batch = read(self, body)
        if batch.state == "completed" and held:
            held -= 1
            return read(self, {**body, "output_file_id": None})
        return batch

    monkeypatch.setattr(FilesAndBatches, "read", late)
    with serve() as server:
        result = send(run, server, heard=heard)
    assert (held, result.downloaded) == (0, 1)
    assert "not there yet" in heard.said()
    assert answers(run) == dict.fromkeys(ids(run), 1)


def test_fewer_lines_than_rows_done_are_told(tmp_path: Path) -> None:
    """A file that was cut at the provider's end does not pass in silence."""
    run = make(tmp_path, rows=6, per_shard=6)
    heard = Heard()
    with serve() as server:
        add_file = server.store.add_file
        server.store.add_file = (
            lambda p, n, data, purpose, *m: add_file(  # type: ignore[method-assign]
                p, n, data[: data.rindex(b"\n", 0, -1) + 1] if purpose == "batch_output" else data, purpose, *m
            )
        )
        send(run, server, heard=heard)
    assert "5 line(s) of results for 6 row(s) done" in heard.said()


def test_missing_and_repeated_rows_do_no_harm(tmp_path: Path) -> None:
    """Rows in neither file stay open for the next command; a row that came twice is answered."""
    run = make(tmp_path, rows=6, per_shard=6)
    with serve(parse_faults({"batch": {"missing_rows": 2, "repeat_rows": 1}})) as server:
        send(run, server)
        assert sorted(answers(run).values()) == [1, 1, 1, 2]
    with serve() as server:
        send(run, server)
        assert [len(job.rows) for job in server.store.jobs] == [2]
    assert set(answers(run)) == set(ids(run))


def test_shard_with_one_bit_off_is_not_uploaded(tmp_path: Path) -> None:
    """The hash is checked on the very bytes that would go out."""
    run = make(tmp_path, rows=3)
    path = run.file("shards/00000.jsonl")
    os.chmod(path, 0o644)
    with open(path, "r+b") as file:
        file.seek(100)
        byte = file.read(1)
        file.seek(100)
        file.write(bytes([byte[0] ^ 1]))
    with serve() as server:
        with pytest.raises(IntegrityError, match=r"shards/00000\.jsonl"):
            send(run, server)
        assert (server.store.jobs, server.store.files) == ([], {})


def test_open_jobs_elsewhere_are_not_looked_for_here(tmp_path: Path) -> None:
    """Another base URL is another place: the command says which one is needed."""
    run = make(tmp_path, rows=3)
    with serve() as server:
        send(run, server, detach=True)
        first = server.base_url
    with serve() as server, pytest.raises(InputError, match=first) as caught:
        send(run, server)
    assert "--base-url" in caught.value.hint


def test_stop_leaves_open_jobs_to_the_next_command(tmp_path: Path) -> None:
    """Asked once, the channel finishes its step and returns; the same command goes on."""
    run = make(tmp_path)
    stop = Stop()
    with serve(parse_faults({"batch": {"looks": 1000}})) as server:
        heard = Heard()

        def ask(event: object) -> None:
            if len(server.store.jobs) == 3:
                stop.ask()

        heard.append = ask  # type: ignore[method-assign]
        result = send(run, server, stop=stop, heard=heard)
        assert result.is_interrupted
        assert result.rows_open == 7
        server.store._faults = parse_faults({})
        again = send(run, server)
        assert (again.submitted, again.downloaded) == (0, 3)
        assert len(server.store.jobs) == 3


def test_stop_asked_twice_breaks_off_a_wait(tmp_path: Path) -> None:
    """A long poll interval does not keep anyone waiting."""
    run = make(tmp_path, rows=3)
    stop = Stop()
    with serve(parse_faults({"batch": {"looks": 1000}})) as server, ThreadPoolExecutor(1) as pool:
        journal = Path(run.file("batches.jsonl"))

        def ask_twice() -> None:
            wait_until(lambda: journal.exists() and b'"submitted"' in journal.read_bytes())
            stop.ask()
            stop.ask()

        pool.submit(ask_twice)
        result = send(run, server, stop=stop, poll_interval_s=60)
    assert result.is_interrupted
    assert result.rows_open == 3


def test_rehearsal_is_kept_apart_and_counts_nowhere(tmp_path: Path) -> None:
    """A rehearsal's jobs and files are marked, and the real command afterwards starts from nothing."""
    run = make(tmp_path, rows=3)
    with serve() as server:
        send(run, server, rehearsal=True)
    assert all(event["rehearsal"] is True for event in events(run))
    assert run.results() == []
    assert answers(run, rehearsal=True) == dict.fromkeys(ids(run), 1)
    with serve() as server:
        assert send(run, server).submitted == 1
    assert answers(run) == dict.fromkeys(ids(run), 1)


def test_rehearsal_that_was_killed_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    """Its provider is gone for good, so its jobs are given up."""
    run = make(tmp_path, rows=3)
    with serve() as server:
        send(run, server, rehearsal=True, detach=True)
    with serve() as server:
        result = send(run, server, rehearsal=True)
    assert result.downloaded == 1


def test_key_is_in_no_file_of_the_run(tmp_path: Path) -> None:
    """Neither the journal nor a result holds it."""
    run = make(tmp_path, rows=3)
    with serve() as server:
        send(run, server, key="sk-very-secret")
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"sk-very-secret" not in path.read_bytes()


def test_refused_key_ends_the_command(tmp_path: Path) -> None:
    """Money and keys are no matter of a single job."""
    run = make(tmp_path)
    with serve(parse_faults({"batch": {"upload_status": 401}})) as server:
        with pytest.raises(RefusedError, match="key"):
            send(run, server)
        assert server.store.jobs == []
    assert [event["event"] for event in events(run)] == ["intent", "abandoned"]
