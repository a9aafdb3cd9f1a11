"""The numbers of a collected run, every one of them computed from the delivered files.

What stands here has its query in explain.py; a test computes each number a second time by that query.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from itertools import compress
from typing import TYPE_CHECKING, Any

from vlmbatch import __version__, jsonl, prices, rundir
from vlmbatch.records import ESTIMATE_SCHEMA, MODEL_ANSWERS, SUMMARY_SCHEMA, Status
from vlmbatch.stages.overlay import CHANNELS, RETRY, STATUSES, TOKENS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vlmbatch.records import Asked, Channel, Review
    from vlmbatch.rundir import RunDir
    from vlmbatch.stages.merge import Read
    from vlmbatch.stages.overlay import Names, Overlay

AT_CAP = (Status.TRUNCATED, Status.EMPTY_AT_CAP)
"""What needs a new run with a higher limit; sending the same request again would end the same way."""

_SHOWN_REASONS = 20
_SHARES = {"p50": 50, "p90": 90, "p95": 95, "p99": 99, "max": 100}
_CAP_SHARE = Decimal("0.95")
_ROUTES = {True: "direct", False: "relay", None: "unknown"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What the summary is made from."""

    run: RunDir
    read: Read
    asked: Sequence[Asked]
    rehearsal: bool
    reviews: Mapping[int, Review] | None
    files: Sequence[Mapping[str, Any]]


def summarise(sources: Sources) -> dict[str, Any]:
    """Return the summary, but for what is only known once the records are written (``merged``, ``checks``)."""
    run, read = sources.run, sources.read
    overlay, requests = read.overlay, len(read.ledger)
    counts = overlay.count_statuses()
    tokens, unknown = _tokens(overlay)
    return {
        "schema": SUMMARY_SCHEMA,
        "tool": {"name": "vlmbatch", "version": __version__},
        "run": {
            "fingerprint": run.fingerprint,
            "provider": run.info["provider"],
            "model": run.info["model"],
            "created_at": run.info.get("created_at"),
        },
        "rehearsal": sources.rehearsal,
        "requests": requests,
        "counts": {status.value: count for status, count in counts.items()},
        "rates": {status.value: _rate(count, requests) for status, count in counts.items()},
        "answered": sum(counts[status] for status in MODEL_ANSWERS),
        "worth_sending_again": sum(is_worth_sending(overlay, position) for position in range(requests)),
        "needs_higher_limit": sum(counts[status] for status in AT_CAP),
        "by_output": _by_output(read),
        "reasons": _reasons(read),
        "notes": _notes(read),
        "attempts": {"total": len(overlay), "superseded": len(overlay) - (requests - counts[Status.MISSING])},
        "tokens": tokens,
        "unknown_usage": unknown,
        "cost": cost(run, tokens, unknown),
        "latency_s": _latency(overlay),
        "output_tokens": _output_tokens(read, sources.asked),
        "models": _named(overlay, overlay.model, read.models),
        "system_fingerprints": _named(overlay, overlay.fingerprint, read.fingerprints),
        "route": {name: read.routes.get(told, 0) for told, name in _ROUTES.items()},
        "endpoints": dict(sorted((name, count) for name, count in read.endpoints.items() if name)),
        "estimate": _estimate(run),
        "reviews": None if sources.reviews is None else _reviews(sources.reviews),
        "files": list(sources.files),
        "merged": None,
        "checks": [],
    }


def _rate(count: int, of: int) -> float | None:
    return round(count / of, 6) if of else None


def is_worth_sending(overlay: Overlay, position: int) -> bool:
    """Tell whether a request is worth sending again as it is: it has no attempt, or a failure that may pass."""
    row = overlay.winner[position]
    return row < 0 or bool(overlay.flags[row] & RETRY)


def is_at_cap(overlay: Overlay, position: int) -> bool:
    """Tell whether a request needs a new run with a higher output limit."""
    return overlay.status_of(position) in AT_CAP


def _by_output(read: Read) -> dict[str, dict[str, int]]:
    """Return the status counts of each pipeline output; empty where the run has but one, without a name."""
    ledger, overlay = read.ledger, read.overlay
    if ledger.outputs == [""]:
        return {}
    counts: dict[str, dict[str, int]] = {name: dict.fromkeys(map(str, STATUSES), 0) for name in ledger.outputs}
    for position, number in enumerate(ledger.output_of):
        counts[ledger.outputs[number]][overlay.status_of(position)] += 1
    return counts


def _reasons(read: Read) -> list[dict[str, Any]]:
    """Return why rows are not ok, the most frequent cause first, each told once with its count."""
    overlay = read.overlay
    status, label, ok = overlay.status, overlay.label, STATUSES.index(Status.OK)
    causes = Counter((status[row], label[row]) for row in overlay.winners() if status[row] != ok)
    return [
        {"status": STATUSES[code].value, "reason": read.labels.name(number), "count": count}
        for (code, number), count in causes.most_common(_SHOWN_REASONS)
    ]


def _notes(read: Read) -> dict[str, int]:
    overlay = read.overlay
    total: Counter[str] = Counter()
    for number, count in Counter(overlay.notes[row] for row in overlay.winners() if overlay.notes[row]).items():
        total.update(dict.fromkeys(set(read.notes.name(number).split(" ")), count))
    return dict(sorted(total.items()))


# --- tokens and money ----------------------------------------------------------------------------------------


def _tokens(overlay: Overlay) -> tuple[dict[str, dict[str, int]], dict[str, int]]:
    """Return the tokens of every attempt by channel, and how many billed sendings told none."""
    tokens, unknown = {}, {}
    for number, channel in enumerate(CHANNELS):
        which = bytes(number == found for found in overlay.channel)
        tokens[channel] = {"attempts": sum(which), **overlay.sum_tokens(which)}
        unknown[channel] = sum(compress(overlay.unanswered, which))
    return tokens, unknown


def cost(run: RunDir, tokens: Mapping[str, Mapping[str, int]], unknown: Mapping[str, int]) -> dict[str, Any]:
    """Return what all attempts cost, by channel, at the prices of the last line of estimates.jsonl that has any.

    USD as decimal strings; None where no price was given. Where usage is unknown the sum is a lower bound.
    """
    known = prices.read_last(run.file(rundir.ESTIMATES))
    spent = {channel: _spent(known, channel, tokens[channel]) for channel in CHANNELS}
    used = [amount for channel, amount in spent.items() if tokens[channel]["attempts"]]
    total = None if known is None or None in used else sum((amount for amount in used if amount), Decimal(0))
    return {
        "currency": "USD",
        "prices": known.as_record() if known else None,
        **{f"{channel}_usd": _money(amount) for channel, amount in spent.items()},
        "total_usd": _money(total),
        "is_lower_bound": any(unknown.values()),
    }


def _spent(known: prices.Prices | None, channel: str, tokens: Mapping[str, int]) -> Decimal | None:
    rates = known.rates(_channel(channel)) if known else None
    if rates is None:
        return None
    return rates.of_tokens(tokens["input_tokens"], tokens["output_tokens"], tokens["cached_tokens"])


def _channel(name: str) -> Channel:
    return "batch" if name == "batch" else "realtime"


def _money(amount: Decimal | None) -> str | None:
    """Return an amount with all its digits and no exponent."""
    return None if amount is None else f"{amount.normalize():f}" if amount else "0"


def _estimate(run: RunDir) -> dict[str, Any] | None:
    """Return the last line of estimates.jsonl, so that it stands beside what came of it."""
    last = None
    path = run.file(rundir.ESTIMATES)
    try:
        for line in jsonl.iter_lines(path):
            value = jsonl.parse_object(line.data)
            last = value if value is not None and value.get("schema") == ESTIMATE_SCHEMA else last
    except FileNotFoundError:
        return None
    return last


# --- distributions -------------------------------------------------------------------------------------------


def percentiles(values: array[Any]) -> dict[str, Any]:
    """Return the shares of some numbers by nearest rank: the smallest value that so many per cent do not exceed."""
    ranked = sorted(values)
    count = len(ranked)
    shares = {name: ranked[max(-(-share * count // 100), 1) - 1] if ranked else None for name, share in _SHARES.items()}
    return {"count": count, **shares}


def _latency(overlay: Overlay) -> dict[str, Any]:
    """Return how long the attempts that won took over the realtime channel, in seconds."""
    column, channel = overlay.latency_s, overlay.channel
    return percentiles(array("d", (column[row] for row in overlay.winners() if column[row] >= 0 and not channel[row])))


def _output_tokens(read: Read, asked: Sequence[Asked]) -> dict[str, Any]:
    """Return the output tokens of the attempts that won, and how many came to 95 % of their limit."""
    overlay, ledger = read.overlay, read.ledger
    column = overlay.tokens[TOKENS.index("output_tokens")]
    near = [None if one.max_tokens is None else _CAP_SHARE * one.max_tokens for one in asked]
    close = 0
    for position, row in enumerate(overlay.winner):
        bound = near[ledger.output_of[position]]
        close += row >= 0 and bound is not None and column[row] >= bound
    limits = sorted({one.max_tokens for one in asked if one.max_tokens is not None})
    values = percentiles(array("q", (column[row] for row in overlay.winners() if column[row] >= 0)))
    return {**values, "limits": limits, "near_limit": close}


def _named(overlay: Overlay, column: array[int], names: Names) -> dict[str, int]:
    """Return how often each name was told by the attempts that won, the most frequent first."""
    found = Counter(column[row] for row in overlay.winners())
    return {names.name(number): count for number, count in found.most_common() if names.name(number)}


def _reviews(reviews: Mapping[int, Review]) -> dict[str, int]:
    verdicts = Counter(review["verdict"] for review in reviews.values())
    return {
        "accept": verdicts["accept"],
        "reject": verdicts["reject"],
        "comments": sum(1 for review in reviews.values() if review["comment"]),
    }


def file_facts(read: Read, hashed: Sequence[tuple[str, int]]) -> list[dict[str, Any]]:
    """Return the results files that were read, as references with what was found in them."""
    return [
        {
            "file": file.name,
            "sha256": sha256,
            "bytes": size,
            "records": file.records,
            "torn_lines": file.torn_lines,
            "left_out": file.left_out,
        }
        for file, (sha256, size) in zip(read.files, hashed, strict=True)
    ]
