"""estimate: what a run will use and cost, first by formula, then by a measured sample; what it says goes on record.

The parts are rooms of their own: workload.py reads the manifest, sample.py the results, calibrate.py does the
statistics, forecast.py the sums, receipts.py and smoke.py judge the sample. Here they are put together.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from vlmbatch import attempts, jsonl, providers, rundir, tokens
from vlmbatch.errors import CheckFailed, Problem
from vlmbatch.stages.estimating import forecast, receipts, sample, smoke, workload
from vlmbatch.stages.estimating.options import EstimateOptions, EstimateResult, check_options
from vlmbatch.stages.estimating.receipts import Arrival, Bill
from vlmbatch.stages.estimating.record import make_record, scheme_record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vlmbatch.providers.base import Provider
    from vlmbatch.records import Event
    from vlmbatch.rundir import RunDir
    from vlmbatch.stages.estimating.forecast import Forecast
    from vlmbatch.stages.estimating.receipts import Receipts
    from vlmbatch.stages.estimating.sample import Sample
    from vlmbatch.stages.estimating.smoke import Check
    from vlmbatch.stages.estimating.workload import Limit, Row, Workload

_BATCH_FROM = 1000
"""From so many images on the batch channel is the usual choice."""


def estimate(
    run: RunDir, options: EstimateOptions, *, now: str, on_event: Callable[[Event], None] | None = None
) -> EstimateResult:
    """Estimate a run and append what was found to its estimates.jsonl.

    Args:
        run: The run.
        options: What the user said.
        now: RFC 3339 time of the estimate.
        on_event: Called with progress in requests.

    Raises:
        InputError: Wrong options, unreadable files, or rehearsals taken for results.
        IntegrityError: The folder or the results are not what they should be.
    """
    provider = providers.get(run.info["provider"], run.info["request"]["url"])
    check_options(options)
    if not os.path.exists(run.file(rundir.REDACTED)):  # which may lack its shards, and says so
        run.verify(depth="quick")  # a folder that was copied in part would be reckoned in part
    frame = workload.read_frame(run)
    detail = options.detail or frame.detail
    ruler, scheme_warnings = _ruler(run, options, detail)
    limit = _limit(run, provider, options)
    ids = sample.read_ids(run, options.calibrate, provider, rehearsal=options.rehearsal)
    load = workload.survey(run, ruler, frame, wanted=ids, limit=limit, on_event=on_event)
    measured = sample.measure(run, options.calibrate, provider, load.rows) if options.calibrate else None
    texts = {name: _text(row, options) for name, row in load.rows.items()}
    text_tokens = _all_text(load, options)
    most = _output_limit(run, provider)
    found = (
        forecast.by_sample(load, measured, texts, options.prices, ruler.scheme, limit=most) if measured else None
    ) or forecast.by_formula(load, text_tokens, options.prices, out_tokens=options.out_tokens, limit=most)
    proofs = receipts.check(_bills(measured, load.rows, texts), ruler.scheme) if measured else None
    verdict = _verdict(load.rows, measured, proofs, options) if measured and proofs else []
    result = EstimateResult(
        run=run,
        load=load,
        scheme=ruler.scheme,
        detail=detail,
        limit=limit,
        text_tokens=text_tokens,
        forecast=found,
        prices=options.prices,
        sample=measured,
        receipts=proofs,
        verdict=verdict,
        channel=_channel(run, provider, load),
        warnings=[*scheme_warnings, *_warnings(load, found, proofs, options, measured)],
        record={},
        failure=_failure(load, limit, proofs, options),
    )
    result.record.update(make_record(result, options, now))
    result.warnings.extend(_append(run, result.record))
    return result


# --- by formula ------------------------------------------------------------------------------------------------------


def _ruler(run: RunDir, options: EstimateOptions, detail: str | None) -> tuple[workload.Ruler, list[str]]:
    """Choose how images are counted, and say what is doubtful about it."""
    model, provider = run.info["model"], run.info["provider"]
    table, scheme, family = _choose(options, model, provider, detail)
    own = tokens.pick(model, detail=detail, provider=provider, table=table)
    warnings = []
    if scheme is None:
        warnings.append(f"no image token rule is known for {model!r}: figures are a range; name a rule with --scheme")
    elif own is not None and own.name != scheme.name and scheme.name != tokens.FIXED:
        warnings.append(f"--scheme {scheme.name}: the model's name speaks for {own.name}")
    return workload.Ruler(scheme, table=table, family=family, fixed_tokens=options.fixed_tokens), warnings


def _choose(
    options: EstimateOptions, model: str, provider: str, detail: str | None
) -> tuple[tokens.Table, tokens.Scheme | None, str]:
    """Return what is known of image tokens, a model's scheme (None: nobody knows it), and whose schemes it may be."""
    table = tokens.load(options.scheme_file)
    scheme = tokens.pick(
        model, options.scheme, detail=detail, provider=provider, table=table, fixed_tokens=options.fixed_tokens
    )
    return table, scheme, provider if options.scheme == tokens.AUTO else options.scheme


def _limit(run: RunDir, provider: Provider, options: EstimateOptions) -> Limit:
    known = provider.limits(run.info["model"])
    most_bytes = options.shard_limit_bytes or known.batch_file_bytes
    return workload.Limit(most_bytes or float("inf"), known.batch_requests or float("inf"))


def _output_limit(run: RunDir, provider: Provider) -> int | None:
    """Return the largest output limit of the run's requests, None where one of them has none."""
    names = list(run.info["request"].get("outputs") or [""])
    limits = [attempts.asked(run, provider, name).max_tokens for name in names]
    return None if None in limits else max(limit for limit in limits if limit is not None)


def _text(row: Row, options: EstimateOptions) -> float:
    """Return the tokens of one row's text."""
    return row.text_bytes / workload.BYTES_PER_TEXT_TOKEN if options.text_tokens is None else options.text_tokens


def _all_text(load: Workload, options: EstimateOptions) -> float:
    if options.text_tokens is not None:
        return float(options.text_tokens * load.requests)
    return load.text_bytes / workload.BYTES_PER_TEXT_TOKEN


def _channel(run: RunDir, provider: Provider, load: Workload) -> str:
    """Return the rule of thumb; the user decides."""
    known = provider.limits(run.info["model"])
    if known.batch_file_bytes is None and known.batch_requests is None:
        return "realtime (no batch channel is known for this provider)"
    if load.images >= _BATCH_FROM:
        return f"batch, as a rule from {_BATCH_FROM:,} images on (cheaper; answers may take a day)"
    return f"realtime, as a rule below {_BATCH_FROM:,} images (answers at once)"


# --- by sample -------------------------------------------------------------------------------------------------------


def _bills(measured: Sample, rows: Mapping[str, Row], texts: Mapping[str, float]) -> list[Bill]:
    return [
        Bill(name, rows[name].image_tokens, texts[name], one.usage["input_tokens"] or 0, one.image_tokens)
        for name, one in measured.rows.items()
        if one.is_billed
    ]


def _verdict(rows: Mapping[str, Row], measured: Sample, proofs: Receipts, options: EstimateOptions) -> list[Check]:
    earlier = None if options.against is None else smoke.read_earlier(options.against, rows)
    return smoke.verdict(rows, measured.rows, proofs, earlier)


def _warnings(
    load: Workload, found: Forecast, proofs: Receipts | None, options: EstimateOptions, measured: Sample | None
) -> list[str]:
    said = []
    if load.refused:
        said.append(f"{load.refused:,} image(s) are of a shape that the model's own processor refuses")
    if load.unknown:
        said.append(f"{load.unknown:,} image(s) are of unknown size and count as {options.fixed_tokens:,} tokens each")
    missing = len(proofs.with_arrival(Arrival.MISSING)) if proofs else 0
    if missing and proofs:
        said.append(
            f"the images of {missing:,} of {len(proofs.rows):,} rows did not arrive: what was billed is the text "
            "alone. This is no cheap run; do not send the rest"
        )
    if found.calibration is not None:
        said += forecast.remarks(found.calibration)
        if options.out_tokens is not None:
            said.append("--out-tokens is not used: the sample tells")
    elif measured is not None:
        said.append("no row of the sample has usage: the figures below are the formula's")
    if measured and measured.torn:
        said.append(f"{measured.torn:,} damaged line(s) in the sample were passed over")
    return said


def _failure(load: Workload, limit: Limit, proofs: Receipts | None, options: EstimateOptions) -> CheckFailed | None:
    """Return the first check that does not hold."""
    if load.over:
        problems = [problem for shard in load.over.values() for problem in shard.problems(limit)]
        return CheckFailed(
            f"{len(load.over)} shard(s) are over the limit",
            hint="build a new run with a smaller --shard-max-bytes",
            problems=problems,
        )
    if options.require_receipt and proofs is not None:
        without = [row for row in proofs.rows if row.arrival is not Arrival.ARRIVED]
        if without or not proofs.rows:
            return CheckFailed(
                f"{len(without):,} of {len(proofs.rows):,} rows have no image receipt",
                hint="look at their answers; send one without its image to learn the text's share",
                problems=[_fault(row) for row in without],
            )
    return None


def _fault(row: receipts.Receipt) -> Problem:
    measured = "not to be told" if row.measured is None else f"{row.measured:,}"
    return Problem(
        "no_receipt", f"{row.arrival}: image tokens by formula {row.formula:,}, measured {measured}", row.custom_id
    )


def _append(run: RunDir, record: dict[str, Any]) -> list[str]:
    """Append the record; a folder that cannot be written to is no reason to withhold the numbers."""
    try:
        with jsonl.Appender(os.path.join(run.path, rundir.ESTIMATES)) as file:
            file.append(jsonl.dumps(record))
    except OSError as error:
        return [f"not on record: {rundir.ESTIMATES} cannot be written ({error.strerror})"]
    return [rundir.SEAL_BROKEN] if run.is_sealed else []


# --- one image size, without a run -----------------------------------------------------------------------------------


def estimate_size(
    width: int, height: int, model: str, options: EstimateOptions, *, provider: str = ""
) -> dict[str, Any]:
    """Return what one image of a size takes: ``{"tokens", "scheme", ...}``, or a range where no rule is known.

    Raises:
        InputError: The size is none, or there is no such scheme.
    """
    table, scheme, family = _choose(options, model, provider, options.detail)
    about = {"width": width, "height": height, "model": model, "detail": options.detail}
    if scheme is None:
        low, high = tokens.spread(width, height, settings=tokens.settings(table, family))
        return {"tokens": None, "scheme": None, "low": low, "high": high, **about, "picked": None, "refused": None}
    counted = scheme.count(width, height)
    return {
        "tokens": counted.tokens,
        "scheme": counted.scheme,
        "low": counted.tokens,
        "high": counted.tokens,
        **about,
        "picked": scheme_record(scheme),
        "refused": counted.refused or None,
    }
