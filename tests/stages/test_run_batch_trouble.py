"""What must be taken neither for an end nor for a leave to pay again: failed twins, absent results, lost rows."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults import silent_port
from tests.pictures import png
from tests.stages.batch_runs import CHAT, GEMINI, MESSAGES, Heard, Kind, answers, events, ids, make, send
from vlmbatch import jsonl
from vlmbatch.batch import channel
from vlmbatch.batch.base import BatchOptions
from vlmbatch.batch.calls import Caller, CallError
from vlmbatch.errors import CheckFailed, RefusedError
from vlmbatch.rehearsal.faults import parse_faults
from vlmbatch.rehearsal.jobs import Flaw
from vlmbatch.rehearsal.server import Server, serve
from vlmbatch.retry import Policy
from vlmbatch.rundir import RunDir
from vlmbatch.stages.build import build
from vlmbatch.stages.building.plan import BuildOptions
from vlmbatch.stages.run import RunOptions, RunResult
from vlmbatch.stages.run import run as run_stage

if TYPE_CHECKING:
    from vlmbatch.providers.base_batch import Reply
    from vlmbatch.records import Event
    from vlmbatch.rehearsal.jobs import StoredFile

TAGGED = pytest.mark.parametrize("kind", [CHAT, GEMINI], ids=["chat", "gemini"])


def _submitted(server: Server) -> Counter[str]:
    return Counter(row.custom_id for job in server.store.jobs for row in job.rows)


def _cut_at_creating(run: RunDir) -> None:
    """Leave the journal as a crash would that came right behind its first ``creating``."""
    lines = [jsonl.dumps(event) + b"\n" for event in events(run)]
    last = next(number for number, event in enumerate(events(run)) if event["event"] == "creating")
    Path(run.file("batches.jsonl")).write_bytes(b"".join(lines[: last + 1]))


def _some_left(folder: Path, kind: Kind = CHAT) -> tuple[RunDir, list[str]]:
    """Return a run of which a first batch left some rows, and their ids."""
    run = make(folder, kind, rows=6)
    with serve(parse_faults({"seed": 2, "rates": {"http_500": 0.4}})) as server:
        send(run, server, kind)
    left = [name for name in ids(run) if name not in answers(run)]
    assert 0 < len(left) < 6
    return run, left


def _stage(run: RunDir, server: Server, **more: Any) -> RunResult:
    batch = BatchOptions(**{"poll_interval_s": 0.01, "settle_s": 0.1, **more.pop("batch", {})})
    options = RunOptions(channel="batch", base_urls=(server.base_url + CHAT.base,), batch=batch, **more)
    return run_stage(run, options, key="k")


# --- a network that is down ----------------------------------------------------------------------------------


def test_network_that_is_down_is_no_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 4 means that the provider said no; where nobody was heard, the same command again is all that is needed."""
    run = make(tmp_path, CHAT, rows=3)
    monkeypatch.setattr(channel, "patient", lambda _timeout_s: Policy(max_tries=2, base_s=0.01))
    with silent_port() as port:
        options = RunOptions(channel="batch", base_urls=(f"http://127.0.0.1:{port}{CHAT.base}",))
        with pytest.raises(CheckFailed, match="nothing listens"):
            run_stage(run, options, key="k")
    with serve() as server:
        assert _stage(run, server).problem() is None
    assert max(_submitted(server).values()) == 1


# --- jobs of another copy of the folder ----------------------------------------------------------------------


@TAGGED
def test_failed_job_of_another_copy_is_not_taken_for_ours(tmp_path: Path, kind: Kind) -> None:
    """Its turn is used up: the job that we made after it carries another tag, and is found when its answer is lost."""
    run = make(tmp_path, kind, rows=3)
    shutil.copytree(run.path, tmp_path / "copy")
    other = RunDir.open(tmp_path / "copy")
    with serve(parse_faults({"batch": {"ends": ["failed"]}})) as server:
        send(run, server, kind, detach=True)
        server.store.look(server.store.jobs[0])
        send(other, server, kind, detach=True)
        _cut_at_creating(other)
        assert send(other, server, kind).adopted == 1
        assert [job.end for job in server.store.jobs] == ["failed", "completed"]
    assert answers(other) == dict.fromkeys(ids(run), 1)


@TAGGED
def test_later_turn_of_another_copy_keeps_its_rows_and_displaces_nothing(tmp_path: Path, kind: Kind) -> None:
    """A choice of rows that the journal knows by an earlier turn holds those rows, under a key of its own."""
    run, left = _some_left(tmp_path, kind)
    with serve(parse_faults({"batch": {"ends": ["failed"], "fail_code": "model_mismatch"}})) as server:
        send(run, server, kind)
        shutil.copytree(run.path, tmp_path / "copy")
        other = RunDir.open(tmp_path / "copy")
        send(run, server, kind, detach=True)
        result = send(other, server, kind)
        assert _submitted(server) == dict.fromkeys(left, 2)
    assert (result.submitted, result.adopted, result.jobs[0].requests) == (0, 1, len(left))
    intents = [event for event in events(other) if event["event"] == "intent"][-2:]
    assert [event["turn"] for event in intents] == [1, 2]
    assert intents[0]["sha256"] == intents[1]["sha256"]
    assert intents[0]["job"] != intents[1]["job"]
    assert answers(other) == dict.fromkeys(ids(run), 1)


class _Failing(Heard):
    """Makes the provider fail a job as soon as it is taken up."""

    def __init__(self, server: Server, code: str) -> None:
        super().__init__()
        self._job, self._code = server.store.jobs[-1], code

    def __call__(self, event: Event) -> None:
        """Hear one event."""
        super().__call__(event)
        if "taken up" in event.message:
            self._job.flaws = [Flaw(self._code, "Planned.", 1)]


def test_unknown_choice_of_rows_that_finds_no_room_sends_no_answered_row(tmp_path: Path) -> None:
    """It may be any rows, so all are held back; when it comes to nothing, those are sent that are left, and no more."""
    run, left = _some_left(tmp_path)
    with serve(parse_faults({"batch": {"looks": 9}})) as server:
        send(run, server, detach=True)
        os.unlink(run.file("batches.jsonl"))
        result = send(run, server, heard=_Failing(server, "token_limit_exceeded"))
        assert _submitted(server) == dict.fromkeys(left, 2)
    assert (result.adopted, result.submitted) == (1, 1)
    assert answers(run) == dict.fromkeys(ids(run), 1)


def test_line_at_fault_of_an_unknown_choice_of_rows_names_no_row(tmp_path: Path) -> None:
    """Where nobody knows which rows a job holds, its lines must not be laid at the door of others."""
    run, _ = _some_left(tmp_path)
    with serve(parse_faults({"batch": {"looks": 9}})) as server:
        send(run, server, detach=True)
        os.unlink(run.file("batches.jsonl"))
        result = send(run, server, heard=_Failing(server, "duplicate_custom_id"))
    (flaw,) = result.jobs[0].flaws
    assert (flaw.code, flaw.line, flaw.where) == ("duplicate_custom_id", 1, "")


@TAGGED
def test_cancel_ends_jobs_that_only_the_provider_knows_of(tmp_path: Path, kind: Kind) -> None:
    """--cancel in a copy from before the submission, too, leaves nothing running."""
    run = make(tmp_path, kind)
    with serve(parse_faults({"batch": {"looks": 9}})) as server:
        send(run, server, kind, detach=True)
        os.unlink(run.file("batches.jsonl"))
        result = send(run, server, kind, action="cancel")
        assert [job.state for job in server.store.jobs] == ["cancelled"] * 3
    assert (result.adopted, result.submitted, result.rows_open) == (3, 0, 0)


# --- results that cannot be had now --------------------------------------------------------------------------


def _failing_downloads(monkeypatch: pytest.MonkeyPatch, status: int, times: int) -> None:
    """Answer the first downloads with an error."""
    once, left = Caller.once, times

    async def failing(self: Caller, call: Any, **more: Any) -> Reply:
        nonlocal left
        if more.get("sink") is not None and left:
            left -= 1
            raise CallError(status, "Planned.", retry_after_s=None, may_have_acted=False, is_retryable=False)
        return await once(self, call, **more)

    monkeypatch.setattr(Caller, "once", failing)


@pytest.mark.parametrize("status", [403, 404, 500])
def test_candidate_whose_results_cannot_be_had_yet_is_not_ruled_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """Without a tag, results alone tell whose a job is: until they can be read, nothing is submitted."""
    run = make(tmp_path, MESSAGES, rows=3)
    with serve(parse_faults({"batch": {"looks": 1}})) as server:
        send(run, server, MESSAGES, detach=True)
        _cut_at_creating(run)
        _failing_downloads(monkeypatch, status, 3)
        result = send(run, server, MESSAGES)
        assert len(server.store.jobs) == 1
    assert (result.adopted, result.downloaded) == (1, 1)


def test_results_that_are_not_found_at_first_are_fetched_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh file may answer 404 for a while: its rows are paid for, so they are waited for."""
    run = make(tmp_path, rows=3)
    _failing_downloads(monkeypatch, 404, 3)
    with serve() as server:
        assert send(run, server).downloaded == 1
        assert len(server.store.jobs) == 1
    assert answers(run) == dict.fromkeys(ids(run), 1)


@pytest.mark.parametrize(("status", "action"), [(410, "send"), (404, "cancel")])
def test_results_that_are_gone_free_their_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, action: str
) -> None:
    """What the provider keeps no more, or what one gives up, holds no rows for ever."""
    run = make(tmp_path, rows=3)
    with serve(parse_faults({"batch": {"looks": 1}})) as server:
        send(run, server, detach=True)
        server.store.look(server.store.jobs[0])
        _failing_downloads(monkeypatch, status, 99)
        result = send(run, server, action=action)
    assert result.rows_open == 0
    assert "is gone" in result.jobs[0].why


def test_one_file_that_is_gone_takes_nothing_from_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The output file is kept and journaled with its hash, though the error file is no more to be had."""
    run = make(tmp_path, rows=6, per_shard=6)
    with serve(parse_faults({"seed": 2, "rates": {"http_500": 0.4}})) as server:
        once = Caller.once

        async def failing(self: Caller, call: Any, **more: Any) -> Reply:
            errors = [job.results.get("error") for job in server.store.jobs]
            if more.get("sink") is not None and any(name and name in call.path for name in errors):
                raise CallError(410, "Planned.", retry_after_s=None, may_have_acted=False, is_retryable=False)
            return await once(self, call, **more)

        monkeypatch.setattr(Caller, "once", failing)
        result = send(run, server)
    (file,) = result.jobs[0].files
    assert file.endswith(".output.jsonl")
    (ref,) = events(run)[-1]["files"]
    assert ref["sha256"] == jsonl.sha256(Path(run.file(file)).read_bytes())


def test_output_without_a_last_newline_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider that ends no last line has lost no row."""
    run = make(tmp_path, rows=3)
    heard = Heard()
    with serve() as server:
        add_file = server.store.add_file

        def add(prefix: str, name: str, data: bytes, purpose: str, media_type: str = "") -> StoredFile:
            data = data.removesuffix(b"\n") if purpose == "batch_output" else data
            return add_file(prefix, name, data, purpose, media_type)

        monkeypatch.setattr(server.store, "add_file", add)
        send(run, server, heard=heard)
    assert "count as missing" not in heard.said()
    assert answers(run) == dict.fromkeys(ids(run), 1)


def test_kept_file_that_the_provider_lost_is_uploaded_anew(tmp_path: Path) -> None:
    """A file waits for room in the queue and is deleted meanwhile: one refusal, and the next command starts afresh."""
    run = make(tmp_path, rows=3)
    with serve(parse_faults({"batch": {"full_creates": 1}})) as server:
        send(run, server, detach=True)
        server.store.files.clear()
        with pytest.raises(RefusedError, match="create"):
            send(run, server)
        assert send(run, server).downloaded == 1
        assert len(server.store.jobs) == 1
    assert answers(run) == dict.fromkeys(ids(run), 1)


# --- which rows a command sends ------------------------------------------------------------------------------


def test_row_of_a_lost_job_that_was_answered_meanwhile_is_not_sent(tmp_path: Path) -> None:
    """The job was never made; a row of it that got its answer elsewhere needs no other."""
    run = make(tmp_path, rows=3)
    with serve() as server:
        _stage(run, server, batch={"detach": True})
        server.store.jobs.clear()
        _cut_at_creating(run)
        body = {"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "A."}}]}
        answer = {"custom_id": ids(run)[0], "response": {"status_code": 200, "body": body}, "error": None}
        Path(run.file("results")).mkdir(exist_ok=True)
        Path(run.file("results/batch-vllm.output.jsonl")).write_bytes(jsonl.dumps(answer) + b"\n")
        _stage(run, server)
        assert _submitted(server) == dict.fromkeys(ids(run)[1:], 1)
    assert answers(run) == dict.fromkeys(ids(run), 1)


def test_lost_job_outside_of_a_sample_is_left_to_a_command_about_all(tmp_path: Path) -> None:
    """--limit sends its own rows of a job that was never made; the whole run sends the others."""
    run = make(tmp_path, rows=3)
    with serve() as server:
        _stage(run, server, batch={"detach": True})
        server.store.jobs.clear()
        _cut_at_creating(run)
        assert _stage(run, server, limit=1).statuses == {"ok": 1}
        assert sum(_submitted(server).values()) == 1
        _stage(run, server)
        assert _submitted(server) == dict.fromkeys(ids(run), 1)


@pytest.mark.parametrize(("detail", "jobs"), [("low", 2), ("high", 1)])
def test_enqueued_tokens_are_counted_at_the_detail_asked_for(tmp_path: Path, detail: str, jobs: int) -> None:
    """gpt-4o takes 85 tokens for an image of low detail and 765 for 1024x1024 of high: 400 hold two of the one kind."""
    source = tmp_path / "images"
    source.mkdir()
    for number in range(2):
        (source / f"{number}.png").write_bytes(png(1024, 1023 + number))
    options = BuildOptions(
        sources=[str(source)],
        out=str(tmp_path / "run"),
        model="gpt-4o",
        provider="openai",
        prompt="What?",
        max_tokens=20,
        detail=detail,
        shard_max_requests=1,
    )
    run = build(options).run
    with serve() as server:
        result = _stage(run, server, batch={"detach": True, "max_enqueued_tokens": 400})
        assert len(server.store.jobs) == jobs
    assert result.batch is not None
    assert result.batch.rows_waiting == 2 - jobs
