"""One try, read: what came back, what it means, and the line of results/ that keeps it."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from vlmbatch import jsonl
from vlmbatch.classify import classify
from vlmbatch.records import ATTEMPT_SCHEMA, MODEL_ANSWERS, ErrorType, Reading
from vlmbatch.retry import Failure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vlmbatch.providers.base import Provider
    from vlmbatch.realtime.endpoints import Endpoint
    from vlmbatch.records import Asked, Entry, ErrorInfo, Try, Verdict
    from vlmbatch.transport import Answer

INTERRUPTED = "interrupted"
"""Code of a try that was given up because the user asked twice to stop."""

_REQUEST_IDS = ("x-request-id", "request-id")


@dataclass(slots=True)
class Pending:
    """One row on its way: its manifest line and its tries so far; never its bytes.

    Attributes:
        entry: The manifest line.
        due_s: When it may be sent (again), by the monotonic clock.
        number: Order of coming, so that equal times keep it.
        tries: The sendings so far.
        started_at: When the first one began, RFC 3339.
        started_s: The same by the monotonic clock.
        ended_s: When the last one ended.
        last: What the last one came to.
    """

    entry: Entry
    due_s: float = 0.0
    number: int = 0
    tries: list[Try] = field(default_factory=list)
    started_at: str = ""
    started_s: float = 0.0
    ended_s: float = 0.0
    last: Understood | None = None

    def __lt__(self, other: Pending) -> bool:
        return (self.due_s, self.number) < (other.due_s, other.number)

    def begin(self, now_s: float) -> float:
        """Note that a try begins; return how long the row waited for it since its last one."""
        if self.tries:
            return now_s - self.ended_s
        self.started_at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self.started_s = now_s
        return 0.0


class Understood(NamedTuple):
    """A try with its meaning.

    Attributes:
        answer: What came over the wire.
        value: The answer's body: parsed JSON, else text or bytes, else None.
        is_json: Whether the body is one JSON value, so that it can be kept as it came.
        reading: What the adapter reads in it.
        verdict: What that makes of the row.
        error: Why there is no model answer, None where there is one.
        endpoint: Where it was sent.
    """

    answer: Answer
    value: Any
    is_json: bool
    reading: Reading
    verdict: Verdict
    error: ErrorInfo | None
    endpoint: Endpoint

    @property
    def is_answer(self) -> bool:
        """Whether the model spoke."""
        return self.verdict.status in MODEL_ANSWERS

    @property
    def kind(self) -> str | None:
        """What went wrong in one word: our code for the network, else the HTTP status; None for an answer."""
        if self.is_answer:
            return None
        return self.answer.code or str(self.answer.status_code)

    def failure(self, provider: Provider) -> Failure:
        """Return what the retry rules need to know."""
        answer, error = self.answer, self.error
        return Failure(
            answer.status_code,
            answer.code,
            answer.headers,
            is_retryable=error is not None and error["is_retryable"],
            body_wait_s=None if answer.status_code is None else provider.retry_after_s(answer.status_code, self.value),
        )


def understand(answer: Answer, provider: Provider, asked: Asked, endpoint: Endpoint, body_bytes: int) -> Understood:
    """Read what came over the wire.

    Args:
        answer: The wire's answer.
        provider: Its adapter.
        asked: What the frozen request asked for.
        endpoint: Where it was sent.
        body_bytes: Length of the request body, for the message of an error that is about it.
    """
    if answer.status_code is None:
        error = network_error(answer.code or "network", answer.message)
        reading = Reading(error=error)
        return Understood(answer, None, False, reading, classify(reading, asked), error, endpoint)
    value, is_json = _parse(answer.body)
    reading = provider.read(answer.status_code, value)
    verdict = classify(reading, asked)
    if verdict.status in MODEL_ANSWERS:
        return Understood(answer, value, is_json, reading, verdict, None, endpoint)
    return Understood(answer, value, is_json, reading, verdict, _explained(reading, answer, body_bytes), endpoint)


def as_try(understood: Understood, waited_s: float) -> Try:
    """Return a try as the record keeps it; ``waited_s``: since the one before."""
    answer, error = understood.answer, understood.error
    word = None if error is None else answer.code or error.get("code") or error["type"]
    one: Try = {"status_code": answer.status_code, "error": word, "waited_s": round(waited_s, 4)}
    if answer.status_code is None:
        one["sent"] = answer.sent
    return one


def network_error(code: str, message: str) -> ErrorInfo:
    """Return why no HTTP answer came; such a row is always worth another run."""
    return {
        "type": ErrorType.CONNECTION.value,
        "code": code,
        "message": message,
        "status_code": None,
        "is_retryable": True,
    }


def _parse(body: bytes) -> tuple[Any, bool]:
    """Return an answer's body as JSON, else as text, else as bytes; and whether it is JSON."""
    if not body.strip():
        return (None if not body else body.decode("ascii")), False
    try:
        return jsonl.loads(body), True
    except ValueError:
        pass
    try:
        return body.decode("utf-8"), False
    except UnicodeDecodeError:
        return body, False


def _explained(reading: Reading, answer: Answer, body_bytes: int) -> ErrorInfo:
    """Return the adapter's error, with what only the sender knows added to its message."""
    status = answer.status_code
    error: ErrorInfo = (
        {**reading.error}
        if reading.error is not None
        else {
            "type": ErrorType.API_STATUS.value,
            "message": f"HTTP {status}",
            "status_code": status,
            "is_retryable": False,
        }
    )
    if status is not None and 300 <= status <= 399:
        target = re.sub(r"[?#].*", "", answer.headers.get("location", "")) or "another address"
        error["message"] += f" (HTTP {status} points to {target})"
    elif status == 413:
        error["message"] += f" (the request body has {body_bytes:,} bytes)"
    return error


def attempt_line(
    pending: Pending, understood: Understood, *, rehearsal: bool, is_final: bool, error_note: str
) -> bytes:
    """Return the line of results/ for a row that ended, without its newline.

    The provider's JSON is spliced in as it came. ``answered`` stands last: a line that ends in it is whole, so resume
    need not parse it.

    Args:
        pending: The row.
        understood: Its last try.
        rehearsal: Whether a rehearsal answered.
        is_final: False for what ended the whole run: the row itself is still open.
        error_note: Added to the error's message.
    """
    answer, endpoint, error = understood.answer, understood.endpoint, understood.error
    if error is not None and error_note:
        error = {**error, "message": f"{error['message']}; {error_note}"}
    line: dict[str, Any] = {
        "schema": ATTEMPT_SCHEMA,
        "custom_id": pending.entry.custom_id,
        "line_sha256": pending.entry.line_sha256,
        "channel": "realtime",
        "endpoint": endpoint.name,
        "direct": endpoint.is_direct,
        "started_at": pending.started_at,
        "latency_s": round(pending.ended_s - pending.started_s, 4),
        "tries": pending.tries,
        "status_code": answer.status_code,
        "request_id": request_id(answer.headers),
        "error": error,
    }
    if not is_final:
        line["final"] = False
    if rehearsal:
        line["rehearsal"] = True
    if not endpoint.is_announced:
        endpoint.is_announced = True
        line["session"] = endpoint.session
    line.update(_response(understood))
    if understood.is_answer and not rehearsal:
        line["answered"] = True
    return jsonl.dumps(line)


def request_id(headers: Mapping[str, str]) -> str | None:
    """Return the provider's id of a call, from the headers."""
    return next((headers[name] for name in _REQUEST_IDS if name in headers), None)


def _response(understood: Understood) -> dict[str, Any]:
    body = understood.answer.body
    if understood.is_json:
        return {"response": jsonl.Fragment(jsonl.one_line(body).strip())}
    if isinstance(understood.value, str):
        return {"response_text": understood.value}
    if isinstance(understood.value, bytes):
        return {"response_base64": base64.b64encode(understood.value).decode("ascii")}
    return {}
