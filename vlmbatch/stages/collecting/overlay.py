"""Who wins: the manifest and every attempt as a few numbers each, and the rule by which one attempt beats another.

All that collect keeps in memory stands here, in arrays: some 60 bytes for each manifest line and 50 for each attempt.
"""

from __future__ import annotations

from array import array
from binascii import unhexlify
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vlmbatch import classify, jsonl, rundir
from vlmbatch.records import Status
from vlmbatch.rundir import ID_KEY, ROW_KEY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vlmbatch.errors import Problem
    from vlmbatch.records import Channel, Usage
    from vlmbatch.rundir import RunDir

CHANNELS: Final[tuple[Channel, ...]] = ("realtime", "batch")
TOKENS = ("input_tokens", "output_tokens", "reasoning_tokens", "cached_tokens", "total_tokens")

RETRY = 1
"""Flag: sending the same request again may help."""
IMAGE_SEEN = 2
"""Flag: the provider counted tokens for the images alone."""
IMAGE_UNSEEN = 4
"""Flag: it counted them, and came to none."""

_HASH_KEY = b'"line_sha256":"'
_OUTPUT_KEY = b',"output":"'
_HASH_BYTES = 32
_MANY = 65_536
OTHERS: Final = "(others)"
"""Label of whatever comes when there are too many different ones."""


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
        self.output_of = array("I")
        seen: dict[str, int] = {}
        add, hashes, note = self._index.add, self._hashes, self.output_of.append
        for position, (_, _, line) in enumerate(jsonl.iter_lines(run.file(rundir.MANIFEST))):
            custom_id, digest, output = read_head(line, position)
            add(custom_id)
            hashes += digest
            note(seen.setdefault(output, len(seen)))
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

    def has_hash(self, position: int, line_sha256: str | None) -> bool:
        """Tell whether a line of the manifest has this hash; an attempt that tells none (None) is not judged by it."""
        if line_sha256 is None:
            return True
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
    end = data.find(b'"', len(ID_KEY))
    start = data.find(_HASH_KEY) + len(_HASH_KEY)
    if data.startswith(ID_KEY) and start >= len(_HASH_KEY):
        digest = data[start : start + 2 * _HASH_BYTES]
        output = data.find(_OUTPUT_KEY, start, data.find(ROW_KEY, start))
        if output < 0 and len(digest) == 2 * _HASH_BYTES:
            return data[len(ID_KEY) : end].decode(), unhexlify(digest), ""
    entry = rundir.parse_entry(data, position)
    return entry.custom_id, bytes.fromhex(entry.line_sha256), entry.output


class Kind(NamedTuple):
    """All that many attempts have in common, kept once: a run has a handful of kinds.

    Attributes:
        status: What became of the attempt.
        flags: :data:`RETRY`, :data:`IMAGE_SEEN`, :data:`IMAGE_UNSEEN`.
        file: Number of the results file.
        channel: ``realtime`` or ``batch``.
        unanswered: Sendings that may have been billed although no usage came back.
        label: Why it is not ok, empty where it is.
        model: The model's name as the provider told it, empty where it did not.
        system_fingerprint: Likewise.
        notes: Codes of what is odd.
        filled: For each required field whether the answer fills it, None where it need not.
        endpoint: Where it was sent, empty where the file does not tell.
        is_direct: Whether that is the provider's own address, None = not told.
    """

    status: Status
    flags: int
    file: int
    channel: str
    unanswered: int
    label: str
    model: str
    system_fingerprint: str
    notes: tuple[str, ...]
    filled: tuple[bool | None, ...]
    endpoint: str
    is_direct: bool | None


class Columns:
    """Attempts in the order of reading, as numbers.

    Attributes:
        kinds: What kinds of attempts there are.
        kind: For each attempt the number of its kind; the other columns likewise: ``line`` in its file,
            ``input_tokens`` and ``output_tokens`` (-1 = not told), ``latency_s`` (-1 = not told), and where its half
            of the record is spooled.
        tokens: Sums over all attempts, by channel and by name.
    """

    def __init__(self) -> None:
        self.kinds: list[Kind] = []
        self._numbers: dict[tuple[Any, ...], int] = {}
        self.kind = array("I")
        self.line = array("I")
        self.input_tokens = array("q")
        self.output_tokens = array("q")
        self.latency_s = array("d")
        self.spool_offset = array("q")
        self.spool_length = array("I")
        self.tokens: dict[str, dict[str, int]] = {channel: dict.fromkeys(TOKENS, 0) for channel in CHANNELS}

    def __len__(self) -> int:
        return len(self.kind)

    def kind_number(self, kind: tuple[Any, ...]) -> int:
        """Return the number of a kind, given as the tuple of its fields; beyond 65,536 labels are ``(others)``."""
        number = self._numbers.get(kind)
        if number is None:
            whole = Kind(*kind)
            if len(self.kinds) >= _MANY and whole.label not in {"", OTHERS}:
                return self.kind_number(whole._replace(label=OTHERS))
            number = self._numbers[kind] = len(self.kinds)
            self.kinds.append(whole)
        return number


class Part(Columns):
    """The attempts of one piece of a results file.

    Attributes:
        position: For each attempt its manifest line.
        lines: Lines of the file that the piece has, blank ones too.
        records: Lines that hold an attempt.
        torn_lines: Lines that hold none.
        left_out: Rehearsed answers where real ones are wanted, or the other way round.
        strangers: Attempts that are not of this run.
        problems: The first few of these.
    """

    def __init__(self) -> None:
        super().__init__()
        self.position = array("I")
        self.lines = self.records = self.torn_lines = self.left_out = self.strangers = 0
        self.problems: list[Problem] = []

    def add(self, position: int, kind: int, line: int, usage: Usage, latency_s: float | None) -> None:
        """Append an attempt."""
        used, made = usage["input_tokens"], usage["output_tokens"]
        self.position.append(position)
        self.kind.append(kind)
        self.line.append(line)
        self.input_tokens.append(-1 if used is None else used)
        self.output_tokens.append(-1 if made is None else made)
        self.latency_s.append(-1.0 if latency_s is None else latency_s)
        sums = self.tokens[self.kinds[kind].channel]
        for name, count in usage.items():
            if count:
                sums[name] += count  # type: ignore[operator]  # a count, as Usage says

    def spooled(self, place: tuple[int, int]) -> None:
        """Note where the last attempt's half of the record stands."""
        self.spool_offset.append(place[0])
        self.spool_length.append(place[1])


class Overlay(Columns):
    """Every attempt, and for each manifest line the one that wins.

    Attributes:
        winner: For each manifest line the number of its winning attempt, -1 where there is none.
    """

    def __init__(self, requests: int) -> None:
        super().__init__()
        self.winner = array("i", [-1]) * requests
        self._beaten = array("i", [-1]) * requests
        self._next = array("i")

    def take(self, part: Part, lines_before: int) -> None:
        """Take in the next piece.

        Args:
            part: Its attempts.
            lines_before: Lines of the same file that stand before the piece.
        """
        first = len(self.kind)
        numbers = [self.kind_number(tuple(kind)) for kind in part.kinds]
        self.kind.extend(array("I", map(numbers.__getitem__, part.kind)))
        self.line.extend(array("I", (line + lines_before for line in part.line)))
        self.input_tokens.extend(part.input_tokens)
        self.output_tokens.extend(part.output_tokens)
        self.latency_s.extend(part.latency_s)
        self.spool_offset.extend(part.spool_offset)
        self.spool_length.extend(part.spool_length)
        self._next.extend(array("i", [-1]) * len(part))
        for channel, sums in part.tokens.items():
            for name, count in sums.items():
                self.tokens[channel][name] += count
        winner = self.winner
        for row, position in enumerate(part.position, start=first):
            old = winner[position]
            if old < 0:
                winner[position] = row
            else:
                self._settle(position, old, row)

    def _settle(self, position: int, old: int, row: int) -> None:
        """Let the stronger of two attempts win, of equal ones the later; remember the other."""
        wins = classify.rank(self.status(row)) >= classify.rank(self.status(old))
        loser = old if wins else row
        self._next[loser] = self._beaten[position]
        self._beaten[position] = loser
        if wins:
            self.winner[position] = row

    def status(self, row: int) -> Status:
        """Return the status of an attempt."""
        return self.kinds[self.kind[row]].status

    def status_of(self, position: int) -> Status:
        """Return the status of a manifest line."""
        row = self.winner[position]
        return Status.MISSING if row < 0 else self.status(row)

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

    def winners(self) -> Iterator[int]:
        """Yield the winning attempts in manifest order, leaving out lines that have none."""
        return (row for row in self.winner if row >= 0)

    def count_won(self) -> list[tuple[Kind, int]]:
        """Return how many manifest lines each kind of attempt won."""
        column = self.kind
        return self._counted(Counter(column[row] for row in self.winner if row >= 0))

    def count_all(self) -> list[tuple[Kind, int]]:
        """Return how many attempts there are of each kind."""
        return self._counted(Counter(self.kind))

    def _counted(self, counts: Counter[int]) -> list[tuple[Kind, int]]:
        return [(self.kinds[number], count) for number, count in sorted(counts.items())]
