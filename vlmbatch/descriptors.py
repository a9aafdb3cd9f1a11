"""How many files and connections a process may have open: read by whoever opens many, raised by doors alone."""

from __future__ import annotations

import contextlib
import resource
from typing import Final

_WANTED: Final = 8192
_ENDLESS: Final = 1 << 20


def limit() -> int:
    """Return the number of descriptors that this process may hold."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _ENDLESS if soft == resource.RLIM_INFINITY else soft


def raise_limit() -> None:
    """Raise what a shell sets (256, 1024) to what a wide run takes, where the system allows it; for doors alone."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(_WANTED, hard)
    if limit() < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
