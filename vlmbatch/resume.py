"""Which rows still have to be sent: the manifest, less what results/ has settled, cut to what was asked for.

Nothing is kept per request but a byte or two and, while results are read, the 8 bytes of the id index. The manifest
is read as a stream; lines of rows that are not wanted are not even parsed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Protocol

from vlmbatch import attempts, jsonl
from vlmbatch.classify import rank
from vlmbatch.errors import InputError, IntegrityError, Problem, cannot_read
from vlmbatch.records import CUSTOM_ID, MODEL_ANSWERS, Status
from vlmbatch.rundir import MANIFEST, parse_entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from vlmbatch.attempts import Outcome
    from vlmbatch.providers.base import Provider
    from vlmbatch.records import Entry, Reading, Verdict
    from vlmbatch.rundir import IdIndex, RunDir

_MOST_TIMES: Final = 255


class OnOutcome(Protocol):
    """Told of one line of a results file, and whether the model answered there."""

    def __call__(self, outcome: Outcome, reading: Reading, *, is_answer: bool) -> None:
        """Take it."""


class Mark(IntEnum):
    """How a row stands; a higher one is never displaced by a lower one."""

    OPEN = 0
    """Never tried, or only failures that are worth another try."""
    FAILED = 1
    """A final error."""
    IN_BATCH = 2
    """In a batch job that has not ended."""
    ANSWERED = 3
    """The model answered."""


class Standing:
    """How every row of a run stands.

    Attributes:
        marks: One :class:`Mark` per manifest line.
        again: 1 for each row that ended in a way that was asked to be sent again; empty where none was asked for.
        times: How often each row ended so, up to 255; empty likewise.
    """

    def __init__(self, requests: int) -> None:
        self.marks = bytearray(requests)
        self.again = bytearray()
        self.times = bytearray()

    def note(self, position: int, mark: Mark) -> None:
        """Raise the mark of a row."""
        if mark > self.marks[position]:
            self.marks[position] = mark


def read_standing(run: RunDir, provider: Provider, index: IdIndex, *, rehearsal: bool = False) -> Standing:
    """Read every results file, once, for what each row has: an answer, a final error, or neither.

    Args:
        run: The run.
        provider: Its adapter.
        index: The run's ids.
        rehearsal: Whether rehearsals count (and they alone).

    Raises:
        IntegrityError: A file holds results of another run.
    """
    standing = Standing(index.count)
    marks, find, answered = standing.marks, index.at, int(Mark.ANSWERED)

    def take(raw: bytes, start: int) -> bool:
        position = find(raw, start)
        if position < 0:
            return False
        marks[position] = answered
        return True

    origins = attempts.Origins.load(run)
    for path in run.results(rehearsal=rehearsal):
        for settled in attempts.iter_settled(path, run, provider, origins.job(path), rehearsal=rehearsal, take=take):
            position = index.position(settled.custom_id, settled.line_sha256)
            if position < 0:
                raise _foreign(path, settled.custom_id)
            if settled.is_settled:
                standing.note(position, Mark.ANSWERED if settled.is_answer else Mark.FAILED)
    return standing


def judge_standing(
    run: RunDir,
    provider: Provider,
    index: IdIndex,
    *,
    retry_status: frozenset[Status] = frozenset(),
    retry_times: int = 0,
    on_outcome: OnOutcome | None = None,
    rehearsal: bool = False,
) -> Standing:
    """Read every results file and judge each answer: slower, but it tells statuses and tokens too.

    Args:
        run: The run.
        provider: Its adapter.
        index: The run's ids.
        retry_status: Rows that end in one of these are to be sent again ...
        retry_times: ... unless they came to one so often before; their first time does not count.
        on_outcome: Called with everything that is on record (for the tokens it took).
        rehearsal: Whether rehearsals count (and they alone).

    Raises:
        IntegrityError: A file holds results of another run.
    """
    standing = Standing(index.count)
    standing.times = times = bytearray(index.count)
    origins = attempts.Origins.load(run)
    asked = attempts.asked_by_output(run, provider)
    outputs = _outputs(run) if len(asked) > 1 else None
    last = bytearray(index.count)
    order = list(Status)
    for path in attempts.order_files(run.results(rehearsal=rehearsal), origins):
        for outcome in attempts.Reader(path, run, provider, origins.job(path)):
            if outcome.rehearsal != rehearsal:
                continue
            position = index.position(outcome.custom_id, outcome.line_sha256)
            if position < 0:
                raise _foreign(path, outcome.custom_id)
            reading, verdict = attempts.judge(outcome, provider, asked[outputs[position] if outputs else ""])
            if on_outcome is not None:
                on_outcome(outcome, reading, is_answer=verdict.status in MODEL_ANSWERS)
            _note(standing, position, outcome, reading, verdict)
            if verdict.status in retry_status:
                times[position] = min(_MOST_TIMES, times[position] + 1)
            if not last[position] or rank(verdict.status) >= rank(order[last[position] - 1]):
                last[position] = order.index(verdict.status) + 1
    wanted = bytes(len(order) + 1 > i > 0 and order[i - 1] in retry_status for i in range(256))
    standing.again = bytearray(
        wanted[status] and count <= retry_times for status, count in zip(last, times, strict=True)
    )
    return standing


def _outputs(run: RunDir) -> list[str]:
    """Return each row's pipeline output; names are shared, so this is one pointer a row."""
    names: dict[str, str] = {}
    return [names.setdefault(entry.output, entry.output) for entry in run.iter_entries()]


def _note(standing: Standing, position: int, outcome: Outcome, reading: Reading, verdict: Verdict) -> None:
    if verdict.status in MODEL_ANSWERS:
        standing.note(position, Mark.ANSWERED)
    elif attempts.is_settled(verdict, reading, outcome):
        standing.note(position, Mark.FAILED)


def _foreign(path: str, custom_id: str) -> IntegrityError:
    return IntegrityError(
        f"{path}: {custom_id!r} is not an id of this run, or of another line: results of another run were mixed in",
        hint="move that file out of results/; nothing was sent",
    )


# --- what was asked for --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Selection:
    """What one run command has to do.

    Attributes:
        wanted: 1 for each manifest line that has to be sent.
        asked: Rows that the command is about.
        answered: Those of them that have an answer already and are left alone.
        failed: Those of them that have a final error and are left alone.
        in_batch: Those of them that are in an open batch job and are left alone.
        to_send: Those that have to be sent.
    """

    wanted: bytearray
    asked: int
    answered: int
    failed: int
    in_batch: int
    to_send: int


def select(asked: Iterable[int], standing: Standing, *, resume: bool = True, ids: bytearray | None = None) -> Selection:
    """Decide row by row.

    Args:
        asked: Positions that the command is about, ascending.
        standing: How the rows stand.
        resume: Whether what is settled is left alone; rows in a batch job always are.
        ids: 1 for each line that was named by ``--ids``: those alone, whatever they have; None = no such list.
    """
    wanted = bytearray(len(standing.marks))
    counts = [0] * len(Mark)
    to_send = 0
    again = standing.again
    for position in asked:
        if ids is not None and not ids[position]:
            continue
        mark = standing.marks[position]
        if mark == Mark.IN_BATCH or (mark != Mark.OPEN and resume and ids is None and not (again and again[position])):
            counts[mark] += 1
        else:
            wanted[position] = 1
            to_send += 1
    return Selection(
        wanted,
        sum(counts) + to_send,
        counts[Mark.ANSWERED],
        counts[Mark.FAILED],
        counts[Mark.IN_BATCH],
        to_send,
    )


def positions(run: RunDir, *, limit: int | None, num_shards: int = 1, shard_id: int = 0) -> Iterator[int]:
    """Yield the manifest lines that a command is about: a sample, or a part, or the part's share of the sample.

    The sample is fixed over the whole run, whatever part asks: the same number names the same rows every time. Its rows
    are dealt out in turn, so that no part has more than one row more than another.
    """
    chosen = range(run.requests) if limit is None else sample([s["requests"] for s in run.info["shards"]], limit)
    return (position for rank, position in enumerate(chosen) if rank % num_shards == shard_id)


def sample(shard_requests: Sequence[int], limit: int) -> Iterator[int]:
    """Yield positions spread evenly over the run, ascending; every shard gives one, as long as the limit allows.

    Args:
        shard_requests: Requests of each shard, in manifest order.
        limit: How many to take.
    """
    starts, start = [], 0
    for requests in shard_requests:
        starts.append(start)
        start += requests
    for shard, share in enumerate(_shares(shard_requests, limit)):
        for number in range(share):
            # the middle of each of `share` equal stretches
            yield starts[shard] + (2 * number + 1) * shard_requests[shard] // (2 * share)


def _shares(shard_requests: Sequence[int], limit: int) -> list[int]:
    """Split a limit over the shards by their size, at least one each; with fewer than shards, spread over them."""
    total, shards = sum(shard_requests), len(shard_requests)
    if limit >= total:
        return list(shard_requests)
    if limit <= shards:
        taken = {(2 * number + 1) * shards // (2 * limit) for number in range(limit)}
        return [int(shard in taken) for shard in range(shards)]
    spare, rest = limit - shards, total - shards
    shares, before = [], 0
    for requests in shard_requests:
        after = before + requests - 1
        shares.append(1 + after * spare // rest - before * spare // rest)
        before = after
    return shares


def read_ids(path: str, index: IdIndex) -> bytearray:
    """Read a file of ids, one a line, into a mark per manifest line.

    Raises:
        InputError: It cannot be read, or names ids that the run does not have.
    """
    marks = bytearray(index.count)
    unknown: list[Problem] = []
    try:
        for line in jsonl.iter_lines(path):
            custom_id = line.data.strip().decode("utf-8", "replace")
            position = index.position(custom_id)
            if position >= 0:
                marks[position] = 1
            else:
                said = "is not in this run" if CUSTOM_ID.fullmatch(custom_id) else "is no id"
                unknown.append(Problem("unknown_id", f"{custom_id[:80]!r} {said}", os.path.basename(path), line.number))
    except OSError as error:
        raise cannot_read(f"--ids {path}", error) from None
    if unknown:
        raise InputError(
            f"--ids {path}: {len(unknown)} line(s) name no row of this run",
            hint="one custom_id of manifest.jsonl a line, as collect --retry-ids writes them; nothing was sent",
            problems=unknown,
        )
    return marks


def entries(run: RunDir, wanted: bytearray) -> Iterator[Entry]:
    """Yield the wanted manifest lines in order; the others are passed over unparsed, those behind the last unread.

    Raises:
        IntegrityError: A line is damaged, or the manifest has fewer than run.json says.
    """
    left = wanted.count(1)
    if not left:
        return
    for position, line in enumerate(jsonl.iter_lines(run.file(MANIFEST))):
        if wanted[position]:
            yield parse_entry(line.data, position)
            left -= 1
            if not left:
                return
    raise IntegrityError(f"{MANIFEST}: has fewer lines than run.json says", hint="fetch the folder again")
