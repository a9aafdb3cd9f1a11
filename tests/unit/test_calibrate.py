"""The statistics of a sample: how often the true total lies in the interval, and what must hold exactly."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmbatch.stages.estimating import calibrate
from vlmbatch.stages.estimating.calibrate import Point

RUNS = 1000
HOLDS_IN = 0.93
REQUESTS = 500
POOL = 50_000
"""Every run of a shape takes its rows out of so many."""

Draw = Callable[[random.Random], float]


def _lognormal(sigma: float, limit: float = math.inf) -> Draw:
    return lambda rng: min(limit, 200 * math.exp(rng.gauss(0, sigma)))


def _runaway(part: float, lowest: float = 4096) -> Draw:
    return lambda rng: rng.uniform(lowest, 4096) if rng.random() < part else max(1.0, rng.gauss(300, 60))


def _thinks_at_times(rng: random.Random) -> float:
    answer = 300 * math.exp(rng.gauss(0, 0.3))
    return answer + (800 * math.exp(rng.gauss(0, 0.8)) if rng.random() < 0.2 else 0)


def _silent_at_times(rng: random.Random) -> float:
    return 0.0 if rng.random() < 0.5 else 400 * math.exp(rng.gauss(0, 1))


OUTPUTS: dict[str, tuple[Draw, int, float | None]] = {
    "normal": (lambda rng: max(1.0, rng.gauss(300, 60)), 30, None),
    "lognormal 0.5": (_lognormal(0.5), 30, None),
    "lognormal 1": (_lognormal(1), 30, None),
    "lognormal 1, 60 rows": (_lognormal(1), 60, None),
    "lognormal 1.5": (_lognormal(1.5), 30, None),
    "lognormal 2 with a limit": (_lognormal(2, 4096), 30, 4096),
    "pareto 2.5": (lambda rng: 100 * rng.paretovariate(2.5), 30, None),
    "a tenth at the limit": (_runaway(0.1), 30, 4096),
    "a twelfth at the limit": (_runaway(0.08), 30, 4096),
    "a twentieth at the limit": (_runaway(0.05), 30, 4096),
    "a twentieth at the limit, 60 rows": (_runaway(0.05), 60, 4096),
    "a hundredth at the limit": (_runaway(0.01), 30, 4096),
    "a twentieth far out": (_runaway(0.05, 1500), 30, 4096),
    "a fifth thinks long": (_thinks_at_times, 30, None),
    "half says nothing": (_silent_at_times, 30, None),
}
"""Shapes of output tokens: the draw, the sample's size, the limit. What is held against them is the true total."""


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resample less: that only adds chance to both ends, so what holds here holds the more in use."""
    monkeypatch.setattr(calibrate, "_RESAMPLES", 300)


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("shape", OUTPUTS)
def test_interval_holds_the_true_total_of_long_tailed_outputs(shape: str) -> None:
    """In at least 93 % of 1,000 simulated runs the 95 % interval holds the total that was really used."""
    draw, size, cap = OUTPUTS[shape]
    rng = random.Random(f"{shape} 2026-11-30")
    pool = [draw(rng) for _ in range(POOL)]
    held = 0
    for _ in range(RUNS):
        truth = rng.choices(pool, k=REQUESTS)  # in no order, so its first rows are a sample of it
        found = calibrate.total([Point(1000, y) for y in truth[:size]], {1000: REQUESTS - size}, cap=cap)
        held += _holds(found, sum(truth))
    assert held >= HOLDS_IN * RUNS


INPUTS: dict[str, Callable[[random.Random, int], float]] = {
    "formula and a constant text": lambda rng, size: 200 + 1.05 * size + rng.gauss(0, 8),
    "server shrinks large images": lambda rng, size: 200 + min(size, 300),
    "server shrinks the largest": lambda rng, size: 200 + min(size, 1000) + rng.gauss(0, 20),
    "output grows with the image": lambda rng, size: 0.3 * size + 200 * math.exp(rng.gauss(0, 1)),
}
"""What a row uses, by its size in formula tokens."""


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("shape", INPUTS)
def test_interval_holds_the_true_total_where_size_matters(shape: str) -> None:
    """The same where images differ widely in size, whether the formula is right, half right or beside the point."""
    use = INPUTS[shape]
    rng = random.Random(f"{shape} 2026-11-30")
    sizes = [round(100 * math.exp(rng.gauss(0, 1))) + 1 for _ in range(POOL)]
    pool = [Point(size, use(rng, size)) for size in sizes]
    held = 0
    for _ in range(RUNS):
        run = rng.choices(pool, k=REQUESTS)
        found = calibrate.total(run[:30], Counter(point.size for point in run[30:]))
        held += _holds(found, math.fsum(point.y for point in run))
    assert held >= HOLDS_IN * RUNS


def _holds(found: calibrate.Total, truth: float) -> bool:
    assert found.low is not None
    assert found.high is not None
    return found.low <= truth <= found.high


# --- what holds exactly ------------------------------------------------------------------------------------------

VALUES = st.lists(st.integers(0, 5000), min_size=1, max_size=60)


@given(values=VALUES)
def test_total_with_all_rows_measured_is_their_sum(values: list[int]) -> None:
    """Where nothing is left to estimate there is no range."""
    found = calibrate.total([Point(7, y) for y in values], {})
    assert found.estimate == found.low == found.high == sum(values)


@given(values=VALUES, left=st.integers(1, 10**6))
def test_interval_holds_its_estimate_and_never_undoes_what_was_measured(values: list[int], left: int) -> None:
    """Low is at least what was measured already, high at most what the limit allows, the estimate between them."""
    found = calibrate.total([Point(7, y) for y in values], {7: left}, cap=5000)
    if len(values) < 5:
        assert found.low is None
        assert found.high is None
        return
    assert found.low is not None
    assert found.high is not None
    slack = 1e-9 * (1 + found.estimate)
    assert sum(values) - slack <= found.low <= found.estimate + slack
    assert found.estimate - slack <= found.high <= sum(values) + left * 5000 + slack


@given(values=st.lists(st.integers(1, 5000), min_size=10, max_size=40), seed=st.integers(0, 9))
def test_interval_does_not_depend_on_chance(values: list[int], seed: int) -> None:
    """The same sample gives the same figures, whatever else drew random numbers."""
    points = [Point(7, y) for y in values]
    first = calibrate.total(points, {7: 1000})
    random.seed(seed)
    assert calibrate.total(points, {7: 1000}) == first


def test_equal_rows_leave_no_doubt() -> None:
    """Where every row used the same, so will the rest."""
    found = calibrate.total([Point(100, 42)] * 30, {100: 970})
    assert found.low == found.estimate == found.high == 42_000


def test_more_rows_narrow_the_interval() -> None:
    """A larger sample of the same kind gives a narrower range."""
    rng = random.Random(5)
    values = [Point(7, 200 * math.exp(rng.gauss(0, 0.6))) for _ in range(3000)]
    widths = []
    for size in (30, 300, 3000):
        found = calibrate.total(values[:size], {7: 100_000})
        assert found.low is not None
        assert found.high is not None
        widths.append((found.high - found.low) / found.estimate)
    assert widths[0] > 2 * widths[1] > 4 * widths[2]


def test_sample_of_small_images_does_not_make_large_ones_cheap() -> None:
    """Where the formula explains the input, the rest is priced by its own sizes."""
    sample = [Point(size, 50 + size) for size in range(100, 400, 10)]
    found = calibrate.total(sample, {1000: 900})
    assert found.by == "formula"
    assert found.estimate == pytest.approx(sum(p.y for p in sample) + 900 * 1050)
    # Nothing as large was measured: the server may shrink it, so the low end does not count on it.
    assert found.low is not None
    assert found.low < 900 * 500


def test_size_classes_weigh_the_sample_like_the_run() -> None:
    """Where size matters in another way, classes are weighed by how many rows the run has in them."""
    rng = random.Random(1)
    small = [Point(100, 100 + rng.randrange(20)) for _ in range(20)]
    large = [Point(1000, 300 + rng.randrange(20)) for _ in range(20)]
    odd = [Point(500, 5000 + rng.randrange(20)) for _ in range(20)]
    found = calibrate.total(small + large + odd, {100: 1000, 500: 10, 1000: 10})
    assert found.by == "size_classes"
    rest = 1000 * fmean(p.y for p in small) + 10 * fmean(p.y for p in odd) + 10 * fmean(p.y for p in large)
    assert found.estimate == pytest.approx(sum(p.y for p in small + large + odd) + rest)


def test_one_odd_row_is_no_reason_for_an_endless_range() -> None:
    """One row unlike all others: the range allows for many more of them, not for any number, and a limit cuts it."""
    points, most = [Point(7, 10)] * 29 + [Point(7, 4000)], 10_030 * 4000
    free, limited = calibrate.total(points, {7: 10_000}), calibrate.total(points, {7: 10_000}, cap=4000)
    assert free.high is not None
    assert limited.high is not None
    assert 2 * free.estimate < limited.high < 0.35 * most
    assert limited.high < free.high < 0.6 * most


def test_high_end_leaves_room_for_rows_at_the_limit_that_the_sample_missed() -> None:
    """Thirty equal rows of a long run: 9.5 % of the rest may run to the limit; who knows better reads the other end."""
    found = calibrate.total([Point(7, 300)] * 30, {7: 10**6}, cap=4096)
    assert found.low == found.estimate == found.high_as_seen == (10**6 + 30) * 300
    assert found.high == pytest.approx(found.estimate + 0.09503 * 10**6 * (4096 - 300), rel=1e-4)


@given(values=VALUES, left=st.integers(1, 10**6), cap=st.integers(1, 10_000))
def test_end_as_seen_stands_between_the_estimate_and_the_high_one(values: list[int], left: int, cap: int) -> None:
    """The room for missed rows only ever adds, even where a provider went beyond the limit."""
    found = calibrate.total([Point(7, y) for y in values], {7: left}, cap=cap)
    if found.low is None or found.high is None or found.high_as_seen is None:
        assert len(values) < 5
        return
    slack = 1e-9 * (1 + found.high)
    assert found.low <= found.estimate + slack <= found.high_as_seen + 2 * slack <= found.high + 3 * slack
    assert found.high <= sum(values) + left * max(cap, *values) + slack


def test_room_for_missed_rows_shrinks_as_the_sample_grows() -> None:
    """Ten times the rows leave a tenth of the room."""
    rooms = []
    for size in (30, 300, 3000):
        found = calibrate.total([Point(7, 300)] * size, {7: 10**6}, cap=4096)
        assert found.high is not None
        rooms.append(found.high - found.estimate)
    assert rooms[0] / rooms[1] == pytest.approx(10, rel=0.06)
    assert rooms[1] / rooms[2] == pytest.approx(10, rel=0.06)


def test_limit_bounds_the_mean_without_any_assumption() -> None:
    """Of thirty rows at the floor, no more than the band's width can be thought at the limit."""
    moved = math.sqrt(math.log(40) / 60)
    assert calibrate._bound_of_mean([0.0] * 30, 1000) == pytest.approx(1000 * moved)
    assert calibrate._bound_of_mean([1000.0] * 30, 1000) == pytest.approx(1000)


@pytest.mark.parametrize(("part", "value"), [(0.95, 95), (1.0, 100), (0.01, 1), (0.5, 50)])
def test_quantile_is_the_nearest_rank(part: float, value: int) -> None:
    """A quantile is a value that was seen."""
    assert calibrate.quantile([*range(100, 0, -1)], part) == value


def test_unseen_share_is_the_rule_of_three() -> None:
    """Thirty rows without a kind leave room for nearly a tenth of that kind."""
    assert calibrate.unseen_share(30, 10**6) == pytest.approx(0.095, abs=0.001)
    assert (1 - calibrate.unseen_share(30, 10**6)) ** 30 == pytest.approx(0.05, rel=1e-3)


@given(sample=st.integers(1, 200), rest=st.integers(0, 2000))
def test_unseen_share_is_never_less_than_the_exact_one(sample: int, rest: int) -> None:
    """As many rows as a sample misses in one of twenty cases, counted out, fit into it."""
    exact, chance = 0, Fraction(rest, sample + rest)
    while exact < rest and chance >= Fraction(1, 20):
        exact += 1
        chance *= Fraction(rest - exact, sample + rest - exact)
    assert exact <= calibrate.unseen_share(sample, rest) * rest + 1e-9
