"""What the batch APIs of the rehearsal provider have in common: how they answer, and their planned mishaps."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from vlmbatch import jsonl
from vlmbatch.rehearsal.http import send
from vlmbatch.rehearsal.replies import Reply

if TYPE_CHECKING:
    from aiohttp import web

    from vlmbatch.rehearsal.faults import Faults
    from vlmbatch.rehearsal.jobs import Store, StoredJob
    from vlmbatch.rehearsal.replies import Replies
    from vlmbatch.rehearsal.wires.base import Wire

DAY_S = 86_400
JSON_LINES = "application/jsonl"


class Api:
    """Base of the batch APIs.

    Args:
        store: Where files and jobs are kept.
        replies: Words errors.
        faults: What goes wrong.
        wire: The format of its errors.
    """

    def __init__(self, store: Store, replies: Replies, faults: Faults, wire: Wire) -> None:
        self._store = store
        self._replies = replies
        self._faults = faults.batch
        self._wire = wire
        self._left = {"full": self._faults.full_creates, "create": self._faults.lost_creates}
        self._left["upload"] = self._faults.lost_uploads
        self._look_statuses = list(self._faults.look_statuses)

    async def ok(self, request: web.Request, value: Any, headers: dict[str, str] | None = None) -> web.StreamResponse:
        """Answer with JSON."""
        return await send(request, Reply(200, jsonl.dumps(value), headers or {}))

    async def refuse(self, request: web.Request, status: int, message: str) -> web.StreamResponse:
        """Answer with an error in this API's words."""
        return await send(request, self._replies.error(self._wire, status, message))

    async def made(self, request: web.Request, what: str, value: Any) -> web.StreamResponse:
        """Answer that something was made; or, as often as the faults ask for it, break the connection instead."""
        if self._take(what):
            return await send(request, Reply(0, jsonl.dumps(value)))
        return await self.ok(request, value)

    async def refused_upload(self, request: web.Request) -> web.StreamResponse | None:
        """Answer an upload that the faults want refused, None where they do not."""
        status = self._faults.upload_status
        return None if status is None else await self.refuse(request, status, "The file is too large (rehearsal).")

    async def refused_create(self, request: web.Request) -> web.StreamResponse | None:
        """Answer a create that the faults want refused because the queue is full, None where they do not."""
        return await self.refuse(request, 429, "The queue is full (rehearsal).") if self._take("full") else None

    async def look(self, request: web.Request, job: StoredJob) -> web.StreamResponse | None:
        """Look at a job, which moves it on; answer with the mishap that the faults plan, None where none is due."""
        if self._look_statuses:
            status = self._look_statuses.pop(0)
            return (
                await send(request, Reply(0, b"{}")) if not status else await self.refuse(request, status, "Planned.")
            )
        await self.glance([job])
        return None

    async def glance(self, jobs: list[StoredJob]) -> None:
        """Look at jobs as a list does: that moves them on too."""
        for job in jobs:
            await asyncio.get_running_loop().run_in_executor(None, self._store.look, job)
            self.file_results(job)

    def file_results(self, job: StoredJob) -> None:
        """Put the results of an ended job into files, where this API has such."""

    def _take(self, what: str) -> bool:
        self._left[what] -= 1
        return self._left[what] >= 0


def query_number(request: web.Request, name: str, default: int) -> int:
    """Return a whole number from the query, ``default`` where there is none."""
    text = request.query.get(name, "")
    return int(text) if text.isdigit() else default


def stamp(seconds: float) -> str:
    """Return a time in seconds since 1970 as RFC 3339 text in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def page(items: list[Any], ids: list[str], after: str, limit: int) -> tuple[list[Any], bool]:
    """Return the items behind one id (all where it is empty or unknown), at most ``limit``, and whether more follow."""
    start = ids.index(after) + 1 if after in ids else 0
    return items[start : start + limit], len(items) > start + limit
