"""How a reply leaves: whole, or cut in the middle by a reset connection."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    from vlmbatch.rehearsal.replies import Reply

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


async def send(request: web.Request, reply: Reply) -> web.StreamResponse:
    """Send a reply; status 0 sends half of it and resets the connection."""
    headers = {"x-request-id": "req_rehearsal", **reply.headers}
    if reply.status:
        return web.Response(status=reply.status, body=reply.body, headers=headers, content_type=reply.content_type)
    response = web.StreamResponse(headers={**headers, "content-length": str(len(reply.body))})
    response.content_type = reply.content_type
    await response.prepare(request)
    await response.write(reply.body[: len(reply.body) // 2])
    if request.transport is not None:
        sock = request.transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        request.transport.abort()
    return response
