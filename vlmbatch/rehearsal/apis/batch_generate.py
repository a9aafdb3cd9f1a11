"""/upload/{v}/files, models/{model}:batchGenerateContent and /{v}/batches: the Gemini batch API."""

from __future__ import annotations

import base64
import hashlib
import secrets
from typing import TYPE_CHECKING, Any

from aiohttp import web

from vlmbatch import jsonl
from vlmbatch.rehearsal.apis.base import DAY_S, JSON_LINES, Api, page, query_number, stamp
from vlmbatch.rehearsal.http import send
from vlmbatch.rehearsal.jobs import ENDED, Flaw, Row
from vlmbatch.rehearsal.replies import Reply

if TYPE_CHECKING:
    from vlmbatch.rehearsal.faults import Faults
    from vlmbatch.rehearsal.jobs import Done, Store, StoredFile, StoredJob
    from vlmbatch.rehearsal.replies import Replies
    from vlmbatch.rehearsal.wires.base import Wire

NAME = "batch_generate"
_STATES = {
    "validating": "PENDING",
    "in_progress": "RUNNING",
    "finalizing": "RUNNING",
    "cancelling": "RUNNING",
    "completed": "SUCCEEDED",
    "expired": "EXPIRED",
    "failed": "FAILED",
    "cancelled": "CANCELLED",
}
_RPC_CODES = {400: 3, 404: 5, 429: 8, 500: 13, 503: 14}


class BatchGenerate(Api):
    """Resumable uploads, jobs as operations, one file of results."""

    def __init__(self, store: Store, replies: Replies, faults: Faults, wire: Wire) -> None:
        super().__init__(store, replies, faults, wire)
        self._uploads: dict[str, tuple[dict[str, str], bytearray]] = {}

    def routes(self) -> list[web.RouteDef]:
        """Return what this API listens to."""
        return [
            web.post("/upload/v1beta/files", self.upload),
            web.get("/download/v1beta/files/{id}:download", self.download),  # as the guide has it
            web.get("/v1beta/files/{id}:download", self.download),  # as google-genai 3.6.1 asks
            web.get("/v1beta/files", self.list_files),
            web.post("/v1beta/models/{model}:batchGenerateContent", self.create),
            web.get("/v1beta/batches", self.list_jobs),
            web.get("/v1beta/batches/{id}", self.show),
            web.post("/v1beta/batches/{id}:cancel", self.cancel),
        ]

    async def upload(self, request: web.Request) -> web.StreamResponse:
        """Start an upload, take a piece of it, or end it."""
        refused = await self.refused_upload(request)
        if refused is not None:
            return refused
        command = request.headers.get("X-Goog-Upload-Command", "")
        if command == "start":
            return await self._start(request)
        begun = self._uploads.get(request.query.get("upload_id", ""))
        if begun is None or request.headers.get("X-Goog-Upload-Offset") != str(len(begun[1])):
            return await self.refuse(request, 400, "No such upload, or the offset is not where it stands.")
        about, data = begun
        data += await request.read()
        if "finalize" not in command:
            return await self.ok(request, {}, {"x-goog-upload-status": "active"})
        if len(data) != int(about["size"]):
            return await self.refuse(request, 400, "The upload is not as long as was said.")
        file = self._store.add_file("files/", about["name"], bytes(data), "", about["type"])
        value = {"file": _file(file, request)}
        if self._take("upload"):
            return await send(request, Reply(0, jsonl.dumps(value)))
        return await self.ok(request, value, {"x-goog-upload-status": "final"})

    async def _start(self, request: web.Request) -> web.StreamResponse:
        headers = request.headers
        size = headers.get("X-Goog-Upload-Header-Content-Length", "")
        if headers.get("X-Goog-Upload-Protocol") != "resumable" or not size.isdigit():
            return await self.refuse(request, 400, "Only resumable uploads of a known length are taken.")
        asked = (jsonl.parse_object(await request.read()) or {}).get("file") or {}
        upload_id = secrets.token_hex(8)
        kind = headers.get("X-Goog-Upload-Header-Content-Type", "")
        self._uploads[upload_id] = ({"size": size, "type": kind, "name": _display_name(asked)}, bytearray())
        url = f"http://{request.host}{request.path}?upload_id={upload_id}&upload_protocol=resumable"
        return await self.ok(request, {}, {"x-goog-upload-url": url, "x-goog-upload-status": "active"})

    async def list_files(self, request: web.Request) -> web.StreamResponse:
        """List files, newest first."""
        files = [_file(one, request) for one in reversed(self._store.files.values()) if one.id.startswith("files/")]
        found, more = page(files, [one["name"] for one in files], request.query.get("pageToken", ""), 100)
        return await self.ok(request, {"files": found, **({"nextPageToken": found[-1]["name"]} if more else {})})

    async def download(self, request: web.Request) -> web.StreamResponse:
        """Give a file's bytes."""
        data = self._store.file_bytes(f"files/{request.match_info['id']}")
        if data is None:
            return await self.refuse(request, 404, "No such file.")
        return await send(request, Reply(200, data, content_type=JSON_LINES))

    async def create(self, request: web.Request) -> web.StreamResponse:
        """Make a job."""
        refused = await self.refused_create(request)
        if refused is not None:
            return refused
        batch = (jsonl.parse_object(await request.read()) or {}).get("batch") or {}
        data = self._store.file_bytes(str((batch.get("inputConfig") or {}).get("fileName")))
        if data is None or not _display_name(batch):
            return await self.refuse(request, 400, "batch.displayName and batch.inputConfig.fileName are required.")
        rows, flaws = read_input(data)
        marks = {"display_name": _display_name(batch)}
        model = request.match_info["model"]
        job = self._store.add_job(NAME, rows, data=data, model=model, marks=marks, flaws=flaws)
        return await self.made(request, "create", _operation(job))

    async def show(self, request: web.Request) -> web.StreamResponse:
        """Look at a job."""
        job = self._store.job(request.match_info["id"])
        if job is None:
            return await self.refuse(request, 404, "No such batch.")
        mishap = await self.look(request, job)
        if mishap is not None:
            return mishap
        return await self.ok(request, _operation(job))

    def file_results(self, job: StoredJob) -> None:
        """Put the results of a completed job into a file; no other job has any."""
        if job.state == "completed" and not job.results:
            lines = b"".join(_line(one) for one in job.done)
            job.results["output"] = self._store.add_file("files/batch-", "", lines, "").id

    async def list_jobs(self, request: web.Request) -> web.StreamResponse:
        """List jobs, newest first."""
        jobs = [one for one in reversed(self._store.jobs) if one.api == NAME]
        token = request.query.get("pageToken", "")
        found, more = page(jobs, [one.id for one in jobs], token, query_number(request, "pageSize", 50))
        await self.glance(found)
        value: dict[str, Any] = {"operations": [_operation(one) for one in found]} if found else {}
        return await self.ok(request, value | ({"nextPageToken": found[-1].id} if more else {}))

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        """Ask a job to end."""
        job = self._store.job(request.match_info["id"])
        if job is None:
            return await self.refuse(request, 404, "No such batch.")
        if job.state in ENDED:
            return await self.refuse(request, 400, "The batch has ended already.")
        self._store.cancel(job)
        return await self.ok(request, {})


def read_input(data: bytes) -> tuple[list[Row], list[Flaw]]:
    """Check an input file: each line needs a key and a request."""
    rows: list[Row] = []
    for number, line in enumerate(data.splitlines(), start=1):
        value = jsonl.parse_object(line)
        if value is None or not isinstance(value.get("request"), dict) or not isinstance(value.get("key"), str):
            return [], [Flaw("INVALID_ARGUMENT", f"Line {number} has no key or no request.", number)]
        rows.append(Row(value["key"], jsonl.dumps(value["request"])))
    return rows, [] if rows else [Flaw("INVALID_ARGUMENT", "The input file is empty.")]


def _file(file: StoredFile, request: web.Request) -> dict[str, Any]:
    made = stamp(file.created_at)
    digest = base64.b64encode(hashlib.sha256(file.data).hexdigest().encode()).decode()
    return {
        "name": file.id,
        "displayName": file.name,
        "mimeType": file.media_type,
        "sizeBytes": str(len(file.data)),
        "createTime": made,
        "updateTime": made,
        "expirationTime": stamp(file.created_at + 2 * DAY_S),
        "sha256Hash": digest,
        "uri": f"http://{request.host}/v1beta/{file.id}",
        "state": "ACTIVE",
        "source": "UPLOADED",
    }


def _display_name(value: dict[str, Any]) -> str:
    """Return the display name, which comes in either spelling."""
    return str(value.get("displayName") or value.get("display_name") or "")


def _operation(job: StoredJob) -> dict[str, Any]:
    name = f"batches/{job.id}"
    at = stamp(job.created_at)
    good, bad = job.count(good=True), job.count(good=False)
    stats = {
        "requestCount": len(job.rows),
        "successfulRequestCount": good,
        "failedRequestCount": bad,
        "pendingRequestCount": len(job.rows) - good - bad,
    }
    metadata: dict[str, Any] = {
        "@type": "type.googleapis.com/google.ai.generativelanguage.v1main.GenerateContentBatch",
        "name": name,
        "model": f"models/{job.model}",
        "displayName": job.marks["display_name"],
        "createTime": at,
        "updateTime": at,
        "batchStats": {key: str(value) for key, value in stats.items() if value},
        "state": f"BATCH_STATE_{_STATES[job.state]}",
    }
    operation: dict[str, Any] = {"name": name, "metadata": metadata}
    if job.state not in ENDED:
        return operation
    metadata["endTime"] = at
    if "output" in job.results:
        metadata["output"] = {"responsesFile": job.results["output"]}
        operation["response"] = {"responsesFile": job.results["output"]}
    elif job.state == "failed":
        flaw = job.flaws[0]
        code = 8 if flaw.code == "token_limit_exceeded" else 3
        operation["error"] = {"code": code, "message": f"{flaw.code}: {flaw.message}"}
    elif job.state == "cancelled":
        operation["error"] = {"code": 1, "message": "Cancelled."}
    return operation | {"done": True}


def _line(done: Done) -> bytes:
    line: dict[str, Any] = {"key": done.custom_id}
    if done.reply is not None and done.is_good:
        line["response"] = jsonl.Fragment(done.reply.body)
    else:
        status = done.reply.status if done.reply else 500
        line["error"] = {"code": _RPC_CODES.get(status, 13), "message": "The request failed (rehearsal)."}
    return jsonl.dumps(line) + b"\n"
