"""OpenAI responses (``--provider openai --url /v1/responses``). Bodies: references/providers.md, 2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vlmbatch.errors import Problem
from vlmbatch.providers import failures
from vlmbatch.providers import openai_families as families
from vlmbatch.providers.common import (
    as_count,
    as_dict,
    as_list,
    as_text,
    check_detail,
    check_extra,
    ended_by,
    join_texts,
    merge_extra,
    no_such_option,
    note_zero,
)
from vlmbatch.providers.openai_common import KEYS, URL, OpenAIWire, check_strict, data_uri, strict_format
from vlmbatch.records import Ended, ErrorInfo, ErrorType, Reading, Usage, no_usage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vlmbatch.providers.base import Ask, Part

FINISH_REASONS = {
    "completed": Ended.STOP,
    "max_output_tokens": Ended.CAP,
    "content_filter": Ended.FILTER,
    "max_messages": Ended.ERROR,
    "steered": Ended.ERROR,
    "failed": Ended.ERROR,
    "cancelled": Ended.ERROR,
    "queued": Ended.ERROR,
    "in_progress": Ended.ERROR,
    "incomplete": Ended.ERROR,
}
"""openai 3.57.0, ResponseStatus, and IncompleteDetails.reason in its place where the answer is incomplete."""

_REFUSED_EXTRA = {
    "model": "the model is --model; a line that asks another one would belie run.json",
    "input": "prompt and images stand there",
    "instructions": "the system prompt stands there",
    "stream": "an answer is read whole, and batch lines refuse it",
    "stream_options": "an answer is read whole, and batch lines refuse it",
    "background": "the answer would come without its text",
}


@dataclass(frozen=True, slots=True)
class Responses(OpenAIWire):
    """OpenAI's responses endpoint."""

    wire: ClassVar[str] = "openai-responses"
    path: ClassVar[str] = "/v1/responses"

    def supported_params(self) -> frozenset[str]:
        """Return what :class:`Ask` may set here."""
        return frozenset(
            {"max_tokens", "temperature", "top_p", "detail", "reasoning_effort", "json_answer", "json_schema"}
        )

    def check_ask(self, ask: Ask) -> tuple[list[Problem], list[str]]:
        """Check the options: what has no field here is refused, what a model refuses is left out and told."""
        problems = check_detail(ask) + check_extra(ask, _REFUSED_EXTRA)
        if ask.thinking_budget is not None:
            problems.append(no_such_option(self.name, "--thinking-budget", "use --reasoning-effort"))
        if ask.max_tokens_field not in {"", "max_output_tokens"}:
            problems.append(Problem("option", "the field is max_output_tokens here", where="--max-tokens-field"))
        found, warnings = families.check_effort(ask)
        return problems + found, warnings + families.check_sampling(ask) + check_strict(ask)

    def params(self, ask: Ask) -> dict[str, Any]:
        """Return the body without model, instructions and input."""
        body: dict[str, Any] = {}
        if ask.max_tokens is not None:
            body["max_output_tokens"] = ask.max_tokens
        body.update(families.sampling(ask))
        if ask.reasoning_effort is not None:
            body["reasoning"] = {"effort": ask.reasoning_effort}
        if ask.json_schema is not None:
            body["text"] = {"format": {"type": "json_schema", **strict_format(ask.json_schema)}}
        elif ask.json_answer:
            body["text"] = {"format": {"type": "json_object"}}
        return merge_extra(body, ask.extra_body)

    def body(self, ask: Ask, parts: Sequence[Part]) -> dict[str, Any]:
        """Return the request body."""
        content = [_part(part, ask) for part in parts if part != ""]
        body = {**self.params(ask), "model": ask.model, "input": [{"role": "user", "content": content}]}
        return body if ask.system is None else {**body, "instructions": ask.system}

    def max_tokens(self, body: Mapping[str, Any]) -> int | None:
        """Return the output limit."""
        return as_count(body.get("max_output_tokens"))

    def read(self, status_code: int | None, body: Any) -> Reading:
        """Read one answer; a failed one comes under status 200 with its cause inside."""
        if failures.is_ok(status_code) and isinstance(body, dict) and _is_response(body):
            return _read_response(body, status_code)
        return failures.read_failure(status_code, body) or failures.not_an_answer(status_code, body)


RESPONSES_PROVIDER = Responses("openai", URL, KEYS, takes_file_ids=True)


def _part(part: Part, ask: Ask) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "input_text", "text": part}
    image = {"file_id": part.file_id} if part.file_id else {"image_url": data_uri(part)}
    return {"type": "input_image", "detail": ask.detail or "auto", **image}  # the type requires a detail


# --- reading -------------------------------------------------------------------------------------------------


def _is_response(body: dict[str, Any]) -> bool:
    """Tell whether a body is a response: its status is optional (openai 3.57.0), but then it must report no error."""
    is_whole = isinstance(body.get("output"), list) and not body.get("error")
    return is_whole or ("output" in body and isinstance(body.get("status"), str))


def _read_response(body: dict[str, Any], status_code: int | None) -> Reading:
    notes: list[str] = []
    status = as_text(body.get("status")) or "completed"
    finish_reason = as_text(as_dict(body.get("incomplete_details")).get("reason")) if status == "incomplete" else None
    finish_reason = finish_reason or status
    ended = ended_by(FINISH_REASONS, finish_reason, notes)
    if status == "incomplete" and "unknown_finish_reason" in notes:
        ended = Ended.CAP  # a word of its own for a cut answer (Volcengine says length)
    texts, refusal, is_call = _read_messages(as_list(body.get("output")))
    text = join_texts(texts)
    if text is None and is_call and ended is Ended.STOP:
        ended = Ended.TOOL
    error = None
    if ended is Ended.ERROR:
        error = _error(body, finish_reason, status_code)
        if error.get("code") in failures.FILTER_CODES:
            ended, refusal = Ended.FILTER, error["message"]
        text = None
    return Reading(
        text=text,
        reasoning=_reasoning(as_list(body.get("output"))),
        refusal=refusal,
        ended=ended,
        finish_reason=finish_reason,
        usage=_read_usage(body.get("usage"), notes),
        model=as_text(body.get("model")),
        error=error,
        notes=tuple(notes),
    )


def _error(body: dict[str, Any], finish_reason: str, status_code: int | None) -> ErrorInfo:
    """Return why a response failed: by its code, or, where it names none, as one that the server dropped."""
    error = as_dict(body.get("error"))
    code, message = as_text(error.get("code")), as_text(error.get("message"))
    if code is None:
        return failures.gave_up(finish_reason, message or f"the response ended as {finish_reason}", status_code)
    status = failures.status_of(code) or 400
    retryable = failures.is_retryable(status)
    return failures.error_info(ErrorType.API_STATUS, message or code, status, code=code, retryable=retryable)


def _read_messages(output: list[Any]) -> tuple[list[str], str | None, bool]:
    """Return the answer's texts, the refusal, and whether a tool was called.

    Of messages that carry a phase only the final answer counts, where there is one.
    """
    items = [item for item in output if isinstance(item, dict)]
    messages = [item for item in items if item.get("type") == "message"]
    final = [message for message in messages if message.get("phase") == "final_answer"]
    texts: list[str] = []
    refusal = None
    for message in final or messages:
        for part in map(as_dict, as_list(message.get("content"))):
            if part.get("type") == "refusal":
                refusal = as_text(part.get("refusal")) or refusal
            elif isinstance(part.get("text"), str):
                texts.append(part["text"])
    return texts, refusal, any(str(item.get("type")).endswith("_call") for item in items)


def _reasoning(output: list[Any]) -> str | None:
    thoughts = []
    for item in map(as_dict, output):
        if item.get("type") == "reasoning":
            pieces = as_list(item.get("content")) or as_list(item.get("summary"))
            thoughts += [piece["text"] for piece in map(as_dict, pieces) if isinstance(piece.get("text"), str)]
    return join_texts(thoughts, "\n")


def _read_usage(raw: Any, notes: list[str]) -> Usage:
    usage, told = no_usage(), as_dict(raw)
    usage["input_tokens"] = as_count(told.get("input_tokens"))
    usage["output_tokens"] = as_count(told.get("output_tokens"))
    usage["reasoning_tokens"] = as_count(as_dict(told.get("output_tokens_details")).get("reasoning_tokens"))
    usage["cached_tokens"] = as_count(as_dict(told.get("input_tokens_details")).get("cached_tokens"))
    usage["total_tokens"] = as_count(told.get("total_tokens"))
    note_zero(usage, notes)
    return usage
