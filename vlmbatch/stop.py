"""How a run is told to stop, from a signal handler or from another thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


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
