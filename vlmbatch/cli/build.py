"""vlmbatch build: the flags, and what a person reads when it is done."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlmbatch.cli.base import JsonOption, QuietOption, VerboseOption, finish
from vlmbatch.console import Console, Watch, number_bytes, out, safe
from vlmbatch.errors import Interrupted

if TYPE_CHECKING:
    from vlmbatch.api.run import Run

_ASK = "What is asked"
_TABLE = "Tables"
_IMAGE = "Images"
_SHARDS = "Folder and shards"
_CARRIER = "Images too large to inline"


def build(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE", help="Folders, images, or one table (- = JSONL on stdin).", show_default=False
        ),
    ] = None,
    *,
    out_dir: Annotated[str, typer.Option("--out", "-o", metavar="RUN", help="Run folder to make.", show_default=False)],
    model: Annotated[
        str | None,
        typer.Option("--model", "--model-id", help="The model, as the provider spells it.", rich_help_panel=_ASK),
    ] = None,
    provider: Annotated[
        str | None,
        typer.Option(
            help="openai (default), anthropic, gemini, vllm, sglang or compatible.",
            rich_help_panel=_ASK,
        ),
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="The prompt's text.", rich_help_panel=_ASK)] = None,
    prompt_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="The prompt, from a file.", rich_help_panel=_ASK)
    ] = None,
    system_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="The system prompt.", rich_help_panel=_ASK)
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Output limit with reasoning (4096).", rich_help_panel=_ASK)
    ] = None,
    max_tokens_field: Annotated[
        str,
        typer.Option(metavar="NAME", help="The limit's name in the body.", rich_help_panel=_ASK, show_default=False),
    ] = "",
    temperature: Annotated[float | None, typer.Option(help="Sent only if given.", rich_help_panel=_ASK)] = None,
    top_p: Annotated[float | None, typer.Option(help="Sent only if given.", rich_help_panel=_ASK)] = None,
    detail: Annotated[
        str | None, typer.Option(help="Of images: low, high, auto, original.", rich_help_panel=_ASK)
    ] = None,
    reasoning_effort: Annotated[
        str | None, typer.Option(metavar="WORD", help="Sent only if given.", rich_help_panel=_ASK)
    ] = None,
    thinking_budget: Annotated[
        int | None, typer.Option(metavar="TOKENS", help="Sent only if given.", rich_help_panel=_ASK)
    ] = None,
    response_format: Annotated[
        str | None, typer.Option(metavar="json", help="Ask for a JSON answer.", rich_help_panel=_ASK)
    ] = None,
    json_schema: Annotated[
        str | None, typer.Option(metavar="FILE", help="Ask for JSON that fits this schema.", rich_help_panel=_ASK)
    ] = None,
    extra_body: Annotated[
        str | None, typer.Option(metavar="FILE", help="JSON object merged over the body.", rich_help_panel=_ASK)
    ] = None,
    url: Annotated[
        str, typer.Option(metavar="PATH", help="The endpoint's path.", rich_help_panel=_ASK, show_default=False)
    ] = "",
    config: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A pipeline file (YAML) that says it all.", rich_help_panel=_TABLE),
    ] = None,
    image_field: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Image column (image_path); repeatable.", rich_help_panel=_TABLE),
    ] = None,
    question_field: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column of questions.", rich_help_panel=_TABLE)
    ] = None,
    id_fields: Annotated[
        str | None, typer.Option(metavar="A,B", help="Columns that name a row; must be unique.", rich_help_panel=_TABLE)
    ] = None,
    prompt_template: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Jinja2; {{ image }} places the image.", rich_help_panel=_TABLE),
    ] = None,
    image_base_path: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where image paths start.", rich_help_panel=_TABLE)
    ] = None,
    image_order: Annotated[
        str, typer.Option(metavar="first|last", help="Where images stand.", rich_help_panel=_TABLE)
    ] = "first",
    encoding: Annotated[str | None, typer.Option(help="A table's encoding (UTF-8).", rich_help_panel=_TABLE)] = None,
    delimiter: Annotated[
        str | None, typer.Option(metavar="CHAR", help="What separates a CSV's cells.", rich_help_panel=_TABLE)
    ] = None,
    allow_outside: Annotated[
        bool, typer.Option("--allow-outside", help="Let paths leave the image root.", rich_help_panel=_TABLE)
    ] = False,
    allow_no_image: Annotated[
        bool, typer.Option("--allow-no-image", help="Let rows have no image.", rich_help_panel=_TABLE)
    ] = False,
    follow_links: Annotated[
        bool, typer.Option("--follow-links", help="Follow links in folders.", rich_help_panel=_TABLE)
    ] = False,
    check: Annotated[
        str,
        typer.Option(metavar="full|quick", help="How deep to look.", rich_help_panel=_IMAGE),
    ] = "full",
    orient: Annotated[
        str, typer.Option(metavar="keep|apply", help="Turn by EXIF, or not.", rich_help_panel=_IMAGE)
    ] = "keep",
    max_side: Annotated[
        int | None, typer.Option(metavar="PX", help="Shrink larger sides to it.", rich_help_panel=_IMAGE)
    ] = None,
    max_pixels: Annotated[
        int | None, typer.Option(metavar="N", help="Shrink larger images to it.", rich_help_panel=_IMAGE)
    ] = None,
    image_format: Annotated[
        str | None,
        typer.Option("--format", metavar="jpeg|png|webp", help="Write all anew, as this.", rich_help_panel=_IMAGE),
    ] = None,
    quality: Annotated[
        int | None, typer.Option(metavar="1-100", help="Of JPEG and WebP written anew (90).", rich_help_panel=_IMAGE)
    ] = None,
    background: Annotated[
        str | None,
        typer.Option(metavar="COLOUR", help="Behind JPEG: white, black or #rrggbb.", rich_help_panel=_IMAGE),
    ] = None,
    strip_metadata: Annotated[
        bool, typer.Option("--strip-metadata", help="Drop GPS, names, serials.", rich_help_panel=_IMAGE)
    ] = False,
    convert_unsupported: Annotated[
        bool,
        typer.Option("--convert-unsupported", help="Convert what the provider refuses.", rich_help_panel=_IMAGE),
    ] = False,
    limit_override: Annotated[
        list[str] | None,
        typer.Option(
            "--limit-override", metavar="NAME=N", help="Own value for a provider limit.", rich_help_panel=_IMAGE
        ),
    ] = None,
    id_prefix: Annotated[
        str, typer.Option(help="Before every custom_id.", rich_help_panel=_SHARDS, show_default=False)
    ] = "",
    shard_max_bytes: Annotated[
        int | None, typer.Option(metavar="N", help="Bytes of a shard, at most.", rich_help_panel=_SHARDS)
    ] = None,
    shard_max_requests: Annotated[
        int | None, typer.Option(metavar="N", help="Requests of a shard, at most.", rich_help_panel=_SHARDS)
    ] = None,
    carrier: Annotated[
        str,
        typer.Option(
            metavar="inline|provider-file",
            help="Upload images first.",
            rich_help_panel=_CARRIER,
        ),
    ] = "inline",
    base_url: Annotated[
        str, typer.Option(metavar="URL", help="Where the file store is.", rich_help_panel=_CARRIER, show_default=False)
    ] = "",
    api_key_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="Variable that holds its key.", rich_help_panel=_CARRIER)
    ] = None,
    api_key_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="File whose first line is its key.", rich_help_panel=_CARRIER)
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Record bad inputs and go on.", rich_help_panel=_SHARDS)
    ] = False,
    workers: Annotated[int | None, typer.Option(help="Threads (default: processors).", rich_help_panel=_SHARDS)] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = 0,
    verbose: VerboseOption = 0,
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

    console = Console(quiet, verbose)
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
    finish("build", _data(run), as_json=as_json, text=lambda: _print(run))


def _data(run: Run) -> dict[str, Any]:
    return {
        "run": run.path,
        "fingerprint": run.fingerprint,
        "counts": run.info["counts"],
        "left_out": run.left_out,
        "shards": run.info["shards"],
        "warnings": list(run.warnings),
    }


def _print(run: Run) -> None:
    """Say what was made, and what one may do next."""
    from vlmbatch.inputs.folder import say_left_out

    counts, info = run.info["counts"], run.info
    shards = info["shards"]
    size = sum(shard["bytes"] for shard in shards)
    out(
        f"built {safe(run.path)}: {counts['requests']:,} requests, {counts['images']:,} images, "
        f"{len(shards)} shard(s), {number_bytes(size)}"
    )
    if counts["duplicate_images"]:
        out(f"duplicates: {counts['duplicate_images']:,} image(s) are byte-identical to an earlier one (all are kept)")
    if counts["rejected"]:
        out(f"rejected: {counts['rejected']:,} input(s), each with its reason in rejected.jsonl")
    if run.left_out:
        out(f"left out: {say_left_out(run.left_out)}")
    out(f"fingerprint: {run.fingerprint}")
    out(f"next: vlmbatch estimate {shlex.quote(safe(run.path))}")
