"""What stands inside a frozen body: the inlined images and the user's own text, found without asking whose body it is.

Every wire format carries an image as one base64 string, with or without a ``data:`` head, and text under ``text`` or
``content``. An image that is found counts only if its bytes have the hash that the manifest names.
"""

from __future__ import annotations

import binascii
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from vlmbatch import jsonl

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from vlmbatch.records import ImageRecord

_BASE64 = re.compile(rb'[",]([A-Za-z0-9+/]{32,}={0,2})"')
"""A JSON string, or the part of one behind a comma, that is base64 to its end. No image file is shorter."""

_SPOKEN = ("messages", "contents", "input")
_NOT_THE_USER = frozenset({"system", "developer"})


class Inlined(NamedTuple):
    """One image in a body: where its base64 stands, the hash of its bytes, the bytes."""

    start: int
    end: int
    sha256: str
    data: bytes


def sent_sha256(image: ImageRecord) -> str:
    """Return the hash of the bytes that were sent: the file's own, unless the image was re-encoded."""
    sent = image.get("sent")
    return sent["sha256"] if sent else image["sha256"]


def iter_images(body: bytes, images: Sequence[ImageRecord]) -> Iterator[Inlined]:
    """Yield the images that a body holds inline, in the order of its bytes.

    Args:
        body: The frozen body (or the whole line).
        images: The request's images as the manifest names them; nothing else is taken for one.
    """
    wanted = {sent_sha256(image) for image in images}
    for match in _BASE64.finditer(body):
        try:
            data = binascii.a2b_base64(match[1], strict_mode=True)
        except binascii.Error:
            continue
        digest = jsonl.sha256(data)
        if digest in wanted:
            yield Inlined(match.start(1), match.end(1), digest, data)


def read_prompt(body: bytes) -> list[str | None]:
    """Return the user's message in a frozen body: its texts in order, None where an image stands.

    Raises:
        ValueError: The body is not JSON.
    """
    value = jsonl.loads(body)
    said = [value.get(key) for key in _SPOKEN] if isinstance(value, dict) else []
    turns = [turn for turns in said if isinstance(turns, list) for turn in turns]
    return [part for turn in turns if _is_users(turn) for part in _parts(turn)]


def _is_users(turn: Any) -> bool:
    return isinstance(turn, dict) and turn.get("role") not in _NOT_THE_USER


def _parts(turn: Mapping[str, Any]) -> Iterator[str | None]:
    content = turn.get("content", turn.get("parts"))
    if isinstance(content, str):
        yield content
        return
    for part in content if isinstance(content, list) else ():
        text = part.get("text") if isinstance(part, dict) else part
        yield text if isinstance(text, str) else None
