"""What estimate found, as JSON and as a few plain tables."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any

from vlmbatch.console import duration, number_bytes, out, safe, table, wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence
    from decimal import Decimal

    from vlmbatch.stages.estimating.forecast import Calibration, Forecast
    from vlmbatch.stages.estimating.options import EstimateResult

_SHOWN = 10
_SMOKE = 30
"""Rows of a first paid sample; a run that has no more of them is sent whole."""


def as_data(result: EstimateResult) -> dict[str, Any]:
    """Return everything that was found, as --json prints it."""
    load, limit = result.load, result.limit
    return {
        "run": result.run.path,
        **{key: value for key, value in result.record.items() if key not in {"schema", "tool", "warnings"}},
        "shards": result.run.info["shards"],
        "shard_limit_bytes": None if limit.bytes == float("inf") else limit.bytes,
        "shards_over": [
            {
                "file": shard.file,
                "bytes": shard.bytes,
                "requests": shard.requests,
                "first_line": shard.first_line,
                "first_id": shard.first_id,
                "lines": shard.beyond,
                "lines_over_alone": [{"line": n, "custom_id": i, "bytes": size} for n, i, size in shard.alone],
            }
            for shard in load.over.values()
        ],
        "largest_images": [image._asdict() for image in load.largest],
        "refused_images": load.refused,
        "receipts_at_fault": [row._asdict() for row in result.receipts.at_fault] if result.receipts else [],
        "channel": result.channel,
        "warnings": result.warnings,
    }


def show(result: EstimateResult) -> None:
    """Print what was found."""
    blocks = [_plan(result), _tokens(result), _largest(result)]
    calibration = result.forecast.calibration
    if calibration is not None:
        blocks.append(_sample(calibration, result.forecast))
    blocks += [_price(result), _verdict(result), _receipts(result), _last(result)]
    out("\n\n".join(block for block in blocks if block))


def _prose(text: str) -> str:
    """Return a sentence as a terminal shows it whole, broken between words."""
    return wrapped(safe(text), sys.stdout)


def _plan(result: EstimateResult) -> str:
    load, shards = result.load, result.run.info["shards"]
    rows = [
        (shard["file"], f"{shard['requests']:,}", f"{shard['images']:,}", number_bytes(shard["bytes"]))
        for shard in shards[:_SHOWN]
    ]
    if len(shards) > _SHOWN:
        rest = shards[_SHOWN:]
        rows.append(
            (
                f"and {len(rest):,} more",
                f"{sum(shard['requests'] for shard in rest):,}",
                f"{sum(shard['images'] for shard in rest):,}",
                number_bytes(sum(shard["bytes"] for shard in rest)),
            )
        )
    limit = "" if result.limit.bytes == float("inf") else f", limit {number_bytes(result.limit.bytes)} a shard"
    size = number_bytes(sum(shard["bytes"] for shard in shards))
    what = f"{load.requests:,} requests, {load.images:,} images, {size}{limit}"
    title = f"{result.run.path}: {result.run.info['model']}, {what}"
    return f"{_prose(title)}\n" + table(("shard", "requests", "images", "bytes"), rows, right="lrrr")


def _tokens(result: EstimateResult) -> str:
    load, found = result.load, result.forecast
    images = load.image_tokens, load.image_tokens_low, load.image_tokens_high, load.image_tokens_high
    way = "measured" if found.calibration else "images and text"
    spans = {
        "images, by formula": images,
        f"text, {result.record['text_tokens']['rule']}": (result.text_tokens,) * 4,
        f"input, {way}": found.input_tokens,
        "output": found.output_tokens,
        "reasoning": found.reasoning_tokens,
    }
    rows = [
        (name, _per(span[0], load.requests), *_range(*span, has_room=_has_room(found)))
        for name, span in spans.items()
        if span is not None
    ]
    scheme = result.scheme.describe() if result.scheme else "no rule is known for this model: a range over all rules"
    detail = f", detail {result.detail}" if result.detail else ""
    return (
        _prose(f"image tokens: {scheme}{detail}")
        + "\n"
        + table(("tokens", "a request", "low", "whole run", *_ends(found)), rows, right="lrrrrr")
    )


def _has_room(found: Forecast) -> bool:
    """Tell whether the high end leaves room for rows that the sample missed, so that there are two of them to show."""
    made = found.output_tokens
    return made is not None and made.high != made.high_as_seen


def _ends(found: Forecast) -> tuple[str, ...]:
    """Return the names of the upper ends."""
    return ("high as seen", "high") if _has_room(found) else ("high",)


def _range(
    mid: float | None, low: float | None, high: float | None, seen: float | None, *, has_room: bool
) -> tuple[str, ...]:
    """Return low, middle and high as cells; an end that adds nothing to the middle is left empty."""
    highs: Sequence[float | None] = (seen, high) if has_room else (high,)
    if low == mid == high:
        return ("", _number(mid), *("" for _ in highs))
    return _number(low), _number(mid), *map(_number, highs)


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}"


def _per(value: float | None, requests: int) -> str:
    return "?" if value is None else f"{value / max(requests, 1):,.1f}"


def _largest(result: EstimateResult) -> str:
    rows = [
        (f"{image.tokens:,}", f"{image.width} x {image.height}", image.path, image.custom_id)
        for image in result.load.largest
    ]
    return table(("tokens", "size", "image", "custom_id"), rows, title="largest images", right="rr") if rows else ""


def _sample(one: Calibration, found: Forecast) -> str:
    reasoning = one.means["reasoning"]
    limit = f" of {one.limit:,}" if one.limit else ""
    rows: list[tuple[str, str]] = [
        ("rows measured, with usage", f"{one.rows:,}, {one.billed:,}"),
        ("input tokens, mean", f"{one.means['input']:,.1f} (carried over by {one.by['input'].replace('_', ' ')})"),
        ("output tokens, mean", f"{one.means['output']:,.1f} (carried over by {one.by['output'].replace('_', ' ')})"),
        ("reasoning tokens, mean", "not told" if reasoning is None else f"{reasoning:,.1f}"),
        ("output tokens, 95 % and maximum", f"{one.output_p95:,.0f}, {one.output_max:,}{limit}"),
        ("measured input by formula", "?" if one.formula_ratio is None else f"{one.formula_ratio:.3f}"),
    ]
    if one.unseen_share:
        room = "; high takes them at the output limit, high as seen leaves them out" if _has_room(found) else ""
        rows.append(("a kind of row that the sample missed", f"may be up to {one.unseen_share:.1%} of the rest{room}"))
    if one.rows_per_s and one.wall_time_s is not None:
        rows.append(("throughput seen, time for the rest", f"{one.rows_per_s:,.1f}/s, {duration(one.wall_time_s)}"))
    return table(("sample", ""), rows)


def _price(result: EstimateResult) -> str:
    found, prices = result.forecast, result.prices
    has_room = _has_room(found)
    rows = [
        (name, *(_money(usd) for usd in (one.low, one.mid, *([one.high_as_seen] if has_room else []), one.high)))
        for name, one in (("realtime", found.realtime_usd), ("batch", found.batch_usd))
        if one is not None
    ]
    if not rows:
        return ""
    source = f"{prices.price_source or 'source not told'}, {prices.price_date or 'date not told'}"
    sample = f", sample of {found.calibration.billed:,} rows, 95 % range" if found.calibration else ", by formula"
    title = _prose(f"price ({source}{sample})")
    heads = ("USD", "low", "expected", *_ends(found))
    return table(heads, rows, title=title, right="lrrrr")


def _money(value: Decimal | None) -> str:
    return "?" if value is None else f"{value:,.4f}"


def _verdict(result: EstimateResult) -> str:
    rows = [(check.name, check.answer, check.figure) for check in result.verdict]
    return table(("smoke verdict", "", "figure"), rows) if rows else ""


def _receipts(result: EstimateResult) -> str:
    if result.receipts is None or not result.receipts.at_fault:
        return ""
    faults = result.receipts.at_fault
    rows = [
        (row.custom_id, row.arrival.value, f"{row.formula:,}", "?" if row.measured is None else f"{row.measured:,}")
        for row in faults[: 2 * _SHOWN]
    ]
    title = f"image receipts at fault: {len(faults):,} of {len(result.receipts.rows):,}"
    text = table(("custom_id", "image", "by formula", "measured"), rows, title=title, right="llrr")
    return text if len(rows) == len(faults) else f"{text}\nand {len(faults) - len(rows):,} more"


def _last(result: EstimateResult) -> str:
    lines = ["rehearsal: these figures are practice, nothing was measured"] if result.record["rehearsal"] else []
    lines.append(_prose(f"channel: {result.channel}"))
    lines.append(f"fingerprint: {result.run.fingerprint}")
    if result.sample is None:
        run, is_small = result.run.path, result.load.requests <= _SMOKE
        sample = "" if is_small else f" --limit {_SMOKE} --out {shlex.quote(safe(f'{run}/results/smoke.jsonl'))}"
        lines.append(f"next: vlmbatch run {shlex.quote(safe(run))}{sample}")
    return "\n".join(lines)
