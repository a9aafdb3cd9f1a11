"""build: inputs become a run folder whose every request is frozen to the byte.

One reader gives items in order, a bounded window of worker threads turns each into a frozen line (read, look,
prepare, encode, hash), one writer puts the lines into shards in input order. Memory does not grow with the inputs.
"""

from __future__ import annotations

import base64
import os
import socket
from array import array
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from vlmbatch import __version__, images, jsonl, providers
from vlmbatch.errors import InputError, Problem
from vlmbatch.freeze import Frozen, LineWriter, ShardWriter, custom_id, freeze, id_stem
from vlmbatch.inputs.base import Item, Rejected
from vlmbatch.providers.base import ImagePart
from vlmbatch.records import REJECTED_SCHEMA, RUN_SCHEMA, Event, ImageFacts, ImageRecord, RunInfo
from vlmbatch.rundir import MANIFEST, REJECTED, Draft, RunDir
from vlmbatch.stages.plan import BuildOptions, Plan, plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Future

    from vlmbatch.images import ImagePolicy
    from vlmbatch.inputs.base import ImageSource
    from vlmbatch.providers.base import Ask, Part, Provider

_SHOWN_PROBLEMS = 1000
"""Bad inputs kept for the message; all are counted."""


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What build made.

    Attributes:
        run: The finished run folder.
        counts: ``requests``, ``images``, ``rejected``, ``duplicate_images`` and what else was counted.
        left_out: Files that the folder scan left out, by reason.
        warnings: Sentences for people.
    """

    run: RunDir
    counts: dict[str, int]
    left_out: dict[str, int]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Made:
    """One item after the workers are done with it: a frozen line with its images."""

    item: Item
    frozen: Frozen
    images: list[ImageRecord]
    facts: tuple[ImageFacts, ...]
    warnings: tuple[str, ...]


def build(options: BuildOptions, *, on_event: Callable[[Event], None] | None = None) -> BuildResult:
    """Make a run folder.

    Args:
        options: What to freeze.
        on_event: Called with progress (requests done) and warnings, from the calling thread.

    Raises:
        InputError: Wrong options or bad inputs (all of them listed); no folder is left behind.
        OSError: The disk gave out; no folder is left behind.
    """
    todo = plan(options)
    provider = providers.get(options.provider, next(iter(todo.asks.values())).url)
    warnings = _check_asks(provider, todo.asks)
    with Draft(options.out) as draft:
        press = _Press(todo, provider, draft)
        press.feed(_pressed(todo, provider, press.stem), on_event)
        info = press.finish()
        draft.publish(info)
    report = todo.source.report
    return BuildResult(
        RunDir.open(options.out), info["counts"], report.left_out, (*warnings, *report.warnings, *press.warnings())
    )


def _check_asks(provider: Provider, asks: dict[str, Ask]) -> list[str]:
    """Refuse options that the provider would refuse, before any image is read; return warnings."""
    problems: list[Problem] = []
    warnings: list[str] = []
    for ask in asks.values():
        found, said = provider.check_ask(ask)
        problems += found
        warnings += [sentence for sentence in said if sentence not in warnings]
    if problems:
        raise InputError(
            f"{len(problems)} option(s) that {provider.name} does not take",
            hint="change or drop them; nothing was written",
            problems=problems,
        )
    return warnings


# --- workers: item → frozen line ---------------------------------------------------------------------------


def _pressed(todo: Plan, provider: Provider, stem: str) -> Iterator[_Made | Rejected]:
    """Yield items frozen or rejected, in input order, from a bounded window of worker threads."""
    workers = todo.options.workers or os.cpu_count() or 1
    window: deque[Future[_Made | Rejected] | Rejected] = deque()

    def next_done() -> _Made | Rejected:
        head = window.popleft()
        return head if isinstance(head, Rejected) else head.result()

    with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="build") as pool:
        try:
            for item in todo.source:
                rejected = isinstance(item, Rejected)
                window.append(item if rejected else pool.submit(_make, item, todo, provider, stem))  # type: ignore[arg-type]
                if len(window) > 2 * workers + 2:
                    yield next_done()
            while window:
                yield next_done()
        finally:
            pool.shutdown(cancel_futures=True)


def _make(item: Item, todo: Plan, provider: Provider, stem: str) -> _Made | Rejected:
    """Read and check the images of one item and freeze its request; a bad image makes it a rejection."""
    ask = todo.asks[item.output]
    limits = provider.limits(ask.model, todo.options.limits)
    taken: list[tuple[ImageSource, ImageFacts, ImageFacts, bytes]] = []
    for source in item.images:
        try:
            original, sent, data = _take(source, todo.options.image_policy, limits)
        except OSError as error:
            return _reject(item, source.path, "unreadable", f"cannot be read: {error.strerror or error}")
        except images.ImageError as error:
            return _reject(item, source.path, error.code, str(error))
        taken.append((source, original, sent, data))
    sent_facts = [sent for _, _, sent, _ in taken]
    problems, warnings = provider.check_images(sent_facts, limits=limits)
    if problems:
        path = item.images[0].path if item.images else ""
        return _reject(item, path, problems[0].code, "; ".join(problem.message for problem in problems))
    first = taken[0][1].sha256 if taken else None
    frozen = freeze(provider, ask, custom_id(stem, item.index, first), list(_parts(item, taken)))
    records = [_image_record(source, original, sent) for source, original, sent, _ in taken]
    return _Made(item, frozen, records, tuple(original for _, original, _, _ in taken), tuple(warnings))


def _take(source: ImageSource, policy: ImagePolicy, limits: Any) -> tuple[ImageFacts, ImageFacts, bytes]:
    """Read one image; return the file's facts, the sent image's facts, and the bytes to send."""
    data = source.read()
    facts = images.inspect(data, check=policy.check)
    data, sent = images.prepare(data, facts, policy, limits.media_types, animated_ok=limits.animated)
    return facts, sent, data


def _parts(item: Item, taken: Sequence[tuple[ImageSource, ImageFacts, ImageFacts, bytes]]) -> Iterator[Part]:
    import pybase64

    for part in item.parts:
        if isinstance(part, str):
            yield part
        else:
            _, _, sent, data = taken[part]
            yield ImagePart(sent.media_type, base64=pybase64.b64encode_as_string(data))


def _image_record(source: ImageSource, facts: ImageFacts, sent: ImageFacts) -> ImageRecord:
    record = ImageRecord(
        path=source.path,
        sha256=facts.sha256,
        bytes=facts.bytes,
        width=facts.width,
        height=facts.height,
        media_type=facts.media_type,
    )
    if source.path_bytes is not None:
        record["path_bytes"] = base64.b64encode(source.path_bytes).decode()
    if facts.orientation is not None and facts.orientation != 1:
        record["orientation"] = facts.orientation
    if sent is not facts:
        record["sent"] = {
            "sha256": sent.sha256,
            "bytes": sent.bytes,
            "width": sent.width,
            "height": sent.height,
            "media_type": sent.media_type,
        }
    return record


def _reject(item: Item, path: str, code: str, message: str) -> Rejected:
    return Rejected(item.index, code, message, where=item.where, source_line=item.source_line, path=path)


# --- the writer: frozen lines → folder ---------------------------------------------------------------------


class _Press:
    """Takes frozen lines in input order and writes the folder; holds counts, never lines."""

    def __init__(self, todo: Plan, provider: Provider, draft: Draft) -> None:
        options = todo.options
        self._plan = todo
        self._provider = provider
        self._draft = draft
        self._ask = next(iter(todo.asks.values()))
        max_bytes, max_requests = provider.shard_limits(self._ask.model)
        self._max_bytes = options.shard_max_bytes or max_bytes
        self._shards = ShardWriter(
            draft, max_bytes=self._max_bytes, max_requests=options.shard_max_requests or max_requests
        )
        self._manifest = LineWriter(draft, MANIFEST)
        self._rejected = LineWriter(draft, REJECTED) if options.skip_bad else None
        self._problems: list[Problem] = []
        self._bad = 0
        self._image_count = 0
        self._hashes = array("Q")  # 8 bytes an image: enough to count duplicates, and memory stays flat
        self._source_digest = sha256()
        self._noticed: Counter[str] = Counter()
        self.stem = id_stem(options.id_prefix, self._what_is_asked())

    def _what_is_asked(self) -> list[Any]:
        texts = {role: jsonl.sha256(file.data) for role, file in sorted(self._plan.verbatim.items())}
        params = {name: self._provider.params(ask) for name, ask in sorted(self._plan.asks.items())}
        return [self._ask.model, texts, params]

    def feed(self, made: Iterable[_Made | Rejected], on_event: Callable[[Event], None] | None) -> None:
        """Write every line; once something is bad and must not be, only go on checking.

        Raises:
            InputError: There are bad inputs, or nothing to build.
        """
        total = getattr(self._plan.source, "total", None)
        for done, one in enumerate(made, start=1):
            if isinstance(one, Rejected):
                self._reject(one)
            elif not self._bad or self._plan.options.skip_bad:
                self._put(one)
            if on_event:
                on_event(Event("progress", "build", done=done, total=total))
        self._refuse_bad()

    def _put(self, made: _Made) -> None:
        frozen, item = made.frozen, made.item
        shard, offset = self._shards.put(frozen.line, images=len(made.images))
        head: dict[str, Any] = {
            "custom_id": frozen.custom_id,
            "shard": shard,
            "offset": offset,
            "length": len(frozen.line),
            "body_offset": frozen.body_offset,
            "body_length": frozen.body_length,
            "inner_sha256": frozen.inner_sha256,
            "line_sha256": frozen.line_sha256,
            "images": made.images,
        }
        if item.source_line is not None:
            head["source_line"] = item.source_line
        if item.output:
            head["output"] = item.output
        head["row"] = jsonl.Fragment(item.row)
        self._manifest.put(jsonl.dumps(head))
        for record in made.images:
            self._image_count += 1
            self._hashes.append(int(record["sha256"][:16], 16))
            self._source_digest.update(f"{record['sha256']}  {record['path']}\n".encode("utf-8", "surrogateescape"))
        self._notice(made)

    def _notice(self, made: _Made) -> None:
        for facts in made.facts:
            self._noticed.update(facts.notes)
            self._noticed["gps"] += facts.has_gps
            self._noticed["turned"] += facts.orientation in range(2, 9)
        self._noticed.update(made.warnings)
        self._noticed["oversize"] += len(made.frozen.line) >= self._max_bytes

    def _reject(self, rejected: Rejected) -> None:
        self._bad += 1
        where = rejected.path if rejected.source_line is None else rejected.where
        if len(self._problems) < _SHOWN_PROBLEMS:
            self._problems.append(Problem(rejected.code, rejected.message, where or rejected.path, rejected.source_line))
        if self._rejected is not None:
            self._rejected.put(
                jsonl.dumps(
                    {
                        "schema": REJECTED_SCHEMA,
                        "index": rejected.index,
                        "source_line": rejected.source_line,
                        "path": rejected.path or None,
                        "reason": {"code": rejected.code, "message": rejected.message},
                    }
                )
            )

    def _refuse_bad(self) -> None:
        if self._bad and not self._plan.options.skip_bad:
            raise InputError(
                f"{self._bad} bad input(s); nothing was written",
                hint="mend them, or --skip-bad records them in rejected.jsonl and goes on",
                problems=self._problems,
            )
        if not self._manifest.lines:
            raise InputError(
                f"nothing to build: {self._plan.source.path} gave no usable input",
                hint="check the path; hidden files and files with known non-image suffixes are left out",
                problems=self._problems,
            )

    def finish(self) -> RunInfo:
        """Close the files, copy the verbatim inputs, and return run.json."""
        options, ask = self._plan.options, self._ask
        self._shards.close()
        manifest = self._manifest.close()
        rejected = self._rejected.close() if self._rejected else None
        copies = {
            role: self._draft.write(f"inputs/{file.name}", file.data) for role, file in self._plan.verbatim.items()
        }
        source = self._plan.source
        return {
            "schema": RUN_SCHEMA,
            "tool": {"name": "vlmbatch", "version": __version__},
            "libraries": self._libraries(),
            "created_at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "host": socket.gethostname(),
            "provider": options.provider,
            "model": ask.model,
            "request": self._request(),
            "prompt": copies.get("prompt"),  # type: ignore[typeddict-item]  # a FileRef
            "system": copies.get("system"),  # type: ignore[typeddict-item]
            "inputs": list(copies.values()),  # type: ignore[typeddict-item]
            "source": {
                "kind": source.kind,
                "path": source.path,
                "sha256": source.report.sha256 or self._source_digest.hexdigest(),
                "count": self._manifest.lines + self._bad,
            },
            "image_policy": options.image_policy.as_record(),
            "answer": self._plan.answer,
            "id_stem": self.stem,
            "counts": self._counts(),
            "shards": self._shards.shards,
            "manifest": {**manifest, "requests": self._manifest.lines},  # type: ignore[typeddict-item]
            "rejected": rejected,  # type: ignore[typeddict-item]
            "settings": self._plan.settings,
            "extensions": {},
        }

    def _request(self) -> Any:
        """Return what is asked apart from prompt and images; where outputs differ, each one's params by name."""
        asks = self._plan.asks
        request: dict[str, Any] = {
            "method": "POST",
            "url": self._provider.url(self._ask),
            "params": self._provider.params(self._ask),
        }
        headers = self._provider.frozen_headers(self._ask)
        if headers:
            request["headers"] = headers
        if len(asks) > 1:
            request["outputs"] = {name: self._provider.params(ask) for name, ask in asks.items()}
        return request

    def _libraries(self) -> dict[str, str]:
        """Return the versions of what can change a frozen byte; two machines differ for nothing else."""
        names = ["orjson"] + (["pillow"] if self._plan.options.image_policy.changes_bytes else [])
        return {name: version(name) for name in names}

    def _counts(self) -> dict[str, int]:
        return {
            "requests": self._manifest.lines,
            "rejected": self._bad,
            "images": self._image_count,
            "duplicate_images": self._image_count - len(set(self._hashes)),
        }

    def warnings(self) -> list[str]:
        """Return one sentence for each odd thing that was noticed, with its count."""
        noticed = self._noticed
        return [f"{noticed[code]:,} {sentence}" for code, sentence in _SENTENCES.items() if noticed[code]]


_SENTENCES = {
    "gps": "image(s) carry a GPS position, which leaves the building with them; --strip-metadata drops it",
    "turned": "image(s) have an EXIF orientation, which servers may or may not apply; --orient apply bakes it in",
    "tiny": "image(s) have a side below 28 pixels; several models refuse or misread them",
    "slim": "image(s) are over 200 times longer than wide; several models refuse them",
    "broken_exif": "image(s) have broken EXIF metadata; the pixels are fine",
    "trailing_bytes": "image(s) have stray bytes behind their end; they are sent as they are",
    "oversize": "request(s) are larger than a whole shard may be and stand alone in theirs",
}
