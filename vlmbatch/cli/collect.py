"""vlmbatch collect: the flags, and what a person reads when the results have been read."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlmbatch.cli.base import (
    HelpAllOption,
    JsonOption,
    QuietOption,
    RunArgument,
    VerboseOption,
    finish,
    option,
    started,
)
from vlmbatch.cli.handover import HandOver, print_hand_over, seal_warnings
from vlmbatch.cli.onward import after_collect
from vlmbatch.console import Watch, out, safe, say, table
from vlmbatch.errors import CheckFailed, Problem
from vlmbatch.rundir import SEALED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from vlmbatch.stages.collect import CollectResult

_WRITE = "What is written"
_READ = "How results are read"
_CHECK = "What has to hold"
_HAND_OVER = "Report and hand-over"
_SHOWN_REASONS = 5
_SENT_AGAIN = frozenset({"missing", "failed", "http_error", "network_error"})
_CUT = frozenset({"at_cap", "truncated", "empty_at_cap"})

EVERYDAY = (
    *("--write", "--rows", "--csv", "--parquet", "--retry-ids"),
    *("--gate", "--require", "--compare"),
    *("--expect-json", "--rehearsal"),
    *("--report", "--seal", "--bag"),
    *("--json", "--quiet"),
)
"""The options of the one-screen help, in its order; the others are named there, and told by --help-all."""


def collect(
    run: RunArgument,
    results: Annotated[
        list[str] | None,
        typer.Argument(metavar="RESULTS", help="Results files; all of RUN/results but rehearsals if none is named."),
    ] = None,
    *,
    write: Annotated[
        str | None, option(_WRITE, "Write records to FILE, the summary beside it.", metavar="FILE")
    ] = None,
    rows: Annotated[str | None, option(_WRITE, "Input rows with their answers, as JSONL.", metavar="FILE")] = None,
    csv: Annotated[str | None, option(_WRITE, "Flat table as CSV.", metavar="FILE")] = None,
    csv_safe: Annotated[
        bool, option(_WRITE, "Put ' before cells that a spreadsheet takes for formulas.", "--csv-safe")
    ] = False,
    parquet: Annotated[str | None, option(_WRITE, "Flat table as Parquet.", metavar="FILE")] = None,
    hf: Annotated[
        str | None, option(_WRITE, "New Hugging Face dataset folder: the table as Parquet, and a card.", metavar="DIR")
    ] = None,
    retry_ids: Annotated[str | None, option(_WRITE, "Ids worth sending again, for run --ids.", metavar="FILE")] = None,
    cap_ids: Annotated[str | None, option(_WRITE, "Ids whose answers the output limit cut.", metavar="FILE")] = None,
    gate: Annotated[bool, option(_CHECK, "Exit 1 unless the run is fit for delivery.", "--gate")] = False,
    require: Annotated[
        list[str] | None, option(_CHECK, "Exit 1 unless it holds: 'refusal<=2%'; repeatable.", metavar="COND")
    ] = None,
    require_field: Annotated[
        list[str] | None, option(_CHECK, "JSON field that every ok answer must fill; repeatable.", metavar="PATH")
    ] = None,
    compare: Annotated[
        list[str] | None, option(_CHECK, "Compare with a run on the same images; repeatable.", metavar="RUN2")
    ] = None,
    explain: Annotated[
        str | None,
        option(_CHECK, "Print a number of the summary and the command that computes it again.", metavar="NUMBER"),
    ] = None,
    expect_json: Annotated[
        bool, option(_READ, "Read answers as JSON, though none was asked for.", "--expect-json")
    ] = False,
    json_schema: Annotated[str | None, option(_READ, "JSON Schema that answers have to fit.", metavar="FILE")] = None,
    rehearsal: Annotated[bool, option(_READ, "Read results of rehearsals, and no others.", "--rehearsal")] = False,
    reviews: Annotated[
        str | None, option(_READ, "Verdicts of reviewers.", metavar="FILE", show_default="RUN/reviews.jsonl")
    ] = None,
    report: Annotated[bool, option(_HAND_OVER, "Write RUN/report.html to look at; needs --write.", "--report")] = False,
    sample: Annotated[int, option(_HAND_OVER, "How many records the report draws for reviewers.", metavar="N")] = 50,
    seed: Annotated[int, option(_HAND_OVER, "Which sample is drawn: another number, another sample.", metavar="N")] = 0,
    seal: Annotated[bool, option(_HAND_OVER, "Hash every file of RUN and add verify.py.", "--seal")] = False,
    bag: Annotated[str | None, option(_HAND_OVER, "Copy RUN into a new BagIt bag.", metavar="DIR")] = None,
    license_: Annotated[str, option(_HAND_OVER, "Licence that the bag states.", "--license", metavar="TEXT")] = "",
    redact: Annotated[
        str | None, option(_HAND_OVER, "Copy RUN into a new folder, without what --leave-out names.", metavar="DIR")
    ] = None,
    leave_out: Annotated[
        list[str] | None,
        option(_HAND_OVER, "What --redact leaves out: images, paths or prompts; repeatable.", metavar="WHAT"),
    ] = None,
    keep_field: Annotated[
        list[str] | None, option(_HAND_OVER, "Field of the rows that --redact keeps; repeatable.", metavar="NAME")
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = 0,
    verbose: VerboseOption = 0,
    _help_all: HelpAllOption = False,
) -> None:
    """Join results into one record per request; without --write, only read and check.

    \b
      vlmbatch collect runs/r001 --write runs/r001/merged.jsonl
      vlmbatch collect runs/r001 --gate --require 'refusal<=2%'
      vlmbatch collect runs/r001 --write runs/r001/merged.jsonl --report --seal
    """  # noqa: D301  (\b holds the lines below apart)
    from vlmbatch.api.run import Run
    from vlmbatch.stages.collecting.options import CollectOptions

    hand_over = HandOver(
        report=report,
        sample=sample,
        seed=seed,
        seal=seal,
        bag=bag,
        license=license_,
        redact=redact,
        leave_out=tuple(leave_out or ()),
        keep_fields=tuple(keep_field or ()),
    )
    opened = Run.open(run)
    hand_over.check(opened.folder, write=write)
    console = started(quiet, verbose)
    options = CollectOptions(
        write=write,
        rows=rows,
        csv=csv,
        csv_safe=csv_safe,
        parquet=parquet,
        hf=hf,
        gate=gate,
        require=tuple(require or ()),
        require_fields=tuple(require_field or ()),
        retry_ids=retry_ids,
        cap_ids=cap_ids,
        compare=tuple(compare or ()),
        expect_json=expect_json,
        json_schema=json_schema,
        rehearsal=rehearsal,
        reviews=reviews,
        seal=seal,
    )
    with Watch(console, "collecting") as watch:
        result = opened.collect(options, results or (), on_event=watch.on_event)
    for sentence in result.warnings:
        console.warning(sentence)
    told = hand_over.carry_out(opened, result, console)
    after = seal_warnings(result, told)
    for sentence in after:
        console.warning(sentence)
    reading = {"--json-schema": json_schema, "--reviews": reviews}
    flags = [*(results or ()), *(["--expect-json"] if expect_json else [])]
    flags += [word for flag, value in reading.items() if value is not None for word in (flag, value)]
    data = _data(result, told) | {"warnings": [*result.warnings, *after]}
    if explain:
        _explain(result, explain, data, as_json=as_json)
        return
    text = partial(_print, result, told, flags)
    finish("collect", data, as_json=as_json, quiet=quiet, text=text, failed=_failed(result))


def _failed(result: CollectResult) -> CheckFailed | None:
    """Return the checks that were asked for and do not hold."""
    failed = [check for check in result.checks if not check.holds]
    if not failed:
        return None
    problems = [Problem("check", f"{check.detail}, asked {check.asked}", check.name) for check in failed]
    hint = "; ".join(_hints([check.asked for check in failed], result.summary))
    return CheckFailed(f"{len(failed)} of {len(result.checks)} checks do not hold", hint=hint, problems=problems)


def _hints(asked: Sequence[str], summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield what helps, for the conditions that do not hold."""
    metrics = {re.split("[<>=!]", condition)[0] for condition in asked}
    if metrics & _SENT_AGAIN and summary["worth_sending_again"]:
        yield "--retry-ids FILE names what is worth sending again"
    if metrics & _CUT:
        yield "--cap-ids FILE names what needs a new run with a higher --max-tokens"
    if SEALED in metrics:
        yield "fetch the folder as it was sealed, or see to it and seal it again with --seal"
    if metrics - _SENT_AGAIN - _CUT - {SEALED}:
        yield "--write FILE gives the records, each with its status and reason"
    yield "--require NAME… sets another bound"


def _data(result: CollectResult, told: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "run": result.run.path,
        "fingerprint": result.run.fingerprint,
        "summary": result.summary,
        "comparisons": list(result.comparisons),
        "written": dict(result.written),
        "hand_over": dict(told),
    }


def _explain(result: CollectResult, name: str, data: dict[str, Any], *, as_json: bool) -> None:
    from vlmbatch.stages.collecting.explain import explain

    value, query = explain(result.summary, name)
    told = {"name": name, "value": value, "what": query.words, "query": query.command}

    def text() -> None:
        out(f"{safe(name)} = {value}")
        say(f"what: {query.words}")
        out(f"query: {safe(query.command)}")

    finish("collect", data | {"explained": told}, as_json=as_json, text=text, failed=_failed(result))


# --- for people ----------------------------------------------------------------------------------------------


def _print(result: CollectResult, told: Mapping[str, Mapping[str, Any]], flags: Sequence[str]) -> None:
    """Say what came of the run, what holds, and what may be done next.

    Args:
        result: What collect found.
        told: What the hand-over told.
        flags: The words that decide what the records say: results files, and how answers are read.
    """
    summary = result.summary
    if summary["rehearsal"]:
        say("REHEARSAL: no model was asked; these answers are made up from the images' looks")
    out(_statuses(summary))
    _print_numbers(summary)
    if result.checks:
        rows = [("pass" if c.holds else "FAIL", c.name, c.detail, c.asked) for c in result.checks]
        out(table(("gate", "check", "found", "asked"), rows))
    for comparison in result.comparisons:
        _print_comparison(comparison)
    for flag, path in result.written.items():
        out(f"{flag.removeprefix('--')}: {safe(path)}")
    print_hand_over(told)
    out(f"fingerprint: {result.run.fingerprint}")
    after_collect(result, told, flags)


def _statuses(summary: Mapping[str, Any]) -> str:
    requests = summary["requests"]
    rows = [
        (status, f"{count:,}", _percent(count, requests))
        for status, count in summary["counts"].items()
        if count or status == "ok"
    ]
    return table(("status", "requests", "share"), [*rows, ("all", f"{requests:,}", "")], right="lrr")


def _percent(count: int, of: int) -> str:
    return f"{100 * count / of:.1f} %" if of else ""


def _print_numbers(summary: Mapping[str, Any]) -> None:
    for cause in summary["reasons"][:_SHOWN_REASONS]:
        if cause["reason"] and cause["status"] != "missing":
            say(f"  {cause['count']:,} x {cause['status']}: {safe(cause['reason'])}")
    used = sum(channel["input_tokens"] for channel in summary["tokens"].values())
    made = sum(channel["output_tokens"] for channel in summary["tokens"].values())
    say(f"tokens: {used:,} in, {made:,} out, over {summary['attempts']['total']:,} attempts")
    cost = summary["cost"]
    if cost["total_usd"] is not None:
        bound = "at least " if cost["is_lower_bound"] else ""
        source = ", ".join(safe(text) for key in ("price_source", "price_date") if (text := cost["prices"][key]))
        say(f"cost: {bound}USD {cost['total_usd']}{f' ({source})' if source else ''}")
    latency = summary["latency_s"]
    if latency["count"]:
        say(f"latency: half within {latency['p50']:.2f} s, 95 % within {latency['p95']:.2f} s")
    if summary["models"]:
        say(f"models: {', '.join(f'{safe(name)} ({count:,})' for name, count in summary['models'].items())}")


def _print_comparison(comparison: Mapping[str, Any]) -> None:
    """Show two runs as columns, on the inputs that both have."""
    here, there = comparison["here"], comparison["there"]
    rows = [("model", here["model"], there["model"])]
    rates = ("ok_rate", "refusal_rate", "empty_rate", "at_cap_rate", "failed_rate")
    rows += [(name.removesuffix("_rate").replace("_", " "), _rate(here[name]), _rate(there[name])) for name in rates]
    rows.append(("cost of the run, USD", here["cost_usd"] or "unknown", there["cost_usd"] or "unknown"))
    title = f"compared on {comparison['matched']:,} inputs that both runs have"
    out(table(("", "this run", comparison["run"]), rows, title=title, right="lrr"))
    agreement = comparison["agreement"]
    say(f"equal answers: {agreement['equal']:,} of {agreement['both_ok']:,} where both are ok")
    if comparison["fields"]:
        fields = comparison["fields"].items()
        rows = [(name, *(_rate(told[key]) for key in ("filled_here", "filled_there", "rate"))) for name, told in fields]
        out(table(("field", "filled here", "filled there", "equal"), rows, right="lrrr"))


def _rate(rate: float | None) -> str:
    return "" if rate is None else f"{100 * rate:.1f} %"
