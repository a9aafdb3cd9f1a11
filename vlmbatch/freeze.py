"""Item and provider make an inner body, the body makes a line, the lines fill shards: bytes with their hashes.

A body is serialised once. The line takes it as it stands, as its last value, so the inner bytes are a fixed slice
of the line and an equal line hash settles both.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

from vlmbatch import jsonl
from vlmbatch.errors import InputError
from vlmbatch.records import CUSTOM_ID, INDEX_DIGITS
from vlmbatch.rundir import SHARDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vlmbatch.providers.base import Ask, Part, Provider
    from vlmbatch.records import FileRef, ShardRef
    from vlmbatch.rundir import Draft

_NO_IMAGE = "0" * 8
_CLOSING = 1  # the brace behind the inner value, which stands last in its line


class Frozen(NamedTuple):
    """One request as bytes: the line without its newline, and where in it the inner bytes stand."""

    custom_id: str
    line: bytes
    body_offset: int
    body_length: int
    inner_sha256: str
    line_sha256: str


def id_stem(prefix: str, what: Any) -> str:
    """Return the part that all custom_ids of a run share: the user's prefix and 6 hex digits over what is asked.

    Args:
        prefix: The user's own prefix, may be empty.
        what: Model, prompt and params, as JSON; two runs over the same images share no id unless these are equal.

    Raises:
        InputError: The prefix leaves no room or has characters that no provider takes.
    """
    stem = f"{prefix}{jsonl.sha256(jsonl.dumps_canonical(what))[:6]}"
    longest = custom_id(stem, 10**8, "f" * 8)
    if not CUSTOM_ID.fullmatch(longest):
        raise InputError(
            f"--id-prefix {prefix!r}: ids are letters, digits, '_' and '-', 64 at most",
            hint=f"use up to {64 - len(longest) + len(prefix)} of these characters",
        )
    return stem


def custom_id(stem: str, index: int, image_sha256: str | None) -> str:
    """Return the id of one request: stem, zero-padded index, first 8 hex digits of the first image's hash."""
    return f"{stem}-{index:0{INDEX_DIGITS}d}-{image_sha256[:8] if image_sha256 else _NO_IMAGE}"


def freeze(provider: Provider, ask: Ask, custom_id: str, parts: Sequence[Part]) -> Frozen:
    """Make one frozen line.

    Args:
        provider: Whose words the body is in.
        ask: What is the same for every row.
        custom_id: The request's id.
        parts: Text and images of the user's message, in order.
    """
    inner = jsonl.dumps_canonical(provider.body(ask, parts))
    line = jsonl.dumps(provider.line(custom_id, jsonl.Fragment(inner), ask))
    return Frozen(
        custom_id, line, len(line) - len(inner) - _CLOSING, len(inner), jsonl.sha256(inner), jsonl.sha256(line)
    )


class LineWriter:
    """Writes one file of lines of a draft and hashes it on the way.

    Attributes:
        name: The file, relative to the run folder.
        bytes: How long it is so far.
        lines: How many lines it has so far.
    """

    def __init__(self, draft: Draft, name: str) -> None:
        self._draft = draft
        self._file = draft.create(name)
        self._digest = hashlib.sha256()
        self.name = name
        self.bytes = 0
        self.lines = 0

    def put(self, line: bytes) -> None:
        """Append a line, given without its newline."""
        for piece in (line, b"\n"):  # not joined: a line may be many megabytes
            self._file.write(piece)
            self._digest.update(piece)
        self.bytes += len(line) + 1
        self.lines += 1

    def close(self) -> FileRef:
        """Finish the file; return its reference ``{file, sha256, bytes}``."""
        jsonl.finish(self._file)
        return self._draft.add(self.name, self._digest.hexdigest(), self.bytes)


class ShardWriter:
    """Writes lines into shards of a draft, cut by measured bytes and by number of requests.

    Args:
        draft: The folder in the making.
        max_bytes: A shard's bytes, newlines included; a single longer line gets a shard of its own.
        max_requests: A shard's lines.
    """

    def __init__(self, draft: Draft, *, max_bytes: int, max_requests: int) -> None:
        self._draft = draft
        self._max_bytes = max_bytes
        self._max_requests = max_requests
        self._open: LineWriter | None = None
        self._images = 0
        self.shards: list[ShardRef] = []

    def put(self, line: bytes, *, images: int) -> tuple[str, int]:
        """Append a line; return the shard's relative name and the line's offset in it."""
        shard = self._open
        if shard is None or shard.bytes + len(line) + 1 > self._max_bytes or shard.lines >= self._max_requests:
            self.close()
            shard = self._open = LineWriter(self._draft, f"{SHARDS}/{len(self.shards):05d}.jsonl")
        offset = shard.bytes
        shard.put(line)
        self._images += images
        return shard.name, offset

    def close(self) -> None:
        """Finish the open shard, if any, and note its hash."""
        if self._open is None:
            return
        shard, self._open = self._open, None
        self.shards.append(
            {
                "file": shard.name,
                "sha256": shard.close()["sha256"],
                "bytes": shard.bytes,
                "requests": shard.lines,
                "images": self._images,
            }
        )
        self._images = 0
