"""How a run is told to stop, from a signal handler or from another thread."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType


class Stop:
    """A wish to stop: asked once, what is in flight is finished; asked twice, it is given up too.

    Attributes:
        level: How often it was asked.
    """

    def __init__(self) -> None:
        self.level = 0
        self._listener: Callable[[], object] | None = None

    @property
    def is_heeded(self) -> bool:
        """Whether somebody listens."""
        return self._listener is not None

    def ask(self) -> None:
        """Ask once more. Safe in a signal handler."""
        self.level += 1
        if self._listener is not None:
            self._listener()

    def heed(self, listener: Callable[[], object] | None) -> None:
        """Name who is called at each asking (from whatever thread asks); None = nobody any more."""
        self._listener = listener


@contextlib.contextmanager
def on_signals(stop: Stop) -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into a wish to stop; as long as nobody heeds it, they end the program at once.

    Only the main thread may do this: it is for doors.
    """

    def ask(_number: int, _frame: FrameType | None) -> None:
        if not stop.is_heeded:
            raise KeyboardInterrupt
        stop.ask()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
