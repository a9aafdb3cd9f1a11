"""A server on loopback that misbehaves by script: the behaviours of tests/data/behaviours, and a few more.

A script's ``steps`` apply to the tries of each row in turn, the last one repeats. The server runs in a thread, counts
what it sees, and stops with its ``with`` block.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import re
import socket
import struct
import threading
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

BEHAVIOURS = Path(__file__).parent / "data" / "behaviours" / "behaviours.json"
_ROW = re.compile(rb"row (\d{7})")
_RESET = struct.pack("ii", 1, 0)


def behaviour(name: str) -> dict[str, Any]:
    """Return one behaviour by its id."""
    return next(entry for entry in behaviours() if entry["id"] == name)


def behaviours() -> list[dict[str, Any]]:
    """Return all behaviours."""
    return json.loads(BEHAVIOURS.read_text(encoding="utf-8"))


def completion(row: int, *, text: str | None = None, finish_reason: str = "stop", **message: Any) -> dict[str, Any]:
    """Return a good chat completion that names its row."""
    return {
        "id": f"chatcmpl-{row}",
        "object": "chat.completion",
        "created": 1,
        "model": "test-vlm-1",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": f"answer {row}" if text is None else text, **message},
                "finish_reason": finish_reason,
            }
        ],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    }


@dataclass
class Seen:
    """One request as the server saw it."""

    method: str
    path: str
    headers: dict[str, str]
    row: int
    bytes: int


@dataclass
class FaultServer:
    """The server's script and what it has seen.

    Attributes:
        script: As in behaviours.json.
        port: Where it listens.
        seen: Requests for an answer (POST), in order of arrival.
        looked: Requests of another kind (GET).
        tries: How often each row came.
        answered: How often each row was answered with 200.
        peak: Most requests open at once.
        models: Names for the model list, None = 404.
        is_held: Whether whatever has come waits for its answer until a test lets go of it.
    """

    script: dict[str, Any]
    models: list[str] | None = None
    port: int = 0
    seen: list[Seen] = field(default_factory=list)
    looked: list[Seen] = field(default_factory=list)
    tries: Counter[int] = field(default_factory=Counter)
    answered: Counter[int] = field(default_factory=Counter)
    peak: int = 0
    is_dead: bool = False
    is_held: bool = False
    _open: int = 0
    _marks: dict[str, str] = field(default_factory=dict)

    @property
    def base_url(self) -> str:
        """The base URL to send to."""
        return f"http://127.0.0.1:{self.port}/v1"

    def step_for(self, row: int, number: int) -> dict[str, Any]:
        """Return what happens to a row's ``number``-th try, from 0."""
        script = self.script
        if "only_row" in script and row != script["only_row"]:
            return script["others"]
        if "after_rows" in script and "before" in script:
            return script["before"] if len(self.seen) <= script["after_rows"] else script["then"]
        if "limit_concurrent" in script:
            return script["over"] if self._open > script["limit_concurrent"] else script["under"]
        steps = script.get("steps") or [{"status": 200, "body": "ok"}]
        return steps[min(number, len(steps) - 1)]

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it or the script ends it."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while await self._one(reader, writer):
                pass
        writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readexactly(1)
        if head == b"\x16":  # the first byte of a TLS handshake
            await _answer(writer, 400, b"plain HTTP is spoken here")
            return False
        head += await reader.readuntil(b"\r\n\r\n")
        first, *rest = head.decode("latin-1").rstrip().split("\r\n")
        method, path, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        match = _ROW.search(body)
        row = int(match.group(1)) if match else -1
        seen = Seen(method, path, headers, row, len(body))
        if method != "POST":
            self.looked.append(seen)
            return await self._look(path, writer)
        self.seen.append(seen)
        number = self.tries[row]
        self.tries[row] += 1
        self._open += 1
        self.peak = max(self.peak, self._open)
        try:
            return await self._play(self.step_for(row, number), row, writer)
        finally:
            self._open -= 1

    async def _while_held(self) -> None:
        while self.is_held:  # noqa: ASYNC110  (another thread lets go of it)
            await asyncio.sleep(0.005)

    async def _look(self, path: str, writer: asyncio.StreamWriter) -> bool:
        await self._while_held()
        if path.endswith("/models") and self.models is not None:
            value = {"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]}
            return await _answer(writer, 200, json.dumps(value).encode())
        if path == "/version" and "version" in self.script:
            return await _answer(writer, 200, json.dumps({"version": self.script["version"]}).encode())
        return await _answer(writer, 404, b'{"detail":"Not Found"}')

    async def _play(self, step: dict[str, Any], row: int, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(step.get("delay_s", 0))
        await self._while_held()
        if "fault" in step:
            await _misbehave(step, row, writer)
            return False
        body = step.get("body_text", "").encode()
        if step.get("body") == "ok":
            body = json.dumps(completion(row)).encode()
        elif "body" in step:
            body = json.dumps(step["body"]).encode()
        headers = {name: self._fill(value) for name, value in step.get("headers", {}).items()}
        if step.get("encode") == "gzip":
            body, headers = gzip.compress(body), {**headers, "content-encoding": "gzip"}
        status = step.get("status", 200)
        self.answered[row] += status == 200
        await _answer(writer, status, body, headers)
        if sum(self.answered.values()) >= self.script.get("die_after_rows", 1 << 60):
            self.is_dead = True
        return not self.is_dead

    def _fill(self, value: str) -> str:
        """Fill in the marks of a script: times, ports."""
        ahead = re.fullmatch(r"@NOW\+(\d+)@", value)
        if ahead:
            return format_datetime(datetime.now(UTC) + timedelta(seconds=int(ahead.group(1))), usegmt=True)
        for mark, text in self._marks.items():
            value = value.replace(mark, text)
        return value

    def fill(self, mark: str, text: str) -> None:
        """Say what a mark stands for."""
        self._marks[mark] = text


async def _answer(
    writer: asyncio.StreamWriter, status: int, body: bytes, headers: dict[str, str] | None = None
) -> bool:
    lines = [f"HTTP/1.1 {status} Scripted", f"content-length: {len(body)}"]
    given = {"content-type": "application/json", **(headers or {})}
    lines += [f"{name}: {value}" for name, value in given.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
    await writer.drain()
    return True


async def _misbehave(step: dict[str, Any], row: int, writer: asyncio.StreamWriter) -> None:
    """Break off in one of the ways that networks and servers do."""
    whole = json.dumps(completion(row)).encode()
    kind = step["fault"]
    if kind == "hang":
        await asyncio.sleep(30)
    elif kind == "drip":
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n{")
        for _ in range(2000):
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(1 / step.get("bytes_per_s", 2))
    elif kind == "short_body":
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % step["declared"]
        )
        writer.write(whole.ljust(step["sent"])[: step["sent"]])
        await writer.drain()
    elif kind == "chunked_no_end":
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write(b"%x\r\n%s\r\n" % (len(whole), whole))
        await writer.drain()
    elif kind == "reset":
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(whole))
        writer.write(whole[: step.get("after_bytes", 0)])
        await writer.drain()
        await asyncio.sleep(0.02)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        writer.transport.abort()
    elif kind == "not_http":
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        await writer.drain()
    elif kind != "close":
        raise AssertionError(f"no fault is called {kind!r}")


@contextlib.contextmanager
def silent_port() -> Iterator[int]:
    """Hold a port on which nothing listens: one that is merely free is given to the next who asks."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@contextlib.contextmanager
def faulty(
    script: dict[str, Any] | None = None, *, models: list[str] | None = None, host: str = "127.0.0.1", port: int = 0
) -> Iterator[FaultServer]:
    """Run a server by a script for as long as the block lasts."""
    server = FaultServer(script or {}, models=models)
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    stop = asyncio.Event()
    thread = threading.Thread(target=_serve, args=(loop, server, host, port, ready, stop), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def _serve(
    loop: asyncio.AbstractEventLoop,
    server: FaultServer,
    host: str,
    port: int,
    ready: threading.Event,
    stop: asyncio.Event,
) -> None:
    async def main() -> None:
        tasks: set[asyncio.Task[None]] = set()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            try:
                await server.handle(reader, writer)
            finally:
                tasks.discard(task)

        listener = await asyncio.start_server(connected, host, port, backlog=2048)
        server.port = listener.sockets[0].getsockname()[1]
        ready.set()
        while not stop.is_set() and not server.is_dead:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), 0.005)
        listener.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await stop.wait()

    asyncio.set_event_loop(loop)
    loop.run_until_complete(main())
    asyncio.set_event_loop(None)
