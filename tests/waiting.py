"""Waiting for what another thread or process does, for tests that must not guess how long that takes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_SECONDS = 60


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds; after a minute it will not any more."""
    until = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < until, "it never came to be"
        time.sleep(0.005)
