"""How a run is told to stop, from a signal handler or from another thread."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable, Iterator
    from types import FrameType

_T = TypeVar("_T")

_HANGUP = getattr(signal, "SIGHUP", None)
"""A terminal that closes; the shell says it, and then the kernel. Windows has no such signal."""


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


async def to_the_end(work: Future[_T], stop: Stop) -> _T:
    """Wait for work that can be stopped; each cancelling asks it to stop once more, and it is waited for all the same.

    Raises:
        CancelledError: It was cancelled; the work is over.
    """
    import asyncio

    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            stop.ask()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([work])
        if not work.cancelled():
            work.exception()  # taken, so that the loop does not complain that nobody did
        raise


@contextlib.contextmanager
def on_signals(stop: Stop) -> Iterator[None]:
    """Turn Ctrl-C, SIGTERM and SIGHUP into a wish to stop; as long as nobody heeds it, they end the program at once.

    Under ``nohup`` a terminal may close. While the program ends, only a person's second Ctrl-C cuts its cleaning up
    short: schedulers and closing terminals say the same thing twice. Only the main thread may do this: it is for doors.
    """
    heard: set[int] = set()

    def ask(number: int, _frame: FrameType | None) -> None:
        is_repeated = number in heard
        heard.add(number)
        if stop.is_heeded:
            if not is_repeated or number != _HANGUP:
                stop.ask()
        elif not is_repeated or number == signal.SIGINT:
            raise KeyboardInterrupt

    signals = [signal.SIGINT, signal.SIGTERM]
    if _HANGUP is not None and signal.getsignal(_HANGUP) != signal.SIG_IGN:
        signals.append(_HANGUP)
    before = {number: signal.signal(number, ask) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
