"""What the user may say to estimate, and what estimate says back."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any

from vlmbatch import tokens
from vlmbatch.errors import InputError
from vlmbatch.prices import Prices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vlmbatch.errors import CheckFailed
    from vlmbatch.rundir import RunDir
    from vlmbatch.stages.estimating.forecast import Forecast
    from vlmbatch.stages.estimating.receipts import Receipts
    from vlmbatch.stages.estimating.sample import Sample
    from vlmbatch.stages.estimating.smoke import Check
    from vlmbatch.stages.estimating.workload import Limit, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateOptions:
    """The flags of estimate, one field each (docs/reference/cli.md says what each one means).

    Attributes:
        scheme: How image tokens are counted.
        scheme_file: A table of the user's own over the built-in one.
        detail: Image detail, where it is not the one that the frozen bodies ask for.
        fixed_tokens: Tokens of an image under ``fixed``, or of unknown size.
        text_tokens: Tokens of each row's text, in place of the rule.
        out_tokens: Output tokens of each answer, reasoning included, where no sample tells.
        shard_limit_bytes: What a shard may hold, None = the provider's dated limit.
        calibrate: Results files.
        rehearsal: Whether these are rehearsals, for practice.
        against: An earlier run folder to compare answers with.
        require_receipt: Whether every image must be proven to have arrived.
        prices: As they were given.
    """

    scheme: str = tokens.AUTO
    scheme_file: str | None = None
    detail: str | None = None
    fixed_tokens: int = tokens.DEFAULT_FIXED_TOKENS
    text_tokens: int | None = None
    out_tokens: int | None = None
    shard_limit_bytes: int | None = None
    calibrate: Sequence[str] = ()
    rehearsal: bool = False
    against: str | None = None
    require_receipt: bool = False
    prices: Prices = field(default_factory=Prices)


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateResult:
    """What estimate found.

    Attributes:
        run: The run.
        load: What it holds.
        scheme: How images were counted, None where no formula is known for the model.
        detail: The image detail that was counted with, None = the provider's default.
        limit: What a shard may hold.
        text_tokens: Tokens of all text.
        forecast: What the whole run will use and cost.
        prices: As they were given.
        sample: What was measured, None without a sample.
        receipts: Image receipts of the sample.
        verdict: The smoke verdict on the sample; empty without one.
        channel: The rule of thumb on the channel, in words.
        warnings: Sentences for people.
        record: The line that was appended to estimates.jsonl.
        failure: A check that does not hold, None where all hold.
    """

    run: RunDir
    load: Workload
    scheme: tokens.Scheme | None
    detail: str | None
    limit: Limit
    text_tokens: float
    forecast: Forecast
    prices: Prices
    sample: Sample | None
    receipts: Receipts | None
    verdict: list[Check]
    channel: str
    warnings: list[str]
    record: dict[str, Any]
    failure: CheckFailed | None


def check_options(options: EstimateOptions) -> None:
    """Refuse options that make no sense, before anything is read.

    Raises:
        InputError: A number is too small, a flag needs a sample and there is none, or prices make no sense.
    """
    numbers = {
        "--out-tokens": options.out_tokens,
        "--text-tokens": options.text_tokens,
        "--fixed-tokens": options.fixed_tokens,
        "--shard-limit-bytes": options.shard_limit_bytes,
    }
    for flag, value in numbers.items():
        if value is not None and value < (1 if flag == "--shard-limit-bytes" else 0):
            raise InputError(f"{flag} {value}: too small", hint="give a number of tokens or bytes")
    needs_sample = {
        "--require-receipt": options.require_receipt,
        "--against": options.against is not None,
        "--rehearsal": options.rehearsal,
    }
    for flag, is_given in needs_sample.items():
        if is_given and not options.calibrate:
            raise InputError(f"{flag} needs a measured sample", hint="name its file with --calibrate")
    _check_prices(options.prices)


def _check_prices(prices: Prices) -> None:
    """Refuse prices that would price nothing, and a day that is none: both go on record.

    Raises:
        InputError: They do, or it is.
    """
    alone = {
        "--price-in": prices.price_in is not None and prices.price_out is None,
        "--price-out": prices.price_out is not None and prices.price_in is None,
        "--price-cached": prices.price_cached is not None and prices.rates("realtime") is None,
        "--batch-discount": prices.batch_discount is not None and prices.rates("realtime") is None,
        "--price-batch-in": prices.price_batch_in is not None and prices.rates("batch") is None,
        "--price-batch-out": prices.price_batch_out is not None and prices.rates("batch") is None,
    }
    for flag, is_alone in alone.items():
        if is_alone:
            raise InputError(
                f"{flag} prices nothing without the prices that belong to it",
                hint="--price-in and --price-out go together, and so do --price-batch-in and --price-batch-out",
            )
    if prices.price_date is not None and not _is_day(prices.price_date):
        raise InputError(f"--price-date {prices.price_date}: not a day", hint="write YYYY-MM-DD, such as 2026-11-30")


def _is_day(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False
