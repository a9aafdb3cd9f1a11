"""The data of report.html: records in compressed blocks, an index to list and sort them by, and small pictures.

Each block is base64 of gzip of JSON, so nothing that a record says can be taken for markup, and the page unpacks only
what is looked at. Pictures are made from the frozen bytes, that is from what the model saw.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

from vlmbatch import jsonl, prices
from vlmbatch.errors import IntegrityError
from vlmbatch.records import Event
from vlmbatch.rundir import MANIFEST, REDACTED, LineReader, parse_entry
from vlmbatch.stages.reporting.inline import iter_images, read_prompt, sent_sha256
from vlmbatch.stages.reporting.survey import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vlmbatch.records import Entry, ImageRecord
    from vlmbatch.rundir import RunDir
    from vlmbatch.stages.reporting.survey import Survey

ROWS_A_BLOCK = 100
THUMBS_A_BLOCK = 50
_INDEX_A_BLOCK = 2_000
_THUMB_PX = 192
_PREVIEW_PX = 800
_WINDOW = 32
_SAID = 140
_PROMPTS = 64
_INDEX_KEYS = ("id", "name", "said", "status", "thumb", "input", "output", "ms", "length")


# --- pictures ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Pictures:
    """Small pictures by the hash of the image that was sent.

    Attributes:
        budget: Bytes that all of them may take.
        data: The pictures, in the order of their numbers.
        thumbs: Number of the thumbnail of an image.
        previews: Number of the larger picture of an image of the review sample.
        undrawn: Hashes of the images that are no picture to us (a format that is not installed, say).
    """

    budget: int
    data: list[bytes] = field(default_factory=list)
    thumbs: dict[str, int] = field(default_factory=dict)
    previews: dict[str, int] = field(default_factory=dict)
    undrawn: set[str] = field(default_factory=set)
    _bytes: int = 0

    def add(self, numbers: dict[str, int], key: str, data: bytes) -> bool:
        """Take a picture unless it is there already; False where the budget is spent."""
        if key in numbers:
            return True
        if self._bytes + len(data) > self.budget:
            return False
        self._bytes += len(data)
        numbers[key] = len(self.data)
        self.data.append(data)
        return True

    def blocks(self) -> Iterator[bytes]:
        """Yield the pictures as data blocks of the page, and let go of each."""
        for number, start in enumerate(range(0, len(self.data), THUMBS_A_BLOCK)):
            some = [base64.b64encode(data).decode() for data in self.data[start : start + THUMBS_A_BLOCK]]
            yield b'<script type="application/json" id="thumbs-%d">%b</script>\n' % (number, jsonl.dumps(some))


class _Drawn(NamedTuple):
    """What came of drawing one record's images: pictures by image hash, and the hashes of what is no picture."""

    pictures: list[tuple[str, bytes]]
    undrawn: list[str]


def draw_pictures(
    run: RunDir, found: Survey, *, budget: int, on_event: Callable[[Event], None] | None = None
) -> Pictures:
    """Make the pictures of a report: the review sample first and larger, then records spread evenly over the run.

    Raises:
        IntegrityError: A frozen line differs from what build wrote.
    """
    pictures = Pictures(budget)
    if not budget:
        return pictures
    with _Easel(run, found) as easel:
        for _ in _drawing(easel, pictures, pictures.previews, found.sample, _PREVIEW_PX):
            pass
        order = [*found.sample, *(found.shown[k] for k in spread_order(len(found.shown)))]
        for done in _drawing(easel, pictures, pictures.thumbs, order, _THUMB_PX):
            if on_event:
                on_event(Event("progress", "thumbnails", done=done, total=len(order)))
    return pictures


def _drawing(
    easel: _Easel, pictures: Pictures, numbers: dict[str, int], order: list[int], side_px: int
) -> Iterator[int]:
    """Draw one record after the other until the budget is spent; yield how many are done."""
    for start in range(0, len(order), _WINDOW):
        window = order[start : start + _WINDOW]
        for drawn in easel.draw(window, side_px, numbers.keys() | pictures.undrawn):
            pictures.undrawn.update(drawn.undrawn)
            if not all(pictures.add(numbers, key, data) for key, data in drawn.pictures):
                return
        yield start + len(window)


def spread_order(count: int) -> Iterator[int]:
    """Yield 0 ... count-1, each once, so that any first part of it lies evenly over the whole (bits reversed)."""
    bits = (count - 1).bit_length() if count > 1 else 1
    for number in range(1 << bits):
        place = int(f"{number:0{bits}b}"[::-1], 2)
        if place < count:
            yield place


class _Easel:
    """Reads requests by their place in the manifest and draws their images, some at a time."""

    def __init__(self, run: RunDir, found: Survey) -> None:
        self._run = run
        self._offsets = found.offsets
        self._manifest = open(run.file(MANIFEST), "rb")  # noqa: SIM115  (closed by __exit__)
        self._lines = LineReader(run)
        self._pool = ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1))
        self._shards = present_shards(run)

    def __enter__(self) -> _Easel:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._manifest.close()
        self._lines.close()

    def draw(self, positions: list[int], side_px: int, known: set[str]) -> Iterator[_Drawn]:
        """Yield what came of each record, in order; images that are known are not drawn again."""
        entries = [self._entry(position) for position in positions]
        return self._pool.map(lambda entry: self._draw(entry, side_px, known), entries)

    def _entry(self, position: int) -> Entry:
        self._manifest.seek(self._offsets[position])
        return parse_entry(self._manifest.readline().rstrip(b"\r\n"), position)

    def _draw(self, entry: Entry, side_px: int, known: set[str]) -> _Drawn:
        from vlmbatch.images.base import ImageError
        from vlmbatch.images.thumbs import thumbnail

        new = [image for image in entry.images if sent_sha256(image) not in known]
        if not new or entry.shard not in self._shards:
            return _Drawn([], [])
        drawn, undrawn = [], []
        for image in iter_images(self._lines.body(entry), new):
            try:
                drawn.append((image.sha256, thumbnail(image.data, side_px)))
            except ImageError:
                undrawn.append(image.sha256)
        return _Drawn(drawn, undrawn)


def present_shards(run: RunDir) -> frozenset[str]:
    """Return the names of the shards that can be read here as build wrote them (a redacted copy has none)."""
    if os.path.exists(run.file(REDACTED)):
        return frozenset()
    return frozenset(shard["file"] for shard in run.info["shards"] if os.path.exists(run.file(shard["file"])))


# --- records -------------------------------------------------------------------------------------------------


class Book:
    """The records of the page, written block by block; iterate :meth:`blocks` once, then the rest is complete.

    Attributes:
        prompts: The first different user messages, which records name by number.
        is_one_prompt: Whether every record had the same message.
        reviews: What reviewers said before, by custom_id.
        index_blocks: Number of index blocks written.
        without_shard: Records whose frozen line is not in this folder.
        without_picture: Records for which the budget did not suffice.
        pictures: The pictures.
    """

    def __init__(
        self, run: RunDir, records: str, found: Survey, pictures: Pictures, known: prices.Prices | None = None
    ) -> None:
        self.prompts: list[str] = []
        self.is_one_prompt = True
        self.reviews: dict[str, dict[str, Any]] = {}
        self.index_blocks = 0
        self.without_shard = 0
        self.without_picture = 0
        self.pictures = pictures
        self._run = run
        self._records = records
        self._prices = known
        self._found = found
        self._shards = present_shards(run)
        self._index: dict[str, list[Any]] = {key: [] for key in _INDEX_KEYS}

    def blocks(self, on_event: Callable[[Event], None] | None = None) -> Iterator[bytes]:
        """Yield the data blocks of the page: pictures, then records with their index.

        Raises:
            IntegrityError: Records and manifest do not go together, or a frozen line differs.
        """
        yield from self.pictures.blocks()
        rows: list[dict[str, Any]] = []
        block = 0
        with LineReader(self._run) as lines:
            for record, entry in self._pairs():
                rows.append(self._row(record, entry, lines))
                self._note(record, entry)
                if len(rows) == ROWS_A_BLOCK:
                    yield _packed(f"rows-{block}", rows)
                    rows, block = [], block + 1
                if len(self._index["id"]) == _INDEX_A_BLOCK:
                    yield self._pack_index()
                if on_event:
                    on_event(Event("progress", "report", done=entry.position + 1, total=self._found.requests))
        if rows:
            yield _packed(f"rows-{block}", rows)
            yield self._pack_index()
        elif self._index["id"]:
            yield self._pack_index()

    def _pairs(self) -> Iterator[tuple[dict[str, Any], Entry]]:
        """Yield the records of the page beside their manifest lines."""
        shown = iter(self._found.shown)
        following = next(shown, None)
        for line, entry in zip(jsonl.iter_lines(self._records), self._run.iter_entries(), strict=True):
            if entry.position != following:
                continue
            record = jsonl.loads_exact(line.data)
            if record["custom_id"] != entry.custom_id:
                raise IntegrityError(
                    f"{self._records}: line {line.number} is {record['custom_id']!r}, not {entry.custom_id!r}",
                    hint="run collect again: the records are not those of this manifest",
                )
            following = next(shown, None)
            yield record, entry

    def _row(self, record: dict[str, Any], entry: Entry, lines: LineReader) -> dict[str, Any]:
        return {
            "text": record["text"],
            "json": None if record["json"] is None else jsonl.dumps(record["json"]).decode(),
            "reasoning": record["reasoning"],
            "reason": record["reason"],
            "error": record["error"],
            "prompt": self._prompt(entry, lines),
            "images": [self._image(image) for image in record["images"]],
            "fields": row_fields(entry.row),
            "usage": record["usage"],
            "cost": self._cost(record),
            "finish_reason": record["finish_reason"],
            "model": record["model"],
            "notes": record.get("notes") or [],
            "source_file": record["source_file"],
            "source_line": record["source_line"],
            "superseded": record["superseded"],
            "line_sha256": entry.line_sha256,
            "frozen": f"{entry.shard}, byte {entry.offset}, {entry.length} bytes",
        }

    def _cost(self, record: dict[str, Any]) -> str | None:
        """Return what a record's attempts cost in USD, those that were superseded too; None where that is not known."""
        sent = [one for one in (record, *record["superseded"]) if one.get("channel") and one.get("usage")]
        amounts = [prices.cost(one["usage"], self._prices, one["channel"]) for one in sent] if self._prices else []
        told = [amount for amount in amounts if amount is not None]
        return f"{sum(told, Decimal(0)).normalize():f}" if told else None

    def _prompt(self, entry: Entry, lines: LineReader) -> int | str | None:
        """Return the user's message as a number in ``prompts``, or as text once these are many."""
        if entry.shard not in self._shards:
            self.without_shard += 1
            self.is_one_prompt = False
            return None
        text = _readable(read_prompt(lines.body(entry)))
        if text in self.prompts:
            return self.prompts.index(text)
        self.is_one_prompt = not self.prompts
        if len(self.prompts) == _PROMPTS:
            return text
        self.prompts.append(text)
        return len(self.prompts) - 1

    def _image(self, image: ImageRecord) -> dict[str, Any]:
        key = sent_sha256(image)
        preview = self.pictures.previews.get(key, self.pictures.thumbs.get(key, UNKNOWN))
        return {**image, "preview": preview}

    def _note(self, record: dict[str, Any], entry: Entry) -> None:
        """Put one record into the index."""
        position, usage, images = entry.position, record["usage"], record["images"]
        text = record["text"] or ""
        said = text or record["reason"] or (record["error"] or {}).get("message") or ""
        keys = {sent_sha256(image) for image in images if not image.get("file_id")} - self.pictures.undrawn
        thumbs = [self.pictures.thumbs[key] for key in keys & self.pictures.thumbs.keys()]
        self.without_picture += bool(keys) and not thumbs and entry.shard in self._shards
        values = {
            "id": record["custom_id"],
            "name": images[0]["path"] if images else "",
            "said": " ".join(said[: 2 * _SAID].split())[:_SAID],
            "status": self._found.status[position],
            "thumb": min(thumbs, default=UNKNOWN),
            "input": UNKNOWN if usage["input_tokens"] is None else usage["input_tokens"],
            "output": self._found.output_tokens[position],
            "ms": self._found.latency_ms[position],
            "length": len(text),
        }
        for key, value in values.items():
            self._index[key].append(value)
        if record.get("review"):
            self.reviews[record["custom_id"]] = record["review"]

    def _pack_index(self) -> bytes:
        block = _packed(f"index-{self.index_blocks}", self._index)
        self._index = {key: [] for key in _INDEX_KEYS}
        self.index_blocks += 1
        return block


def _packed(name: str, value: Any) -> bytes:
    """Return one data block: base64 has no character that an HTML parser could trip over."""
    data = base64.b64encode(gzip.compress(jsonl.dumps(value), 6, mtime=0))
    return b'<script type="application/gzip" id="%b">%b</script>\n' % (name.encode(), data)


def _readable(parts: list[str | None]) -> str:
    """Return the user's message as text, with a mark where each image stands."""
    images = iter(range(1, len(parts) + 1))
    return "\n\n".join(f"⟨image {next(images)}⟩" if part is None else part for part in parts)


class _Digits(str):
    """A number as it stands in the row."""

    __slots__ = ()


def row_fields(row: bytes) -> list[list[str]]:
    """Return an input row as names and values for reading; no digit of a number changes."""
    try:
        value = json.loads(row, parse_int=_Digits, parse_float=_Digits)
    except (ValueError, RecursionError):
        return [["", row.decode("utf-8", "replace")]]
    if not isinstance(value, dict):
        return []
    return [[name, _shown(item)] for name, item in value.items()]


def _shown(item: Any) -> str:
    if isinstance(item, str):
        return item
    if isinstance(item, list):
        return f"[{', '.join(_inner(part) for part in item)}]"
    if isinstance(item, dict):
        return f"{{{', '.join(f'{_inner(name)}: {_inner(part)}' for name, part in item.items())}}}"
    return json.dumps(item)


def _inner(item: Any) -> str:
    is_text = isinstance(item, str) and not isinstance(item, _Digits)
    return json.dumps(item, ensure_ascii=False) if is_text else _shown(item)
