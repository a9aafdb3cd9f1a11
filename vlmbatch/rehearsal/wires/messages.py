"""POST /v1/messages: the Anthropic messages format."""

from __future__ import annotations

from typing import Any

from vlmbatch.rehearsal.wires.base import (
    EFFORTS,
    NO_CREDIT,
    Answer,
    Asked,
    BadRequest,
    ErrorReply,
    Picture,
    decode_base64,
    effort,
    limit,
    retry_headers,
    take,
)

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


class MessagesWire:
    """The messages format."""

    def read(self, body: dict[str, Any], model: str) -> Asked:  # noqa: ARG002  (the body names the model)
        """Read a messages body."""
        texts: list[str] = []
        pictures: list[Picture] = []
        _read_content(body.get("system", ""), texts, pictures)
        for message in take(body.get("messages"), list, "messages"):
            _read_content(take(message, dict, "messages").get("content"), texts, pictures)
        cap = limit(body.get("max_tokens"), "max_tokens")
        if cap is None:
            raise BadRequest("max_tokens: Field required")
        config = body.get("output_config") or {}
        form = config.get("format") or {}
        return Asked(
            model=take(body.get("model"), str, "model"),
            text="\n".join(texts),
            pictures=tuple(pictures),
            max_tokens=cap,
            reasoning_tokens=_thinking(body.get("thinking") or {}, config.get("effort")),
            json=form.get("type") == "json_schema",
            schema=form.get("schema"),
            checks_media_type=True,
        )

    def answer(self, asked: Asked, answer: Answer) -> dict[str, Any]:
        """Write a message object."""
        content: list[dict[str, Any]] = []
        if answer.reasoning_tokens:
            content.append({"type": "thinking", "thinking": "", "signature": "cmVoZWFyc2Fs"})
        if answer.text and not answer.refused:
            content.append({"type": "text", "text": answer.text, "citations": None})
        reason = "max_tokens" if answer.at_cap else "end_turn"
        usage: dict[str, Any] = {
            "input_tokens": answer.input_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": answer.output_tokens,
            "service_tier": "standard",
        }
        if answer.reasoning_tokens:
            usage["output_tokens_details"] = {"thinking_tokens": answer.reasoning_tokens}
        return {
            "id": f"msg_{answer.id}",
            "type": "message",
            "role": "assistant",
            "model": asked.model,
            "content": [] if answer.refused else content,
            "stop_reason": "refusal" if answer.refused else reason,
            "stop_sequence": None,
            "usage": usage,
        }

    def error(
        self, status: int, message: str, *, code: str | None = None, retry_after_s: float | None = None
    ) -> ErrorReply:
        """Write ``{"type": "error", "error": {...}}``."""
        error: dict[str, Any] = {"type": _TYPES.get(status, "api_error"), "message": message}
        if code == NO_CREDIT:
            error["details"] = {"error_code": "enforced_spend_limit_reached"}
        return ErrorReply(
            {"type": "error", "error": error, "request_id": "req_rehearsal"}, retry_headers(retry_after_s)
        )


def _thinking(thinking: dict[str, Any], asked_effort: object) -> int:
    kind = thinking.get("type", "disabled")
    if kind == "disabled":
        return 0
    if kind == "enabled":
        budget = thinking.get("budget_tokens")
        if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1024:
            raise BadRequest("thinking.enabled.budget_tokens: Input should be greater than or equal to 1024")
        return min(budget, EFFORTS["medium"])
    return effort(asked_effort or "medium", "output_config.effort")


def _read_content(content: object, texts: list[str], pictures: list[Picture]) -> None:
    if isinstance(content, str):
        texts.extend([content] if content else [])
        return
    for block in take(content, list, "content"):
        kind = take(block, dict, "content").get("type")
        if kind == "text":
            texts.append(take(block.get("text"), str, "text"))
        elif kind == "image":
            pictures.append(_picture(take(block.get("source"), dict, "source")))
        else:
            raise BadRequest(f"content: unexpected block type {kind!r}")


def _picture(source: dict[str, Any]) -> Picture:
    kind = source.get("type")
    if kind == "base64":
        return Picture(take(source.get("media_type"), str, "media_type"), decode_base64(source.get("data")))
    if kind == "file":
        return Picture(file_id=take(source.get("file_id"), str, "file_id"))
    raise BadRequest(f"source: unexpected type {kind!r}")
