"""Errors: bodies of any shape read into one, and what they mean for the row and for the run.

Bodies come nested, flat, as a list of one, as a string, as HTML, and under status 200. The codes below are those of
all providers in one list: they do not clash, and relays hand them on.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from vlmbatch.providers.common import as_count, as_dict, as_list, as_text
from vlmbatch.records import Ended, ErrorInfo, ErrorType, Reading

if TYPE_CHECKING:
    from collections.abc import Iterator

_OK = range(200, 300)
_HTTP = range(100, 600)
_PAYMENT_REQUIRED = 402
_SHOWN = 500
_NESTED = 3
"""How deep an error may stand inside others: a batch line's error holds a whole error response."""

RETRYABLE = frozenset({408, 409, 429})
"""Statuses below 500 after which the same request may fare better; every 5xx does too (references/providers.md)."""

FILTER_CODES = frozenset(
    {
        "content_filter",
        "content_policy_violation",
        "image_content_policy_violation",
        "bio_policy",
        "misalignment_policy_violation",
    }
)
"""Error codes that say the content was declined: a refusal, whatever the HTTP status."""

_MONEY_CODES = frozenset(
    {
        "insufficient_quota",
        "billing_hard_limit_reached",
        "billing_not_active",
        "billing_error",
        "enforced_spend_limit_reached",
        "contract_spend_limit_reached",
        "exceeded_current_quota_error",
    }
)
"""Error codes that say there is no credit left: no row fares better until someone pays."""

_MONEY_WORDS = re.compile(
    r"credit balance is too low"
    r"|reached your specified (workspace )?api usage limits"
    r"|prepayment credits are depleted"
    r"|exceeded its monthly spending cap"
    r"|used all available credits"
    r"|insufficient balance",
    re.IGNORECASE,
)
"""The same in words, where the code is that of a bad request or a rate limit: Anthropic (400), Gemini (429), xAI,
DeepSeek and Moonshot. Taken for the row's own fault, such a 400 would settle every row that was still to come.
"""

_STATUS_OF_CODE = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "model_not_found": 404,
    "conflict_error": 409,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "api_error": 500,
    "server_error": 500,
    "timeout_error": 504,
    "vector_store_timeout": 504,
    "overloaded_error": 529,
}
"""HTTP status that goes with a code, for errors that come without one (inside a batch line, under status 200)."""

_WHOLE_RUN = {
    401: "the key was refused",
    403: "the key has no access",
    404: "there is no such model or endpoint",
}


class Fault(NamedTuple):
    """An error body in one shape.

    Attributes:
        message: The provider's own sentence, or the start of what came instead.
        codes: Every code it names, the most telling first.
        status: HTTP status: of the answer, or, where that is 2xx or none, the one that the code stands for.
        details: The ``details`` list, where there is one.
    """

    message: str
    codes: tuple[str, ...]
    status: int | None
    details: tuple[dict[str, Any], ...] = ()


def status_of(*codes: str) -> int | None:
    """Return the HTTP status that goes with the first known of some codes."""
    return next((_STATUS_OF_CODE[code] for code in codes if code in _STATUS_OF_CODE), None)


def is_ok(status_code: int | None) -> bool:
    """Tell whether a status lets the body be an answer."""
    return status_code is None or status_code in _OK


def _find_error(body: Any) -> Any:
    """Return the error object (or its bare text) inside a body, None where the body reports none."""
    found = None
    for _ in range(_NESTED):
        if isinstance(body, list) and len(body) == 1:
            body = body[0]
        if not isinstance(body, dict):
            break
        inside = body.get("error")
        if isinstance(inside, str) and inside.strip():
            return inside
        if not (isinstance(inside, dict) and inside):
            is_flat = "message" in body and (body.get("object") == "error" or body.get("type") == "error")
            return body if is_flat else found
        found = body = inside
    return found


def read_fault(status_code: int | None, body: Any) -> Fault | None:
    """Read an answer that may be an error; None where it is none.

    Args:
        status_code: HTTP status, None where a batch line told none.
        body: Parsed JSON, text, bytes or None.
    """
    error = _find_error(body)
    if error is None and is_ok(status_code):
        return None
    if not isinstance(error, dict):
        return Fault(error or _text_of(body), (), None if is_ok(status_code) else status_code)
    details = error.get("details")
    listed = [entry for entry in (as_list(details) or [details]) if isinstance(entry, dict)]
    codes = tuple(dict.fromkeys(_codes(error, listed)))
    status = None if is_ok(status_code) else status_code
    if status is None:
        inner = _inner_status(error.get("code"))
        status = inner if inner in _HTTP else status_of(*codes)
    return Fault(as_text(error.get("message")) or _text_of(body), codes, status, tuple(listed))


def _inner_status(code: Any) -> int | None:
    """Return a code that is a number, or the digits of one (LiteLLM sends them as text)."""
    return int(code) if isinstance(code, str) and re.fullmatch("[0-9]{3}", code) else as_count(code)


def _codes(error: dict[str, Any], details: list[dict[str, Any]]) -> Iterator[str]:
    named = [entry.get(key) for entry in details for key in ("error_code", "reason")]
    named += [error.get(key) for key in ("code", "status", "type")]
    named.append(as_dict(error.get("innererror")).get("code"))
    if "flagged_input" in as_dict(error.get("metadata")):
        named.append("content_policy_violation")  # how OpenRouter tells a flagged input from a missing right, both 403
    yield from filter(None, map(as_text, named))


def _text_of(body: Any) -> str:
    """Return what can be shown of a body that is no error object."""
    if isinstance(body, dict):
        said = next((as_text(body.get(key)) for key in ("message", "detail", "title") if as_text(body.get(key))), None)
        return said or "the body names no cause"
    if isinstance(body, bytes):
        return f"a body that is not text ({len(body)} bytes)"
    if isinstance(body, str) and body.strip():
        text = " ".join(body[: 4 * _SHOWN].split())
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return "no body" if body in (None, "") else "the body names no cause"


def read_failure(status_code: int | None, body: Any) -> Reading | None:
    """Return the reading of an answer that is an error (or a filter's refusal), None where it may be an answer."""
    if status_code is None and body is None:
        return Reading(error=error_info(ErrorType.CONNECTION, "no answer", None, retryable=True))
    fault = read_fault(status_code, body)
    if fault is None:
        return None
    status = fault.status or status_code or 200
    code = fault.codes[0] if fault.codes else None
    if FILTER_CODES.intersection(fault.codes):
        error = error_info(ErrorType.API_STATUS, fault.message, status, code=code, retryable=False)
        return Reading(refusal=fault.message, ended=Ended.FILTER, finish_reason=code, error=error)
    message = fault.message
    if status_code is not None and 300 <= status_code <= 399:
        message = f"redirected, which is not followed; set the base URL to the final address ({message})"
    # No credit is no fault of the row: it may be sent again once someone has paid.
    retryable = is_retryable(status) or _is_money(fault)
    return Reading(error=error_info(ErrorType.API_STATUS, message, status, code=code, retryable=retryable))


def is_retryable(status_code: int | None) -> bool:
    """Tell whether the same request may fare better later."""
    return status_code is not None and (status_code in RETRYABLE or 500 <= status_code <= 599)


def not_an_answer(status_code: int | None, body: Any) -> Reading:
    """Return the reading of a good status whose body is no answer of this wire format (HTML, ``[]``, cut JSON)."""
    what = type(body).__name__ if isinstance(body, dict | list) else "not JSON"
    message = f"the body is no answer ({what}): {_text_of(body)}"
    return Reading(error=error_info(ErrorType.PARSE_ERROR, message, status_code or 200, retryable=True))


def gave_up(finish_reason: str | None, message: str, status_code: int | None) -> ErrorInfo:
    """Return the error of an answer that the server dropped under a good status."""
    return error_info(ErrorType.ENGINE_FAILURE, message, status_code or 200, code=finish_reason, retryable=True)


def error_info(
    kind: ErrorType, message: str, status_code: int | None, *, code: str | None = None, retryable: bool
) -> ErrorInfo:
    """Return an error in the shape of records; ``code`` is left out where there is none."""
    error: ErrorInfo = {"type": kind.value, "message": message, "status_code": status_code, "is_retryable": retryable}
    if code is not None:
        error["code"] = code
    return error


def ends_run(status_code: int | None, body: Any) -> str | None:
    """Return why no other row can fare better either: key, credit, access, model. None where one may.

    A filter's refusal ends no run, whatever its status.
    """
    fault = read_fault(status_code, body)
    if fault is None or FILTER_CODES.intersection(fault.codes):
        return None
    if _is_money(fault):
        return f"no credit or quota is left: {fault.message}"
    reason = _WHOLE_RUN.get(fault.status or 0)
    return None if reason is None else f"{reason} (HTTP {fault.status}): {fault.message}"


def _is_money(fault: Fault) -> bool:
    """Tell whether an error is about an account without credit, whatever status and code it comes under."""
    by_code = fault.status == _PAYMENT_REQUIRED or bool(_MONEY_CODES.intersection(fault.codes))
    return by_code or _MONEY_WORDS.search(fault.message) is not None
