"""The finished run folder: how it is opened and read."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from vlmbatch import jsonl
from vlmbatch.errors import InputError, IntegrityError
from vlmbatch.records import RUN_SCHEMA, Entry, Event, RunInfo
from vlmbatch.rundir.checks import check_schema, fingerprint, verify
from vlmbatch.rundir.ids import IdIndex
from vlmbatch.rundir.lock import Lock, known_parts
from vlmbatch.rundir.manifest import iter_manifest, parse_entry
from vlmbatch.rundir.names import MANIFEST, REHEARSAL_PREFIX, RESULTS, RUN_JSON, SEALED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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
            raise _no_run(folder, error) from None
        info = jsonl.parse_object(data)
        if info is None:
            raise IntegrityError(f"{name}: not a JSON object", hint="fetch the folder again: run.json is damaged")
        check_schema(info.get("schema"), RUN_SCHEMA, name)
        missing = [key for key in ("provider", "model", "request", "shards", "manifest") if key not in info]
        if missing:
            raise IntegrityError(f"{name}: lacks {', '.join(missing)}", hint="fetch the folder again")
        return cls(folder, cast("RunInfo", info), data)

    @property
    def name(self) -> str:
        """The folder's own name."""
        return os.path.basename(os.path.abspath(self.path))

    @property
    def is_sealed(self) -> bool:
        """Whether a seal stands in the folder (it holds as long as nothing was written after it)."""
        return os.path.exists(self.file(SEALED))

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
        """Return the manifest's lines in order, unparsed; a BOM and blank lines are left out.

        Raises:
            IntegrityError: The manifest cannot be read.
        """
        return iter_manifest(self.path)

    def index(self) -> IdIndex:
        """Return the index of the manifest's ids (one pass over the manifest).

        Raises:
            IntegrityError: The manifest cannot be read.
        """
        index = IdIndex(self.info["id_stem"])
        try:
            with open(self.file(MANIFEST), "rb", buffering=1 << 20) as file:
                index.add_lines(file)
        except OSError as error:
            raise IntegrityError(f"{self.path}: {MANIFEST} cannot be read ({error.strerror})") from None
        return index

    def verify(self, *, on_event: Callable[[Event], None] | None = None, depth: str = "full") -> None:
        """Check the frozen files against run.json and SHA256SUMS.

        Args:
            on_event: Called with progress in bytes.
            depth: ``full`` hashes every frozen file (in threads); ``quick`` checks names and sizes alone.

        Raises:
            IntegrityError: Something differs; every difference is listed.
        """
        verify(self, on_event=on_event, depth=depth)

    def frozen_files(self) -> dict[str, tuple[str, int]]:
        """Return {relative name: (sha256, bytes)} of everything that run.json names (bytes -1 = not told).

        Raises:
            IntegrityError: run.json names a file without its name or its hash.
        """
        info = self.info
        try:
            refs: list[Any] = [info["manifest"], *info["shards"], *info.get("inputs", []), info.get("rejected")]
            return {ref["file"]: (ref["sha256"], ref.get("bytes", -1)) for ref in refs if ref}
        except (KeyError, TypeError, AttributeError):
            raise IntegrityError(
                f"{self.file(RUN_JSON)}: names a file without its name or its hash", hint="fetch the folder again"
            ) from None

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

    def lock(self, part: str = "all", *, shared: bool = False, wait: bool = False) -> Lock:
        """Return the lock of one part of the run (``with run.lock(): ...``)."""
        return Lock(self.path, part, shared=shared, wait=wait)

    def refuse_other_dealings(self, dealing: str) -> None:
        """See that nobody works on parts into which the rows were dealt otherwise: the same row could be in both.

        Whoever asks holds the lock of a part of its own (``I-of-DEALING``) already, so that of two who come at the
        same moment at least one is turned away.

        Raises:
            InputError: Somebody does.
        """
        for part in known_parts(self.path):
            if part.partition("-of-")[2] != dealing:
                with self.lock(part, shared=True):
                    pass


def _no_run(folder: str, error: OSError) -> InputError:
    """Return what is wrong with a path at which no run folder can be opened."""
    hint = "give the folder that build made with --out"
    if not os.path.exists(folder):
        return InputError(f"{folder}: there is no such folder", hint=f"check the path; {hint}")
    if not os.path.isdir(folder):
        parent = os.path.dirname(folder) or "."
        is_inside = os.path.exists(os.path.join(parent, RUN_JSON))
        return InputError(f"{folder}: a file, not a run folder", hint=f"give {parent}" if is_inside else hint)
    if isinstance(error, FileNotFoundError):
        return InputError(f"{folder}: not a run folder (it holds no {RUN_JSON})", hint=hint)
    return InputError(f"{folder}: {RUN_JSON} cannot be read ({error.strerror or error})", hint="check its rights")


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
