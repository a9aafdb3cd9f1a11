"""The files that collect writes: each appears whole when everything went well, or not at all."""

from __future__ import annotations

import hashlib
import os
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

from vlmbatch import jsonl, rundir
from vlmbatch.records import Event
from vlmbatch.stages.collecting.dataset import CARD, DATA_FILE, ParquetSink, building, card
from vlmbatch.stages.collecting.export import CsvSink, RowsSink, row_columns
from vlmbatch.stages.collecting.overlay import read_head
from vlmbatch.stages.collecting.summary import is_at_cap, is_worth_sending
from vlmbatch.stages.collecting.targets import summary_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import BinaryIO

    from vlmbatch.records import Review
    from vlmbatch.rundir import RunDir
    from vlmbatch.stages.collecting.compare import Side
    from vlmbatch.stages.collecting.export import Column, Sink
    from vlmbatch.stages.collecting.options import CollectOptions
    from vlmbatch.stages.collecting.splice import Line

_BLOCK_LINES: Final = 256
_EVENT_RECORDS: Final = 10_000


class MergedFile:
    """merged.jsonl in the making: lines are gathered, hashed and written in blocks."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._block: list[bytes] = []
        self._bytes = 0
        self._records = 0

    def put(self, line: Line) -> None:
        """Take one record."""
        self._block.append(line.data)
        if len(self._block) >= _BLOCK_LINES:
            self._flush()

    def _flush(self) -> None:
        self._block.append(b"")
        data = b"\n".join(self._block)
        self._records += len(self._block) - 1
        self._block = []
        self._digest.update(data)
        self._bytes += self._file.write(data)

    def close(self) -> dict[str, Any]:
        """Write what is still held back; return ``{sha256, bytes, records}``."""
        self._flush()
        return {"sha256": self._digest.hexdigest(), "bytes": self._bytes, "records": self._records}


def write(
    side: Side,
    reviews: Mapping[int, Review],
    summary: dict[str, Any],
    options: CollectOptions,
    on_event: Callable[[Event], None] | None,
) -> list[str]:
    """Write everything that was asked for, the summary last; return what there is to say about it.

    Args:
        side: The run, read.
        reviews: What reviewers said, by manifest line.
        summary: summary.json; what is known of merged.jsonl is put into it.
        options: What was asked for.
        on_event: Called with progress in records.

    Raises:
        OSError: A file could not be written; the old one stands.
    """
    overlay = side.read.overlay
    warnings = _write_records(side, reviews, summary, options, on_event)
    if options.retry_ids:
        write_ids(options.retry_ids, side.run, lambda position: is_worth_sending(overlay, position))
    if options.cap_ids:
        write_ids(options.cap_ids, side.run, lambda position: is_at_cap(overlay, position))
    if options.write:
        jsonl.write_atomic(summary_path(options.write), jsonl.dumps_pretty(summary))
    return warnings


def _write_records(
    side: Side,
    reviews: Mapping[int, Review],
    summary: dict[str, Any],
    options: CollectOptions,
    on_event: Callable[[Event], None] | None,
) -> list[str]:
    """Write the records in every shape that was asked for, in one pass."""
    run = side.run
    with ExitStack() as stack:
        merged = MergedFile(stack.enter_context(jsonl.atomic_writer(options.write))) if options.write else None
        sinks, table = _open_sinks(stack, run, summary, options)
        if merged or sinks:
            total = len(side.read.ledger)
            for done, line in enumerate(side.lines(reviews)):
                if merged:
                    merged.put(line)
                if sinks:
                    record = jsonl.loads(line.data)
                    for sink in sinks:
                        sink.put(line, record)
                if on_event and done % _EVENT_RECORDS == 0:
                    on_event(Event("progress", "write", done=done, total=total))
        if merged:
            summary["merged"] = {"file": os.path.basename(options.write or ""), **merged.close()}
    if table is not None and table.formulas and not options.csv_safe:
        return [f"{table.formulas:,} cell(s) of the CSV look like formulas to a spreadsheet; --csv-safe marks them"]
    return []


def _open_sinks(
    stack: ExitStack, run: RunDir, summary: Mapping[str, Any], options: CollectOptions
) -> tuple[list[Sink], CsvSink | None]:
    """Open every shape that was asked for but merged.jsonl itself; the CSV once more, for what it has to tell."""
    sinks: list[Sink] = []
    table = None
    columns = row_columns(run) if options.csv or options.parquet or options.hf else []
    if options.rows:
        sinks.append(stack.enter_context(rows_sink(options.rows, run)))
    if options.csv:
        table = stack.enter_context(csv_sink(options.csv, columns, is_safe=options.csv_safe))
        sinks.append(table)
    if options.parquet:
        sinks.append(stack.enter_context(parquet_sink(options.parquet, columns)))
    if options.hf:
        sinks.append(stack.enter_context(dataset_sink(options.hf, run, summary, columns)))
    return sinks, table


@contextmanager
def rows_sink(path: str, run: RunDir) -> Iterator[RowsSink]:
    """Open a file of input rows with their answers."""
    with jsonl.atomic_writer(path) as file:
        sink = RowsSink(file, run)
        yield sink
        sink.close()


@contextmanager
def csv_sink(path: str, columns: Sequence[Column], *, is_safe: bool) -> Iterator[CsvSink]:
    """Open a CSV file."""
    with jsonl.atomic_writer(path) as file:
        sink = CsvSink(file, columns, is_safe=is_safe)
        yield sink
        sink.close()


@contextmanager
def parquet_sink(path: str, columns: Sequence[Column]) -> Iterator[ParquetSink]:
    """Open a Parquet file."""
    with jsonl.atomic_writer(path) as file:
        sink = ParquetSink(file, columns)
        yield sink
        sink.close()


@contextmanager
def dataset_sink(
    path: str, run: RunDir, summary: Mapping[str, Any], columns: Sequence[Column]
) -> Iterator[ParquetSink]:
    """Open a folder for a dataset hub: the records as Parquet, and a card."""
    with building(path) as folder:
        data = os.path.join(folder, *DATA_FILE.split("/"))
        os.mkdir(os.path.dirname(data))
        with parquet_sink(data, columns) as sink:
            yield sink
        digest, size = jsonl.sha256_file(data)
        text = card(run, summary, digest, size)
        jsonl.write_atomic(os.path.join(folder, CARD), text.encode("utf-8", "backslashreplace"))


def write_ids(path: str, run: RunDir, wants: Callable[[int], bool]) -> int:
    """Write the ids of the manifest lines that ``wants`` chooses, one a line; return how many."""
    count = 0
    with jsonl.atomic_writer(path) as file:
        for position, line in enumerate(jsonl.iter_lines(run.file(rundir.MANIFEST))):
            if wants(position):
                file.write(read_head(line.data, position)[0].encode() + b"\n")
                count += 1
    return count
