"""What a wire of the rehearsal provider does: read a request body, write an answer, write an error.

These are the provider's side of the formats in vlmbatch/providers; they share no code with them on purpose, so that
a mistake in one is not repeated in the other. Field names: references/providers.md.
"""

from __future__ import annotations

import binascii
from dataclasses import dataclass, field
from typing import Any, Protocol

EFFORTS = {"none": 0, "minimal": 16, "low": 64, "medium": 256, "high": 1024, "xhigh": 2048, "max": 4096}
"""Reasoning tokens that the rehearsal spends for an effort asked for; nothing asked, nothing spent."""

FINGERPRINT = "rehearsal"

NO_CREDIT = "insufficient_quota"
"""Code of an empty account; each wire says it in its own way."""


class BadRequest(Exception):  # noqa: N818  (a reply, not a fault of ours)
    """The request is one that the provider would answer with a 4xx.

    Args:
        message: What the provider would say.
        code: The provider's code for it, where the format has one.
        status: The HTTP status.
    """

    def __init__(self, message: str, *, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status


class BadImage(BadRequest):
    """The image cannot be decoded."""

    def __init__(self, message: str = "The image could not be parsed.") -> None:
        super().__init__(message, code="image_parse_error")


@dataclass(frozen=True, slots=True)
class Picture:
    """One image of a request as it came: its bytes, or the id of a file in the provider's store."""

    media_type: str = ""
    data: bytes = b""
    file_id: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request in the rehearsal's words.

    Attributes:
        model: The model's name.
        text: All text of the request in order, the system prompt included.
        pictures: The images in order.
        max_tokens: The output limit, reasoning included; None where none was sent.
        reasoning_tokens: How much reasoning was asked for.
        json: Whether the answer is to be JSON.
        schema: The schema that it is to fit, None where there is none.
        detail: The image detail asked for, None where none was.
        checks_media_type: Whether the format refuses an image whose declared type differs from its bytes.
    """

    model: str
    text: str = ""
    pictures: tuple[Picture, ...] = ()
    max_tokens: int | None = None
    reasoning_tokens: int = 0
    json: bool = False
    schema: dict[str, Any] | None = None
    detail: str | None = None
    checks_media_type: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer in the rehearsal's words. ``output_tokens`` includes reasoning, ``input_tokens`` the images."""

    id: str
    text: str | None
    refused: bool = False
    at_cap: bool = False
    input_tokens: int = 0
    image_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error as the provider words it."""

    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)


class Wire(Protocol):
    """One wire format, from the provider's side."""

    def read(self, body: dict[str, Any], model: str) -> Asked:
        """Read a request body; ``model`` comes from the URL where the format has it there.

        Raises:
            BadRequest: The body is not one that the provider takes.
        """
        ...

    def answer(self, asked: Asked, answer: Answer) -> dict[str, Any]:
        """Write the body of a 200."""
        ...

    def error(
        self, status: int, message: str, *, code: str | None = None, retry_after_s: float | None = None
    ) -> ErrorReply:
        """Write an error; the wait that it names goes where the format has it."""
        ...


def decode_base64(text: object) -> bytes:
    """Decode the base64 text of an image.

    Raises:
        BadImage: It is no base64.
    """
    import pybase64

    if not isinstance(text, str) or not text:
        raise BadImage("The image data is missing.")
    try:
        return pybase64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadImage("The image data is not valid base64.") from None


def decode_data_uri(url: object) -> Picture:
    """Decode a ``data:`` URI with base64 in it.

    Raises:
        BadRequest: It is another kind of URL, which this provider does not fetch.
        BadImage: It is no base64.
    """
    if not isinstance(url, str) or not url.startswith("data:"):
        raise BadRequest("Only data: URLs are accepted here.", code="invalid_image_url")
    head, comma, data = url.partition(",")
    if not comma or not head.endswith(";base64"):
        raise BadImage("The data: URL holds no base64.")
    return Picture(media_type=head[len("data:") : -len(";base64")], data=decode_base64(data))


def take(value: object, kind: type[Any], where: str) -> Any:
    """Return a value that must be of one kind.

    Raises:
        BadRequest: It is not.
    """
    if not isinstance(value, kind):
        raise BadRequest(f"Invalid value for '{where}'.", code="invalid_type")
    return value


def limit(value: object, where: str) -> int | None:
    """Return an output limit, None where none was sent.

    Raises:
        BadRequest: It is not a positive whole number.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadRequest(f"Invalid value for '{where}': a whole number of at least 1 is needed.", code="invalid_value")
    return value


def effort(value: object, where: str) -> int:
    """Return the reasoning tokens for an effort.

    Raises:
        BadRequest: There is no such effort.
    """
    if value is None:
        return 0
    tokens = EFFORTS.get(str(value).lower())
    if tokens is None:
        raise BadRequest(f"Invalid value for '{where}': {value!r}.", code="invalid_value")
    return tokens


def retry_headers(seconds: float | None) -> dict[str, str]:
    """Return the headers that name a wait: whole seconds for everyone, milliseconds for those who read them."""
    if seconds is None:
        return {}
    return {"retry-after": str(-int(-seconds // 1)), "retry-after-ms": str(round(seconds * 1000))}
