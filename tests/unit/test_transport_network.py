"""Connections against the world: ends of every kind, clients that give up, TLS, names, and too few descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import resource
import select
import socket
import struct
from typing import TYPE_CHECKING, Any

import pytest

from tests.tls import CERTIFICATE, over_tls, raw_server, server_context
from tests.unit.test_transport import HEADERS, send
from tests.unit.test_transport_http1 import CHUNKED, OK, ask, serving
from vlmbatch.errors import InputError
from vlmbatch.transport import Answer, Transport, http1, network
from vlmbatch.transport.faults import NetworkError
from vlmbatch.transport.network import Network

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from vlmbatch.transport.http1 import Connection

HEAD = b"POST /v1 HTTP/1.1\r\nhost: h\r\ncontent-length: 5000000\r\n\r\n"
TOO_LARGE = b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nbig"
LONG = bytes(5_000_000)


def reset(connection: socket.socket) -> None:
    """End a connection by a reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def answering(*answers: bytes) -> Callable[[socket.socket], None]:
    """Return a handler that answers as many requests as there are answers, and waits for the end."""

    def handle(connection: socket.socket) -> None:
        for answer in answers:
            connection.recv(65536)
            connection.sendall(answer)
        connection.recv(65536)

    return handle


async def connected(scheme: str, port: int) -> Connection:
    """Return a connection of its own to a port."""
    host = "localhost" if scheme == "https" else "127.0.0.1"
    return await Network(trust_env=False)._opened(scheme, host, port)


@pytest.fixture
def _trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))


# --- whose answer it is -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["closes", "resets", "speaks"])
def test_connection_with_something_unread_is_left(ending: str) -> None:
    """An end, or an answer that nobody asked for, may lie in the socket before the event loop has seen it."""

    def first(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(OK)
        may_go_on.recv(1)
        if ending == "speaks":
            connection.sendall(b"HTTP/1.1 408 Idle\r\ncontent-length: 5\r\n\r\nWRONG")
            connection.recv(65536)
        elif ending == "resets":
            reset(connection)

    async def main(port: int) -> Answer:
        async with Transport() as wire:
            url = f"http://127.0.0.1:{port}/v1"
            await ask(wire, url)
            [[kept]] = wire._network._kept.values()
            go_on.send(b"!")
            assert select.select([kept.transport.get_extra_info("socket").fileno()], [], [], 10)[0]  # the loop stands
            assert kept.is_open
            return await ask(wire, url)

    go_on, may_go_on = socket.socketpair()
    with go_on, may_go_on, raw_server(first, answering(OK)) as port:
        answer = asyncio.run(main(port))
    assert (answer.status_code, answer.body) == (200, b"{}")


def test_connection_whose_request_has_not_left_yet_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that overtakes its request leaves a connection on which nobody knows what the server reads next."""
    monkeypatch.setattr(http1, "_PIECE", len(LONG) * 10)
    gone = asyncio.Event()

    async def hasty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(OK)
        await gone.wait()

    async def main() -> tuple[Answer, int]:
        async with serving(hasty) as url, Transport() as wire:
            answer = await ask(wire, url, LONG * 10)
            kept = sum(map(len, wire._network._kept.values()))
            gone.set()
            return answer, kept

    answer, kept = asyncio.run(main())
    assert (answer.body, kept) == (b"{}", 0)


@pytest.mark.parametrize("size", [0, 300_000], ids=["small", "large"])
@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.usefixtures("_trusted")
def test_cancelled_at_any_step_nothing_is_left_behind(scheme: str, size: int) -> None:
    """Wherever a request is given up, the next one gets its own answer, and no connection and no task stays open."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            said = (await reader.readexactly(length))[:11]
            for piece in (CHUNKED, b"b\r\n", said, b"\r\n0\r\n", b"\r\n"):
                writer.write(piece)
                await asyncio.sleep(0)

    async def cancelled_after(steps: int, wire: Transport, url: str, body: bytes) -> bool:
        task = asyncio.create_task(ask(wire, url, body))
        for _ in range(steps):
            await asyncio.sleep(0)
        is_done = task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return is_done

    async def main() -> None:
        options = {"ssl": server_context()} if scheme == "https" else {}
        async with serving(echo, **options) as url, Transport() as wire:
            place = url.replace("http://127.0.0.1", f"{scheme}://localhost")
            for is_kept, steps in itertools.product([False, True], range(0, 400, 1 if scheme == "http" else 3)):
                if not is_kept:
                    await wire._network.aclose()
                is_done = await cancelled_after(steps, wire, place, b"row %07d" % steps + bytes(size))
                answer = await ask(wire, place, b"own %07d" % steps + bytes(size))
                assert answer.body == b"own %07d" % steps
                if is_done and is_kept:
                    break
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


# --- what was sent ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_reset", [True, False], ids=["reset", "deadline"])
def test_request_that_was_being_answered_counts_as_sent(*, is_reset: bool) -> None:
    """Who begins an answer may bill it, though half the request has never left."""

    def begin(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(OK[:-1])
        if is_reset:
            reset(connection)
        else:
            may_end.recv(1)

    end, may_end = socket.socketpair()
    with end, may_end, raw_server(begin) as port:
        answer = send(f"http://127.0.0.1:{port}/v1", body=LONG * 10, timeout_s=5 if is_reset else 0.3)
        end.send(b"!")
    assert (answer.status_code, answer.sent) == (None, True)


def test_connection_that_has_gone_is_not_written_to() -> None:
    """Nothing waits for an answer on it, and nothing was sent."""

    async def main(port: int) -> None:
        connection = await connected("http", port)
        connection.abort()
        await asyncio.sleep(0)
        with pytest.raises(NetworkError) as caught:
            await connection.send(HEAD, memoryview(b""))
        assert (caught.value.code, connection.has_asked) == ("closed", False)

    with raw_server(answering()) as port:
        asyncio.run(main(port))


def test_refusal_before_a_reset_is_heard() -> None:
    """Who refuses a long body and closes resets what it has not read (RFC 9112, 9.6); why, it had said before."""

    async def main() -> tuple[int, bytes]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            connection = await connected("http", listener.getsockname()[1])
            far, _ = listener.accept()
            far.sendall(TOO_LARGE)
            reset(far)
            reply = await connection.send(HEAD, memoryview(LONG))
            await reply.head()
            connection.abort()
            return reply.status, await reply.piece()

    assert asyncio.run(main()) == (413, b"big")


@pytest.mark.usefixtures("_trusted")
def test_reset_under_tls_is_named_and_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The event loop complains where one goes on writing to what is no more."""

    async def main(port: int) -> Connection:
        connection = await connected("https", port)
        go_on.send(b"!")
        assert select.select([connection.transport.get_extra_info("socket").fileno()], [], [], 10)[0]
        with pytest.raises(NetworkError):
            await (await connection.send(HEAD, memoryview(LONG))).head()
        await asyncio.sleep(0)
        return connection

    def handle(connection: socket.socket) -> None:
        may_go_on.recv(1)
        reset(connection)

    go_on, may_go_on = socket.socketpair()
    with go_on, may_go_on, raw_server(over_tls(handle)) as port:
        assert not asyncio.run(main(port)).is_open
    assert caplog.records == []


# --- TLS --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_said", [True, False], ids=["farewell", "cut"])
@pytest.mark.usefixtures("_trusted")
def test_end_of_connection_under_tls_needs_a_farewell(*, is_said: bool) -> None:
    """Anybody on the way can cut a connection; an answer that ends with it is whole where the server itself says so."""

    def handle(connection: Any) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + LONG)
        if is_said:
            connection.unwrap()
        else:
            socket.socket(fileno=connection.detach()).close()

    with raw_server(over_tls(handle)) as port:
        answer = send(f"https://localhost:{port}/v1")
    assert (answer.code, answer.body == LONG) == ((None, True) if is_said else ("short_body", False))


@pytest.mark.parametrize("is_reset", [True, False], ids=["reset", "close"])
def test_handshake_that_is_broken_off_is_a_tls_error(*, is_reset: bool) -> None:
    """Whatever ends it; nothing was sent."""

    def handle(connection: socket.socket) -> None:
        connection.recv(65536)
        if is_reset:
            reset(connection)

    with raw_server(handle) as port:
        answer = send(f"https://127.0.0.1:{port}/v1")
    assert (answer.code, answer.sent) == ("tls", False)
    assert "handshake" in answer.message


@pytest.mark.usefixtures("_trusted")
def test_name_with_the_dot_of_the_root_has_the_certificate_of_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate, and the name asked for in the handshake, have no such dot (RFC 6066, 3)."""
    place = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
    with raw_server(over_tls(answering(OK))) as port:
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(*place, ("127.0.0.1", port))])
        assert send(f"https://localhost.:{port}/v1").status_code == 200


@pytest.mark.parametrize("content", [None, "no certificate"], ids=["not there", "not PEM"])
def test_certificate_file_that_cannot_be_read_is_wrong_usage(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said once, not as a failure of every row, and no socket stays open."""
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    with raw_server(answering()) as port, pytest.raises(InputError, match="SSL_CERT_FILE"):
        send(f"https://127.0.0.1:{port}/v1")


# --- names and descriptors --------------------------------------------------------------------------------------


def test_name_whose_addresses_fail_each_in_its_way_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """As localhost where there is no IPv6 and no server: both addresses are told with their faults."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    found = [(socket.AF_INET, socket.SOCK_STREAM, proto, "", ("127.0.0.1", port)) for proto in (17, 6)]  # 17 is UDP
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    answer = send(f"http://two.invalid:{port}/v1")
    assert (answer.code, answer.sent) == ("unreachable", False)
    assert "Protocol not supported" in answer.message
    assert "127.0.0.1" in answer.message


def test_lookup_that_hangs_ends_with_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for it any more, and no task is left over."""

    async def main() -> tuple[Answer, int]:
        never = asyncio.Event()
        monkeypatch.setattr(network, "_look_up", lambda *_: never.wait())
        async with Transport() as wire:
            answer = await wire.send("GET", "http://slow.invalid/", headers=HEADERS, timeout_s=0.05)
        return answer, len(asyncio.all_tasks())

    answer, tasks = asyncio.run(main())
    assert (answer.code, answer.sent, tasks) == ("timeout", False, 1)


def test_connections_leave_descriptors_to_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that cannot be written down are paid for nothing: so connections fail before files do."""
    most = 32 + len(_open_descriptors()) + 20
    monkeypatch.setattr(resource, "getrlimit", lambda _: (most, most))

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"row 0000000")
            await asyncio.wait_for(all_there.wait(), 10)
            writer.write(OK)

    async def main() -> list[Answer]:
        async with serving(slow) as url, Transport() as wire:
            tasks = [asyncio.create_task(ask(wire, url)) for _ in range(40)]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            all_there.set()
            return await asyncio.gather(*tasks)

    all_there = asyncio.Event()
    answers = asyncio.run(main())
    failed = [answer for answer in answers if answer.status_code is None]
    assert 0 < len(failed) < 40
    assert {(answer.code, answer.sent) for answer in failed} == {("network", False)}
    assert "Too many open files" in failed[0].message


def _open_descriptors() -> list[int]:
    """Return the descriptors below the lowest free one, roughly: what is taken."""
    with socket.socket() as lowest:
        return list(range(lowest.fileno()))
