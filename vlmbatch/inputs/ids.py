"""Which ids a table has shown so far: 16 bytes a slot and no string kept, so that memory stays small."""

from __future__ import annotations

from array import array
from hashlib import blake2b

_FIRST_SIZE = 1 << 10


class SeenIds:
    """A hash table of 64-bit digests with the place of each; open addressing, at most two thirds full.

    Among ten million ids the odds that two different ones share a digest are 1 in 370,000.
    """

    def __init__(self) -> None:
        self._digests = array("Q", bytes(8 * _FIRST_SIZE))
        self._places = array("Q", bytes(8 * _FIRST_SIZE))
        self._count = 0

    def add(self, key: bytes, place: int) -> int | None:
        """Note an id; return the place where it stood before, None where it is new."""
        digest = int.from_bytes(blake2b(key, digest_size=8).digest()) or 1  # 0 marks a free slot
        at = self._slot(digest)
        if self._digests[at]:
            return self._places[at]
        self._digests[at], self._places[at] = digest, place
        self._count += 1
        if 3 * self._count > 2 * len(self._digests):
            self._grow()
        return None

    def _slot(self, digest: int) -> int:
        """Return the slot of a digest: its own, or the free one where it would stand."""
        digests, mask = self._digests, len(self._digests) - 1
        at = digest & mask
        while digests[at] and digests[at] != digest:
            at = (at + 1) & mask
        return at

    def _grow(self) -> None:
        digests, places = self._digests, self._places
        self._digests = array("Q", bytes(16 * len(digests)))
        self._places = array("Q", bytes(16 * len(places)))
        for digest, place in zip(digests, places, strict=True):
            if digest:
                at = self._slot(digest)
                self._digests[at], self._places[at] = digest, place
