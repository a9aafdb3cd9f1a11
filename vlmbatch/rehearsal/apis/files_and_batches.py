"""/v1/files and /v1/batches: the OpenAI-compatible batch API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiohttp import web

from vlmbatch import jsonl
from vlmbatch.rehearsal.apis.base import DAY_S, JSON_LINES, Api, page, query_number
from vlmbatch.rehearsal.http import send
from vlmbatch.rehearsal.jobs import ENDED, Flaw, Row
from vlmbatch.rehearsal.replies import Reply
from vlmbatch.rehearsal.wires import PATHS

if TYPE_CHECKING:
    from vlmbatch.rehearsal.jobs import Done, StoredFile, StoredJob

NAME = "batches"
_MAX_LINES = 50_000


class FilesAndBatches(Api):
    """Uploads by multipart, jobs by input file, results as two files."""

    def routes(self) -> list[web.RouteDef]:
        """Return what this API listens to, apart from /v1/files, which server.py shares out."""
        return [
            web.get("/v1/files/{id}", self.file),
            web.get("/v1/files/{id}/content", self.content),
            web.post("/v1/batches", self.create),
            web.get("/v1/batches", self.list_jobs),
            web.get("/v1/batches/{id}", self.show),
            web.post("/v1/batches/{id}/cancel", self.cancel),
        ]

    async def upload(self, request: web.Request) -> web.StreamResponse:
        """Keep a file."""
        refused = await self.refused_upload(request)
        if refused is not None:
            return refused
        form = await request.post()
        field = form.get("file")
        if not isinstance(field, web.FileField) or not form.get("purpose"):
            return await self.refuse(request, 400, "'file' and 'purpose' are required.")
        file = self._store.add_file(
            "file-", field.filename, field.file.read(), str(form["purpose"]), field.content_type
        )
        return await self.made(request, "upload", _file(file))

    async def list_files(self, request: web.Request) -> web.StreamResponse:
        """List files, newest first."""
        purpose = request.query.get("purpose")
        files = [one for one in reversed(self._store.files.values()) if purpose in {None, one.purpose}]
        found, more = page(
            files, [one.id for one in files], request.query.get("after", ""), query_number(request, "limit", 10_000)
        )
        return await self.ok(request, _list([_file(one) for one in found], more=more))

    async def file(self, request: web.Request) -> web.StreamResponse:
        """Tell about a file."""
        file = self._store.files.get(request.match_info["id"])
        if file is None:
            return await self.refuse(request, 404, "No such File object.")
        return await self.ok(request, _file(file))

    async def content(self, request: web.Request) -> web.StreamResponse:
        """Give a file's bytes."""
        data = self._store.file_bytes(request.match_info["id"])
        if data is None:
            return await self.refuse(request, 404, "No such File object.")
        return await send(request, Reply(200, data, content_type=JSON_LINES))

    async def create(self, request: web.Request) -> web.StreamResponse:
        """Make a job; a bad input file shows only when the job is looked at, as it does there."""
        refused = await self.refused_create(request)
        if refused is not None:
            return refused
        asked = jsonl.parse_object(await request.read()) or {}
        data = self._store.file_bytes(str(asked.get("input_file_id")))
        if data is None or asked.get("completion_window") != "24h":
            return await self.refuse(request, 400, "'input_file_id' and completion_window '24h' are required.")
        if asked.get("endpoint") not in PATHS:
            return await self.refuse(request, 400, "Invalid value for 'endpoint'.")
        rows, flaws = read_input(data, asked["endpoint"])
        marks = {"metadata": asked.get("metadata"), "endpoint": asked["endpoint"], "input": asked["input_file_id"]}
        job = self._store.add_job(NAME, rows, data=data, marks=marks, flaws=flaws)
        return await self.made(request, "create", _job(job))

    async def show(self, request: web.Request) -> web.StreamResponse:
        """Look at a job."""
        job = self._find(request)
        if job is None:
            return await self.refuse(request, 404, "No batch found with this id.")
        mishap = await self.look(request, job)
        if mishap is not None:
            return mishap
        return await self.ok(request, _job(job))

    async def list_jobs(self, request: web.Request) -> web.StreamResponse:
        """List jobs, newest first."""
        jobs = [one for one in reversed(self._store.jobs) if one.api == NAME]
        ids = [f"batch_{one.id}" for one in jobs]
        found, more = page(jobs, ids, request.query.get("after", ""), query_number(request, "limit", 20))
        await self.glance(found)
        return await self.ok(request, _list([_job(one) for one in found], more=more))

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        """Ask a job to end."""
        job = self._find(request)
        if job is None:
            return await self.refuse(request, 404, "No batch found with this id.")
        if job.state in ENDED:
            return await self.refuse(request, 409, f"Cannot cancel a batch with status '{job.state}'.")
        return await self.ok(request, _job(self._store.cancel(job)))

    def _find(self, request: web.Request) -> StoredJob | None:
        return self._store.job(request.match_info["id"].removeprefix("batch_"))

    def file_results(self, job: StoredJob) -> None:
        """Put the results of an ended job into its two files; an empty one is not made."""
        if job.state not in ENDED or job.results:
            return
        code = "batch_expired" if job.state == "expired" else "batch_cancelled"
        for kind, good in (("output", True), ("error", False)):
            lines = [_line(one, code) for one in job.done if one.is_good == good]
            if lines:
                file = self._store.add_file("file-", f"{job.id}_{kind}.jsonl", b"".join(lines), "batch_output")
                job.results[kind] = file.id


def read_input(data: bytes, endpoint: str) -> tuple[list[Row], list[Flaw]]:
    """Check an input file as the provider does; every line at fault is named."""
    rows: list[Row] = []
    flaws: list[Flaw] = []
    ids: set[str] = set()
    models: set[Any] = set()
    for number, line in enumerate(data.splitlines(), start=1):
        value = jsonl.parse_object(line)
        if value is None or not isinstance(value.get("body"), dict):
            flaws.append(Flaw("invalid_json_line", "This line is not parseable as valid JSON.", number))
            continue
        custom_id = str(value.get("custom_id"))
        models.add(value["body"].get("model"))
        if custom_id in ids:
            flaws.append(Flaw("duplicate_custom_id", f"'{custom_id}' is there twice.", number, "custom_id"))
        if value.get("url") != endpoint or value.get("method") != "POST":
            flaws.append(Flaw("url_mismatch", f"The url is not the batch's endpoint {endpoint}.", number, "url"))
        if len(models) > 1:
            flaws.append(Flaw("model_mismatch", "All lines must name one model.", number, "body.model"))
        ids.add(custom_id)
        rows.append(Row(custom_id, jsonl.dumps(value["body"])))
    if not rows and not flaws:
        flaws.append(Flaw("empty_file", "The input file is empty."))
    if len(rows) > _MAX_LINES:
        flaws.append(Flaw("too_many_tasks", f"More than {_MAX_LINES} lines."))
    return rows, flaws


def _list(items: list[dict[str, Any]], *, more: bool) -> dict[str, Any]:
    ids = [one["id"] for one in items] or [None]
    return {"object": "list", "data": items, "first_id": ids[0], "last_id": ids[-1], "has_more": more}


def _file(file: StoredFile) -> dict[str, Any]:
    return {
        "id": file.id,
        "object": "file",
        "bytes": len(file.data),
        "created_at": int(file.created_at),
        "expires_at": int(file.created_at) + 30 * DAY_S,
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
    }


def _job(job: StoredJob) -> dict[str, Any]:
    at = int(job.created_at)
    error = [{"code": f.code, "message": f.message, "line": f.line, "param": f.param} for f in job.flaws]
    is_failed = job.state == "failed"
    return {
        "id": f"batch_{job.id}",
        "object": "batch",
        "endpoint": job.marks["endpoint"],
        "model": None,
        "errors": {"object": "list", "data": error} if is_failed else None,
        "input_file_id": job.marks["input"],
        "completion_window": "24h",
        "status": job.state,
        "output_file_id": job.results.get("output"),
        "error_file_id": job.results.get("error"),
        "created_at": at,
        "expires_at": at + DAY_S,
        "request_counts": {
            "total": 0 if job.state == "validating" or is_failed else len(job.rows),
            "completed": job.count(good=True),
            "failed": job.count(good=False),
        },
        "metadata": job.marks["metadata"],
    }


def _line(done: Done, code: str) -> bytes:
    line: dict[str, Any] = {"id": f"batch_req_{done.custom_id}", "custom_id": done.custom_id}
    if done.reply is None:
        line |= {"response": None, "error": {"code": code, "message": "The batch ended before this request was run."}}
    else:
        body = jsonl.Fragment(done.reply.body)
        answer = {"status_code": done.reply.status, "request_id": f"req_{done.custom_id}", "body": body}
        line |= {"response": answer, "error": None}
    return jsonl.dumps(line) + b"\n"
