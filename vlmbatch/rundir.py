"""The run folder: its names, how it comes to be, how it is opened, checked and read.

A run folder exists whole or not at all: :class:`Draft` is a hidden sibling that is renamed into place at the end.
Nothing here writes into a finished folder but the lock files; results and snapshots go through jsonl.py.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import secrets
import shutil
from array import array
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import itemgetter
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast

from vlmbatch import jsonl
from vlmbatch.errors import InputError, IntegrityError, Problem, SchemaVersionError
from vlmbatch.records import RUN_SCHEMA, Entry, Event, ManifestHead, RunInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from vlmbatch.records import FileRef

RUN_JSON = "run.json"
MANIFEST = "manifest.jsonl"
REJECTED = "rejected.jsonl"
INPUTS = "inputs"
SHARDS = "shards"
SHA256SUMS = "SHA256SUMS"
ESTIMATES = "estimates.jsonl"
RESULTS = "results"
BATCHES = "batches.jsonl"
PROGRESS = "progress.json"
MERGED = "merged.jsonl"
SUMMARY = "summary.json"
REPORT = "report.html"
REVIEWS = "reviews.jsonl"
SEALED = "SEALED.sha256"
REDACTED = "REDACTED.json"
VERIFY = "verify.py"
LOCKS = ".locks"

_BUILDING = ".building"
REHEARSAL_PREFIX = "rehearsal-"
_ID_KEY = b'{"custom_id":"'
_ROW_KEY = b',"row":'
_BUFFER = 1 << 20
_always_there = itemgetter(
    "custom_id",
    "shard",
    "offset",
    "length",
    "body_offset",
    "body_length",
    "inner_sha256",
    "line_sha256",
    "images",
)
"""The fields that no manifest line lacks, in the order of :class:`~vlmbatch.records.Entry`."""

_TAIL = 8
"""Hex digits of the image's hash at the end of a custom_id."""

_HAPPENED = ("created_at", "host")
_HEX64 = re.compile(r"[0-9a-f]{64}")


class Lock:
    """A lock on one part of a run: two runs on the same part of one folder refuse each other.

    It is held by the operating system (flock), so a killed process leaves none behind. A shared lock refuses only
    those who want the part for themselves.
    """

    def __init__(self, folder: str, part: str, *, shared: bool = False) -> None:
        os.makedirs(os.path.join(folder, LOCKS), exist_ok=True)
        self._path = os.path.join(folder, LOCKS, f"{part}.lock")
        self._file: IO[bytes] | None = None
        self._shared = shared
        self.part = part

    def __enter__(self) -> Lock:
        import fcntl

        self._file = open(self._path, "ab")
        try:
            fcntl.flock(self._file, (fcntl.LOCK_SH if self._shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise InputError(
                f"another process is working on this run (part {self.part!r})",
                hint="wait for it, or stop it; the same command then goes on where it ended",
            ) from None
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()


class IdIndex:
    """Which custom_ids a manifest holds, and where: 8 bytes a request, exact.

    A custom_id is the run's stem, the input index and 8 hex digits of the image's hash; so an array of those digits
    by index tells membership without keeping a string.
    """

    def __init__(self, stem: str) -> None:
        self._head = f"{stem}-"
        self._position = array("i")
        self._tail = array("I")
        self.count = 0
        self.unique = 0

    def add(self, custom_id: str) -> None:
        """Append the next manifest line's id."""
        index, tail = self._split(custom_id)
        if index < 0:
            raise IntegrityError(f"manifest.jsonl: {custom_id!r} is not an id of this run")
        if index == len(self._position):  # as nearly always: ids count up with the manifest's lines
            self._position.append(self.count)
            self._tail.append(tail)
            self.unique += 1
        else:
            self._put(index, tail)
        self.count += 1

    def _put(self, index: int, tail: int) -> None:
        gap = index + 1 - len(self._position)
        if gap > 0:
            self._position.extend(array("i", [-1]) * gap)
            self._tail.extend(array("I", [0]) * gap)
        self.unique += self._position[index] < 0
        self._position[index] = self.count
        self._tail[index] = tail

    def add_lines(self, lines: Iterable[bytes]) -> None:
        """Append whole manifest lines, parsing nothing of them but the id, which stands first and holds no quote.

        Raises:
            IntegrityError: A line is damaged, or its id is not of this run.
        """
        head = _ID_KEY + self._head.encode()
        digits, start = len(head), len(_ID_KEY)
        position, tail = self._position, self._tail
        for raw in lines:
            end = raw.find(b'"', start)
            number = raw[digits : end - 9]
            # in order, without gaps, as build writes them; whatever else there is takes the careful way
            if raw.startswith(head) and number.isdigit() and int(number) == len(position):
                try:
                    tail.append(int(raw[end - 8 : end], 16))
                except ValueError:
                    raise IntegrityError(f"{MANIFEST}: {raw[start:end]!r} is not an id of this run") from None
                position.append(self.count)
                self.count += 1
                self.unique += 1
            else:
                self.add(parse_entry(raw.rstrip(b"\r\n"), self.count).custom_id)

    def _split(self, custom_id: str) -> tuple[int, int]:
        head = self._head
        index, tail = custom_id[len(head) : -_TAIL - 1], custom_id[-_TAIL:]
        if not custom_id.startswith(head) or custom_id[-_TAIL - 1 : -_TAIL] != "-":
            return -1, 0
        if not index.isascii() or not index.isdigit() or not tail.isalnum():
            return -1, 0
        try:
            return int(index), int(tail, 16)
        except ValueError:
            return -1, 0

    def position(self, custom_id: object) -> int:
        """Return the 0-based manifest line of an id, -1 where the manifest has no such id."""
        if not isinstance(custom_id, str):
            return -1
        index, tail = self._split(custom_id)
        if index < 0 or index >= len(self._position) or self._tail[index] != tail:
            return -1
        return self._position[index]


@dataclass(frozen=True, slots=True)
class RunDir:
    """A finished run folder, opened for reading.

    Attributes:
        path: The folder.
        info: run.json.
        run_json: The bytes of run.json.
    """

    path: str
    info: RunInfo
    run_json: bytes

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunDir:
        """Open a run folder and check that this program can read it (no hash is checked here).

        Raises:
            InputError: There is no run folder, or it was written by a newer major version.
            IntegrityError: run.json is damaged.
        """
        folder = os.fspath(path)
        name = os.path.join(folder, RUN_JSON)
        try:
            with open(name, "rb") as file:
                data = file.read()
        except OSError as error:
            raise InputError(
                f"{folder}: not a run folder (no {RUN_JSON}: {error.strerror or error})",
                hint="give the folder that build made with --out",
            ) from None
        info = jsonl.parse_object(data)
        if info is None:
            raise IntegrityError(f"{name}: not a JSON object", hint="fetch the folder again: run.json is damaged")
        check_schema(info.get("schema"), RUN_SCHEMA, name)
        missing = [key for key in ("provider", "model", "request", "shards", "manifest") if key not in info]
        if missing:
            raise IntegrityError(f"{name}: lacks {', '.join(missing)}", hint="fetch the folder again")
        return cls(folder, cast("RunInfo", info), data)

    @property
    def fingerprint(self) -> str:
        """SHA-256 over run.json as canonical JSON without what merely happened: equal on any machine."""
        return fingerprint(cast("dict[str, Any]", self.info))

    @property
    def requests(self) -> int:
        """Number of requests in the manifest."""
        return self.info["manifest"]["requests"]

    def file(self, name: str) -> str:
        """Return the path of a file that is named relative to the run folder.

        Raises:
            IntegrityError: The name leads out of the folder.
        """
        parts = name.split("/")
        if os.path.isabs(name) or ".." in parts or "\\" in name:
            raise IntegrityError(f"{self.path}: {name!r} leads out of the run folder")
        return os.path.join(self.path, *parts)

    def iter_entries(self) -> Iterator[Entry]:
        """Yield the manifest's lines in order, one at a time.

        Raises:
            IntegrityError: A line is damaged.
        """
        for position, data in enumerate(self.iter_manifest()):
            yield parse_entry(data, position)

    def iter_manifest(self) -> Iterator[bytes]:
        """Yield the manifest's lines in order, unparsed; a BOM and blank lines are left out.

        Raises:
            IntegrityError: The manifest cannot be read.
        """
        try:
            with io.BufferedReader(io.FileIO(self.file(MANIFEST)), _BUFFER) as file:
                if file.peek(len(jsonl.BOM)).startswith(jsonl.BOM):
                    file.read(len(jsonl.BOM))
                for raw in file:
                    if data := raw.strip():
                        yield data
        except OSError as error:
            raise IntegrityError(f"{self.path}: {MANIFEST} cannot be read ({error.strerror})") from None

    def index(self) -> IdIndex:
        """Return the index of the manifest's ids (one pass over the manifest)."""
        index = IdIndex(self.info["id_stem"])
        with open(self.file(MANIFEST), "rb", buffering=1 << 20) as file:
            index.add_lines(file)
        return index

    def verify(self, *, on_event: Callable[[Event], None] | None = None, depth: str = "full") -> None:
        """Check the frozen files against run.json and SHA256SUMS.

        Args:
            on_event: Called with progress in bytes.
            depth: ``full`` hashes every frozen file (in threads); ``quick`` checks names and sizes alone.

        Raises:
            IntegrityError: Something differs; every difference is listed.
        """
        expected = self.frozen_files()
        problems = [] if depth == "quick" else self._check_sums(expected)
        total = sum(size for _, size in expected.values())
        done = 0
        if on_event:
            on_event(Event("start", "verify", total=total, data={"unit": "bytes"}))
        check = self._check_size if depth == "quick" else self._check_file
        pool = ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1))
        try:
            for problem, size in pool.map(check, expected, *zip(*expected.values(), strict=True)):
                done += size
                problems += problem
                if on_event:
                    on_event(Event("progress", "verify", done=done, total=total, data={"unit": "bytes"}))
        finally:
            pool.shutdown(cancel_futures=True)  # whoever stops the checking waits for the files in hand alone
        if problems:
            raise IntegrityError(
                f"{self.path}: {len(problems)} frozen file(s) differ from what build wrote",
                hint="nothing was sent; fetch the folder again, or build a new run",
                problems=problems,
            )

    def frozen_files(self) -> dict[str, tuple[str, int]]:
        """Return {relative name: (sha256, bytes)} of everything that run.json names (bytes -1 = not told)."""
        info = self.info
        refs: list[Any] = [info["manifest"], *info["shards"], *info.get("inputs", []), info.get("rejected")]
        return {ref["file"]: (ref["sha256"], ref.get("bytes", -1)) for ref in refs if ref}

    def _check_sums(self, expected: dict[str, tuple[str, int]]) -> list[Problem]:
        """Compare SHA256SUMS with run.json; run.json's own hash stands only there."""
        try:
            with open(self.file(SHA256SUMS), "rb") as file:
                sums = parse_sums(file.read())
        except OSError as error:
            return [Problem("missing_file", f"cannot be read ({error.strerror})", SHA256SUMS)]
        want = {name: digest for name, (digest, _) in expected.items()}
        want[RUN_JSON] = jsonl.sha256(self.run_json)
        return [
            Problem("hash_mismatch", f"SHA256SUMS says {sums.get(name, 'nothing')}, expected {digest}", name)
            for name, digest in want.items()
            if sums.get(name) != digest
        ]

    def _check_size(self, name: str, _digest: str, size: int) -> tuple[list[Problem], int]:
        try:
            found = os.path.getsize(self.file(name))
        except OSError as error:
            return [Problem("missing_file", f"cannot be read ({error.strerror})", name)], max(size, 0)
        if size not in {-1, found}:
            return [Problem("size_mismatch", f"{found} bytes, expected {size}", name)], found
        return [], found

    def _check_file(self, name: str, digest: str, size: int) -> tuple[list[Problem], int]:
        try:
            found, length = jsonl.sha256_file(self.file(name))
        except OSError as error:
            return [Problem("missing_file", f"cannot be read ({error.strerror})", name)], max(size, 0)
        if found != digest:
            return [Problem("hash_mismatch", f"SHA-256 {found}, expected {digest}", name)], length
        return [], length

    def results(self, *, rehearsal: bool = False) -> list[str]:
        """Return the paths of results/*.jsonl, sorted by name: the rehearsals alone, or all but them."""
        folder = self.file(RESULTS)
        try:
            names = sorted(os.listdir(folder))
        except FileNotFoundError:
            return []
        return [
            os.path.join(folder, name)
            for name in names
            if name.endswith(".jsonl") and not name.startswith(".") and name.startswith(REHEARSAL_PREFIX) == rehearsal
        ]

    def lock(self, part: str = "all", *, shared: bool = False) -> Lock:
        """Return the lock of one part of the run (``with run.lock(): ...``)."""
        return Lock(self.path, part, shared=shared)


class LineReader:
    """Reads frozen lines by offset and checks each one's hash; shard files stay open. Safe to use from threads."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._fds: dict[str, int] = {}

    def line(self, entry: Entry) -> bytes:
        """Return the exact bytes of one frozen line.

        Raises:
            IntegrityError: The bytes are not those that build wrote.
        """
        fd = self._fds.get(entry.shard)
        if fd is None:
            try:
                fd = self._fds.setdefault(entry.shard, os.open(self._run.file(entry.shard), os.O_RDONLY))
            except OSError as error:
                raise IntegrityError(f"{entry.shard}: cannot be read ({error.strerror})") from None
        data = os.pread(fd, entry.length, entry.offset)
        if jsonl.sha256(data) != entry.line_sha256:
            raise IntegrityError(
                f"{entry.shard}: the line of {entry.custom_id} (offset {entry.offset}) differs from what build wrote",
                hint="nothing more was sent; fetch the folder again, or build a new run",
            )
        return data

    def body(self, entry: Entry) -> bytes:
        """Return the inner bytes of one request: a fixed slice of the line, so an equal line hash settles them.

        Raises:
            IntegrityError: As for :meth:`line`.
        """
        line = self.line(entry)
        return line[entry.body_offset : entry.body_offset + entry.body_length]

    def close(self) -> None:
        """Close the shard files."""
        while self._fds:
            os.close(self._fds.popitem()[1])

    def __enter__(self) -> LineReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Draft:
    """A run folder in the making: a hidden sibling of the target, renamed into place by :meth:`publish`.

    Use as a context manager; without ``publish`` nothing is left behind.

    Attributes:
        target: Where the run folder will stand, absolute.
        path: Where it is made.
        leftovers: Other drafts of the same name: of a build that was killed, or of one that goes on elsewhere.
    """

    def __init__(self, target: str | os.PathLike[str]) -> None:
        self.target = os.path.abspath(os.fspath(target))
        parent = os.path.dirname(self.target)
        if os.path.lexists(self.target):
            raise InputError(
                f"{os.fspath(target)}: exists already",
                hint="a run is built once; choose a new name for --out",
            )
        name = os.path.basename(self.target)
        self.path = os.path.join(parent, f".{name}.{secrets.token_hex(4)}{_BUILDING}")
        self.leftovers = _leftovers(parent, name)
        self._sums: dict[str, str] = {}
        self._files: list[BinaryIO] = []
        self._made_parents = _missing_parents(parent)

    def __enter__(self) -> Draft:
        try:
            with self.writing():
                os.makedirs(os.path.join(self.path, SHARDS))
                os.makedirs(os.path.join(self.path, INPUTS))
        except BaseException:
            self._sweep()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._sweep()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Turn what the disk refuses into an error that names the target, which the disk's own does not.

        Raises:
            InputError: The disk is full, read-only, not ours ...
        """
        try:
            yield
        except OSError as error:
            raise InputError(
                f"{self.target}: cannot be written ({error.strerror or error}); nothing of it was left behind",
                hint="check permissions and space, or name another place with --out",
            ) from None

    def _sweep(self) -> None:
        """Remove the draft, if it was not published, and the folders that were made for it."""
        for file in self._files:
            with contextlib.suppress(OSError):  # what could not be flushed is thrown away anyway
                file.close()
        if os.path.isdir(self.target) and not os.path.isdir(self.path):
            return  # it was renamed into place
        shutil.rmtree(self.path, ignore_errors=True)
        for folder in reversed(self._made_parents):
            with contextlib.suppress(OSError):
                os.rmdir(folder)

    def file(self, name: str) -> str:
        """Return the path of a file of the draft."""
        return os.path.join(self.path, *name.split("/"))

    def create(self, name: str) -> BinaryIO:
        """Open a new file of the draft for writing in pieces; it is closed at the latest when the draft ends."""
        file = open(self.file(name), "xb", buffering=1 << 20)  # noqa: SIM115  (closed by __exit__)
        self._files.append(file)
        return file

    def write(self, name: str, data: bytes) -> FileRef:
        """Write one whole frozen file; return its reference ``{file, sha256, bytes}``."""
        with open(self.file(name), "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return self.add(name, jsonl.sha256(data), len(data))

    def add(self, name: str, sha256: str, size: int) -> FileRef:
        """Note a frozen file that was written in pieces; return its reference."""
        self._sums[name] = sha256
        return {"file": name, "sha256": sha256, "bytes": size}

    def publish(self, info: RunInfo) -> None:
        """Write run.json and SHA256SUMS, take the write bits, and rename the whole into place.

        Raises:
            InputError: The target came to exist in the meantime, or the disk gave out.
        """
        with self.writing():
            self.write(RUN_JSON, jsonl.dumps_pretty(info))
            sums = b"".join(f"{digest}  {name}\n".encode() for name, digest in sorted(self._sums.items()))
            self.write(SHA256SUMS, sums)
            os.mkdir(self.file(RESULTS))
            for name in (*self._sums, SHA256SUMS):
                os.chmod(self.file(name), 0o444)
            for folder in (SHARDS, INPUTS, ""):
                jsonl.fsync_dir(self.file(folder) if folder else self.path)
            self._rename()
        jsonl.fsync_dir(os.path.dirname(self.target))

    def _rename(self) -> None:
        try:
            os.rename(self.path, self.target)
        except OSError:
            if not os.path.lexists(self.target):
                raise
            raise InputError(
                f"{self.target}: came to exist while this run was being built",
                hint="choose a new name for --out",
            ) from None


def _leftovers(parent: str, name: str) -> list[str]:
    """Return the drafts of that name which stand in a folder."""
    try:
        found = os.listdir(parent)
    except OSError:
        return []
    mark = re.compile(re.escape(f".{name}.") + "[0-9a-f]{8}" + re.escape(_BUILDING))
    return sorted(one for one in found if mark.fullmatch(one))


def _missing_parents(folder: str) -> list[str]:
    """Return the parents that makedirs will have to make, outermost first."""
    missing: list[str] = []
    while folder and not os.path.isdir(folder):
        missing.insert(0, folder)
        folder = os.path.dirname(folder)
    return missing


def parse_head(data: bytes, position: int) -> ManifestHead:
    """Parse one manifest line for its head alone, in half the time of :func:`parse_entry`.

    Raises:
        IntegrityError: The line is damaged.
    """
    try:
        head: ManifestHead = jsonl.loads(data)
        _always_there(head)
        if "row" in head:
            return head
    except (ValueError, KeyError, TypeError):
        pass  # it may be the row alone, which is nobody's business here
    parse_entry(data, position)
    return cast("ManifestHead", jsonl.loads(data[: data.index(_ROW_KEY)] + b"}"))


def parse_entry(data: bytes, position: int) -> Entry:
    """Parse one manifest line; the row is cut off as bytes, for it may be long and must not change.

    Raises:
        IntegrityError: The line is damaged.
    """
    try:
        cut = data.index(_ROW_KEY)  # structural: inside a JSON string the quotes would be escaped
        head: ManifestHead = jsonl.loads(data[:cut] + b"}")
        row = data[cut + len(_ROW_KEY) : -1]
        return Entry._make((position, *_always_there(head), row, head.get("source_line"), head.get("output", "")))
    except (ValueError, KeyError, TypeError):
        raise damaged_line(position) from None


def damaged_line(position: int) -> IntegrityError:
    """Return the error of a manifest line that is not as build wrote it."""
    return IntegrityError(
        f"{MANIFEST}: line {position + 1} is damaged", hint="fetch the folder again: manifest.jsonl is damaged"
    )


def parse_sums(data: bytes) -> dict[str, str]:
    """Parse a SHA256SUMS file into {name: digest}; lines of another shape are left out."""
    sums = {}
    for line in data.decode("utf-8", "replace").splitlines():
        digest, _, name = line.partition("  ")
        if _HEX64.fullmatch(digest):
            sums[name] = digest
    return sums


def fingerprint(info: dict[str, Any]) -> str:
    """Return the run's fingerprint: SHA-256 over run.json without the keys that tell when and where."""
    return jsonl.sha256(jsonl.dumps_canonical({k: v for k, v in info.items() if k not in _HAPPENED}))


def check_schema(found: object, known: str, where: str) -> None:
    """Check that a file's schema id is one that this program reads.

    Raises:
        SchemaVersionError: It was written by a newer major version.
        InputError: It is no schema id of that kind.
    """
    name, _, major = known.partition("/")
    found_name, _, found_major = str(found).partition("/")
    if found_name != name or not found_major.isdigit():
        raise InputError(f"{where}: schema is {found!r}, expected {known!r}", hint="this is no file of vlmbatch")
    if int(found_major) > int(major):
        raise SchemaVersionError(
            f"{where}: written in {found}, this program reads up to {known}", hint="install a newer vlmbatch"
        )
