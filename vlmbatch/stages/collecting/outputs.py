"""The files that collect writes: each appears whole when everything went well, or not at all."""

from __future__ import annotations

import hashlib
import os
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from vlmbatch import jsonl, rundir
from vlmbatch.records import Event
from vlmbatch.stages.collecting.dataset import CARD, DATA_FILE, ParquetSink, card
from vlmbatch.stages.collecting.export import CsvSink, RowsSink, Sink, row_columns
from vlmbatch.stages.collecting.overlay import read_head
from vlmbatch.stages.collecting.summary import is_at_cap, is_worth_sending
from vlmbatch.stages.collecting.targets import summary_path
from vlmbatch.stages.folders import new_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import BinaryIO

    from vlmbatch.records import Review
    from vlmbatch.rundir import RunDir
    from vlmbatch.stages.collecting.compare import Side
    from vlmbatch.stages.collecting.export import Column
    from vlmbatch.stages.collecting.options import CollectOptions
    from vlmbatch.stages.collecting.splice import Line

_BLOCK_LINES: Final = 256
_EVENT_RECORDS: Final = 10_000

AnySink = TypeVar("AnySink", bound=Sink)


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
    with ExitStack() as stack:
        merged = MergedFile(stack.enter_context(_writer(options.write))) if options.write else None
        sinks, table = _open_sinks(stack, side, summary, options)
        if merged or sinks:
            _write_records(side, reviews, merged, sinks, on_event)
        if merged:
            summary["merged"] = {"file": os.path.basename(options.write or ""), **merged.close()}
    if options.retry_ids:
        _write_ids(options.retry_ids, side.run, lambda position: is_worth_sending(overlay, position))
    if options.cap_ids:
        _write_ids(options.cap_ids, side.run, lambda position: is_at_cap(overlay, position))
    if options.write:
        jsonl.write_atomic(summary_path(options.write), jsonl.dumps_pretty(summary))
    if table is not None and table.formulas and not options.csv_safe:
        return [f"{table.formulas:,} cell(s) of the CSV look like formulas to a spreadsheet; --csv-safe marks them"]
    return []


def _writer(path: str) -> AbstractContextManager[BinaryIO]:
    """Open a file that the user named; where a link stands there, it stays, and what it points to is replaced."""
    return jsonl.atomic_writer(os.path.realpath(path))


def _write_records(
    side: Side,
    reviews: Mapping[int, Review],
    merged: MergedFile | None,
    sinks: Sequence[Sink],
    on_event: Callable[[Event], None] | None,
) -> None:
    """Write the records in every shape that was asked for, in one pass."""
    total = len(side.read.ledger)
    for done, line in enumerate(side.lines(reviews)):
        if merged:
            merged.put(line)
        if sinks:
            record = jsonl.loads_exact(line.data)
            for sink in sinks:
                sink.put(line, record)
        if on_event and done % _EVENT_RECORDS == 0:
            on_event(Event("progress", "write", done=done, total=total))


def _open_sinks(
    stack: ExitStack, side: Side, summary: Mapping[str, Any], options: CollectOptions
) -> tuple[list[Sink], CsvSink | None]:
    """Open every shape that was asked for but merged.jsonl itself; the CSV once more, for what it has to tell."""
    run, ledger = side.run, side.read.ledger
    sinks: list[Sink] = []
    table = None
    columns = row_columns(run) if options.csv or options.parquet or options.hf else []
    if options.rows:
        names = (ledger.outputs[number] for number in ledger.output_of)
        sinks.append(stack.enter_context(_file_sink(options.rows, lambda file: RowsSink(file, run, names))))
    if options.csv:
        is_safe = options.csv_safe
        table = stack.enter_context(_file_sink(options.csv, lambda file: CsvSink(file, columns, is_safe=is_safe)))
        sinks.append(table)
    if options.parquet:
        sinks.append(stack.enter_context(_file_sink(options.parquet, lambda file: ParquetSink(file, columns))))
    if options.hf:
        sinks.append(stack.enter_context(_dataset_sink(options.hf, run, summary, columns)))
    return sinks, table


@contextmanager
def _file_sink(path: str, make: Callable[[BinaryIO], AnySink]) -> Iterator[AnySink]:
    """Open a file and what writes records into it."""
    with _writer(path) as file:
        sink = make(file)
        yield sink
        sink.close()


@contextmanager
def _dataset_sink(
    path: str, run: RunDir, summary: Mapping[str, Any], columns: Sequence[Column]
) -> Iterator[ParquetSink]:
    """Open a folder for a dataset hub: the records as Parquet, and a card."""
    with new_folder(path) as folder:
        data = os.path.join(folder, *DATA_FILE.split("/"))
        os.mkdir(os.path.dirname(data))
        with _file_sink(data, lambda file: ParquetSink(file, columns)) as sink:
            yield sink
        digest, size = jsonl.sha256_file(data)
        text = card(run, summary, digest, size)
        jsonl.write_atomic(os.path.join(folder, CARD), text.encode("utf-8", "backslashreplace"))


def _write_ids(path: str, run: RunDir, wants: Callable[[int], bool]) -> None:
    """Write the ids of the manifest lines that ``wants`` chooses, one a line."""
    with _writer(path) as file:
        for position, line in enumerate(jsonl.iter_lines(run.file(rundir.MANIFEST))):
            if wants(position):
                file.write(read_head(line.data, position)[0].encode() + b"\n")
