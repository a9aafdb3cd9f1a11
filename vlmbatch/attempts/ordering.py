"""The order of results files: that in which their attempts were begun, whatever they are called."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from vlmbatch import jsonl

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vlmbatch.attempts.origins import Origins


def order_files(paths: Iterable[str], origins: Origins) -> list[str]:
    """Put results files into the order in which their attempts were begun.

    The first ``started_at`` of a file decides, for a raw provider file the time of its job's submission; files without
    times keep the order in which they are given and stand last. Names do not matter.

    Args:
        paths: The files.
        origins: Where the raw ones are from.

    Raises:
        OSError: A file cannot be read.
    """
    keyed = [(_first_time(path, origins), path) for path in paths]
    timed = sorted(((time, path) for time, path in keyed if time is not None), key=lambda pair: pair[0])
    return [path for _, path in timed] + [path for time, path in keyed if time is None]


def _first_time(path: str, origins: Origins) -> datetime | None:
    """Return when a file's attempts began, None where neither it nor the journal tells."""
    for line in jsonl.iter_lines(path):
        value = jsonl.parse_object(line.data)
        if value is None:
            continue
        if "line_sha256" not in value:
            job = origins.job(path)
            return parse_time(job.submitted_at) if job else None
        time = parse_time(value.get("started_at"))
        if time is not None:
            return time
    return None


def parse_time(text: Any) -> datetime | None:
    """Parse an RFC 3339 time (UTC where it names no zone), None where it is none."""
    if not isinstance(text, str):
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
