"""POST /v1/responses: the OpenAI responses format."""

from __future__ import annotations

from typing import Any

from vlmbatch.rehearsal.wires.base import (
    Answer,
    Asked,
    BadRequest,
    Picture,
    decode_data_uri,
    effort,
    limit,
    take,
)
from vlmbatch.rehearsal.wires.chat import ChatWire


class ResponsesWire(ChatWire):
    """The responses format; its errors are those of chat."""

    def read(self, body: dict[str, Any], model: str) -> Asked:  # noqa: ARG002  (the body names the model)
        """Read a responses body."""
        texts = [body["instructions"]] if isinstance(body.get("instructions"), str) else []
        pictures: list[Picture] = []
        details: list[str] = []
        items = body.get("input")
        for item in [{"content": items}] if isinstance(items, str) else take(items, list, "input"):
            _read_content(take(item, dict, "input").get("content"), texts, pictures, details)
        wanted = (body.get("text") or {}).get("format") or {}
        return Asked(
            model=take(body.get("model"), str, "model"),
            text="\n".join(texts),
            pictures=tuple(pictures),
            max_tokens=limit(body.get("max_output_tokens"), "max_output_tokens"),
            reasoning_tokens=effort((body.get("reasoning") or {}).get("effort"), "reasoning.effort"),
            json=wanted.get("type") in {"json_object", "json_schema"},
            schema=wanted.get("schema"),
            detail=details[0] if details else None,
        )

    def answer(self, asked: Asked, answer: Answer) -> dict[str, Any]:
        """Write a response object."""
        status = "incomplete" if answer.at_cap else "completed"
        output: list[dict[str, Any]] = []
        if answer.reasoning_tokens:
            output.append({"id": f"rs_{answer.id}", "type": "reasoning", "summary": []})
        part: dict[str, Any] | None = None
        if answer.refused:
            part = {"type": "refusal", "refusal": "I can't help with that."}
        elif answer.text is not None:
            part = {"type": "output_text", "text": answer.text, "annotations": []}
        if part:
            output.append(
                {"id": f"msg_{answer.id}", "type": "message", "status": status, "role": "assistant", "content": [part]}
            )
        return {
            "id": f"resp_{answer.id}",
            "object": "response",
            "created_at": 0,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if answer.at_cap else None,
            "instructions": None,
            "max_output_tokens": asked.max_tokens,
            "model": asked.model,
            "output": output,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "truncation": "disabled",
            "usage": {
                "input_tokens": answer.input_tokens,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": answer.output_tokens,
                "output_tokens_details": {"reasoning_tokens": answer.reasoning_tokens},
                "total_tokens": answer.input_tokens + answer.output_tokens,
            },
            "metadata": {},
        }


def _read_content(content: object, texts: list[str], pictures: list[Picture], details: list[str]) -> None:
    if isinstance(content, str):
        texts.append(content)
        return
    for part in take(content, list, "input.content"):
        kind = take(part, dict, "input.content").get("type")
        if kind == "input_text":
            texts.append(take(part.get("text"), str, "text"))
        elif kind == "input_image":
            pictures.append(_picture(part))
            details.extend([part["detail"]] if part.get("detail") else [])
        else:
            raise BadRequest(f"Invalid value: {kind!r}. Supported values are: 'input_text' and 'input_image'.")


def _picture(part: dict[str, Any]) -> Picture:
    if part.get("file_id"):
        return Picture(file_id=take(part["file_id"], str, "file_id"))
    return decode_data_uri(part.get("image_url"))
