"""How fast one may go: a limit on open requests that finds its own level, and budgets that refill. No clock in here.

Whoever asks brings the time along, in seconds of a clock that never goes back; so every rule can be tested by a table.
"""

from __future__ import annotations

from typing import Final

_CUT: Final = 0.5
_CAREFUL: Final = 8


class Limiter:
    """A limit on open requests: additive up, multiplicative down, once for all requests of one moment.

    It opens fully. A push-back halves it, but requests that were begun before the last cut say nothing new and do not
    cut again. Each success gives a part of a place back, so that one round of successes opens one more; close to the
    level where the last push-back came, it takes eight rounds, so that finding the level again costs little.

    Attributes:
        ceiling: Most requests ever open at once.
        limit: Requests that may be open now (the whole part counts).
        in_flight: Requests that are open.
        peak: Most that were open at once.
        generation: How often it was cut; a request remembers the one it began in.
    """

    def __init__(self, ceiling: int) -> None:
        self.ceiling = ceiling
        self.limit = float(ceiling)
        self.in_flight = 0
        self.peak = 0
        self.generation = 0
        self._strained: float | None = None

    @property
    def has_room(self) -> bool:
        """Whether one more request may be opened."""
        return self.in_flight < int(self.limit)

    @property
    def load(self) -> float:
        """Share of the limit that is in use."""
        return self.in_flight / self.limit

    def start(self) -> int:
        """Count one more open request; return the generation in which it begins."""
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        return self.generation

    def end(self) -> None:
        """Count one open request less."""
        self.in_flight -= 1

    def succeeded(self) -> None:
        """Grow a little."""
        if self.limit >= self.ceiling:
            return
        step = 1 / self.limit
        if self._strained is not None:
            if self.limit > self._strained + 1:
                self._strained = None  # the level has risen
            elif self.limit + 1 > self._strained:
                step /= _CAREFUL
        self.limit = min(float(self.ceiling), self.limit + step)

    def pushed_back(self, generation: int) -> None:
        """Cut the limit, unless a request of the same generation did already."""
        if generation != self.generation:
            return
        self.generation += 1
        self._strained = float(int(self.limit))
        self.limit = max(1.0, self.limit * _CUT)


class Bucket:
    """A budget per minute that refills steadily.

    Args:
        per_minute: What may be taken in a minute.
        now: The time.
        burst_s: Seconds of refill that may gather while nothing is taken.
    """

    def __init__(self, per_minute: float, now: float, *, burst_s: float = 0.1) -> None:
        self._rate = per_minute / 60
        self._capacity = max(1.0, self._rate * burst_s)
        self._level = self._capacity
        self._at = now

    def wait_s(self, now: float, amount: float = 1.0) -> float:
        """Return the seconds until an amount may be taken; more than gathers at once is lent to a full budget."""
        self._refill(now)
        missing = min(amount, self._capacity) - self._level
        return max(0.0, missing / self._rate)

    def take(self, now: float, amount: float = 1.0) -> None:
        """Take an amount; the level may sink below nothing, and the next one then waits for it."""
        self._refill(now)
        self._level -= amount

    def give_back(self, amount: float) -> None:
        """Correct an earlier taking once the true amount is known (negative: it was more)."""
        self._level = min(self._capacity, self._level + amount)

    def _refill(self, now: float) -> None:
        self._level = min(self._capacity, self._level + max(0.0, now - self._at) * self._rate)
        self._at = now
