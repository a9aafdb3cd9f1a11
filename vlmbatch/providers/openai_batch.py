"""The OpenAI-compatible batch API: /v1/files and /v1/batches. References/providers.md, 2.6."""

from __future__ import annotations

from typing import Any

from vlmbatch import jsonl
from vlmbatch.errors import Problem
from vlmbatch.providers.base import Call
from vlmbatch.providers.base_batch import (
    LIST_SIZE,
    Batch,
    BatchApi,
    Phase,
    ResultFile,
    Steps,
    Tag,
    Upload,
    as_stamp,
    as_time,
    in_path,
    multipart,
)
from vlmbatch.providers.common import as_count, as_dict, as_list, as_text

_PHASES = {
    "failed": Phase.FAILED,
    "completed": Phase.ENDED,
    "expired": Phase.ENDED,
    "cancelled": Phase.ENDED,
}
"""openai 3.57.0, types.Batch; every other state, known or not, is open."""

_QUEUE_FULL = frozenset({"token_limit_exceeded"})
_RUN, _JOB, _TURN, _SHARD = "vlmbatch_run", "vlmbatch_job_sha256", "vlmbatch_turn", "vlmbatch_shard"


class FilesAndBatches(BatchApi):
    """Jobs are made of an uploaded file and known by metadata, or by the file's name where a server keeps none."""

    __slots__ = ()

    def upload(self, tag: Tag, lines: memoryview) -> Steps[Upload]:
        """Describe one multipart form: purpose and file."""
        headers, body = multipart(tag.job, f"{tag.name}.jsonl", "application/jsonl", lines, {"purpose": "batch"})
        reply = yield Call("POST", "/v1/files", headers, body)
        return _upload(reply.body)

    def create(self, tag: Tag, shard: str, file_id: str, lines: memoryview) -> Call:  # noqa: ARG002  (uploaded)
        """Describe a job over the uploaded file."""
        metadata = {_RUN: tag.run, _JOB: tag.job, _TURN: str(tag.turn), **({_SHARD: shard} if shard else {})}
        asked = {
            "input_file_id": file_id,
            "endpoint": self.path,
            "completion_window": "24h",
            "metadata": metadata,
        }
        return Call("POST", "/v1/batches", body=jsonl.dumps(asked))

    def look(self, batch_id: str) -> Call:
        """Describe GET of the job."""
        return Call("GET", f"/v1/batches/{in_path(batch_id)}")

    def read(self, body: Any) -> Batch:
        """Read a batch object."""
        value = as_dict(body)
        state = as_text(value.get("status")) or "unknown"
        flaws = tuple(_flaw(as_dict(one)) for one in as_list(as_dict(value.get("errors")).get("data")))
        counts = as_dict(value.get("request_counts"))
        total, good, bad = (as_count(counts.get(name)) or 0 for name in ("total", "completed", "failed"))
        phase = _PHASES.get(state, Phase.OPEN)
        results = tuple(_results(value))
        kinds = {result.kind for result in results}
        return Batch(
            as_text(value.get("id")) or "",
            phase,
            state,
            tag=_tag(as_dict(value.get("metadata"))),
            input_file=as_text(value.get("input_file_id")) or "",
            created_at=as_time(value.get("created_at")),
            requests=total or None,
            done=good + bad if total else None,
            flaws=flaws,
            is_queue_full=any(flaw.code in _QUEUE_FULL for flaw in flaws),
            results=results,
            lacks_results=phase is Phase.ENDED and bool((good and "output" not in kinds) or (bad and not kinds)),
        )

    def list(self, after: str) -> Call:
        """Describe GET of a page."""
        return Call("GET", f"/v1/batches?limit={LIST_SIZE}" + (f"&after={in_path(after)}" if after else ""))

    def cancel(self, batch_id: str) -> Call:
        """Describe POST of the cancellation."""
        return Call("POST", f"/v1/batches/{in_path(batch_id)}/cancel", body=b"{}")

    def list_files(self, after: str) -> Call | None:
        """Describe GET of a page of uploaded files."""
        return Call("GET", f"/v1/files?purpose=batch&limit={LIST_SIZE}" + (f"&after={in_path(after)}" if after else ""))

    def read_files(self, body: Any) -> tuple[dict[str, str], str]:
        """Read a page of file objects."""
        value = as_dict(body)
        files = [as_dict(one) for one in as_list(value.get("data"))]
        names = {as_text(one.get("id")) or "": as_text(one.get("filename")) or "" for one in files}
        last = as_text(files[-1].get("id")) if files and value.get("has_more") is True else None
        return names, last or ""


class ResponsesFilesAndBatches(FilesAndBatches):
    """The same for the responses endpoint, which takes images by the id of an uploaded file too."""

    __slots__ = ()

    def store_image(self, sha256: str, media_type: str, data: memoryview) -> Steps[Upload]:
        """Describe one multipart form with the purpose that images have."""
        name = f"{sha256}.{media_type.rpartition('/')[2]}"
        headers, body = multipart(sha256, name, media_type, data, {"purpose": "vision"})
        reply = yield Call("POST", "/v1/files", headers, body)
        return _upload(reply.body)


def _results(value: dict[str, Any]) -> list[ResultFile]:
    """Return both files, where they are there: a job without a good line has an error file alone."""
    kinds: tuple[tuple[Any, str], ...] = (("output", "output_file_id"), ("error", "error_file_id"))
    named = [(kind, as_text(value.get(key))) for kind, key in kinds]
    paths = [(kind, f"/v1/files/{in_path(file_id)}/content") for kind, file_id in named if file_id]
    return [ResultFile(kind, Call("GET", path)) for kind, path in paths]


def _upload(body: Any) -> Upload:
    file = as_dict(body)
    return Upload(as_text(file.get("id")) or "", as_stamp(file.get("expires_at")))


def _flaw(error: dict[str, Any]) -> Problem:
    code = as_text(error.get("code")) or "error"
    return Problem(code, as_text(error.get("message")) or code, line=as_count(error.get("line")))


def _tag(metadata: dict[str, Any]) -> str:
    run, job, turn = (as_text(metadata.get(key)) or "" for key in (_RUN, _JOB, _TURN))
    return Tag(run, job, int(turn)).name if run and job and turn.isdigit() else ""
