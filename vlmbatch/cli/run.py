"""vlmbatch run: the flags, and what a person reads while rows are sent."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer  # noqa: TC002  (typer evaluates the annotation)

from vlmbatch.cli import cluster
from vlmbatch.cli.base import (
    HelpAllOption,
    JsonOption,
    QuietOption,
    RunArgument,
    VerboseOption,
    finish,
    option,
    started,
    typed,
)
from vlmbatch.cli.run_batch import (
    CancelOption,
    DetachOption,
    MaxEnqueuedOption,
    MaxInFlightOption,
    PollIntervalOption,
    StatusOption,
    batch_data,
    batch_options,
)
from vlmbatch.cli.run_text import show
from vlmbatch.console import Console, Watch
from vlmbatch.errors import InputError

if TYPE_CHECKING:
    from decimal import Decimal

    from vlmbatch.api.run import Run
    from vlmbatch.records import Event, Status
    from vlmbatch.rundir import RunDir
    from vlmbatch.stages.running.task import RunResult

_WHERE = "Where to send"
_WHICH = "Which rows"
_PACE = "Pace and limits"
_PARTS = "Parts and files"

EVERYDAY = (
    *("--channel", "--base-url", "--api-key-env", "--rehearsal"),
    *("--limit", "--retry-status"),
    *("--concurrency", "--max-usd"),
    *("--serve", "--slurm"),
)
"""The options of the one-screen help, in its order; the others are named there, and told by --help-all."""


def _all_statuses() -> list[str]:
    from vlmbatch.records import Status

    return [*Status]


def run(
    ctx: typer.Context,
    run_dir: RunArgument,
    *,
    channel: Annotated[str, option(_WHERE, "Send now, or as batch jobs.", metavar="realtime|batch")] = "realtime",
    base_url: Annotated[
        list[str] | None,
        option(_WHERE, "Address of your own server or a relay; repeatable.", "--base-url", metavar="URL"),
    ] = None,
    endpoints: Annotated[str | None, option(_WHERE, "Several addresses at once.", metavar="URL,URL")] = None,
    api_key_env: Annotated[
        str | None, option(_WHERE, "Variable that holds the API key (never the key).", metavar="NAME")
    ] = None,
    api_key_file: Annotated[str | None, option(_WHERE, "File whose first line is the key.", metavar="FILE")] = None,
    limit: Annotated[
        int | None, option(_WHICH, "Send N rows spread over the run, always the same.", metavar="N")
    ] = None,
    ids: Annotated[
        str | None, option(_WHICH, "Send these rows, a custom_id on each line, whatever they have.", metavar="FILE")
    ] = None,
    no_resume: Annotated[bool, option(_WHICH, "Send rows again that have an answer.", "--no-resume")] = False,
    retry_status: Annotated[
        list[str] | None,
        option(_WHICH, "Send rows of this status again; repeatable.", metavar="STATUS", values=_all_statuses),
    ] = None,
    retry_times: Annotated[
        int, option(_WHICH, "How often --retry-status sends a row again, over all commands.", metavar="N")
    ] = 2,
    pending: Annotated[
        str | None, option(_WHICH, "Write the lines that are still to be sent, and send nothing.", metavar="FILE")
    ] = None,
    concurrency: Annotated[
        int | None,
        option(
            _PACE,
            "Open requests per server, at most.",
            "--concurrency",
            "--n-concurrent",
            envvar="VLMBATCH_CONCURRENCY",
            metavar="N",
            show_default=str(cluster.DEFAULT_CONCURRENCY),
        ),
    ] = None,
    rpm: Annotated[float | None, option(_PACE, "Requests a minute, at most.", metavar="N")] = None,
    tpm: Annotated[float | None, option(_PACE, "Tokens a minute, at most.", metavar="N")] = None,
    rate_limit_delay: Annotated[float, option(_PACE, "Seconds between two requests.", metavar="S")] = 0.0,
    timeout: Annotated[
        float, option(_PACE, "Seconds that a request may take; doubled after each that took longer.", metavar="S")
    ] = 600.0,
    max_tries: Annotated[int, option(_PACE, "How often this command tries a row, at most.", metavar="N")] = 6,
    max_wait: Annotated[
        float, option(_PACE, "Longest wait in seconds that a server may ask for.", metavar="S")
    ] = 120.0,
    max_usd: Annotated[str | None, option(_PACE, "Stop before the run costs more.", metavar="USD")] = None,
    max_tokens_total: Annotated[
        int | None, option(_PACE, "Stop before the run uses more tokens, input and output.", metavar="N")
    ] = None,
    poll_interval: PollIntervalOption = 60.0,
    detach: DetachOption = False,
    status: StatusOption = False,
    cancel: CancelOption = False,
    max_in_flight_batches: MaxInFlightOption = None,
    max_enqueued_tokens: MaxEnqueuedOption = None,
    serve: cluster.ServeOption = None,
    serve_wait: cluster.ServeWaitOption = 1800.0,
    slurm: cluster.SlurmOption = None,
    partition: cluster.PartitionOption = None,
    account: cluster.AccountOption = None,
    time: cluster.TimeOption = None,
    gpus: cluster.GpusOption = None,
    cpus_per_task: cluster.CpusOption = None,
    job_name: cluster.JobNameOption = None,
    sbatch: cluster.SbatchOption = None,
    max_retries: cluster.MaxRetriesOption = None,
    merge: cluster.MergeOption = False,
    rehearsal: Annotated[
        bool, option(_WHERE, "Practise without key or cost: a stand-in answers.", "--rehearsal")
    ] = False,
    faults: Annotated[str | None, option(_WHERE, "How the rehearsal misbehaves (JSON).", metavar="FILE")] = None,
    out_file: Annotated[
        str | None, option(_PARTS, "Name of the results file in RUN/results/.", "--out", "-o", metavar="FILE")
    ] = None,
    num_shards: Annotated[
        str | None, option(_PARTS, "Divide the rows into N parts, a command for each.", metavar="N")
    ] = None,
    shard_id: Annotated[
        str | None, option(_PARTS, "Which part this is, from 0; or $NAME of a variable that says it.", metavar="I")
    ] = None,
    verify: Annotated[
        str, option(_PARTS, "Check the whole folder first, or each line when it is sent.", metavar="full|lines")
    ] = "full",
    progress_path: Annotated[str | None, option(_PARTS, "Write progress.json here, too.", metavar="FILE")] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = 0,
    verbose: VerboseOption = 0,
    _help_all: HelpAllOption = False,
) -> None:
    """Send the frozen requests, keep every answer; the same command again goes on.

    \b
      vlmbatch run runs/r001 --rehearsal
      vlmbatch run runs/r001 --limit 30 --out smoke.jsonl
      vlmbatch run runs/r001 --base-url http://127.0.0.1:8000/v1
      vlmbatch run runs/r001 --channel batch --api-key-env OPENAI_API_KEY
      vlmbatch run runs/r001 --slurm 8 --gpus 4 --serve 'vllm serve {model} --port {port}' --merge
    """  # noqa: D301  (\b holds the lines below apart)
    from vlmbatch.api.run import Run
    from vlmbatch.descriptors import raise_limit
    from vlmbatch.retry import Policy
    from vlmbatch.stages.running.task import RunOptions
    from vlmbatch.stop import Stop, on_signals

    console = started(quiet, verbose)
    opened = Run.open(run_dir)
    settings = opened.info.get("settings") or {}
    flags = cluster.Flags(slurm, partition, account, time, gpus, cpus_per_task, job_name, sbatch, max_retries, merge)
    array = cluster.slurm_of(opened, flags, os.environ)
    parts, part = cluster.part_of({} if array else settings, num_shards, shard_id, os.environ)
    options = RunOptions(
        channel=channel,
        batch=batch_options(
            channel=channel,
            poll_interval=poll_interval,
            detach=detach,
            status=status,
            cancel=cancel,
            max_in_flight=max_in_flight_batches,
            max_enqueued=max_enqueued_tokens,
        ),
        base_urls=(*(base_url or ()), *_split(endpoints)),
        serve=cluster.serve_of(opened, serve, serve_wait),
        concurrency=cluster.concurrency_of(settings, concurrency),
        limit=limit,
        ids=ids,
        out=_in_results(opened.folder, out_file),
        resume=not no_resume,
        policy=Policy(timeout_s=timeout, max_tries=max_tries, max_wait_s=max_wait),
        rpm=rpm,
        tpm=tpm,
        rate_limit_delay_s=rate_limit_delay,
        max_usd=_usd(max_usd),
        max_tokens_total=max_tokens_total,
        retry_status=_statuses(retry_status or []),
        retry_times=retry_times,
        pending=pending,
        verify=verify,  # type: ignore[arg-type]  # the stage refuses what it does not know
        rehearsal=rehearsal,
        faults=faults,
        num_shards=parts,
        shard_id=part,
        progress_path=progress_path,
    )
    if array is not None:
        submitted = opened.submit(array, options, key_env=api_key_env, key_file=api_key_file)
        cluster.finish_submitted(opened, submitted, as_json=as_json, quiet=quiet)
        return
    raise_limit()
    stop = Stop()
    with on_signals(stop), _Display(console) as display:
        result = opened.send(
            options,
            environ=os.environ,
            key_env=api_key_env,
            key_file=api_key_file,
            on_event=display.on_event,
            stop=stop,
        )
    finish(
        "run",
        _data(opened, result),
        as_json=as_json,
        quiet=quiet,
        text=lambda: show(opened, result, typed(ctx)),
        failed=result.problem(),
    )


# --- flags → options -----------------------------------------------------------------------------------------


def _split(endpoints: str | None) -> list[str]:
    return [url.strip() for url in (endpoints or "").split(",") if url.strip()]


def _in_results(run_dir: RunDir, path: str | None) -> str | None:
    """Return the name in results/ that a path means: a path into that folder, or a bare name."""
    if path is None or os.path.basename(path) == path:
        return path
    folder, name = os.path.split(path)
    results = run_dir.file("results")
    if os.path.realpath(folder) != os.path.realpath(results):
        inside = os.path.join(results, name or "smoke.jsonl")
        raise InputError(f"--out {path}: not in {results}", hint=f"--out {inside}")
    return name


def _usd(text: str | None) -> Decimal | None:
    from vlmbatch.prices import parse_price

    return None if text is None else parse_price(text.lstrip("$"), "--max-usd")


def _statuses(words: list[str]) -> frozenset[Status]:
    from vlmbatch.records import Status

    named = [word.strip() for text in words for word in text.split(",") if word.strip()]
    unknown = [word for word in named if word not in set(Status)]
    if unknown:
        raise InputError(
            f"--retry-status {', '.join(unknown)}: no such status", hint=f"the statuses are {', '.join(Status)}"
        )
    return frozenset(Status(word) for word in named)


# --- while it runs -------------------------------------------------------------------------------------------


class _Display:
    """Shows the checking of the folder, then the sending, each under its own name."""

    _LABELS = {"verify": "checking", "run": "sending"}  # noqa: RUF012  (never changed)

    def __init__(self, console: Console) -> None:
        self._console = console
        self._stage = ""
        self._watch = Watch(console, "")

    def __enter__(self) -> _Display:
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.__exit__()

    def on_event(self, event: Event) -> None:
        """Show one event; what happens to single rows only where it was asked for."""
        if event.data.get("row") and not self._console.verbose:
            return
        if event.kind == "progress" and event.stage != self._stage:
            self._watch.__exit__()
            self._stage = event.stage
            label = self._LABELS.get(event.stage, event.stage)
            self._watch = Watch(self._console, label, tail=_tail if event.stage == "run" else None)
        self._watch.on_event(event)


def _tail(event: Event) -> str:
    """Return the figures behind the bar."""
    data = event.data
    parts = [f"{data['requests_per_s']:.1f}/s", f"{data['tokens_per_s']:,.0f} tokens/s"]
    parts.append(f"{data['in_flight']} of {data['limit']} in flight")
    if data["retrying"]:
        parts.append(f"{data['retrying']} to be tried again")
    parts += [f"{count:,} x {kind}" for kind, count in sorted(data["errors"].items())]
    if data["spent_usd"] is not None:
        parts.append(f"{data['spent_usd']:.2f} USD")
    return ", ".join(parts)


# --- when it is done -----------------------------------------------------------------------------------------


def _data(run: Run, result: RunResult) -> dict[str, Any]:
    return {
        "run": run.path,
        "fingerprint": run.fingerprint,
        "rehearsal": result.rehearsal,
        "results": result.results,
        "pending": result.pending,
        "asked": result.asked,
        "answered_before": result.answered_before,
        "failed_before": result.failed_before,
        "in_batch": result.in_batch,
        "to_send": result.to_send,
        "answers": result.answers,
        "without_answer": result.without_answer,
        "statuses": result.statuses,
        "errors": result.errors,
        "tries": result.tries,
        "input_tokens": result.input_tokens,
        "output_tokens": result.output_tokens,
        "spent_usd": None if result.spent_usd is None else str(result.spent_usd),
        "elapsed_s": round(result.elapsed_s, 3),
        "requests_per_s": round(result.requests_per_s, 3),
        "concurrency": result.concurrency,
        "endpoints": result.endpoints,
        "stopped": result.stopped or None,
        "interrupted": result.is_interrupted,
        "lost_lines": result.lost_lines,
        "batch": batch_data(result.batch),
    }
