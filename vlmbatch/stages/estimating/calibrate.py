"""Statistics of a sample: from measured rows to the whole run, with an interval that holds in long tails too.

Pure functions on numbers. The measured rows are known and simply added; the rest is estimated from them, image size
taken into account where it can be: along a line where the formula explains a quantity, else by size classes, so that a
sample of small images does not make large ones cheap.

The interval is a studentised bootstrap. A sample hides the far end of a long tail, so its upper side is taken from the
sample with one more row in it, farther out than the largest that was seen; where the answers have a limit, a bound that
needs no assumption but the limit (Anderson's, over the Dvoretzky-Kiefer-Wolfowitz band) cuts it again.

A kind of row of which the sample holds none leaves no trace in it: if one answer in twenty runs to the limit, one
sample of thirty in five looks like a run without such answers. No method tells the two apart from the rows alone, but
the limit says how much such a row can take, and the sample's size how many of them there can be. So the high end leaves
room for that many rows at the limit, and the end without them stands beside it, for a reader who knows of none.
tests/unit/test_calibrate.py counts how often the true total lies inside.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter, mul
from statistics import NormalDist, fmean
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_CONFIDENCE = 0.95
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

_MOST_OFF = 0.1
_CLASS = 10
_MOST_CLASSES = 8

_STUDENT = {4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306}
"""Student's quantile for one side of the interval, by degrees of freedom, where a bootstrap has too few rows."""

_SIDE = (1 + _CONFIDENCE) / 2
_Z = NormalDist().inv_cdf(_SIDE)


class Point(NamedTuple):
    """One measured row: ``size`` in image tokens as the formula has them, ``y`` what was measured."""

    size: int
    y: float


@dataclass(frozen=True, slots=True)
class Total:
    """A quantity over a whole run.

    Attributes:
        estimate: The total over all rows, measured ones as measured.
        low: Lower end of the 95 % interval of the total; None below five rows.
        high: Upper end; where rows have a limit, with as many of them at the limit as the sample can have missed.
        high_as_seen: Upper end if the sample holds every kind of row; not above ``high``.
        by: What the rest was estimated from: ``mean``, ``size_classes`` or ``formula``.
    """

    estimate: float
    low: float | None
    high: float | None
    high_as_seen: float | None
    by: str


def total(points: Sequence[Point], rest: Mapping[int, int], *, cap: float | None = None) -> Total:
    """Estimate a quantity over the whole run.

    Args:
        points: The measured rows, at least one.
        rest: The other rows: how many there are of each size.
        cap: The most that one row can reach, None where there is no limit.
    """
    values = [point.y for point in points]
    known, n, left = math.fsum(values), len(values), sum(rest.values())
    model = _explain(points, rest) if left and n >= _LEAST_FOR_BOOTSTRAP else _Model("mean", values, 1.0)
    middle = max(0.0, fmean(model.values))
    low, seen = _interval_of_mean(model, left)
    if low is None or seen is None:
        return Total(known + left * middle, None, None, None, model.by)
    seen = high = max(seen, middle)
    if cap is not None and left:
        cap = max(cap, *values, middle)  # a provider that went beyond the limit once may do so again
        seen = min(seen, _bound_of_mean(values, cap) if model.by == "mean" and left >= n else cap)
        seen = max(seen, middle)
        high = max(seen, middle + unseen_share(n, left) * (cap - middle))
    return Total(
        known + left * middle,
        known + left * max(0.0, min(low, middle)),
        known + left * high,
        known + left * seen,
        model.by,
    )


# --- image size as an explanation -------------------------------------------------------------------------------


class _Model(NamedTuple):
    """Measured values carried over to the sizes of the rows that were not measured.

    Their mean estimates the mean of the rest, their scatter its error; ``widen`` is what the carrying over itself
    adds to that error, ``beyond`` how much of the mean rests on sizes larger than any that was measured.
    """

    by: str
    values: Sequence[float]
    widen: float
    beyond: float = 0.0


def _explain(points: Sequence[Point], rest: Mapping[int, int]) -> _Model:
    """Choose how image size is taken into account: by the formula's line, by size classes, or not at all."""
    classes = _classes(points)
    line = _by_line(points, rest) if len(classes) > 1 else None
    if line is not None:
        return line
    if len(classes) > 1:
        return _by_classes(classes, rest)
    return _Model("mean", [point.y for point in points], 1.0)


def _by_line(points: Sequence[Point], rest: Mapping[int, int]) -> _Model | None:
    """Carry over along a straight line, None unless every single row lies on it but for text and rounding.

    A bent relation (a server that shrinks large images, say) is no ground to extrapolate on.
    """
    n, left = len(points), sum(rest.values())
    size, mean = fmean(p.size for p in points), fmean(p.y for p in points)
    squares = math.fsum((p.size - size) ** 2 for p in points)
    slope = math.fsum((p.size - size) * (p.y - mean) for p in points) / squares
    off = max(abs(p.y - mean - slope * (p.size - size)) for p in points)
    if slope <= 0 or off > _MOST_OFF * (max(p.y for p in points) - min(p.y for p in points)):
        return None
    there = sum(size * rows for size, rows in rest.items()) / left
    widen = math.sqrt((n - 1) / (n - 2) * (1 + n * (there - size) ** 2 / squares))
    largest = max(p.size for p in points)
    beyond = sum((size - largest) * rows for size, rows in rest.items() if size > largest) / left
    return _Model("formula", [p.y - slope * (p.size - there) for p in points], widen, slope * beyond)


def _classes(points: Sequence[Point]) -> list[list[Point]]:
    """Cut the sample into size classes of at least ten rows; rows of one size stay together."""
    classes: list[list[Point]] = [[]]
    for point in sorted(points):
        if len(classes[-1]) >= _CLASS and point.size != classes[-1][-1].size and len(classes) < _MOST_CLASSES:
            classes.append([])
        classes[-1].append(point)
    if len(classes) > 1 and len(classes[-1]) < _CLASS:
        last = classes.pop()
        classes[-1] += last
    return classes


def _by_classes(classes: Sequence[Sequence[Point]], rest: Mapping[int, int]) -> _Model:
    """Weigh each class by how many rows of the rest are of its sizes (post-stratification)."""
    n, left = sum(map(len, classes)), sum(rest.values())
    edges = [part[0].size for part in classes[1:]]
    weights = [0.0] * len(classes)
    for size, rows in rest.items():
        weights[bisect_right(edges, size)] += rows / left
    means = [fmean(p.y for p in part) for part in classes]
    middle = math.fsum(map(mul, weights, means))
    values = [
        middle + weight * n / len(part) * (point.y - mean)
        for part, weight, mean in zip(classes, weights, means, strict=True)
        for point in part
    ]
    return _Model("size_classes", values, math.sqrt((n - 1) / (n - len(classes))))


# --- the interval -----------------------------------------------------------------------------------------------


def _interval_of_mean(model: _Model, rest: int) -> tuple[float | None, float | None]:
    """Return the interval for the mean of the rows that were not measured.

    The rest is itself a finite draw: with n measured and R left its mean scatters by sqrt(1 + n / R) as much as the
    sample's mean does around the truth of an endless population. What lies beyond the largest measured size may be
    shrunk by the server before it is counted, so the lower end does without it.
    """
    values, n = model.values, len(model.values)
    if not rest:
        return fmean(values), fmean(values)
    if n < _LEAST:
        return None, None
    widen = model.widen * math.sqrt(1 + n / rest)
    farther = [*values, max(values) + _TAIL_STEP * (max(values) - sorted(values)[n // 2])]
    down, up = _reach(values)
    _, up_farther = _reach(farther)
    up = max(up, fmean(farther) - fmean(values) + up_farther)
    return fmean(values) - down * widen - model.beyond, fmean(values) + up * widen


def _reach(values: Sequence[float]) -> tuple[float, float]:
    """Return how far the interval reaches from the sample's mean downwards and upwards."""
    n = len(values)
    error = math.sqrt(_variance(values) / n)
    if n > _MOST_FOR_BOOTSTRAP or error == 0:
        return _Z * error, _Z * error
    if n < _LEAST_FOR_BOOTSTRAP:
        return _STUDENT[n - 1] * error, _STUDENT[n - 1] * error
    deviations = _studentised(values)
    at = round((1 - _SIDE) * len(deviations)) - 1
    # The upper end comes from resamples that fell short of the mean, and the other way round.
    return deviations[-1 - at] * error, -deviations[at] * error


def _studentised(values: Sequence[float]) -> list[float]:
    """Return (resampled mean - mean) / its own standard error over many resamples, sorted. Same values, same list.

    A resample in which the few large rows happen to be missing has next to no scatter of its own; its variance counts
    as one n-th of the sample's at least. (For one odd row in n this gives the exact binomial bound, nearly.)
    """
    n, mean = len(values), fmean(values)
    centred = [value - mean for value in values]
    squares = list(map(mul, centred, centred))
    floor = sum(squares) / (n - 1) / n
    draws, root = _draws(n, _RESAMPLES), math.sqrt(n - 1)
    shifts = [sum(draw(centred)) / n for draw in draws]
    variances = [sum(draw(squares)) / n - shift * shift for draw, shift in zip(draws, shifts, strict=True)]
    errors = [math.sqrt(max(floor, variance)) for variance in variances]
    return sorted(root * shift / error for shift, error in zip(shifts, errors, strict=True))


@lru_cache(maxsize=4)
def _draws(n: int, count: int) -> list[itemgetter[tuple[float, ...]]]:
    """Return so many resamplings of n values, the same ones for every sample of that size."""
    rng = random.Random(_SEED)  # noqa: S311  (statistics: the same sample gives the same interval)
    return [itemgetter(*rng.choices(range(n), k=n)) for _ in range(count)]


def _variance(values: Sequence[float]) -> float:
    mean = fmean(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


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


def unseen_share(sample: int, rest: int) -> float:
    """Return the largest part of the rest that may be of a kind of which the sample happens to hold none (95 %).

    With N rows in all, K of them of that kind, a sample of n misses them with a chance of about
    (1 - K / (N - (n - 1) / 2)) ** n, never less than the exact, hypergeometric one. In a long run that leaves 3 / n.
    """
    most = (1 - math.pow(1 - _CONFIDENCE, 1 / sample)) * (rest + (sample + 1) / 2)
    return min(1.0, most / rest) if rest else 0.0
