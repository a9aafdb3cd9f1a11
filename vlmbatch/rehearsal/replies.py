"""One request body in, one reply out: where wires, answers and faults meet. No network in here."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vlmbatch import jsonl, tokens
from vlmbatch.rehearsal.answers import compose, look
from vlmbatch.rehearsal.wires.base import Asked, BadImage, BadRequest, Picture

if TYPE_CHECKING:
    from collections.abc import Callable

    from vlmbatch.rehearsal.faults import Faults
    from vlmbatch.rehearsal.wires.base import Wire

_KEPT_REPLIES = 4096
_FALLBACK_SCHEME = "openai-tile"
"""How pictures are billed for a model that no row of the token table is for."""

HTML = b"<!doctype html><html><head><title>Bad gateway</title></head><body>Please try again later.</body></html>"


@dataclass(frozen=True, slots=True)
class Reply:
    """What goes back: ``status`` 0 means that the connection breaks after some bytes of ``body``."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "application/json"


class Replies:
    """Answers request bodies; safe to use from threads.

    Args:
        faults: How to misbehave.
        models: The models there are; none = every model is served.
        file_bytes: Returns the bytes of a stored file by its id, None where there is no such file.
    """

    def __init__(
        self, faults: Faults, models: tuple[str, ...] = (), file_bytes: Callable[[str], bytes | None] = lambda _: None
    ) -> None:
        self._faults = faults
        self._models = models
        self._file_bytes = file_bytes
        self._kept: OrderedDict[tuple[str, str], Reply] = OrderedDict()

    def reply(self, wire: Wire, model: str, body: bytes, digest: str, number: int) -> Reply:
        """Answer one try of a request.

        Args:
            wire: The format that it came in.
            model: The model that the URL names, empty where the body does.
            body: The request body.
            digest: Its SHA-256.
            number: Which try of this body it is, from 0.
        """
        fault = self._faults.for_try(digest, number)
        if fault == "html_200":
            return Reply(200, HTML, content_type="text/html")
        if fault == "reset":
            return Reply(0, self._answer(wire, model, body, digest).body)
        if fault is not None:
            return self.error(wire, int(fault.removeprefix("http_")))
        return self._answer(wire, model, body, digest)

    def error(self, wire: Wire, status: int, message: str = "", *, code: str | None = None) -> Reply:
        """Return an error in the wire's words; a plain 429 names the wait that the faults file asks for."""
        wait = self._faults.retry_after_s if status == 429 and code is None else None
        text = message or _MESSAGES.get(status, "The request was refused.")
        error = wire.error(status, text, code=code, retry_after_s=wait)
        return Reply(status, jsonl.dumps(error.body), error.headers)

    def _answer(self, wire: Wire, model: str, body: bytes, digest: str) -> Reply:
        key = (digest, f"{type(wire).__name__}:{model}")
        kept = self._kept.get(key)
        if kept is None:
            try:
                kept = self._make(wire, model, body, digest)
            except BadRequest as error:
                kept = self.error(wire, error.status, error.message, code=error.code)
            self._kept[key] = kept
            while len(self._kept) > _KEPT_REPLIES:
                self._kept.popitem(last=False)
        return kept

    def _make(self, wire: Wire, model: str, body: bytes, digest: str) -> Reply:
        value = jsonl.parse_object(body)
        if value is None:
            raise BadRequest("We could not parse the JSON body of your request.")
        asked = wire.read(value, model)
        if self._models and asked.model not in self._models:
            raise BadRequest(f"The model '{asked.model}' does not exist.", status=404)
        pictures = [self._fetch(picture) for picture in asked.pictures]
        checks = asked.checks_media_type
        looks = [look(one, checks_media_type=checks and not one.file_id) for one in pictures]
        bill = sum(image_tokens(asked, one.width, one.height) for one in looks)
        answer = compose(asked, looks, digest, bill=bill, fault=self._faults.for_answer(digest))
        return Reply(200, jsonl.dumps(wire.answer(asked, answer)))

    def _fetch(self, picture: Picture) -> Picture:
        if not picture.file_id:
            return picture
        data = self._file_bytes(picture.file_id)
        if data is None:
            raise BadImage(f"No such file: {picture.file_id}")
        return Picture(picture.media_type, data, picture.file_id)


_MESSAGES = {
    429: "Rate limit reached (rehearsal).",
    500: "The server had an error (rehearsal).",
    503: "The model is overloaded (rehearsal).",
}


def image_tokens(asked: Asked, width: int, height: int) -> int:
    """Return what one picture is billed: by the model's published formula, by a common one where none is known.

    Raises:
        BadImage: The model's own processor refuses pictures of such a shape.
    """
    scheme = tokens.pick(asked.model, detail=asked.detail) or tokens.pick(asked.model, _FALLBACK_SCHEME)
    counted = scheme.count(width, height) if scheme else tokens.ImageTokens(0, "")
    if counted.refused:
        raise BadImage(counted.refused)
    return counted.tokens
