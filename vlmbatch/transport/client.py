"""One request out, one whole answer (or the name of what went wrong) back."""

from __future__ import annotations

import asyncio
import re
import zlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, cast

import httpx

from vlmbatch import __version__
from vlmbatch.errors import InputError
from vlmbatch.transport import faults
from vlmbatch.transport.addresses import parsed
from vlmbatch.transport.faults import NEVER_CONNECTED, WORDS, NetworkError
from vlmbatch.transport.network import Body, Network

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping

    Sink = Callable[[bytes], object] | None

_SECRET_LENGTH: Final = 12
"""Shorter keys are placeholders (``EMPTY``, ``none``) that may stand in an honest answer."""
_REMOVED: Final = b"[key removed]"
_SHOWN: Final = 8
"""So much of a server's word goes into a message: no key is as short."""
_GZIP: Final = 16 + zlib.MAX_WBITS
_UNPACKED_AT_ONCE: Final = 1 << 20
_ALWAYS: Final = {
    "accept": "*/*",
    "accept-encoding": "gzip",
    "user-agent": f"vlmbatch/{__version__}",
}
_LISTS: Final = frozenset({"content-encoding", "transfer-encoding"})
_ONE_LINE: Final = re.compile(r"[^\x00\r\n\ud800-\udfff]*")


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one sending.

    Attributes:
        status_code: HTTP status, None where no whole answer came.
        headers: Of the answer, names in lower case.
        body: The answer's bytes, decompressed.
        code: Why there is no answer (``timeout``, ``dns``, ``tls``, ``refused`` ...), None where there is one.
        message: The same for people.
        sent: Whether the request had gone out whole or its answer had begun, so that it may be billed.
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
        self._secret = (secret or "").encode(errors="replace") if len(secret or "") >= _SECRET_LENGTH else b""
        self._network = Network(trust_env=trust_env)
        self._headers: dict[tuple[tuple[str, str], ...], httpx.Headers] = {}

    async def __aenter__(self) -> Transport:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._network.aclose()

    async def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | memoryview = b"",
        timeout_s: float,
        sink: Sink = None,
    ) -> Answer:
        """Send one request and wait for the whole answer.

        Args:
            method: ``POST``, ``GET`` ...
            url: The whole URL.
            headers: Sent as they are; the key is in here and nowhere else.
            body: Sent as it stands.
            timeout_s: Deadline for all of it, in seconds.
            sink: Takes the bytes of a good answer (status 2xx) as they come, instead of ``Answer.body``.

        Raises:
            InputError: A header cannot be sent, or the environment names an impossible proxy.
        """
        target, stream = parsed(url), Body(body)
        request = httpx.Request(method, target, headers=self._sendable(headers), stream=stream)
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._network.handle_async_request(request)
                told = _told(response)
                try:
                    whole = await _read(response, told, sink if response.is_success else None, self._secret)
                finally:
                    await response.aclose()
        except TimeoutError:
            return _failed("timeout", target, f"{timeout_s:g} s", sent=stream.sent)
        except NetworkError as error:
            return _failed(error.code, target, error.detail, sent=stream.sent)
        return self._without_secret(Answer(response.status_code, told, whole))

    def _sendable(self, headers: Mapping[str, str]) -> httpx.Headers:
        """Return the headers of a request, made once for all rows that have the same."""
        key = tuple(headers.items())
        if key not in self._headers:
            for name, value in key:
                if not (_ONE_LINE.fullmatch(name + value) and name.isascii()):
                    raise InputError(f"the header {name!r} cannot be sent", hint="it holds a line break or the like")
            both = {**_ALWAYS, **headers}
            self._headers[key] = httpx.Headers([(name.encode(), value.encode()) for name, value in both.items()])
        return self._headers[key]

    def _without_secret(self, answer: Answer) -> Answer:
        """Take the key out of an answer that echoes it, wherever it stands."""
        said = "\n".join(answer.headers.values())
        secret = self._secret.decode("latin-1")  # as headers are read
        if not secret or not (self._secret in answer.body or secret in said):
            return answer
        headers = {k: v.replace(secret, _REMOVED.decode()) for k, v in answer.headers.items()}
        return replace(answer, headers=headers, body=answer.body.replace(self._secret, _REMOVED))


def _told(response: httpx.Response) -> dict[str, str]:
    """Return an answer's headers; what is told twice counts as last told, but codings add up (RFC 9110, 5.3)."""
    told: dict[str, str] = {}
    for raw_name, raw_value in response.headers.raw:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        told[name] = f"{told[name]}, {value}" if name in _LISTS and name in told else value
    return told


async def _read(response: httpx.Response, told: Mapping[str, str], sink: Sink, secret: bytes) -> bytes:
    """Read an answer to its end; what goes into a sink goes without the secret.

    Raises:
        NetworkError: It breaks off, is too long for the memory, or is not compressed as it says.
    """
    pieces: list[bytes] = []
    size = 0
    stream = cast("httpx.AsyncByteStream", response.stream)
    if told.get("transfer-encoding", "chunked").strip().lower() != "chunked":
        raise NetworkError("bad_http", "it is coded for the way as nobody asked for")
    is_plain = "content-encoding" not in told or told.get("content-length") == "0"
    plain = stream if is_plain else _unpacked(stream, told["content-encoding"].strip().lower())
    async for piece in plain if sink is None or not secret else _cleaned(plain, secret):
        if sink is not None:
            sink(piece)
            continue
        size += len(piece)
        if size > faults.MAX_ANSWER_BYTES:
            raise NetworkError("too_large")
        pieces.append(piece)
    return b"".join(pieces)


async def _cleaned(pieces: AsyncIterable[bytes], secret: bytes) -> AsyncIterator[bytes]:
    """Yield pieces without a secret, which may begin in one and end in the next."""
    rest = b""
    async for piece in pieces:
        data = (rest + piece).replace(secret, _REMOVED)
        end = max(0, len(data) - len(secret) + 1)
        if end:
            yield data[:end]
        rest = data[end:]
    if rest:
        yield rest


async def _unpacked(stream: httpx.AsyncByteStream, coding: str) -> AsyncIterator[bytes]:
    """Yield a compressed body's bytes, in pieces that stay small however well they were compressed."""
    if coding in {"identity", ""}:
        async for piece in stream:
            yield piece
        return
    if coding.removeprefix("x-") != "gzip":  # one thing by two names (RFC 9110, 8.4.1.3)
        raise NetworkError("bad_http", f"it is compressed in a way that nobody asked for: {coding[:_SHOWN]}")
    unpacker = zlib.decompressobj(_GZIP)
    try:
        async for packed in stream:
            rest = packed
            while rest:
                if unpacker.eof:  # another member
                    unpacker = zlib.decompressobj(_GZIP)
                yield unpacker.decompress(rest, _UNPACKED_AT_ONCE)
                rest = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
    except zlib.error:
        raise NetworkError("bad_http", "it is not compressed as it says") from None
    if not unpacker.eof:
        raise NetworkError("short_body")


def _failed(code: str, target: httpx.URL, detail: str, *, sent: bool) -> Answer:
    if code == "connect_timeout" and target.scheme == "https":
        detail = "TCP or TLS handshake"
    message = f"{WORDS[code]} ({target.netloc.decode()}{', ' + detail if detail else ''})"
    return Answer(None, code=code, message=message, sent=sent and code not in NEVER_CONNECTED)
