"""Results in: one pass over the results files, in pieces, in which every attempt is read and judged once.

Its numbers go into the overlay; what the record will say of it goes to the spool as finished JSON, so that the second
pass, over the manifest, only splices bytes (splice.py).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from vlmbatch import attempts, jsonl
from vlmbatch.attempts import Reader, relative_name
from vlmbatch.records import MODEL_ANSWERS, Event, Status
from vlmbatch.stages.collecting import forked
from vlmbatch.stages.collecting.facts import FileFacts, Read
from vlmbatch.stages.collecting.fields import is_filled
from vlmbatch.stages.collecting.overlay import IMAGE_SEEN, IMAGE_UNSEEN, RETRY, Ledger, Overlay, Part
from vlmbatch.stages.collecting.splice import half_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from vlmbatch.attempts import Origins, Outcome
    from vlmbatch.errors import Problem
    from vlmbatch.providers.base import Provider
    from vlmbatch.records import Asked, ErrorInfo, Reading, Verdict
    from vlmbatch.rundir import RunDir
    from vlmbatch.stages.collecting.fields import Field
    from vlmbatch.stages.collecting.spool import Spool, SpoolPart

_PIECE_BYTES = 1 << 24
_MOST_PIECES = 200
_SMALL_BYTES = 1 << 25
"""Below this many bytes of results, starting helpers takes longer than they save."""
_SEVERAL = 2
_BILLED = MODEL_ANSWERS - {Status.REFUSAL}


class _Piece(NamedTuple):
    """A piece of work: to hash a whole file, or (with a span) to read a part of it."""

    file: int
    span: tuple[int, int] | None = None
    spool: SpoolPart | None = None


@dataclass(slots=True)
class Merge:
    """Reads results files into a :class:`Read`.

    Attributes:
        run: The run.
        provider: Its adapter.
        ledger: Its manifest in memory.
        asked: What each output asked for, in the order of the ledger's outputs.
        fields: Fields that are asked of JSON answers.
        spool: Where the records' halves go; None = only numbers are wanted.
        rehearsal: Whether rehearsals are wanted, and they alone.
    """

    run: RunDir
    provider: Provider
    ledger: Ledger
    asked: Sequence[Asked]
    fields: Sequence[Field]
    spool: Spool | None
    rehearsal: bool
    _files: list[FileFacts] = field(default_factory=list)

    def read(self, paths: Sequence[str], origins: Origins, on_event: Callable[[Event], None] | None) -> Read:
        """Read the files in the given order.

        Raises:
            IntegrityError: A line is of no request of this run; all are counted, the first few named.
        """
        self._files = [self._facts(path, origins) for path in paths]
        read = Read(self.ledger, Overlay(len(self.ledger)), self._files)
        total = sum(file.bytes for file in self._files)
        pieces = list(self._pieces(total))
        results = forked.in_order(pieces, self._work, workers=None if total > _SMALL_BYTES else 0)
        strangers, done = 0, 0
        problems: list[Problem] = []
        lines_before = [0] * len(paths)
        for piece, result in zip(pieces, results, strict=True):
            file = self._files[piece.file]
            if isinstance(result, tuple):
                file.sha256, file.hashed_bytes = result
                continue
            before = lines_before[piece.file]
            read.overlay.take(result, before)
            strangers += result.strangers
            problems += [replace(problem, line=before + (problem.line or 0)) for problem in result.problems]
            lines_before[piece.file] += result.lines
            file.add(result)
            done += piece.span[1] - piece.span[0] if piece.span else 0
            if on_event:
                on_event(Event("progress", "collect", done=done, total=total, data={"unit": "bytes"}))
        attempts.refuse_foreign(strangers, problems)
        return read

    def _facts(self, path: str, origins: Origins) -> FileFacts:
        return FileFacts(path, relative_name(path, self.run), os.path.getsize(path), job=origins.job(path))

    def _pieces(self, total: int) -> Iterator[_Piece]:
        """Yield the work in the order in which it is taken in: hashes first, then the attempts in reading order."""
        yield from (_Piece(number) for number in range(len(self._files)))
        step = max(_PIECE_BYTES, total // _MOST_PIECES)
        for number, file in enumerate(self._files):
            for span in jsonl.split_lines(file.path, file.bytes, step):
                yield _Piece(number, span, self.spool.new_part() if self.spool else None)

    def _work(self, piece: _Piece) -> Part | tuple[str, int]:
        if piece.span is None:
            return jsonl.sha256_file(self._files[piece.file].path)
        return self._read_piece(piece.file, piece.span, piece.spool)

    def _read_piece(self, number: int, span: tuple[int, int], spool: SpoolPart | None) -> Part:
        """Read and judge the attempts of one piece of a file."""
        file, part = self._files[number], Part()
        reader = Reader(file.path, self.run, self.provider, file.job, span=span)
        ledger, asked = self.ledger, self.asked
        for outcome in reader:
            if outcome.rehearsal is not self.rehearsal:
                part.left_out += 1
                continue
            position = ledger.position(outcome.custom_id)
            if position < 0 or not ledger.has_hash(position, outcome.line_sha256):
                _note_stranger(part, outcome, is_known=position >= 0)
                continue
            output = ledger.output_of[position]
            reading, verdict = attempts.judge(outcome, self.provider, asked[output])
            kind = part.kind_number(self._kind(number, outcome, reading, verdict, output))
            part.add(position, kind, outcome.line, reading.usage, outcome.latency_s)
            if spool:
                half = half_record(outcome, reading, verdict, is_json=asked[output].json)
                part.spooled(spool.put(jsonl.dumps(half)))
        if spool:
            spool.flush()
        part.records, part.torn_lines = reader.lines, reader.torn
        part.lines = jsonl.count_lines(file.path, *span)
        return part

    def _kind(self, number: int, outcome: Outcome, reading: Reading, verdict: Verdict, output: int) -> tuple[Any, ...]:
        """Return the fields of the attempt's :class:`~vlmbatch.stages.collecting.overlay.Kind`."""
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
            reading.system_fingerprint or "",
            reading.notes + verdict.notes,
            self._filled(verdict, output) if self.fields else (),
            outcome.endpoint,
            outcome.is_direct,
        )

    def _filled(self, verdict: Verdict, output: int) -> tuple[bool | None, ...]:
        """Return for each field whether the answer fills it, None where its output need not have it."""
        return tuple(is_filled(verdict.json, one.keys) if output in one.outputs else None for one in self.fields)


def _note_stranger(part: Part, outcome: Outcome, *, is_known: bool) -> None:
    """Count an attempt that is not of this run; the first few are kept."""
    part.strangers += 1
    if len(part.problems) < attempts.NAMED:
        part.problems.append(attempts.foreign(outcome, is_known=is_known))


def _flags(status: Status, reading: Reading, outcome: Outcome) -> int:
    flags = RETRY if _may_retry(status, reading.error or outcome.error) else 0
    if reading.image_tokens is not None:
        flags |= IMAGE_SEEN if reading.image_tokens else IMAGE_UNSEEN
    return flags


def _may_retry(status: Status, error: ErrorInfo | None) -> bool:
    """Tell whether sending the same request once more is worth it (a missing row is, too; it has no attempt)."""
    if status is Status.NETWORK_ERROR:
        return True
    return status is Status.HTTP_ERROR and error is not None and error["is_retryable"]


def _unanswered(outcome: Outcome, reading: Reading, status: Status) -> int:
    """Return how many sendings may have been billed although no usage came back.

    These are requests that had gone out whole before the connection broke, and an answer that tells no tokens.
    """
    broken = sum(one.get("sent") is True and one.get("status_code") is None for one in outcome.tries)
    return broken + (status in _BILLED and reading.usage["output_tokens"] is None)
