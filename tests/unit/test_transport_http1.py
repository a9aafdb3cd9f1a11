"""The wire's reading of HTTP: as httpx's own network reads it, and never a cut answer for a whole one."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tls import CERTIFICATE, untrusted_server
from tests.unit.test_transport import HEADERS, KEY, send
from vlmbatch.errors import InputError
from vlmbatch.transport import Answer, Transport, network
from vlmbatch.transport.network import Network

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hypothesis.strategies import DrawFn

    Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Told:
    """An answer as a server puts it on the wire, piece by piece; ``closes``: the connection's end is its end."""

    status: int
    body: bytes
    pieces: list[bytes]
    closes: bool
    is_packed: bool = False


@dataclass
class Heard:
    """What a server saw: connections, and requests with their bodies."""

    connections: int = 0
    requests: list[bytes] = field(default_factory=list)


async def _request(reader: asyncio.StreamReader) -> bytes:
    """Read one request to its end."""
    head = await reader.readuntil(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return head + await reader.readexactly(int(lengths[0].split(b":")[1]) if lengths else 0)


@contextlib.asynccontextmanager
async def serving(serve: Serve, **options: Any) -> Any:
    """Run a server on loopback; yield its URL."""
    handlers: set[asyncio.Task[None]] = set()

    async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(asyncio.current_task())  # type: ignore[arg-type]
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await serve(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(guarded, "127.0.0.1", 0, **options)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        async with asyncio.timeout(20):  # the client has gone: every handler comes to its end
            await asyncio.gather(*handlers)


def telling(*answers: Told, heard: Heard | None = None) -> Serve:
    """Return a server that gives these answers in turn, over however many connections."""
    left = list(answers)
    heard = heard or Heard()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.connections += 1
        while left:
            heard.requests.append(await _request(reader))
            told = left.pop(0)
            for piece in told.pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            if told.closes:
                return
        await reader.read()

    return serve


async def ask(wire: Transport, url: str, body: bytes = b"row 0000000", **options: Any) -> Answer:
    """Post once."""
    return await wire.send("POST", url, headers=HEADERS, body=body, timeout_s=20, **options)


# --- laws ----------------------------------------------------------------------------------------------------


@st.composite
def told(draw: DrawFn, *, is_framed: bool = False) -> Told:
    """Draw an answer: interim heads, framing, compression, chunks, trailers, and where the network splits it."""
    body = draw(st.binary(max_size=400)) * draw(st.integers(1, 40))
    status = draw(st.sampled_from([200, 200, 201, 400, 422, 429, 500, 503]))
    coding = draw(st.sampled_from([None, "gzip"]))
    packed = gzip.compress(body) if coding else body
    framing = draw(st.sampled_from(["length", "chunked"] if is_framed else ["length", "chunked", "close"]))
    lines = [f"HTTP/1.1 {status} Said", "Content-Type: application/json", "x-Request-ID: r1", "x-twice: 1"]
    lines += ["x-Twice: 2"] if draw(st.booleans()) else []
    lines += [f"Content-Encoding: {coding}"] if coding else []
    lines += {"length": [f"Content-Length: {len(packed)}"], "chunked": ["transfer-encoding: chunked"], "close": []}[
        framing
    ]
    interim = draw(st.lists(st.sampled_from(["100 Continue", "103 Early Hints\r\nlink: </a>"]), max_size=2))
    head = "".join(f"HTTP/1.1 {one}\r\n\r\n" for one in interim) + "\r\n".join([*lines, "", ""])
    if framing == "chunked":
        packed = _chunked(packed, draw(st.integers(1, 300)), trailer=draw(st.booleans()))
    stream = head.encode() + packed
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True) if a < b]
    return Told(status, body, pieces, framing == "close", coding is not None)


def _chunked(data: bytes, size: int, *, trailer: bool) -> bytes:
    chunks = [data[start : start + size] for start in range(0, len(data), size)]
    end = b"0\r\nx-sum: 1\r\n\r\n" if trailer else b"0\r\n\r\n"
    return b"".join(b"%x;ext=1\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + end


@given(told=told())
def test_answers_are_read_as_httpx_reads_them(told: Told) -> None:
    """Status, headers and body are those that httpx's own network reads in the same bytes, however they are split."""

    async def main() -> tuple[Answer, httpx.Response]:
        async with serving(telling(told, told)) as url, Transport() as wire:
            ours = await ask(wire, url)
            async with httpx.AsyncClient(trust_env=False) as client:
                return ours, await client.post(url, content=b"row 0000000")

    ours, theirs = asyncio.run(main())
    assert (ours.status_code, ours.body) == (theirs.status_code, theirs.content) == (told.status, told.body)
    assert ours.headers == {**theirs.headers, "x-twice": theirs.headers.get_list("x-twice")[-1]}


@given(told=told(), data=st.data())
def test_cut_answer_is_never_taken_for_a_whole_one(told: Told, data: st.DataObject) -> None:
    """Wherever an answer breaks off, there is none; only where the connection's end is its end, nobody can know."""
    stream = b"".join(told.pieces)
    end = stream.index(b"\r\n\r\n", stream.index(b" Said")) + 4 if told.closes and not told.is_packed else len(stream)
    cut = data.draw(st.integers(0, end - 1))
    broken = Told(told.status, b"", [stream[:cut]] if cut else [], closes=True)

    async def main() -> Answer:
        async with serving(telling(broken)) as url, Transport() as wire:
            return await ask(wire, url)

    answer = asyncio.run(main())
    assert (answer.status_code, answer.body, answer.sent) == (None, b"", True)
    assert answer.code in {"closed", "short_body", "reset"}


@given(answers=st.lists(told(is_framed=True), min_size=2, max_size=5))
def test_one_connection_serves_one_answer_after_the_other(answers: list[Told]) -> None:
    """An answer that ends where it said leaves the connection for the next request, and nothing of it behind."""
    heard = Heard()

    async def main() -> list[Answer]:
        async with serving(telling(*answers, heard=heard)) as url, Transport() as wire:
            return [await ask(wire, url, b"row %07d" % n) for n in range(len(answers))]

    got = asyncio.run(main())
    assert [(one.status_code, one.body) for one in got] == [(one.status, one.body) for one in answers]
    assert heard.connections == 1
    assert [request[-11:] for request in heard.requests] == [b"row %07d" % n for n in range(len(answers))]


# --- connections that must not be used again ------------------------------------------------------------------

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "stream",
    [
        OK + b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nX",
        OK + b"\x00\x01",
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 401 Who?\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 413 Too large\r\ncontent-length: 2\r\n\r\n{}",
    ],
    ids=["a second answer", "garbage", "close", "1.0", "refused unread", "too large to be read"],
)
def test_connection_that_says_too_much_or_ends_is_left(stream: bytes) -> None:
    """What comes behind an answer is never taken for the next one's, nor what a server makes of a body it left."""
    heard = Heard()
    answers = Told(200, b"{}", [stream], closes=False), Told(200, b"{}", [OK], closes=False)

    async def main() -> list[Answer]:
        async with serving(telling(*answers, heard=heard)) as url, Transport() as wire:
            return [await ask(wire, url), await ask(wire, url)]

    assert [answer.body for answer in asyncio.run(main())] == [b"{}", b"{}"]
    assert heard.connections == 2


def test_connection_that_the_server_closed_meanwhile_is_left() -> None:
    """A kept connection that has died costs no request."""
    heard = Heard()
    answers = Told(200, b"{}", [OK], closes=True), Told(200, b"{}", [OK], closes=True)

    async def main() -> Answer:
        async with serving(telling(*answers, heard=heard)) as url, Transport() as wire:
            await ask(wire, url)
            [[kept]] = wire._network._kept.values()
            while kept.is_open:  # noqa: ASYNC110  (rounds of the loop, not time)
                await asyncio.sleep(0)
            return await ask(wire, url)

    assert asyncio.run(main()).status_code == 200
    assert heard.connections == 2


@pytest.mark.parametrize("said", [b"", OK[:20], OK[:-1]], ids=["nothing", "half a head", "half a body"])
def test_connection_of_a_request_that_was_given_up_is_left(said: bytes) -> None:
    """What a slow server says after the deadline is never taken for the next row's answer."""
    heard = Heard()
    is_given_up = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.connections += 1
        await _request(reader)
        if heard.connections == 1:
            writer.write(said)
            await writer.drain()
            await is_given_up.wait()
        writer.write(OK)

    async def main() -> tuple[Answer, Answer]:
        async with serving(slow) as url, Transport() as wire:
            first = await wire.send("POST", url, headers=HEADERS, body=b"", timeout_s=0.5)
            is_given_up.set()
            return first, await ask(wire, url)

    first, second = asyncio.run(main())
    assert (first.code, second.body) == ("timeout", b"{}")
    assert heard.connections == 2


def test_answer_before_the_end_of_a_long_body_is_taken() -> None:
    """A server that refuses by the head alone is heard, though it never reads the rest."""
    gone = asyncio.Event()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nbig")
        await writer.drain()
        await gone.wait()

    async def main() -> tuple[Answer, int]:
        async with serving(refuse) as url, Transport() as wire:
            answer = await ask(wire, url, bytes(64 << 20))
            kept = sum(map(len, wire._network._kept.values()))
            gone.set()
            return answer, kept

    answer, kept = asyncio.run(main())
    assert (answer.status_code, answer.body, kept) == (413, b"big", 0)


# --- odd answers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stream", "code"),
    [
        (b"HTTP/1.1 200 OK\r\n" + b"x-long: %b\r\n" % (b"y" * 1000) * 300, "bad_http"),
        (b"HTTP/1.1 200 OK\r\nx-long: " + bytes([121]) * 600_000, "bad_http"),
        (b"HTTP/1.1 200 " + bytes([121]) * 600_000, "bad_http"),
        (b"HTTP/1.1 102 Wait\r\n\r\n" * 30_000, "bad_http"),
        (CHUNKED + b"1\r\na\r\n0\r\nx-long: " + bytes([121]) * 600_000, "bad_http"),
        (CHUNKED.replace(b"chunked", b"gzip, chunked") + b"2\r\n{}\r\n0\r\n\r\n", "bad_http"),
        (b"HTTP/1.1 200 OK\r\ncontent-encoding: deflate\r\ncontent-length: 2\r\n\r\n{}", "bad_http"),
        (b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n", "bad_http"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}", "bad_http"),
        (b"HTTP/1.1 200 OK\r\ncontent-encoding: br\r\ncontent-length: 2\r\n\r\n{}", "bad_http"),
        (b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\n{}", "bad_http"),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n", "short_body"),
    ],
    ids=[
        *("endless head", "endless header", "endless reason", "endless hints", "endless trailer", "coded on the way"),
        *("raw deflate", "other protocol", "two lengths", "unasked coding", "not gzip", "only a hint"),
    ],
)
def test_answer_that_is_none_is_named(stream: bytes, code: str) -> None:
    """What is not an HTTP answer to this request is an error with a name, and the request counts as sent."""
    answer = _one(stream)
    assert (answer.status_code, answer.code, answer.sent) == (None, code, True)


@pytest.mark.parametrize(
    "stream",
    [
        b"HTTP/1.1 200 OK\ncontent-length: 2\n\n{}",
        b"HTTP/1.1 100 Continue\r\nconnection: close\r\n\r\n" + OK,
        b"HTTP/1.0 100 Continue\r\n\r\n" + OK,
        CHUNKED + b"2 \r\n{}\r\n0\r\n\r\n",
    ],
    ids=["line feeds alone", "interim close", "interim 1.0", "space in a chunk's size"],
)
def test_answer_with_loose_ends_is_read(stream: bytes) -> None:
    """A paid answer is not thrown away for a server's loose ends."""
    answer = _one(stream)
    assert (answer.status_code, answer.body) == (200, b"{}")


def test_empty_answer_that_says_gzip_is_empty() -> None:
    """A refusal without a body keeps its status, whatever a proxy wrote above it."""
    answer = _one(b"HTTP/1.1 503 Busy\r\ncontent-encoding: gzip\r\ncontent-length: 0\r\n\r\n")
    assert (answer.status_code, answer.code, answer.body) == (503, None, b"")


def test_gzip_by_its_old_name_is_gzip() -> None:
    """As RFC 9110, 8.4.1.3 has it."""
    packed = gzip.compress(b"one")
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: x-gzip\r\ncontent-length: %d\r\n\r\n" % len(packed)
    assert _one(head + packed).body == b"one"


def test_key_told_as_a_coding_is_not_repeated() -> None:
    """What a server says goes into a message cut too short for any key."""
    answer = _one(b"HTTP/1.1 200 OK\r\ncontent-encoding: %b\r\ncontent-length: 2\r\n\r\n{}" % KEY[:12].encode())
    assert answer.code == "bad_http"
    assert KEY[:12].lower() not in answer.message.lower()


def test_small_answer_that_unpacks_without_end_is_cut_off() -> None:
    """A few kilobytes cannot fill the memory."""
    packed = gzip.compress(bytes(200 << 20), 1)
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed)
    assert _one(head + packed).code == "too_large"


def test_several_gzip_members_are_one_body() -> None:
    """As gzip has it (RFC 1952, 2.2)."""
    packed = gzip.compress(b"one") + gzip.compress(b"two")
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed)
    assert _one(head + packed).body == b"onetwo"


def test_key_that_is_not_ascii_is_taken_out_of_headers() -> None:
    """A header is read byte by byte; so is the key."""
    key = "sk-schlüssel-012345"
    answer = _one(b"HTTP/1.1 200 OK\r\nx-id: r-%b\r\ncontent-length: 2\r\n\r\n{}" % key.encode(), secret=key)
    assert answer.headers["x-id"] == "r-[key removed]"


def _one(stream: bytes, **options: Any) -> Answer:
    async def main() -> Answer:
        async with serving(telling(Told(200, b"", [stream], closes=True))) as url, Transport(**options) as wire:
            return await ask(wire, url)

    return asyncio.run(main())


# --- requests -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["sk-1\r\nx-evil: 1", "sk-1\n", "sk-1\x00b", "sk-1\udcff"])
def test_header_that_would_end_early_is_refused(value: str) -> None:
    """A key with a line break would write headers of its own; it is not repeated, and nor is one that is no text."""
    with pytest.raises(InputError) as caught:
        asyncio.run(Transport(secret=value * 9).send("GET", "http://127.0.0.1:1/", headers={"x": value}, timeout_s=1))
    assert "sk-1" not in repr(caught.value)
    assert caught.value.__context__ is None


def test_network_serves_any_httpx_client() -> None:
    """It is a transport like any other: bodies made by httpx, streams, hosts of one's own, heads alone."""
    heard = Heard()
    answers = [Told(200, b"{}", [OK], closes=False)] * 3 + [Told(200, b"", [OK[:-2]], closes=False)]

    async def main() -> list[int]:
        async with (
            asyncio.timeout(20),
            serving(telling(*answers, heard=heard)) as url,
            httpx.AsyncClient(transport=Network(trust_env=False)) as client,
        ):
            sent = [
                await client.post(url, json={"a": 1}),
                await client.get(url, headers={"host": "other.example"}),
                await client.post(url, content=_parts()),
                await client.head(url),
            ]
            return [answer.status_code for answer in sent]

    assert asyncio.run(main()) == [200, 200, 200, 200]
    made, asked, streamed, _ = heard.requests
    assert made.endswith(b'\r\n\r\n{"a":1}')
    assert b"\r\nhost: other.example\r\n" in asked.lower()
    assert streamed.endswith(b"\r\n\r\nonetwo")


async def _parts() -> Any:
    yield b"one"
    yield b"two"


def test_reader_that_lags_behind_holds_the_server_up() -> None:
    """A long download waits on the wire, not in the memory."""
    size = 40 << 20

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        for _ in range(size >> 20):
            writer.write(bytes(1 << 20))
            await writer.drain()

    async def main() -> tuple[int, int]:
        async with serving(serve) as url, httpx.AsyncClient(transport=Network(trust_env=False)) as client:
            request = client.build_request("GET", url)
            response = await client._transport.handle_async_request(request)
            reply: Any = response.stream._reply  # type: ignore[union-attr]
            while not reply.is_full:  # noqa: ASYNC110  (rounds of the loop, not time)
                await asyncio.sleep(0)
            for _ in range(200):
                await asyncio.sleep(0)
            waiting = reply._queued
            got = 0
            async for piece in response.aiter_raw():
                got += len(piece)
            return waiting, got

    waiting, got = asyncio.run(main())
    assert waiting < 4 << 20
    assert got == size


# --- names and proxies ----------------------------------------------------------------------------------------


def test_second_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name with an address where nothing listens is still reached."""
    heard = Heard()

    async def main() -> Answer:
        async with serving(telling(Told(200, b"{}", [OK], closes=True), heard=heard)) as url, Transport() as wire:
            port = int(url.split(":")[2].split("/")[0])
            places = [("127.0.0.2", port), ("127.0.0.1", port)]
            found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place) for place in places]
            monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
            return await ask(wire, f"http://two.invalid:{port}/v1")

    assert asyncio.run(main()).status_code == 200


def _tunnel(seen: list[bytes], status: bytes, port: int) -> Serve:
    """Return a proxy that leads to a port of this machine, whatever it is asked for."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 " + status + b"\r\n\r\n")
        if not status.startswith(b"200"):
            return
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                while data := await source.read(65536):
                    sink.write(data)
                    await sink.drain()
            sink.close()

        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    return serve


def _through_proxy(monkeypatch: pytest.MonkeyPatch, status: bytes, port: int) -> tuple[Answer, list[bytes]]:
    seen: list[bytes] = []

    async def main() -> Answer:
        async with serving(_tunnel(seen, status, port)) as url, Transport() as wire:
            proxy = url.removesuffix("/v1").replace("//", "//me:pass@")
            monkeypatch.setattr(network, "proxy_by_environment", lambda *_: httpx.URL(proxy))
            return await ask(wire, f"https://localhost:{port}/v1")

    return asyncio.run(main()), seen


def test_https_goes_through_a_proxy_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy learns host and port and who asks, and neither key nor path; the certificate is the host's own."""
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    with untrusted_server() as port:
        answer, [seen] = _through_proxy(monkeypatch, b"200 Connection established", port)
    assert (answer.status_code, answer.body) == (200, b"{}")
    assert seen.startswith(b"CONNECT localhost:%d HTTP/1.1\r\n" % port)
    assert b"proxy-authorization: Basic bWU6cGFzcw==\r\n" in seen
    assert KEY.encode() not in seen
    assert b"/v1" not in seen


def test_certificate_behind_a_proxy_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy does not make a host trusted."""
    with untrusted_server() as port:
        answer, _ = _through_proxy(monkeypatch, b"200 OK", port)
    assert (answer.code, answer.sent) == ("tls", False)


def test_proxy_that_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a proxy says is its own word, not the host's."""
    answer, _ = _through_proxy(monkeypatch, b"407 Proxy Authentication Required", 1)
    assert (answer.code, answer.sent) == ("proxy", False)
    assert "407" in answer.message


def test_proxy_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead proxy is told apart from a dead host."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
    answer = send("http://outside.example/v1")
    assert (answer.code, answer.sent) == ("proxy", False)
