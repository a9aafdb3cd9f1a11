"""The press: frozen lines come in input order and become a folder. It holds counts, never lines."""

from __future__ import annotations

import socket
from array import array
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from vlmbatch import __version__, jsonl
from vlmbatch.errors import InputError, counted
from vlmbatch.freeze import LineWriter, ShardWriter, id_stem
from vlmbatch.inputs.base import Rejected
from vlmbatch.providers import limits
from vlmbatch.records import REJECTED_SCHEMA, RUN_SCHEMA, Event, ManifestRef, RunInfo
from vlmbatch.rundir import MANIFEST, REJECTED
from vlmbatch.stages.building.refusals import Refusals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from vlmbatch.freeze import Frozen
    from vlmbatch.inputs.base import Item
    from vlmbatch.providers.base import Provider
    from vlmbatch.records import ImageFacts, ImageRecord
    from vlmbatch.rundir import Draft
    from vlmbatch.stages.building.plan import Plan

_SENTENCES = {
    "gps": "image(s) carry a GPS position, which leaves the building with them; --strip-metadata drops it",
    "turned": "image(s) have an EXIF orientation, which servers may or may not apply; --orient apply bakes it in",
    "tiny": "image(s) have a side below 28 pixels; several models refuse or misread them",
    "slim": "image(s) are over 200 times longer than wide; several models refuse them",
    "broken_exif": "image(s) have broken EXIF metadata; the pixels are fine",
    "xmp_orientation": "image(s) are turned by their XMP alone, which some decoders apply and most do not; "
    "--strip-metadata drops it",
    "first_frame": "image(s) have several frames or pages, of which the first alone is sent",
    "second_picture": "image(s) hold a second picture behind the first (MPO), which goes out with them; "
    "--strip-metadata drops it",
    "pixels_unchecked": "image(s) were checked by their container alone: no decoder for them is installed here "
    "(vlmbatch[heif] brings the one for HEIC)",
    "trailing_bytes": "image(s) have stray bytes behind their end; they are sent as they are",
    "oversize": "request(s) are larger than a whole shard may be and stand alone in theirs",
}


@dataclass(frozen=True, slots=True)
class Made:
    """One item after the workers are done with it: a frozen line with its images."""

    item: Item
    frozen: Frozen
    images: list[ImageRecord]
    facts: tuple[ImageFacts, ...]
    warnings: tuple[str, ...]


class Press:
    """Takes frozen lines in input order and writes the folder; holds counts, never lines."""

    def __init__(self, todo: Plan, provider: Provider, draft: Draft) -> None:
        options = todo.options
        self._plan = todo
        self._provider = provider
        self._draft = draft
        self._ask = todo.ask
        max_bytes, max_requests = provider.shard_limits(self._ask.model)
        self._max_bytes = options.shard_max_bytes or max_bytes
        self._shards = ShardWriter(
            draft, max_bytes=self._max_bytes, max_requests=options.shard_max_requests or max_requests
        )
        self._manifest = LineWriter(draft, MANIFEST)
        self._rejected = LineWriter(draft, REJECTED) if options.skip_bad else None
        self._refusals = Refusals(is_each_told=options.rows is not None)
        self._image_count = 0
        self._hashes = array("Q")  # 8 bytes an image: enough to count duplicates, and memory stays flat
        self._source_digest = sha256()
        self._noticed: Counter[str] = Counter()
        self.stem = id_stem(options.id_prefix, self._what_is_asked())

    def _what_is_asked(self) -> list[Any]:
        """Return all that shapes a request apart from the row: two runs that differ in any of it share no id."""
        options = self._plan.options
        texts = {role: jsonl.sha256(file.data) for role, file in sorted(self._plan.verbatim.items())}
        params = {name: self._provider.params(ask) for name, ask in sorted(self._plan.asks.items())}
        form = [options.question_field, options.image_order, options.image_policy.as_record(), options.carrier]
        return [self._ask.model, self._plan.provider, texts, params, form]

    def feed(self, made: Iterable[Made | Rejected], on_event: Callable[[Event], None] | None) -> None:
        """Write every line; once something is bad and must not be, only go on checking.

        Raises:
            InputError: There are bad inputs, or nothing to build.
        """
        try:
            seen = self._take(made, on_event)
        except InputError as error:
            # The table as a whole is at fault; the bad rows that came before are told with it.
            problems = [*self._refusals.problems(), *error.problems]
            raise InputError(error.message, hint=error.hint, problems=problems) from None
        self._refuse_bad(seen)

    def _take(self, made: Iterable[Made | Rejected], on_event: Callable[[Event], None] | None) -> int:
        """Write or refuse every input; return how many there are."""
        source, done = self._plan.source, 0
        for done, one in enumerate(made, start=1):
            if isinstance(one, Rejected):
                self._reject(one)
            elif not self._refusals.count or self._plan.options.skip_bad:
                self._put(one)
            if on_event:
                on_event(Event("progress", "build", done=done, total=source.total))
        return done

    def _put(self, made: Made) -> None:
        frozen, item = made.frozen, made.item
        with self._draft.writing():
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
        with self._draft.writing():
            self._manifest.put(jsonl.dumps(head))
        for record in made.images:
            self._image_count += 1
            self._hashes.append(int(record["sha256"][:16], 16))
            self._source_digest.update(f"{record['sha256']}  {record['path']}\n".encode("utf-8", "surrogateescape"))
        self._notice(made)

    def _notice(self, made: Made) -> None:
        for facts in made.facts:
            self._noticed.update(facts.notes)
            self._noticed["gps"] += facts.has_gps
            self._noticed["turned"] += facts.orientation in range(2, 9)
        self._noticed.update(made.warnings)
        self._noticed["oversize"] += len(made.frozen.line) >= self._max_bytes

    def _reject(self, rejected: Rejected) -> None:
        self._refusals.add(rejected)
        if self._rejected is not None:
            told = {
                "schema": REJECTED_SCHEMA,
                "index": rejected.index,
                "source_line": rejected.source_line,
                "path": rejected.path or None,
                "reason": {"code": rejected.code, "message": rejected.sentence},
            }
            with self._draft.writing():
                self._rejected.put(jsonl.dumps(told))

    def _refuse_bad(self, seen: int) -> None:
        """Refuse the whole where some input is bad and none may be, or where none is good.

        Args:
            seen: How many inputs there were.
        """
        options, source, refusals = self._plan.options, self._plan.source, self._refusals
        bad = refusals.count + len(source.report.problems)
        if self._manifest.lines and (options.skip_bad or not bad):
            return
        said = f"nothing to build: {source.path} gave no usable input"
        raise InputError(
            said if options.skip_bad or not bad else f"{counted(bad, 'bad [input|inputs]')}; nothing was written",
            hint=refusals.way_out(
                is_all=refusals.count == seen,
                names_fields=options.config is None,
                converts=options.image_policy.convert_unsupported,
            ),
            problems=[*refusals.problems(), *source.report.problems],
        )

    def finish(self, carrier: Mapping[str, Any] | None = None) -> RunInfo:
        """Close the files, copy the verbatim inputs, and return run.json.

        Args:
            carrier: Where the images were put first, None where they are inline.
        """
        options, ask = self._plan.options, self._ask
        with self._draft.writing():
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
            "provider": self._plan.provider,
            "model": ask.model,
            "request": self._request(),
            "prompt": copies.get("prompt"),
            "system": copies.get("system"),
            "inputs": list(copies.values()),
            "source": {
                "kind": source.kind,
                "path": source.path,
                "sha256": source.report.sha256 or self._source_digest.hexdigest(),
                "count": self._manifest.lines + self._refusals.count,
            },
            "image_policy": options.image_policy.as_record(),
            "answer": self._plan.answer,
            "id_stem": self.stem,
            "counts": self._counts(),
            "shards": self._shards.shards,
            "manifest": ManifestRef(
                file=manifest["file"],
                sha256=manifest["sha256"],
                bytes=self._manifest.bytes,
                requests=self._manifest.lines,
            ),
            "rejected": rejected,
            "settings": self._plan.settings,
            "carrier": dict(carrier or {"kind": "inline"}),
            "extensions": {},
        }

    def _request(self) -> Any:
        """Return what is asked apart from prompt and images; where outputs have names, each one's params by name."""
        asks = self._plan.asks
        request: dict[str, Any] = {
            "method": "POST",
            "url": self._provider.url(self._ask),
            "params": self._provider.params(self._ask),
        }
        headers = self._provider.frozen_headers(self._ask)
        if headers:
            request["headers"] = headers
        if "" not in asks:
            request["outputs"] = {name: self._provider.params(ask) for name, ask in asks.items()}
        return request

    def _libraries(self) -> dict[str, str]:
        """Return the versions of what can change a frozen byte; two machines differ for nothing else."""
        are_written = self._plan.options.image_policy.changes_bytes or self._plan.source.report.encoded
        names = ["orjson"] + (["pillow"] if are_written else [])
        return {name: version(name) for name in names}

    def _counts(self) -> dict[str, int]:
        return {
            "requests": self._manifest.lines,
            "rejected": self._refusals.count,
            "images": self._image_count,
            "duplicate_images": _repeats(self._hashes),
        }

    def warnings(self) -> list[str]:
        """Return one sentence for each odd thing that was noticed, with its count."""
        noticed = self._noticed
        bounds = self._provider.limits(self._ask.model, self._plan.options.limits)
        sentences = {**_SENTENCES, **limits.sentences(bounds)}
        return [counted(noticed[code], sentence) for code, sentence in sentences.items() if noticed[code]]


_PART = 1 << 20
"""Digests in one set: what is counted in parts takes no more memory in a long run than in a short one."""


def _repeats(digests: Sequence[int]) -> int:
    """Return how many of the digests stand there a second time."""
    parts = 1 + len(digests) // _PART
    distinct = (len({digest for digest in digests if digest % parts == part}) for part in range(parts))
    return len(digests) - sum(distinct)
