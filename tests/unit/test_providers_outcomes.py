"""references/results-and-failures.md, row by row: each row of its tables is an answer here, under the same name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vlmbatch import providers
from vlmbatch.classify import classify
from vlmbatch.records import Asked, Reading, Status, Verdict

PAGE = Path(__file__).parents[2] / "references" / "results-and-failures.md"
CHAT, RESPONSES, ANTHROPIC, GEMINI = ("openai", ""), ("openai", "/v1/responses"), ("anthropic", ""), ("gemini", "")
CAP, JSON = Asked(64), Asked(64, json=True)
USAGE = {"prompt_tokens": 800, "completion_tokens": 9, "total_tokens": 809}

Seen = tuple[tuple[str, str], int | None, Any, Asked]


def chat(content: Any = None, finish: str | None = "stop", **more: Any) -> Seen:
    """Return a chat answer with one choice; ``usage`` and fields of the message by name."""
    usage = {**USAGE, **more.pop("usage", {})}
    choice = {"index": 0, "message": {"role": "assistant", "content": content, **more}, "finish_reason": finish}
    return CHAT, 200, {"choices": [choice], "usage": usage}, CAP


def wants_json(seen: Seen) -> Seen:
    """Return the same answer where JSON was asked for."""
    return (*seen[:3], JSON)


def response(status: str, *parts: dict[str, Any], **more: Any) -> Seen:
    """Return an answer of the responses endpoint with one message."""
    output = [{"type": "message", "content": list(parts)}] if parts else []
    return RESPONSES, 200, {"status": status, "output": output, **more}, CAP


def message(stop: str | None, *blocks: dict[str, Any], **more: Any) -> Seen:
    """Return an Anthropic message."""
    return ANTHROPIC, 200, {"type": "message", "content": list(blocks), "stop_reason": stop, **more}, CAP


def gemini(finish: str, *parts: dict[str, Any]) -> Seen:
    """Return a Gemini answer with one candidate."""
    candidate = {"index": 0, "finishReason": finish, **({"content": {"parts": list(parts)}} if parts else {})}
    return GEMINI, 200, {"candidates": [candidate], "usageMetadata": {"promptTokenCount": 800}}, CAP


def failed(pair: tuple[str, str], status_code: int, **error: Any) -> Seen:
    """Return an HTTP error with a usual body."""
    return pair, status_code, {"error": {"message": "m", **error}}, CAP


def line(name: str, value: dict[str, Any]) -> Seen:
    """Return what stands in one line of a batch file."""
    read = providers.get(name).read_batch_line({"custom_id": "a", "key": "a", **value})
    return (name, ""), read.status_code, read if read.error else read.body, CAP


CUT = {"incomplete_details": {"reason": "max_output_tokens"}}
SAID, REFUSED = {"type": "output_text", "text": "red"}, {"type": "refusal", "refusal": "no"}
TEXT, THOUGHT = {"type": "text", "text": "red"}, {"type": "thinking", "thinking": "hm"}

SEEN: dict[str, Seen] = {
    # any provider
    "any-400": failed(CHAT, 400, code="invalid_image"),
    "any-401": failed(CHAT, 401),
    "any-402": failed(ANTHROPIC, 402),
    "any-403": failed(CHAT, 403),
    "any-404": failed(CHAT, 404, code="model_not_found"),
    "any-408": failed(CHAT, 408),
    "any-409": failed(CHAT, 409),
    "any-413": failed(ANTHROPIC, 413),
    "any-429": failed(CHAT, 429, code="rate_limit_exceeded"),
    "any-5xx": failed(CHAT, 503),
    "any-redirect": (CHAT, 302, "", CAP),
    "any-200-with-error": failed(CHAT, 200, code=429),
    "any-200-not-json": (CHAT, 200, "<html></html>", CAP),
    "any-200-without-answer": (CHAT, 200, {}, CAP),
    "any-filter-code": failed(CHAT, 400, code="content_filter"),
    "any-no-http-answer": (CHAT, None, None, CAP),
    "any-json-whole": wants_json(chat('{"a": 1}')),
    "any-json-in-one-fence": wants_json(chat('```json\n{"a": 1}\n```')),
    "any-json-with-words": wants_json(chat('{"a": 1} I hope this helps')),
    "any-json-nan": wants_json(chat('{"a": NaN}')),
    "any-json-cut": wants_json(chat('{"a": ', "length")),
    "any-tokens-at-limit-with-text": chat("red", usage={"completion_tokens": 64}),
    "any-tokens-at-limit-without-text": chat("", usage={"completion_tokens": 64}),
    # chat completions
    "chat-stop-with-text": chat("red"),
    "chat-content-list": chat([{"type": "text", "text": "red"}]),
    "chat-stop-without-text": chat(None),
    "chat-only-reasoning": chat(None, reasoning_content="hm"),
    "chat-think-block": chat("<think>hm</think>red"),
    "chat-think-block-alone": chat("<think>hm</think>"),
    "chat-length-with-text": chat("a red", "length"),
    "chat-length-without-text": chat("", "length"),
    "chat-refusal-field": chat(None, refusal="no"),
    "chat-content-filter": chat(None, "content_filter"),
    "chat-tool-call-alone": chat(None, "tool_calls", tool_calls=[{"id": "c"}]),
    "chat-no-choices": (CHAT, 200, {"choices": []}, CAP),
    "chat-unknown-finish": chat("red", "eos_token"),
    "chat-refusal-in-words": chat("I'm sorry, I can't."),
    "chat-insufficient-quota": failed(CHAT, 429, code="insufficient_quota"),
    "chat-context-full": chat("red red", "model_length"),
    "chat-filter-with-cause": chat("a line of", "content_filter: RECITATION"),
    "chat-limit-in-other-words": chat("a red", "max_tokens"),
    "chat-choice-error": (CHAT, 200, {"choices": [{"error": {"code": 400, "message": "m"}, "message": {}}]}, CAP),
    "chat-choice-error-of-the-server": (
        CHAT,
        200,
        {"choices": [{"error": {"code": 502, "message": "m"}, "finish_reason": "error"}]},
        CAP,
    ),
    "chat-no-resource": chat("re", "insufficient_system_resource"),
    "vllm-abort": chat("a red", "abort"),
    "vllm-error": chat("a red", "error"),
    "vllm-repetition": chat("red red red", "repetition"),
    "sglang-flat-error": (("sglang", ""), 400, {"object": "error", "message": "m", "code": 400}, CAP),
    # responses
    "responses-completed-with-text": response("completed", SAID),
    "responses-completed-without-text": response("completed"),
    "responses-refusal-part": response("completed", REFUSED),
    "responses-limit-with-text": response("incomplete", SAID, **CUT),
    "responses-limit-without-text": response("incomplete", **CUT),
    "responses-content-filter": response("incomplete", incomplete_details={"reason": "content_filter"}),
    "responses-failed-server": response("failed", error={"code": "server_error", "message": "m"}),
    "responses-failed-image": response("failed", error={"code": "invalid_image", "message": "m"}),
    "responses-failed-policy": response("failed", error={"code": "bio_policy", "message": "m"}),
    "responses-unfinished": response("in_progress"),
    "responses-cut-in-other-words": response("incomplete", SAID, incomplete_details={"reason": "length"}),
    "responses-without-status": (RESPONSES, 200, {"output": [{"type": "message", "content": [SAID]}]}, CAP),
    # Anthropic
    "anthropic-end-turn-with-text": message("end_turn", TEXT),
    "anthropic-stop-sequence": message("stop_sequence", TEXT),
    "anthropic-end-turn-without-text": message("end_turn", THOUGHT),
    "anthropic-max-tokens-with-text": message("max_tokens", TEXT),
    "anthropic-max-tokens-without-text": message("max_tokens", THOUGHT),
    "anthropic-context-window": message("model_context_window_exceeded", TEXT),
    "anthropic-pause-turn": message("pause_turn", TEXT),
    "anthropic-refusal": message("refusal", TEXT),
    "anthropic-forced-tool": message("tool_use", {"type": "tool_use", "input": {"a": 1}}),
    "anthropic-spend-limit": failed(ANTHROPIC, 429, details={"error_code": "enforced_spend_limit_reached"}),
    "anthropic-credit-in-words": failed(
        ANTHROPIC, 400, type="invalid_request_error", message="Your credit balance is too low to access the API."
    ),
    "anthropic-529": failed(ANTHROPIC, 529, type="overloaded_error"),
    # Gemini
    "gemini-stop-with-text": gemini("STOP", {"text": "red"}),
    "gemini-stop-without-text": gemini("STOP", {"text": "hm", "thought": True}),
    "gemini-max-tokens-with-text": gemini("MAX_TOKENS", {"text": "red"}),
    "gemini-max-tokens-without-text": gemini("MAX_TOKENS"),
    "gemini-continuation": gemini("CONTINUATION", {"text": "red"}),
    "gemini-prompt-blocked": (GEMINI, 200, {"promptFeedback": {"blockReason": "SAFETY"}}, CAP),
    "gemini-safety": gemini("SAFETY"),
    "gemini-recitation": gemini("RECITATION", {"text": "a line of a poem"}),
    "gemini-other-without-text": gemini("OTHER"),
    "gemini-tool-call": gemini("MALFORMED_FUNCTION_CALL"),
    "gemini-malformed-response": gemini("MALFORMED_RESPONSE", {"text": "re"}),
    "gemini-no-candidates": (GEMINI, 200, {"usageMetadata": {"promptTokenCount": 8}}, CAP),
    "gemini-bad-key": failed(GEMINI, 400, details=[{"reason": "API_KEY_INVALID"}]),
    "gemini-credit-in-words": failed(GEMINI, 429, message="Your prepayment credits are depleted."),
    "gemini-quota-of-the-day": failed(GEMINI, 429, details=[{"violations": [{"quotaId": "x-PerDay-y"}]}]),
    # lines of batch files
    "batch-openai-expired": line("openai", {"response": None, "error": {"code": "batch_expired"}}),
    "batch-openai-failed-line": line("openai", {"response": {"status_code": 400, "body": {"error": {"message": "m"}}}}),
    "batch-vllm-null-body": line("vllm", {"response": {"status_code": 400, "body": None}, "error": "m"}),
    "batch-anthropic-errored-invalid": line(
        "anthropic", {"result": {"type": "errored", "error": {"error": {"type": "invalid_request_error"}}}}
    ),
    "batch-anthropic-errored-server": line(
        "anthropic", {"result": {"type": "errored", "error": {"error": {"type": "api_error"}}}}
    ),
    "batch-anthropic-expired": line("anthropic", {"result": {"type": "expired"}}),
    "batch-anthropic-canceled": line("anthropic", {"result": {"type": "canceled"}}),
    "batch-gemini-invalid": line("gemini", {"error": {"code": 3, "message": "m"}}),
    "batch-gemini-unavailable": line("gemini", {"error": {"code": 14, "message": "m"}}),
}


def judged(seen: Seen) -> tuple[Reading, Verdict]:
    """Read an answer, or take the error of a line that holds none, and say what became of it."""
    pair, status_code, body, asked = seen
    error = getattr(body, "error", None)
    reading = Reading(error=error) if error else providers.get(*pair).read(status_code, body)
    return reading, classify(reading, asked)


def page_rows() -> dict[str, tuple[str, str]]:
    """Return the rows of the page's tables that have a test: status and whether to send again, by name."""
    rows = {}
    for text in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip().strip("`") for cell in text.strip("|").split("|")]
        if text.startswith("| `") and len(cells) == 4:
            assert cells[0] not in rows, cells[0]
            rows[cells[0]] = (cells[2], cells[3])
    return rows


BY_STATUS = {
    Status.OK: "no",
    Status.INVALID_JSON: "few",
    Status.TRUNCATED: "new run",
    Status.EMPTY_AT_CAP: "new run",
    Status.EMPTY: "few",
    Status.REFUSAL: "few",
}


def again(reading: Reading, status: Status, seen: Seen) -> str:
    """Return the page's word for whether sending again is worth it."""
    if status in BY_STATUS:
        return BY_STATUS[status]
    assert reading.error is not None
    if providers.get(*seen[0]).ends_run(seen[1], seen[2]) is not None:
        return "after action"
    return "yes" if reading.error["is_retryable"] else "no"


@pytest.mark.parametrize("name", SEEN)
def test_outcome_is_what_the_page_says(name: str) -> None:
    """The status and the worth of another try are those of the page's row of that name."""
    reading, verdict = judged(SEEN[name])
    assert page_rows()[name] == (verdict.status, again(reading, verdict.status, SEEN[name]))


def test_page_has_no_row_without_a_test() -> None:
    """Every row of the page is tested, every test has its row, every status is shown."""
    assert set(page_rows()) == set(SEEN)
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"| {status} |" in text for status in Status)
