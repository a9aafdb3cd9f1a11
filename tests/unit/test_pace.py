"""The limit on open requests and the budgets per minute, with a clock of the tests' own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vlmbatch.pace import Bucket, Limiter


def test_limiter_opens_fully() -> None:
    """All places are there from the start."""
    limiter = Limiter(32)
    for _ in range(32):
        assert limiter.has_room
        limiter.start()
    assert not limiter.has_room
    assert limiter.peak == 32


def test_push_backs_of_one_moment_cut_once() -> None:
    """Thirty requests that fail together say one thing, not thirty."""
    limiter = Limiter(32)
    generations = [limiter.start() for _ in range(32)]
    for generation in generations:
        limiter.pushed_back(generation)
    assert limiter.limit == 16
    limiter.pushed_back(limiter.start())
    assert limiter.limit == 8


def test_limit_never_falls_below_one() -> None:
    """However bad it gets, one request may be open."""
    limiter = Limiter(4)
    for _ in range(20):
        limiter.pushed_back(limiter.generation)
    assert limiter.limit == 1
    assert Limiter(1).has_room


def test_round_of_successes_opens_one_more() -> None:
    """Additive up: as many successes as there are places give one place more, up to the ceiling."""
    limiter = Limiter(100)
    limiter.pushed_back(0)
    before = limiter.limit
    for _ in range(int(before)):
        limiter.succeeded()
    assert before + 0.9 < limiter.limit <= before + 1
    for _ in range(100_000):
        limiter.succeeded()
    assert limiter.limit == 100


def test_level_of_the_last_push_back_is_probed_with_care() -> None:
    """Close to where it hurt, growing takes several rounds; above it, it is forgotten."""
    limiter = Limiter(100)
    limiter.limit = 5.0
    limiter.pushed_back(0)
    needed = 0
    while int(limiter.limit) < 4:
        limiter.succeeded()
        needed += 1
    careful = 0
    while int(limiter.limit) < 5:
        limiter.succeeded()
        careful += 1
    assert careful > 2 * needed


@given(st.lists(st.booleans(), max_size=200), st.integers(1, 64))
def test_limit_stays_between_one_and_its_ceiling(events: list[bool], ceiling: int) -> None:
    """Whatever happens, the limit is sane."""
    limiter = Limiter(ceiling)
    for is_success in events:
        generation = limiter.start()
        limiter.succeeded() if is_success else limiter.pushed_back(generation)
        limiter.end()
        assert 1 <= limiter.limit <= ceiling
    assert limiter.in_flight == 0


@given(per_minute=st.floats(1, 6000), seconds=st.floats(1, 300))
def test_bucket_never_gives_more_than_its_budget(per_minute: float, seconds: float) -> None:
    """Over any stretch of time, no more is taken than the budget says, plus what may gather at once."""
    bucket, now, taken = Bucket(per_minute, 0.0), 0.0, 0
    while taken < 20_000:
        now += bucket.wait_s(now) + 1e-9
        if now > seconds:
            break
        bucket.take(now)
        taken += 1
    assert taken <= per_minute * seconds / 60 + max(1.0, per_minute / 600) + 1e-3


def test_bucket_lends_to_a_request_larger_than_itself() -> None:
    """A request of many tokens goes when the budget is full, and the next one waits until the debt is paid."""
    bucket = Bucket(600, 0.0, burst_s=1.0)
    assert bucket.wait_s(0.0, 100) == 0
    bucket.take(0.0, 100)
    assert bucket.wait_s(0.0, 1) == 9.1
    bucket.give_back(50)
    assert bucket.wait_s(0.0, 1) == 4.1


def test_bucket_survives_a_clock_that_stands_still() -> None:
    """Equal times refill nothing and break nothing."""
    bucket = Bucket(60, 5.0)
    bucket.take(5.0)
    assert bucket.wait_s(5.0) == 1.0
    assert bucket.wait_s(4.0) == 1.0
