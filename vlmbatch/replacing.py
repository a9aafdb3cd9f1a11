"""Whether a file may be replaced: an earlier output of the same kind may, nothing else of the user's.

Whoever writes to a place that the user named asks here first, whatever the command: a slip of the shell (``--write
imgs/coins.png``) must not cost a picture. An earlier output is known by its content, whatever it is called and of
whatever run it is; an empty file is free.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from vlmbatch import jsonl
from vlmbatch.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import BinaryIO

RECORDS: Final = "records"
"""merged.jsonl."""
SUMMARY: Final = "summary"
"""summary.json."""
ROWS: Final = "rows"
"""Input rows with their answers."""
CSV: Final = "csv"
PARQUET: Final = "parquet"
IDS: Final = "ids"
"""A list of custom_ids."""
LINES: Final = "lines"
"""Frozen lines that are still to be sent."""
PAGE: Final = "page"
"""report.html."""
STATE: Final = "state"
"""A progress file."""

HINT: Final = "name another file, or move this one away first"
_FOREIGN: Final = "exists and is not something vlmbatch wrote there before"
_HEAD_BYTES: Final = 1 << 16
_PARQUET_TAIL_BYTES: Final = 8
_ID: Final = rb"[A-Za-z0-9_-]{1,48}-[0-9]{6,}-[0-9a-f]{8}"


def why_not(path: str, kind: str, fields: Collection[str] = ()) -> str | None:
    """Return why what stands at a path may not be replaced by an output, None where it may (nothing stands there, say).

    Args:
        path: Where the output is to go.
        kind: What it is, one of the constants above.
        fields: For rows: the fields that each line of such an output has.
    """
    try:
        if not os.path.getsize(path):
            return None
        with open(path, "rb") as file:
            is_ours = _has_fields(file, fields) if kind == ROWS else _KNOWN[kind](file)
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"exists and cannot be read ({error.strerror})"
    return None if is_ours else _FOREIGN


def check(label: str, path: str, kind: str) -> None:
    """Refuse to replace what is not ours.

    Args:
        label: How messages name the output: flag and path.
        path: Where it is to go.
        kind: What it is.

    Raises:
        InputError: Something else stands there.
    """
    why = why_not(path, kind)
    if why:
        raise InputError(f"{label}: {why}", hint=HINT)


# --- what each kind is known by --------------------------------------------------------------------------------------


def _begins(pattern: bytes) -> Callable[[BinaryIO], bool]:
    """Return a test for files whose first bytes are of a shape."""
    shape = re.compile(pattern, re.DOTALL)
    return lambda file: shape.match(file.read(_HEAD_BYTES)) is not None


def _has_fields(file: BinaryIO, fields: Collection[str]) -> bool:
    """Tell whether the first line is a row of the input with these fields of ours."""
    row = jsonl.parse_object(file.readline())
    return row is not None and row.keys() >= set(fields)


def _is_state(file: BinaryIO) -> bool:
    """Tell whether this is a progress file, as the contract has its fields."""
    state = jsonl.parse_object(file.read(_HEAD_BYTES))
    return state is not None and all(type(state.get(name)) is int for name in ("total", "completed"))


def _is_table(file: BinaryIO) -> bool:
    """Tell whether a Parquet file has our columns, whose names stand as they are in its footer.

    Such a file may well be the user's own table, so its magic bytes are not enough.
    """
    end = file.seek(0, os.SEEK_END)
    file.seek(max(end - _PARQUET_TAIL_BYTES, 0))
    tail = file.read()
    if tail[4:] != b"PAR1":
        return False
    file.seek(max(end - _PARQUET_TAIL_BYTES - int.from_bytes(tail[:4], "little"), 0))
    footer = file.read()
    return all(name in footer for name in (b"custom_id", b"image_sha256", b"finish_reason", b"latency_s"))


_KNOWN: Final[dict[str, Callable[[BinaryIO], bool]]] = {
    RECORDS: _begins(rb'\{"custom_id":"' + _ID + rb'","status":"'),
    SUMMARY: _begins(rb'\{\s*"schema":\s*"vlmbatch\.summary/'),
    CSV: _begins(rb"custom_id,.*?image_path,image_sha256,status,reason,text,"),
    PARQUET: _is_table,
    IDS: _begins(rb"(?:" + _ID + rb"\r?\n)*(?:" + _ID + rb")?\Z|(?:" + _ID + rb"\n){100}"),
    LINES: _begins(rb'\{"(?:custom_id|key)":"' + _ID + rb'","(?:method|params|request)":'),
    PAGE: _begins(rb"<!doctype html>.*? vlmbatch report</title>"),
    STATE: _is_state,
}
