"""The numbers of a collected run, every one of them computed from the delivered files.

What stands here has its query in explain.py; a test computes each number a second time by that query.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from vlmbatch import __version__, jsonl, prices, rundir
from vlmbatch.records import ESTIMATE_SCHEMA, MODEL_ANSWERS, SUMMARY_SCHEMA, Status
from vlmbatch.stages.collecting.overlay import CHANNELS, RETRY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from vlmbatch.records import Asked, Channel, Review
    from vlmbatch.rundir import RunDir
    from vlmbatch.stages.collecting.facts import Read
    from vlmbatch.stages.collecting.overlay import Kind, Overlay

    Counts = Sequence[tuple[Kind, int]]

AT_CAP = (Status.TRUNCATED, Status.EMPTY_AT_CAP)
"""What needs a new run with a higher limit; sending the same request again would end the same way."""

_SHOWN_REASONS = 20
SHARES: Final = {"p50": 50, "p90": 90, "p95": 95, "p99": 99, "max": 100}
CAP_SHARE: Final = 0.95
"""From this part of its limit on an output counts as near it."""
_ROUTES = {True: "direct", False: "relay", None: "unknown"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What the summary is made from."""

    run: RunDir
    read: Read
    asked: Sequence[Asked]
    rehearsal: bool
    reviews: Mapping[int, Review] | None


def summarise(sources: Sources) -> dict[str, Any]:
    """Return the summary, but for what is only known once the records are written (``merged``, ``checks``)."""
    run, read = sources.run, sources.read
    overlay, requests = read.overlay, len(read.ledger)
    won, sent = overlay.count_won(), overlay.count_all()
    counts = _count_statuses(won, requests)
    unknown = _sum(sent, lambda kind: kind.channel, lambda kind: kind.unanswered, CHANNELS)
    tokens = {
        channel: {"attempts": attempts, **overlay.tokens[channel]}
        for channel, attempts in _sum(sent, lambda kind: kind.channel, lambda _: 1, CHANNELS).items()
    }
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
        "rates": {status.value: rate(count, requests) for status, count in counts.items()},
        "answered": sum(counts[status] for status in MODEL_ANSWERS),
        "worth_sending_again": counts[Status.MISSING] + sum(count for kind, count in won if kind.flags & RETRY),
        "needs_higher_limit": sum(counts[status] for status in AT_CAP),
        "by_output": _by_output(read),
        "reasons": _reasons(won),
        "notes": _notes(won),
        "attempts": {"total": len(overlay), "superseded": len(overlay) - (requests - counts[Status.MISSING])},
        "tokens": tokens,
        "unknown_usage": unknown,
        "cost": _cost(run, tokens, unknown),
        "latency_s": _latency(overlay),
        "output_tokens": _output_tokens(read, sources.asked),
        "models": _named(won, lambda kind: kind.model),
        "system_fingerprints": _named(won, lambda kind: kind.system_fingerprint),
        "route": _sum(sent, lambda kind: _ROUTES[kind.is_direct], lambda _: 1, _ROUTES.values()),
        "endpoints": _named(sent, lambda kind: kind.endpoint),
        "estimate": _estimate(run),
        "reviews": None if sources.reviews is None else _reviews(sources.reviews),
        "files": _files(read),
        "merged": None,
        "checks": [],
    }


def _count_statuses(won: Counts, requests: int) -> dict[Status, int]:
    """Return how many requests have each of the nine statuses, zeros too."""
    counts = dict.fromkeys(Status, 0)
    for kind, count in won:
        counts[kind.status] += count
    counts[Status.MISSING] = requests - sum(counts.values())
    return counts


def _sum(
    counts: Counts, name_of: Callable[[Kind], str], weight_of: Callable[[Kind], int], names: Iterable[str]
) -> dict[str, int]:
    """Return a weight summed over attempts by a name that their kind has; names that none has are 0."""
    sums = dict.fromkeys(names, 0)
    for kind, count in counts:
        sums[name_of(kind)] += count * weight_of(kind)
    return sums


def _named(counts: Counts, name_of: Callable[[Kind], str]) -> dict[str, int]:
    """Return how often each name was told, the most frequent first; what was not told is left out."""
    found: Counter[str] = Counter()
    for kind, count in counts:
        found[name_of(kind)] += count
    return {name: count for name, count in _by_count(found) if name}


def _by_count(found: Counter[Any]) -> list[tuple[Any, int]]:
    """Return the most frequent first, equals by name: no order of reading shows."""
    return sorted(found.items(), key=lambda item: (-item[1], item[0]))


def rate(count: int, of: int) -> float | None:
    """Return a part of something, None where there is nothing that it could be a part of."""
    return round(count / of, 6) if of else None


def is_worth_sending(overlay: Overlay, position: int) -> bool:
    """Tell whether a request is worth sending again as it is: it has no attempt, or a failure that may pass."""
    row = overlay.winner[position]
    return row < 0 or bool(overlay.kinds[overlay.kind[row]].flags & RETRY)


def is_at_cap(overlay: Overlay, position: int) -> bool:
    """Tell whether a request needs a new run with a higher output limit."""
    return overlay.status_of(position) in AT_CAP


def _by_output(read: Read) -> dict[str, dict[str, int]]:
    """Return the status counts of each pipeline output; empty where the run has but one, without a name."""
    ledger, overlay = read.ledger, read.overlay
    if ledger.outputs == [""]:
        return {}
    counts: dict[str, dict[str, int]] = {name: dict.fromkeys(map(str, Status), 0) for name in ledger.outputs}
    for position, number in enumerate(ledger.output_of):
        counts[ledger.outputs[number]][overlay.status_of(position)] += 1
    return counts


def _reasons(won: Counts) -> list[dict[str, Any]]:
    """Return why rows are not ok, the most frequent cause first, each told once with its count."""
    causes: Counter[tuple[Status, str]] = Counter()
    for kind, count in won:
        if kind.status is not Status.OK:
            causes[kind.status, kind.label] += count
    return [
        {"status": status.value, "reason": label, "count": count}
        for (status, label), count in _by_count(causes)[:_SHOWN_REASONS]
    ]


def _notes(won: Counts) -> dict[str, int]:
    total: Counter[str] = Counter()
    for kind, count in won:
        total.update(dict.fromkeys(set(kind.notes), count))
    return dict(sorted(total.items()))


# --- money ---------------------------------------------------------------------------------------------------


def _cost(run: RunDir, tokens: Mapping[str, Mapping[str, int]], unknown: Mapping[str, int]) -> dict[str, Any]:
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


def _spent(known: prices.Prices | None, channel: Channel, tokens: Mapping[str, int]) -> Decimal | None:
    rates = known.rates(channel) if known else None
    if rates is None:
        return None
    return rates.of_tokens(tokens["input_tokens"], tokens["output_tokens"], tokens["cached_tokens"])


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


def _percentiles(values: list[Any]) -> dict[str, Any]:
    """Return the shares of some numbers by nearest rank: the smallest value that so many per cent do not exceed."""
    values.sort()
    count = len(values)
    shares = {name: values[max(-(-share * count // 100), 1) - 1] if values else None for name, share in SHARES.items()}
    return {"count": count, **shares}


def _latency(overlay: Overlay) -> dict[str, Any]:
    """Return how long the attempts that won took over the realtime channel, in seconds."""
    column, kind = overlay.latency_s, overlay.kind
    is_realtime = [one.channel == CHANNELS[0] for one in overlay.kinds]
    return _percentiles([column[row] for row in overlay.winners() if column[row] >= 0 and is_realtime[kind[row]]])


def _output_tokens(read: Read, asked: Sequence[Asked]) -> dict[str, Any]:
    """Return the output tokens of the attempts that won, and how many came to 95 % of their limit."""
    overlay, ledger = read.overlay, read.ledger
    column = overlay.output_tokens
    near = [None if one.max_tokens is None else CAP_SHARE * one.max_tokens for one in asked]
    close = 0
    for row, output in zip(overlay.winner, ledger.output_of, strict=True):
        bound = near[output]
        close += row >= 0 and bound is not None and column[row] >= bound
    limits = sorted({one.max_tokens for one in asked if one.max_tokens is not None})
    values = _percentiles([column[row] for row in overlay.winners() if column[row] >= 0])
    return {**values, "limits": limits, "near_limit": close}


def _reviews(reviews: Mapping[int, Review]) -> dict[str, int]:
    verdicts = Counter(review["verdict"] for review in reviews.values())
    return {
        "accept": verdicts["accept"],
        "reject": verdicts["reject"],
        "comments": sum(1 for review in reviews.values() if review["comment"]),
    }


def _files(read: Read) -> list[dict[str, Any]]:
    """Return the results files that were read, as references with what was found in them."""
    return [
        {
            "file": file.name,
            "sha256": file.sha256,
            "bytes": file.hashed_bytes,
            "records": file.records,
            "torn_lines": file.torn_lines,
            "left_out": file.left_out,
        }
        for file in read.files
    ]
