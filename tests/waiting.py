"""Waiting for what another thread or process does, for tests that must not guess how long that takes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_SECONDS = 100


def wait_until(condition: Callable[[], object], otherwise: str = "it never came to be") -> None:
    """Wait until a condition holds, looking less often with time; after so long it will not any more.

    Args:
        condition: What is looked at.
        otherwise: What is told where it does not come to hold.
    """
    start = time.monotonic()
    while not condition():
        waited = time.monotonic() - start
        assert waited < _SECONDS, otherwise
        time.sleep(min(0.005 + waited / 20, 0.2))
