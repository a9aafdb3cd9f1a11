"""Whether to send a request again, and when: rules without a clock, a socket or a provider's name in them.

The order in which the world is asked: the server's word on trying again (``x-should-retry``), the error, the wait
that it names (milliseconds, seconds or a date in the headers, or the adapter's reading of the body), and only then our
own exponential backoff with full jitter. The same table stands in docs/how-to/run.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping, Sequence

    from vlmbatch.records import Try

TIMEOUT: Final = "timeout"
"""Code of a try whose deadline passed after the connection stood."""

_OVERLOADED: Final = frozenset({429, 503, 529})
_JITTER: Final = 0.1
_DURATION: Final = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")
_RATE_HEADER: Final = re.compile(
    r"ratelimit-(?:(?P<what1>limit|remaining|reset)-(?P<kind1>[a-z-]+)"
    r"|(?P<kind2>[a-z-]+)-(?P<what2>limit|remaining|reset))$"
)


@dataclass(frozen=True, slots=True)
class Policy:
    """How patient a run is.

    Attributes:
        max_tries: Sendings of one row in one run, the first included.
        max_timeouts: How many of them may end by the deadline; each gets twice the time of the one before.
        timeout_s: Deadline of a first try, from connecting to the last byte of the answer.
        base_s: Longest backoff after the first failure; it doubles with each further one.
        backoff_cap_s: Longest backoff of our own.
        max_wait_s: Longest wait that a server may ask for; beyond it the row is given up for now.
        patience_s: How long every endpoint may be down before the run is stopped.
    """

    max_tries: int = 6
    max_timeouts: int = 3
    timeout_s: float = 600.0
    base_s: float = 1.0
    backoff_cap_s: float = 60.0
    max_wait_s: float = 120.0
    patience_s: float = 30.0


class Failure(NamedTuple):
    """What a try came to that brought no model answer.

    ``status_code`` is None where no HTTP answer came; ``code`` then names why. ``is_retryable`` is the adapter's word
    on the error (408, 409, 429 and 5xx are, other 4xx are not). ``body_wait_s`` is the wait that the body names.
    """

    status_code: int | None
    code: str | None = None
    headers: Mapping[str, str] = MappingProxyType({})
    is_retryable: bool = False
    body_wait_s: float | None = None


class Wait(NamedTuple):
    """Send again after ``seconds``. ``is_shared``: the server is asking everybody to slow down, not this row alone."""

    seconds: float
    is_shared: bool


class GiveUp(NamedTuple):
    """Do not send again in this run; ``reason`` adds what the error itself does not say, else it is empty."""

    reason: str = ""


def decide(failure: Failure, tries: Sequence[Try], now: datetime, rng: random.Random, policy: Policy) -> Wait | GiveUp:
    """Say what follows a failed try.

    Args:
        failure: The try that failed.
        tries: All tries of the row in this run, this one included.
        now: The time, with its zone.
        rng: Where jitter comes from.
        policy: How patient the run is.
    """
    if not _may_retry(failure):
        return GiveUp()
    asked = asked_wait_s(failure.headers, now, failure.body_wait_s)
    if asked is not None and asked > policy.max_wait_s:
        back = datetime.fromtimestamp(now.timestamp() + asked, UTC).strftime("%Y-%m-%d %H:%M UTC")
        most = f"{policy.max_wait_s:.0f} s"
        return GiveUp(f"the server asks to wait {asked:.0f} s, more than {most}; come back after {back}")
    if len(tries) >= policy.max_tries:
        return GiveUp(f"given up after {len(tries)} tries")
    timeouts = count_timeouts(tries)
    if timeouts >= policy.max_timeouts:
        longest = policy.timeout_s * 2 ** (timeouts - 1)
        return GiveUp(f"no whole answer within {longest:g} s in the last of {timeouts} waits; raise --timeout")
    is_shared = asked is not None or failure.status_code in _OVERLOADED
    if asked:  # "at once" is no advice to a crowd: our own pace, then
        return Wait(asked * (1 + _JITTER * rng.random()), is_shared)
    ceiling = min(policy.backoff_cap_s, policy.base_s * 2 ** (len(tries) - 1))
    return Wait(ceiling * rng.random(), is_shared)


def _may_retry(failure: Failure) -> bool:
    word = failure.headers.get("x-should-retry", "").strip().lower()
    if word in {"true", "false"}:
        return word == "true"
    return failure.status_code is None or failure.is_retryable


def count_timeouts(tries: Sequence[Try]) -> int:
    """Return how many tries ended by their deadline."""
    return sum(one["error"] == TIMEOUT for one in tries) if tries else 0


def next_timeout_s(policy: Policy, tries: Sequence[Try]) -> float:
    """Return the deadline of the next try: doubled for each one that passed, so that no wait is repeated in vain."""
    return float(policy.timeout_s * 2 ** count_timeouts(tries))


def asked_wait_s(headers: Mapping[str, str], now: datetime, body_wait_s: float | None = None) -> float | None:
    """Return the wait that an answer asks for, in seconds; None where it names none, or none that makes sense.

    ``retry-after-ms`` comes before ``retry-after`` (seconds, or an HTTP date), and both before the body. A negative or
    unreadable wait is taken as absent; a date in the past as no wait at all.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    text = headers.get("retry-after")
    if text is not None:
        seconds = _number(text)
        if seconds is None:
            seconds = _until(text, now)
        if seconds is not None:
            return seconds
    return body_wait_s if body_wait_s is not None and body_wait_s >= 0 else None


def _number(text: str | None) -> float | None:
    """Parse a plain non-negative decimal number; None for anything else (``nan``, ``inf`` and ``1e9`` included)."""
    text = (text or "").strip()
    return float(text) if re.fullmatch(r"\d{1,12}(\.\d*)?", text, re.ASCII) else None


def _until(text: str, now: datetime) -> float | None:
    """Return the seconds until an HTTP date, None where the text is none."""
    try:
        then = parsedate_to_datetime(text.strip())
    except (ValueError, OverflowError):
        return None
    if then.tzinfo is None:
        then = then.replace(tzinfo=UTC)
    return max(0.0, (then - now).total_seconds())


def headroom_wait_s(headers: Mapping[str, str], now: datetime, tokens: float = 1.0) -> float:
    """Return how long to hold the next request back because a budget in the rate-limit headers is used up.

    Understood are the two habits of naming them: ``x-ratelimit-remaining-requests`` with resets as durations, and
    ``...-ratelimit-requests-remaining`` with resets as times. A budget refills steadily: so with a limit of 500 that is
    whole again in 60 s, the next request is due after 0.12 s, not after 60.

    Args:
        headers: Of an answer, names in lower case.
        now: The time, with its zone.
        tokens: What a request takes at worst from a budget of tokens, as far as is known.
    """
    budgets: dict[str, dict[str, str]] = {}
    for name, value in headers.items():
        if "ratelimit-" not in name:
            continue
        match = _RATE_HEADER.search(name)
        if match:
            kind, what = match["kind1"] or match["kind2"], match["what1"] or match["what2"]
            budgets.setdefault(kind, {})[what] = value
    needs = {kind: max(1.0, tokens) if "tokens" in kind else 1.0 for kind in budgets}
    return max((_refill_s(budget, now, needs[kind]) for kind, budget in budgets.items()), default=0.0)


def _refill_s(budget: Mapping[str, str], now: datetime, need: float) -> float:
    """Return the seconds until a budget has what a request takes (all of it, where that is more than there ever is)."""
    remaining = _number(budget.get("remaining"))
    reset = _reset_s(budget.get("reset", ""), now)
    if remaining is None or reset is None:
        return 0.0
    limit = _number(budget.get("limit"))
    missing = (min(need, limit) if limit else need) - remaining
    if missing <= 0:
        return 0.0
    return reset * missing / (limit - remaining) if limit else reset


def _reset_s(text: str, now: datetime) -> float | None:
    """Parse when a budget is whole again: ``6m0s``, ``12ms``, ``1.5``, or an RFC 3339 time."""
    text = text.strip()
    number = _number(text)
    if number is not None:
        return number
    match = _DURATION.fullmatch(text)
    if text and match:
        hours, minutes, seconds, milliseconds = (float(group or 0) for group in match.groups())
        return hours * 3600 + minutes * 60 + seconds + milliseconds / 1000
    try:
        then = datetime.fromisoformat(text)
    except ValueError:
        return None
    return max(0.0, (then - now).total_seconds()) if then.tzinfo else None
