"""POST /v1beta/models/{model}:generateContent: the Gemini format."""

from __future__ import annotations

import re
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
    take,
)

_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}


class GenerateContentWire:
    """The generateContent format; field names in camelCase or snake_case, as the REST endpoint takes both."""

    def read(self, body: dict[str, Any], model: str) -> Asked:
        """Read a generateContent body."""
        texts: list[str] = []
        pictures: list[Picture] = []
        system = _field(body, "systemInstruction")
        if system is not None:
            _read_parts(system, texts, pictures)
        for content in take(body.get("contents"), list, "contents"):
            _read_parts(content, texts, pictures)
        config = take(_field(body, "generationConfig") or {}, dict, "generationConfig")
        return Asked(
            model=model,
            text="\n".join(texts),
            pictures=tuple(pictures),
            max_tokens=limit(_field(config, "maxOutputTokens"), "maxOutputTokens"),
            reasoning_tokens=_thinking(take(_field(config, "thinkingConfig") or {}, dict, "thinkingConfig")),
            json=_field(config, "responseMimeType") == "application/json",
            schema=_field(config, "responseJsonSchema") or _field(config, "responseSchema"),
            detail=_field(config, "mediaResolution"),
        )

    def answer(self, asked: Asked, answer: Answer) -> dict[str, Any]:
        """Write a GenerateContentResponse; zeros and empty fields are left out, as the provider does."""
        text_tokens = answer.output_tokens - answer.reasoning_tokens
        usage: dict[str, Any] = {
            "promptTokenCount": answer.input_tokens,
            "candidatesTokenCount": text_tokens,
            "thoughtsTokenCount": answer.reasoning_tokens,
            "totalTokenCount": answer.input_tokens + answer.output_tokens,
            "promptTokensDetails": _details(answer),
        }
        body: dict[str, Any] = {
            "usageMetadata": {key: value for key, value in usage.items() if value},
            "modelVersion": asked.model,
            "responseId": answer.id,
        }
        if answer.refused:
            return body | {"promptFeedback": {"blockReason": "SAFETY"}}
        content: dict[str, Any] = {"role": "model"}
        if answer.text:
            content["parts"] = [{"text": answer.text}]
        reason = "MAX_TOKENS" if answer.at_cap else "STOP"
        return body | {"candidates": [{"finishReason": reason, "index": 0, "content": content}]}

    def error(
        self, status: int, message: str, *, code: str | None = None, retry_after_s: float | None = None
    ) -> ErrorReply:
        """Write ``{"error": {...}}``; the wait stands in the body (RetryInfo), not in a header."""
        error: dict[str, Any] = {"code": status, "message": message, "status": _STATUSES.get(status, "UNKNOWN")}
        details: list[dict[str, Any]] = []
        if code == NO_CREDIT:
            violation = {"quotaId": "GenerateRequestsPerDayPerProjectPerModel"}
            details.append({"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [violation]})
        if retry_after_s is not None:
            details.append({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{retry_after_s:g}s"})
        if details:
            error["details"] = details
        return ErrorReply({"error": error})


def _field(value: dict[str, Any], name: str) -> Any:
    """Return a field under its camelCase name or its snake_case one: google-genai 3.6.1 itself sends ``mime_type``."""
    return value.get(name, value.get(re.sub(r"[A-Z]", lambda letter: f"_{letter[0].lower()}", name)))


def _decode_bytes(text: object) -> bytes:
    """Decode a bytes field: the JSON form of protobuf takes the URL-safe alphabet too, padded or not.

    Raises:
        BadImage: It is no base64.
    """
    if not isinstance(text, str):
        return decode_base64(text)
    plain = text.replace("-", "+").replace("_", "/").rstrip("=")
    return decode_base64(plain + "=" * (-len(plain) % 4))


def _details(answer: Answer) -> list[dict[str, Any]]:
    shares = {"TEXT": answer.input_tokens - answer.image_tokens, "IMAGE": answer.image_tokens}
    return [{"modality": name, "tokenCount": tokens} for name, tokens in shares.items() if tokens]


def _thinking(config: dict[str, Any]) -> int:
    budget, level = _field(config, "thinkingBudget"), _field(config, "thinkingLevel")
    if budget is not None and level is not None:
        raise BadRequest("You can only set only one of thinking budget and thinking level.")
    if budget is None:
        return effort(level, "thinkingLevel")
    if isinstance(budget, bool) or not isinstance(budget, int):
        raise BadRequest("Invalid value at 'generation_config.thinking_config.thinking_budget'")
    return EFFORTS["medium"] if budget < 0 else min(budget, EFFORTS["medium"])


def _read_parts(content: object, texts: list[str], pictures: list[Picture]) -> None:
    for part in take(take(content, dict, "contents").get("parts"), list, "parts"):
        part = take(part, dict, "parts")  # noqa: PLW2901
        inline, stored = _field(part, "inlineData"), _field(part, "fileData")
        if "text" in part:
            texts.append(take(part["text"], str, "text"))
        elif inline is not None:
            kind = take(_field(take(inline, dict, "inlineData"), "mimeType"), str, "mimeType")
            pictures.append(Picture(kind, _decode_bytes(inline.get("data"))))
        elif stored is not None:
            uri = take(_field(take(stored, dict, "fileData"), "fileUri"), str, "fileUri")
            pictures.append(Picture(file_id="files/" + uri.rsplit("/", 1)[-1]))
        else:
            raise BadRequest(f"Unknown name {next(iter(part), '')!r} at 'contents[0].parts[0]'")
