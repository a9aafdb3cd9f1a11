"""The HTTP around the replies: a server on a free loopback port, in a thread of its own, that stops by itself."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from aiohttp import web

from vlmbatch import jsonl
from vlmbatch.rehearsal.apis import batch_generate, message_batches
from vlmbatch.rehearsal.apis.batch_generate import BatchGenerate
from vlmbatch.rehearsal.apis.files_and_batches import FilesAndBatches
from vlmbatch.rehearsal.apis.message_batches import MessageBatches
from vlmbatch.rehearsal.faults import Faults
from vlmbatch.rehearsal.http import send
from vlmbatch.rehearsal.jobs import Row, Store, StoredJob
from vlmbatch.rehearsal.replies import Replies, Reply
from vlmbatch.rehearsal.wires import CHAT, GENERATE_CONTENT, MESSAGES, PATHS
from vlmbatch.rehearsal.wires.base import NO_CREDIT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vlmbatch.rehearsal.wires.base import Wire

_HOST = "127.0.0.1"
_MAX_BODY_BYTES = 1 << 30
_WORKERS = 2
_VERSION = "anthropic-version"
_WIRES_OF_APIS = {message_batches.NAME: MESSAGES, batch_generate.NAME: GENERATE_CONTENT}


class Server:
    """A running rehearsal provider.

    Attributes:
        base_url: ``http://127.0.0.1:PORT``, without a path.
        requests: Requests for an answer so far, whatever became of them.
        bodies: How often each request body came, by its SHA-256.
        statuses: How often each HTTP status was answered to them (0 = the connection was broken).
        store: Files and batch jobs; ``store.jobs`` holds every job that was ever made.
    """

    def __init__(self, faults: Faults, models: Sequence[str]) -> None:
        self.base_url = ""
        self.requests = 0
        self.bodies: Counter[str] = Counter()
        self.statuses: Counter[int] = Counter()
        self._faults = faults
        self._models = tuple(models)
        self.store = Store(faults, self._answer_row)
        self._replies = Replies(faults, self._models, self.store.file_bytes)
        self._open = 0
        self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="rehearsal")

    def app(self) -> web.Application:
        """Return the routes."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.add_routes([web.get("/health", _health), web.get("/rehearsal", self._counts)])
        app.add_routes([web.get("/v1/models", self._list_models), web.get("/v1beta/models", self._list_models)])
        for path in PATHS:
            app.router.add_post(path, self._generate)
        for version in ("v1", "v1beta"):
            app.router.add_post(f"/{version}/models/{{model}}:generateContent", self._generate)
        self._add_batch_apis(app)
        return app

    def _add_batch_apis(self, app: web.Application) -> None:
        batches = FilesAndBatches(self.store, self._replies, self._faults, CHAT)
        messages = MessageBatches(self.store, self._replies, self._faults, MESSAGES)
        generate = BatchGenerate(self.store, self._replies, self._faults, GENERATE_CONTENT)
        for api in (batches, messages, generate):
            app.add_routes(api.routes())

        # Two APIs have files under one path: the version header tells which of them is meant.
        async def upload(request: web.Request) -> web.StreamResponse:
            return await (messages if _VERSION in request.headers else batches).upload(request)

        async def list_files(request: web.Request) -> web.StreamResponse:
            return await (messages if _VERSION in request.headers else batches).list_files(request)

        app.add_routes([web.post("/v1/files", upload), web.get("/v1/files", list_files)])

    def _answer_row(self, job: StoredJob, row: Row, digest: str) -> Reply:
        """Answer one row of a batch job as a realtime request is answered; what breaks a connection there is a 500."""
        wire = _WIRES_OF_APIS.get(job.api) or PATHS[job.marks["endpoint"]]
        reply = self._replies.reply(wire, job.model, row.body, digest, 0)
        is_answer = reply.status and reply.content_type == "application/json"
        return reply if is_answer else self._replies.error(wire, 500)

    def close(self) -> None:
        """Let the worker threads end."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        wire = PATHS.get(request.path, GENERATE_CONTENT)
        body = await request.read()
        digest = jsonl.sha256(body)
        number = self.bodies[digest]
        self.bodies[digest] += 1
        self.requests += 1
        self._open += 1
        try:
            await asyncio.sleep(self._faults.latency(digest, number))
            reply = self._crowded(wire)
            if reply is None:
                model = request.match_info.get("model", "")
                reply = await asyncio.get_running_loop().run_in_executor(
                    self._pool, self._replies.reply, wire, model, body, digest, number
                )
            self.statuses[reply.status] += 1
            return await send(request, reply)
        finally:
            self._open -= 1

    def _crowded(self, wire: Wire) -> Reply | None:
        """Return the refusal that holds whatever the request is, None where there is none."""
        faults = self._faults
        if faults.quota_after is not None and self.requests > faults.quota_after:
            return self._replies.error(wire, 429, "You exceeded your current quota.", code=NO_CREDIT)
        if faults.max_in_flight is not None and self._open > faults.max_in_flight:
            return self._replies.error(wire, 429)
        return None

    async def _list_models(self, request: web.Request) -> web.StreamResponse:
        if not self._models:
            wire = MESSAGES if "x-api-key" in request.headers else CHAT
            return await send(request, self._replies.error(wire, 404, "This rehearsal keeps no list of models."))
        if request.path.startswith("/v1beta") or "x-goog-api-key" in request.headers:
            return web.json_response({"models": [{"name": f"models/{name}"} for name in self._models]})
        if "x-api-key" in request.headers:
            made = {"type": "model", "created_at": "2026-01-01T00:00:00Z"}
            models = [{"id": name, "display_name": name, **made} for name in self._models]
            ends = {"first_id": self._models[0], "last_id": self._models[-1]}
            return web.json_response({"data": models, "has_more": False, **ends})
        owned = {"object": "model", "created": 0, "owned_by": "rehearsal"}
        return web.json_response({"object": "list", "data": [{"id": name, **owned} for name in self._models]})

    async def _counts(self, _: web.Request) -> web.StreamResponse:
        """Return the counters, for tests in another process."""
        return web.json_response({"requests": self.requests, "statuses": self.statuses, "jobs": self.store.describe()})


async def _health(_: web.Request) -> web.StreamResponse:
    return web.json_response({})


@contextlib.contextmanager
def serve(faults: Faults | None = None, *, models: Sequence[str] = (), port: int = 0) -> Iterator[Server]:
    """Run a rehearsal provider on 127.0.0.1 for as long as the block lasts.

    Args:
        faults: How to misbehave; None = not at all.
        models: The models there are, for the model list; others are answered with 404. None = every model is served
            and there is no list.
        port: 0 = a free one.

    Yields:
        The server, listening.

    Raises:
        OSError: The port is taken.
    """
    server = Server(faults or Faults(), models)
    with socket.create_server((_HOST, port), backlog=512) as sock:
        server.base_url = f"http://{_HOST}:{sock.getsockname()[1]}"
        loop = asyncio.new_event_loop()
        stop = asyncio.Event()
        ready = threading.Event()
        thread = threading.Thread(
            target=_run, args=(loop, server, sock, ready, stop), name="rehearsal-server", daemon=True
        )
        thread.start()
        ready.wait()
        try:
            yield server
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()
            server.close()


def _run(
    loop: asyncio.AbstractEventLoop, server: Server, sock: socket.socket, ready: threading.Event, stop: asyncio.Event
) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(_listen(server, sock, ready, stop))
    finally:
        ready.set()
        left = asyncio.all_tasks(loop)  # requests whose client has gone: the loop would complain of each
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()


async def _listen(server: Server, sock: socket.socket, ready: threading.Event, stop: asyncio.Event) -> None:
    runner = web.AppRunner(server.app(), access_log=None, handle_signals=False, shutdown_timeout=0.2)
    await runner.setup()
    try:
        await web.SockSite(runner, sock, backlog=512).start()
        ready.set()
        await stop.wait()
    finally:
        await runner.cleanup()
