"""The line that estimate appends to estimates.jsonl: what was said, of what, on which grounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vlmbatch import __version__
from vlmbatch.records import ESTIMATE_SCHEMA
from vlmbatch.stages.estimating.receipts import Arrival
from vlmbatch.stages.estimating.workload import BYTES_PER_TEXT_TOKEN

if TYPE_CHECKING:
    from vlmbatch import tokens
    from vlmbatch.stages.estimating.forecast import Forecast, Span, Usd
    from vlmbatch.stages.estimating.options import EstimateOptions, EstimateResult
    from vlmbatch.stages.estimating.receipts import Receipts

_TEXT_RULE = f"UTF-8 bytes / {BYTES_PER_TEXT_TOKEN}"


def make_record(result: EstimateResult, options: EstimateOptions, now: str) -> dict[str, Any]:
    """Return the line of estimates.jsonl: what was said, of what, on which grounds."""
    load, found, measured = result.load, result.forecast, result.sample
    return {
        "schema": ESTIMATE_SCHEMA,
        "estimated_at": now,
        "tool": {"name": "vlmbatch", "version": __version__},
        "fingerprint": result.run.fingerprint,
        "provider": result.run.info["provider"],
        "model": result.run.info["model"],
        "requests": load.requests,
        "images": load.images,
        "scheme": None if result.scheme is None else scheme_record(result.scheme),
        "detail": result.detail,
        "image_tokens": {"mid": load.image_tokens, "low": load.image_tokens_low, "high": load.image_tokens_high},
        "text_tokens": {"mid": round(result.text_tokens), "rule": _text_rule(options)},
        "out_tokens": options.out_tokens,
        "input_tokens": _span(found.input_tokens),
        "output_tokens": _span(found.output_tokens),
        "reasoning_tokens": _span(found.reasoning_tokens),
        **result.prices.as_record(),
        "realtime_usd": _price(found.realtime_usd),
        "batch_usd": _price(found.batch_usd),
        "sample": _sample(found) if measured else None,
        "calibrated_from": measured.files if measured else [],
        "receipts": _receipts(result.receipts),
        "verdict": [check._asdict() for check in result.verdict],
        "rehearsal": options.rehearsal,
        "warnings": list(result.warnings),
    }


def scheme_record(scheme: tokens.Scheme) -> dict[str, Any]:
    """Return a scheme as the record has it: the constants that were used, their source, date, and how sure it is."""
    return {
        "name": scheme.name,
        "rule": scheme.rule,
        "params": dict(scheme.params),
        "label": scheme.label,
        "picked_by": scheme.picked_by,
        "sure": scheme.sure,
        "as_of": scheme.as_of,
        "source": scheme.source,
        "note": scheme.note,
    }


def _text_rule(options: EstimateOptions) -> str:
    return _TEXT_RULE if options.text_tokens is None else f"{options.text_tokens} a request, as given"


def _span(span: Span | None) -> dict[str, int | None] | None:
    if span is None:
        return None
    return {key: None if value is None else round(value) for key, value in span._asdict().items()}


def _price(usd: Usd | None) -> dict[str, str | None] | None:
    if usd is None:
        return None
    return {key: None if value is None else f"{value:f}" for key, value in usd._asdict().items()}


def _sample(found: Forecast) -> dict[str, Any] | None:
    one = found.calibration
    if one is None:
        return None
    values = {name: getattr(one, name) for name in one.__slots__}
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in values.items()}


def _receipts(proofs: Receipts | None) -> dict[str, Any] | None:
    if proofs is None:
        return None
    counts = {arrival.value: len(proofs.with_arrival(arrival)) for arrival in Arrival}
    return {"rows": len(proofs.rows), **counts, "text_tokens": proofs.text_tokens}
