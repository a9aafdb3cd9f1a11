"""Parquet, and a folder that a dataset hub can show: the records as a typed table and a card beside it.

The card states what the run knows and nothing else: no licence, no language, no purpose is guessed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from vlmbatch.errors import InputError
from vlmbatch.stages.collecting.export import FIRST, IMAGES, OURS, cell, members, our_cells

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import BinaryIO

    from vlmbatch.rundir import RunDir
    from vlmbatch.stages.collecting.export import Column
    from vlmbatch.stages.collecting.splice import Line

DATA_FILE: Final = "data/records.parquet"
CARD: Final = "README.md"
_BATCH_ROWS: Final = 4096
_SIZES: Final = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))


class ParquetSink:
    """A Parquet file, one row a record; JSON values stand as JSON text, images as lists of paths and hashes.

    Raises:
        InputError: pyarrow is not installed.
    """

    def __init__(self, file: BinaryIO, columns: Sequence[Column]) -> None:
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError:
            raise InputError(
                "Parquet needs pyarrow, which is not installed", hint="pip install 'vlmbatch[parquet]'"
            ) from None
        kinds = {"str": pa.string(), "json": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
        fields = [
            *((name, pa.string()) for name in FIRST),
            *((column.name, kinds[column.kind]) for column in columns),
            *((name, pa.list_(pa.string())) for name in IMAGES),
            *((name, kinds[kind]) for name, kind in OURS.items()),
        ]
        self._pa = pa
        self._schema = pa.schema(fields)
        self._writer = pq.ParquetWriter(file, self._schema, compression="zstd")
        self._columns = columns
        self._rows: list[dict[str, Any]] = []

    def put(self, line: Line, record: dict[str, Any]) -> None:
        """Take one record."""
        row = dict(members(line.row)) if self._columns else {}
        values = {column.name: cell(row.get(column.field), column.kind) for column in self._columns}
        values["custom_id"] = record["custom_id"]
        values["image_path"] = [image["path"] for image in record["images"]]
        values["image_sha256"] = [image["sha256"] for image in record["images"]]
        self._rows.append({name: _storable(value) for name, value in (values | our_cells(record)).items()})
        if len(self._rows) >= _BATCH_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(self._pa.Table.from_pylist(self._rows, schema=self._schema))
            self._rows = []

    def close(self) -> None:
        """Write what is held back, and the footer."""
        self._flush()
        self._writer.close()


def _storable(value: Any) -> Any:
    """Return text in a form that UTF-8 has: a lone surrogate stands as a backslash escape."""
    if isinstance(value, list):
        return [_storable(one) for one in value]
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-8", "backslashreplace").decode()
    return value


def card(run: RunDir, summary: Mapping[str, Any], sha256: str, size: int) -> str:
    """Return the card of a dataset: a YAML head that hubs read, and what the run knows of itself."""
    info, requests = run.info, summary["requests"]
    category = next((name for bound, name in _SIZES if requests < bound), "n>1M")
    made = "These are REHEARSED answers: no model was asked." if summary["rehearsal"] else ""
    counts = "\n".join(f"| {status} | {count} |" for status, count in summary["counts"].items())
    models = ", ".join(f"{_code(name)} ({count})" for name, count in summary["models"].items()) or "none told"
    return f"""---
configs:
- config_name: default
  data_files: {DATA_FILE}
size_categories:
- {category}
---

# Records of a vision-language run

{made or "One row for each request of the run, in input order; rows without a usable answer are kept and say why."}

| what | as the run has it |
| --- | --- |
| model asked | {_code(info["model"])} |
| models that answered | {models} |
| wire format | {_code(info["provider"])} |
| requests | {requests} |
| built | {info.get("created_at")} |
| run fingerprint (SHA-256) | `{summary["run"]["fingerprint"]}` |
| made by | {info["tool"]["name"]} {info["tool"]["version"]} |
| {DATA_FILE} | {size} bytes, SHA-256 `{sha256}` |

## Status of the rows

| status | rows |
| --- | --- |
{counts}

## Prompt

{_prompt(run)}

## What the run does not know

Licence and origin of the images, the language of the answers, and what the data may be used for.
Nothing about them was guessed; whoever publishes this folder has to add it.
"""


def _code(text: object) -> str:
    """Return text as a code span that nothing in it can end."""
    plain = " ".join(str(text).split()).replace("|", "\\|")
    ticks = "`" * (_longest_run(plain) + 1)
    space = " " if plain.startswith("`") or plain.endswith("`") else ""
    return f"{ticks}{space}{plain}{space}{ticks}"


def _prompt(run: RunDir) -> str:
    ref = run.info.get("prompt")
    if not ref:
        return "Every row has its own; there is no prompt file."
    with open(run.file(ref["file"]), "rb") as file:
        text = file.read().decode("utf-8", "backslashreplace").rstrip("\n")
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"SHA-256 `{ref['sha256']}`\n\n{fence}text\n{text}\n{fence}"


def _longest_run(text: str) -> int:
    longest = here = 0
    for char in text:
        here = here + 1 if char == "`" else 0
        longest = max(longest, here)
    return longest
