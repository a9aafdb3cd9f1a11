"""Results in, records out: one pass over the results files, one over the manifest, each line read once.

The first pass reads and judges every attempt. Its numbers go into the :class:`~vlmbatch.stages.overlay.Overlay`; what
the record will say of it goes to a spool file as finished JSON, so that the second pass only splices bytes: the
record's half from the spool, images and row from the manifest as they stand.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from vlmbatch import attempts, jsonl, rundir
from vlmbatch.attempts import Outcome, Reader
from vlmbatch.errors import IntegrityError, Problem
from vlmbatch.records import MODEL_ANSWERS, ErrorInfo, Event, Reading, Status, Verdict
from vlmbatch.stages.overlay import IMAGE_SEEN, IMAGE_UNSEEN, RETRY, Ledger, Overlay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import IO

    from vlmbatch.attempts import Job, Journal
    from vlmbatch.providers.base import Provider
    from vlmbatch.records import Asked, Review
    from vlmbatch.rundir import RunDir

_NAMED_STRANGERS = 5
_EVENT_BYTES = 1 << 24
_SPOOL_BUFFER = 1 << 20
_SEVERAL = 2
_BILLED = MODEL_ANSWERS - {Status.REFUSAL}
_ID_START = b'{"custom_id":"'
_IMAGES_KEY = b',"images":'
_ROW_KEY = b',"row":'
_AFTER_IMAGES = (b',"source_line":', b',"output":')


@dataclass(slots=True)
class FileFacts:
    """What is known of one results file once it has been read."""

    path: str
    name: str
    bytes: int
    records: int = 0
    torn_lines: int = 0
    left_out: int = 0
    """Rehearsed answers in a file that is read for real ones, or the other way round."""
    job: Job | None = None
    """The batch job that it came from."""


@dataclass(slots=True)
class Read:
    """Everything that the first pass found out.

    Attributes:
        ledger: The manifest in memory.
        overlay: Every attempt as numbers.
        files: The results files in the order in which they were read.
    """

    ledger: Ledger
    overlay: Overlay
    files: list[FileFacts] = field(default_factory=list)


class Spool:
    """Finished halves of records, appended in the order of reading and fetched by offset; gone when closed.

    Args:
        folder: Where the scratch file stands (without a name); None = the system's place for such files. It is made
            when the first half comes.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._fd = -1
        self._size = 0

    def put(self, data: bytes) -> tuple[int, int]:
        """Append; return offset and length."""
        file = self._file
        if file is None:
            file = self._file = tempfile.TemporaryFile(dir=self._folder, buffering=_SPOOL_BUFFER)  # noqa: SIM115
            self._fd = file.fileno()
        offset, length = self._size, len(data)
        file.write(data)
        self._size += length
        return offset, length

    def flush(self) -> None:
        """Make everything readable by :meth:`get`."""
        if self._file is not None:
            self._file.flush()

    def get(self, offset: int, length: int) -> bytes:
        """Return what :meth:`put` took."""
        return os.pread(self._fd, length, offset)

    def of_attempt(self, overlay: Overlay, row: int) -> bytes:
        """Return the half record of an attempt that won when it was read."""
        return self.get(overlay.spool_offset[row], overlay.spool_length[row])

    def close(self) -> None:
        """Give the space back."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Strangers:
    """Attempts that are not of this run: the first few by name, all of them by number."""

    def __init__(self) -> None:
        self.count = 0
        self._problems: list[Problem] = []

    def add(self, outcome: Outcome, *, is_known: bool) -> None:
        self.count += 1
        if len(self._problems) >= _NAMED_STRANGERS:
            return
        code, message = "foreign_id", f"custom_id {outcome.custom_id!r} is not in the manifest"
        if is_known:
            code, message = "foreign_line", f"{outcome.custom_id} answers a line of another hash than ours"
        self._problems.append(Problem(code, message, outcome.file, outcome.line))

    def refuse(self) -> None:
        if self.count:
            raise IntegrityError(
                f"{self.count:,} line(s) are not answers to this run's requests",
                hint="results of another run were mixed in: name this run's files alone; nothing was written",
                problems=self._problems,
            )


@dataclass(slots=True)
class Merge:
    """Reads results files into a :class:`Read`.

    Attributes:
        run: The run.
        provider: Its adapter.
        asked: What each output asked for, in the order of the ledger's outputs.
        rehearsal: Whether rehearsals are wanted, and they alone.
        fields: Paths into the JSON answer, as keys; the overlay's ``filled`` has one bit for each.
        spool: Where the records' halves go.
        has_records: Whether records are wanted; else only numbers are, and nothing is spooled.
    """

    run: RunDir
    provider: Provider
    ledger: Ledger
    asked: Sequence[Asked]
    spool: Spool
    has_records: bool = True
    rehearsal: bool = False
    fields: Sequence[Sequence[str]] = ()

    def read(self, paths: Sequence[str], journal: Journal, on_event: Callable[[Event], None] | None = None) -> Read:
        """Read the files in the given order.

        Raises:
            IntegrityError: A line is of no request of this run; all are counted, the first few named.
        """
        read = Read(self.ledger, Overlay(len(self.ledger)))
        strangers = _Strangers()
        total = sum(os.path.getsize(path) for path in paths)
        done = 0
        for path in paths:
            reader = Reader(path, self.run, self.provider, journal)
            facts = FileFacts(path, reader.name, os.path.getsize(path), job=reader.job)
            read.files.append(facts)
            for base in self._take_file(reader, read, facts, strangers):
                if on_event:
                    on_event(Event("progress", "collect", done=done + base, total=total, data={"unit": "bytes"}))
            done += facts.bytes
        strangers.refuse()
        self.spool.flush()
        return read

    def _take_file(self, reader: Reader, read: Read, facts: FileFacts, strangers: _Strangers) -> Iterator[int]:
        """Take in one file; yield the offset now and then."""
        number, told = len(read.files) - 1, 0
        ledger, overlay, spool, asked = self.ledger, read.overlay, self.spool, self.asked
        for outcome in reader:
            if outcome.rehearsal is not self.rehearsal:
                facts.left_out += 1
                continue
            position = ledger.position(outcome.custom_id)
            if position < 0 or not ledger.has_hash(position, outcome.line_sha256):
                strangers.add(outcome, is_known=position >= 0)
                continue
            wanted = asked[ledger.output_of[position]]
            reading, verdict = attempts.judge(outcome, self.provider, wanted)
            kind = overlay.kind_number(self._kind(number, outcome, reading, verdict))
            overlay.add(position, kind, outcome.line, reading.usage, outcome.latency_s)
            if self.has_records:
                half = half_record(outcome, reading, verdict, is_json=wanted.json)
                overlay.spooled(spool.put(jsonl.dumps(half)))
            if outcome.offset - told > _EVENT_BYTES:
                told = outcome.offset
                yield told
        facts.records, facts.torn_lines = reader.lines, reader.torn

    def _kind(self, number: int, outcome: Outcome, reading: Reading, verdict: Verdict) -> tuple[Any, ...]:
        """Return the fields of the attempt's :class:`~vlmbatch.stages.overlay.Kind`."""
        status, usage = verdict.status, reading.usage
        is_plain = status is Status.OK and usage["output_tokens"] is not None and len(outcome.tries) < _SEVERAL
        return (
            status,
            0 if is_plain and reading.image_tokens is None else _flags(status, reading, outcome),
            number,
            outcome.channel,
            0 if is_plain else _unanswered(outcome, reading, status),
            "" if status is Status.OK else verdict.reason or "",
            reading.model or "",
            reading.fingerprint or "",
            reading.notes + verdict.notes,
            self._filled(verdict) if self.fields else 0,
            outcome.endpoint,
            outcome.is_direct,
        )

    def _filled(self, verdict: Verdict) -> int:
        """Return which of the required fields are there and not empty, as bits."""
        return sum(1 << bit for bit, path in enumerate(self.fields) if is_filled(verdict.json, path))


def _flags(status: Status, reading: Reading, outcome: Outcome) -> int:
    flags = RETRY if may_retry(status, reading.error or outcome.error) else 0
    if reading.image_tokens is not None:
        flags |= IMAGE_SEEN if reading.image_tokens else IMAGE_UNSEEN
    return flags


def may_retry(status: Status, error: ErrorInfo | None) -> bool:
    """Tell whether sending the same request once more is worth it (a missing row is, too; it has no attempt)."""
    if status is Status.NETWORK_ERROR:
        return True
    return status is Status.HTTP_ERROR and error is not None and error["is_retryable"]


def is_filled(value: Any, path: Sequence[str]) -> bool:
    """Tell whether a JSON value holds something at a path of keys: not null, not an empty text, list or object."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value is not None and value not in ("", [], {}) and not (isinstance(value, str) and not value.strip())


def _unanswered(outcome: Outcome, reading: Reading, status: Status) -> int:
    """Return how many sendings may have been billed although no usage came back.

    These are requests that had gone out whole before the connection broke, and an answer that tells no tokens.
    """
    broken = sum(one.get("sent") is True and one.get("status_code") is None for one in outcome.tries)
    return broken + (status in _BILLED and reading.usage["output_tokens"] is None)


# --- records -------------------------------------------------------------------------------------------------


def half_record(outcome: Outcome, reading: Reading, verdict: Verdict, *, is_json: bool) -> dict[str, Any]:
    """Return everything of a record that its winning attempt tells."""
    text, status = reading.text, verdict.status
    is_ok = status is Status.OK
    return {
        "status": status,
        "reason": verdict.reason,
        "text": text,
        "json": verdict.json,
        "reasoning": reading.reasoning,
        "usage": reading.usage,
        "finish_reason": reading.finish_reason,
        "model": reading.model,
        "error": None if is_ok else reading.error or outcome.error,
        "authoritative": "json" if is_json and is_ok else None if text is None else "text",
        "notes": [*reading.notes, *verdict.notes],
        "channel": outcome.channel,
        "latency_s": outcome.latency_s,
        "system_fingerprint": reading.fingerprint,
        "rehearsal": outcome.rehearsal,
    }


def missing_half(*, rehearsal: bool) -> bytes:
    """Return the half record of a request that has no attempt."""
    outcome = Outcome("", None, None, None, None, None, None, "", "", None, [], rehearsal, True, None, "", 0, 0, 0)
    half = half_record(outcome, Reading(), Verdict(Status.MISSING, "no attempt on record"), is_json=False)
    return jsonl.dumps(half | {"channel": None})


class Line(NamedTuple):
    """One record as it goes to disk, and what of its manifest line it does not hold.

    ``row`` is the input row's own JSON; ``place`` what the manifest says of where the row stood (``source_line``,
    ``output``), as members without braces, or empty.
    """

    data: bytes
    row: bytes
    place: bytes


def iter_records(
    run: RunDir, read: Read, spool: Spool, *, rehearsal: bool, reviews: Mapping[int, Review]
) -> Iterator[Line]:
    """Yield the records, one for each manifest line and in that order.

    Args:
        run: The run.
        read: What the first pass found.
        spool: The halves that it wrote.
        rehearsal: Whether these are rehearsals.
        reviews: What reviewers said, by manifest line.
    """
    overlay = read.overlay
    offsets, lengths, lines = overlay.spool_offset, overlay.spool_length, overlay.line
    kind, kinds, get = overlay.kind, overlay.kinds, spool.get
    sources = [b',"source_file":%b,"source_line":' % jsonl.dumps(file.name) for file in read.files]
    nothing = missing_half(rehearsal=rehearsal)
    manifest = jsonl.iter_lines(run.file(rundir.MANIFEST))
    for position, ((_, _, line, _), attempt) in enumerate(zip(manifest, overlay.winner, strict=True)):
        head, images, place, row = cut_entry(line, position)
        if attempt < 0:
            half, source, beaten = nothing, b',"source_file":null,"source_line":null', b"[]"
        else:
            half = get(offsets[attempt], lengths[attempt])
            source = b"%b%d" % (sources[kinds[kind[attempt]].file], lines[attempt])
            beaten = _superseded(read, spool, position)
        review = jsonl.dumps(reviews[position]) if position in reviews else b"null"
        data = b'%b,%b%b%b,"superseded":%b,"review":%b,"row":%b}' % (
            head, half[1:-1], images, source, beaten, review, row,
        )  # fmt: skip
        yield Line(data, row, place)


def _superseded(read: Read, spool: Spool, position: int) -> bytes:
    overlay = read.overlay
    rows = overlay.beaten(position)
    if not rows:
        return b"[]"
    kinds = [overlay.kinds[overlay.kind[row]] for row in rows]
    return jsonl.dumps(
        [
            {
                "source_file": read.files[kind.file].name,
                "source_line": overlay.line[row],
                "status": kind.status,
                "channel": kind.channel,
                "usage": jsonl.loads(spool.of_attempt(overlay, row))["usage"],
            }
            for row, kind in zip(rows, kinds, strict=True)
        ]
    )


def cut_entry(data: bytes, position: int) -> tuple[bytes, bytes, bytes, bytes]:
    """Cut a manifest line into what a record takes over, as the bytes that stand there.

    The keys that are looked for cannot stand inside a JSON string, where their quotes would be escaped; the order
    of the keys is that of build.

    Returns:
        The id as the start of an object (``{"custom_id":"…"``), the images with comma and key before them, what stands
        between them and the row, without the comma (``"source_line":1,"output":"x"``, or nothing), and the row.

    Raises:
        IntegrityError: The line is damaged.
    """
    row = data.find(_ROW_KEY)
    start = data.find(_IMAGES_KEY, 0, row)
    if start < 0 or not data.startswith(_ID_START):
        entry = rundir.parse_entry(data, position)
        head = b'%b%b"' % (_ID_START, entry.custom_id.encode())
        return head, _IMAGES_KEY + jsonl.dumps(entry.images), b"", entry.row
    end = row
    for key in _AFTER_IMAGES:
        found = data.find(key, start, end)
        end = end if found < 0 else found
    head_end = data.index(b'"', len(_ID_START)) + 1
    return data[:head_end], data[start:end], data[end + 1 : row], data[row + len(_ROW_KEY) : -1]
