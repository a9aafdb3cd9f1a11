"""A TLS server whose certificate nobody vouches for."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

CERTIFICATE = Path(__file__).parent / "data" / "tls" / "self-signed.pem"


@contextmanager
def untrusted_server() -> Iterator[int]:
    """Answer one request over TLS; yield the port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    ok = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)

        def serve() -> None:
            try:
                raw, _ = listener.accept()
                with context.wrap_socket(raw, server_side=True) as connection:
                    connection.recv(65536)
                    connection.sendall(ok)
            except OSError:
                return

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()
