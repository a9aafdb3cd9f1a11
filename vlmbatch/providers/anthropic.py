"""Anthropic messages. Bodies, versions and errors: references/providers.md, 3."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vlmbatch import jsonl
from vlmbatch.errors import Problem
from vlmbatch.providers import failures
from vlmbatch.providers.adapter import Adapter, listed_names, no_result
from vlmbatch.providers.base import Ask, BatchLine, Call, Part
from vlmbatch.providers.common import (
    add_counts,
    as_count,
    as_dict,
    as_list,
    as_text,
    check_detail,
    check_extra,
    check_path,
    ended_by,
    is_object,
    iter_schemas,
    join_texts,
    merge_extra,
    no_such_option,
    note_zero,
)
from vlmbatch.records import Ended, Reading, Usage, no_usage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MESSAGES = "/v1/messages"
_VERSION = "2026-10-21"
_VERSION_WITH_SAMPLING = "2023-06-01"
"""The version under which temperature and top_p are still accepted (by the models that take them)."""

EFFORTS = ("low", "medium", "high", "xhigh", "max")
_LEAST_TOP_P_THINKING = 0.95
_ONE_SAMPLER = (4, 1)
"""The first version that refuses temperature and top_p together."""
_MIN_BUDGET = 1024
_MAX_OPTIONAL = 24
_MAX_UNIONS = 16
_THINKS_BY_ITSELF = (4, 7)
"""The first version that takes neither sampling fields nor a thinking budget."""

STOP_REASONS = {
    "end_turn": Ended.STOP,
    "stop_sequence": Ended.STOP,
    "tool_use": Ended.TOOL,
    "max_tokens": Ended.CAP,
    "model_context_window_exceeded": Ended.CAP,
    "pause_turn": Ended.CAP,
    "refusal": Ended.FILTER,
}
"""anthropic 2.14.0, StopReason."""

_REFUSED_EXTRA = {
    "model": "the model is --model; a line that asks another one would belie run.json",
    "messages": "prompt and images stand there",
    "system": "the system prompt stands there",
    "stream": "an answer is read whole, and batches refuse it",
    "speed": "batches refuse it",
    "store": "batches refuse it",
    "fallbacks": "batches refuse it, and another model would answer",
}

_MODEL = re.compile(r"(?:^|[/.])claude-(?:([a-z]+)-)?(\d+)(?:[-.](\d{1,2})(?!\d))?")
"""Also as relays and clouds spell it: ``anthropic/claude-sonnet-4.5``, ``us.anthropic.claude-sonnet-4-5-...-v1:0``."""


class ModelName:
    """What a model's name tells: its line (``opus``) and its version; an unknown name counts as the newest."""

    def __init__(self, model: str) -> None:
        found = _MODEL.search(model)
        self.kind = (found.group(1) or "") if found else ""
        self.version = (int(found.group(2)), int(found.group(3) or 0)) if found else (99, 0)

    @property
    def is_classic(self) -> bool:
        """Whether it takes sampling fields and a thinking budget (up to 4.6)."""
        return self.version < _THINKS_BY_ITSELF

    @property
    def efforts(self) -> tuple[str, ...]:
        """The efforts it takes: the first was Opus 4.5; ``max`` came with 4.6, ``xhigh`` with 4.7."""
        if self.version >= _THINKS_BY_ITSELF:
            return EFFORTS
        if self.version == (4, 6):
            return ("low", "medium", "high", "max")
        return ("low", "medium", "high") if (self.kind, self.version) == ("opus", (4, 5)) else ()

    @property
    def always_thinks(self) -> bool:
        """Whether thinking cannot be switched off (Opus 5.5, Fable 5.x)."""
        return (self.kind, self.version) == ("opus", (5, 5)) or (self.kind == "fable" and self.version[0] == 5)


@dataclass(frozen=True, slots=True)
class Messages(Adapter):
    """Anthropic's messages endpoint."""

    wire: ClassVar[str] = "anthropic-messages"

    def supported_params(self) -> frozenset[str]:
        """Return what :class:`Ask` may set here."""
        return frozenset(
            {"max_tokens", "temperature", "top_p", "reasoning_effort", "thinking_budget", "json_answer", "json_schema"}
        )

    def check_ask(self, ask: Ask) -> tuple[list[Problem], list[str]]:
        """Check the options: what has no field here is refused, what a model refuses is left out and told."""
        problems = check_detail(ask) + check_extra(ask, _REFUSED_EXTRA) + _check_limit(ask)
        problems += check_path(ask, "/messages", "messages")
        if ask.detail not in {None, "auto"}:
            problems.append(no_such_option(self.name, "--detail", "resize the images instead"))
        problems += _check_thinking(ask) + _check_schema(ask)
        problems += _check_samplers(ask)
        sent, when = _sampling(ask), " while it thinks" if ModelName(ask.model).is_classic else ""
        flags = (("--temperature", ask.temperature, "temperature"), ("--top-p", ask.top_p, "top_p"))
        warnings = [
            f"{flag} is left out: {ask.model} refuses it{when}"
            for flag, value, name in flags
            if value is not None and name not in sent
        ]
        if ask.json_answer and ask.json_schema is None:
            warnings.append(f"{self.name} has no JSON mode without a schema: the prompt has to ask for JSON")
        return problems, warnings

    def url(self, ask: Ask) -> str:
        """Return the endpoint's path."""
        return ask.url or MESSAGES

    def params(self, ask: Ask) -> dict[str, Any]:
        """Return the body without model, system and messages."""
        body: dict[str, Any] = _sampling(ask)
        if ask.max_tokens is not None:
            body["max_tokens"] = ask.max_tokens
        if ask.thinking_budget is not None:
            is_on = ask.thinking_budget > 0
            enabled = {"type": "enabled", "budget_tokens": ask.thinking_budget}
            body["thinking"] = enabled if is_on else {"type": "disabled"}
        output: dict[str, Any] = {}
        if ask.reasoning_effort is not None:
            output["effort"] = ask.reasoning_effort
        if ask.json_schema is not None:
            output["format"] = {"type": "json_schema", "schema": ask.json_schema}
        if output:
            body["output_config"] = output
        return merge_extra(body, ask.extra_body)

    def body(self, ask: Ask, parts: Sequence[Part]) -> dict[str, Any]:
        """Return the request body."""
        content = [_block(part) for part in parts if part != ""]
        body = {**self.params(ask), "model": ask.model, "messages": [{"role": "user", "content": content}]}
        return body if ask.system is None else {**body, "system": ask.system}

    def line(self, custom_id: str, inner: Any, ask: Ask) -> dict[str, Any]:  # noqa: ARG002  (part of the interface)
        """Return one request of a batch."""
        return {"custom_id": custom_id, "params": inner}

    def frozen_headers(self, ask: Ask) -> dict[str, str]:
        """Return the API version: it decides which fields are legal and how thinking behaves."""
        has_sampling = bool(_sampling(ask)) or {"temperature", "top_p", "top_k"} & set(ask.extra_body)
        return {"anthropic-version": _VERSION_WITH_SAMPLING if has_sampling else _VERSION}

    def headers(self, key: str | None, frozen_headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers of a request."""
        auth = {} if key is None else {"x-api-key": key}
        return {"content-type": "application/json", "anthropic-version": _VERSION, **frozen_headers, **auth}

    def models_call(self) -> Call | None:
        """Describe the request that lists models."""
        return Call("GET", "/v1/models?limit=1000")

    def read_models(self, body: Any) -> list[str]:
        """Return the model names of such a list."""
        return listed_names(body, "id")

    def max_tokens(self, body: Mapping[str, Any]) -> int | None:
        """Return the output limit."""
        return as_count(body.get("max_tokens"))

    def read(self, status_code: int | None, body: Any) -> Reading:
        """Read one answer."""
        failure = failures.read_failure(status_code, body)
        if failure is not None:
            return failure
        if not isinstance(body, dict) or "content" not in body:
            return failures.not_an_answer(status_code, body)
        return _read_message(body)

    def read_batch_line(self, value: Mapping[str, Any]) -> BatchLine:
        """Read one line of a batch's results."""
        custom_id = value.get("custom_id")
        custom_id = custom_id if isinstance(custom_id, str) else None
        result = as_dict(value.get("result"))
        kind = as_text(result.get("type")) or "no_result"
        if kind == "succeeded":
            return BatchLine(custom_id, 200, result.get("message"), None)
        if kind == "errored":
            error = result.get("error")
            fault = failures.read_fault(None, error)
            # An error without a known type is the server's own: only invalid requests are named as such.
            status_code = (fault.status if fault else None) or 500
            return BatchLine(custom_id, status_code, error, None, as_text(as_dict(error).get("request_id")))
        return BatchLine(custom_id, None, None, no_result(kind, "the batch ended before this request was run"))


MESSAGES_PROVIDER = Messages("anthropic", "https://api.anthropic.com", ("ANTHROPIC_API_KEY",), takes_file_ids=True)


# --- checking and making -------------------------------------------------------------------------------------


def _sampling(ask: Ask) -> dict[str, Any]:
    """Return temperature and top_p as far as the model takes them: while it thinks, only a top_p of at least 0.95."""
    if not ModelName(ask.model).is_classic:
        return {}
    asked = {"temperature": ask.temperature, "top_p": ask.top_p}
    if _thinks(ask):
        asked = {"top_p": ask.top_p if (ask.top_p or 0.0) >= _LEAST_TOP_P_THINKING else None}
    return {name: value for name, value in asked.items() if value is not None}


def _thinks(ask: Ask) -> bool:
    """Tell whether a model that does not think by itself is asked to, by the budget or by the user's own field."""
    own = as_dict(ask.extra_body.get("thinking"))
    return own.get("type") != "disabled" if own else (ask.thinking_budget or 0) > 0


def _check_samplers(ask: Ask) -> list[Problem]:
    """Check that not both sampling fields are sent to a model that takes one of them."""
    if len(_sampling(ask)) < len(("temperature", "top_p")) or ModelName(ask.model).version < _ONE_SAMPLER:
        return []
    return [Problem("option", f"{ask.model} refuses it together with --temperature; give one", where="--top-p")]


def _check_limit(ask: Ask) -> list[Problem]:
    problems = []
    if ask.max_tokens is None and "max_tokens" not in ask.extra_body:
        problems.append(Problem("option", "an output limit is required here", where="--max-tokens"))
    if ask.max_tokens_field not in {"", "max_tokens"}:
        problems.append(Problem("option", "the field is max_tokens here", where="--max-tokens-field"))
    return problems


def _check_thinking(ask: Ask) -> list[Problem]:
    """Check effort and budget against what the model's version takes."""
    model, effort = ModelName(ask.model), ask.reasoning_effort
    wrong: list[tuple[str, str]] = []
    if effort is not None and not model.efforts:
        wrong.append(("--reasoning-effort", f"{ask.model} has none; use --thinking-budget"))
    elif effort is not None and effort not in model.efforts:
        wrong.append(("--reasoning-effort", f"{effort!r}: {ask.model} takes {', '.join(model.efforts)}"))
    budget = ask.thinking_budget
    if budget is not None:
        wrong += [("--thinking-budget", why) for why in _wrong_with_budget(ask, budget, model)]
    return [Problem("option", why, where=flag) for flag, why in wrong]


def _wrong_with_budget(ask: Ask, budget: int, model: ModelName) -> list[str]:
    if budget == 0:
        if model.always_thinks:
            return [f"{ask.model} cannot be kept from thinking; use --reasoning-effort low"]
        is_light = (model.kind, model.version) in {("haiku", (5, 5)), ("opus", (5, 0))}
        if is_light and ask.reasoning_effort in {"xhigh", "max"}:
            return [f"{ask.model} cannot be kept from thinking at effort {ask.reasoning_effort}"]
        return []
    if not model.is_classic:
        return [f"{ask.model} takes no budget (400 from Claude 4.7 on); use --reasoning-effort"]
    most = ask.max_tokens
    if budget < _MIN_BUDGET or (most is not None and budget >= most):
        return [f"{budget:,}: at least {_MIN_BUDGET:,}, and less than --max-tokens"]
    return []


def _check_schema(ask: Ask) -> list[Problem]:
    """Check a schema against the subset of structured output: closed objects, few optional fields, few unions."""
    if ask.json_schema is None:
        return []
    schemas = list(iter_schemas(ask.json_schema))
    objects = [(path, node) for path, node in schemas if is_object(node)]
    problems = [
        Problem("option", f"{path}: needs additionalProperties false", where="--json-schema")
        for path, node in objects
        if node.get("additionalProperties") is not False
    ]
    optional = sum(
        len(set(as_dict(node.get("properties"))) - set(as_list(node.get("required")))) for _, node in objects
    )
    unions = sum("anyOf" in node or isinstance(node.get("type"), list) for _, node in schemas)
    for count, most, what in ((optional, _MAX_OPTIONAL, "optional properties"), (unions, _MAX_UNIONS, "unions")):
        if count > most:
            problems.append(Problem("option", f"{count} {what}; the limit is {most}", where="--json-schema"))
    return problems


def _block(part: Part) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if part.file_id:
        return {"type": "image", "source": {"type": "file", "file_id": part.file_id}}
    return {"type": "image", "source": {"type": "base64", "media_type": part.media_type, "data": part.base64}}


# --- reading -------------------------------------------------------------------------------------------------


def _read_message(body: dict[str, Any]) -> Reading:
    notes: list[str] = []
    blocks = [block for block in as_list(body["content"]) if isinstance(block, dict)]
    text = join_texts([block["text"] for block in blocks if _is(block, "text")])
    thoughts = [block["thinking"] for block in blocks if _is(block, "thinking")]
    calls = [block for block in blocks if block.get("type") == "tool_use"]
    if text is None and calls:
        # Only a tool that the user forced can be here: the older way to a structured answer, which is its input.
        text = jsonl.dumps(calls[0].get("input")).decode()
        notes.append("tool_input")
    finish_reason = as_text(body.get("stop_reason"))
    ended = ended_by(STOP_REASONS, finish_reason, notes)
    details = as_dict(body.get("stop_details"))
    declined = as_text(details.get("explanation")) or as_text(details.get("category")) or "declined without a word"
    usage = _read_usage(body.get("usage"), notes)
    return Reading(
        text=text,
        reasoning=join_texts(thoughts, "\n"),
        refusal=declined if ended is Ended.FILTER else None,
        ended=ended,
        finish_reason=finish_reason,
        usage=usage,
        model=as_text(body.get("model")),
        notes=tuple(notes),
    )


def _is(block: dict[str, Any], kind: str) -> bool:
    return block.get("type") == kind and isinstance(block.get(kind), str)


def _read_usage(raw: Any, notes: list[str]) -> Usage:
    """Read usage; the provider counts cached input apart, and gives no total."""
    usage, told = no_usage(), as_dict(raw)
    cached = as_count(told.get("cache_read_input_tokens"))
    fresh = as_count(told.get("input_tokens"))
    if fresh is not None:
        usage["input_tokens"] = add_counts(fresh, as_count(told.get("cache_creation_input_tokens")), cached)
    usage["output_tokens"] = as_count(told.get("output_tokens"))
    usage["reasoning_tokens"] = as_count(as_dict(told.get("output_tokens_details")).get("thinking_tokens"))
    usage["cached_tokens"] = cached
    if usage["input_tokens"] is not None and usage["output_tokens"] is not None:
        usage["total_tokens"] = usage["input_tokens"] + usage["output_tokens"]
    note_zero(usage, notes)
    return usage
