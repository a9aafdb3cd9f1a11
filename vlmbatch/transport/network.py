"""The network under httpx: connections that are kept, made by name, TLS and proxy, and no other cleverness.

httpx's own pool costs time quadratic in the number of connections, and what httpx's client does around it (redirects,
cookies, sign-in flows, hooks) this program must not do; so requests go to this transport directly. It is one that any
``httpx.AsyncClient`` takes. Nothing is sent twice: a kept connection that has just died is a failure like any other.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import os
import socket
import ssl
import time
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import aiohappyeyeballs
import httpx

from vlmbatch import descriptors
from vlmbatch.errors import InputError
from vlmbatch.transport.addresses import proxy_by_environment
from vlmbatch.transport.faults import CONNECT_TIMEOUT_S, WORDS, NetworkError, not_connected
from vlmbatch.transport.http1 import Connection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiohappyeyeballs import AddrInfoType

    from vlmbatch.transport.http1 import Reply

_KEPT_S: Final = 60.0
"""A connection that was idle for longer is not used again."""
_ADDRESSES_KEPT_S: Final = 60.0
_SECOND_ADDRESS_AFTER_S: Final = 0.25
_SPARED_DESCRIPTORS: Final = 32
"""Left to files, whatever the connections want: an answer that cannot be written down is paid for nothing."""
_OURS: Final = frozenset({b"content-length", b"transfer-encoding"})
_BODILESS: Final = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})
_PORTS: Final = {"http": 80, "https": 443}


class Body(httpx.AsyncByteStream):
    """A request's body as it stands, and whether anybody can have acted on it."""

    def __init__(self, data: bytes | memoryview) -> None:
        self.data = memoryview(data)
        self.sent = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield bytes(self.data)


class _Way(NamedTuple):
    """Where a connection leads; what it is kept under."""

    scheme: str
    host: str
    port: int
    proxy: httpx.URL | None


class Network(httpx.AsyncBaseTransport):
    """Sends requests over kept connections, as many at once as one likes. It lives inside one event loop.

    Args:
        trust_env: Whether to hear the proxy variables.
    """

    def __init__(self, *, trust_env: bool = True) -> None:
        self._trust_env = trust_env
        self._descriptors = descriptors.limit() - _SPARED_DESCRIPTORS
        self._ways: dict[tuple[str, bytes], _Way] = {}
        self._kept: dict[_Way, list[Connection]] = {}
        self._looked_up: dict[tuple[str, int], tuple[float, asyncio.Task[list[AddrInfoType]]]] = {}

    async def aclose(self) -> None:
        """Close what is kept."""
        for connections in self._kept.values():
            for connection in connections:
                connection.abort()
        self._kept.clear()
        for _, lookup in self._looked_up.values():
            lookup.cancel()
        self._looked_up.clear()
        await asyncio.sleep(0)  # the loop closes sockets in its next round

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; the answer's body is read as it comes.

        Raises:
            NetworkError: No connection, or no answer that begins.
        """
        body = request.stream if isinstance(request.stream, Body) else Body(await request.aread())
        way = self._way(request.url)
        connection = self._take(way) or await self._connect(way)
        try:
            reply = await connection.send(_head(request, way, body.data.nbytes), body.data)
            await reply.head()
        except BaseException:
            connection.abort()
            raise
        finally:
            body.sent = connection.has_asked
        return httpx.Response(reply.status, headers=reply.headers, stream=_Incoming(self, way, connection, reply))

    # --- kept connections ---------------------------------------------------------------------------------------

    def _take(self, way: _Way) -> Connection | None:
        """Return the connection that was used last, and let go of those that are too old."""
        kept = self._kept.get(way, [])
        while kept:
            connection = kept.pop()
            is_fresh = time.monotonic() - connection.idle_since <= _KEPT_S
            if is_fresh and connection.is_open and connection.is_silent:
                return connection
            connection.abort()
        return None

    def keep(self, way: _Way, connection: Connection) -> None:
        """Keep a connection whose exchange has ended, if it may be used again."""
        if not connection.is_open:
            connection.abort()
            return
        connection.idle_since = time.monotonic()
        self._kept.setdefault(way, []).append(connection)

    # --- new connections ----------------------------------------------------------------------------------------

    def _way(self, url: httpx.URL) -> _Way:
        key = (url.scheme, url.netloc)
        if key not in self._ways:
            host, port = _place(url)
            proxy = proxy_by_environment(url) if self._trust_env else None
            self._ways[key] = _Way(url.scheme, host, port, proxy)
        return self._ways[key]

    async def _connect(self, way: _Way) -> Connection:
        """Open the way to a server.

        Raises:
            NetworkError: There is none.
        """
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                if way.proxy is None:
                    return await self._opened(way.scheme, way.host, way.port)
                return await self._through(way.proxy, way)
        except OSError as error:
            raise not_connected(error) from None

    async def _opened(self, scheme: str, host: str, port: int) -> Connection:
        raw = await aiohappyeyeballs.start_connection(
            await self._addresses(host, port), happy_eyeballs_delay=_SECOND_ADDRESS_AFTER_S
        )
        if raw.fileno() >= self._descriptors:
            raw.close()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        _, connection = await asyncio.get_running_loop().create_connection(Connection, sock=raw)
        return await self._secured(connection, host) if scheme == "https" else connection

    async def _secured(self, outer: Connection, host: str) -> Connection:
        """Speak TLS over a connection, with the host that it leads to.

        Not by ``create_connection(ssl=)``, which leaves its socket open when it is cancelled before the handshake.
        """
        inner, loop, transport = Connection(), asyncio.get_running_loop(), None
        inner.connection_made(outer.transport)  # until its own is there, this is what it closes
        try:
            if not outer.transport.is_closing():
                name = host.rstrip(".")  # of a certificate: without the root's dot
                transport = await loop.start_tls(outer.transport, inner, self._trust, server_hostname=name)
        except ConnectionError:
            transport = None
        except BaseException:
            outer.abort()
            raise
        if transport is None or transport.is_closing():
            raise ssl.SSLError(0, "the handshake was broken off")
        inner.connection_made(transport)
        return inner

    async def _through(self, proxy: httpx.URL, way: _Way) -> Connection:
        """Open the way to a proxy, and for https through it."""
        try:
            connection = await self._opened(proxy.scheme, *_place(proxy))
        except OSError as error:
            raise NetworkError("proxy", WORDS[not_connected(error).code]) from None
        if way.scheme == "http":
            return connection
        try:
            return await self._tunnel(connection, way, proxy)
        except BaseException:
            connection.abort()
            raise

    async def _tunnel(self, outer: Connection, way: _Way, proxy: httpx.URL) -> Connection:
        """Ask a proxy for the way to a host, and speak TLS with that host through it."""
        place = f"[{way.host}]:{way.port}" if ":" in way.host else f"{way.host}:{way.port}"
        head = f"CONNECT {place} HTTP/1.1\r\nhost: {place}\r\n".encode() + _signed_in(proxy) + b"\r\n"
        try:
            reply = await outer.send(head, memoryview(b""))
            await reply.head()
        except NetworkError as error:
            raise NetworkError("proxy", str(error)) from None
        if not 200 <= reply.status <= 299:
            raise NetworkError("proxy", f"status {reply.status}")
        return await self._secured(outer, way.host)

    async def _addresses(self, host: str, port: int) -> list[AddrInfoType]:
        """Look a name up, once for all requests of a minute."""
        now = time.monotonic()
        known = self._looked_up.get((host, port))
        if known is None or known[0] < now or (known[1].done() and known[1].exception() is not None):
            known = (now + _ADDRESSES_KEPT_S, asyncio.create_task(_look_up(host, port)))
            known[1].add_done_callback(lambda task: task.cancelled() or task.exception())  # whoever waits may have left
            self._looked_up[host, port] = known
        return await asyncio.shield(known[1])

    @cached_property
    def _trust(self) -> ssl.SSLContext:
        try:
            return httpx.create_ssl_context()
        except OSError as error:
            raise InputError(
                f"the certificates that SSL_CERT_FILE or SSL_CERT_DIR names cannot be read ({error.strerror})",
                hint="name a file of certificates in PEM form, or unset the variable",
            ) from None


class _Incoming(httpx.AsyncByteStream):
    """The body of an answer as it comes; the connection is given back at its end."""

    def __init__(self, network: Network, way: _Way, connection: Connection, reply: Reply) -> None:
        self._network = network
        self._way = way
        self._connection: Connection | None = connection
        self._reply = reply

    async def __aiter__(self) -> AsyncIterator[bytes]:
        reply, connection = self._reply, self._connection
        while connection is not None and (piece := await reply.piece()):
            if not reply.is_full:
                connection.read_on()
            yield piece

    async def aclose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._reply.is_over:
            self._network.keep(self._way, connection)
        else:
            connection.abort()


async def _look_up(host: str, port: int) -> list[AddrInfoType]:
    try:
        return [*await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    except UnicodeError:
        raise socket.gaierror(socket.EAI_NONAME, "no host has such a name") from None


def _place(url: httpx.URL) -> tuple[str, int]:
    return url.raw_host.decode("ascii"), url.port or _PORTS[url.scheme]


def _head(request: httpx.Request, way: _Way, body_bytes: int) -> bytes:
    """Return a request's first lines; a host of one's own among the headers stands instead of the URL's."""
    url, headers = request.url, request.headers.raw
    is_through = way.proxy is not None and way.scheme == "http"
    target = b"%b://%b%b" % (url.raw_scheme, url.netloc, url.raw_path) if is_through else url.raw_path
    lines = [b"%b %b HTTP/1.1" % (request.method.encode(), target)]
    if "host" not in request.headers:
        lines.append(b"host: " + url.netloc)
    lines += [b"%b: %b" % header for header in headers if header[0].lower() not in _OURS]
    if body_bytes or request.method not in _BODILESS:
        lines.append(b"content-length: %d" % body_bytes)
    if is_through and way.proxy is not None:
        return b"\r\n".join(lines) + b"\r\n" + _signed_in(way.proxy) + b"\r\n"
    return b"\r\n".join([*lines, b"", b""])


def _signed_in(proxy: httpx.URL) -> bytes:
    if not proxy.userinfo:
        return b""
    return b"proxy-authorization: Basic " + base64.b64encode(f"{proxy.username}:{proxy.password}".encode()) + b"\r\n"
