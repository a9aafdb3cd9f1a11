"""What a whole run will use and cost: by formula before anything was sent, by a measured sample after.

Money is tokens times price, end by end: the low price is the low input with the low output, so a person can check it
with a pencil. (Both ends at once are rarer than either: the range is on the safe side of 95 %.)
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from typing import TYPE_CHECKING, NamedTuple

from vlmbatch.stages.estimating import calibrate
from vlmbatch.stages.estimating.calibrate import FEW, Point

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vlmbatch import tokens
    from vlmbatch.prices import Prices, Rates
    from vlmbatch.records import Channel
    from vlmbatch.stages.estimating.sample import Measured, Sample
    from vlmbatch.stages.estimating.workload import Row, Workload

_APART = 0.25
"""From this difference on, formula and measured input are said to disagree."""

_NEAR_LIMIT = 0.95
"""From this part of the output limit on, an answer is as good as cut."""

_CENT_OF_CENT = Decimal("0.0001")


class Span(NamedTuple):
    """A number with its range: ``mid`` None where only bounds are known, the ends None where a sample is too small.

    ``high`` leaves room for rows at the output limit of which the sample happens to hold none, ``high_as_seen`` leaves
    none.
    """

    mid: float | None
    low: float | None
    high: float | None
    high_as_seen: float | None

    @classmethod
    def of(cls, mid: float | None, low: float, high: float) -> Span:
        """Return a range that no sample stands behind: there is nothing that one could have missed."""
        return cls(mid, low, high, high)


class Usd(NamedTuple):
    """A price with its range, as :class:`Span`."""

    mid: Decimal | None
    low: Decimal | None
    high: Decimal | None
    high_as_seen: Decimal | None


@dataclass(frozen=True, slots=True)
class Calibration:
    """What the sample says beyond totals.

    Attributes:
        rows: Rows of the sample.
        billed: Those with usage; only they count.
        means: Mean input, output and reasoning tokens of a billed row (reasoning None where nobody told).
        by: What the totals of input and output were carried over by (``mean``, ``size_classes``, ``formula``).
        cached_share: Part of the input that the provider read from its cache.
        output_p95: 95 % of the answers took no more output tokens.
        output_max: The longest answer.
        limit: The output limit, None where none was asked for.
        near_limit: Answers at 95 % of the limit or more.
        formula_ratio: Measured input by what formula and text rule gave for the same rows; None without a formula.
        rows_apart: Rows on which the two are 25 % or more apart.
        size_ratio: Mean formula tokens of the sample's rows by those of all rows.
        unseen_share: So large a part of the other rows may be of a kind that the sample missed altogether (95 %).
        rows_per_s: Throughput seen.
        wall_time_s: For the rows not yet measured, at that throughput.
    """

    rows: int
    billed: int
    means: Mapping[str, float | None]
    by: Mapping[str, str]
    cached_share: float
    output_p95: float
    output_max: int
    limit: int | None
    near_limit: int
    formula_ratio: float | None
    rows_apart: int
    size_ratio: float
    unseen_share: float
    rows_per_s: float | None
    wall_time_s: float | None


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the whole run will use and cost.

    Attributes:
        input_tokens: Images and text.
        output_tokens: Answers and reasoning; None where nothing is known of them.
        reasoning_tokens: Reasoning alone, None where nothing is known.
        realtime_usd: Price over the realtime channel, None without prices (or without any word on output).
        batch_usd: Price over the batch channel, likewise.
        calibration: What the sample says, None where there is none.
    """

    input_tokens: Span
    output_tokens: Span | None
    reasoning_tokens: Span | None
    realtime_usd: Usd | None
    batch_usd: Usd | None
    calibration: Calibration | None = None


def by_formula(
    load: Workload, text_tokens: float, prices: Prices, *, out_tokens: int | None, limit: int | None
) -> Forecast:
    """Forecast without a sample.

    Args:
        load: The run.
        text_tokens: Tokens of all text.
        prices: As they were given.
        out_tokens: What an answer will take, reasoning included; None = nobody said, so anything up to the limit.
        limit: The output limit, None where none was asked for.
    """
    used = Span.of(*(n + text_tokens for n in (load.image_tokens, load.image_tokens_low, load.image_tokens_high)))
    made: Span | None = None
    if out_tokens is not None:
        made = Span.of(*[out_tokens * load.requests] * 3)
    elif limit is not None:
        made = Span.of(None, 0, limit * load.requests)
    return Forecast(used, made, None, _usd(prices, "realtime", used, made, 0), _usd(prices, "batch", used, made, 0))


def by_sample(
    load: Workload,
    sample: Sample,
    texts: Mapping[str, float],
    prices: Prices,
    scheme: tokens.Scheme | None,
    *,
    limit: int | None,
) -> Forecast | None:
    """Forecast from a measured sample, None where no row of it was billed.

    Args:
        load: The run, with the rows of the sample.
        sample: What was measured.
        texts: Tokens of each row's text by the rule.
        prices: As they were given.
        scheme: What image tokens were counted by, None where no rule is known.
        limit: The output limit of every row of the run, None where some have none.
    """
    rows = load.rows
    billed = {name: one for name, one in sample.rows.items() if one.is_billed}
    if not billed:
        return None
    rest = load.sizes - Counter(rows[name].image_tokens for name in billed)
    used = _total(billed, rows, rest, "input_tokens")
    made = _total(billed, rows, rest, "output_tokens", cap=limit)
    thought = _reasoning(billed, rows, rest, limit)
    calibration = _calibration(load, sample, billed, texts if scheme else {}, by={"input": used.by, "output": made.by})
    total_in, total_out, share = _span(used), _span(made), calibration.cached_share
    return Forecast(
        total_in,
        total_out,
        _span(thought) if thought else None,
        _usd(prices, "realtime", total_in, total_out, share),
        _usd(prices, "batch", total_in, total_out, share),
        calibration,
    )


def _span(total: calibrate.Total) -> Span:
    return Span(total.estimate, total.low, total.high, total.high_as_seen)


def _reasoning(
    billed: Mapping[str, Measured], rows: Mapping[str, Row], rest: Counter[int], limit: int | None
) -> calibrate.Total | None:
    """Total the reasoning, None where some row does not tell; where no row reasoned, the model does not at all."""
    thought = [one.usage["reasoning_tokens"] for one in billed.values()]
    if None in thought:
        return None
    return _total(billed, rows, rest, "reasoning_tokens", cap=limit if any(thought) else None)


def _total(
    billed: Mapping[str, Measured], rows: Mapping[str, Row], rest: Counter[int], kind: str, *, cap: float | None = None
) -> calibrate.Total:
    points = [Point(rows[name].image_tokens, one.usage[kind]) for name, one in billed.items()]  # type: ignore[literal-required]
    return calibrate.total(points, rest, cap=cap)


def _calibration(
    load: Workload,
    sample: Sample,
    billed: Mapping[str, Measured],
    texts: Mapping[str, float],
    *,
    by: Mapping[str, str],
) -> Calibration:
    rows = load.rows
    used = {name: one.usage["input_tokens"] or 0 for name, one in billed.items()}
    made = [one.usage["output_tokens"] or 0 for one in billed.values()]
    expected = {name: rows[name].image_tokens + texts[name] for name in billed if name in texts}
    thought = [one.usage["reasoning_tokens"] for one in billed.values()]
    limits = [one.limit for one in billed.values()]
    size = load.image_tokens / load.requests
    left = load.requests - len(sample.rows)
    return Calibration(
        rows=len(sample.rows),
        billed=len(billed),
        means={
            "input": sum(used.values()) / len(billed),
            "output": sum(made) / len(billed),
            "reasoning": None if None in thought else sum(filter(None, thought)) / len(billed),
        },
        by=by,
        cached_share=sum(one.usage["cached_tokens"] or 0 for one in billed.values()) / sum(used.values()),
        output_p95=calibrate.quantile(made, 0.95),
        output_max=max(made),
        limit=max((limit for limit in limits if limit is not None), default=None),
        near_limit=sum(limit is not None and n >= _NEAR_LIMIT * limit for n, limit in zip(made, limits, strict=True)),
        formula_ratio=sum(used.values()) / sum(expected.values()) if any(expected.values()) else None,
        rows_apart=sum(abs(used[name] - want) >= _APART * want for name, want in expected.items()),
        size_ratio=sum(rows[name].image_tokens for name in billed) / len(billed) / size if size else 1.0,
        unseen_share=calibrate.unseen_share(len(billed), left),
        rows_per_s=sample.rows_per_s,
        wall_time_s=left / sample.rows_per_s if sample.rows_per_s else None,
    )


# --- money -------------------------------------------------------------------------------------------------------


def _usd(prices: Prices, channel: Channel, used: Span, made: Span | None, cached_share: float) -> Usd | None:
    """Return a price; the high end takes nothing for cached, for no cache promises to be warm again."""
    rates = prices.rates(channel)
    if rates is None or made is None:
        return None
    return Usd(
        _money(rates, used.mid, made.mid, cached_share),
        _money(rates, used.low, made.low, cached_share),
        _money(rates, used.high, made.high, 0),
        _money(rates, used.high_as_seen, made.high_as_seen, 0),
    )


def _money(rates: Rates, used: float | None, made: float | None, cached_share: float) -> Decimal | None:
    if used is None or made is None:
        return None
    counts = Decimal(round(used)), Decimal(round(made)), Decimal(round(used * cached_share))
    return rates.of_tokens(*counts).quantize(_CENT_OF_CENT, ROUND_HALF_EVEN)


# --- what has to be said aloud ---------------------------------------------------------------------------------------


def remarks(calibration: Calibration) -> list[str]:
    """Return what a reader of the numbers has to know, most serious first."""
    one = calibration
    said = []
    if one.billed < one.rows:
        said.append(f"{one.rows - one.billed:,} of {one.rows:,} rows of the sample have no usage and do not count")
    if one.near_limit:
        said.append(
            f"{one.near_limit:,} of {one.billed:,} answers reach {_NEAR_LIMIT:.0%} of the limit of {one.limit:,} "
            "output tokens: they are cut or nearly so, and a higher limit needs a new run and costs more"
        )
    if one.formula_ratio is not None and abs(one.formula_ratio - 1) >= _APART:
        said.append(
            f"measured input is {one.formula_ratio:.2f} times what formula and text rule give: the measured figures "
            "are used; the scheme is not this model's, or images did not arrive whole"
        )
    elif one.rows_apart:
        said.append(f"formula and measured input are {_APART:.0%} or more apart on {one.rows_apart:,} row(s)")
    if one.billed < FEW and one.unseen_share:
        said.append(f"only {one.billed:,} measured row(s): below {FEW} a long tail may move every figure here")
    if abs(one.size_ratio - 1) >= _APART:
        said.append(
            f"the sample's images are not like the run's: {one.size_ratio:.2f} times their tokens; "
            "run --limit takes a sample spread over the whole run"
        )
    return said
