"""POST /v1/chat/completions: the OpenAI chat format, which local servers share."""

from __future__ import annotations

from typing import Any

from vlmbatch.rehearsal.wires.base import (
    FINGERPRINT,
    Answer,
    Asked,
    BadRequest,
    ErrorReply,
    Picture,
    decode_data_uri,
    effort,
    limit,
    retry_headers,
    take,
)

_TYPES = {400: "invalid_request_error", 401: "invalid_request_error", 404: "invalid_request_error", 429: "requests"}
_CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}


class ChatWire:
    """The chat completions format."""

    def read(self, body: dict[str, Any], model: str) -> Asked:  # noqa: ARG002  (the body names the model)
        """Read a chat completions body."""
        texts: list[str] = []
        pictures: list[Picture] = []
        details: list[str] = []
        for message in take(body.get("messages"), list, "messages"):
            _read_content(take(message, dict, "messages").get("content"), texts, pictures, details)
        wanted = body.get("response_format") or {}
        kind = take(wanted, dict, "response_format").get("type")
        schema = (wanted.get("json_schema") or {}).get("schema") if kind == "json_schema" else None
        cap = body.get("max_completion_tokens", body.get("max_tokens"))
        return Asked(
            model=take(body.get("model"), str, "model"),
            text="\n".join(texts),
            pictures=tuple(pictures),
            max_tokens=limit(cap, "max_completion_tokens"),
            reasoning_tokens=effort(body.get("reasoning_effort"), "reasoning_effort"),
            json=kind in {"json_object", "json_schema"},
            schema=schema,
            detail=details[0] if details else None,
        )

    def answer(self, asked: Asked, answer: Answer) -> dict[str, Any]:
        """Write a chat.completion object."""
        message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None, "annotations": []}
        if answer.refused:
            message |= {"content": None, "refusal": "I can't help with that."}
        return {
            "id": f"chatcmpl-{answer.id}",
            "object": "chat.completion",
            "created": 0,
            "model": asked.model,
            "choices": [
                {
                    "index": 0,
                    "message": message,
                    "logprobs": None,
                    "finish_reason": "length" if answer.at_cap else "stop",
                }
            ],
            "usage": {
                "prompt_tokens": answer.input_tokens,
                "completion_tokens": answer.output_tokens,
                "total_tokens": answer.input_tokens + answer.output_tokens,
                "prompt_tokens_details": {"cached_tokens": 0, "image_tokens": answer.image_tokens},
                "completion_tokens_details": {"reasoning_tokens": answer.reasoning_tokens},
            },
            "service_tier": "default",
            "system_fingerprint": FINGERPRINT,
        }

    def error(
        self, status: int, message: str, *, code: str | None = None, retry_after_s: float | None = None
    ) -> ErrorReply:
        """Write ``{"error": {...}}``."""
        error = {
            "message": message,
            "type": _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error"),
            "param": None,
            "code": code or _CODES.get(status),
        }
        return ErrorReply({"error": error}, retry_headers(retry_after_s))


def _read_content(content: object, texts: list[str], pictures: list[Picture], details: list[str]) -> None:
    if isinstance(content, str):
        texts.append(content)
        return
    for part in take(content, list, "messages.content"):
        kind = take(part, dict, "messages.content").get("type")
        if kind == "text":
            texts.append(take(part.get("text"), str, "text"))
        elif kind == "image_url":
            image = take(part.get("image_url"), dict, "image_url")
            pictures.append(decode_data_uri(image.get("url")))
            details.extend([image["detail"]] if image.get("detail") else [])
        else:
            raise BadRequest(f"Invalid value: {kind!r}. Supported values are: 'text' and 'image_url'.")
