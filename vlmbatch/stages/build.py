"""build: inputs become a run folder whose every request is frozen to the byte.

One reader gives items in order, a bounded window of worker threads turns each into a frozen line (read, look,
prepare, encode, hash), one writer puts the lines into shards in input order. Memory does not grow with the inputs.
"""

from __future__ import annotations

import base64
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from vlmbatch import images, providers
from vlmbatch.errors import InputError, Problem
from vlmbatch.freeze import custom_id, freeze
from vlmbatch.inputs.base import Item, Rejected
from vlmbatch.providers.base import ImagePart
from vlmbatch.records import Event, ImageFacts, ImageRecord
from vlmbatch.rundir import Draft, RunDir, run_around
from vlmbatch.stages.building.plan import BuildOptions, Plan, plan
from vlmbatch.stages.building.press import Made, Press

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future
    from contextlib import AbstractContextManager

    from vlmbatch.batch.carrier import FileStore
    from vlmbatch.images import ImagePolicy
    from vlmbatch.inputs.base import ImageSource, Source
    from vlmbatch.providers.base import Ask, Limits, Part, Provider


_MAX_FILE_BYTES = 8 * images.MAX_PIXELS
"""More than the largest picture that is decoded takes uncompressed (four channels of 16 bits)."""


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What build made.

    Attributes:
        run: The finished run folder.
        counts: ``requests``, ``images``, ``rejected``, ``duplicate_images`` and what else was counted.
        left_out: Files that the folder scan left out, by reason.
        uploads: Images put into the provider's file store (``uploaded``), and found there (``reused``); empty where
            they are inline.
        warnings: Sentences for people.
    """

    run: RunDir
    counts: dict[str, int]
    left_out: dict[str, int]
    uploads: dict[str, int]
    warnings: tuple[str, ...]


def build(
    options: BuildOptions, *, key: str | None = None, on_event: Callable[[Event], None] | None = None
) -> BuildResult:
    """Make a run folder.

    Args:
        options: What to freeze.
        key: The API key, where images are uploaded (``carrier``); it goes into the headers and nowhere else.
        on_event: Called with progress (requests done) and warnings, from the calling thread.

    Raises:
        InputError: Wrong options, bad inputs (all of them listed), or a disk that gave out; no folder is left behind.
        RefusedError: The provider's file store did not take an image; no folder is left behind.
    """
    todo = plan(options)
    _check_place(options.out)
    provider = providers.get(todo.provider, todo.ask.url)
    warnings = [*_check_asks(provider, todo.asks), *_missing_word(todo), *_other_maker(todo)]
    with Draft(options.out) as draft, _file_store(todo, provider, key) as store:
        press = Press(todo, provider, draft)
        press.feed(_pressed(todo, provider, press.stem, store), on_event)
        info = press.finish(store.describe() if store else None)
        draft.publish(info)
    report = todo.source.report
    return BuildResult(
        RunDir.open(options.out),
        info["counts"],
        report.left_out,
        {"uploaded": store.uploaded, "reused": store.reused} if store else {},
        (*warnings, *report.warnings, *map(str, report.problems), *press.warnings(), *_beside(draft)),
    )


def _check_place(out: str) -> None:
    """Refuse to build where a run folder would no longer be what its own build, or a seal, says it is."""
    folder = run_around(out)
    if folder is not None:
        raise InputError(
            f"{out}: would stand inside of {folder}, which is a run folder itself",
            hint="a run folder holds one run: choose a place outside of it for --out",
        )


def _file_store(todo: Plan, provider: Provider, key: str | None) -> AbstractContextManager[FileStore | None]:
    """Return the provider's file store where images are to go there first, None where they go inline."""
    options = todo.options
    if options.carrier == "inline":
        return nullcontext()
    if not provider.takes_file_ids:
        raise InputError(
            f"--carrier provider-file: {provider.name} has no place for file ids in a request",
            hint="leave --carrier away (the images go inline), or use --url /v1/responses where the provider has it",
        )
    from vlmbatch.batch.carrier import FileStore
    from vlmbatch.stages.running.sending import need_key
    from vlmbatch.transport import check_base_url

    base_url = check_base_url(options.base_url) if options.base_url else provider.default_base_url()
    need_key(provider, [base_url], key)
    return FileStore(
        provider,
        provider.url(todo.ask),
        todo.ask.model,
        out=options.out,
        base_url=base_url,
        key=key,
        headers=provider.frozen_headers(todo.ask),
    )


def _beside(draft: Draft) -> list[str]:
    """Return a sentence each for the drafts of that name which other builds have left, and for those that stand."""
    removed, others = ", ".join(draft.removed), ", ".join(draft.others)
    return [
        *([f"removed {removed}: a build that was killed had left it"] if removed else []),
        *([f"beside the run stands {others}, of a build that goes on, or was killed elsewhere"] if others else []),
    ]


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


def _missing_word(todo: Plan) -> list[str]:
    """Return a warning where JSON is asked for without a schema and without the word, which some providers refuse."""
    texts = [file.data for role, file in todo.verbatim.items() if role in {"prompt", "template", "system", "config"}]
    asks = todo.asks.values()
    if not any(ask.json_answer and ask.json_schema is None for ask in asks) or b"json" in b"".join(texts).lower():
        return []
    return [
        "JSON is asked for, and neither prompt nor system prompt says JSON: some providers refuse every such request"
    ]


def _other_maker(todo: Plan) -> list[str]:
    """Return a warning where nobody named a provider and the model's name tells of another than the default."""
    said = "" if todo.options.provider else providers.doubt(todo.ask.model, todo.provider)
    return [said] if said else []


# --- workers: item → frozen line ---------------------------------------------------------------------------


def _pressed(todo: Plan, provider: Provider, stem: str, store: FileStore | None) -> Iterator[Made | Rejected]:
    """Yield items frozen or rejected, in input order, from a bounded window of worker threads.

    Raises:
        InputError: The source cannot be used as a whole; raised behind all that came of it before.
    """
    workers = todo.options.workers or _processors()
    window: deque[Future[Made | Rejected] | Rejected | InputError] = deque()

    def next_done() -> Made | Rejected:
        head = window.popleft()
        if isinstance(head, InputError):
            raise head
        return head if isinstance(head, Rejected) else head.result()

    with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="build") as pool:
        try:
            for item in _to_the_fault(todo.source):
                if isinstance(item, Rejected | InputError):
                    window.append(item)
                else:
                    window.append(pool.submit(_make, item, todo, provider, stem, store))
                if len(window) > 2 * workers + 2:
                    yield next_done()
            while window:
                yield next_done()
        finally:
            pool.shutdown(cancel_futures=True)


def _to_the_fault(source: Source) -> Iterator[Item | Rejected | InputError]:
    """Yield what a source gives, and behind it what is wrong with the source as a whole, if anything is."""
    try:
        yield from source
    except InputError as error:
        yield error


def _processors() -> int:
    """Return how many processors this process may use: a part of the machine where a scheduler or container says so."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _make(item: Item, todo: Plan, provider: Provider, stem: str, store: FileStore | None) -> Made | Rejected:
    """Read and check the images of one item and freeze its request; a bad image makes it a rejection."""
    ask = todo.asks[item.output]
    limits = provider.limits(ask.model, todo.options.limits)
    if store is not None:
        limits = limits._replace(image_base64_bytes=None)  # nothing goes as base64
    taken: list[_Picture] = []
    for source in item.images:
        try:
            taken.append(_take(source, todo.options.image_policy, limits))
        except OSError as error:
            return _reject(item, source.path, "unreadable", f"cannot be read: {error.strerror or error}")
        except images.ImageError as error:
            return _reject(item, source.path, error.code, str(error))
    problems, warnings = provider.check_images([one.sent for one in taken], limits=limits)
    if problems:
        return _refused(item, problems)
    if store is not None:
        taken = [
            one._replace(file_id=store.put(one.sent.sha256, one.sent.media_type, one.data).file_id) for one in taken
        ]
    first = taken[0].facts.sha256 if taken else None
    frozen = freeze(provider, ask, custom_id(stem, item.index, first), [_part(part, taken) for part in item.parts])
    problems = provider.check_request(frozen.body_length, limits=limits)
    if problems:
        return _refused(item, problems)
    return Made(item, frozen, list(map(_image_record, taken)), tuple(one.sent for one in taken), tuple(warnings))


class _Picture(NamedTuple):
    """One image of an item: where it is from, what the file is, what is sent for it, and its id in a file store."""

    source: ImageSource
    facts: ImageFacts
    sent: ImageFacts
    data: bytes
    file_id: str = ""


def _take(source: ImageSource, policy: ImagePolicy, limits: Limits) -> _Picture:
    """Read one image, look at it, and make the bytes that are sent."""
    data = source.read(max_bytes=_MAX_FILE_BYTES)
    facts = images.inspect(data, check=policy.check)
    data, sent = images.prepare(data, facts, policy, limits.media_types, animated_ok=limits.animated)
    return _Picture(source, facts, sent, data)


def _part(part: str | int, taken: Sequence[_Picture]) -> Part:
    """Return a part of an item's message as the adapter takes it."""
    import pybase64

    if isinstance(part, str):
        return part
    one = taken[part]
    base64_text = "" if one.file_id else pybase64.b64encode_as_string(one.data)
    return ImagePart(one.sent.media_type, base64_text, one.file_id)


def _image_record(one: _Picture) -> ImageRecord:
    source, facts, sent = one.source, one.facts, one.sent
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
    if one.file_id:
        record["file_id"] = one.file_id
    return record


def _refused(item: Item, problems: Sequence[Problem]) -> Rejected:
    """Make a rejection of what the provider would refuse."""
    path = item.images[0].path if len(item.images) == 1 else ""
    return _reject(item, path, problems[0].code, "; ".join(problem.message for problem in problems))


def _reject(item: Item, path: str, code: str, message: str) -> Rejected:
    return Rejected(item.index, code, message, where=item.where, source_line=item.source_line, path=path)
