"""The rehearsal provider's batch APIs, driven by the official SDKs: what they accept is the real shape."""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit import rehearsal_bodies as bodies
from vlmbatch.rehearsal.faults import parse_faults
from vlmbatch.rehearsal.server import Server, serve

if TYPE_CHECKING:
    from pathlib import Path

IDS = [f"row-{number}" for number in range(6)]


def _lines(url: str = "/v1/chat/completions") -> bytes:
    body = bodies.responses if url.endswith("responses") else bodies.chat
    lines = [
        {"custom_id": name, "method": "POST", "url": url, "body": body([bodies.picture(10 + n, 8)])}
        for n, name in enumerate(IDS)
    ]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


# --- OpenAI -------------------------------------------------------------------------------------------------


def _openai(server: Server) -> Any:
    openai = pytest.importorskip("openai")
    return openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="k", max_retries=0)


def _openai_job(client: Any, data: bytes, endpoint: str = "/v1/chat/completions") -> Any:
    file = client.files.create(file=("a.jsonl", data), purpose="batch")
    assert (file.bytes, file.filename, file.purpose) == (len(data), "a.jsonl", "batch")
    return client.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window="24h", metadata={"mine": "yes"}
    )


def _openai_end(client: Any, job: Any) -> Any:
    for _ in range(10):
        job = client.batches.retrieve(job.id)
        if job.status in {"completed", "failed", "expired", "cancelled"}:
            return job
    raise AssertionError(f"the job did not end: {job.status}")


def _content(client: Any, file_id: str | None) -> list[dict[str, Any]]:
    return [json.loads(line) for line in client.files.content(file_id).text.splitlines()] if file_id else []


@pytest.mark.parametrize("endpoint", ["/v1/chat/completions", "/v1/responses"])
def test_openai_job_passes_its_states_and_answers_every_row(endpoint: str) -> None:
    """Upload, create, poll, download, list: the whole way."""
    with serve(parse_faults({"batch": {"looks": 3}})) as server, _openai(server) as client:
        job = _openai_job(client, _lines(endpoint), endpoint)
        states = [job.status, *(client.batches.retrieve(job.id).status for _ in range(3))]
        assert states == ["validating", "in_progress", "finalizing", "completed"]
        job = client.batches.retrieve(job.id)
        assert (job.request_counts.total, job.request_counts.completed, job.metadata) == (6, 6, {"mine": "yes"})
        lines = _content(client, job.output_file_id)
        assert sorted(line["custom_id"] for line in lines) == IDS
        assert [line["custom_id"] for line in lines] != IDS
        assert job.error_file_id is None
        assert [one.id for one in client.batches.list()] == [job.id]
        assert [one.filename for one in client.files.list(purpose="batch")] == ["a.jsonl"]


def test_openai_rows_that_fail_stand_in_the_error_file() -> None:
    """A job completes though each of its rows failed; then there is an error file alone."""
    with serve(parse_faults({"rates": {"http_429": 1}})) as server, _openai(server) as client:
        job = _openai_end(client, _openai_job(client, _lines()))
        assert (job.status, job.output_file_id) == ("completed", None)
        assert {line["response"]["status_code"] for line in _content(client, job.error_file_id)} == {429}


@pytest.mark.parametrize(("end", "code"), [("expired", "batch_expired"), ("cancelled", "batch_cancelled")])
def test_openai_job_cut_short_keeps_what_was_done(end: str, code: str) -> None:
    """Half of the rows are answered, the others stand in the error file with the reason."""
    with serve(parse_faults({"batch": {"end": end}})) as server, _openai(server) as client:
        job = _openai_end(client, _openai_job(client, _lines()))
        assert job.status == end
        done, rest = _content(client, job.output_file_id), _content(client, job.error_file_id)
        assert (len(done), len(rest)) == (3, 3)
        assert {line["error"]["code"] for line in rest} == {code}
        assert all(line["response"] is None for line in rest)


def test_openai_cancel_ends_the_job_at_the_next_look() -> None:
    """Cancelling takes a moment, and an ended job cannot be cancelled."""
    openai = pytest.importorskip("openai")
    with serve() as server, _openai(server) as client:
        job = client.batches.cancel(_openai_job(client, _lines()).id)
        assert job.status == "cancelling"
        assert client.batches.retrieve(job.id).status == "cancelled"
        with pytest.raises(openai.ConflictError):
            client.batches.cancel(job.id)


BAD_FILES = {
    "empty_file": b"",
    "invalid_json_line": _lines().replace(b'{"custom_id": "row-2"', b'{"custom_id": row-2"', 1),
    "duplicate_custom_id": _lines() + _lines(),
    "url_mismatch": _lines("/v1/responses"),
    "model_mismatch": _lines().replace(b'"test-vlm-1"', b'"other"', 1),
}


@pytest.mark.parametrize("code", BAD_FILES)
def test_openai_bad_input_file_fails_the_whole_job(code: str) -> None:
    """Create answers 200 all the same; the reasons come with the first look, line by line."""
    with serve() as server, _openai(server) as client:
        job = _openai_end(client, _openai_job(client, BAD_FILES[code]))
        assert job.status == "failed"
        assert {error.code for error in job.errors.data} == {code}
        assert all(error.line or code == "empty_file" for error in job.errors.data)
        assert job.output_file_id is job.error_file_id is None


def test_the_same_file_submitted_twice_is_there_twice() -> None:
    """The provider does not see that it is the same: whoever counts jobs does."""
    with serve() as server, _openai(server) as client:
        first, second = (_openai_job(client, _lines()) for _ in range(2))
        assert first.id != second.id
        assert len({job.input_sha256 for job in server.store.jobs}) == 1
        assert len(server.store.jobs) == 2
        assert [one.id for one in client.batches.list(limit=1)] == [second.id, first.id]


def test_planned_mishaps_happen_as_often_as_planned() -> None:
    """A full queue, a lost create, a lost upload, failing looks: each as often as the file says, then no more."""
    openai = pytest.importorskip("openai")
    plan = {"looks": 3, "full_creates": 1, "lost_creates": 1, "lost_uploads": 1, "look_statuses": [500, 404, 0]}
    with serve(parse_faults({"batch": plan})) as server, _openai(server) as client:
        with pytest.raises(openai.APIConnectionError):
            client.files.create(file=("a.jsonl", _lines()), purpose="batch")
        assert len(server.store.files) == 1
        with pytest.raises(openai.RateLimitError):
            _openai_job(client, _lines())
        assert server.store.jobs == []
        with pytest.raises(openai.APIConnectionError):
            _openai_job(client, _lines())
        (lost,) = client.batches.list()
        for error in (openai.InternalServerError, openai.NotFoundError, openai.APIConnectionError):
            with pytest.raises(error):
                client.batches.retrieve(lost.id)
        assert client.batches.retrieve(lost.id).status == "finalizing"


def test_refused_upload_is_refused_every_time() -> None:
    """A file store that says 413 keeps nothing."""
    openai = pytest.importorskip("openai")
    with serve(parse_faults({"batch": {"upload_status": 413}})) as server, _openai(server) as client:
        for _ in range(2):
            with pytest.raises(openai.APIStatusError, match="413"):
                client.files.create(file=("a.jsonl", _lines()), purpose="batch")
        assert server.store.files == {}


def test_rows_can_be_missing_or_come_twice() -> None:
    """What public reports tell of real result files can be had here."""
    plan = {"missing_rows": 2, "repeat_rows": 1}
    with serve(parse_faults({"batch": plan})) as server, _openai(server) as client:
        job = _openai_end(client, _openai_job(client, _lines()))
        names = [line["custom_id"] for line in _content(client, job.output_file_id)]
        assert (len(names), len(set(names))) == (5, 4)


# --- Anthropic ----------------------------------------------------------------------------------------------


def _anthropic(server: Server) -> Any:
    anthropic = pytest.importorskip("anthropic")
    return anthropic.Anthropic(base_url=server.base_url, api_key="k", max_retries=0)


def _requests() -> list[dict[str, Any]]:
    return [{"custom_id": n, "params": bodies.messages([bodies.picture(10 + i, 8)])} for i, n in enumerate(IDS)]


def test_anthropic_job_ends_and_answers_every_row() -> None:
    """Create, poll, list, results."""
    with serve() as server, _anthropic(server) as client:
        job = client.messages.batches.create(requests=_requests())
        assert (job.processing_status, job.request_counts.processing) == ("in_progress", 6)
        for _ in range(3):
            job = client.messages.batches.retrieve(job.id)
        assert (job.processing_status, job.request_counts.succeeded) == ("ended", 6)
        assert [one.id for one in client.messages.batches.list()] == [job.id]
        lines = list(client.messages.batches.results(job.id))
        assert sorted(line.custom_id for line in lines) == IDS
        assert {line.result.type for line in lines} == {"succeeded"}
        assert all("8 pixels" in line.result.message.content[0].text for line in lines)


def test_anthropic_row_errors_are_lines_of_the_results() -> None:
    """A failed row is ``errored`` with the whole error inside."""
    with serve(parse_faults({"rates": {"http_500": 1}})) as server, _anthropic(server) as client:
        job = client.messages.batches.create(requests=_requests())
        for _ in range(3):
            job = client.messages.batches.retrieve(job.id)
        assert (job.processing_status, job.request_counts.errored) == ("ended", 6)
        lines = list(client.messages.batches.results(job.id))
        assert {line.result.error.error.type for line in lines} == {"api_error"}


def test_anthropic_cancelled_job_is_ended_with_canceled_rows() -> None:
    """There is no other end state."""
    with serve() as server, _anthropic(server) as client:
        job = client.messages.batches.cancel(client.messages.batches.create(requests=_requests()).id)
        assert job.processing_status == "canceling"
        job = client.messages.batches.retrieve(job.id)
        assert (job.processing_status, job.request_counts.canceled) == ("ended", 3)


@pytest.mark.parametrize("wrong", [[], [{"custom_id": "a b", "params": {}}], [*_requests(), *_requests()], [{}]])
def test_anthropic_bad_outer_shape_is_refused_at_once(wrong: list[dict[str, Any]]) -> None:
    """Ids and the outer shape are checked at create; nothing is made."""
    anthropic = pytest.importorskip("anthropic")
    with serve() as server, _anthropic(server) as client:
        with pytest.raises(anthropic.BadRequestError):
            client.messages.batches.create(requests=wrong)
        assert server.store.jobs == []


# --- Gemini -------------------------------------------------------------------------------------------------


def _genai(server: Server) -> Any:
    genai = pytest.importorskip("google.genai")
    options = {"base_url": server.base_url, "api_version": "v1beta"}
    return genai.Client(api_key="k", http_options=options)


def _keyed() -> bytes:
    lines = [{"key": n, "request": bodies.generate_content([bodies.picture(10 + i, 8)])} for i, n in enumerate(IDS)]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


@pytest.fixture
def _quiet() -> Any:
    """Let the SDK's own deprecation warnings pass."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.usefixtures("_quiet")
def test_gemini_job_is_uploaded_made_found_and_answers_every_row(tmp_path: Path) -> None:
    """Resumable upload, batchGenerateContent, operations, download."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(_keyed())
    with serve() as server:
        client = _genai(server)
        config = {"display_name": "tag-1", "mime_type": "application/jsonl"}
        file = client.files.upload(file=str(path), config=config)
        assert (file.display_name, file.size_bytes) == ("tag-1", len(_keyed()))
        job = client.batches.create(model="gemini-x", src=file.name, config={"display_name": "tag-1"})
        assert job.state.name == "JOB_STATE_PENDING"
        for _ in range(3):
            job = client.batches.get(name=job.name)
        assert job.state.name == "JOB_STATE_SUCCEEDED"
        assert [one.display_name for one in client.batches.list()] == ["tag-1"]
        lines = [json.loads(line) for line in client.files.download(file=job.dest.file_name).splitlines()]
        assert sorted(line["key"] for line in lines) == IDS
        assert all("8 pixels" in line["response"]["candidates"][0]["content"]["parts"][0]["text"] for line in lines)
        client.close()


@pytest.mark.usefixtures("_quiet")
@pytest.mark.parametrize("end", ["expired", "failed", "cancelled"])
def test_gemini_job_that_ends_otherwise_has_no_results(end: str, tmp_path: Path) -> None:
    """Nothing of an expired job can be had."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(_keyed())
    with serve(parse_faults({"batch": {"end": end}})) as server:
        client = _genai(server)
        file = client.files.upload(file=str(path), config={"mime_type": "application/jsonl"})
        job = client.batches.create(model="gemini-x", src=file.name, config={"display_name": "tag-1"})
        for _ in range(3):
            job = client.batches.get(name=job.name)
        assert job.state.name == f"JOB_STATE_{end.upper()}"
        assert job.dest is None or job.dest.file_name is None
        client.close()
