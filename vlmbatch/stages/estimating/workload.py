"""What a run holds, as far as money depends on it: one pass over the manifest, images by size, text by length.

Nothing of a body is parsed but the first one's: a body's length and its images' lengths are in the manifest, and what
is left of them is text and the frame around it. The frame is measured on the first line.
"""

from __future__ import annotations

import heapq
import os
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from vlmbatch import jsonl, tokens
from vlmbatch.errors import Problem
from vlmbatch.records import Event
from vlmbatch.rundir import LineReader, damaged_line, parse_entry, parse_head

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from vlmbatch.records import Entry, ImageRecord, ManifestHead
    from vlmbatch.rundir import RunDir

BYTES_PER_TEXT_TOKEN = 3
"""The rule for text: UTF-8 bytes by three. English has some 4.5 to a token, other scripts fewer: it errs upward."""

_LARGEST = 5
_EVERY = 8192
_STEP_PX = 16
_MOST_LINES = 1000

_PROSE = frozenset({"text", "content", "system", "instructions", "input"})
"""Keys of a body under which a string is text for the model, whatever the wire format."""

_MISSHAPEN = (KeyError, TypeError, AttributeError)
"""What comes of a manifest line that is JSON, but whose images are not as build describes them."""

_DETAIL = ("detail", "mediaResolution", "media_resolution")


# --- the frame: what the first body tells ----------------------------------------------------------------------


class Frame(NamedTuple):
    """What all bodies of a run share: bytes that are neither text nor image, and the image detail asked for."""

    bytes: int = 0
    detail: str | None = None


def read_frame(run: RunDir) -> Frame:
    """Return the frame of a run, measured on its first line; nothing where the shard is not at hand.

    Raises:
        IntegrityError: The line, or what the manifest says of it, is not what build wrote.
    """
    entry = next(run.iter_entries(), None)
    if entry is None or not os.path.exists(run.file(entry.shard)):
        return Frame()
    with LineReader(run) as reader:
        body = jsonl.loads(reader.body(entry))
    prose, detail = 0, None
    for key, value in _walk(body):
        if key in _PROSE and isinstance(value, str):
            prose += len(value.encode("utf-8", "surrogatepass"))
        elif key in _DETAIL and detail is None:
            level = value.get("level") if isinstance(value, dict) else value
            detail = level if isinstance(level, str) else None
    return Frame(max(0, entry.body_length - image_bytes(entry) - prose), detail)


def _walk(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key of a body with its value, at any depth; what stands in a schema or tool is no text to count."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key, inner
            yield from _walk(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _walk(inner)


def image_bytes(entry: Entry) -> int:
    """Return how many bytes of a body are its images: base64, and the media type's name.

    Raises:
        IntegrityError: The manifest's line does not say how large an image is.
    """
    try:
        sent = [image.get("sent") or image for image in entry.images if "file_id" not in image]
        return sum((image["bytes"] + 2) // 3 * 4 + len(image["media_type"]) for image in sent)
    except _MISSHAPEN:
        raise damaged_line(entry.position) from None


# --- the ruler: tokens by size, each size counted once ---------------------------------------------------------


class Ruler:
    """Counts an image's tokens by its size; with no scheme it gives the middle of what any known one would give.

    Attributes:
        scheme: How images are counted, None where nobody knows.
        known: Tokens of the sizes that were counted so far.
        odd: Sizes of which there is more to say: unknown ones, refused ones, and all of them without a scheme.
        bounds: Least and most tokens by size; filled only where there is no scheme.
        refused: Sizes that the model's own processor refuses.
    """

    def __init__(
        self,
        scheme: tokens.Scheme | None,
        *,
        table: tokens.Table | None = None,
        family: str = "",
        fixed_tokens: int = tokens.DEFAULT_FIXED_TOKENS,
    ) -> None:
        self.scheme = scheme
        self.known: dict[tuple[int, int], int] = {}
        self.odd: set[tuple[int, int]] = set()
        self.bounds: dict[tuple[int, int], tokens.Spread] = {}
        self.refused: set[tuple[int, int]] = set()
        self._fixed = fixed_tokens
        self._settings = [] if scheme else tokens.settings(table, family)
        self._spreads: dict[tuple[int, int], tokens.Spread] = {}

    def count(self, size: tuple[int, int]) -> int:
        """Return the tokens of an image of some width and height in pixels; a side of 0 = nobody knows it."""
        counted = self._bound(size) if self.scheme is None else self._count(self.scheme, size)
        self.known[size] = counted
        return counted

    def _count(self, scheme: tokens.Scheme, size: tuple[int, int]) -> int:
        width, height = (side or None for side in size)
        counted = scheme.count(width, height)
        if counted.refused:
            self.refused.add(size)
        if counted.refused or not all(size):
            self.odd.add(size)
        return counted.tokens

    def _bound(self, size: tuple[int, int]) -> int:
        """Ask every rule, in steps of some pixels: a range over all of them is no finer than that."""
        width, height = (-(-side // _STEP_PX) * _STEP_PX for side in size)
        bounds = self._spreads.get((width, height))
        if bounds is None:
            known = tokens.spread(width or None, height or None, settings=self._settings)
            bounds = self._spreads[width, height] = known if known.high else tokens.Spread(self._fixed, self._fixed)
        self.odd.add(size)
        self.bounds[size] = bounds
        return (bounds.low + bounds.high) // 2


# --- the pass ------------------------------------------------------------------------------------------------------


class LargeImage(NamedTuple):
    """One of the images that take most tokens."""

    tokens: int
    path: str
    width: int
    height: int
    custom_id: str


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the sample as the manifest has it: what its measured usage is compared with.

    Attributes:
        line_sha256: Hash of its frozen line.
        output: Name of the pipeline output, else empty.
        images: Its images.
        row: The input row's own JSON.
        image_tokens: Tokens of its images by the formula.
        text_bytes: UTF-8 bytes of its text.
    """

    line_sha256: str
    output: str
    images: list[ImageRecord]
    row: bytes
    image_tokens: int
    text_bytes: int


@dataclass(slots=True)
class OverShard:
    """A shard that is over a limit, and the lines at fault.

    Attributes:
        file: The shard.
        bytes: Its bytes.
        requests: Its requests.
        first_line: 1-based number of the first line that no longer fits.
        first_id: Its custom_id.
        beyond: Lines from there on.
        alone: Lines that are over the limit all alone: (number, custom_id, bytes), a thousand at most.
    """

    file: str
    bytes: int
    requests: int
    first_line: int = 0
    first_id: str = ""
    beyond: int = 0
    alone: list[tuple[int, str, int]] = field(default_factory=list)
    _line: int = 0

    def see(self, head: ManifestHead, limit: Limit) -> None:
        """Look at the shard's next line."""
        self._line += 1
        size = head["length"] + 1
        if size > limit.bytes and len(self.alone) < _MOST_LINES:
            self.alone.append((self._line, head["custom_id"], size))
        if head["offset"] + size > limit.bytes or self._line > limit.requests:
            if not self.beyond:
                self.first_line, self.first_id = self._line, head["custom_id"]
            self.beyond += 1

    def problems(self, limit: Limit) -> list[Problem]:
        """Return what is wrong with the shard, then each line that is too long all alone."""
        over = f"{self.bytes:,} bytes" if self.bytes > limit.bytes else f"{self.requests:,} requests"
        allowed = f"{limit.bytes:,}" if self.bytes > limit.bytes else f"{limit.requests:,}"
        whole = Problem(
            "shard_over_limit",
            f"{over}, the limit is {allowed}; from {self.first_id} on, {self.beyond:,} line(s) do not fit",
            self.file,
            self.first_line,
        )
        return [whole] + [
            Problem("line_over_limit", f"{custom_id}: {size:,} bytes, over the limit all alone", self.file, line)
            for line, custom_id, size in self.alone
        ]


class Limit(NamedTuple):
    """What one shard may hold."""

    bytes: float = float("inf")
    requests: float = float("inf")


@dataclass(slots=True)
class Workload:
    """What a run holds.

    Attributes:
        requests: Its requests.
        images: Their images.
        image_tokens: Tokens of all images by the formula (the middle of the range where none is known).
        image_tokens_low: Least that they may be; below ``image_tokens`` only where no formula is known.
        image_tokens_high: Most that they may be.
        text_bytes: UTF-8 bytes of all text.
        sizes: How many requests there are of each number of image tokens.
        largest: The images that take most tokens, largest first.
        refused: Images that the model's own processor refuses.
        unknown: Images of unknown size.
        rows: The rows that were asked for, by custom_id.
        over: Shards over a limit.
    """

    requests: int = 0
    images: int = 0
    image_tokens: int = 0
    image_tokens_low: int = 0
    image_tokens_high: int = 0
    text_bytes: int = 0
    sizes: Counter[int] = field(default_factory=Counter)
    largest: list[LargeImage] = field(default_factory=list)
    refused: int = 0
    unknown: int = 0
    rows: dict[str, Row] = field(default_factory=dict)
    over: dict[str, OverShard] = field(default_factory=dict)


def survey(
    run: RunDir,
    ruler: Ruler,
    frame: Frame,
    *,
    wanted: Collection[str] = (),
    limit: Limit = Limit(),  # noqa: B008  (a tuple, never changed)
    on_event: Callable[[Event], None] | None = None,
) -> Workload:
    """Read the manifest once.

    Args:
        run: The run.
        ruler: Counts image tokens.
        frame: The bodies' frame.
        wanted: custom_ids whose rows are to be kept.
        limit: What a shard may hold.
        on_event: Called with progress in requests.

    Raises:
        IntegrityError: A line of the manifest is damaged.
    """
    load = Workload(over=_over(run, limit))
    count_image, odd, is_watched = ruler.known.get, ruler.odd, bool(wanted or load.over)
    sizes: dict[int, int] = {}
    images = text = 0
    least = -1
    # A million rows pass here: what is looked up for each of them stands in a local name.
    for position, data, head in _heads(run, on_event):
        row_tokens = 0
        try:
            pictures, row_text = head["images"], head["body_length"] - frame.bytes
            for image in pictures:
                sent, path = image.get("sent", image), image["path"]
                size = sent["width"], sent["height"]
                count = count_image(size)
                if count is None:
                    count = ruler.count(size)
                row_tokens += count
                if "file_id" not in image:
                    row_text -= (sent["bytes"] + 2) // 3 * 4 + len(sent["media_type"])
                if count > least:
                    least = _keep_largest(load.largest, LargeImage(count, path, *size, head["custom_id"]))
                if odd and size in odd:
                    _note_odd(load, ruler, size)
        except _MISSHAPEN:
            raise damaged_line(position) from None
        images += len(pictures)
        sizes[row_tokens] = sizes.get(row_tokens, 0) + 1
        text += max(0, row_text)
        if is_watched and head["shard"] in load.over:
            load.over[head["shard"]].see(head, limit)
        if is_watched and head["custom_id"] in wanted:
            load.rows[head["custom_id"]] = _keep(parse_entry(data, position), row_tokens, row_text)
    load.images, load.text_bytes, load.sizes = images, text, Counter(sizes)
    return _sum_up(load, ruler)


def _heads(run: RunDir, on_event: Callable[[Event], None] | None) -> Iterator[tuple[int, bytes, ManifestHead]]:
    """Yield each line of the manifest: its position, its bytes, its head."""
    for position, data in enumerate(run.iter_manifest()):
        yield position, data, parse_head(data, position)
        if on_event and not position % _EVERY:
            on_event(Event("progress", "estimate", done=position, total=run.requests))


def _keep(entry: Entry, image_tokens: int, text_bytes: int) -> Row:
    """Return what is kept of a row of the sample."""
    return Row(entry.line_sha256, entry.output, entry.images, entry.row, image_tokens, max(0, text_bytes))


def _over(run: RunDir, limit: Limit) -> dict[str, OverShard]:
    return {
        shard["file"]: OverShard(shard["file"], shard["bytes"], shard["requests"])
        for shard in run.info["shards"]
        if shard["bytes"] > limit.bytes or shard["requests"] > limit.requests
    }


def _keep_largest(heap: list[LargeImage], image: LargeImage) -> int:
    """Keep one of the largest images; return the tokens that the next one must exceed."""
    if len(heap) < _LARGEST:
        heapq.heappush(heap, image)
    else:
        heapq.heapreplace(heap, image)
    return heap[0].tokens if len(heap) == _LARGEST else -1


def _note_odd(load: Workload, ruler: Ruler, size: tuple[int, int]) -> None:
    if not all(size):
        load.unknown += 1
    elif size in ruler.refused:
        load.refused += 1
    if ruler.bounds:
        load.image_tokens_low += ruler.bounds[size].low
        load.image_tokens_high += ruler.bounds[size].high


def _sum_up(load: Workload, ruler: Ruler) -> Workload:
    load.requests = load.sizes.total()
    load.image_tokens = sum(size * rows for size, rows in load.sizes.items())
    if not ruler.bounds:
        load.image_tokens_low = load.image_tokens_high = load.image_tokens
    load.largest.sort(reverse=True)
    return load
