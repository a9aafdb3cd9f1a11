"""The batch hooks: every sample of a provider's job objects is read, and every call is described as documented."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from email.parser import BytesParser
from pathlib import Path
from typing import Any

import pytest

from vlmbatch import providers
from vlmbatch.errors import InputError
from vlmbatch.providers.base_batch import BatchApi, Phase, Reply, Tag, as_stamp
from vlmbatch.providers.pick_batch import batch_api

WIRE = Path(__file__).resolve().parents[1] / "data" / "wire"
LINES = b'{"custom_id":"a-1","body":{}}\n{"custom_id":"a-2","body":{}}\n'
TAG = Tag("f" * 64, "0123456789abcdef" * 4, 2)

OPEN, ENDED, FAILED = Phase.OPEN, Phase.ENDED, Phase.FAILED

PHASES = {
    "openai-batch.validating": OPEN,
    "openai-batch.in_progress": OPEN,
    "openai-batch.finalizing": OPEN,
    "openai-batch.cancelling": OPEN,
    "openai-batch.completed": ENDED,
    "openai-batch.completed-all-failed": ENDED,
    "openai-batch.expired": ENDED,
    "openai-batch.cancelled": ENDED,
    "openai-batch.failed": FAILED,
    "openai-batch.failed-token-limit": FAILED,
    "anthropic-batch.in_progress": OPEN,
    "anthropic-batch.canceling": OPEN,
    "anthropic-batch.ended": ENDED,
    "anthropic-batch.ended-after-cancel": ENDED,
    "anthropic-batch.ended-expired": ENDED,
    "anthropic-batch.ended-archived": ENDED,
    "gemini-batch.pending": OPEN,
    "gemini-batch.running": OPEN,
    "gemini-batch.succeeded-file": ENDED,
    "gemini-batch.succeeded-inline": ENDED,
    "gemini-batch.expired": ENDED,
    "gemini-batch.cancelled": ENDED,
    "gemini-batch.failed": FAILED,
}
"""Every sample of a job object, and where it stands."""


def api(name: str, url: str = "") -> BatchApi:
    """Return the hooks of a provider."""
    provider = providers.get(name, url)
    paths = {"anthropic": "/v1/messages", "gemini": "/v1beta/models/m-1:generateContent"}
    return batch_api(provider, url or paths.get(name, "/v1/chat/completions"), "m-1")


def payload(name: str) -> Any:
    """Return a sample's body."""
    return json.loads((WIRE / f"{name}.json").read_text())["payload"]


def terminal(name: str) -> bool:
    """Return what the sample says of itself."""
    return bool(json.loads((WIRE / f"{name}.json").read_text())["about"]["terminal"])


def _read(name: str) -> Any:
    return api(name.partition("-")[0]).read(payload(name))


def test_every_sample_of_a_job_is_in_the_table() -> None:
    """A new sample has to be given its place."""
    samples = {p.stem for p in WIRE.glob("*-batch.*.json")} - {p.stem for p in WIRE.glob("*.list.json")}
    assert samples == set(PHASES)


@pytest.mark.parametrize("name", PHASES)
def test_job_object_is_read(name: str) -> None:
    """Phase, id, time and size come out of each provider's own object."""
    batch = _read(name)
    assert batch.phase is PHASES[name]
    assert (batch.phase is not OPEN) == terminal(name)
    assert "syn0001" in batch.id
    assert "/" not in batch.id
    assert batch.created_at is not None
    assert batch.created_at.tzinfo is not None
    assert batch.requests in {None, 2, 3}


@pytest.mark.parametrize("name", [name for name, phase in PHASES.items() if phase is FAILED])
def test_failed_job_tells_why(name: str) -> None:
    """The provider's code and words are kept; a full queue is told apart."""
    batch = _read(name)
    assert batch.flaws
    assert all(flaw.code and flaw.message for flaw in batch.flaws)
    assert batch.is_queue_full == (name == "openai-batch.failed-token-limit")


@pytest.mark.parametrize(
    ("more", "phase"),
    [
        ({}, OPEN),
        ({"done": False}, OPEN),
        ({"done": True, "response": {}}, ENDED),
        ({"done": True, "error": {"code": 3, "message": "No."}}, FAILED),
    ],
)
def test_gemini_state_that_nobody_knows_ends_when_the_operation_does(more: dict[str, Any], phase: Phase) -> None:
    """A new word for a state must not keep a job open for ever: the operation itself says whether it is done."""
    batch = api("gemini").read({"name": "batches/1", "metadata": {"state": "BATCH_STATE_NOVEL"}, **more})
    assert (batch.phase, batch.state) == (phase, "NOVEL")


@pytest.mark.parametrize(
    ("told", "read"),
    [
        ("2026-12-02T11:04:17.135483123Z", "2026-12-02T11:04:17.135483Z"),
        ("2026-12-02T12:04:17+01:00", "2026-12-02T11:04:17Z"),
        ("2026-12-02T11:04:17", "2026-12-02T11:04:17Z"),
        (1_796_209_457, "2026-12-02T11:04:17Z"),
        (1_796_209_457_000, None),
        (10**30, None),
        ("soon", None),
        (None, None),
        ({}, None),
    ],
)
def test_time_is_read_in_utc_and_what_is_none_is_none(told: Any, read: str | None) -> None:
    """Nanoseconds, zones and seconds since 1970 are read; milliseconds, words and nothing end no command."""
    assert as_stamp(told) == read


def test_line_at_fault_is_kept() -> None:
    """Which line of the input file was wrong is part of the reason."""
    (flaw,) = _read("openai-batch.failed").flaws
    assert (flaw.code, flaw.line) == ("duplicate_custom_id", 2)


def test_results_are_where_they_are_and_nowhere_else() -> None:
    """Both files of OpenAI, whichever are there; none for jobs that keep none."""
    kinds = {name: [one.kind for one in _read(name).results] for name in PHASES}
    assert kinds["openai-batch.completed"] == ["output", "error"]
    assert kinds["openai-batch.completed-all-failed"] == ["error"]
    assert kinds["openai-batch.expired"] == ["output", "error"]
    assert kinds["anthropic-batch.ended"] == ["output"]
    assert kinds["anthropic-batch.ended-archived"] == []
    assert kinds["gemini-batch.succeeded-file"] == ["output"]
    assert kinds["gemini-batch.expired"] == []
    assert all(not kinds[name] for name, phase in PHASES.items() if phase is not ENDED)
    paths = {one.call.path for name in PHASES for one in _read(name).results}
    assert paths == {
        "/v1/files/file-synOUT1/content",
        "/v1/files/file-synERR1/content",
        "/v1/messages/batches/msgbatch_syn0001/results",
        "/download/v1beta/files/batch-syn0001:download?alt=media",
    }


def test_ended_job_whose_results_are_not_there_yet_is_told_apart() -> None:
    """Done rows without the file that must hold them: not the same as a job that keeps none."""
    whole = payload("openai-batch.completed")
    assert [_read(name).lacks_results for name in PHASES] == [
        name == "gemini-batch.succeeded-inline" for name in PHASES
    ]
    assert api("openai").read({**whole, "output_file_id": None}).lacks_results
    assert api("openai").read({**whole, "output_file_id": None, "error_file_id": None}).lacks_results
    assert api("anthropic").read({**payload("anthropic-batch.ended"), "results_url": None}).lacks_results
    gemini = payload("gemini-batch.succeeded-file")
    assert api("gemini").read({**gemini, "response": {}, "metadata": {"state": "BATCH_STATE_SUCCEEDED"}}).lacks_results


@pytest.mark.parametrize(
    ("name", "after"), [("openai", ""), ("anthropic", ""), ("gemini", "synNEXT")], ids=["openai", "anthropic", "gemini"]
)
def test_list_page_is_read(name: str, after: str) -> None:
    """A page gives its jobs, and where the next one starts where there is one."""
    page = api(name).read_page(payload(f"{name}-batch.list"))
    assert len(page.batches) == 1
    assert page.after == after
    assert after in api(name).list(page.after).path


@pytest.mark.parametrize("name", ["openai", "anthropic", "gemini"])
@pytest.mark.parametrize("body", [None, [], {}, "text", {"data": 7}, {"data": [7, None]}, {"operations": [{}]}])
def test_odd_body_gives_no_traceback(name: str, body: Any) -> None:
    """A proxy's page or a half object is read as an open job without an id, or as an empty page."""
    hooks = api(name)
    assert hooks.read(body).phase is OPEN
    assert hooks.read(body).id == ""
    assert hooks.read_page(body).after == ""
    assert hooks.read_files(body)[1] == ""


def test_unknown_state_is_open() -> None:
    """A state that nobody knew is waited for, not given up."""
    assert api("openai").read({"id": "b", "status": "paused"}).phase is OPEN
    assert api("anthropic").read({"id": "b", "processing_status": "new"}).phase is OPEN
    assert api("gemini").read({"name": "batches/b", "metadata": {"state": "BATCH_STATE_QUEUED"}}).phase is OPEN


# --- making ------------------------------------------------------------------------------------------------


def test_openai_upload_is_a_form_with_the_bytes_as_they_are() -> None:
    """A standard parser finds purpose and file, byte for byte, under the tag's name."""
    steps = api("openai").upload(TAG, memoryview(LINES))
    call = next(steps)
    assert (call.method, call.path) == ("POST", "/v1/files")
    head = f"Content-Type: {call.headers['content-type']}\r\n\r\n".encode()
    parts = BytesParser().parsebytes(head + bytes(call.body)).get_payload()
    found = {part.get_param("name", header="content-disposition"): part for part in parts}  # type: ignore[union-attr]
    assert found["purpose"].get_payload() == "batch"  # type: ignore[union-attr]
    assert found["file"].get_filename() == f"{TAG.name}.jsonl"  # type: ignore[union-attr]
    assert LINES in bytes(call.body)
    with pytest.raises(StopIteration) as end:
        steps.send(Reply({}, payload("openai-file.uploaded")))
    assert end.value.value == ("file-synIN01", "2026-12-29T23:59:50Z")


def test_openai_boundary_keeps_to_the_limit() -> None:
    """RFC 2046 allows 70 characters."""
    call = next(api("openai").upload(TAG, memoryview(LINES)))
    assert len(call.headers["content-type"].partition("boundary=")[2]) <= 70


@pytest.mark.parametrize("url", ["/v1/chat/completions", "/v1/responses"])
def test_openai_create_names_endpoint_and_what_it_is_found_by(url: str) -> None:
    """Metadata holds the run's fingerprint, the job's hash, its turn and the shard; reading it back gives the tag."""
    hooks = api("openai", url)
    call = hooks.create(TAG, "shards/00003.jsonl", "file-1", memoryview(LINES))
    asked = json.loads(bytes(call.body))
    assert (asked["endpoint"], asked["input_file_id"], asked["completion_window"]) == (url, "file-1", "24h")
    assert {TAG.run, TAG.job, "2", "shards/00003.jsonl"} == set(asked["metadata"].values())
    assert all(len(key) <= 64 and len(value) <= 512 for key, value in asked["metadata"].items())
    assert hooks.read({"id": "b", "status": "validating", "metadata": asked["metadata"]}).tag == TAG.name


def test_anthropic_create_splices_the_lines() -> None:
    """The lines stand in the list as they were frozen."""
    call = api("anthropic").create(TAG, "", "", memoryview(LINES))
    assert bytes(call.body) == b'{"requests":[' + LINES.rstrip(b"\n").replace(b"\n", b",") + b"]}"
    assert [one["custom_id"] for one in json.loads(bytes(call.body))["requests"]] == ["a-1", "a-2"]


def test_gemini_upload_starts_and_sends_pieces_to_the_named_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start, pieces at their offsets, finalize at the end."""
    monkeypatch.setattr("vlmbatch.providers.gemini_batch._PIECE", 20)
    steps = api("gemini").upload(TAG, memoryview(LINES))
    start = next(steps)
    assert start.path == "/upload/v1beta/files"
    assert start.headers["x-goog-upload-header-content-length"] == str(len(LINES))
    assert json.loads(bytes(start.body))["file"]["displayName"] == TAG.name
    sent = b""
    call = steps.send(Reply({"x-goog-upload-url": "https://h/upload/v1beta/files?upload_id=7"}, None))
    while "finalize" not in call.headers["x-goog-upload-command"]:
        assert call.headers["x-goog-upload-offset"] == str(len(sent))
        sent += bytes(call.body)
        call = steps.send(Reply({"x-goog-upload-status": "active"}, None))
    sent += bytes(call.body)
    assert sent == LINES
    with pytest.raises(StopIteration) as end:
        steps.send(Reply({}, payload("gemini-file.uploaded")))
    assert end.value.value == ("files/syn0001", "2026-12-02T07:59:00Z")


def test_gemini_create_stands_at_the_model_and_is_named_by_the_tag() -> None:
    """The display name is all that tells it later."""
    hooks = api("gemini")
    call = hooks.create(TAG, "shards/00000.jsonl", "files/1", memoryview(LINES))
    assert call.path == "/v1beta/models/m-1:batchGenerateContent"
    batch = json.loads(bytes(call.body))["batch"]
    assert batch == {"displayName": TAG.name, "inputConfig": {"fileName": "files/1"}}
    assert hooks.read({"name": "batches/1", "metadata": {"displayName": TAG.name}}).tag == TAG.name


def test_tags_of_a_run_share_a_beginning_and_differ_by_job_and_turn() -> None:
    """One word that fits a display name and a file name."""
    others = {TAG._replace(turn=3).name, TAG._replace(job="9" * 64).name, TAG._replace(run="e" * 64).name}
    assert Tag.read(TAG.name, TAG.run) == (TAG.job[:16], TAG.turn)
    assert Tag.read(TAG.name, "e" * 64) is None
    assert Tag.read(f"{TAG.name}-more", TAG.run) is None
    assert TAG.name not in others
    assert len(others) == 3
    assert len(TAG.name) < 64


# --- addresses ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "path", "base", "url"),
    [
        ("openai", "/v1/batches", "https://h/v1", "https://h/v1/batches"),
        ("openai", "/v1/batches?limit=5", "https://h", "https://h/v1/batches?limit=5"),
        ("openai", "https://evil/v1/files/x/content", "https://h/v1", "https://h/v1/files/x/content"),
        ("anthropic", "/v1/messages/batches", "https://h", "https://h/v1/messages/batches"),
        ("gemini", "/v1beta/batches/1", "https://h/v1beta", "https://h/v1beta/batches/1"),
        ("gemini", "/upload/v1beta/files", "https://h/v1beta", "https://h/upload/v1beta/files"),
        ("gemini", "/upload/v1beta/files", "https://h", "https://h/upload/v1beta/files"),
        (
            "gemini",
            "https://evil/upload/v1beta/files?upload_id=7",
            "https://h/v1beta",
            "https://h/upload/v1beta/files?upload_id=7",
        ),
        (
            "gemini",
            "/download/v1beta/files/x:download?alt=media",
            "https://h",
            "https://h/download/v1beta/files/x:download?alt=media",
        ),
    ],
)
def test_calls_keep_to_the_host_that_the_user_named(name: str, path: str, base: str, url: str) -> None:
    """A URL that a provider names never takes the key to another host."""
    assert api(name).url(path, base) == url


@pytest.mark.parametrize("name", ["openai", "anthropic", "gemini"])
def test_id_from_a_provider_cannot_lead_elsewhere(name: str) -> None:
    """Slashes and dots in an id stay inside its place in the path."""
    assert "../" not in api(name).look("../../secrets?x=1").path
    assert "../" not in api(name).cancel("../../secrets").path


def test_wire_without_a_batch_api_is_refused() -> None:
    """Formats that are not known here are told to use the other channel."""

    class Strange:
        name, wire = "strange", "strange-wire"

    with pytest.raises(InputError, match="strange"):
        batch_api(Strange(), "/v1/x", "m")  # type: ignore[arg-type]


def test_times_are_utc() -> None:
    """Seconds since 1970 and RFC 3339 come out alike."""
    assert _read("openai-batch.completed").created_at == datetime.fromtimestamp(1795996800, UTC)
    assert _read("anthropic-batch.ended").created_at == datetime(2026, 11, 30, 8, tzinfo=UTC)
    assert _read("gemini-batch.pending").created_at == datetime(2026, 11, 30, 8, tzinfo=UTC)
