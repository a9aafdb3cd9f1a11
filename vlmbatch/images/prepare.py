"""The bytes that are sent: the file's own, unless the user asked for something else and it makes a difference."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from vlmbatch.images import decode, encode, exif, sniff
from vlmbatch.images.facts import inspect
from vlmbatch.images.formats import FORMATS

if TYPE_CHECKING:
    from vlmbatch.images.policy import ImagePolicy
    from vlmbatch.records import ImageFacts

_WRITTEN: Final = (sniff.JPEG, sniff.PNG, sniff.WEBP)


def prepare(
    data: bytes, facts: ImageFacts, policy: ImagePolicy, accepts: frozenset[str], *, animated_ok: bool
) -> tuple[bytes, ImageFacts]:
    """Return the bytes to be sent for an image, and their facts.

    Nothing is converted behind the user's back: an image that the provider does not take, and that the policy does
    not convert, comes back as it is, for the provider's own check to refuse it with the reason.

    Args:
        data: The file.
        facts: What :func:`~vlmbatch.images.facts.inspect` said of it.
        policy: What is wanted.
        accepts: Media types that the provider takes.
        animated_ok: Whether it takes several frames (to look at the first).

    Returns:
        The very objects that came in where nothing changes; otherwise new bytes with new facts, noted
        ``first_frame`` where frames or pages were left behind.

    Raises:
        ImageError: ``cannot_convert``, ``no_decoder``, or whatever a decoder finds that a quick check had not.
    """
    if not policy.changes_bytes:
        return data, facts
    if _is_redrawn(facts, policy, accepts, animated_ok=animated_ok):
        with decode.room_for(facts.width, facts.height):
            new = _redraw(data, facts, policy, accepts)
    elif policy.strip_metadata and not _is_refused(facts, accepts, animated_ok=animated_ok):
        strip = FORMATS[facts.media_type].strip
        new = data if strip is None else strip(data, facts.orientation)
    else:
        new = data
    if new == data:
        return data, facts
    sent = inspect(new, check="quick")
    if sent.frames < facts.frames:
        sent = replace(sent, notes=(*sent.notes, "first_frame"))
    return new, sent


def _is_refused(facts: ImageFacts, accepts: frozenset[str], *, animated_ok: bool) -> bool:
    return facts.media_type not in accepts or (facts.frames > 1 and not animated_ok)


def _is_redrawn(facts: ImageFacts, policy: ImagePolicy, accepts: frozenset[str], *, animated_ok: bool) -> bool:
    """Return whether the pixels have to be encoded anew."""
    if _is_refused(facts, accepts, animated_ok=animated_ok) and not policy.convert_unsupported:
        # Naming a format asks for another type, but not for leaving frames or pages behind.
        return policy.format is not None and facts.frames == 1
    needs_new_file = FORMATS[facts.media_type].strip is None and FORMATS[facts.media_type].may_hold_metadata
    return (
        _is_refused(facts, accepts, animated_ok=animated_ok)
        or (policy.format is not None and facts.media_type != f"image/{policy.format}")
        or (policy.orient == "apply" and facts.orientation in exif.TURNED)
        or _target_size(facts.width, facts.height, policy) != (facts.width, facts.height)
        or (facts.mode == "CMYK" and (policy.format is not None or policy.convert_unsupported))
        or (policy.strip_metadata and needs_new_file)
    )


def _target_size(width: int, height: int, policy: ImagePolicy) -> tuple[int, int]:
    return encode.shrunk_size(width, height, policy.max_side, policy.max_pixels)


def _redraw(data: bytes, facts: ImageFacts, policy: ImagePolicy, accepts: frozenset[str]) -> bytes:
    image = decode.decode(data, facts.media_type)
    orientation = facts.orientation
    if policy.orient == "apply":
        image, orientation = decode.turned(image, orientation), None
    image, profile = encode.plain(image)
    image = encode.shrink(image, _target_size(*image.size, policy))
    media_type = _target_type(facts.media_type, policy, accepts, has_alpha=encode.has_alpha(image))
    if media_type == sniff.JPEG:
        image = encode.flattened(image, policy.ground)
    return encode.encode(image, media_type, quality=policy.quality, profile=profile, orientation=orientation)


def _target_type(media_type: str, policy: ImagePolicy, accepts: frozenset[str], *, has_alpha: bool) -> str:
    """Return the type that is written: the one asked for, else the old one, else one that loses nothing more."""
    if policy.format is not None:
        return f"image/{policy.format}"
    if media_type in _WRITTEN and media_type in accepts:
        return media_type
    wanted = sniff.PNG if has_alpha or FORMATS[media_type].is_lossless else sniff.JPEG
    return next((found for found in (wanted, *_WRITTEN) if found in accepts), wanted)
