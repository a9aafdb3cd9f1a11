"""The rules of trying again, as tables: no clock, no socket."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmbatch.retry import (
    Failure,
    GiveUp,
    Policy,
    Wait,
    asked_wait_s,
    decide,
    headroom_wait_s,
    next_timeout_s,
)

if TYPE_CHECKING:
    from vlmbatch.records import Try

NOW = datetime(2026, 5, 1, 12, 0, 0, tzinfo=UTC)
POLICY = Policy(max_tries=4, max_timeouts=2, timeout_s=10, base_s=1, backoff_cap_s=3, max_wait_s=100)


def tried(*errors: str) -> list[Try]:
    """Return tries that ended so."""
    return [{"status_code": None, "error": error, "waited_s": 0.0} for error in errors]


def decided(failure: Failure, tries: list[Try] | None = None, seed: int = 1) -> Wait | GiveUp:
    """Decide after one failed try, unless more are given."""
    return decide(failure, tried("x") if tries is None else tries, NOW, random.Random(seed), POLICY)


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        ({"retry-after": "2"}, None, 2.0),
        ({"retry-after": " 2.5 "}, None, 2.5),
        ({"retry-after": "0"}, None, 0.0),
        ({"retry-after-ms": "250"}, None, 0.25),
        ({"retry-after-ms": "250", "retry-after": "9"}, None, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "9"}, None, 9.0),
        ({"retry-after": format_datetime(NOW + timedelta(seconds=3), usegmt=True)}, None, 3.0),
        ({"retry-after": format_datetime(NOW - timedelta(hours=1), usegmt=True)}, None, 0.0),
        ({"retry-after": "Fri, 01 May 2026 12:00:30 -0000"}, None, 30.0),
        ({"retry-after": "-5"}, None, None),
        ({"retry-after": "nan"}, None, None),
        ({"retry-after": "inf"}, None, None),
        ({"retry-after": "1e9"}, None, None),
        ({"retry-after": "tomorrow"}, None, None),
        ({"retry-after": ""}, None, None),
        ({"retry-after": "Sun, 99 Foo 9999 99:99:99 GMT"}, None, None),
        ({"retry-after": "86400"}, None, 86400.0),
        ({}, 7.5, 7.5),
        ({"retry-after": "2"}, 7.5, 2.0),
        ({"retry-after": "-2"}, 7.5, 7.5),
        ({}, -1.0, None),
        ({}, None, None),
    ],
)
def test_asked_wait_in_every_form_is_read(headers: dict[str, str], body: float | None, expected: float | None) -> None:
    """Milliseconds before seconds or a date, both before the body; nonsense is taken as absent."""
    assert asked_wait_s(headers, NOW, body) == expected


@pytest.mark.parametrize(
    ("failure", "is_retried"),
    [
        (Failure(429, is_retryable=True), True),
        (Failure(500, is_retryable=True), True),
        (Failure(400), False),
        (Failure(None, "reset"), True),
        (Failure(None, "tls"), True),
        (Failure(200, is_retryable=True), True),
        (Failure(200), False),
        (Failure(429, headers={"x-should-retry": "false"}, is_retryable=True), False),
        (Failure(400, headers={"x-should-retry": "true"}), True),
        (Failure(503, headers={"x-should-retry": "maybe"}, is_retryable=True), True),
    ],
)
def test_error_is_retried_only_where_it_may_pass(failure: Failure, is_retried: bool) -> None:
    """The server's word comes first, then the kind of error."""
    assert isinstance(decided(failure), Wait) is is_retried


def test_wait_beyond_the_cap_is_given_up_with_a_time() -> None:
    """Nobody sleeps for a day: the row is given up, and the message says when to come back."""
    decision = decided(Failure(429, headers={"retry-after": "86400"}, is_retryable=True))
    assert isinstance(decision, GiveUp)
    assert "2026-05-02 12:00 UTC" in decision.reason


def test_asked_wait_is_never_shortened() -> None:
    """Jitter is added on top of what the server asks for."""
    for seed in range(50):
        decision = decided(Failure(429, headers={"retry-after": "5"}, is_retryable=True), seed=seed)
        assert isinstance(decision, Wait)
        assert 5.0 <= decision.seconds <= 5.5
        assert decision.is_shared


def test_wait_of_no_time_leaves_our_own_pace() -> None:
    """``Retry-After: 0`` and a date that has passed are no leave for everybody to come back in the same moment."""
    past = format_datetime(NOW - timedelta(hours=1), usegmt=True)
    for text in ("0", past):
        waits = [decided(Failure(429, headers={"retry-after": text}, is_retryable=True), seed=s) for s in range(50)]
        assert all(isinstance(wait, Wait) and wait.is_shared for wait in waits)
        assert len({wait.seconds for wait in waits if isinstance(wait, Wait)}) == len(waits)


@given(tries=st.integers(1, 3), seed=st.integers())
def test_own_backoff_is_jittered_and_bounded(tries: int, seed: int) -> None:
    """Full jitter under a ceiling that doubles up to its cap."""
    decision = decided(Failure(500, is_retryable=True), tried(*["500"] * tries), seed)
    assert isinstance(decision, Wait)
    assert 0 <= decision.seconds <= min(3, 2 ** (tries - 1))
    assert not decision.is_shared


@pytest.mark.parametrize("status", [429, 503, 529])
def test_overload_is_everybodys_affair(status: int) -> None:
    """What tells all clients to slow down is shared; a single 500 is the row's own."""
    decision = decided(Failure(status, is_retryable=True))
    assert isinstance(decision, Wait)
    assert decision.is_shared


def test_tries_are_bounded() -> None:
    """The last try of a row is its last."""
    decision = decided(Failure(500, is_retryable=True), tried(*["500"] * 4))
    assert decision == GiveUp("given up after 4 tries")


def test_timeouts_are_bounded_and_hint_at_the_flag() -> None:
    """Deadlines double, and after a few of them the user is told which flag to raise."""
    assert next_timeout_s(POLICY, []) == 10
    assert next_timeout_s(POLICY, tried("reset", "500")) == 10
    assert next_timeout_s(POLICY, tried("timeout")) == 20
    assert next_timeout_s(POLICY, tried("timeout", "reset", "timeout")) == 40
    decision = decided(Failure(None, "timeout"), tried("timeout", "timeout"))
    assert isinstance(decision, GiveUp)
    assert "20 s" in decision.reason
    assert "--timeout" in decision.reason


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, 0.0),
        ({"x-ratelimit-remaining-requests": "5", "x-ratelimit-reset-requests": "1s"}, 0.0),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1.5s"}, 1.5),
        (
            {
                "x-ratelimit-limit-requests": "500",
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-reset-requests": "1m0s",
            },
            0.12,
        ),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "250ms"}, 0.25),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "1h2m3s"}, 3723.0),
        (
            {
                "anthropic-ratelimit-requests-remaining": "0",
                "anthropic-ratelimit-requests-reset": "2026-05-01T12:00:04Z",
            },
            4.0,
        ),
        ({"x-ratelimit-remaining-requests": "0"}, 0.0),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "soon"}, 0.0),
        ({"x-ratelimit-remaining-requests": "none", "x-ratelimit-reset-requests": "5"}, 0.0),
    ],
)
def test_used_up_budget_in_headers_holds_back(headers: dict[str, str], expected: float) -> None:
    """Both habits of naming are read; a budget that refills steadily is not waited for as a whole."""
    assert headroom_wait_s(headers, NOW) == pytest.approx(expected)


@pytest.mark.parametrize(("remaining", "expected"), [("900", 0.0), ("600", 0.0), ("500", 6.0), ("0", 36.0)])
def test_token_budget_in_headers_is_held_against_what_a_request_takes(remaining: str, expected: float) -> None:
    """A rest that is too small for the next request is used up: 1,000 a minute refill the missing part in its time."""
    reset = f"{60 * (1000 - int(remaining)) / 1000:g}s"  # when it is whole again, by the same steady refill
    headers = {
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": remaining,
        "x-ratelimit-reset-tokens": reset,
    }
    assert headroom_wait_s(headers, NOW, 600) == pytest.approx(expected)
    assert headroom_wait_s(headers, NOW, 9_999) == pytest.approx(60 * (1000 - int(remaining)) / 1000)


@given(st.dictionaries(st.sampled_from(["retry-after", "retry-after-ms", "x-ratelimit-reset-tokens"]), st.text()))
def test_headers_of_any_text_never_raise(headers: dict[str, Any]) -> None:
    """Headers are strangers' text: whatever stands there, a decision comes out, and no negative wait."""
    headers["x-ratelimit-remaining-tokens"] = "0"
    wait = asked_wait_s(headers, NOW)
    assert wait is None or wait >= 0
    assert headroom_wait_s(headers, NOW) >= 0
    assert isinstance(decided(Failure(429, headers=headers, is_retryable=True)), Wait | GiveUp)
