"""Who wins: the manifest and every attempt as a few numbers each, and the rule by which one attempt beats another.

All that collect keeps in memory stands here, in arrays: some 55 bytes for each manifest line and 90 for each attempt.
"""

from __future__ import annotations

from array import array
from collections import Counter
from itertools import compress
from typing import TYPE_CHECKING, NamedTuple

from vlmbatch import classify, jsonl, rundir
from vlmbatch.records import Status, Usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vlmbatch.rundir import RunDir

STATUSES = tuple(Status)
STATUS_CODE = {status: code for code, status in enumerate(STATUSES)}
CHANNELS = ("realtime", "batch")
TOKENS = ("input_tokens", "output_tokens", "reasoning_tokens", "cached_tokens", "total_tokens")

RETRY = 1
"""Flag: sending the same request again may help."""
IMAGE_SEEN = 2
"""Flag: the provider counted tokens for the images alone."""
IMAGE_UNSEEN = 4
"""Flag: it counted them, and came to none."""

_ID_START = b'{"custom_id":"'
_HASH_KEY = b'"line_sha256":"'
_OUTPUT_KEY = b',"output":"'
_ROW_KEY = b',"row":'
_HASH_BYTES = 32
_MANY = 65_534
_MOST_TOKENS = 1 << 62


class Ledger:
    """The manifest in memory: which ids there are, what their lines hash to, which output each one is.

    Attributes:
        outputs: Names of the pipeline outputs, in order of first appearance; ``("",)`` for runs without.
        output_of: For each manifest line the number of its output.
    """

    def __init__(self, run: RunDir) -> None:
        self._index = rundir.IdIndex(run.info["id_stem"])
        self._hashes = bytearray()
        self.outputs: list[str] = []
        self.output_of = array("B")
        seen: dict[str, int] = {}
        for position, line in enumerate(jsonl.iter_lines(run.file(rundir.MANIFEST))):
            custom_id, digest, output = read_head(line.data, position)
            self._index.add(custom_id)
            self._hashes += digest
            self.output_of.append(seen.setdefault(output, len(seen)))
        self.outputs = list(seen) or [""]

    def __len__(self) -> int:
        return self._index.count

    @property
    def unique(self) -> int:
        """Number of different ids."""
        return self._index.unique

    def position(self, custom_id: str) -> int:
        """Return the 0-based manifest line of an id, -1 where the manifest has no such id."""
        return self._index.position(custom_id)

    def has_hash(self, position: int, line_sha256: str) -> bool:
        """Tell whether a line of the manifest has this hash."""
        start = position * _HASH_BYTES
        try:
            return self._hashes[start : start + _HASH_BYTES] == bytes.fromhex(line_sha256)
        except ValueError:
            return False


def read_head(data: bytes, position: int) -> tuple[str, bytes, str]:
    """Return id, line hash and output name of a manifest line, found without parsing the rest of it.

    The keys that are looked for cannot stand inside a JSON string, where their quotes would be escaped.

    Raises:
        IntegrityError: The line is damaged.
    """
    end = data.find(b'"', len(_ID_START))
    start = data.find(_HASH_KEY) + len(_HASH_KEY)
    if data.startswith(_ID_START) and start >= len(_HASH_KEY):
        digest = data[start : start + 2 * _HASH_BYTES]
        output = data.find(_OUTPUT_KEY, start, data.find(_ROW_KEY, start))
        if output < 0 and len(digest) == 2 * _HASH_BYTES:
            return data[len(_ID_START) : end].decode(), bytes.fromhex(digest.decode()), ""
    entry = rundir.parse_entry(data, position)
    return entry.custom_id, bytes.fromhex(entry.line_sha256), entry.output


class Names:
    """Strings that repeat, kept once; beyond 65,534 different ones the rest counts as ``(others)``."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {"": 0}

    def code(self, name: str) -> int:
        """Return the number of a name, a new one where it is new."""
        codes = self._codes
        found = codes.get(name)
        if found is None:
            found = codes[name] = len(codes) if len(codes) < _MANY else codes.setdefault("(others)", _MANY)
        return found

    def name(self, code: int) -> str:
        """Return the name behind a number."""
        return self.all()[code]

    def all(self) -> dict[int, str]:
        """Return all names by number."""
        return {code: name for name, code in self._codes.items()}


class Kept(NamedTuple):
    """What is kept of one attempt; names are numbers of :class:`Names`, ``None`` tokens are -1."""

    status: Status
    flags: int
    file: int
    line: int
    channel: int
    unanswered: int
    label: int
    model: int
    fingerprint: int
    notes: int
    filled: int
    latency_s: float
    usage: Usage


class Overlay:
    """Every attempt in the order of reading, and for each manifest line the one that wins.

    Attributes:
        winner: For each manifest line the number of its winning attempt, -1 where there is none.
        status: For each attempt the number of its status; the other columns likewise.
    """

    def __init__(self, requests: int) -> None:
        self.winner = array("i", [-1]) * requests
        self._beaten = array("i", [-1]) * requests
        self._next = array("i")
        self.status = array("B")
        self.flags = array("B")
        self.file = array("H")
        self.line = array("I")
        self.channel = array("B")
        self.unanswered = array("B")
        self.label = array("H")
        self.model = array("H")
        self.fingerprint = array("H")
        self.notes = array("H")
        self.filled = array("Q")
        self.latency_s = array("d")
        self.tokens = tuple(array("q") for _ in TOKENS)
        self.spool_offset = array("q")
        self.spool_length = array("I")

    def __len__(self) -> int:
        return len(self.status)

    def add(self, position: int, kept: Kept) -> int:
        """Take in the next attempt for a manifest line; return its number where it wins for now, else -1."""
        row = len(self.status)
        self.status.append(STATUS_CODE[kept.status])
        self.flags.append(kept.flags)
        self.file.append(kept.file)
        self.line.append(kept.line)
        self.channel.append(kept.channel)
        self.unanswered.append(kept.unanswered)
        self.label.append(kept.label)
        self.model.append(kept.model)
        self.fingerprint.append(kept.fingerprint)
        self.notes.append(kept.notes)
        self.filled.append(kept.filled)
        self.latency_s.append(kept.latency_s)
        usage = kept.usage
        for column, name in zip(self.tokens, TOKENS, strict=True):
            value = usage[name]  # type: ignore[literal-required]
            column.append(value if value is not None and 0 <= value < _MOST_TOKENS else -1)
        self.spool_offset.append(-1)
        self.spool_length.append(0)
        self._next.append(-1)
        return self._settle(position, row)

    def _settle(self, position: int, row: int) -> int:
        old = self.winner[position]
        if old >= 0 and _RANK[self.status[row]] < _RANK[self.status[old]]:
            self._push(position, row)
            return -1
        if old >= 0:
            self._push(position, old)
        self.winner[position] = row
        return row

    def _push(self, position: int, row: int) -> None:
        self._next[row] = self._beaten[position]
        self._beaten[position] = row

    def beaten(self, position: int) -> Sequence[int]:
        """Return the attempts of a manifest line that did not win, in the order of reading."""
        row = self._beaten[position]
        if row < 0:
            return ()
        rows = []
        while row >= 0:
            rows.append(row)
            row = self._next[row]
        return sorted(rows)

    def status_of(self, position: int) -> Status:
        """Return the status of a manifest line."""
        row = self.winner[position]
        return Status.MISSING if row < 0 else STATUSES[self.status[row]]

    def status_name(self, row: int) -> Status:
        """Return the status of an attempt."""
        return STATUSES[self.status[row]]

    def usage_of(self, row: int) -> Usage:
        """Return the tokens of an attempt."""
        used, made, thought, cached, total = (None if column[row] < 0 else column[row] for column in self.tokens)
        return Usage(
            input_tokens=used, output_tokens=made, reasoning_tokens=thought, cached_tokens=cached, total_tokens=total
        )

    def winners(self) -> Iterator[int]:
        """Yield the winning attempts in manifest order, leaving out lines that have none."""
        return (row for row in self.winner if row >= 0)

    def count_statuses(self) -> dict[Status, int]:
        """Return how many manifest lines have each of the nine statuses, zeros too."""
        column = self.status
        found = Counter(column[row] for row in self.winner if row >= 0)
        counts = {status: found[code] for code, status in enumerate(STATUSES)}
        counts[Status.MISSING] = self.winner.count(-1)
        return counts

    def sum_tokens(self, which: bytes) -> dict[str, int]:
        """Return the tokens of the attempts that ``which`` selects (one byte each), unknown ones left out."""
        sums = {}
        for name, column in zip(TOKENS, self.tokens, strict=True):
            chosen = array("q", compress(column, which))
            sums[name] = sum(chosen) + chosen.count(-1)
        return sums


_RANK = tuple(classify.rank(status) for status in STATUSES)
