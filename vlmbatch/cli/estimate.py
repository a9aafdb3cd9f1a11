"""vlmbatch estimate: the flags, and the tables that a person can paste into a mail."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlmbatch.cli.base import (
    HelpAllOption,
    JsonOption,
    QuietOption,
    VerboseOption,
    envelope,
    finish,
    option,
    out_json,
    started,
)
from vlmbatch.console import Watch, safe, say
from vlmbatch.errors import InputError

if TYPE_CHECKING:
    from vlmbatch.stages.estimating.options import EstimateOptions

_TOKENS = "Tokens"
_SAMPLE = "A measured sample"
_SHARDS = "Shards"
_PRICE = "Prices (USD per million tokens)"

EVERYDAY = (
    *("--out-tokens", "--scheme", "--size", "--model"),
    *("--calibrate", "--against", "--require-receipt"),
    *("--price-in", "--price-out", "--batch-discount", "--price-source", "--price-date"),
    *("--json", "--quiet"),
)
"""The options of the one-screen help, in its order; the others are named there, and told by --help-all."""


def estimate(
    run_dir: Annotated[str | None, typer.Argument(metavar="RUN", help="Run folder, made by build.")] = None,
    *,
    scheme: Annotated[str, option(_TOKENS, "Rule for image tokens; auto picks it by model.", metavar="NAME")] = "auto",
    scheme_file: Annotated[
        str | None, option(_TOKENS, "Rules of your own, which come before ours.", metavar="TOML")
    ] = None,
    detail: Annotated[
        str | None, option(_TOKENS, "Image detail to count with, if not the one that is sent.", metavar="WORD")
    ] = None,
    fixed_tokens: Annotated[
        int, option(_TOKENS, "Tokens of an image under --scheme fixed, or of unknown size.", metavar="N")
    ] = 1000,
    text_tokens: Annotated[
        int | None, option(_TOKENS, "Text tokens of a request.", metavar="N", show_default="its bytes / 3")
    ] = None,
    out_tokens: Annotated[int | None, option(_TOKENS, "Output of one answer, reasoning included.", metavar="N")] = None,
    size: Annotated[
        str | None, option(_TOKENS, "Count one image size, without RUN; needs --model.", metavar="WxH")
    ] = None,
    model: Annotated[str | None, option(_TOKENS, "Model for --size.", metavar="NAME")] = None,
    provider: Annotated[
        str, option(_TOKENS, "Provider for --size, where the model's name does not tell.", metavar="NAME")
    ] = "",
    calibrate: Annotated[
        list[str] | None, option(_SAMPLE, "Reckon from these results of a sample; repeatable.", metavar="RESULTS")
    ] = None,
    rehearsal: Annotated[
        bool, option(_SAMPLE, "Take results of a rehearsal as a sample, for practice.", "--rehearsal")
    ] = False,
    against: Annotated[
        str | None, option(_SAMPLE, "Earlier run whose answers the sample should match.", metavar="RUN")
    ] = None,
    require_receipt: Annotated[
        bool, option(_SAMPLE, "Exit 1 unless all images of the sample arrived.", "--require-receipt")
    ] = False,
    price_in: Annotated[str | None, option(_PRICE, "Input tokens.", metavar="USD")] = None,
    price_out: Annotated[str | None, option(_PRICE, "Output tokens, reasoning included.", metavar="USD")] = None,
    price_cached: Annotated[
        str | None, option(_PRICE, "Input tokens from the provider's cache, if not priced as all input.", metavar="USD")
    ] = None,
    price_batch_in: Annotated[
        str | None, option(_PRICE, "Input tokens over the batch API, where the provider names a price.", metavar="USD")
    ] = None,
    price_batch_out: Annotated[
        str | None, option(_PRICE, "Output tokens over the batch API, likewise.", metavar="USD")
    ] = None,
    batch_discount: Annotated[
        str | None, option(_PRICE, "What the batch API takes off: 0.5 is half price.", metavar="PART")
    ] = None,
    price_source: Annotated[str | None, option(_PRICE, "Page where the prices stand.", metavar="URL")] = None,
    price_date: Annotated[str | None, option(_PRICE, "Day on which they were read.", metavar="YYYY-MM-DD")] = None,
    price_file: Annotated[str | None, option(_PRICE, "All prices from a file, TOML or JSON.", metavar="FILE")] = None,
    shard_limit_bytes: Annotated[
        int | None, option(_SHARDS, "Bytes that a shard may have.", metavar="N", show_default="by the provider")
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = 0,
    verbose: VerboseOption = 0,
    _help_all: HelpAllOption = False,
) -> None:
    """Tell what a run will use and cost: by formula, then by a measured sample.

    \b
      vlmbatch estimate runs/r001 --out-tokens 300
      vlmbatch estimate runs/r001 --calibrate runs/r001/results/smoke.jsonl --price-in 0.25 --price-out 2
      vlmbatch estimate --size 1024x768 --model M --json
    """  # noqa: D301  (\b holds the lines below apart)
    from vlmbatch.prices import Prices, read_file
    from vlmbatch.stages.estimating.options import EstimateOptions

    typed = Prices.typed(
        price_in=price_in,
        price_out=price_out,
        price_cached=price_cached,
        price_batch_in=price_batch_in,
        price_batch_out=price_batch_out,
        batch_discount=batch_discount,
        price_source=price_source,
        price_date=price_date,
    )
    options = EstimateOptions(
        scheme=scheme,
        scheme_file=scheme_file,
        detail=detail,
        fixed_tokens=fixed_tokens,
        text_tokens=text_tokens,
        out_tokens=out_tokens,
        shard_limit_bytes=shard_limit_bytes,
        calibrate=tuple(calibrate or ()),
        rehearsal=rehearsal,
        against=against,
        require_receipt=require_receipt,
        prices=typed.over(read_file(price_file)) if price_file else typed,
    )
    if size is not None:
        _one_size(size, model, provider, options, run_dir=run_dir, as_json=as_json)
    elif run_dir is None:
        raise InputError("RUN is missing", hint="name a run folder, or one image size with --size and --model")
    elif model is not None or provider:
        raise InputError("--model and --provider go with --size", hint="a run's model stands in its run.json")
    else:
        _whole_run(run_dir, options, quiet, verbose, as_json=as_json)


def _whole_run(run_dir: str, options: EstimateOptions, quiet: int, verbose: int, *, as_json: bool) -> None:
    from vlmbatch.api.run import Run
    from vlmbatch.cli.estimate_text import as_data, show

    console = started(quiet, verbose)
    with Watch(console, "estimating") as watch:
        result = Run.open(run_dir).estimate(options, on_event=watch.on_event)
    for sentence in result.warnings:
        console.warning(sentence)
    finish(
        "estimate",
        as_data(result),
        as_json=as_json,
        quiet=quiet,
        text=lambda: show(result),
        failed=result.failure,
    )


def _one_size(
    size: str, model: str | None, provider: str, options: EstimateOptions, *, run_dir: str | None, as_json: bool
) -> None:
    """Answer for one image size."""
    from vlmbatch.stages.estimate import estimate_size

    sides = re.fullmatch(r"(\d{1,9})[xX](\d{1,9})", size)
    if run_dir is not None:
        raise InputError("--size answers without a run", hint="leave out RUN, or --size")
    if sides is None:
        raise InputError(f"--size {size}: not WIDTHxHEIGHT", hint="such as 1024x768, in pixels")
    if model is None and options.scheme == "auto":
        raise InputError("--size needs --model, or a rule by --scheme", hint="such as --model gpt-5.4")
    found = estimate_size(int(sides[1]), int(sides[2]), model or "", options, provider=provider)
    if as_json:
        whole = envelope("estimate", found, None)
        out_json({"tokens": found["tokens"], "scheme": found["scheme"], **whole})
        return
    say(_size_line(found))


def _size_line(found: dict[str, Any]) -> str:
    what = f"{found['width']} x {found['height']}"
    picked = found["picked"]
    if picked is None:
        return f"{what}: {found['low']:,} to {found['high']:,} tokens; no rule is known for {safe(found['model'])}"
    if found["refused"]:
        return f"{what}: refused by the model's own processor ({found['refused']})"
    whom = f" for {picked['label']}" if picked["label"] else ""
    return (
        f"{what}: {found['tokens']:,} tokens by {safe(found['scheme'])}{safe(whom)} "
        f"({picked['sure']}, as of {picked['as_of']}: {safe(picked['source'])})"
    )
