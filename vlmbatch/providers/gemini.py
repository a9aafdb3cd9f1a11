"""Gemini generateContent (Developer API). Bodies, finish reasons and errors: references/providers.md, 4."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

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
    join_texts,
    no_such_option,
    note_zero,
)
from vlmbatch.records import Ended, Reading, Usage, no_usage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

API = "v1beta"
LEVELS = ("minimal", "low", "medium", "high", "xhigh")
_SINGLE_ANSWER_TOKENS = 32_768
"""Output tokens of one plain answer of gemini-4-argon; beyond them it ends as CONTINUATION."""

FINISH_REASONS = {
    "STOP": Ended.STOP,
    "FINISH_REASON_UNSPECIFIED": Ended.STOP,
    "OTHER": Ended.STOP,
    "MAX_TOKENS": Ended.CAP,
    "CONTINUATION": Ended.CAP,
    "SAFETY": Ended.FILTER,
    "RECITATION": Ended.FILTER,
    "BLOCKLIST": Ended.FILTER,
    "PROHIBITED_CONTENT": Ended.FILTER,
    "SPII": Ended.FILTER,
    "IMAGE_SAFETY": Ended.FILTER,
    "IMAGE_PROHIBITED_CONTENT": Ended.FILTER,
    "IMAGE_RECITATION": Ended.FILTER,
    "MODEL_ARMOR": Ended.FILTER,
    "MALFORMED_FUNCTION_CALL": Ended.TOOL,
    "UNEXPECTED_TOOL_CALL": Ended.TOOL,
    "TOO_MANY_TOOL_CALLS": Ended.TOOL,
    "MALFORMED_RESPONSE": Ended.ERROR,
    "MISSING_THOUGHT_SIGNATURE": Ended.ERROR,
    "LANGUAGE": Ended.ERROR,
    "IMAGE_OTHER": Ended.ERROR,
    "NO_IMAGE": Ended.ERROR,
    "ESCALATION": Ended.ERROR,
    "PUP_LIMITED_DISABLED": Ended.ERROR,
}
"""google-genai 3.6.1, FinishReason. OTHER is "for an unknown reason": like every unknown one it is kept and noted."""

_RESOLUTIONS = {"low": "MEDIA_RESOLUTION_LOW", "high": "MEDIA_RESOLUTION_HIGH"}
_FIRST_LEVELS = 3
"""The first major version that takes thinking levels; before it there are budgets."""
_NO_MINIMAL = re.compile(r"gemini-(3\.[78]-flash|4-argon)(?!-lite)")

_REFUSED_EXTRA = {
    "model": "the model is --model, and stands in the URL",
    "contents": "prompt and images stand there",
    "systemInstruction": "the system prompt stands there",
    "system_instruction": "the system prompt stands there",
    "generation_config": "write generationConfig: both spellings in one body would clash",
}

_RPC_STATUS = {
    1: 499,
    2: 500,
    3: 400,
    4: 504,
    5: 404,
    6: 409,
    7: 403,
    8: 429,
    9: 400,
    10: 409,
    11: 400,
    12: 501,
    13: 500,
    14: 503,
    15: 500,
    16: 401,
}
"""google.rpc.Code to HTTP status, as google/rpc/code.proto maps them."""

_NOT_SERVED = re.compile("location is not supported|not available in your country", re.IGNORECASE)
"""What FAILED_PRECONDITION says about a country; it also stands for a stored file that is not ready."""

_DURATION = re.compile(r"(\d+(?:\.\d+)?)s")


def _resource(model: str) -> str:
    """Return a model's place in a path: the folder is part of a tuned model's name."""
    return quote(model if "/" in model else f"models/{model}", safe="/-._~@:")


def _major(model: str) -> int | None:
    found = re.search(r"gemini-(\d+)", model)
    return int(found.group(1)) if found else None


@dataclass(frozen=True, slots=True)
class Gemini(Adapter):
    """Gemini's generateContent."""

    wire: ClassVar[str] = "gemini-generate-content"

    def supported_params(self) -> frozenset[str]:
        """Return what :class:`Ask` may set here."""
        return frozenset(
            {
                "max_tokens",
                "temperature",
                "top_p",
                "detail",
                "reasoning_effort",
                "thinking_budget",
                "json_answer",
                "json_schema",
            }
        )

    def check_ask(self, ask: Ask) -> tuple[list[Problem], list[str]]:
        """Check the options: what has no field here is refused, what is doubtful is told."""
        problems = check_detail(ask) + check_extra(ask, _REFUSED_EXTRA)
        problems += check_path(ask, f"/{_resource(ask.model)}:generateContent", f"generateContent of {ask.model}")
        if ask.detail == "original":
            problems.append(no_such_option(self.name, "--detail original", "low and high are media resolutions here"))
        if ask.max_tokens_field not in {"", "maxOutputTokens"}:
            problems.append(Problem("option", "the field is maxOutputTokens here", where="--max-tokens-field"))
        problems += _check_config(as_dict(ask.extra_body.get("generationConfig")))
        found, warnings = _check_thinking(ask)
        if (ask.temperature is not None or ask.top_p is not None) and (_major(ask.model) or 0) >= 4:
            warnings.append("--temperature and --top-p are deprecated since 2026-07-21; this model may refuse them")
        if "gemini-4-argon" in ask.model and (ask.max_tokens or 0) > _SINGLE_ANSWER_TOKENS:
            warnings.append(f"--max-tokens: one answer of {ask.model} ends at {_SINGLE_ANSWER_TOKENS:,} tokens anyway")
        return problems + found, warnings

    def url(self, ask: Ask) -> str:
        """Return the endpoint's path; the model stands in it, not in the body."""
        return ask.url or f"/{API}/{_resource(ask.model)}:generateContent"

    def params(self, ask: Ask) -> dict[str, Any]:
        """Return the body without system instruction and contents.

        The user's own ``generationConfig`` is laid over ours field by field: it is this format's top level.
        """
        extra = dict(ask.extra_body)
        config = {**_config(ask), **as_dict(extra.pop("generationConfig", None))}
        return {**({"generationConfig": config} if config else {}), **extra}

    def body(self, ask: Ask, parts: Sequence[Part]) -> dict[str, Any]:
        """Return the request body."""
        content = [_part(part) for part in parts if part != ""]
        body = {**self.params(ask), "contents": [{"role": "user", "parts": content}]}
        return body if ask.system is None else {**body, "systemInstruction": {"parts": [{"text": ask.system}]}}

    def line(self, custom_id: str, inner: Any, ask: Ask) -> dict[str, Any]:  # noqa: ARG002  (part of the interface)
        """Return one batch line."""
        return {"key": custom_id, "request": inner}

    def headers(self, key: str | None, frozen_headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers of a request."""
        auth = {} if key is None else {"x-goog-api-key": key}
        return {"content-type": "application/json", **frozen_headers, **auth}

    def models_call(self) -> Call | None:
        """Describe the request that lists models."""
        return Call("GET", f"/{API}/models?pageSize=1000")

    def read_models(self, body: Any) -> list[str]:
        """Return the model names of such a list."""
        return [name.removeprefix("models/") for name in listed_names(body, "name")]

    def max_tokens(self, body: Mapping[str, Any]) -> int | None:
        """Return the output limit, thoughts included."""
        return as_count(as_dict(body.get("generationConfig")).get("maxOutputTokens"))

    def read(self, status_code: int | None, body: Any) -> Reading:
        """Read one answer."""
        failure = failures.read_failure(status_code, body)
        if failure is not None:
            return failure
        answer_keys = {"candidates", "promptFeedback", "usageMetadata"}
        if not isinstance(body, dict) or not answer_keys & set(body):
            return failures.not_an_answer(status_code, body)
        return _read_content(body, status_code)

    def ends_run(self, status_code: int | None, body: Any) -> str | None:
        """Return why no other row can fare better either: a bad key or country (both 400), a day's quota, the usual."""
        fault = failures.read_fault(status_code, body)
        if fault is None:
            return None
        if "API_KEY_INVALID" in fault.codes:
            return f"the key was refused (HTTP {fault.status}): {fault.message}"
        if "FAILED_PRECONDITION" in fault.codes and _NOT_SERVED.search(fault.message):
            return f"the account is not served from here (HTTP {fault.status}): {fault.message}"
        if fault.status == 429 and _is_day_quota(fault.details):
            return f"the quota of today is used up: {fault.message}"
        return failures.ends_run(status_code, body)

    def retry_after_s(self, status_code: int | None, body: Any) -> float | None:
        """Return the seconds of RetryInfo, None where there is none."""
        fault = failures.read_fault(status_code, body)
        for detail in fault.details if fault else ():
            found = _DURATION.fullmatch(str(detail.get("retryDelay")))
            if found and math.isfinite(seconds := float(found.group(1))):
                return seconds
        return None

    def read_batch_line(self, value: Mapping[str, Any]) -> BatchLine:
        """Read one line of a batch's results file; it is matched by its key alone."""
        key = value.get("key", as_dict(value.get("metadata")).get("key"))
        custom_id = key if isinstance(key, str) else None
        if isinstance(value.get("response"), dict):
            return BatchLine(custom_id, 200, value["response"], None)
        error = value.get("error")
        if not error:
            return BatchLine(custom_id, None, None, no_result("no_response", "the line holds no response"))
        code = as_count(as_dict(error).get("code")) or 2
        return BatchLine(custom_id, _RPC_STATUS.get(code, code if code >= 100 else 500), {"error": error}, None)


GEMINI_PROVIDER = Gemini(
    "gemini",
    "https://generativelanguage.googleapis.com",
    ("GOOGLE_API_KEY", "GEMINI_API_KEY"),
    takes_file_ids=True,
)


# --- checking and making -------------------------------------------------------------------------------------


def _check_config(config: dict[str, Any]) -> list[Problem]:
    """Check the user's own generationConfig; the endpoint takes snake_case too, but not a field in both spellings."""
    snake = [name for name in config if "_" in name]
    wrong = [f"generationConfig.{name}: write it in camelCase, or both spellings clash" for name in snake]
    if config.get("candidateCount", 1) != 1:
        wrong.append("candidateCount: one answer is kept")
    return [Problem("extra_body", message, where="--extra-body") for message in wrong]


def _check_thinking(ask: Ask) -> tuple[list[Problem], list[str]]:
    """Check level and budget: the older models take a budget, the newer ones a level, and none takes both."""
    effort, budget, major = ask.reasoning_effort, ask.thinking_budget, _major(ask.model)
    problems: list[Problem] = []
    warnings: list[str] = []
    if effort is not None and effort not in LEVELS:
        problems.append(Problem("option", f"{effort!r} is none of {', '.join(LEVELS)}", where="--reasoning-effort"))
    elif effort is not None and major is not None and major < _FIRST_LEVELS:
        problems.append(no_such_option(ask.model, "--reasoning-effort", "use --thinking-budget"))
    elif effort in {"minimal", "xhigh"} and _NO_MINIMAL.search(ask.model):
        problems.append(
            Problem("option", f"{effort!r}: {ask.model} takes low, medium, high", where="--reasoning-effort")
        )
    if budget is not None and budget < -1:
        problems.append(Problem("option", f"{budget}: -1 (automatic), 0 (off) or more", where="--thinking-budget"))
    if effort is not None and budget is not None:
        problems.append(Problem("option", "excludes --reasoning-effort here", where="--thinking-budget"))
    elif budget is not None and (major is None or major >= _FIRST_LEVELS):
        warnings.append(f"--thinking-budget is documented for Gemini 2.5 only; {ask.model} may refuse it")
    return problems, warnings


def _config(ask: Ask) -> dict[str, Any]:
    config: dict[str, Any] = {
        "maxOutputTokens": ask.max_tokens,
        "temperature": ask.temperature,
        "topP": ask.top_p,
        "mediaResolution": _RESOLUTIONS.get(ask.detail or ""),
        "thinkingConfig": _thinking(ask),
        "responseMimeType": "application/json" if ask.json_answer or ask.json_schema is not None else None,
        "responseJsonSchema": ask.json_schema,
    }
    return {name: value for name, value in config.items() if value is not None}


def _thinking(ask: Ask) -> dict[str, Any] | None:
    if ask.reasoning_effort is not None:
        return {"thinkingLevel": ask.reasoning_effort.upper()}
    return None if ask.thinking_budget is None else {"thinkingBudget": ask.thinking_budget}


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, str):
        return {"text": part}
    if part.file_id:
        return {"fileData": {"mimeType": part.media_type, "fileUri": part.file_id}}
    return {"inlineData": {"mimeType": part.media_type, "data": part.base64}}


# --- reading -------------------------------------------------------------------------------------------------


def _is_day_quota(details: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether a 429 is about a day's quota: its name says so, or it offers nothing but a help page."""
    violations = [as_dict(entry) for detail in details for entry in as_list(detail.get("violations"))]
    if any("PerDay" in str(violation.get("quotaId")) for violation in violations):
        return True
    kinds = {str(detail.get("@type")).rpartition(".")[2] for detail in details}
    return kinds == {"Help"}


def _read_content(body: dict[str, Any], status_code: int | None) -> Reading:
    candidates = [one for one in as_list(body.get("candidates")) if isinstance(one, dict)]
    candidate = next((one for one in candidates if one.get("index", 0) == 0), candidates[0] if candidates else {})
    notes = [] if candidates else ["no_choices"]
    if len(candidates) > 1:
        notes.append("two_choices")
    parts = [part for part in as_list(as_dict(candidate.get("content")).get("parts")) if isinstance(part, dict)]
    text = join_texts([part["text"] for part in parts if _is_text(part) and part.get("thought") is not True])
    thoughts = [part["text"] for part in parts if _is_text(part) and part.get("thought") is True]
    finish_reason = as_text(candidate.get("finishReason"))
    ended = ended_by(FINISH_REASONS, finish_reason, notes)
    if finish_reason in {"OTHER", "FINISH_REASON_UNSPECIFIED"}:
        notes.append("unknown_finish_reason")
    if text is None and ended is Ended.STOP and any("functionCall" in part for part in parts):
        ended = Ended.TOOL
    blocked = as_text(as_dict(body.get("promptFeedback")).get("blockReason"))
    if blocked:
        ended, finish_reason = Ended.FILTER, finish_reason or blocked
    message = as_text(candidate.get("finishMessage"))
    error = None
    if ended is Ended.ERROR:
        said = message or f"the model gave up (finish reason {finish_reason})"
        text, error = None, failures.gave_up(finish_reason, said, status_code)
    usage, image_tokens = _read_usage(body.get("usageMetadata"), notes)
    return Reading(
        text=text,
        reasoning=join_texts(thoughts, "\n"),
        refusal=(message or blocked or finish_reason) if ended is Ended.FILTER else None,
        ended=ended,
        finish_reason=finish_reason,
        usage=usage,
        image_tokens=image_tokens,
        model=as_text(body.get("modelVersion")),
        error=error,
        notes=tuple(notes),
    )


def _is_text(part: dict[str, Any]) -> bool:
    return isinstance(part.get("text"), str)


def _read_usage(raw: Any, notes: list[str]) -> tuple[Usage, int | None]:
    """Read usage; the provider leaves zeros out, and counts thoughts apart from the answer."""
    usage, told = no_usage(), as_dict(raw)
    usage["input_tokens"] = as_count(told.get("promptTokenCount"))
    usage["reasoning_tokens"] = as_count(told.get("thoughtsTokenCount"))
    spent = add_counts(as_count(told.get("candidatesTokenCount")), usage["reasoning_tokens"])
    usage["total_tokens"] = as_count(told.get("totalTokenCount"))
    is_told = usage["input_tokens"] is not None or usage["total_tokens"] is not None
    usage["output_tokens"] = 0 if spent is None and is_told else spent
    usage["cached_tokens"] = as_count(told.get("cachedContentTokenCount"))
    note_zero(usage, notes)
    details = map(as_dict, as_list(told.get("promptTokensDetails")))
    counts = [as_count(detail.get("tokenCount")) for detail in details if detail.get("modality") == "IMAGE"]
    return usage, add_counts(*counts)
