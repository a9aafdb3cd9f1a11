"""Statistics of a sample: from measured rows to the whole run, with an interval that holds in long tails too.

Pure functions on numbers. What a total is: the measured rows are known and simply added; the rest is estimated from
them, and where the image-size formula explains a quantity, by it (a regression on the formula's tokens: size classes
without edges), so that a sample of small images does not make large ones cheap.

The interval is a studentised bootstrap. A sample hides the far end of a long tail, so its upper side is taken from the
sample with one more row in it, farther out than the largest that was seen; where the answers have a limit, a bound that
needs no assumption but the limit (Anderson's, over the Dvoretzky-Kiefer-Wolfowitz band) cuts it again.
tests/unit/test_calibrate.py counts how often the true total lies inside.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from operator import mul
from statistics import NormalDist, fmean
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

CONFIDENCE = 0.95
FEW = 20
"""Below this many measured rows the tail may move everything, and the estimate says so."""

_LEAST = 5
_LEAST_FOR_BOOTSTRAP = 10
_MOST_FOR_BOOTSTRAP = 2000
"""Beyond it the mean is as good as normal, and resampling only costs time."""

_RESAMPLES = 1000
_SEED = 20261130
_TAIL_STEP = 0.6
"""How much farther than the largest row the unseen one is put, as a part of the largest one's way from the median."""

_MOST_UNEXPLAINED = 0.2

_SIDE = (1 + CONFIDENCE) / 2
_Z = NormalDist().inv_cdf(_SIDE)


class Point(NamedTuple):
    """One measured row: ``x`` what the formula says (tokens), ``y`` what was measured."""

    x: float
    y: float


class Rest(NamedTuple):
    """The rows that were not measured: how many, and the mean of what the formula says for them."""

    count: int
    x_mean: float


@dataclass(frozen=True, slots=True)
class Total:
    """A quantity over a whole run.

    Attributes:
        sample: Rows measured.
        sample_mean: Their mean.
        estimate: The total over all rows, measured ones as measured.
        low: Lower end of the 95 % interval of the total; None below five rows.
        high: Upper end.
        rows: All rows.
        by_size: Whether the formula's tokens explain the quantity and were used.
    """

    sample: int
    sample_mean: float
    estimate: float
    low: float | None
    high: float | None
    rows: int
    by_size: bool

    @property
    def mean(self) -> float:
        """The estimate per row."""
        return self.estimate / self.rows


def total(points: Sequence[Point], rest: Rest, *, cap: float | None = None) -> Total:
    """Estimate a quantity over the whole run.

    Args:
        points: The measured rows, at least one.
        rest: The others.
        cap: The most that one row can reach, None where there is no limit.
    """
    values = [point.y for point in points]
    known, n = math.fsum(values), len(values)
    line = _fit(points) if rest.count and n >= _LEAST_FOR_BOOTSTRAP else None
    adjusted = [y - line.slope * (x - rest.x_mean) for x, y in points] if line else values
    middle = max(0.0, fmean(adjusted))
    low, high = _interval_of_mean(adjusted, rest.count, line.inflation(rest.x_mean) if line else 1.0)
    if high is not None and cap is not None:
        high = min(high, cap if line or rest.count < n else _bound_of_mean(values, cap))
    rows = n + rest.count
    return Total(
        n,
        known / n,
        known + rest.count * middle,
        None if low is None else known + rest.count * max(0.0, min(low, middle)),
        None if high is None else known + rest.count * max(high, middle),
        rows,
        line is not None,
    )


# --- the formula as an explanation ------------------------------------------------------------------------------


class _Line(NamedTuple):
    """Least squares of y on x over the sample."""

    slope: float
    n: int
    x_mean: float
    x_squares: float

    def inflation(self, x: float) -> float:
        """Return how much a slope that is itself estimated widens an interval at ``x``."""
        return math.sqrt((self.n - 1) / (self.n - 2) * (1 + self.n * (x - self.x_mean) ** 2 / self.x_squares))


def _fit(points: Sequence[Point]) -> _Line | None:
    """Fit a line, None where x does not vary or leaves more than a fifth of the scatter of y unexplained.

    A weak or bent relation (a server that shrinks large images, say) is no ground to extrapolate on: the plain mean
    is wider and right.
    """
    n = len(points)
    x_mean, y_mean = fmean(p.x for p in points), fmean(p.y for p in points)
    x_squares = math.fsum((p.x - x_mean) ** 2 for p in points)
    if x_squares <= 1e-9 * n * (1 + x_mean * x_mean):
        return None
    slope = math.fsum((p.x - x_mean) * (p.y - y_mean) for p in points) / x_squares
    left = math.fsum((p.y - y_mean - slope * (p.x - x_mean)) ** 2 for p in points)
    scatter = math.fsum((p.y - y_mean) ** 2 for p in points)
    return _Line(slope, n, x_mean, x_squares) if left <= _MOST_UNEXPLAINED * scatter else None


# --- the interval -----------------------------------------------------------------------------------------------


def _interval_of_mean(values: Sequence[float], rest: int, inflation: float) -> tuple[float | None, float | None]:
    """Return the interval for the mean of the rows that were not measured.

    The rest is itself a finite draw: with n measured and R left its mean scatters by sqrt(1 + n / R) as much as the
    sample's mean does around the truth of an endless population.
    """
    n = len(values)
    if not rest:
        return fmean(values), fmean(values)
    if n < _LEAST:
        return None, None
    widen = inflation * math.sqrt(1 + n / rest)
    farther = [*values, max(values) + _TAIL_STEP * (max(values) - sorted(values)[n // 2])]
    low = _reach(values, upper=False) * widen
    high = max(_reach(values, upper=True), fmean(farther) - fmean(values) + _reach(farther, upper=True)) * widen
    return fmean(values) - low, fmean(values) + high


def _reach(values: Sequence[float], *, upper: bool) -> float:
    """Return how far the interval reaches from the sample's mean to one side."""
    n = len(values)
    error = math.sqrt(_variance(values) / n)
    if n > _MOST_FOR_BOOTSTRAP or error == 0:
        return _Z * error
    if n < _LEAST_FOR_BOOTSTRAP:
        return _student(n - 1) * error
    deviations = _studentised(values)
    # The upper end comes from resamples that fell short of the mean, and the other way round.
    at = round((1 - _SIDE) * len(deviations)) - 1
    return (-deviations[at] if upper else deviations[-1 - at]) * error


def _studentised(values: Sequence[float]) -> list[float]:
    """Return (resampled mean - mean) / its own standard error over many resamples, sorted. Same values, same list.

    A resample in which the few large rows happen to be missing has next to no scatter of its own; its variance counts
    as one n-th of the sample's at least. (For one odd row in n this gives the exact binomial bound, nearly.)
    """
    rng = random.Random(_SEED)  # noqa: S311  (statistics: the same sample gives the same interval)
    n, mean = len(values), fmean(values)
    centred = [value - mean for value in values]
    floor = _variance(values) / n
    found = []
    for _ in range(_RESAMPLES):
        drawn = rng.choices(centred, k=n)
        shift = sum(drawn) / n
        variance = max(floor, sum(map(mul, drawn, drawn)) / n - shift * shift)
        found.append(shift / math.sqrt(variance / (n - 1)))
    return sorted(found)


def _variance(values: Sequence[float]) -> float:
    mean = fmean(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def _student(freedom: int) -> float:
    """Return Student's quantile for one side of the interval (Cornish-Fisher; within 1 % from 4 degrees up)."""
    z = _Z
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def _bound_of_mean(values: Sequence[float], cap: float) -> float:
    """Return the most that a mean can be if no value passes the cap: the band's width of the smallest rows moves there.

    Anderson 1969; one side of the Dvoretzky-Kiefer-Wolfowitz band with Massart's constant.
    """
    n = len(values)
    moved = min(1.0, math.sqrt(math.log(1 / (1 - _SIDE)) / (2 * n)))
    kept, weight = 0.0, 1.0 - moved
    for value in sorted(values, reverse=True):
        part = min(weight, 1 / n)
        kept += part * min(value, cap)
        weight -= part
    return kept + moved * cap


# --- the tail ---------------------------------------------------------------------------------------------------


def quantile(values: Sequence[float], part: float) -> float:
    """Return the smallest value that at least ``part`` of the values do not pass (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def unseen_share(sample: int) -> float:
    """Return the largest part of all rows that may be of a kind of which the sample happens to hold none (95 %)."""
    return 1 - (1 - CONFIDENCE) ** (1 / sample)
