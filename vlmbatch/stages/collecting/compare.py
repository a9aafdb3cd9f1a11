"""Two runs side by side, on the inputs that both have: known by the hash of their images, whatever their ids are.

An image that stands in a run once is that input. One that stands there several times (several questions about it, or
several outputs) is told apart by the input row and the output's name.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vlmbatch import jsonl
from vlmbatch.records import Status
from vlmbatch.stages.collecting.fields import is_filled
from vlmbatch.stages.collecting.splice import iter_records
from vlmbatch.stages.collecting.summary import AT_CAP, rate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from vlmbatch.records import Entry, Review
    from vlmbatch.rundir import RunDir
    from vlmbatch.stages.collecting.facts import Read
    from vlmbatch.stages.collecting.splice import Line
    from vlmbatch.stages.collecting.spool import Spool

_FAILED = (Status.HTTP_ERROR, Status.NETWORK_ERROR, Status.MISSING)
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Side:
    """One run, read: everything that comparing it needs."""

    run: RunDir
    read: Read
    spool: Spool
    summary: Mapping[str, Any]
    rehearsal: bool

    def lines(self, reviews: Mapping[int, Review]) -> Iterator[Line]:
        """Yield the records in manifest order."""
        return iter_records(self.run, self.read, self.spool, rehearsal=self.rehearsal, reviews=reviews)


@dataclass(slots=True)
class _Tally:
    """What is counted over the inputs that both runs have."""

    matched: int = 0
    here: Counter[str] = field(default_factory=Counter)
    there: Counter[str] = field(default_factory=Counter)
    changes: Counter[tuple[str, str]] = field(default_factory=Counter)
    both_ok: int = 0
    equal: int = 0
    field_both: Counter[str] = field(default_factory=Counter)
    field_equal: Counter[str] = field(default_factory=Counter)
    filled_here: Counter[str] = field(default_factory=Counter)
    filled_there: Counter[str] = field(default_factory=Counter)

    def add(self, one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
        here, there = one["status"], other["status"]
        self.matched += 1
        self.here[here] += 1
        self.there[there] += 1
        if here != there:
            self.changes[here, there] += 1
        for record, filled in ((one, self.filled_here), (other, self.filled_there)):
            if record["status"] == Status.OK and isinstance(record["json"], dict):
                filled.update(name for name in record["json"] if is_filled(record["json"], [name]))
        if here == there == Status.OK:
            self.both_ok += 1
            self.equal += _answer(one) == _answer(other)
            self._add_fields(one["json"], other["json"])

    def _add_fields(self, one: Any, other: Any) -> None:
        if isinstance(one, dict) and isinstance(other, dict):
            for name in one.keys() & other.keys():
                self.field_both[name] += 1
                self.field_equal[name] += _same(one[name], other[name])


def compare(one: Side, other: Side) -> dict[str, Any]:
    """Compare two runs.

    Args:
        one: This run.
        other: The other one.

    Returns:
        ``matched`` inputs, those that only one of them has, and those that cannot be told apart (``unclear``); for
        both sides status counts and rates on what is matched, and the cost of the whole run; how often two ok answers
        are equal, as a whole and by JSON field.
    """
    mine, theirs = _keys(one, other)
    my_count, their_count = Counter(mine), Counter(theirs)
    where = {key: position for position, key in enumerate(mine) if my_count[key] == their_count[key] == 1}
    tally = _Tally()
    for position, key in enumerate(theirs):
        if key in where:
            tally.add(_half(one, where[key]), _half(other, position))
    only_here = sum(key not in their_count for key in mine)
    only_there = sum(key not in my_count for key in theirs)
    return {
        "matched": tally.matched,
        "only_here": only_here,
        "only_there": only_there,
        "unclear": len(mine) - only_here - tally.matched,
        "here": _column(one, tally.here, tally.matched),
        "there": _column(other, tally.there, tally.matched),
        "changes": [{"here": a, "there": b, "count": count} for (a, b), count in tally.changes.most_common()],
        "agreement": {"both_ok": tally.both_ok, "equal": tally.equal, "rate": rate(tally.equal, tally.both_ok)},
        "fields": {
            name: _field(tally, name) for name in sorted({*tally.filled_here, *tally.filled_there, *tally.field_both})
        },
    }


def _field(tally: _Tally, name: str) -> dict[str, Any]:
    """Return how much of either side's ok answers fills a JSON field, and how much of both has it equal."""
    both, equal = tally.field_both[name], tally.field_equal[name]
    return {
        "both": both,
        "equal": equal,
        "rate": rate(equal, both),
        "filled_here": rate(tally.filled_here[name], tally.here[Status.OK]),
        "filled_there": rate(tally.filled_there[name], tally.there[Status.OK]),
    }


def _half(side: Side, position: int) -> dict[str, Any]:
    """Return what the winning attempt of one manifest line says in its record."""
    row = side.read.overlay.winner[position]
    if row < 0:
        return {"status": Status.MISSING.value, "json": None, "text": None, "authoritative": None}
    half: dict[str, Any] = jsonl.loads_exact(side.spool.of_attempt(side.read.overlay, row))
    return half


def _column(side: Side, counts: Counter[str], matched: int) -> dict[str, Any]:
    """Return one run's column of the table."""
    return {
        "fingerprint": side.run.fingerprint,
        "model": side.run.info["model"],
        "provider": side.run.info["provider"],
        "requests": side.summary["requests"],
        "counts": {status.value: counts[status] for status in Status},
        "ok_rate": rate(counts[Status.OK], matched),
        "refusal_rate": rate(counts[Status.REFUSAL], matched),
        "empty_rate": rate(counts[Status.EMPTY], matched),
        "at_cap_rate": rate(sum(counts[status] for status in AT_CAP), matched),
        "failed_rate": rate(sum(counts[status] for status in _FAILED), matched),
        "cost_usd": side.summary["cost"]["total_usd"],
        "cost_is_lower_bound": side.summary["cost"]["is_lower_bound"],
    }


def _answer(record: Mapping[str, Any]) -> Any:
    """Return what is compared: the JSON value, or the text without white space around it."""
    if record["authoritative"] == "json":
        return _canonical(record["json"])
    return (record["text"] or "").strip()


def _canonical(value: Any) -> bytes:
    return jsonl.dumps(_by_value(value), sort_keys=True)


def _by_value(value: Any) -> Any:
    """Return a JSON value in which numbers of one value are one: 1.0 is 1."""
    if isinstance(value, dict):
        return {key: _by_value(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_by_value(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _same(one: Any, other: Any) -> bool:
    return _canonical(one) == _canonical(other)


# --- which input is which ------------------------------------------------------------------------------------


def _keys(one: Side, other: Side) -> tuple[list[bytes], list[bytes]]:
    """Return for each manifest line of both runs what it is known by: its images, or those with row and output."""
    mine, theirs = ([_key(entry) for entry in side.run.iter_entries()] for side in (one, other))
    often = {images for side in (mine, theirs) for images, count in Counter(k for k, _ in side).items() if count > 1}
    return _chosen(mine, often), _chosen(theirs, often)


def _chosen(keys: Sequence[tuple[bytes, bytes]], often: set[bytes]) -> list[bytes]:
    return [whole if images in often else images for images, whole in keys]


def _key(entry: Entry) -> tuple[bytes, bytes]:
    images = hashlib.sha256("".join(image["sha256"] for image in entry.images).encode()).digest()[:_DIGEST_BYTES]
    whole = hashlib.sha256(images + entry.output.encode() + b"\n" + entry.row).digest()[:_DIGEST_BYTES]
    return images, whole
