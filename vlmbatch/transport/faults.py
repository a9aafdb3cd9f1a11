"""What can go wrong between us and a server, in words of our own, whatever the system calls it."""

from __future__ import annotations

import errno
import socket
import ssl
from typing import Final

import httpx

CONNECT_TIMEOUT_S: Final = 10.0
MAX_ANSWER_BYTES: Final = 64 << 20
"""Longest answer that is kept in memory; a completion is a few kilobytes."""

NEVER_CONNECTED: Final = frozenset({"dns", "refused", "unreachable", "tls", "connect_timeout", "proxy"})
"""Codes of failures in which no byte of the request left: nothing can have been billed."""

WORDS: Final = {
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
}


class NetworkError(httpx.TransportError):
    """No whole answer came; ``code`` says why in our words, ``detail`` adds what the system said."""

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(WORDS[code])
        self.code = code
        self.detail = detail


def not_connected(error: OSError) -> NetworkError:
    """Name what kept a connection from being made: never a URL, never a header."""
    if isinstance(error, ssl.SSLError):
        said = getattr(error, "verify_message", "") or getattr(error, "reason", "") or error.strerror
        return NetworkError("tls", str(said))
    if isinstance(error, socket.gaierror):
        return NetworkError("dns", error.strerror or "")
    if isinstance(error, TimeoutError) and error.errno is None:
        return NetworkError("connect_timeout")
    if error.errno in _BY_ERRNO:
        return NetworkError(_BY_ERRNO[error.errno])
    if error.errno is None:  # several addresses, each with a fault of its own
        return NetworkError("unreachable", str(error).removeprefix("Multiple exceptions: "))
    return NetworkError("network", error.strerror or type(error).__name__)
