"""Where a number of summary.json comes from: for each one a query with which anybody can compute it again.

The queries are jq commands over the delivered files (merged.jsonl first of all), to be run in the run folder.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any, Final

from vlmbatch.errors import InputError
from vlmbatch.records import MODEL_ANSWERS, Status
from vlmbatch.stages.overlay import CHANNELS, TOKENS
from vlmbatch.stages.summary import AT_CAP

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_COUNT: Final = "reduce (inputs | select({})) as $r (0; . + 1)"
_RATE: Final = "reduce inputs as $r ([0, 0]; [.[0] + (if $r.status == \"{}\" then 1 else 0 end), .[1] + 1]) | .[0] / .[1]"
_TALLY: Final = "reduce (inputs | {}) as $k ({{}}; .[$k] += 1)"
_ATTEMPTS: Final = "select(.source_file) | ., .superseded[]"
_RANK: Final = "[inputs | {} | numbers] | sort | .[((length * {} / 100) | ceil) - 1]"
_LINES: Final = "inputs | fromjson? | objects"
_PRICE: Final = (
    "[$e[] | select((.price_in_usd_per_mtok and .price_out_usd_per_mtok) or"
    " (.price_batch_in_usd_per_mtok and .price_batch_out_usd_per_mtok))] | last"
    " | with_entries(.value |= (tonumber? // .))"
)
_SHARES: Final = {"p50": 50, "p90": 90, "p95": 95, "p99": 99, "max": 100}
_REALTIME: Final = 'select(.channel == "realtime") | .latency_s'


class Query(tuple[str, str]):
    """What a number counts, in words, and the command that computes it."""

    __slots__ = ()
