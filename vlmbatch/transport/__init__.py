"""The wire: one request out, one whole answer (or the name of what went wrong) back. The only room with a client in it.

============== =====================================================================================================
``addresses``  URLs and proxies, read and refused
``faults``     what goes wrong, in our words
``http1``      one connection, one exchange at a time
``network``    connections made and kept: an httpx transport
``client``     ``Transport.send``, what everybody else calls
============== =====================================================================================================

Nothing here retries, paces or reads an answer. No redirect is followed, so that a key never reaches a host that the
user did not name; proxies (``HTTP_PROXY``, ``HTTPS_PROXY``, ``NO_PROXY``) and ``SSL_CERT_FILE`` are honoured; nothing
that is raised or returned holds a header that was sent.
"""

from __future__ import annotations

from typing import Final

import httptools
import httpx

from vlmbatch.transport.addresses import check_base_url, without_query
from vlmbatch.transport.client import Answer, Transport
from vlmbatch.transport.faults import NEVER_CONNECTED

__all__ = [
    "LIBRARIES",
    "NEVER_CONNECTED",
    "Answer",
    "Transport",
    "check_base_url",
    "without_query",
]

LIBRARIES: Final = {"httpx": httpx.__version__, "httptools": httptools.__version__}
"""What carries the requests, for the record."""
