"""The official SDKs as judges: every body that build can freeze fits their request types, every sample their responses.

The SDKs (group ``oracles`` of pyproject.toml) are needed by these tests alone; nothing leaves this machine.
"""

from __future__ import annotations

import itertools
import json
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from functools import cache
from io import BytesIO
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NotRequired, Required, Union, cast, get_args, get_origin

import anthropic.types as anthropic_types
import pytest
from anthropic import Anthropic
from anthropic._constants import ANTHROPIC_API_VERSION
from anthropic.types import message_create_params
from anthropic.types.messages import MessageBatchIndividualResponse
from anthropic.types.stop_reason import StopReason
from google import genai
from google.genai import models as genai_models
from google.genai import types as genai_types
from openai import OpenAI
from openai._types import SequenceNotStr
from openai.types import responses as openai_responses
from openai.types.chat import ChatCompletion, completion_create_params
from openai.types.responses import response_create_params
from openai.types.shared import ErrorObject
from openai.types.shared.reasoning_effort import ReasoningEffort
from PIL import Image
from pydantic import TypeAdapter, ValidationError
from typing_extensions import get_type_hints, is_typeddict

from vlmbatch import jsonl, providers
from vlmbatch.providers import anthropic, gemini, openai, openai_families
from vlmbatch.providers import openai_responses as responses
from vlmbatch.providers.base import Ask, ImagePart, Part
from vlmbatch.rehearsal.server import serve

WIRE = {path.stem: json.loads(path.read_text()) for path in sorted((Path(__file__).parents[1] / "data/wire").iterdir())}

CHAT = completion_create_params.CompletionCreateParamsNonStreaming
RESPONSES = response_create_params.ResponseCreateParamsNonStreaming
MESSAGES = message_create_params.MessageCreateParamsNonStreaming

SCHEMA = {
    "type": "object",
    "properties": {"label": {"type": "string"}, "count": {"type": ["integer", "null"]}},
    "required": ["label", "count"],
    "additionalProperties": False,
}
IMAGE = ImagePart("image/png", base64="aGk=")
FILED = ImagePart("image/jpeg", file_id="file-abc")
MESSAGES_OF_PARTS: list[list[Part]] = [["What is this?", IMAGE], [IMAGE, "a", IMAGE, "b"], ["only words"], [IMAGE]]


@cache
def hints(kind: Any) -> dict[str, Any]:
    """Return the fields of one of the SDK's typed dictionaries."""
    return get_type_hints(kind)


def fits(kind: Any, value: Any) -> bool:
    """Tell whether plain JSON fits a type of the SDKs whole, keys that the type does not name forbidden.

    Written out here because the common validators are lax at depth: they walk lists only on demand, and let keys pass
    in dictionaries that some model shares.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any or kind is object:
        return True
    if origin in {Annotated, Required, NotRequired}:
        return fits(arguments[0], value)
    if origin in {Union, UnionType}:
        return any(fits(option, value) for option in arguments)
    if origin is Literal:
        return any(type(value) is type(word) and value == word for word in arguments)
    if is_typeddict(kind):
        return _fits_fields(kind, value)
    if isinstance(value, dict):
        return origin in {dict, Mapping} and all(fits(arguments[1], inner) for inner in value.values())
    if isinstance(value, list):
        is_list = origin is not None and issubclass(origin, Iterable | SequenceNotStr) and origin is not dict
        return is_list and all(fits(arguments[0], inner) for inner in value)
    if kind is float:
        return type(value) in {int, float}
    return kind in {str, int, bool, NoneType} and type(value) is kind


def _fits_fields(kind: Any, value: Any) -> bool:
    fields = hints(kind)
    return (
        isinstance(value, dict)
        and set(value) <= set(fields)
        and kind.__required_keys__ <= set(value)
        and all(fits(fields[key], inner) for key, inner in value.items())
    )


def frozen(body: dict[str, Any]) -> Any:
    """Return a body as it is after freezing."""
    return json.loads(jsonl.dumps_canonical(body))


def asks(**choices: list[Any]) -> list[Ask]:
    """Return every combination of options, as plain asks."""
    names = list(choices)
    return [Ask(**dict(zip(names, values, strict=True))) for values in itertools.product(*choices.values())]


SCHEMAS = [(False, None), (True, None), (True, SCHEMA), (True, {"type": "object"})]
COMMON = asks(
    model=["m"],
    max_tokens=[None, 4096],
    temperature=[None, 0.0],
    top_p=[None, 0.9],
    detail=[None, "low", "high", "auto", "original"],
    reasoning_effort=[None, *openai_families.EFFORTS],
    system=[None, "Be brief."],
)


def with_schemas(every: list[Ask]) -> Iterable[Ask]:
    """Yield each ask with every kind of structured output in turn (not the product: the fields are independent)."""
    for number, ask in enumerate(every):
        json_answer, schema = SCHEMAS[number % len(SCHEMAS)]
        yield Ask(
            model=ask.model,
            system=ask.system,
            max_tokens=ask.max_tokens,
            temperature=ask.temperature,
            top_p=ask.top_p,
            detail=ask.detail,
            reasoning_effort=ask.reasoning_effort,
            thinking_budget=ask.thinking_budget,
            json_answer=json_answer,
            json_schema=schema,
        )


# --- requests ------------------------------------------------------------------------------------------------


def test_oracles_refuse_unknown_keys_at_any_depth() -> None:
    """The judges do see a field too many, deep inside too; else a pass would mean nothing."""
    body = providers.get("openai").body(Ask("m"), ["a", IMAGE])
    assert fits(CHAT, body)
    assert not fits(CHAT, {**body, "surprise": 1})
    body["messages"][0]["content"][1]["image_url"]["surprise"] = 1
    assert not fits(CHAT, body)
    other = providers.get("anthropic").body(Ask("m"), ["a", IMAGE])
    assert fits(MESSAGES, other)
    other["messages"][0]["content"][1]["source"]["surprise"] = 1
    assert not fits(MESSAGES, other)
    third = providers.get("openai", "/v1/responses").body(Ask("m"), ["a", IMAGE])
    assert fits(RESPONSES, third)
    third["input"][0]["content"][1]["detail"] = "fine"
    assert not fits(RESPONSES, third)


@pytest.mark.parametrize("name", ["openai", "sglang", "compatible", "vllm"])
@pytest.mark.parametrize("parts", MESSAGES_OF_PARTS, ids=["text-image", "mixed", "text", "image"])
def test_chat_bodies_fit_the_sdk_request_type(name: str, parts: list[Part]) -> None:
    """Every combination of options gives a body that openai's own type takes."""
    provider = providers.get(name)
    for ask in with_schemas(COMMON):
        assert fits(CHAT, frozen(provider.body(ask, parts))), ask


def test_vllm_budget_is_the_only_field_beyond_openai() -> None:
    """The server's own field stands beside what openai's type knows, and nothing else does."""
    body = providers.get("vllm").body(Ask("m", thinking_budget=100), ["a", IMAGE])
    assert body.pop("thinking_token_budget") == 100
    assert fits(CHAT, body)


@pytest.mark.parametrize("parts", [*MESSAGES_OF_PARTS, ["a", FILED]])
def test_responses_bodies_fit_the_sdk_request_type(parts: list[Part]) -> None:
    """Every combination of options gives a body that openai's own type takes."""
    provider = providers.get("openai", "/v1/responses")
    for ask in with_schemas(COMMON):
        assert fits(RESPONSES, frozen(provider.body(ask, parts))), ask


@pytest.mark.parametrize("model", ["claude-opus-4-6", "claude-sonnet-5-5"])
@pytest.mark.parametrize("parts", [*MESSAGES_OF_PARTS, ["a", FILED]])
def test_anthropic_bodies_fit_the_sdk_request_type(model: str, parts: list[Part]) -> None:
    """Every combination of options that is not refused gives a body that anthropic's own type takes.

    The type describes the newer API version; under the older one, which is then frozen with the request, the older
    models take sampling fields besides.
    """
    provider = providers.get("anthropic")
    every = asks(
        model=[model],
        max_tokens=[4096],
        temperature=[None, 0.0],
        top_p=[None, 0.9],
        detail=[None],
        reasoning_effort=[None, *anthropic.EFFORTS],
        thinking_budget=[None, 0, 2048],
        system=[None, "Be brief."],
    )
    taken = [ask for ask in with_schemas(every) if not provider.check_ask(ask)[0]]
    assert len(taken) > 50
    for ask in taken:
        body = frozen(provider.body(ask, parts))
        if provider.frozen_headers(ask) != {"anthropic-version": ANTHROPIC_API_VERSION}:
            assert {body.pop("temperature", None), body.pop("top_p", None)} != {None}
        assert fits(MESSAGES, body), ask


def plain(value: Any) -> Any:
    """Return what the SDK would send, as plain JSON."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, genai_types.Content | genai_types.Part):
        return plain(value.model_dump(by_alias=True, exclude_none=True, mode="json"))
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return value.model_dump(by_alias=True, exclude_none=True, mode="json") if hasattr(value, "model_dump") else value


def sent_by_sdk(body: dict[str, Any], model: str) -> dict[str, Any]:
    """Return the REST body that google-genai itself makes of the same contents and settings, extra keys forbidden."""
    config = {**body.get("generationConfig", {})}
    if "systemInstruction" in body:
        config["systemInstruction"] = body["systemInstruction"]
    parameters = genai_types._GenerateContentParameters(
        model=model,
        contents=[genai_types.Content.model_validate(content) for content in body["contents"]],
        config=genai_types.GenerateContentConfig.model_validate(config),
    )
    client: Any = type("Client", (), {"vertexai": False})()
    made: dict[str, Any] = genai_models._GenerateContentParameters_to_mldev(client, parameters)
    made.pop("_url")
    return {key: value for key, value in plain(made).items() if value != {}}


@pytest.mark.parametrize("parts", [*MESSAGES_OF_PARTS, ["a", FILED]])
def test_gemini_bodies_are_those_that_the_sdk_sends(parts: list[Part]) -> None:
    """For every combination of options the SDK makes the same REST body out of the same settings."""
    provider = providers.get("gemini")
    every = asks(
        model=["gemini-3.5-flash", "gemini-2.5-pro"],
        max_tokens=[None, 4096],
        temperature=[None, 0.5],
        top_p=[None, 0.9],
        detail=[None, "low", "high", "auto"],
        reasoning_effort=[None, *gemini.LEVELS],
        thinking_budget=[None, 0, -1],
        system=[None, "Be brief."],
    )
    taken = [ask for ask in with_schemas(every) if not provider.check_ask(ask)[0]]
    assert len(taken) > 200
    for ask in taken:
        body = json.loads(jsonl.dumps_canonical(provider.body(ask, parts)))
        assert sent_by_sdk(body, ask.model) == body, ask


# --- answers -------------------------------------------------------------------------------------------------

OUTSIDE_THE_TYPES = {"vllm.repetition", "vllm.abort", "sglang.abort"}
"""Finish reasons of the servers' own, which openai's type does not know."""


def chosen(*prefixes: str, kind: str = "response") -> list[str]:
    """Return the samples of some providers and one kind."""
    return [name for name, sample in WIRE.items() if name.startswith(prefixes) and sample["about"]["kind"] == kind]


@pytest.mark.parametrize("name", chosen("openai-chat.", "vllm.", "sglang."))
def test_chat_sample_parses_with_the_sdk_response_type(name: str) -> None:
    """The samples that the reader is tested with are what the SDK takes for an answer."""
    if name in OUTSIDE_THE_TYPES:
        with pytest.raises(ValidationError):
            ChatCompletion.model_validate(WIRE[name]["payload"])
        return
    parsed = ChatCompletion.model_validate(WIRE[name]["payload"])
    reading = providers.get("openai").read(200, WIRE[name]["payload"])
    if name.startswith("openai"):
        assert not parsed.model_extra
    if parsed.usage is not None:
        assert reading.usage["input_tokens"] == parsed.usage.prompt_tokens
        assert reading.usage["output_tokens"] == parsed.usage.completion_tokens
    if parsed.choices:
        assert reading.finish_reason == parsed.choices[0].finish_reason


@pytest.mark.parametrize("name", chosen("openai-responses."))
def test_responses_sample_parses_with_the_sdk_response_type(name: str) -> None:
    """Text and usage are read as the SDK's own shortcuts read them."""
    parsed = openai_responses.Response.model_validate(WIRE[name]["payload"])
    reading = providers.get("openai", "/v1/responses").read(200, WIRE[name]["payload"])
    assert not parsed.model_extra
    assert (reading.text or "") == parsed.output_text
    assert reading.usage["output_tokens"] == (parsed.usage.output_tokens if parsed.usage else None)


@pytest.mark.parametrize("name", chosen("anthropic."))
def test_anthropic_sample_parses_with_the_sdk_response_type(name: str) -> None:
    """Text and stop reason are read as the SDK types them."""
    parsed = anthropic_types.Message.model_validate(WIRE[name]["payload"])
    reading = providers.get("anthropic").read(200, WIRE[name]["payload"])
    assert not parsed.model_extra
    assert reading.finish_reason == parsed.stop_reason
    texts = [block.text for block in parsed.content if isinstance(block, anthropic_types.TextBlock)]
    if texts:
        assert (reading.text or "") == "".join(texts)


@pytest.mark.parametrize("name", chosen("gemini."))
def test_gemini_sample_parses_with_the_sdk_response_type(name: str) -> None:
    """Text and tokens are read as the SDK's own shortcuts read them."""
    parsed = genai_types.GenerateContentResponse.model_validate(WIRE[name]["payload"])
    reading = providers.get("gemini").read(200, WIRE[name]["payload"])
    assert (reading.text or "") == (parsed.text or "")
    told = parsed.usage_metadata
    assert told is not None
    output = (told.candidates_token_count or 0) + (told.thoughts_token_count or 0)
    assert (reading.usage["input_tokens"], reading.usage["output_tokens"]) == (told.prompt_token_count, output)


@pytest.mark.parametrize("name", chosen("openai.", kind="error"))
def test_openai_error_sample_parses_with_the_sdk_type(name: str) -> None:
    """The code of the error is the SDK's."""
    parsed = ErrorObject.model_validate(WIRE[name]["payload"]["error"])
    error = providers.get("openai").read(WIRE[name]["about"]["http_status"], WIRE[name]["payload"]).error
    assert error is not None
    assert (error["message"], error.get("code")) == (parsed.message, parsed.code or parsed.type)


@pytest.mark.parametrize("name", [name for name in chosen("anthropic.", kind="error") if "413" not in name])
def test_anthropic_error_sample_parses_with_the_sdk_type(name: str) -> None:
    """The message of the error is the SDK's."""
    parsed: Any = TypeAdapter(anthropic_types.ErrorResponse).validate_python(WIRE[name]["payload"])
    error = providers.get("anthropic").read(WIRE[name]["about"]["http_status"], WIRE[name]["payload"]).error
    assert error is not None
    assert error["message"] == parsed.error.message


@pytest.mark.parametrize("name", chosen("anthropic-batch-line.", kind="output-line"))
def test_anthropic_batch_line_parses_with_the_sdk_type(name: str) -> None:
    """The line's id is read as the SDK reads it."""
    parsed = MessageBatchIndividualResponse.model_validate(WIRE[name]["payload"])
    assert providers.get("anthropic").read_batch_line(WIRE[name]["payload"]).custom_id == parsed.custom_id


@pytest.mark.parametrize("name", chosen("openai-batch-line.ok", "gemini-batch-line.", kind="output-line"))
def test_batch_line_holds_an_answer_of_the_sdk_response_type(name: str) -> None:
    """What stands inside a line is an answer like any other."""
    payload = WIRE[name]["payload"]
    if name.startswith("gemini"):
        if "response" in payload:
            genai_types.GenerateContentResponse.model_validate(payload["response"])
        else:
            genai_types.JobError.model_validate(payload["error"])
        return
    kind = openai_responses.Response if name.endswith("responses") else ChatCompletion
    assert not kind.model_validate(payload["response"]["body"]).model_extra


# --- the SDKs as clients of the rehearsal --------------------------------------------------------------------


@pytest.fixture(scope="module")
def rehearsal() -> Iterator[str]:
    """A running rehearsal provider: its address."""
    with serve() as server:
        yield server.base_url


@cache
def picture() -> bytes:
    """Return a PNG whose base64 text has both characters that the URL-safe alphabet replaces."""
    for shade in range(256):
        file = BytesIO()
        Image.new("RGB", (8, 8), (shade, 17, 40)).save(file, "PNG")
        if {"+", "/"} <= set(b64encode(file.getvalue()).decode()):
            return file.getvalue()
    raise AssertionError


def asked_about_picture(name: str, url: str = "", model: str = "m") -> dict[str, Any]:
    """Return a frozen body about one picture, made by our adapter."""
    image = ImagePart("image/png", base64=b64encode(picture()).decode())
    return cast(
        "dict[str, Any]", frozen(providers.get(name, url).body(Ask(model, system="Be brief."), [image, "What?"]))
    )


def test_openai_client_and_rehearsal_understand_each_other(rehearsal: str) -> None:
    """The SDK sends our frozen bodies, and its strict response types take the rehearsal's answers."""
    address = f"{rehearsal}/v1"
    with OpenAI(base_url=address, api_key="x", max_retries=0, _strict_response_validation=True) as client:
        chat = client.chat.completions.create(**asked_about_picture("openai"))
        response = client.responses.create(**asked_about_picture("openai", "/v1/responses"))
    assert "PNG of 8 x 8" in (chat.choices[0].message.content or "")
    assert "PNG of 8 x 8" in response.output_text


def test_anthropic_client_and_rehearsal_understand_each_other(rehearsal: str) -> None:
    """The SDK sends our frozen body, and its strict response type takes the rehearsal's answer."""
    body = asked_about_picture("anthropic", model="claude-opus-5")
    with Anthropic(base_url=rehearsal, api_key="x", max_retries=0, _strict_response_validation=True) as client:
        message = client.messages.create(**body)
    assert isinstance(message.content[0], anthropic_types.TextBlock)
    assert "PNG of 8 x 8" in message.content[0].text


def test_gemini_client_and_rehearsal_understand_each_other(rehearsal: str) -> None:
    """The SDK spells a part's type in snake_case and its bytes in the URL-safe alphabet: the endpoint takes both."""
    body = asked_about_picture("gemini")
    config = {**body["generationConfig"], "systemInstruction": body["systemInstruction"]}
    options = genai_types.HttpOptions(base_url=rehearsal, api_version="v1beta")
    client = genai.Client(api_key="x", http_options=options)
    answer = client.models.generate_content(
        model="m", contents=body["contents"], config=genai_types.GenerateContentConfig.model_validate(config)
    )
    client.close()
    assert "PNG of 8 x 8" in (answer.text or "")


# --- closed lists --------------------------------------------------------------------------------------------


def test_finish_reasons_of_the_sdks_are_all_known() -> None:
    """Every reason that the SDKs name has a meaning here: an update that adds one shows up."""
    finish = ChatCompletion.model_fields["choices"].annotation
    choice = get_args(finish)[0]
    assert set(get_args(choice.model_fields["finish_reason"].annotation)) <= set(openai.FINISH_REASONS)
    assert set(get_args(StopReason)) == set(anthropic.STOP_REASONS)
    assert {reason.value for reason in genai_types.FinishReason} == set(gemini.FINISH_REASONS)
    statuses = set(get_args(openai_responses.ResponseStatus))
    reason = openai_responses.response.IncompleteDetails.model_fields["reason"].annotation
    incomplete = {word for option in get_args(reason) for word in get_args(option)}
    assert statuses | incomplete == set(responses.FINISH_REASONS)


def test_words_that_options_take_are_those_of_the_sdks() -> None:
    """Efforts and thinking levels are the SDKs' own words."""
    efforts = {word for option in get_args(ReasoningEffort) for word in get_args(option)}
    assert efforts == set(openai_families.EFFORTS)
    levels = {level.value.lower() for level in genai_types.ThinkingLevel} - {"thinking_level_unspecified"}
    assert levels == set(gemini.LEVELS)
