"""Recorded answers of every provider, from real-world trouble and from the SDKs' own types: what becomes of each.

``tests/data/responses`` holds answers as bytes with what is expected of them, ``tests/data/wire`` one sample of every
shape that the providers document. All content is invented; field names and enum values are facts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from vlmbatch import jsonl, providers
from vlmbatch.classify import classify
from vlmbatch.records import Asked, Reading, Status, Verdict

if TYPE_CHECKING:
    from vlmbatch.providers.base import BatchLine, Provider

DATA = Path(__file__).parents[1] / "data"
CASES = [json.loads(line) for line in (DATA / "responses" / "cases.jsonl").read_text("utf-8").strip().split("\n")]
WIRE = {path.stem: json.loads(path.read_text()) for path in sorted((DATA / "wire").glob("*.json"))}


def parsed(data: bytes) -> Any:
    """Return an HTTP body as the sender hands it on: JSON, else text, else bytes."""
    try:
        return jsonl.loads(data.removeprefix(jsonl.BOM))
    except ValueError:
        pass
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data


def judged(provider: Provider, line: BatchLine, asked: Asked) -> tuple[Reading, Verdict]:
    """Read one line of a batch file and say what became of it."""
    reading = Reading(error=line.error) if line.error else provider.read(line.status_code, line.body)
    return reading, classify(reading, asked)


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_recorded_answer_gets_its_status(case: dict[str, Any]) -> None:
    """Each recorded answer gets the status, text, JSON, reasoning and usage that its case names."""
    body = parsed((DATA / "responses" / case["file"]).read_bytes())
    reading = providers.get(case["provider"]).read(case["http_status"], body)
    verdict = classify(reading, Asked(case["max_tokens"], json=case["expect_json"]))
    check = case["check"]
    assert verdict.status == check["status"], verdict
    if "text" in check:
        text = None if reading.text is None or verdict.status is Status.HTTP_ERROR else reading.text.strip()
        assert text == check["text"]
    if "json" in check:
        assert verdict.json == check["json"]
    if "reasoning" in check:
        assert reading.reasoning == check["reasoning"]
    if "finish_reason" in check:
        assert reading.finish_reason == check["finish_reason"]
    for key, value in check.get("usage", {}).items():
        assert reading.usage[key] == value  # type: ignore[literal-required]
    if "is_retryable" in check:
        assert reading.error is not None
        assert reading.error["is_retryable"] is check["is_retryable"]


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("oai-two-choices.json", "two_choices"),
        ("oai-no-choices.json", "no_choices"),
        ("oai-usage-zero.json", "usage_zero"),
        ("oai-think.json", "think_block"),
        ("oai-finish-unknown.json", "unknown_finish_reason"),
        ("gem-other.json", "unknown_finish_reason"),
    ],
)
def test_odd_answer_is_noted(name: str, note: str) -> None:
    """What is odd about an answer is told, not hidden."""
    body = parsed((DATA / "responses" / name).read_bytes())
    assert note in providers.get("gemini" if name.startswith("gem") else "openai").read(200, body).notes


# --- one sample of every shape -------------------------------------------------------------------------------

STRICTER = {
    "openai-chat.no-choices": Status.EMPTY,
    "anthropic.pause-turn": Status.TRUNCATED,
    "openai-batch-line.expired": Status.NETWORK_ERROR,
    "anthropic-batch-line.canceled": Status.NETWORK_ERROR,
    "anthropic-batch-line.expired": Status.NETWORK_ERROR,
}
"""Where the contract is more exact than a sample's "error": no choices is empty, a paused turn counts as cut, and a
row that a batch never ran has no HTTP answer at all."""

CAPS = {"empty_at_cap": 1024, "truncated": 64}
ANSWERS = [name for name, sample in WIRE.items() if "expect" in sample["about"]]


def adapter(name: str) -> Provider:
    """Return the adapter that reads a sample."""
    about = WIRE[name]["about"]
    is_responses = about["api"] == "responses" or name.endswith("-responses")
    provider = "openai" if about["provider"] == "any" else about["provider"]
    return providers.get(provider, "/v1/responses" if is_responses else "")


def read_sample(name: str) -> tuple[Reading, Verdict]:
    """Read a sample as an answer or as a line of a batch file, and say what became of it."""
    about, payload = WIRE[name]["about"], WIRE[name]["payload"]
    provider = adapter(name)
    asked = Asked(1024 if "reasoning" in name else CAPS.get(about["expect"]))
    if about["kind"] in {"output-line", "error-line"}:
        return judged(provider, provider.read_batch_line(payload), asked)
    reading = provider.read(about["http_status"], payload)
    return reading, classify(reading, asked)


@pytest.mark.parametrize("name", ANSWERS)
def test_wire_sample_gets_the_status_it_names(name: str) -> None:
    """Each sample gets the status that it expects."""
    expected = WIRE[name]["about"]["expect"]
    wanted = STRICTER.get(name, Status.HTTP_ERROR if expected == "error" else Status(expected))
    reading, verdict = read_sample(name)
    assert verdict.status is wanted, verdict
    assert (reading.error is None) == (verdict.status not in {Status.HTTP_ERROR, Status.NETWORK_ERROR}) or (
        verdict.status is Status.REFUSAL
    )
    if reading.text is not None:
        assert "think" not in reading.text
        assert "Looking at the colours" not in reading.text


AGAIN = {
    "anthropic-batch-line.canceled": True,
    "anthropic-batch-line.errored-invalid": False,
    "anthropic-batch-line.errored-overloaded": True,
    "anthropic-batch-line.errored-server": True,
    "anthropic-batch-line.expired": True,
    "anthropic.error-400": False,
    "anthropic.error-400-image-dimensions": False,
    "anthropic.error-401": False,
    "anthropic.error-402": True,
    "anthropic.error-403": False,
    "anthropic.error-404": False,
    "anthropic.error-413": False,
    "anthropic.error-429": True,
    "anthropic.error-429-spend-limit": True,
    "anthropic.error-500": True,
    "anthropic.error-504": True,
    "anthropic.error-529": True,
    "any.error-200-not-json": True,
    "any.error-502-html": True,
    "gemini-batch-line.error": False,
    "gemini-batch-line.error-unavailable": True,
    "gemini.error-400": False,
    "gemini.error-400-api-key": False,
    "gemini.error-403": False,
    "gemini.error-404": False,
    "gemini.error-429-day": True,
    "gemini.error-429-minute": True,
    "gemini.error-500": True,
    "gemini.error-503": True,
    "gemini.error-504": True,
    "gemini.error-finish": True,
    "openai-batch-line.error-400": False,
    "openai-batch-line.error-429": True,
    "openai-batch-line.expired": True,
    "openai-responses.failed": True,
    "openai-responses.failed-image": False,
    "openai.error-400-image-parse": False,
    "openai.error-400-unsupported-parameter": False,
    "openai.error-400-unsupported-value": False,
    "openai.error-401": False,
    "openai.error-403": False,
    "openai.error-404": False,
    "openai.error-429-insufficient-quota": True,
    "openai.error-429-rate-limit": True,
    "openai.error-500": True,
    "openai.error-503": True,
    "sglang.abort": True,
    "sglang.error-400": False,
    "sglang.error-503": True,
    "vllm-run-batch-line.error": False,
    "vllm-run-batch-line.error-string": False,
    "vllm.abort": True,
    "vllm.error-400": False,
    "vllm.error-400-too-many-images": False,
    "vllm.error-404": False,
    "vllm.error-500": True,
    "vllm.error-503": True,
}
"""Whether the same request may fare better later. An empty account or a day's quota is no fault of the row."""


@pytest.mark.parametrize("name", ANSWERS)
def test_wire_sample_error_says_whether_to_send_again(name: str) -> None:
    """Every error says whether the row may be sent again, and has a message that is not blank."""
    reading, _ = read_sample(name)
    if reading.error is None:
        assert name not in AGAIN
        return
    assert reading.error["is_retryable"] is AGAIN[name]
    assert reading.error["message"].strip()


ENDS = {
    "anthropic.error-401",
    "anthropic.error-402",
    "anthropic.error-403",
    "anthropic.error-404",
    "anthropic.error-429-spend-limit",
    "gemini.error-400-api-key",
    "gemini.error-403",
    "gemini.error-404",
    "gemini.error-429-day",
    "openai.error-401",
    "openai.error-403",
    "openai.error-404",
    "openai.error-429-insufficient-quota",
    "vllm.error-404",
}
"""Errors after which no row fares better until someone acts: key, access, model, money, a day's quota."""


@pytest.mark.parametrize("name", [name for name in ANSWERS if "http_status" in WIRE[name]["about"]])
def test_wire_sample_ends_the_run_or_not(name: str) -> None:
    """The run ends on exactly those errors, and its reason holds the provider's own sentence."""
    sample = WIRE[name]
    reason = adapter(name).ends_run(sample["about"]["http_status"], sample["payload"])
    assert (reason is not None) == (name in ENDS), reason
    if reason is not None:
        assert sample["payload"]["error"]["message"] in reason


def test_wire_sample_usage_is_in_one_vocabulary() -> None:
    """Input includes cached tokens, output includes reasoning, images are told apart where the provider does."""
    seen = {name: read_sample(name)[0] for name in ANSWERS}
    assert seen["gemini.ok-thinking"].usage["output_tokens"] == (
        WIRE["gemini.ok-thinking"]["payload"]["usageMetadata"]["candidatesTokenCount"]
        + WIRE["gemini.ok-thinking"]["payload"]["usageMetadata"]["thoughtsTokenCount"]
    )
    assert seen["gemini.ok"].image_tokens == 1090
    assert seen["vllm.ok"].image_tokens == seen["sglang.ok"].image_tokens == 1196
    assert seen["sglang.ok-reasoning"].usage["reasoning_tokens"] == 640
    assert seen["openai-responses.ok-reasoning"].usage["reasoning_tokens"] is not None
    for name, reading in seen.items():
        usage = reading.usage
        if usage["total_tokens"] is not None:
            assert usage["total_tokens"] == (usage["input_tokens"] or 0) + (usage["output_tokens"] or 0), name
        assert (usage["reasoning_tokens"] or 0) <= (usage["output_tokens"] or 0), name
        assert (usage["cached_tokens"] or 0) <= (usage["input_tokens"] or 0), name


@pytest.mark.parametrize(
    ("told", "output_tokens"),
    [
        ({"prompt_tokens": 32, "completion_tokens": 9, "total_tokens": 135, "reasoning_tokens": 94}, 103),
        ({"prompt_tokens": 21, "completion_tokens": 0, "total_tokens": 81, "reasoning_tokens": 60}, 60),
        ({"prompt_tokens": 32, "completion_tokens": 103, "total_tokens": 135, "reasoning_tokens": 94}, 103),
        ({"prompt_tokens": 32, "completion_tokens": 9, "total_tokens": 200, "reasoning_tokens": 94}, 9),
        ({"prompt_tokens": 32, "completion_tokens": 9, "reasoning_tokens": 94}, 9),
        ({"prompt_tokens": 32, "completion_tokens": 9, "total_tokens": 41, "reasoning_tokens": 0}, 9),
    ],
)
def test_chat_output_includes_reasoning_that_the_total_counts_apart(told: dict[str, int], output_tokens: int) -> None:
    """Where input, output and reasoning make the total (xAI's figures come first), the output lacked the reasoning."""
    usage = {**told, "completion_tokens_details": {"reasoning_tokens": told["reasoning_tokens"]}}
    body = {"choices": [{"message": {"content": "red"}, "finish_reason": "stop"}], "usage": usage}
    reading = providers.get("compatible").read(200, body)
    assert reading.usage["output_tokens"] == output_tokens
    assert reading.usage["reasoning_tokens"] == told["reasoning_tokens"]


def test_wire_samples_are_all_read() -> None:
    """No sample of an answer or a line is left out of these tests."""
    kinds = {sample["about"]["kind"] for name, sample in WIRE.items() if name not in ANSWERS}
    assert kinds <= {"batch", "list", "file"}
    assert len(ANSWERS) > 100
