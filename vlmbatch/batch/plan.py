"""Which rows make a job: a whole shard as it stands, or, where some rows need no sending, whole lines copied out."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from vlmbatch import jsonl
from vlmbatch.errors import IntegrityError
from vlmbatch.journal import Range, ranges_of
from vlmbatch.rundir import LineReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from vlmbatch.records import Entry
    from vlmbatch.rundir import RunDir


class Planned(NamedTuple):
    """A job to be: the shard that it is (empty for a choice of rows), its manifest lines, its estimated tokens."""

    shard: str
    ranges: tuple[Range, ...]
    tokens: int = 0

    @property
    def requests(self) -> int:
        """How many rows it holds."""
        return sum(end - start for start, end in self.ranges)


def plan(run: RunDir, wanted: bytearray) -> list[Planned]:
    """Cut the wanted rows into jobs.

    A shard of which every row is wanted is one job. What is left of the others is gathered, in manifest order, into
    jobs that are no larger than the largest shard.

    Args:
        run: The run.
        wanted: 1 for each manifest line that is to be sent.
    """
    whole: list[Planned] = []
    single = bytearray(len(wanted))
    start = 0
    for shard in run.info["shards"]:
        end = start + shard["requests"]
        if end > start and wanted.count(1, start, end) == end - start:
            whole.append(Planned(shard["file"], ((start, end),)))
        else:
            single[start:end] = wanted[start:end]
        start = end
    return whole + list(_gather(run, single))


def _gather(run: RunDir, single: bytearray) -> Iterator[Planned]:
    """Yield jobs of single rows, each within the largest shard's bytes and requests."""
    shards = run.info["shards"]
    most_bytes = max((shard["bytes"] for shard in shards), default=0)
    most_requests = max((shard["requests"] for shard in shards), default=0)
    positions: list[int] = []
    size = 0
    for entry in _entries(run, single):
        if positions and (size + entry.length + 1 > most_bytes or len(positions) >= most_requests):
            yield Planned("", tuple(ranges_of(positions)))
            positions, size = [], 0
        positions.append(entry.position)
        size += entry.length + 1
    if positions:
        yield Planned("", tuple(ranges_of(positions)))


def _entries(run: RunDir, wanted: bytearray) -> Iterator[Entry]:
    if 1 in wanted:
        yield from (entry for entry in run.iter_entries() if wanted[entry.position])


def lines_of(run: RunDir, job: Planned) -> bytes:
    """Return the frozen lines of a job, byte for byte, each with its newline.

    Raises:
        IntegrityError: They are not what build wrote.
    """
    if job.shard:
        return _whole_shard(run, job.shard)
    wanted = bytearray(run.requests)
    for start, end in job.ranges:
        wanted[start:end] = b"\x01" * (end - start)
    with LineReader(run) as reader:
        return b"".join(reader.line(entry) + b"\n" for entry in _entries(run, wanted))


def _whole_shard(run: RunDir, name: str) -> bytes:
    expected = next(shard["sha256"] for shard in run.info["shards"] if shard["file"] == name)
    try:
        with open(run.file(name), "rb") as file:
            data = file.read()
    except OSError as error:
        raise IntegrityError(f"{name}: cannot be read ({error.strerror or error})") from None
    if jsonl.sha256(data) != expected:
        raise IntegrityError(
            f"{name}: differs from what build wrote",
            hint="nothing more was sent; fetch the folder again, or build a new run",
        )
    return data


def ids_of_lines(run: RunDir, ranges: Iterable[Range], lines: set[int]) -> dict[int, str]:
    """Return the custom_ids of some of a job's lines, by 1-based line number."""
    positions = [position for start, end in ranges for position in range(start, end)]
    at = {positions[line - 1]: line for line in lines if 0 < line <= len(positions)}
    return {at[entry.position]: entry.custom_id for entry in run.iter_entries() if entry.position in at} if at else {}


def with_tokens(run: RunDir, jobs: list[Planned], count: Callable[[Entry], int]) -> list[Planned]:
    """Return jobs with their input tokens (one pass over the manifest).

    Args:
        run: The run.
        jobs: The jobs.
        count: Estimates a row's input tokens.
    """
    rows = [count(entry) for entry in run.iter_entries()] if jobs else []
    return [job._replace(tokens=sum(sum(rows[start:end]) for start, end in job.ranges)) for job in jobs]
