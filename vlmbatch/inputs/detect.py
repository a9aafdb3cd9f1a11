"""What a path on the command line is: a folder, one file, or a table of some kind; by content first, then by name."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vlmbatch.errors import InputError, Problem
from vlmbatch.inputs.names import readable
from vlmbatch.inputs.textfile import TextFile

if TYPE_CHECKING:
    from collections.abc import Sequence

_SUFFIXES = {
    "jsonl": "jsonl",
    "ndjson": "jsonl",
    "json": "json",
    "csv": "csv",
    "tsv": "tsv",
    "tab": "tsv",
    "parquet": "parquet",
    "pq": "parquet",
    "arrow": "arrow",
}
"""Kinds of tables by the suffix of the name."""

_MAGIC = {b"PAR1": "parquet", b"ARROW1": "arrow"}
_PACKED = frozenset({"gz", "bz2", "xz", "zst", "zip"})
_METADATA = (b"metadata.jsonl", b"metadata.csv", b"metadata.parquet")
FILE_NAME = "file_name"
"""The column of an ImageFolder's metadata that names the image."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a path is.

    Attributes:
        kind: ``folder``, ``file``, or the kind of a table.
        files: The files to read, in order.
        name: How messages name it.
        base: The folder in which relative image paths start, where nothing else is said.
        is_image_folder: Whether it is the metadata of an ImageFolder.
    """

    kind: str
    files: tuple[bytes, ...]
    name: str
    base: bytes
    is_image_folder: bool = False

    @property
    def is_table(self) -> bool:
        """Whether it has rows."""
        return self.kind not in {"folder", "file"}


def look(paths: Sequence[bytes]) -> list[Found]:
    """Find out what each path is; a saved dataset or an ImageFolder may be several tables.

    Raises:
        InputError: Paths that do not exist or cannot be inputs, all of them listed.
    """
    found: list[Found] = []
    problems: list[Problem] = []
    for path in paths:
        try:
            found += _look(path)
        except ValueError:
            problems.append(Problem("no_source", "a name with a NUL byte", readable(path)[0]))
        except OSError as error:
            problems.append(Problem("no_source", error.strerror or str(error), readable(path)[0]))
        except _NoSource as error:
            problems.append(Problem("no_source", str(error), readable(path)[0]))
    if problems:
        raise InputError(
            f"{len(problems)} source(s) cannot be read", hint="check the paths; nothing was written", problems=problems
        )
    return found


class _NoSource(Exception):  # noqa: N818  (never leaves this module)
    """Why a path is no input."""


def _look(path: bytes) -> list[Found]:
    if b"://" in path and not os.path.exists(path):
        raise _NoSource("a URL, and nothing is fetched: download it first")
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        return _saved_dataset(path) or _image_folder(path) or [Found("folder", (path,), _base_name(path), path)]
    if not stat.S_ISREG(mode):
        raise _NoSource("a special file (pipe, socket or device); only - reads from a pipe")
    kind = _kind(path)
    return [Found(kind, (path,), _base_name(path), os.path.dirname(path) or b".")]


def _kind(path: bytes) -> str:
    with open(path, "rb") as file:
        head = file.read(8)
    for magic, kind in _MAGIC.items():
        if head.startswith(magic):
            return kind
    stem, _, suffix = _base_name(path).lower().rpartition(".")
    if suffix in _PACKED and stem.rpartition(".")[2] in _SUFFIXES:
        raise _NoSource("a packed table; unpack it first")
    return _SUFFIXES.get(suffix, "file")


def _base_name(path: bytes) -> str:
    return readable(os.path.basename(os.path.abspath(path)))[0]


def tables_in(folder: bytes) -> list[Found]:
    """Return the tables that lie in a folder or in its ``data`` folder, as dataset repositories have them.

    They are read in the order of their names, and paths in them start in the folder. An empty list = there are none, or
    tables of several kinds, of which no rule says which one is meant. A lone ``.json`` is as a rule no data.
    """
    names = [
        os.path.join(place, name)
        for place in (folder, os.path.join(folder, b"data"))
        if os.path.isdir(place)
        for name in sorted(os.listdir(place))
        if not name.startswith(b".") and os.path.isfile(os.path.join(place, name))
    ]
    kinds = {name: _SUFFIXES.get(os.path.splitext(name)[1][1:].decode("ascii", "replace").lower()) for name in names}
    tables = [name for name in names if kinds[name] not in {None, "json"}]
    if len({kinds[name] for name in tables}) != 1:
        return []
    return [Found(kinds[name] or "", (name,), _base_name(name), folder) for name in tables]


# --- Hugging Face datasets saved to disk --------------------------------------------------------------------


def _saved_dataset(folder: bytes) -> list[Found]:
    """Return the table of a saved dataset, or one table for each split, in the order of its list of splits."""
    splits = _json_object(os.path.join(folder, b"dataset_dict.json")).get("splits")
    if isinstance(splits, list) and all(isinstance(split, str) for split in splits):
        tables = []
        for split in splits:
            one = _saved_split(os.path.join(folder, _encoded(split)), f"{_base_name(folder)}/{split}")
            if not one:
                raise _NoSource(f"a saved dataset whose split {split!r} is missing")
            tables += one
        return tables
    return _saved_split(folder, _base_name(folder))


def _saved_split(folder: bytes, name: str) -> list[Found]:
    if not os.path.isfile(os.path.join(folder, b"dataset_info.json")):
        return []
    state = _json_object(os.path.join(folder, b"state.json"))
    if state.get("_indices_data_files"):
        raise _NoSource("a saved dataset with an index mapping; save it again after flatten_indices()")
    try:
        listed: Any = state["_data_files"]
        files = tuple(os.path.join(folder, os.path.basename(_encoded(one["filename"]))) for one in listed)
    except (KeyError, TypeError, AttributeError):
        return []
    if not files:
        return []
    return [Found("arrow", files, name, folder)]


def _encoded(name: str) -> bytes:
    """Return a name that a dataset's own JSON tells as bytes; half a character makes a name that is not there."""
    return name.encode("utf-8", "surrogatepass")


def _json_object(path: bytes) -> dict[str, object]:
    try:
        with open(path, "rb") as file:
            value = json.load(file)
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


# --- ImageFolder: pictures with a metadata file beside them ---------------------------------------------------


def _image_folder(folder: bytes) -> list[Found]:
    """Return the metadata tables of an ImageFolder: its own, or those of its splits, one folder down."""
    own = _metadata(folder, _base_name(folder))
    if own:
        return [own]
    try:
        inner = sorted(entry.path for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []  # the scan says so
    tables = [_metadata(path, f"{_base_name(folder)}/{_base_name(path)}") for path in inner]
    return [table for table in tables if table is not None]


def _metadata(folder: bytes, name: str) -> Found | None:
    for metadata in _METADATA:
        path = os.path.join(folder, metadata)
        if os.path.isfile(path):
            kind = _SUFFIXES[metadata.rpartition(b".")[2].decode()]
            if kind == "parquet" or _names_files(path, kind):
                return Found(kind, (path,), f"{name}/{metadata.decode()}", folder, is_image_folder=True)
    return None


def _names_files(path: bytes, kind: str) -> bool:
    """Tell whether a metadata table has the column that makes a folder an ImageFolder."""
    from vlmbatch.inputs.tables import Delimited, JsonLines

    with open(path, "rb") as stream:
        file = TextFile(stream, _base_name(path))
        try:
            if kind == "csv":
                return FILE_NAME in Delimited(file, kind).columns()
            first = next(JsonLines(file).rows(), None)
        except InputError:
            return False
        return first is not None and (first.fault is not None or FILE_NAME in first.fields)
