"""/v1/messages/batches: the Anthropic batch API, and its /v1/files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from aiohttp import web

from vlmbatch import jsonl
from vlmbatch.rehearsal.apis.base import DAY_S, JSON_LINES, Api, page, query_number, stamp
from vlmbatch.rehearsal.http import send
from vlmbatch.rehearsal.jobs import ENDED, Row
from vlmbatch.rehearsal.replies import Reply

if TYPE_CHECKING:
    from vlmbatch.rehearsal.jobs import Done, StoredJob

NAME = "message_batches"
_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MAX_REQUESTS = 100_000


class MessageBatches(Api):
    """One JSON body in, one stream of lines out; nothing of the client's own to find a job by."""

    def routes(self) -> list[web.RouteDef]:
        """Return what this API listens to, apart from /v1/files, which server.py shares out."""
        return [
            web.post("/v1/messages/batches", self.create),
            web.get("/v1/messages/batches", self.list_jobs),
            web.get("/v1/messages/batches/{id}", self.show),
            web.post("/v1/messages/batches/{id}/cancel", self.cancel),
            web.get("/v1/messages/batches/{id}/results", self.results),
        ]

    async def upload(self, request: web.Request) -> web.StreamResponse:
        """Keep a file."""
        refused = await self.refused_upload(request)
        if refused is not None:
            return refused
        field = (await request.post()).get("file")
        if not isinstance(field, web.FileField):
            return await self.refuse(request, 400, "file: Field required")
        file = self._store.add_file("file_", field.filename, field.file.read(), "", field.content_type)
        value = {
            "id": file.id,
            "type": "file",
            "filename": file.name,
            "mime_type": file.media_type,
            "size_bytes": len(file.data),
            "created_at": stamp(file.created_at),
            "downloadable": False,
        }
        return await self.made(request, "upload", value)

    async def list_files(self, request: web.Request) -> web.StreamResponse:
        """List no files: nothing here asks for them."""
        return await self.ok(request, {"data": [], "has_more": False, "first_id": None, "last_id": None})

    async def create(self, request: web.Request) -> web.StreamResponse:
        """Make a job; what is wrong inside ``params`` shows only in the results, as it does there."""
        refused = await self.refused_create(request)
        if refused is not None:
            return refused
        data = await request.read()
        asked = (jsonl.parse_object(data) or {}).get("requests")
        wrong = _wrong(asked)
        if wrong or not isinstance(asked, list):
            return await self.refuse(request, 400, wrong)
        rows = [Row(one["custom_id"], jsonl.dumps(one["params"])) for one in asked]
        return await self.made(request, "create", _job(self._store.add_job(NAME, rows, data=data), request))

    async def show(self, request: web.Request) -> web.StreamResponse:
        """Look at a job."""
        job = self._find(request)
        if job is None:
            return await self.refuse(request, 404, "No such batch.")
        mishap = await self.look(request, job)
        return mishap if mishap is not None else await self.ok(request, _job(job, request))

    async def list_jobs(self, request: web.Request) -> web.StreamResponse:
        """List jobs, newest first."""
        jobs = [one for one in reversed(self._store.jobs) if one.api == NAME]
        ids = [f"msgbatch_{one.id}" for one in jobs]
        found, more = page(jobs, ids, request.query.get("after_id", ""), query_number(request, "limit", 20))
        await self.glance(found)
        values = [_job(one, request) for one in found]
        edge = [one["id"] for one in values] or [None]
        return await self.ok(request, {"data": values, "has_more": more, "first_id": edge[0], "last_id": edge[-1]})

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        """Ask a job to end."""
        job = self._find(request)
        if job is None:
            return await self.refuse(request, 404, "No such batch.")
        if job.state in ENDED:
            return await self.refuse(request, 400, "The batch has ended already.")
        return await self.ok(request, _job(self._store.cancel(job), request))

    async def results(self, request: web.Request) -> web.StreamResponse:
        """Give the lines of an ended job."""
        job = self._find(request)
        if job is None or job.state not in ENDED:
            return await self.refuse(request, 404, "The results are not there (yet).")
        kind = "canceled" if job.state == "cancelled" else "expired"
        return await send(request, Reply(200, b"".join(_line(one, kind) for one in job.done), content_type=JSON_LINES))

    def _find(self, request: web.Request) -> StoredJob | None:
        return self._store.job(request.match_info["id"].removeprefix("msgbatch_"))


def _wrong(requests: object) -> str:
    """Return what is wrong with the outer shape of a create, empty where nothing is."""
    if not isinstance(requests, list) or not requests:
        return "requests: at least one is required"
    if len(requests) > _MAX_REQUESTS:
        return f"requests: at most {_MAX_REQUESTS}"
    ids: set[str] = set()
    for number, one in enumerate(requests):
        if not isinstance(one, dict) or not isinstance(one.get("params"), dict):
            return f"requests.{number}.params: Field required"
        custom_id = one.get("custom_id")
        if not isinstance(custom_id, str) or not _CUSTOM_ID.fullmatch(custom_id):
            return f"requests.{number}.custom_id: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'"
        if custom_id in ids:
            return f"requests.{number}.custom_id: duplicate of an earlier one"
        ids.add(custom_id)
    return ""


def _job(job: StoredJob, request: web.Request) -> dict[str, Any]:
    ended = job.state in ENDED
    made = stamp(job.created_at)
    unrun = sum(one.reply is None for one in job.done)
    counts = {
        "processing": 0 if ended else len(job.rows),
        "succeeded": job.count(good=True),
        "errored": job.count(good=False),
        "canceled": unrun if job.state == "cancelled" else 0,
        "expired": unrun if job.state != "cancelled" else 0,
    }
    url = f"http://{request.host}/v1/messages/batches/msgbatch_{job.id}/results"
    return {
        "id": f"msgbatch_{job.id}",
        "type": "message_batch",
        "processing_status": "ended" if ended else "canceling" if job.state == "cancelling" else "in_progress",
        "request_counts": counts,
        "created_at": made,
        "expires_at": stamp(job.created_at + DAY_S),
        "ended_at": made if ended else None,
        "cancel_initiated_at": made if job.state in {"cancelling", "cancelled"} else None,
        "archived_at": None,
        "results_url": url if ended else None,
    }


def _line(done: Done, unrun: str) -> bytes:
    result: dict[str, Any] = {"type": unrun}
    if done.reply is not None:
        body = jsonl.Fragment(done.reply.body)
        is_good = done.reply.status == 200
        result = {"type": "succeeded", "message": body} if is_good else {"type": "errored", "error": body}
    return jsonl.dumps({"custom_id": done.custom_id, "result": result}) + b"\n"
