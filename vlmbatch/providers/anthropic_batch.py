"""The Anthropic batch API: /v1/messages/batches. References/providers.md, 3.7."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from vlmbatch.providers.base import Call
from vlmbatch.providers.base_batch import (
    LIST_SIZE,
    Batch,
    BatchApi,
    Phase,
    ResultFile,
    Steps,
    Upload,
    as_stamp,
    as_time,
    in_path,
    multipart,
)
from vlmbatch.providers.common import as_count, as_dict, as_text

if TYPE_CHECKING:
    from vlmbatch.providers.base_batch import Tag

_PATH = "/v1/messages/batches"
_COUNTS = ("processing", "succeeded", "errored", "canceled", "expired")


class MessageBatches(BatchApi):
    """One call makes a job of all lines; nothing of ours goes along to find it by."""

    __slots__ = ()

    has_tags: ClassVar[bool] = False
    has_upload: ClassVar[bool] = False

    def store_image(self, sha256: str, media_type: str, data: memoryview) -> Steps[Upload]:
        """Describe one multipart form with the file alone."""
        name = f"{sha256}.{media_type.rpartition('/')[2]}"
        headers, body = multipart(sha256, name, media_type, data, {})
        reply = yield Call("POST", "/v1/files", headers, body)
        file = as_dict(reply.body)
        return Upload(as_text(file.get("id")) or "", as_stamp(file.get("expires_at")))

    def create(self, tag: Tag, shard: str, file_id: str, lines: memoryview) -> Call:  # noqa: ARG002  (no place for them)
        """Describe the job: the frozen lines, spliced into a list as they stand."""
        body = bytearray(b'{"requests":[')
        at = len(body)
        body += lines
        while (at := body.find(b"\n", at)) >= 0:  # inside a JSON line no raw line break can stand
            body[at : at + 1] = b","
        if body.endswith(b","):
            body.pop()
        body += b"]}"
        return Call("POST", _PATH, body=body)

    def look(self, batch_id: str) -> Call:
        """Describe GET of the job."""
        return Call("GET", f"{_PATH}/{in_path(batch_id)}")

    def read(self, body: Any) -> Batch:
        """Read a message batch object; cancelled and expired ones are ``ended`` too."""
        value = as_dict(body)
        batch_id = as_text(value.get("id")) or ""
        state = as_text(value.get("processing_status")) or "unknown"
        counts = [as_count(as_dict(value.get("request_counts")).get(name)) or 0 for name in _COUNTS]
        is_ended = state == "ended"
        is_kept = is_ended and value.get("results_url") is not None
        return Batch(
            batch_id,
            Phase.ENDED if is_ended else Phase.OPEN,
            state,
            created_at=as_time(value.get("created_at")),
            requests=sum(counts) or None,
            done=sum(counts[1:]) if is_ended else None,
            results=(ResultFile("output", Call("GET", f"{_PATH}/{in_path(batch_id)}/results")),) if is_kept else (),
            lacks_results=is_ended and not is_kept and value.get("archived_at") is None,
        )

    def list(self, after: str) -> Call:
        """Describe GET of a page."""
        return Call("GET", f"{_PATH}?limit={LIST_SIZE}" + (f"&after_id={in_path(after)}" if after else ""))

    def cancel(self, batch_id: str) -> Call:
        """Describe POST of the cancellation."""
        return Call("POST", f"{_PATH}/{in_path(batch_id)}/cancel", body=b"")
