"""The wire: one request out, one whole answer (or the name of what went wrong) back. The only room with a client in it.

httpx is the client; the network underneath is aiohttp, through a small transport of ours, because httpx's own pool
costs time quadratic in the number of connections. Nothing here retries, paces or reads an answer. No redirect is
followed, so that a key never reaches a host that the user did not name; proxies (``HTTP_PROXY``, ``HTTPS_PROXY``,
``NO_PROXY``) and ``SSL_CERT_FILE`` are honoured; nothing that is raised or returned holds a header that was sent.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
import urllib.request
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import aiohttp
import httpx
from yarl import URL

from vlmbatch import __version__
from vlmbatch.errors import InputError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from aiohttp.abc import AbstractStreamWriter

    _Sink = Callable[[bytes], object] | None

LIBRARIES: Final = {"httpx": httpx.__version__, "aiohttp": aiohttp.__version__}
"""What carries the requests, for the record."""

CONNECT_TIMEOUT_S: Final = 10.0
MAX_ANSWER_BYTES: Final = 64 << 20
"""Longest answer that is kept in memory; a completion is a few kilobytes."""

NEVER_CONNECTED: Final = frozenset({"dns", "refused", "unreachable", "tls", "connect_timeout", "proxy"})
"""Codes of failures in which no byte of the request left: nothing can have been billed."""

_SECRET_LENGTH: Final = 12
"""Shorter keys are placeholders (``EMPTY``, ``none``) that may stand in an honest answer."""
_REMOVED: Final = b"[key removed]"
_PIECE: Final = 256 << 10
_WORDS: Final = {
    "timeout": "no whole answer in time",
    "connect_timeout": f"no connection within {CONNECT_TIMEOUT_S:.0f} s",
    "dns": "the host name does not resolve",
    "refused": "the connection was refused: nothing listens there",
    "unreachable": "the host cannot be reached",
    "tls": "TLS failed",
    "proxy": "the proxy failed",
    "reset": "the connection was reset",
    "closed": "the connection was closed before an answer came",
    "short_body": "the answer was cut short",
    "bad_http": "the answer was not HTTP",
    "too_large": f"the answer is longer than {MAX_ANSWER_BYTES >> 20} MB",
    "network": "the network failed",
}
_BY_ERRNO: Final = {
    errno.ECONNREFUSED: "refused",
    errno.EHOSTUNREACH: "unreachable",
    errno.ENETUNREACH: "unreachable",
    errno.EADDRNOTAVAIL: "unreachable",
    errno.ETIMEDOUT: "connect_timeout",
    errno.ECONNRESET: "reset",
    errno.EPIPE: "reset",
}
_BY_TYPE: Final[tuple[tuple[type[Exception], str], ...]] = (
    (aiohttp.ClientConnectorDNSError, "dns"),
    (aiohttp.ClientConnectorCertificateError, "tls"),
    (aiohttp.ClientSSLError, "tls"),
    (ssl.SSLError, "tls"),
    (aiohttp.ClientProxyConnectionError, "proxy"),
    (aiohttp.ClientHttpProxyError, "proxy"),
    (aiohttp.ServerTimeoutError, "connect_timeout"),
    (aiohttp.ServerDisconnectedError, "closed"),
    (aiohttp.ClientPayloadError, "short_body"),
    (aiohttp.ClientResponseError, "bad_http"),
)
_NOTHING: Final = httpx.ByteStream(b"")


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one sending.

    Attributes:
        status_code: HTTP status, None where no whole answer came.
        headers: Of the answer, names in lower case.
        body: The answer's bytes, decompressed.
        code: Why there is no answer (``timeout``, ``dns``, ``tls``, ``refused`` ...), None where there is one.
        message: The same for people.
        sent: Whether the request had gone out whole, so that it may be billed.
    """

    status_code: int | None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    code: str | None = None
    message: str = ""
    sent: bool = True


class Transport:
    """Sends requests over kept connections. Use as an async context manager, inside one event loop.

    Args:
        trust_env: Whether to hear the proxy variables (a rehearsal's loopback server must not go through one).
        secret: The key. A server that echoes it would put it into every file that keeps answers: it is taken out.
    """

    def __init__(self, *, trust_env: bool = True, secret: str | None = None) -> None:
        self._secret = (secret or "").encode() if len(secret or "") >= _SECRET_LENGTH else b""
        self._network = _Network(trust_env=trust_env)
        self._client = _Client(transport=self._network, timeout=None, trust_env=False)

    async def __aenter__(self) -> Transport:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | memoryview = b"",
        timeout_s: float,
        sink: _Sink = None,
    ) -> Answer:
        """Send one request and wait for the whole answer.

        Args:
            method: ``POST``, ``GET`` ...
            url: The whole URL.
            headers: Sent as they are; the key is in here and nowhere else.
            body: Sent as it stands.
            timeout_s: Deadline for all of it, in seconds.
            sink: Takes the bytes of a good answer (status 2xx) as they come, instead of ``Answer.body``.
        """
        trip = _Trip(_parsed(url), headers, body, sink)
        request = httpx.Request(method, trip.target.httpx, stream=trip)
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._client.send(request, stream=True)
        except TimeoutError:
            return self._failed("timeout", trip, f"{timeout_s:g} s")
        except _NetworkError as error:
            return self._failed(error.code, trip, error.detail)
        return self._without_secret(Answer(response.status_code, trip.headers, trip.answer))

    def _without_secret(self, answer: Answer) -> Answer:
        """Take the key out of an answer that echoes it, wherever it stands."""
        said = "\n".join(answer.headers.values())
        if not self._secret or not (self._secret in answer.body or self._secret.decode() in said):
            return answer
        headers = {k: v.replace(self._secret.decode(), _REMOVED.decode()) for k, v in answer.headers.items()}
        return replace(answer, headers=headers, body=answer.body.replace(self._secret, _REMOVED))

    @staticmethod
    def _failed(code: str, trip: _Trip, detail: str) -> Answer:
        if code == "connect_timeout" and trip.target.httpx.scheme == "https":
            detail = "TCP or TLS handshake"
        message = f"{_WORDS[code]} ({trip.target.httpx.netloc.decode()}{', ' + detail if detail else ''})"
        return Answer(None, code=code, message=message, sent=trip.sent and code not in NEVER_CONNECTED)


class _Target(NamedTuple):
    """One address as both libraries take it, parsed once for all rows."""

    httpx: httpx.URL
    aiohttp: URL


@lru_cache(maxsize=256)
def _parsed(url: str) -> _Target:
    return _Target(parsed := httpx.URL(url), URL(str(parsed), encoded=True))


def check_base_url(url: str) -> str:
    """Return a base URL without a slash at its end.

    Raises:
        InputError: It is no http(s) URL that can be called, or it holds a user name or password.
    """
    try:
        parsed = _parsed(url).httpx
        parsed.host.encode("idna")  # what looking the name up does first
    except (httpx.InvalidURL, ValueError):
        parsed = httpx.URL()
    if parsed.userinfo:
        raise InputError(
            f"the base URL of {parsed.host} holds a user name or a password",
            hint="leave it out: a key belongs into an environment variable, named by --api-key-env",
        )
    if not parsed.host or "%20" in parsed.host or not _is_http(url):
        shown = without_query(url).rpartition("@")[2]
        raise InputError(f"{shown!r}: not an http or https URL", hint="for example http://127.0.0.1:8000/v1")
    return url.rstrip("/")


def _is_http(url: str) -> bool:
    try:
        return URL(url).scheme in {"http", "https"} and URL(url).port is not None  # a port beyond all raises
    except ValueError:
        return False


def is_loopback(url: str) -> bool:
    """Return whether a URL names this machine."""
    host = httpx.URL(url).host
    return host in {"localhost", "::1"} or host.startswith("127.")


def without_query(url: str) -> str:
    """Return a URL as it may be written down: what stands behind ``?`` can hold secrets."""
    return url.partition("?")[0]


class _NoCookies(httpx.Cookies):
    """Takes no cookies: they would tie rows together, and looking for them costs more than sending."""

    def extract_cookies(self, response: httpx.Response) -> None:
        """Leave them."""


class _Client(httpx.AsyncClient):
    """The client without cookies."""

    @property
    def cookies(self) -> httpx.Cookies:
        return _NO_COOKIES

    @cookies.setter
    def cookies(self, cookies: object) -> None:
        """Take none."""


_NO_COOKIES: Final = _NoCookies()


class _Trip(httpx.AsyncByteStream):
    """One request on its way out, and what has come back: httpx hands it through, its copies are not needed."""

    def __init__(self, target: _Target, headers: Mapping[str, str], body: bytes | memoryview, sink: _Sink) -> None:
        self.target = target
        self.headers_out = headers
        self.body = memoryview(body)
        self.sink = sink
        self.sent = False
        self.headers: dict[str, str] = {}
        self.answer = b""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield bytes(self.body)


class _Payload(aiohttp.Payload):
    """The same body as aiohttp takes it: written in pieces, so that a slow network holds one piece, not a copy."""

    _default_content_type = "application/json"

    def __init__(self, trip: _Trip) -> None:
        super().__init__(trip)
        self._size = trip.body.nbytes

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return str(self._value.body, encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        body = self._value.body
        for start in range(0, self._size or 0, _PIECE):
            await writer.write(body[start : start + _PIECE])
        self._value.sent = True

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        del content_length  # the body's own length
        await self.write(writer)


class _NetworkError(httpx.TransportError):
    """No whole answer came; ``code`` says why in our words, ``detail`` adds what the system said."""

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(_WORDS[code])
        self.code = code
        self.detail = detail


class _Network(httpx.AsyncBaseTransport):
    """aiohttp's sockets under httpx's client: no pool limit, no cookies, no redirects, no proxy but by environment."""

    def __init__(self, *, trust_env: bool) -> None:
        self._trust_env = trust_env
        self._session: aiohttp.ClientSession | None = None
        self._proxy = cache(_proxy_by_environment)

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        trip = request.stream
        if not isinstance(trip, _Trip):
            raise TypeError("requests of this transport are made by Transport.send")
        url = trip.target.aiohttp
        options: dict[str, Any] = {}
        if url.scheme == "https":
            options["ssl"] = self._tls
        if self._trust_env and (proxy := self._proxy(url.scheme, url.host or "")):
            options["proxy"] = proxy
        if trip.body.nbytes or request.method == "POST":
            options["data"] = _Payload(trip)
        else:
            trip.sent = True
        try:
            async with self._open().request(
                request.method, url, headers=trip.headers_out, allow_redirects=False, **options
            ) as response:
                trip.answer = await _read(response, trip.sink)
        except (aiohttp.ClientError, OSError) as error:
            raise _named(error) from None
        trip.headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.raw_headers}
        return httpx.Response(response.status, stream=_NOTHING)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=0, ttl_dns_cache=60, resolver=aiohttp.ThreadedResolver(), keepalive_timeout=60
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
                headers={"User-Agent": f"vlmbatch/{__version__}"},
            )
        return self._session

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return httpx.create_ssl_context()


def _proxy_by_environment(scheme: str, host: str) -> str | None:
    """Return the proxy for a host; this machine itself is never asked through one."""
    if is_loopback(f"{scheme}://[{host}]" if ":" in host else f"{scheme}://{host}"):
        return None
    proxies = urllib.request.getproxies()
    proxy = proxies.get(scheme) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(host):
        return None
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    if not _is_http(proxy):
        raise InputError(
            f"the proxy for {scheme} in the environment is neither http nor https",
            hint="name an HTTP proxy in HTTPS_PROXY, or except the host by NO_PROXY",
        )
    return proxy


async def _read(response: aiohttp.ClientResponse, sink: _Sink) -> bytes:
    """Read an answer to its end; short of that end, aiohttp raises."""
    if sink is not None and 200 <= response.status <= 299:
        async for piece in response.content.iter_chunked(1 << 20):
            sink(piece)
        return b""
    pieces: list[bytes] = []
    size = 0
    async for piece in response.content.iter_any():
        size += len(piece)
        if size > MAX_ANSWER_BYTES:
            raise _NetworkError("too_large")
        pieces.append(piece)
    return b"".join(pieces)


def _named(error: Exception) -> _NetworkError:
    """Turn what the network raised into our words."""
    code = next((code for kind, code in _BY_TYPE if isinstance(error, kind)), None)
    if code is None:
        number = error.errno if isinstance(error, OSError) else None
        code = _BY_ERRNO.get(number or 0, "network")
    return _NetworkError(code, _detail(error, code))


def _detail(error: Exception, code: str) -> str:
    """Return the system's own word where it helps: never a URL, never a header."""
    cause = getattr(error, "os_error", None) or getattr(error, "certificate_error", None) or error
    if code == "tls":
        return str(getattr(cause, "verify_message", "") or getattr(cause, "reason", "") or type(cause).__name__)
    if code in {"network", "proxy"}:
        status = getattr(error, "status", None)
        return f"status {status}" if status else (getattr(cause, "strerror", None) or type(error).__name__)
    return ""
