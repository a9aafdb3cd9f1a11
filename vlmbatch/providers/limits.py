"""Preflight: what a provider takes, from data/limits.toml, and the checks of images and requests against it.

The rows are data with source and date; here are only the rules that read them. All of it is measured on what is
sent, not on the file.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from vlmbatch.errors import InputError, Problem
from vlmbatch.providers.base import Limits

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from datetime import date

    from vlmbatch.records import ImageFacts

_SHARD_MAX_BYTES = 90_000_000
_SHARD_MAX_REQUESTS = 50_000
_HEADROOM = 0.75
"""Share of a provider's file limit that a shard may fill: the limit's unit and what is counted are never quite sure."""

_OVERRIDABLE = tuple(name for name in Limits._fields if name != "warn")

SENTENCES = {
    "animated": "[image has|images have] several frames; only the first is looked at, as far as known",
    "cmyk": "[image is|images are] CMYK, which the provider is not known to take; --format jpeg converts to RGB",
    "image_base64_bytes": "[image is|images are] over {limit} bytes in base64, which some of the clouds that serve "
    "this provider's models refuse; --max-side shrinks",
    "image_bytes": "[image is|images are] over {limit} bytes, the provider's limit of old; it names none any more, and "
    "may refuse; --max-side shrinks",
    "image_pixels": "[image has|images have] over {limit} pixels, more than the provider takes where it does not "
    "scale down; --max-pixels does it here",
    "images_per_request": "[request has|requests have] over {limit} images, more than some models or servers of the "
    "provider take",
}
"""What a warning code of :func:`check_images` says, for ``errors.counted``; ``{limit}`` is where it begins."""

_SMALLER_BY = {
    "image_bytes": ("--max-side N", "--max-pixels N", "--format jpeg"),
    "image_base64_bytes": ("--max-side N", "--max-pixels N", "--format jpeg"),
    "image_side_px": ("--max-side N",),
    "image_pixels": ("--max-side N", "--max-pixels N"),
    "many_images_side_px": ("--max-side N",),
    "request_bytes": ("--max-side N", "--max-pixels N", "--format jpeg"),
}
"""Options of build that help, by what is over its limit."""


def sentences(limits: Limits) -> dict[str, str]:
    """Return what each warning code says, for ``errors.counted``, with the numbers of a model."""
    return {code: text.replace("{limit}", f"{limits.warn.get(code, 0):,}") for code, text in SENTENCES.items()}


def ways_out(codes: Collection[str]) -> list[str]:
    """Return which options help inputs that are over a provider's limits.

    Args:
        codes: Codes of their problems; those of other rooms are passed over.
    """
    over = [name for name in _OVERRIDABLE if name in codes]
    smaller = list(dict.fromkeys(option for name in over for option in _SMALLER_BY.get(name, ())))
    numbers = [f"--limit-override {name}=N" for name in over if name not in {"media_types", "animated"}]
    return [
        *([f"make images smaller with {' or '.join(smaller)}"] if smaller else []),
        *([f"set a limit of your own with {' or '.join(numbers)}"] if numbers else []),
    ]


class Row(NamedTuple):
    """One dated fact of data/limits.toml; the file's head says what the fields mean."""

    provider: str
    name: str
    value: Any
    act: Literal["refuse", "warn"]
    source: str
    as_of: date
    sure: str
    models: str = ""
    note: str = ""


@cache
def rows() -> tuple[Row, ...]:
    """Return every row of data/limits.toml, in the file's order."""
    text = resources.files("vlmbatch").joinpath("data", "limits.toml").read_text(encoding="utf-8")
    return tuple(Row(**row) for row in tomllib.loads(text)["limit"])


@cache
def _dated(provider: str, model: str) -> Limits:
    refused: dict[str, Any] = {}
    warned: dict[str, int] = {}
    for row in rows():
        if row.provider == provider and re.search(row.models, model):
            # A list or a truth value is what it is; only a number can be a threshold for a warning.
            is_threshold = isinstance(row.value, int) and not isinstance(row.value, bool)
            (warned if is_threshold and row.act == "warn" else refused)[row.name] = row.value
    known: dict[str, Any] = {name: refused.get(name) for name in _OVERRIDABLE}
    known["media_types"] = frozenset(refused["media_types"])
    known["animated"] = bool(known["animated"])
    return Limits(**known, warn=warned)


def limits_for(provider: str, model: str, override: Mapping[str, Any] | None) -> Limits:
    """Return the limits that hold for a model, the user's own values laid over the dated ones.

    Args:
        provider: A provider of the registry.
        model: The model's name.
        override: Values by the names of :class:`Limits`; None = no limit. A name given here warns no more.

    Raises:
        InputError: There is no limit of that name.
    """
    dated = _dated(provider, model)
    if not override:
        return dated
    unknown = sorted(set(override) - set(_OVERRIDABLE))
    if unknown:
        raise InputError(
            f"there is no limit named {', '.join(unknown)}", hint=f"the limits are {', '.join(_OVERRIDABLE)}"
        )
    values = dict(override)
    if "media_types" in values:
        values["media_types"] = frozenset(values["media_types"])
    if "animated" in values:
        values["animated"] = bool(values["animated"])
    return dated._replace(**values, warn={name: n for name, n in dated.warn.items() if name not in override})


def shard_limits(limits: Limits) -> tuple[int, int]:
    """Return bytes and requests at which a shard is cut: one default, less where a provider's job takes less."""
    max_bytes = _SHARD_MAX_BYTES
    if limits.batch_file_bytes is not None:
        max_bytes = min(max_bytes, int(limits.batch_file_bytes * _HEADROOM))
    return max_bytes, min(_SHARD_MAX_REQUESTS, limits.batch_requests or _SHARD_MAX_REQUESTS)


def check_request(request_bytes: int, limits: Limits) -> list[Problem]:
    """Return why a provider would refuse a body of this many bytes."""
    limit = limits.request_bytes
    if limit is None or request_bytes <= limit:
        return []
    return [_over("request_bytes", "the request", f"{request_bytes:,} bytes", limit)]


def check_images(facts: Sequence[ImageFacts], limits: Limits) -> tuple[list[Problem], list[str]]:
    """Return why a provider would refuse these images of one request, and the codes of warnings (one per case).

    Args:
        facts: The images as they are sent, in order.
        limits: What the provider takes.
    """
    problems: list[Problem] = []
    warnings: list[str] = []
    for number, image in enumerate(facts, start=1):
        problems += _check_kind(f"image {number}", image, limits)
        warnings += _odd(image, limits)
    for name, what, measured, shown in _measures(facts):
        limit, soft = getattr(limits, name), limits.warn.get(name)
        if limit is not None and measured > limit:
            problems.append(_over(name, what, shown, limit))
        elif soft is not None and measured > soft:
            warnings.append(name)
    return problems + _check_many(facts, limits), warnings


def _measures(facts: Sequence[ImageFacts]) -> Iterator[tuple[str, str, int, str]]:
    """Yield the limit's name, what is measured, the measure, and how a message says it."""
    count = len(facts)
    yield "images_per_request", "the request", count, f"{count:,} images"
    for number, image in enumerate(facts, start=1):
        what = f"image {number}"
        base64_bytes = 4 * -(-image.bytes // 3)
        size = f"{image.width} x {image.height} pixels"
        yield "image_bytes", what, image.bytes, f"{image.bytes:,} bytes"
        yield "image_base64_bytes", what, base64_bytes, f"{image.bytes:,} bytes, {base64_bytes:,} in base64"
        yield "image_side_px", what, max(image.width, image.height), size
        yield "image_pixels", what, image.width * image.height, size


def _check_kind(what: str, image: ImageFacts, limits: Limits) -> list[Problem]:
    problems = []
    if image.media_type not in limits.media_types:
        taken = ", ".join(sorted(limits.media_types))
        problems.append(Problem("media_type", f"{what}: {image.media_type} is not taken ({taken}); convert it"))
    if image.frames > 1 and not limits.animated:
        problems.append(Problem("animated", f"{what}: has {image.frames} frames; send one of them"))
    return problems


def _odd(image: ImageFacts, limits: Limits) -> list[str]:
    odd = ["cmyk"] if image.mode == "CMYK" else []
    return [*odd, "animated"] if image.frames > 1 and limits.animated else odd


def _check_many(facts: Sequence[ImageFacts], limits: Limits) -> list[Problem]:
    """Check the rule that holds only where a request has many images: it is a rule on the request, not the image."""
    many, side = limits.many_images, limits.many_images_side_px
    if many is None or side is None or len(facts) <= many:
        return []
    large = [(n, i) for n, i in enumerate(facts, start=1) if max(i.width, i.height) > side]
    return [
        Problem(
            "many_images_side_px",
            f"image {number}: {image.width} x {image.height} pixels; with over {many} images in a request "
            f"({len(facts)} here) a side may have {side:,}",
        )
        for number, image in large
    ]


def _over(name: str, what: str, shown: str, limit: int) -> Problem:
    return Problem(name, f"{what}: {shown}; the limit is {limit:,} ({name})")
