"""Where a number of summary.json comes from: for each one a query with which anybody can compute it again.

The queries are shell commands (jq, sha256sum, wc) over the delivered files, merged.jsonl first of all, to be run in the
folder where these stand. A test runs every one of them.
"""

from __future__ import annotations

import difflib
import shlex
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vlmbatch import jsonl, rundir
from vlmbatch.errors import InputError
from vlmbatch.records import MODEL_ANSWERS, Status
from vlmbatch.stages.collecting.overlay import CHANNELS, OTHERS, TOKENS
from vlmbatch.stages.collecting.summary import AT_CAP, CAP_SHARE, SHARES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_WHOLE: Final = r"sed 's/\\u[dD][89a-fA-F][0-9a-fA-F][0-9a-fA-F]/\\ufffd/g'"
"""jq refuses half of a character pair, which an answer may hold, and with it the whole file; it counts none of them."""
_ATTEMPTS: Final = "inputs | select(.source_file) | ., .superseded[]"
_HAS_ID: Final = "select(.custom_id // .key)"
_LINES: Final = f"inputs | fromjson? | objects | {_HAS_ID}"
_RATES: Final = """
([$e[] | map_values(if type == "string" and test("^[0-9.]+$") then tonumber else . end)
  | select((.price_in_usd_per_mtok and .price_out_usd_per_mtok)
        or (.price_batch_in_usd_per_mtok and .price_batch_out_usd_per_mtok))] | last) as $p
| $p.price_in_usd_per_mtok as $in | $p.price_out_usd_per_mtok as $out
| (if $in and $out then [$in, $out, ($p.price_cached_usd_per_mtok // $in)] else null end) as $realtime
| $p.price_batch_in_usd_per_mtok as $bin | $p.price_batch_out_usd_per_mtok as $bout
| (if $realtime and $p.batch_discount != null
   then ($realtime | map(. * (1 - $p.batch_discount))) | [($bin // .[0]), ($bout // .[1]), .[2]]
   else [$bin, $bout, $bin] end) as $batch
"""
_SPENT: Final = """
| reduce (inputs | select(.source_file) | ., .superseded[] | select({which})) as $a (0;
    (if $a.channel == "batch" then $batch else $realtime end) as $r
    | ($a.usage.cached_tokens // 0) as $c
    | . + ((($a.usage.input_tokens // 0) - $c) * $r[0] + $c * $r[2] + ($a.usage.output_tokens // 0) * $r[1]) / 1e6)
"""


class Query(NamedTuple):
    """What a number is, in words, and the command that computes it again."""

    words: str
    command: str


def explain(summary: Mapping[str, Any], name: str) -> tuple[Any, Query]:
    """Return a number of the summary and its query.

    Args:
        summary: summary.json.
        name: The number's path in it, keys joined by dots: ``counts.refusal``, ``cost.total_usd``.

    Raises:
        InputError: There is no such number.
    """
    known = queries(summary)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3) or list(known)[:3]
        raise InputError(f"{name!r} is no number of the summary", hint=f"names are such as {', '.join(near)}")
    return known[name]


def queries(summary: Mapping[str, Any]) -> dict[str, tuple[Any, Query]]:
    """Return every number of the summary with its query, by its path."""
    merged = (summary["merged"] or {}).get("file") or rundir.MERGED
    groups = (_of_records, _of_attempts, _of_money, _of_spread, _of_names, _of_reasons, _of_results, _of_files)
    return {name: (value, query) for group in groups for name, value, query in group(summary, merged)}


def _jq(program: str, *files: str, options: str = "-n") -> str:
    """Return a jq command; programs of several lines are put on one."""
    return f"{_WHOLE} {' '.join(map(shlex.quote, files))} | jq {options} {shlex.quote(' '.join(program.split()))}"


def _count(stream: str) -> str:
    return f"reduce ({stream}) as $r (0; . + 1)"


def _is(status: Iterable[Status]) -> str:
    return " or ".join(f'.status == "{one}"' for one in sorted(status))


def _text(value: str) -> str:
    return jsonl.dumps(value).decode()


def _of_records(summary: Mapping[str, Any], merged: str) -> Iterator[tuple[str, Any, Query]]:
    """Yield what is counted in records."""

    def of(which: str) -> str:
        return _jq(_count(f"inputs | select({which})"), merged)

    yield "requests", summary["requests"], Query("records, one for each request", _jq(_count("inputs"), merged))
    for status in Status:
        yield f"counts.{status}", summary["counts"][status], Query("records with this status", of(_is([status])))
    for status in Status:
        program = f"reduce inputs as $r ([0, 0]; [.[0] + ($r | if {_is([status])} then 1 else 0 end), .[1] + 1])"
        query = Query("records with this status, as a part of all", _jq(f"{program} | .[0] / .[1]", merged))
        yield f"rates.{status}", summary["rates"][status], query
    yield "answered", summary["answered"], Query("records in which the model answered", of(_is(MODEL_ANSWERS)))
    again = f'{_is([Status.MISSING, Status.NETWORK_ERROR])} or (.status == "http_error" and .error.is_retryable)'
    yield (
        "worth_sending_again",
        summary["worth_sending_again"],
        Query("missing, or failed in a way that passes", of(again)),
    )
    yield "needs_higher_limit", summary["needs_higher_limit"], Query("cut by the output limit", of(_is(AT_CAP)))
    for verdict, count in (summary["reviews"] or {}).items():
        which = (
            '.review.comment // "" | length > 0' if verdict == "comments" else f".review.verdict == {_text(verdict)}"
        )
        yield f"reviews.{verdict}", count, Query("records with this review", of(which))
    for output, counts in summary["by_output"].items():
        for status, count in counts.items():
            which = f"$all[.].output == {_text(output)} and $all[$n + .].status == {_text(status)}"
            program = f"[inputs] as $all | ($all | length / 2) as $n | [range($n) | select({which})] | length"
            command = _jq(program, rundir.MANIFEST, merged)
            yield f"by_output.{output}.{status}", count, Query("records of this output with this status", command)


def _of_attempts(summary: Mapping[str, Any], merged: str) -> Iterator[tuple[str, Any, Query]]:
    """Yield what is counted in attempts, superseded ones too."""
    attempts = summary["attempts"]
    yield "attempts.total", attempts["total"], Query("attempts of any record", _jq(_count(_ATTEMPTS), merged))
    beaten = _jq(_count("inputs | .superseded[]"), merged)
    yield "attempts.superseded", attempts["superseded"], Query("attempts that another one beat", beaten)
    for channel in CHANNELS:
        chosen = f'{_ATTEMPTS} | select(.channel == "{channel}")'
        told = summary["tokens"][channel]
        yield f"tokens.{channel}.attempts", told["attempts"], Query("attempts over it", _jq(_count(chosen), merged))
        for name in TOKENS:
            program = f"reduce ({chosen} | .usage.{name} // 0) as $n (0; . + $n)"
            yield f"tokens.{channel}.{name}", told[name], Query("tokens of all attempts over it", _jq(program, merged))
        silent = f"{chosen} | select({_is(MODEL_ANSWERS - {Status.REFUSAL})}) | select(.usage.output_tokens == null)"
        broken = (
            f'{_LINES} | select(.channel == "{channel}") | .tries[]? | select(.sent == true and .status_code == null)'
        )
        files = _results(summary)
        parts = [_jq(_count(silent), merged)] + ([_jq(_count(broken), *files, options="-nR")] if files else [])
        command = f"echo $(( {' + '.join(f'$({part})' for part in parts)} ))"
        words = "answers that told no tokens, and sendings that broke after the request had gone out"
        yield f"unknown_usage.{channel}", summary["unknown_usage"][channel], Query(words, command)


def _of_money(summary: Mapping[str, Any], merged: str) -> Iterator[tuple[str, Any, Query]]:
    """Yield what was spent, where prices are known."""
    cost = summary["cost"]
    options = f"-n --slurpfile e {rundir.ESTIMATES}"
    words = "tokens of all attempts times the prices of the last estimate that has any"
    for name, which in (*((f"{c}_usd", f'.channel == "{c}"') for c in CHANNELS), ("total_usd", "true")):
        if cost[name] is not None:
            command = _jq(_RATES + _SPENT.replace("{which}", which), merged, options=options)
            yield f"cost.{name}", cost[name], Query(words, command)


def _of_spread(summary: Mapping[str, Any], merged: str) -> Iterator[tuple[str, Any, Query]]:
    """Yield percentiles by nearest rank."""
    told = summary["output_tokens"]
    if len(told["limits"]) == 1:
        close = _count(f"inputs | .usage.output_tokens | numbers | select(. >= {CAP_SHARE} * {told['limits'][0]})")
        query = Query(f"records whose output tokens came to {CAP_SHARE:.0%} of the limit", _jq(close, merged))
        yield "output_tokens.near_limit", told["near_limit"], query
    streams = {
        "latency_s": 'inputs | select(.channel == "realtime") | .latency_s | numbers',
        "output_tokens": "inputs | .usage.output_tokens | numbers",
    }
    for name, stream in streams.items():
        yield f"{name}.count", summary[name]["count"], Query("records that tell it", _jq(_count(stream), merged))
        for share, percent in SHARES.items():
            program = f"[{stream}] | sort | .[((length * {percent} / 100) | ceil) - 1]"
            if summary[name]["count"]:
                yield f"{name}.{share}", summary[name][share], Query("nearest rank, over records", _jq(program, merged))


def _of_names(summary: Mapping[str, Any], merged: str) -> Iterator[tuple[str, Any, Query]]:
    """Yield how often a name was told."""
    for group, key in (("models", ".model"), ("system_fingerprints", ".system_fingerprint")):
        for name, count in summary[group].items():
            which = f"inputs | select({key} == {_text(name)})"
            yield f"{group}.{name}", count, Query("records that name it", _jq(_count(which), merged))
    for code, count in summary["notes"].items():
        which = f"inputs | select(.notes | index({_text(code)}))"
        yield f"notes.{code}", count, Query("records with this note", _jq(_count(which), merged))


def _of_reasons(summary: Mapping[str, Any], merged: str) -> Iterator[tuple[str, Any, Query]]:
    """Yield how often rows are not ok for one and the same reason."""
    for number, cause in enumerate(summary["reasons"]):
        which = f'{_is([cause["status"]])} and (.reason // "") == {_text(cause["reason"])}'
        if cause["reason"] != OTHERS:
            query = Query("records with this status and reason", _jq(_count(f"inputs | select({which})"), merged))
            yield f"reasons.{number}.count", cause["count"], query


def _of_results(summary: Mapping[str, Any], _: str) -> Iterator[tuple[str, Any, Query]]:
    """Yield what only the results files tell."""
    files = _results(summary)
    if not files:
        return
    told = {"direct": ".direct == true", "relay": ".direct == false", "unknown": '(.direct | type) != "boolean"'}
    for name, which in told.items():
        command = _jq(_count(f"{_LINES} | select({which})"), *files, options="-nR")
        yield f"route.{name}", summary["route"][name], Query("attempts by how they went", command)
    for name, count in summary["endpoints"].items():
        command = _jq(_count(f"{_LINES} | select(.endpoint == {_text(name)})"), *files, options="-nR")
        yield f"endpoints.{name}", count, Query("attempts sent there", command)


def _results(summary: Mapping[str, Any]) -> list[str]:
    return [file["file"] for file in summary["files"]]


def _of_files(summary: Mapping[str, Any], _: str) -> Iterator[tuple[str, Any, Query]]:
    """Yield what the files themselves show."""
    refs = [(f"files.{number}", file) for number, file in enumerate(summary["files"])]
    merged = summary["merged"]
    for place, file in (*refs, *([("merged", merged)] if merged else [])):
        name = shlex.quote(file["file"])
        yield f"{place}.sha256", file["sha256"], Query("SHA-256 of the file", f"sha256sum < {name} | cut -d ' ' -f 1")
        yield f"{place}.bytes", file["bytes"], Query("its length", f"wc -c < {name}")
    for place, file in refs:
        other = "false" if summary["rehearsal"] else "true"
        blank = 'inputs | select(test("[^ \\\\t\\\\r]"))'
        for key, words, stream in (
            ("records", "lines that hold an attempt", _LINES),
            (
                "left_out",
                "attempts of the other kind",
                f"{_LINES} | select((.rehearsal // false) == {other})",
            ),
            ("torn_lines", "lines that hold none", f"{blank} | [fromjson? | objects | {_HAS_ID}] | select(. == [])"),
        ):
            yield f"{place}.{key}", file[key], Query(words, _jq(_count(stream), file["file"], options="-nR"))
    if merged:
        yield "merged.records", merged["records"], Query("its lines", f"wc -l < {shlex.quote(merged['file'])}")
