"""The first look over a run's records: the few numbers of each that charts, samples and page order are made from."""

from __future__ import annotations

import hashlib
import heapq
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vlmbatch import jsonl
from vlmbatch.errors import IntegrityError
from vlmbatch.records import MODEL_ANSWERS, Status
from vlmbatch.rundir import MANIFEST

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vlmbatch.rundir import RunDir

UNKNOWN = -1
"""Stands in a column where a number is not told."""

_BINS = 40
_NICE = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
_FAR = 3
"""A limit more than so many times the 99th percentile is named, not drawn: the chart would be one bar."""
_STATUSES = {status.value: number for number, status in enumerate(Status)}
_ANSWERED = frozenset(_STATUSES[status] for status in MODEL_ANSWERS)


@dataclass(slots=True)
class Survey:
    """Columns over all requests, in manifest order; 17 bytes a request.

    Attributes:
        status: Number of the status in :class:`Status`.
        output_tokens: Output tokens, -1 = not told.
        latency_ms: Milliseconds, -1 = not told.
        offsets: Where each line of the manifest starts.
        shown: Positions of the records that the page holds, ascending.
        sample: Positions drawn for review, in the order of the draw.
        sample_ids: Their custom_ids.
    """

    status: array[int] = field(default_factory=lambda: array("B"))
    output_tokens: array[int] = field(default_factory=lambda: array("q"))
    latency_ms: array[int] = field(default_factory=lambda: array("i"))
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    shown: array[int] = field(default_factory=lambda: array("I"))
    sample: list[int] = field(default_factory=list)
    sample_ids: list[str] = field(default_factory=list)

    @property
    def requests(self) -> int:
        """Number of requests."""
        return len(self.status)

    @property
    def answered(self) -> int:
        """Number of requests that a model answered: those that the sample is drawn from."""
        return sum(status in _ANSWERED for status in self.status)

    def token_chart(self, summary: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the histogram of output tokens against the limit, None where no answer told any."""
        values = sorted(value for value in self.output_tokens if value >= 0)
        if not values:
            return None
        told = summary.get("output_tokens") or {}
        limits: list[int] = told.get("limits") or []
        near = [limit for limit in limits if len(limits) == 1 and limit <= _FAR * max(_rank(values, 0.99), 1)]
        said = [
            f"median {_rank(values, 0.5):,}",
            f"95 % up to {_rank(values, 0.95):,}",
            f"most {values[-1]:,}",
            f"limit {', '.join(f'{limit:,}' for limit in limits)}" if limits else "no limit told",
            f"{told['near_limit']:,} within 5 % of it" if limits and told.get("near_limit") else "",
        ]
        return _chart(values, _nice(max([values[-1], *near])), said, cap=near[0] if near else None)

    def latency_chart(self, summary: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the histogram of realtime latencies in seconds, None where no attempt told any."""
        values = sorted(value / 1000 for value in self.latency_ms if value >= 0)
        if not values:
            return None
        told = summary.get("latency_s") or {}
        said = [
            f"{name} {seconds(told[key])}"
            for key, name in {"p50": "median", "p90": "90 % up to", "p99": "99 % up to", "max": "slowest"}.items()
            if told.get(key) is not None
        ]
        return _chart(values, _nice(_rank(values, 0.995)), said)


def survey(run: RunDir, records: str, *, sample: int, seed: int, max_records: int) -> Survey:
    """Read records and manifest once, side by side.

    Args:
        run: The run.
        records: Path of its merged.jsonl.
        sample: Records to draw among those that a model answered.
        seed: Which draw.
        max_records: Records that the page may hold.

    Raises:
        IntegrityError: The records are not those of this manifest.
        OSError: A file cannot be read.
    """
    found = Survey()
    draw: list[tuple[int, int, str]] = []
    for position, line in enumerate(jsonl.iter_lines(records)):
        record = jsonl.parse_object(line.data)
        if record is None or record.get("status") not in _STATUSES:
            raise IntegrityError(f"{records}: line {line.number} is no record", hint="run collect again")
        status = _STATUSES[record["status"]]
        output, latency = (record.get("usage") or {}).get("output_tokens"), record.get("latency_s")
        found.status.append(status)
        found.output_tokens.append(UNKNOWN if output is None else output)
        found.latency_ms.append(UNKNOWN if latency is None else min(round(latency * 1000), 2**31 - 1))
        if status in _ANSWERED and sample:
            key = -int.from_bytes(hashlib.sha256(f"{seed}:{record['custom_id']}".encode()).digest()[:8])
            push = heapq.heappush if len(draw) < sample else heapq.heappushpop
            push(draw, (key, position, record["custom_id"]))
    found.offsets.extend(line.offset for line in jsonl.iter_lines(run.file(MANIFEST)))
    if found.requests != len(found.offsets):
        raise IntegrityError(
            f"{records}: {found.requests:,} records, the manifest has {len(found.offsets):,} requests",
            hint="run collect again",
        )
    chosen = sorted(draw, reverse=True)
    found.sample = [position for _, position, _ in chosen]
    found.sample_ids = [custom_id for _, _, custom_id in chosen]
    found.shown.extend(_shown(found.requests, found.sample, max_records))
    return found


def _shown(requests: int, sample: list[int], most: int) -> list[int]:
    """Return the positions that the page holds: all, or every n-th and the review sample."""
    if requests <= most:
        return list(range(requests))
    spread = {k * requests // most for k in range(most)}
    return sorted(spread | set(sample))


def seconds(value: float) -> str:
    """Return a duration for reading: milliseconds where it is less than a second."""
    return f"{value:.1f} s" if value >= 1 else f"{value * 1000:.0f} ms"


def _rank(ranked: list[Any], share: float) -> Any:
    return ranked[min(int(share * len(ranked)), len(ranked) - 1)]


def _nice(value: float) -> float:
    """Return the next number up that reads well on an axis."""
    if value <= 0:
        return 1
    power = 1.0
    while power * 10 <= value:
        power *= 10
    while power > value:
        power /= 10
    return next(step * power for step in _NICE if step * power >= value * (1 - 1e-9))


def _chart(values: list[Any], top: float, said: list[str], *, cap: int | None = None) -> dict[str, Any]:
    """Return a histogram for the page; the last bin takes what lies beyond it."""
    counts = [0] * _BINS
    for value in values:
        counts[min(int(value * _BINS / top), _BINS - 1)] += 1
    return {
        "counts": counts,
        "width": top / _BINS,
        "top": top,
        "cap": cap,
        "over": values[-1] > top,
        "said": " · ".join(text for text in said if text),
    }
