"""A TLS server whose certificate nobody vouches for."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CERTIFICATE = Path(__file__).parent / "data" / "tls" / "self-signed.pem"


def server_context() -> ssl.SSLContext:
    """Return what makes a server speak TLS as ``localhost``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    return context


@contextlib.contextmanager
def raw_server(*handlers: Callable[[socket.socket], None]) -> Iterator[int]:
    """Hand one connection after the other to these, in a thread; yield the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)

        def serve() -> None:
            for handle in handlers:
                with contextlib.suppress(OSError):
                    connection, _ = listener.accept()
                    with connection:
                        connection.settimeout(10)
                        handle(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def over_tls(handle: Callable[[ssl.SSLSocket], None]) -> Callable[[socket.socket], None]:
    """Return a handler that speaks TLS first."""

    def handle_raw(raw: socket.socket) -> None:
        with server_context().wrap_socket(raw, server_side=True) as connection:
            handle(connection)

    return handle_raw


@contextlib.contextmanager
def untrusted_server() -> Iterator[int]:
    """Answer one request over TLS; yield the port."""

    def answer(connection: ssl.SSLSocket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

    with raw_server(over_tls(answer)) as port:
        yield port
