"""vlmbatch estimate: the flags, and the tables that a person can paste into a mail."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlmbatch.cli.base import JsonOption, QuietOption, VerboseOption, envelope, finish, out_json
from vlmbatch.console import Console, Watch, out, safe
from vlmbatch.errors import InputError

if TYPE_CHECKING:
    from vlmbatch.stages.estimating.options import EstimateOptions

_TOKENS = "Tokens"
_SAMPLE = "A measured sample"
_SHARDS = "Shards"
_PRICE = "Prices (USD per million tokens)"


def _usd(text: str) -> Any:
    return typer.Option(metavar="USD", help=text, rich_help_panel=_PRICE)


_PriceIn = Annotated[str | None, _usd("Input tokens, a million.")]
_PriceOut = Annotated[str | None, _usd("Output tokens, with reasoning.")]
_PriceCached = Annotated[str | None, _usd("Input from the provider's cache (default: as input).")]
_PriceBatchIn = Annotated[str | None, _usd("Input over batch, where the page names it.")]
_PriceBatchOut = Annotated[str | None, _usd("Output over batch, likewise.")]


def estimate(
    run_dir: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Run folder, made by build.", show_default=False)
    ] = None,
    *,
    scheme: Annotated[
        str, typer.Option(help="How image tokens are counted; auto picks by the model.", rich_help_panel=_TOKENS)
    ] = "auto",
    scheme_file: Annotated[
        str | None, typer.Option(metavar="TOML", help="Rules of your own, before ours.", rich_help_panel=_TOKENS)
    ] = None,
    detail: Annotated[
        str | None, typer.Option(help="Image detail, if not the frozen one.", rich_help_panel=_TOKENS)
    ] = None,
    fixed_tokens: Annotated[
        int, typer.Option(help="An image under fixed, or of unknown size.", rich_help_panel=_TOKENS)
    ] = 1000,
    text_tokens: Annotated[
        int | None, typer.Option(help="A request's text (default: bytes / 3).", rich_help_panel=_TOKENS)
    ] = None,
    out_tokens: Annotated[
        int | None, typer.Option(help="Output of an answer, with reasoning.", rich_help_panel=_TOKENS)
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(metavar="WxH", help="One image size, without a run; needs --model.", rich_help_panel=_TOKENS),
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model for --size.", rich_help_panel=_TOKENS)] = None,
    provider: Annotated[str, typer.Option(help="Its provider, for --size.", rich_help_panel=_TOKENS)] = "",
    calibrate: Annotated[
        list[str] | None,
        typer.Option(metavar="RESULTS", help="Measured results; repeatable.", rich_help_panel=_SAMPLE),
    ] = None,
    rehearsal: Annotated[
        bool, typer.Option("--rehearsal", help="Take rehearsals, for practice.", rich_help_panel=_SAMPLE)
    ] = False,
    against: Annotated[
        str | None, typer.Option(metavar="RUN", help="An earlier run to compare with.", rich_help_panel=_SAMPLE)
    ] = None,
    require_receipt: Annotated[
        bool, typer.Option("--require-receipt", help="Exit 1 unless every image arrived.", rich_help_panel=_SAMPLE)
    ] = False,
    price_in: _PriceIn = None,
    price_out: _PriceOut = None,
    price_cached: _PriceCached = None,
    price_batch_in: _PriceBatchIn = None,
    price_batch_out: _PriceBatchOut = None,
    batch_discount: Annotated[
        str | None,
        typer.Option(metavar="PART", help="What batch takes off: 0.5 = half price.", rich_help_panel=_PRICE),
    ] = None,
    price_source: Annotated[
        str | None, typer.Option(metavar="URL", help="The page they stand on.", rich_help_panel=_PRICE)
    ] = None,
    price_date: Annotated[
        str | None, typer.Option(metavar="DAY", help="The day they were read.", rich_help_panel=_PRICE)
    ] = None,
    price_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="All of these, as TOML or JSON.", rich_help_panel=_PRICE)
    ] = None,
    shard_limit_bytes: Annotated[
        int | None, typer.Option(metavar="N", help="Check shards against it (the provider's).", rich_help_panel=_SHARDS)
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = 0,
    verbose: VerboseOption = 0,
) -> None:
    """Tell what a run will use and cost, by formula first, by a measured sample then.

    \b
      vlmbatch estimate runs/r001 --out-tokens 300
      vlmbatch estimate runs/r001 --calibrate runs/r001/results/smoke.jsonl --price-in P --price-out P
      vlmbatch estimate --size 1024x768 --model M --json
    """  # noqa: D301  (\b holds the lines below apart)
    from vlmbatch.prices import Prices, read_file
    from vlmbatch.stages.estimating.options import EstimateOptions

    typed = Prices.parse(
        {
            "price_in_usd_per_mtok": price_in,
            "price_out_usd_per_mtok": price_out,
            "price_cached_usd_per_mtok": price_cached,
            "price_batch_in_usd_per_mtok": price_batch_in,
            "price_batch_out_usd_per_mtok": price_batch_out,
            "batch_discount": batch_discount,
            "price_source": price_source,
            "price_date": price_date,
        },
        where="prices",
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
        _whole_run(run_dir, options, Console(quiet, verbose), as_json=as_json)


def _whole_run(run_dir: str, options: EstimateOptions, console: Console, *, as_json: bool) -> None:
    from vlmbatch.api.run import Run
    from vlmbatch.cli.estimate_text import as_data, show

    with Watch(console, "estimating") as watch:
        result = Run.open(run_dir).estimate(options, on_event=watch.on_event)
    for sentence in result.warnings:
        console.warning(sentence)
    finish(
        "estimate",
        as_data(result),
        as_json=as_json,
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
    out(_size_line(found))


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
