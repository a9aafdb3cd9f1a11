"""Parquet and Arrow files, among them Hugging Face datasets saved to disk; pyarrow comes with the extra ``parquet``.

A row of such a table has no JSON of its own. It gets one by one rule per type: numbers, text, lists and structures as
JSON has them; times, dates and decimals as the text that Arrow writes for them (instants in UTC); maps as lists of
[key, value]; bytes as base64; NaN and infinities as null (counted in a warning). Of an image {bytes, path} only the
path stays: its bytes go into the request.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from typing import TYPE_CHECKING, Any

from vlmbatch import jsonl
from vlmbatch.errors import InputError
from vlmbatch.inputs.base import RowError
from vlmbatch.inputs.tables import Row
from vlmbatch.inputs.values import carried

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vlmbatch.inputs.base import SourceReport

_BATCH_ROWS = 64
_BUFFER = 1 << 20


def _load_pyarrow() -> Any:
    """Import pyarrow.

    Raises:
        InputError: It is not installed.
    """
    try:
        import pyarrow.parquet  # brings pyarrow along
    except ImportError:
        raise InputError(
            "Parquet and Arrow tables need pyarrow, which is not installed", hint="pip install 'vlmbatch[parquet]'"
        ) from None
    return pyarrow


class ArrowTable:
    """One table in one or more Parquet or Arrow files of the same columns.

    Args:
        files: Paths, in order.
        name: How messages name the table.
        kind: ``parquet`` or ``arrow``.
        report: Where warnings go.
    """

    def __init__(self, files: Sequence[bytes], name: str, kind: str, report: SourceReport) -> None:
        self._arrow = _load_pyarrow()
        self._files = files
        self._report = report
        self._not_finite: dict[str, int] = {}
        self.name = name
        self.kind = kind
        self.image_columns: frozenset[str] = frozenset()

    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns (see :class:`~vlmbatch.inputs.tables.Table`)."""
        names, _ = self._schema()
        if len(set(names)) < len(names):
            raise InputError(f"{self.name}: two columns have one name", hint="rename one of them")
        return names

    def declared_images(self) -> tuple[str, ...]:
        """Return the columns that the dataset itself declares as images."""
        _, metadata = self._schema()
        try:
            features = json.loads(metadata[b"huggingface"])["info"]["features"]
            return tuple(name for name, feature in features.items() if feature.get("_type") == "Image")
        except (KeyError, ValueError, TypeError, AttributeError):
            return ()

    def _schema(self) -> tuple[tuple[str, ...], dict[bytes, bytes]]:
        """Return the names of the columns, and what the file says besides."""
        with self._guard(self._files[0]):
            if self.kind == "parquet":
                with self._parquet(self._files[0]) as file:
                    schema = file.schema_arrow
            else:
                with self._arrow.memory_map(os.fsdecode(self._files[0])) as source:
                    schema = self._reader(source).schema
            return tuple(schema.names), schema.metadata or {}

    def count(self) -> int | None:
        """Return the number of rows where the files' own footers tell it (Parquet); see :class:`Table`."""
        if self.kind != "parquet":
            return None
        total = 0
        for path in self._files:
            with self._guard(path), self._parquet(path) as file:
                total += file.metadata.num_rows
        return total

    def rows(self) -> Iterator[Row]:
        """Yield the rows; ``line`` is the row's 1-based number."""
        number = 0
        for path in self._files:
            for batch in self._batches(path):
                with self._guard(path):
                    columns = [(name, self._plain(batch, name)) for name in batch.schema.names]
                for at in range(batch.num_rows):
                    number += 1
                    yield self._row(number, columns, at)
        for name, count in self._not_finite.items():
            self._report.warnings.append(
                f"{self.name}: {count:,} NaN or infinite value(s) of column {name!r} stand as null in row"
            )

    def _row(self, number: int, columns: Sequence[tuple[str, Any]], at: int) -> Row:
        fields: dict[str, Any] = {}
        for name, column in columns:
            try:
                fields[name] = self._clean(name, column[at].as_py())
            except (ValueError, LookupError, OverflowError) as error:
                return Row(number, b"", {}, _value_fault(name, error))
        row = {name: carried(value, in_image_column=name in self.image_columns) for name, value in fields.items()}
        return Row(number, jsonl.dumps(row), fields)

    def _clean(self, name: str, value: Any) -> Any:
        """Return a value without tuples, NaN and infinities."""
        if isinstance(value, float) and not math.isfinite(value):
            self._not_finite[name] = self._not_finite.get(name, 0) + 1
            return None
        if isinstance(value, dict):
            return {key: self._clean(name, inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._clean(name, inner) for inner in value]
        return value

    # --- Arrow's side -----------------------------------------------------------------------------------------

    def _batches(self, path: bytes) -> Iterator[Any]:
        with self._guard(path):
            if self.kind == "parquet":
                with self._parquet(path) as file:
                    yield from file.iter_batches(batch_size=_BATCH_ROWS, use_threads=False)
                return
            with self._arrow.memory_map(os.fsdecode(path)) as source:
                reader = self._reader(source)
                count = getattr(reader, "num_record_batches", None)
                for batch in reader if count is None else map(reader.get_batch, range(count)):
                    batch.validate(full=True)  # mapped as it stands: a wrong offset would read foreign memory
                    yield batch

    def _parquet(self, path: bytes) -> Any:
        return self._arrow.parquet.ParquetFile(os.fsdecode(path), buffer_size=_BUFFER)

    def _reader(self, source: Any) -> Any:
        """Return a reader of the stream format, which datasets write, or of the file format, by its magic."""
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
        return self._arrow.ipc.open_file(source) if is_file else self._arrow.ipc.open_stream(source)

    def _guard(self, path: bytes) -> _Guard:
        return _Guard(self._arrow, self.kind, os.fsdecode(os.path.basename(path)))

    def _plain(self, batch: Any, name: str) -> Any:
        """Return a column in types that Python and JSON both know."""
        column = batch.column(batch.schema.get_field_index(name))
        try:
            for target in (self._type(column.type, in_utc=True), self._type(column.type, in_utc=False)):
                if column.type != target:
                    column = column.cast(target)
        except self._arrow.ArrowException:
            raise InputError(
                f"{self.name}: column {name!r} is of type {column.type}, which has no JSON form here",
                hint="drop the column, or cast it to text",
            ) from None
        return column

    def _type(self, kind: Any, *, in_utc: bool) -> Any:
        """Return the type to cast to: first instants to UTC, so that no machine's time zones matter, then to text."""
        arrow, types = self._arrow, self._arrow.types
        if isinstance(kind, arrow.BaseExtensionType):
            return self._type(kind.storage_type, in_utc=in_utc)
        if types.is_dictionary(kind):
            return self._type(kind.value_type, in_utc=in_utc)
        if in_utc and types.is_timestamp(kind) and kind.tz is not None:
            return arrow.timestamp(kind.unit, "UTC")
        if types.is_temporal(kind) or types.is_decimal(kind):
            return kind if in_utc else arrow.string()
        if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
            return arrow.large_list(self._type(kind.value_type, in_utc=in_utc))
        if types.is_struct(kind):
            return arrow.struct([(inner.name, self._type(inner.type, in_utc=in_utc)) for inner in kind.fields])
        if types.is_map(kind):
            return arrow.map_(kind.key_type, self._type(kind.item_type, in_utc=in_utc))
        return kind

    # --- the table as a file ----------------------------------------------------------------------------------

    def sha256(self) -> str:
        """Return the digest of the file, or that of the ``sha256sum`` lines of several."""
        digests = [jsonl.sha256_file(os.fsdecode(path))[0] for path in self._files]
        return (
            digests[0]
            if len(digests) == 1
            else digest_of(zip(digests, map(os.path.basename, self._files), strict=True))
        )

    def close(self) -> None:
        """Do nothing: files are open only while they are read."""


def _value_fault(name: str, error: Exception) -> RowError:
    if isinstance(error, UnicodeDecodeError):
        return RowError("not_utf8", f"column {name!r} is not UTF-8 at byte {error.start + 1}")
    return RowError("bad_value", f"column {name!r} cannot be read: {error}")


def digest_of(files: Any) -> str:
    """Return one digest for several files, given as (digest, name): that of their ``sha256sum`` lines."""
    digest = hashlib.sha256()
    for sha256, name in files:
        digest.update(sha256.encode() + b"  " + name + b"\n")
    return digest.hexdigest()


class _Guard:
    """Turns what pyarrow raises about a file into an InputError that names it."""

    def __init__(self, arrow: Any, kind: str, name: str) -> None:
        self._errors = (arrow.ArrowException, OSError, ValueError, LookupError)
        self._kind = kind
        self._name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, UnicodeEncodeError):
            raise InputError(f"{self._name}: pyarrow opens no name that is not UTF-8", hint="rename the file") from None
        if isinstance(error, self._errors):
            what = "a whole Parquet file" if self._kind == "parquet" else "a whole Arrow file"
            first = str(error).strip().splitlines() or [type(error).__name__]
            raise InputError(
                f"{self._name}: not {what} ({first[0].rstrip('.')})", hint="copy it again: it may have been cut short"
            ) from None
