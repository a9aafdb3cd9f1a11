"""The ids of a run: which custom_ids its manifest holds, and where."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from vlmbatch.errors import IntegrityError
from vlmbatch.records import INDEX_DIGITS
from vlmbatch.rundir.manifest import ID_KEY, parse_entry
from vlmbatch.rundir.names import MANIFEST

if TYPE_CHECKING:
    from collections.abc import Iterable

_HASH_KEY = b'"line_sha256":"'
_HASH_DIGITS = 16
"""Of a line's hash, what is kept: enough that no two lines are taken for one another by chance."""
_BEHIND = b'",' + _HASH_KEY
_TAIL = 8
"""Hex digits of the image's hash at the end of a custom_id."""


def input_index(custom_id: str) -> int:
    """Return the 0-based input index that stands in a custom_id: it counts inputs, rejected ones too, by output."""
    return int(custom_id.rsplit("-", 2)[1])


class IdIndex:
    """Which custom_ids a manifest holds, and where: 8 bytes a request, exact; and 8 more of each line's hash.

    A custom_id is the run's stem, the input index and 8 hex digits of the image's hash; so an array of those digits
    by index tells membership without keeping a string. Hashes are kept of lines that come whole (``add_lines``).
    """

    def __init__(self, stem: str) -> None:
        self._head = f"{stem}-"
        self._head_bytes = self._head.encode()
        self._position = array("i")
        self._tail = array("I")
        self._hash = array("Q")
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
        head = ID_KEY + self._head.encode()
        digits, start = len(head), len(ID_KEY)
        position, tail, hashes = self._position, self._tail, self._hash
        for raw in lines:
            hashes.append(_hash_of(raw))
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

    def position(self, custom_id: object, line_sha256: str | None = None) -> int:
        """Return the 0-based manifest line of an id, -1 where the manifest has none, or one with another hash.

        Args:
            custom_id: The id.
            line_sha256: Hash of the line that it was sent as, None where nobody tells.
        """
        if not isinstance(custom_id, str):
            return -1
        index, tail = self._split(custom_id)
        if index < 0 or index >= len(self._position) or self._tail[index] != tail:
            return -1
        if custom_id != f"{self._head}{index:0{INDEX_DIGITS}d}-{tail:08x}":  # the same number written otherwise
            return -1
        position = self._position[index]
        if line_sha256 is not None and self._hash:
            try:
                return position if int(line_sha256[:_HASH_DIGITS], 16) == self._hash[position] else -1
            except ValueError:
                return -1
        return position

    def at(self, raw: bytes, start: int) -> int:
        """Return the manifest line that an attempt of ours is to, read off its bytes; -1 where it takes a closer look.

        Args:
            raw: The attempt's line.
            start: Where its custom_id begins; its line_sha256 is the next key.
        """
        digits = start + len(self._head_bytes)
        dash = digits + INDEX_DIGITS
        end = dash + 1 + _TAIL
        number, hash_at = raw[digits:dash], end + len(_BEHIND)
        if raw[end:hash_at] != _BEHIND or not raw.startswith(self._head_bytes, start) or not number.isdigit():
            return -1
        index = int(number)
        try:
            if raw[dash:end] != b"-%08x" % self._tail[index]:
                return -1
            position = self._position[index]
            return position if self._hash[position] == int(raw[hash_at : hash_at + _HASH_DIGITS], 16) else -1
        except (IndexError, ValueError):
            return -1


def _hash_of(raw: bytes) -> int:
    """Return the beginning of the line's hash in a manifest line, found without parsing the rest of it."""
    start = raw.find(_HASH_KEY) + len(_HASH_KEY)
    try:
        return int(raw[start : start + _HASH_DIGITS], 16)
    except ValueError:
        raise IntegrityError(f"{MANIFEST}: a line has no line_sha256", hint="fetch the folder again") from None
