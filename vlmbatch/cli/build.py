"""vlmbatch build: the flags, and what a person reads when it is done."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlmbatch import providers
from vlmbatch.cli.base import HelpAllOption, JsonOption, QuietOption, VerboseOption, finish, option, started
from vlmbatch.cli.onward import say_next
from vlmbatch.console import Watch, number_bytes, out, safe, say
from vlmbatch.errors import Interrupted, counted

if TYPE_CHECKING:
    from vlmbatch.api.run import Run

_ASK = "What is asked"
_TABLE = "Tables"
_IMAGE = "Images"
_FOLDER = "Run folder"
_CARRIER = "Uploaded images"

EVERYDAY = (
    *("--out", "--skip-bad"),
    *("--model", "--provider", "--prompt", "--prompt-file", "--system-file", "--max-tokens", "--json-schema"),
    *("--config", "--image-field", "--question-field", "--id-fields"),
    "--max-side",
)
"""The options of the one-screen help, in its order; the others are named there, and told by --help-all."""

NEEDS = ("SOURCE", "--out RUN", "--model NAME", "--prompt TEXT")
"""What is told to whoever gives nothing."""


def build(
    sources: Annotated[
        list[str] | None,
        typer.Argument(metavar="SOURCE", help="Folders, images, or a table of rows; - is JSONL on stdin."),
    ] = None,
    *,
    out_dir: Annotated[str, option(_FOLDER, "Run folder to make; must not exist yet.", "--out", "-o", metavar="RUN")],
    model: Annotated[
        str | None, option(_ASK, "Model, as its provider spells it.", "--model", "--model-id", metavar="NAME")
    ] = None,
    provider: Annotated[
        str | None,
        option(
            _ASK,
            f"{', '.join(providers.names())}.",
            metavar="NAME",
            values=providers.names,
            show_default=f"{providers.DEFAULT}, or {providers.LOCAL_DEFAULT} with --config",
        ),
    ] = None,
    prompt: Annotated[str | None, option(_ASK, "What is asked about every image.", metavar="TEXT")] = None,
    prompt_file: Annotated[str | None, option(_ASK, "The prompt, read from a file.", metavar="FILE")] = None,
    system_file: Annotated[str | None, option(_ASK, "System prompt, read from a file.", metavar="FILE")] = None,
    max_tokens: Annotated[
        int | None, option(_ASK, "Output limit, reasoning included.", metavar="N", show_default="4096")
    ] = None,
    max_tokens_field: Annotated[
        str, option(_ASK, "Name of the output limit in the body, where a server wants another.", metavar="NAME")
    ] = "",
    temperature: Annotated[float | None, option(_ASK, "Sampling temperature; sent only if given.", metavar="N")] = None,
    top_p: Annotated[float | None, option(_ASK, "Nucleus sampling; sent only if given.", metavar="N")] = None,
    detail: Annotated[
        str | None,
        option(
            _ASK,
            "Image detail: low, high, auto, original; sent only if given.",
            metavar="WORD",
            values=providers.details,
        ),
    ] = None,
    reasoning_effort: Annotated[
        str | None,
        option(
            _ASK,
            "How hard to think, in the provider's words; sent only if given.",
            metavar="WORD",
            values=providers.efforts,
        ),
    ] = None,
    thinking_budget: Annotated[
        int | None, option(_ASK, "Most tokens of thinking; sent only if given.", metavar="TOKENS")
    ] = None,
    response_format: Annotated[
        str | None, option(_ASK, "Ask for a JSON answer of any form.", metavar="json", values=lambda: ["json"])
    ] = None,
    json_schema: Annotated[str | None, option(_ASK, "Ask for JSON that fits this JSON Schema.", metavar="FILE")] = None,
    extra_body: Annotated[
        str | None, option(_ASK, "JSON object laid over the body of every request.", metavar="FILE")
    ] = None,
    url: Annotated[str, option(_ASK, "Path of the endpoint, if not the provider's usual one.", metavar="PATH")] = "",
    config: Annotated[
        str | None, option(_TABLE, "Pipeline file (YAML): model, tables and prompts.", metavar="FILE")
    ] = None,
    image_field: Annotated[
        list[str] | None, option(_TABLE, "Image column; repeatable.", metavar="COL", show_default="image_path")
    ] = None,
    question_field: Annotated[str | None, option(_TABLE, "Column with each row's own question.", metavar="COL")] = None,
    id_fields: Annotated[
        str | None, option(_TABLE, "Columns that together name a row; must be unique.", metavar="A,B")
    ] = None,
    prompt_template: Annotated[
        str | None,
        option(_TABLE, "Prompt made of the columns of a row, in Jinja2; {{ image }} places the image.", metavar="TEXT"),
    ] = None,
    image_base_path: Annotated[
        str | None, option(_TABLE, "Where image paths start.", metavar="DIR", show_default="the table's folder")
    ] = None,
    image_order: Annotated[
        str, option(_TABLE, "Whether images stand before or behind the text.", metavar="first|last")
    ] = "first",
    encoding: Annotated[str | None, option(_TABLE, "Encoding of tables.", metavar="NAME", show_default="UTF-8")] = None,
    delimiter: Annotated[
        str | None, option(_TABLE, "What separates the cells of a CSV, if not found out rightly.", metavar="CHAR")
    ] = None,
    allow_outside: Annotated[
        bool,
        option(
            _TABLE, "Allow absolute image paths, and paths that leave the folder where they start.", "--allow-outside"
        ),
    ] = False,
    allow_no_image: Annotated[bool, option(_TABLE, "Allow rows without an image.", "--allow-no-image")] = False,
    follow_links: Annotated[bool, option(_TABLE, "Follow links inside source folders.", "--follow-links")] = False,
    check: Annotated[
        str, option(_IMAGE, "Decode all pixels, or check the files' structure alone.", metavar="full|quick")
    ] = "full",
    orient: Annotated[
        str, option(_IMAGE, "Leave a photo's EXIF orientation to the server, or turn the pixels.", metavar="keep|apply")
    ] = "keep",
    max_side: Annotated[
        int | None, option(_IMAGE, "Longer side of images, at most; larger ones shrink.", metavar="PX")
    ] = None,
    max_pixels: Annotated[
        int | None, option(_IMAGE, "Pixels of an image, at most; larger ones shrink.", metavar="N")
    ] = None,
    image_format: Annotated[
        str | None,
        option(_IMAGE, "Write images of other formats anew, in this one.", "--format", metavar="jpeg|png|webp"),
    ] = None,
    quality: Annotated[
        int | None, option(_IMAGE, "Quality of JPEG and WebP written anew.", metavar="1-100", show_default="90")
    ] = None,
    background: Annotated[
        str | None,
        option(_IMAGE, "What transparent images get behind them in JPEG: white, black or #rrggbb.", metavar="COLOUR"),
    ] = None,
    strip_metadata: Annotated[
        bool, option(_IMAGE, "Remove position, names and serial numbers from images.", "--strip-metadata")
    ] = False,
    convert_unsupported: Annotated[
        bool, option(_IMAGE, "Convert images of types that the provider does not take.", "--convert-unsupported")
    ] = False,
    limit_override: Annotated[
        list[str] | None,
        option(
            _IMAGE, "Your own value for a limit of the provider's; repeatable.", "--limit-override", metavar="NAME=N"
        ),
    ] = None,
    id_prefix: Annotated[str, option(_FOLDER, "What every custom_id begins with.", metavar="TEXT")] = "",
    shard_max_bytes: Annotated[
        int | None, option(_FOLDER, "Bytes of a shard, at most.", metavar="N", show_default="by the provider")
    ] = None,
    shard_max_requests: Annotated[
        int | None, option(_FOLDER, "Requests of a shard, at most.", metavar="N", show_default="by the provider")
    ] = None,
    carrier: Annotated[
        str, option(_CARRIER, "Images inside the requests, or uploaded beforehand.", metavar="inline|provider-file")
    ] = "inline",
    base_url: Annotated[
        str, option(_CARRIER, "Address of the file store, if not the provider's own.", metavar="URL")
    ] = "",
    api_key_env: Annotated[
        str | None, option(_CARRIER, "Name of the variable that holds the key of the file store.", metavar="NAME")
    ] = None,
    api_key_file: Annotated[str | None, option(_CARRIER, "File whose first line is that key.", metavar="FILE")] = None,
    skip_bad: Annotated[bool, option(_FOLDER, "Note bad inputs in rejected.jsonl and go on.", "--skip-bad")] = False,
    workers: Annotated[
        int | None, option(_FOLDER, "Threads that read images.", metavar="N", show_default="one per processor")
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = 0,
    verbose: VerboseOption = 0,
    _help_all: HelpAllOption = False,
) -> None:
    """Freeze every request's exact bytes, images inlined, into a new run folder.

    \b
      vlmbatch build images/ --out runs/r001 --model M --prompt-file prompt.txt
      vlmbatch build table.jsonl --out runs/r002 --model M --question-field question
    """  # noqa: D301  (\b holds the lines below apart)
    from vlmbatch.api.run import Run
    from vlmbatch.images import ImagePolicy
    from vlmbatch.stages.building.plan import BuildOptions, parse_limits
    from vlmbatch.stop import Stop, on_signals

    console = started(quiet, verbose)
    options = BuildOptions(
        sources=tuple(sources or ()),
        out=out_dir,
        model=model,
        provider=provider,
        prompt=prompt,
        prompt_file=prompt_file,
        system_file=system_file,
        config=config,
        max_tokens=max_tokens,
        max_tokens_field=max_tokens_field,
        temperature=temperature,
        top_p=top_p,
        detail=detail,
        reasoning_effort=reasoning_effort,
        thinking_budget=thinking_budget,
        response_format=response_format,
        json_schema=json_schema,
        extra_body=extra_body,
        url=url,
        id_prefix=id_prefix,
        image_field=tuple(image_field or ()),
        question_field=question_field,
        id_fields=tuple(name.strip() for name in (id_fields or "").split(",") if name.strip()),
        prompt_template=prompt_template,
        image_base_path=image_base_path,
        image_order=image_order,
        encoding=encoding,
        delimiter=delimiter,
        allow_outside=allow_outside,
        allow_no_image=allow_no_image,
        follow_links=follow_links,
        image_policy=ImagePolicy.make(
            check=check,
            orient=orient,
            max_side=max_side,
            max_pixels=max_pixels,
            format=image_format,
            quality=quality,
            background=background,
            strip_metadata=strip_metadata,
            convert_unsupported=convert_unsupported,
        ),
        limits=parse_limits(limit_override or []),
        shard_max_bytes=shard_max_bytes,
        shard_max_requests=shard_max_requests,
        carrier=carrier,
        base_url=base_url,
        skip_bad=skip_bad,
        workers=workers,
        env=os.environ,
        stdin=sys.stdin.buffer if sys.stdin else None,  # a daemon may have closed it
    )
    try:
        with on_signals(Stop()), Watch(console, "building") as watch:
            run = Run.build(
                options, environ=os.environ, key_env=api_key_env, key_file=api_key_file, on_event=watch.on_event
            )
    except KeyboardInterrupt:
        raise Interrupted(f"{out_dir}: interrupted before it was whole; nothing of it was left behind") from None
    for sentence in run.warnings:
        console.warning(sentence)
    finish("build", _data(run), as_json=as_json, quiet=quiet, text=lambda: _print(run))


def _data(run: Run) -> dict[str, Any]:
    return {
        "run": run.path,
        "fingerprint": run.fingerprint,
        "counts": run.info["counts"],
        "left_out": run.left_out,
        "uploads": run.uploads,
        "shards": run.info["shards"],
        "warnings": list(run.warnings),
    }


def _print(run: Run) -> None:
    """Say what was made, and what one may do next."""
    from vlmbatch.inputs.folder import say_left_out

    counts, shards = run.info["counts"], run.info["shards"]
    size = number_bytes(sum(shard["bytes"] for shard in shards))
    made = [
        counted(counts["requests"], "[request|requests]"),
        counted(counts["images"], "[image|images]"),
        counted(len(shards), "[shard|shards]"),
    ]
    say(f"built {safe(run.path)}: {', '.join(made)}, {size}")
    if counts["duplicate_images"]:
        alike = counted(counts["duplicate_images"], "[image is|images are] byte-identical to an earlier one")
        say(f"duplicates: {alike} (all are kept)")
    if counts["rejected"]:
        say(f"rejected: {counted(counts['rejected'], '[input|inputs]')}, each with its reason in rejected.jsonl")
    if run.left_out:
        say(f"left out: {say_left_out(run.left_out)}")
    if run.uploads:
        uploaded = counted(run.uploads["uploaded"], "[image|images]")
        say(f"file store: {uploaded} uploaded, {run.uploads['reused']:,} there already")
    out(f"fingerprint: {run.fingerprint}")
    say_next("vlmbatch", "estimate", run.path)
