"""Bytes: how JSON leaves the program, how it is read back, and how files are written.

Three kinds of file have three writers. *Frozen* files are made in a hidden sibling and renamed (rundir/).
*Snapshots* are replaced whole (:func:`write_atomic`). *Append-only* files get whole lines (:class:`Appender`).
Nobody else opens a file of the run folder for writing.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from typing_extensions import Buffer

Fragment = orjson.Fragment
"""JSON that is spliced as it stands, never serialised a second time."""

BOM = b"\xef\xbb\xbf"
_LONG_NUMBER = re.compile(rb"\d{19}")
_CHUNK = 1 << 20


def dumps(value: Any, *, sort_keys: bool = False) -> bytes:
    """Serialise to compact JSON in UTF-8, one line, no newline at the end.

    A lone surrogate (which a model's answer may hold as an escape) has no UTF-8 form: such a value is written
    with escapes instead, so that reading it back gives the same string.

    Raises:
        TypeError: The value holds something that JSON has no form for.
    """
    option = orjson.OPT_SORT_KEYS if sort_keys else 0
    try:
        return orjson.dumps(value, option=option)
    except TypeError:
        return _dumps_slowly(value, sort_keys=sort_keys, separators=(",", ":"))


def _dumps_slowly(value: Any, **options: Any) -> bytes:
    """Serialise what orjson refuses (surrogates, integers beyond 64 bits); spliced JSON still stands as it is."""
    spliced: list[bytes] = []
    mark = secrets.token_hex()
    data = json.dumps(_marked(value, spliced, mark), allow_nan=False, **options).encode()
    for number, piece in enumerate(spliced):
        data = data.replace(f'"{mark}{number}"'.encode(), piece)
    return data


def _marked(value: Any, spliced: list[bytes], mark: str) -> Any:
    """Put spliced JSON, which the standard library does not know, aside, and a mark with its number in its place."""
    if isinstance(value, orjson.Fragment):
        spliced.append(orjson.dumps(value))
        return f"{mark}{len(spliced) - 1}"
    if isinstance(value, dict):
        return {k: _marked(v, spliced, mark) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_marked(v, spliced, mark) for v in value]
    return value


def dumps_canonical(value: Any) -> bytes:
    """Serialise to canonical JSON: sorted keys, no spaces, UTF-8 unescaped. This is what hashes are taken over."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def dumps_pretty(value: Any) -> bytes:
    """Serialise for people and programs alike: two spaces of indent, the given key order, a final newline.

    What orjson does not write is written as :func:`dumps` writes it: a name that is not UTF-8 must not hide an error.
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    except TypeError:
        return _dumps_slowly(value, indent=2) + b"\n"


def loads(data: bytes | memoryview | str) -> Any:
    """Parse JSON strictly (no NaN), but keep lone surrogate escapes, which are no damage.

    Raises:
        ValueError: The bytes are not one JSON value in UTF-8.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return _loads_slowly(data)


def loads_exact(data: bytes) -> Any:
    """Parse as :func:`loads` does, and keep whole numbers beyond 64 bits, which come out of that as floats.

    Raises:
        ValueError: As for :func:`loads`.
    """
    return _loads_slowly(data) if _LONG_NUMBER.search(data) else loads(data)


def _loads_slowly(data: bytes | memoryview | str) -> Any:
    raw = data if isinstance(data, str) else bytes(data)
    text = raw if isinstance(raw, str) else raw.decode("utf-8")
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def one_line(data: bytes) -> bytes:
    """Return valid JSON bytes as one line: raw line breaks can only stand between tokens, and become spaces."""
    if b"\n" in data or b"\r" in data:
        return data.replace(b"\r", b" ").replace(b"\n", b" ")
    return data


def sha256(data: bytes | memoryview) -> str:
    """Return the SHA-256 of some bytes in lower-case hex."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: str) -> tuple[str, int]:
    """Return the SHA-256 (lower-case hex) and the length of a file, read in pieces.

    Raises:
        OSError: The file cannot be read.
    """
    digest = hashlib.sha256()
    size = 0
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return digest.hexdigest(), size


def fsync_dir(path: str) -> None:
    """Make a rename or a new name in a folder durable; a file system that cannot is let be."""
    with contextlib.suppress(OSError):
        fd = os.open(path or ".", os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def finish(file: BinaryIO) -> None:
    """Flush a file to the disk and close it; an error names it."""
    with named(str(file.name)):
        file.flush()
        os.fsync(file.fileno())
        file.close()


class _Named(io.FileIO):
    """A file whose errors name it (or ``name``): the system's word for a full disk does not say which file it was."""

    def __init__(self, path: str, mode: str, name: str | None = None) -> None:
        self._told = name or path
        with named(self._told):
            super().__init__(path, mode)

    def write(self, data: Buffer) -> int:
        """Write; as :class:`io.FileIO` does, perhaps not all."""
        with named(self._told):
            return super().write(data)

    def sync(self) -> None:
        """Wait until the disk has what was written."""
        with named(self._told):
            os.fsync(self.fileno())


@contextlib.contextmanager
def named(path: str) -> Iterator[None]:
    """Let an error of the system that comes out of the block name a file or folder."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = path, None
        raise


@contextlib.contextmanager
def new_file(path: str) -> Iterator[BinaryIO]:
    """Create a file, which must not exist, for writing in pieces; the disk has it when the block ends.

    Raises:
        OSError: It could not be written; the error names it.
    """
    raw = _Named(path, "x")
    with io.BufferedWriter(raw, _CHUNK) as file:
        yield file
        file.flush()
        raw.sync()


def write_atomic(path: str, data: bytes, *, durable: bool = True) -> None:
    """Replace a file by new contents, so that a reader sees the old or the new and never half of one.

    Args:
        path: The file; its folder must exist.
        data: The whole contents.
        durable: Whether to wait until the disk has it (a progress snapshot need not).

    Raises:
        OSError: It could not be written; the error names the file, the old one stands and no temporary one is left.
    """
    with atomic_writer(path, durable=durable) as file:
        file.write(data)


@contextlib.contextmanager
def atomic_writer(path: str, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Open a file for writing in pieces; it takes the old one's place when the block ends without an exception.

    Args:
        path: The file; its folder must exist.
        durable: Whether to wait until the disk has it.

    Raises:
        OSError: As for :func:`write_atomic`.
    """
    folder = os.path.dirname(path)
    temporary = os.path.join(folder, f".{os.path.basename(path)}.{secrets.token_hex(4)}.tmp")
    try:
        raw = _Named(temporary, "x", path)
        with io.BufferedWriter(raw, _CHUNK) as file:
            yield file
            file.flush()
            if durable:
                raw.sync()
        with named(path):
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        fsync_dir(folder)


class Appender:
    """An append-only file of JSON lines: each append is one write of one whole line.

    A torn last line (a crash) is kept as it is and ended with a newline on opening, so that it can never merge
    with a line of ours.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = _Named(path, "a")
        self._dirty = False
        try:
            self._end_torn_line()
        except OSError:
            self._file.close()
            raise

    def _end_torn_line(self) -> None:
        if self._file.tell() == 0:
            fsync_dir(os.path.dirname(self.path))
            return
        with open(self.path, "rb", buffering=0) as file:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                self._file.write(b"\n")

    def append(self, line: bytes) -> None:
        """Append one line, given without its newline.

        Raises:
            OSError: It could not be written whole (disk full, say). What part was written, if any, stands as a
                torn line, which readers tolerate.
        """
        self.append_block(line + b"\n")

    def append_block(self, block: bytes) -> None:
        """Append several whole lines, newlines included, in one write.

        Raises:
            OSError: As for :meth:`append`.
        """
        view = memoryview(block)
        while view:
            written = self._file.write(view)
            view = view[written or 0 :]
        self._dirty = True

    def sync(self) -> None:
        """Wait until the disk has every line appended so far."""
        if self._dirty:
            self._dirty = False  # before: what is appended meanwhile is for the next time
            self._file.sync()

    def close(self) -> None:
        """Sync and close; harmless when closed already."""
        if not self._file.closed:
            try:
                self.sync()
            finally:
                self._file.close()

    def __enter__(self) -> Appender:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Line(NamedTuple):
    """One line of a file as read: 1-based number, byte offset, bytes without newline."""

    number: int
    offset: int
    data: bytes


def iter_lines(path: str, start: int = 0, end: int | None = None) -> Iterator[Line]:
    r"""Read a file line by line; only ``\n`` ends a line, a BOM at the start and a ``\r`` before it are dropped.

    Blank lines are left out (their numbers are counted). The offset is that of ``data`` in the file.

    Args:
        path: The file.
        start: Where to begin: the first byte of a line. Numbers count from there.
        end: Where to stop: behind the end of a line; None = the end of the file.

    Raises:
        OSError: The file cannot be read.
    """
    with io.BufferedReader(io.FileIO(path), _CHUNK) as file:
        offset = file.seek(start) if start else 0
        if not start and file.peek(len(BOM)).startswith(BOM):
            offset = len(file.read(len(BOM)))
        for number, raw in enumerate(file, start=1):
            if end is not None and offset >= end:
                return
            begin, offset = offset, offset + len(raw)
            data = raw.removesuffix(b"\n").removesuffix(b"\r")
            if data and not data.isspace():
                yield Line(number, begin, data)


def split_lines(path: str, size: int, step: int) -> list[tuple[int, int]]:
    """Return where a file can be cut into pieces of whole lines.

    Args:
        path: The file.
        size: How much of it counts.
        step: About how long a piece is to be, in bytes.

    Returns:
        Start and end of each piece, in order; an empty file gives none.
    """
    bounds = [0]
    with open(path, "rb") as file:
        while bounds[-1] + step < size:
            file.seek(bounds[-1] + step - 1)
            file.readline()
            bounds.append(min(file.tell(), size))
    return [pair for pair in zip(bounds, [*bounds[1:], size], strict=True) if pair[0] < pair[1]]


def count_lines(path: str, start: int, end: int) -> int:
    """Return how many lines end between two places of a file."""
    count = 0
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        while start < end and (chunk := file.read(min(_CHUNK, end - start))):
            count += chunk.count(b"\n")
            start += len(chunk)
    return count


def parse_object(data: bytes) -> dict[str, Any] | None:
    """Parse one line that should hold a JSON object; None where it does not (a torn or damaged line)."""
    try:
        value = loads(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
