"""The Gemini batch API: resumable upload, batchGenerateContent, operations. References/providers.md, 4.6."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from vlmbatch import jsonl
from vlmbatch.errors import Problem
from vlmbatch.providers.base import Call
from vlmbatch.providers.base_batch import (
    LIST_SIZE,
    Batch,
    BatchApi,
    Page,
    Phase,
    ResultFile,
    Steps,
    Upload,
    as_stamp,
    as_time,
    in_path,
)
from vlmbatch.providers.common import as_count, as_dict, as_list, as_text

if TYPE_CHECKING:
    from vlmbatch.providers.base_batch import Tag

_PIECE = 32 << 20
_ENDED = frozenset({"SUCCEEDED", "CANCELLED", "EXPIRED", "PARTIALLY_SUCCEEDED"})
_RESOURCE_EXHAUSTED = 8
_JOBS = "batches/"


class BatchGenerate(BatchApi):
    """Jobs are made of an uploaded file and known by their display name."""

    __slots__ = ()

    @property
    def _version(self) -> str:
        return self.path.split("/")[1]

    def url(self, path: str, base_url: str) -> str:
        """Return the whole URL of a call: uploads and downloads stand beside the version, not below it."""
        named = urlsplit(path)
        kind = named.path.split("/")[1]
        if kind in {"upload", "download"}:
            root = base_url.rstrip("/").removesuffix(f"/{self._version}")
            return self.provider.endpoint(f"{named.path}?{named.query}", root)
        return self.provider.endpoint(path, base_url)

    def upload(self, tag: Tag, lines: memoryview) -> Steps[Upload]:
        """Describe a resumable upload in pieces; a job names the file by its name."""
        file = yield from _upload_file(self._version, tag.name, "application/jsonl", lines)
        return Upload(as_text(file.get("name")) or "", as_stamp(file.get("expirationTime")))

    def store_image(self, sha256: str, media_type: str, data: memoryview) -> Steps[Upload]:
        """Describe the same for one image; a body names it by its address."""
        file = yield from _upload_file(self._version, sha256, media_type, data)
        return Upload(as_text(file.get("uri")) or "", as_stamp(file.get("expirationTime")))

    def create(self, tag: Tag, shard: str, file_id: str, lines: memoryview) -> Call:  # noqa: ARG002  (uploaded)
        """Describe a job over the uploaded file; the model stands in the path."""
        asked = {"batch": {"displayName": tag.name, "inputConfig": {"fileName": file_id}}}
        path = self.path.removesuffix(":generateContent") + ":batchGenerateContent"
        return Call("POST", path, body=jsonl.dumps(asked))

    def look(self, batch_id: str) -> Call:
        """Describe GET of the operation."""
        return Call("GET", f"/{self._version}/{_JOBS}{in_path(batch_id)}")

    def read(self, body: Any) -> Batch:
        """Read an operation; its top-level ``error`` says why a job failed."""
        value = as_dict(body)
        metadata = as_dict(value.get("metadata"))
        state = (as_text(metadata.get("state")) or "unknown").removeprefix("BATCH_STATE_")
        is_done = value.get("done") is True
        error = as_dict(value.get("error"))
        stats = as_dict(metadata.get("batchStats"))
        total, waiting = _number(stats.get("requestCount")), _number(stats.get("pendingRequestCount"))
        output = as_dict(metadata.get("output")) or as_dict(value.get("response"))
        results_file = as_text(output.get("responsesFile"))
        is_failed = state == "FAILED" or (is_done and state not in _ENDED and bool(error))
        phase = Phase.FAILED if is_failed else Phase.ENDED if is_done or state in _ENDED else Phase.OPEN
        fetch = Call("GET", f"/download/{self._version}/{results_file}:download?alt=media")
        is_full = phase is Phase.FAILED and error.get("code") == _RESOURCE_EXHAUSTED
        return Batch(
            (as_text(value.get("name")) or "").removeprefix(_JOBS),
            phase,
            state,
            tag=as_text(metadata.get("displayName")) or "",
            created_at=as_time(metadata.get("createTime")),
            requests=total,
            done=None if total is None else total - (waiting or 0),
            flaws=_flaws(error) if phase is Phase.FAILED else (),
            is_queue_full=is_full,
            results=(ResultFile("output", fetch),) if results_file and phase is Phase.ENDED else (),
            lacks_results=state == "SUCCEEDED" and not results_file,
        )

    def list(self, after: str) -> Call:
        """Describe GET of a page."""
        token = f"&pageToken={in_path(after)}" if after else ""
        return Call("GET", f"/{self._version}/batches?pageSize={LIST_SIZE}{token}")

    def read_page(self, body: Any) -> Page:
        """Read a page of operations."""
        value = as_dict(body)
        batches = [self.read(one) for one in as_list(value.get("operations"))]
        return Page(batches, as_text(value.get("nextPageToken")) or "")

    def cancel(self, batch_id: str) -> Call:
        """Describe POST of the cancellation."""
        return Call("POST", f"/{self._version}/{_JOBS}{in_path(batch_id)}:cancel", body=b"{}")


def _upload_file(version: str, name: str, media_type: str, data: memoryview) -> Steps[dict[str, Any]]:
    """Describe a resumable upload of one file: a start, then its pieces; the end gives the file object."""
    about = {"displayName": name, "mimeType": media_type}
    start = {
        "x-goog-upload-protocol": "resumable",
        "x-goog-upload-command": "start",
        "x-goog-upload-header-content-length": str(len(data)),
        "x-goog-upload-header-content-type": media_type,
    }
    reply = yield Call("POST", f"/upload/{version}/files", start, jsonl.dumps({"file": about}))
    url = reply.headers.get("x-goog-upload-url", "")
    for offset in range(0, max(len(data), 1), _PIECE):
        piece = data[offset : offset + _PIECE]
        command = "upload, finalize" if offset + len(piece) >= len(data) else "upload"
        step = {"x-goog-upload-offset": str(offset), "x-goog-upload-command": command}
        reply = yield Call("POST", url, {**step, "content-type": media_type}, piece)
    return as_dict(as_dict(reply.body).get("file"))


def _flaws(error: dict[str, Any]) -> tuple[Problem, ...]:
    code = as_text(error.get("code")) or str(error.get("code", "unknown"))
    return (Problem(code, as_text(error.get("message")) or "no reason is told"),)


def _number(value: Any) -> int | None:
    """Read a 64-bit count, which stands as text; a zero is left out of the JSON."""
    if isinstance(value, str) and value.isdigit():
        return int(value)
    return as_count(value)
