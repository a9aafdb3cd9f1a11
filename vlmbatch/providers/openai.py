"""OpenAI chat completions, and the servers that speak the same: rows of a table, not classes.

Bodies: references/providers.md, 2 and 5. Lines: the OpenAI batch format, which ``vllm run-batch`` reads too.
"""

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
    check_path,
    ended_by,
    include_reasoning,
    join_texts,
    merge_extra,
    no_such_option,
    note_zero,
    split_think,
)
from vlmbatch.providers.openai_common import KEYS, URL, OpenAIWire, check_strict, data_uri, strict_format
from vlmbatch.records import Ended, ErrorInfo, Reading, Usage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vlmbatch.providers.base import Ask, Part

_LIMIT_FIELDS = ("max_completion_tokens", "max_tokens", "max_new_tokens")
"""Where the output limit may stand in a body: the at-cap rule has to find it again."""

FINISH_REASONS = {
    "stop": Ended.STOP,
    "length": Ended.CAP,
    "content_filter": Ended.FILTER,
    "tool_calls": Ended.TOOL,
    "function_call": Ended.TOOL,
    "abort": Ended.ERROR,
    "error": Ended.ERROR,
    "repetition": Ended.CAP,
    "model_length": Ended.CAP,
    "max_tokens": Ended.CAP,
    "insufficient_system_resource": Ended.ERROR,
}
"""OpenAI 3.57.0, ChatCompletion; abort, error and repetition are vLLM's (0.33.0), abort SGLang's too (0.5.23). Of the
compatible services, model_length (the context is full) is Mistral's and insufficient_system_resource DeepSeek's; some
relays hand on max_tokens as it came.
"""

_REFUSED_EXTRA = {
    "model": "the model is --model; a line that asks another one would belie run.json",
    "messages": "prompt and images stand there",
    "stream": "an answer is read whole, and batch lines refuse it",
    "stream_options": "an answer is read whole, and batch lines refuse it",
}


@dataclass(frozen=True, slots=True)
class ChatServer(OpenAIWire):
    """A server that speaks OpenAI chat completions; what sets it apart are the fields.

    Attributes:
        limit_field: The output limit's name in the body.
        budget_field: The thinking budget's name in the body, empty where there is none.
        reads_detail: Whether ``detail`` does anything.
        has_openai_models: Whether names such as ``gpt-5`` mean OpenAI's own models, so that their rules hold.
    """

    limit_field: str = "max_tokens"
    budget_field: str = ""
    reads_detail: bool = True
    has_openai_models: bool = True
    wire: ClassVar[str] = "openai-chat"
    path: ClassVar[str] = "/v1/chat/completions"

    def supported_params(self) -> frozenset[str]:
        """Return what :class:`Ask` may set here."""
        always = {"max_tokens", "temperature", "top_p", "detail", "reasoning_effort", "json_answer", "json_schema"}
        return frozenset(always | ({"thinking_budget"} if self.budget_field else set()))

    def check_ask(self, ask: Ask) -> tuple[list[Problem], list[str]]:
        """Check the options: what has no field here is refused, what a model refuses is left out and told."""
        problems = check_detail(ask) + check_extra(ask, _REFUSED_EXTRA)
        problems += self._check_own(ask)
        warnings = [] if self.reads_detail or not ask.detail else [f"{self.name} ignores --detail"]
        if self.has_openai_models:
            found, said = families.check_effort(ask)
            problems += found
            warnings += said + families.check_sampling(ask)
        return problems, warnings + check_strict(ask)

    def _check_own(self, ask: Ask) -> list[Problem]:
        problems = []
        if ask.thinking_budget is not None and not self.budget_field:
            instead = "use --reasoning-effort, or the server's own field by --extra-body"
            problems.append(no_such_option(self.name, "--thinking-budget", instead))
        if ask.max_tokens_field and ask.max_tokens_field not in _LIMIT_FIELDS:
            taken = f"{ask.max_tokens_field!r} is none of {', '.join(_LIMIT_FIELDS)}"
            problems.append(Problem("option", taken, where="--max-tokens-field"))
        return problems + check_path(ask, "/chat/completions", "chat completions")

    def params(self, ask: Ask) -> dict[str, Any]:
        """Return the body without model and messages."""
        body: dict[str, Any] = {}
        if ask.max_tokens is not None:
            body[self._limit_field(ask)] = ask.max_tokens
        body.update(families.sampling(ask, obey=self.has_openai_models))
        if ask.reasoning_effort is not None:
            body["reasoning_effort"] = ask.reasoning_effort
        if ask.thinking_budget is not None and self.budget_field:
            body[self.budget_field] = ask.thinking_budget
        if ask.json_schema is not None:
            body["response_format"] = {"type": "json_schema", "json_schema": strict_format(ask.json_schema)}
        elif ask.json_answer:
            body["response_format"] = {"type": "json_object"}
        return merge_extra(body, ask.extra_body)

    def _limit_field(self, ask: Ask) -> str:
        if ask.max_tokens_field:
            return ask.max_tokens_field
        is_theirs = self.has_openai_models and families.is_reasoning(ask.model)
        return "max_completion_tokens" if is_theirs else self.limit_field

    def body(self, ask: Ask, parts: Sequence[Part]) -> dict[str, Any]:
        """Return the request body: a message of one text alone is plain text, any other a list of parts."""
        content: Any = [self._part(part, ask) for part in parts if part != ""]
        if len(content) == 1 and content[0]["type"] == "text":
            content = content[0]["text"]
        system = [] if ask.system is None else [{"role": "system", "content": ask.system}]
        return {**self.params(ask), "model": ask.model, "messages": [*system, {"role": "user", "content": content}]}

    def _part(self, part: Part, ask: Ask) -> dict[str, Any]:
        if isinstance(part, str):
            return {"type": "text", "text": part}
        if part.file_id:
            raise self._no_file_ids()
        detail = {} if ask.detail is None else {"detail": ask.detail}
        return {"type": "image_url", "image_url": {"url": data_uri(part), **detail}}

    def max_tokens(self, body: Mapping[str, Any]) -> int | None:
        """Return the output limit; the smallest where several stand there."""
        limits = [limit for limit in (as_count(body.get(field)) for field in _LIMIT_FIELDS) if limit is not None]
        return min(limits, default=None)

    def read(self, status_code: int | None, body: Any) -> Reading:
        """Read one answer."""
        failure = failures.read_failure(status_code, body)
        if failure is not None:
            return failure
        if not isinstance(body, dict) or "choices" not in body:
            return failures.not_an_answer(status_code, body)
        return _read_choice(body, status_code)


# --- reading a choice ----------------------------------------------------------------------------------------


def _read_choice(body: dict[str, Any], status_code: int | None) -> Reading:
    choices = [choice for choice in as_list(body["choices"]) if isinstance(choice, dict)]
    notes = [] if choices else ["no_choices"]
    choice = choices[0] if choices else {}
    if len(choices) > 1:
        notes.append("two_choices")
        choice = next((one for one in choices if one.get("index") == 0), choice)
    message = as_dict(choice.get("message"))
    said = _Said(message.get("content"))
    text, reasoning = said.answer(notes)
    beside = as_text(message.get("reasoning")) or as_text(message.get("reasoning_content"))
    if beside is not None:
        reasoning = beside if reasoning is None else f"{beside}\n{reasoning}"
    finish_reason = as_text(choice.get("finish_reason"))
    ended = ended_by(FINISH_REASONS, finish_reason, notes)
    if text is None and ended is Ended.STOP and (message.get("tool_calls") or message.get("function_call")):
        ended = Ended.TOOL
    error = None
    if ended is Ended.ERROR or as_dict(choice.get("error")):
        ended, text, error = Ended.ERROR, None, _dropped(choice, finish_reason, status_code)
    usage, image_tokens = _read_usage(body.get("usage"), notes)
    return Reading(
        text=text,
        reasoning=reasoning,
        refusal=as_text(message.get("refusal")) or said.refusal,
        ended=ended,
        finish_reason=finish_reason,
        usage=usage,
        image_tokens=image_tokens,
        model=as_text(body.get("model")),
        system_fingerprint=as_text(body.get("system_fingerprint")),
        error=error,
        notes=tuple(notes),
    )


def _dropped(choice: dict[str, Any], finish_reason: str | None, status_code: int | None) -> ErrorInfo:
    """Return why a choice came to nothing: by the status of its own error (OpenRouter), else as a dropped request."""
    told = failures.read_failure(None, choice)
    if told is not None and told.error is not None and told.error["status_code"] not in {None, 200}:
        return told.error
    said = told.error["message"] if told is not None and told.error is not None else None
    return failures.gave_up(
        finish_reason, said or f"the server dropped the request (finish reason {finish_reason})", status_code
    )


class _Said:
    """Collects a message's content, whatever its shape: answer, thoughts and refusal apart."""

    def __init__(self, content: Any) -> None:
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self.refusal: str | None = None
        for part in content if isinstance(content, list) else [content]:
            if isinstance(part, str):
                self._texts.append(part)
            elif isinstance(part, dict):
                self._add_part(part)

    def _add_part(self, part: dict[str, Any]) -> None:
        kind = part.get("type")
        if kind in {"thinking", "reasoning"}:
            thought = part.get(kind) or part.get("text")
            self._thoughts += filter(None, (_text_of(piece) for piece in (as_list(thought) or [thought])))
        elif kind == "refusal":
            self.refusal = as_text(part.get("refusal")) or self.refusal
        else:
            self._texts.append(_text_of(part))

    def answer(self, notes: list[str]) -> tuple[str | None, str | None]:
        """Return the answer and the thoughts, parts joined with nothing between."""
        text, thought = split_think("".join(self._texts))
        if thought is not None:
            notes.append("think_block")
            self._thoughts.append(thought)
        return as_text(text), join_texts(self._thoughts, "\n") if self._thoughts else None


def _text_of(piece: Any) -> str:
    text = piece.get("text") if isinstance(piece, dict) else piece
    return text if isinstance(text, str) else ""


def _read_usage(raw: Any, notes: list[str]) -> tuple[Usage, int | None]:
    told = as_dict(raw)
    before, after = as_dict(told.get("prompt_tokens_details")), as_dict(told.get("completion_tokens_details"))
    reasoning = as_count(after.get("reasoning_tokens"))
    usage: Usage = {
        "input_tokens": as_count(told.get("prompt_tokens")),
        "output_tokens": as_count(told.get("completion_tokens")),
        "reasoning_tokens": as_count(told.get("reasoning_tokens")) if reasoning is None else reasoning,
        "cached_tokens": as_count(before.get("cached_tokens")),
        "total_tokens": as_count(told.get("total_tokens")),
    }
    include_reasoning(usage)
    note_zero(usage, notes)
    image_tokens = as_count(before.get("image_tokens"))
    if image_tokens is None and "multimodal_tokens" in before:
        image_tokens = as_count(as_dict(before["multimodal_tokens"]).get("image"))
    return usage, image_tokens


# --- the table of servers ------------------------------------------------------------------------------------

SERVERS = (
    ChatServer("openai", URL, KEYS, limit_field="max_completion_tokens"),
    ChatServer("vllm", budget_field="thinking_token_budget", reads_detail=False, has_openai_models=False),
    ChatServer("sglang", has_openai_models=False),
    ChatServer("compatible"),
)
