"""Where requests go: one or several endpoints, each with its own limit, cool-down and health.

The least loaded endpoint is taken. One that pushes back cools down, for all requests at once; one that fails several
times in a row is set aside, its requests go to the others, and a single request tries it again after a growing while.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vlmbatch.pace import Bucket, Limiter
from vlmbatch.transport import without_query

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vlmbatch.retry import Policy

_BROKEN_AFTER: Final = 3
_SICK_AFTER: Final = 20
_LEAST_PROBES: Final = 3
_LONGEST_PAUSE_S: Final = 5.0
_NO_TIME: Final = float("-inf")


@dataclass(slots=True)
class Endpoint:
    """One place that answers requests.

    Attributes:
        base_url: As the user gave it.
        url: The whole URL that requests are posted to.
        is_direct: Whether it is the provider's own address (False: a relay's, whose scores do not compare).
        limiter: How many requests may be open there.
        session: What spoke to what: our versions, and what the server says of itself, as far as it was asked and told.
        is_announced: Whether an attempt has carried ``session`` already.
        last_error: Why its last request failed.
    """

    base_url: str
    url: str
    is_direct: bool
    limiter: Limiter
    session: dict[str, Any] = field(default_factory=dict)
    is_announced: bool = False
    last_error: str = ""
    cool_until: float = _NO_TIME
    down_until: float = _NO_TIME
    failures: int = 0
    probes: int = 0
    is_down: bool = False
    down_since: float = _NO_TIME
    is_probed: bool = False

    @property
    def name(self) -> str:
        """How it stands in attempts and messages: without what may be secret."""
        return without_query(self.base_url)

    def opens_at(self) -> float:
        """Return the time from which it takes requests again."""
        return max(self.cool_until, self.down_until)

    def takes(self, now: float) -> bool:
        """Return whether a request may be sent there now; one that is set aside takes a single one, to try it."""
        if now < self.opens_at():
            return False
        return not self.is_probed if self.is_down else self.limiter.has_room


class Place(NamedTuple):
    """Leave to send one request: where, and what has to be given back afterwards."""

    endpoint: Endpoint
    generation: int
    tokens: float
    is_probe: bool


async def change(event: asyncio.Event, wait_s: float | None) -> None:
    """Wait until an event is set from now on, for some seconds at most where a number is given."""
    event.clear()
    try:
        async with asyncio.timeout(wait_s):
            await event.wait()
    except TimeoutError:
        return


class NoEndpointError(Exception):
    """No endpoint is left that answers, or all ask to come back much later."""


class Endpoints:
    """Gives out places, one caller at a time, and hears how each request ended.

    Args:
        endpoints: The places.
        policy: How long an endpoint may be down, and how long a server may make us wait.
        rpm: Requests per minute over all endpoints, None = no budget.
        tpm: Tokens per minute over all endpoints, None = no budget.
        delay_s: Least time between two requests.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        policy: Policy,
        *,
        rpm: float | None = None,
        tpm: float | None = None,
        delay_s: float = 0.0,
    ) -> None:
        now = time.monotonic()
        self.all = list(endpoints)
        self._policy = policy
        self._requests = [Bucket(rpm, now)] if rpm else []
        if delay_s > 0:
            self._requests.append(Bucket(60 / delay_s, now, burst_s=0))
        self._tokens = Bucket(tpm, now, burst_s=1.0) if tpm else None
        self._is_need_known = self._tokens is None
        self._changed = asyncio.Event()
        self._busy = _Integral(now)

    @property
    def in_flight(self) -> int:
        """Requests open now, over all endpoints."""
        return sum(endpoint.limiter.in_flight for endpoint in self.all)

    @property
    def peak(self) -> int:
        """Most requests that were open at once."""
        return int(self._busy.peak)

    @property
    def limit(self) -> int:
        """Requests that may be open now, over all endpoints."""
        return sum(int(endpoint.limiter.limit) for endpoint in self.all)

    def mean_in_flight(self) -> float:
        """Return how many requests were open on average over the time: the concurrency really reached."""
        return self._busy.mean(time.monotonic())

    async def acquire(self, tokens: float = 0.0) -> Place:
        """Wait until a request may be sent, and return where to.

        With a token budget, one request goes alone until one was answered: nobody knows before what a row takes.

        Args:
            tokens: What it will take from the token budget, as far as one can guess.

        Raises:
            NoEndpointError: Nothing answers any more.
        """
        while True:
            now = time.monotonic()
            wait_s = self._budget_wait_s(now, tokens)
            is_held = wait_s > 0 or not (self._is_need_known or self.in_flight == 0)
            endpoint = None if is_held else self._least_loaded(now)
            if endpoint is not None:
                return self._take(endpoint, now, tokens)
            self._check_hope(now)
            await change(self._changed, wait_s or self._next_opening_s(now))

    def _least_loaded(self, now: float) -> Endpoint | None:
        open_now = [endpoint for endpoint in self.all if endpoint.takes(now)]
        return min(open_now, key=lambda endpoint: endpoint.limiter.load, default=None)

    def _budget_wait_s(self, now: float, tokens: float) -> float:
        waits = [bucket.wait_s(now) for bucket in self._requests]
        if self._tokens is not None:
            waits.append(self._tokens.wait_s(now, tokens))
        return max(waits, default=0.0)

    def _next_opening_s(self, now: float) -> float | None:
        """Return the seconds until an endpoint opens again by time alone, None where only an ending request helps."""
        times = [endpoint.opens_at() for endpoint in self.all if endpoint.opens_at() > now]
        return min(times) - now if times else None

    def _take(self, endpoint: Endpoint, now: float, tokens: float) -> Place:
        for bucket in self._requests:
            bucket.take(now)
        if self._tokens is not None:
            self._tokens.take(now, tokens)
        endpoint.is_probed = endpoint.is_down
        self._busy.add(now, 1)
        return Place(endpoint, endpoint.limiter.start(), tokens, endpoint.is_down)

    def release(self, place: Place, *, used_tokens: float | None = None) -> None:
        """Give a place back; ``used_tokens`` corrects the guess."""
        place.endpoint.limiter.end()
        if place.is_probe:
            place.endpoint.is_probed = False
        self._busy.add(time.monotonic(), -1)
        if self._tokens is not None and used_tokens is not None:
            self._tokens.give_back(place.tokens - used_tokens)
        self._changed.set()

    # --- how requests ended -----------------------------------------------------------------------------

    def answered(self, place: Place, hold_s: float = 0.0) -> None:
        """Hear that a request was answered well; ``hold_s``: the server's budget is used up for so long."""
        endpoint = place.endpoint
        self._is_need_known = True
        endpoint.failures = endpoint.probes = 0
        endpoint.is_down = False
        endpoint.limiter.succeeded()
        if hold_s > 0:
            self.rest(endpoint, hold_s)

    def refused_row(self, place: Place) -> None:
        """Hear that the row was refused for its own sake: the endpoint is well."""
        place.endpoint.failures = place.endpoint.probes = 0
        place.endpoint.is_down = False

    def pushed_back(self, place: Place, wait_s: float) -> None:
        """Hear that the server asks everybody to slow down: one cut and one cool-down for all."""
        place.endpoint.limiter.pushed_back(place.generation)
        self.rest(place.endpoint, wait_s)

    def rest(self, endpoint: Endpoint, seconds: float) -> None:
        """Send nothing to an endpoint for a while."""
        endpoint.cool_until = max(endpoint.cool_until, time.monotonic() + seconds)

    def failed(self, place: Place, message: str, *, is_broken: bool) -> None:
        """Hear that the endpoint itself failed; after several in a row it is set aside.

        Args:
            place: Where.
            message: Why, for people.
            is_broken: No HTTP came (a few of these are enough); else the server answered that it is unwell.
        """
        endpoint = place.endpoint
        endpoint.last_error = message
        endpoint.failures += 1
        if place.is_probe:
            endpoint.probes += 1
            self._set_aside(endpoint)
        elif not endpoint.is_down and endpoint.failures >= (_BROKEN_AFTER if is_broken else _SICK_AFTER):
            self._set_aside(endpoint)

    def set_aside(self, endpoint: Endpoint, message: str) -> None:
        """Set an endpoint aside that did not answer when it was asked before the start."""
        endpoint.last_error = message
        endpoint.probes += 1
        self._set_aside(endpoint)

    def try_first(self, endpoint: Endpoint) -> None:
        """Send a single request to an endpoint before it gets more."""
        endpoint.is_down, endpoint.down_since = True, time.monotonic()

    def _set_aside(self, endpoint: Endpoint) -> None:
        now = time.monotonic()
        if not endpoint.is_down:
            endpoint.is_down, endpoint.down_since = True, now
        endpoint.down_until = now + min(_LONGEST_PAUSE_S, self._policy.base_s * 2**endpoint.probes / 10)

    def _is_lost(self, endpoint: Endpoint, now: float) -> bool:
        """Return whether an endpoint has been tried often and long enough to be given up."""
        is_long = now - endpoint.down_since >= self._policy.patience_s
        return endpoint.is_down and endpoint.probes >= _LEAST_PROBES and is_long

    def _check_hope(self, now: float) -> None:
        """Raise where no endpoint will take a request within the longest wait that is allowed."""
        policy = self._policy
        late = [endpoint for endpoint in self.all if endpoint.cool_until - now > policy.max_wait_s]
        lost = [endpoint for endpoint in self.all if self._is_lost(endpoint, now)]
        if len({id(endpoint) for endpoint in (*late, *lost)}) < len(self.all):
            return
        if lost:
            said = "; ".join(f"{endpoint.name}: {endpoint.last_error}" for endpoint in lost)
            raise NoEndpointError(f"no endpoint answers: {said}")
        wait_s = min(endpoint.cool_until for endpoint in late) - now
        raise NoEndpointError(f"the server asks to wait {wait_s:.0f} s, longer than {policy.max_wait_s:.0f} s")


class _Integral:
    """A number over time, summed up, for its mean; its time begins with the first change."""

    def __init__(self, now: float) -> None:
        self.peak = 0
        self._value = 0
        self._area = 0.0
        self._since: float | None = None
        self._at = now

    def add(self, now: float, change: int) -> None:
        if self._since is None:
            self._since = self._at = now
        self._area += self._value * (now - self._at)
        self._at = now
        self._value += change
        self.peak = max(self.peak, self._value)

    def mean(self, now: float) -> float:
        if self._since is None:
            return 0.0
        elapsed = now - self._since
        return (self._area + self._value * (now - self._at)) / elapsed if elapsed > 0 else float(self._value)
