"""One connection: a request goes out as bytes, the answer comes in through httptools' parser (the one of Node.js).

A connection carries one exchange at a time and is used again only after an answer that ended where it said it would,
to a request that had gone out whole. Nothing here knows where the connection leads.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import ssl
from collections import deque
from typing import Final, cast

import httptools

from vlmbatch.transport.faults import NetworkError

_PIECE: Final = 256 << 10
"""A long body goes out in pieces, so that a slow network holds one piece and not a copy of all."""
_JOINED: Final = 64 << 10
"""A body up to this size goes out in one write with its head."""
_MOST_HEAD: Final = 256 << 10
"""So many bytes may come in which no body goes on: heads, trailers, extensions of chunks."""
_MOST_QUEUED: Final = 1 << 20
"""So many bytes of an answer wait for their reader before the server has to."""
_REFUSED_UNREAD: Final = frozenset({401, 403, 404, 405, 411, 413, 414, 415, 417, 431, 501})
"""What is refused by the head alone. A server that then neither reads the body nor closes, as RFC 9112, 9.3 wants it,
takes that body for the next request, and whoever comes next gets its answer; so nobody comes."""
_HEADS_ONLY: Final = (b"HEAD ", b"CONNECT ")
"""Answers to these end with their head, whatever it says (RFC 9112, 6.3); why a proxy refuses, its status says."""


class Reply:
    """An answer as it comes in.

    Attributes:
        status: HTTP status, 0 until the head is there.
        headers: Names and values as they came.
        is_over: Whether it came to its end, or never will.
        fault: Why it never will.
        is_asked: Whether the request had gone out whole.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.is_over = False
        self.fault: NetworkError | None = None
        self.is_asked = False
        self._pieces: deque[bytes] = deque()
        self._queued = 0
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_full(self) -> bool:
        """Whether the reader lags behind."""
        return self._queued > _MOST_QUEUED

    @property
    def ends_with_connection(self) -> bool:
        """Whether nothing but the connection's end says where the body ends (RFC 9112, 6.3)."""
        return not any(name.lower() in {b"content-length", b"transfer-encoding"} for name, _ in self.headers)

    def add(self, piece: bytes) -> None:
        """Take a piece of the body."""
        self._pieces.append(piece)
        self._queued += len(piece)

    def end(self, fault: NetworkError | None = None) -> None:
        """Note the end; the first one stands."""
        if not self.is_over:
            self.is_over, self.fault = True, fault

    def wake(self) -> None:
        """Let whoever waits look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def change(self) -> None:
        """Wait until something happens."""
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    async def head(self) -> None:
        """Wait for status and headers.

        Raises:
            NetworkError: They never come.
        """
        while not self.status and not self.is_over:
            await self.change()
        if not self.status:
            raise self.fault or NetworkError("closed")

    async def piece(self) -> bytes:
        """Return the next piece of the body, empty at its end.

        Raises:
            NetworkError: The answer breaks off here.
        """
        while not self._pieces:
            if self.fault is not None:
                raise self.fault
            if self.is_over:
                return b""
            await self.change()
        piece = self._pieces.popleft()
        self._queued -= len(piece)
        return piece


class Connection(asyncio.Protocol):
    """One socket. Callbacks in the middle are the event loop's, those at the end the parser's.

    Attributes:
        transport: The event loop's side of it.
        idle_since: When its last exchange ended, by the monotonic clock.
    """

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.idle_since = 0.0
        self._parser = httptools.HttpResponseParser(self)
        # What browsers read, too: a paid answer is not thrown away for a server's loose end of a line, or because the
        # interim head (1xx) before it says "close" or HTTP/1.0. What comes behind an answer is left, whatever it is.
        self._parser.set_dangerous_leniencies(
            lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True, lenient_keep_alive=True
        )
        self._reply = Reply()
        self._reply.end()
        self._can_go_on = True
        self._is_paused = False
        self._is_held = False
        self._is_head_all = False
        self._has_ended = False
        self._bodiless_bytes = 0

    @property
    def is_open(self) -> bool:
        """Whether another exchange may follow."""
        return self._can_go_on and not self.transport.is_closing()

    @property
    def is_silent(self) -> bool:
        """Whether nothing waits to be read: an end, or an answer that nobody asked for (408 to one who was idle).

        HTTP/1.1 numbers nothing: a second answer that comes only when the next request is out, no client can tell.
        """
        return not self._ear.poll(0)

    @property
    def has_asked(self) -> bool:
        """Whether the server can have acted: the request had gone out whole, or an answer has begun."""
        return self._reply.is_asked or self._reply.status > 0

    async def send(self, head: bytes, body: memoryview) -> Reply:
        """Write a request, and return what is coming in; an answer that comes before the end of it ends the writing.

        Raises:
            NetworkError: The connection has gone before a byte was written.
        """
        if not self.is_open:
            raise NetworkError("closed")
        reply = self._reply = Reply()
        self._bodiless_bytes = 0
        self._is_head_all = head.startswith(_HEADS_ONLY)
        if body.nbytes <= _JOINED:
            self.transport.write(b"".join((head, body)))
        else:
            self.transport.write(head)
            for start in range(0, body.nbytes, _PIECE):
                if start:
                    await asyncio.sleep(0)  # an answer or an end is heard of, and others have their turn
                while self._is_paused and not reply.is_over:
                    await reply.change()
                if reply.is_over or self.transport.is_closing():
                    self._can_go_on = False
                    return reply
                self.transport.write(body[start : start + _PIECE])
        reply.is_asked = True
        return reply

    def abort(self) -> None:
        """Close at once."""
        self._can_go_on = False
        self.transport.abort()

    def read_on(self) -> None:
        """Take more of an answer whose reader has caught up."""
        if self._is_held:
            self._is_held = False
            self.transport.resume_reading()

    # --- the event loop's ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast("asyncio.Transport", transport)
        self._ear = select.poll()
        self._ear.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def eof_received(self) -> None:
        """Hear that the server says no more. Under TLS only its farewell counts: anybody can cut a line (9112, 9.8)."""
        tls = self.transport.get_extra_info("ssl_object")
        try:
            self._has_ended = tls is None or not tls.read(1)
        except ssl.SSLError:
            self._has_ended = False

    def connection_lost(self, error: Exception | None) -> None:
        """Say what the end means for the answer under way."""
        self._can_go_on = False
        reply = self._reply
        if error is not None and not reply.is_over and (rest := self._last_words()):
            self.data_received(rest)
        if reply.is_over:
            return
        if reply.status and self._has_ended and error is None and reply.ends_with_connection:
            reply.end()
        elif reply.status or self._bodiless_bytes:
            reply.end(NetworkError("short_body"))
        else:
            reply.end(NetworkError("closed" if error is None else "reset"))
        reply.wake()

    def _last_words(self) -> bytes:
        """Return what came before a reset: who refuses a body unread and closes, resets the rest of it (9112, 9.6)."""
        if self.transport.get_extra_info("ssl_object") is None:
            with contextlib.suppress(OSError):
                return os.read(self.transport.get_extra_info("socket").fileno(), _MOST_HEAD)
        return b""

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        reply = self._reply
        if reply.is_over:  # nobody asked
            self.abort()
            return
        self._bodiless_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._can_go_on = False
            reply.end(NetworkError("bad_http"))
        except httptools.HttpParserUpgrade:
            self._can_go_on = False
            reply.end(NetworkError("bad_http", "it wants another protocol"))
        if self._bodiless_bytes > _MOST_HEAD and not reply.is_over:
            self._can_go_on = False
            reply.end(NetworkError("bad_http", "its head does not end"))
        if reply.is_full and not reply.is_over:
            self._is_held = True
            self.transport.pause_reading()
        reply.wake()

    def pause_writing(self) -> None:
        """Hear that the network is slower than we are."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """Hear that it has caught up."""
        self._is_paused = False
        self._reply.wake()

    # --- the parser's -------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A message starts: the answer, or something that nobody asked for."""
        if self._reply.is_over:
            self._can_go_on = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; what comes behind the body (trailers) is left out."""
        reply = self._reply
        if not reply.status and not reply.is_over:
            reply.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is there, unless it is one that only announces another (1xx)."""
        reply = self._reply
        status = self._parser.get_status_code()
        if status < 200:
            reply.headers.clear()
        elif not reply.is_over:
            reply.status = status
            if self._is_head_all:
                self._can_go_on = False  # the parser waits for a body
                reply.end()

    def on_body(self, piece: bytes) -> None:
        """Hand a piece on."""
        reply = self._reply
        self._bodiless_bytes = 0
        if not reply.is_over:
            reply.add(piece)

    def on_message_complete(self) -> None:
        """The answer has ended where it said it would."""
        reply = self._reply
        if reply.status and not reply.is_over:
            reply.end()
            self._can_go_on = (
                self._can_go_on
                and self._parser.should_keep_alive()
                and reply.status not in _REFUSED_UNREAD
                and not self.transport.get_write_buffer_size()  # else the request has not left us yet
            )
