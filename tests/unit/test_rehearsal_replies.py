"""The rehearsal provider's answers: in every wire format, from the picture's own pixels, billed by the rules."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import jsonschema
import pytest

from tests.unit import rehearsal_bodies as bodies
from vlmbatch import jsonl
from vlmbatch.rehearsal import wires
from vlmbatch.rehearsal.faults import Faults, parse_faults
from vlmbatch.rehearsal.replies import Replies, Reply, image_tokens
from vlmbatch.rehearsal.wires.base import Asked

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"colour": {"type": "string"}, "width": {"type": "integer"}},
    "required": ["colour", "width"],
    "additionalProperties": False,
}


class Format(NamedTuple):
    """A wire format: how to ask in it, and how to find in its answer what the tests look at."""

    wire: Any
    body: Any
    cap: dict[str, int]
    thinking: dict[str, Any]
    schema: dict[str, Any]


def _gemini(**config: Any) -> dict[str, Any]:
    return {"generationConfig": config}


CHAT = Format(
    wires.CHAT,
    bodies.chat,
    {"max_completion_tokens": 8},
    {"reasoning_effort": "low"},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}},
)
RESPONSES = Format(
    wires.RESPONSES,
    bodies.responses,
    {"max_output_tokens": 8},
    {"reasoning": {"effort": "low"}},
    {"text": {"format": {"type": "json_schema", "name": "x", "strict": True, "schema": SCHEMA}}},
)
MESSAGES = Format(
    wires.MESSAGES,
    bodies.messages,
    {"max_tokens": 8},
    {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}},
    {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
)
GENERATE = Format(
    wires.GENERATE_CONTENT,
    bodies.generate_content,
    _gemini(maxOutputTokens=8),  # type: ignore[arg-type]
    _gemini(thinkingConfig={"thinkingLevel": "LOW"}),
    _gemini(responseMimeType="application/json", responseJsonSchema=SCHEMA),
)
FORMATS = pytest.mark.parametrize(
    "form", [CHAT, RESPONSES, MESSAGES, GENERATE], ids=["chat", "responses", "messages", "generate"]
)


def ask(form: Format, body: dict[str, Any], faults: Faults | None = None, models: tuple[str, ...] = ()) -> Reply:
    """Send one body through the replies."""
    data = jsonl.dumps(body)
    model = bodies.MODEL if form is GENERATE else ""
    return Replies(faults or Faults(), models).reply(form.wire, model, data, jsonl.sha256(data), 0)


def always(fault: str) -> Faults:
    """Return faults in which one happens every time."""
    return parse_faults({"rates": {fault: 1}})


class Seen(NamedTuple):
    """What a client of a format would read."""

    text: str
    stop: str
    input_tokens: int
    output_tokens: int
    reasoning_tokens: int
    is_refused: bool


def read(form: Format, reply: Reply) -> Seen:
    """Validate an answer with the provider's own types and read it; written apart from the package's adapters."""
    value = json.loads(reply.body)
    if form is CHAT:
        return _read_chat(value)
    if form is RESPONSES:
        return _read_responses(value)
    if form is MESSAGES:
        return _read_messages(value)
    return _read_generate(value)


def _read_chat(value: dict[str, Any]) -> Seen:
    chat = pytest.importorskip("openai.types.chat")
    got = chat.ChatCompletion.model_validate(value)
    (choice,) = got.choices
    return Seen(
        choice.message.content or "",
        choice.finish_reason,
        got.usage.prompt_tokens,
        got.usage.completion_tokens,
        got.usage.completion_tokens_details.reasoning_tokens,
        bool(choice.message.refusal),
    )


def _read_responses(value: dict[str, Any]) -> Seen:
    types = pytest.importorskip("openai.types.responses")
    got = types.Response.model_validate(value)
    refusals = [p for item in got.output if item.type == "message" for p in item.content if p.type == "refusal"]
    stop = got.incomplete_details.reason if got.incomplete_details else got.status
    usage = got.usage
    return Seen(
        got.output_text,
        stop,
        usage.input_tokens,
        usage.output_tokens,
        usage.output_tokens_details.reasoning_tokens,
        bool(refusals),
    )


def _read_messages(value: dict[str, Any]) -> Seen:
    types = pytest.importorskip("anthropic.types")
    got = types.Message.model_validate(value)
    text = "".join(block.text for block in got.content if block.type == "text")
    details = got.usage.output_tokens_details
    thought = details.thinking_tokens if details else 0
    refused = got.stop_reason == "refusal"
    return Seen(text, got.stop_reason, got.usage.input_tokens, got.usage.output_tokens, thought, refused)


def _read_generate(value: dict[str, Any]) -> Seen:
    types = pytest.importorskip("google.genai.types")
    got = types.GenerateContentResponse.model_validate(value)
    usage = got.usage_metadata
    thought = usage.thoughts_token_count or 0
    output = (usage.candidates_token_count or 0) + thought
    assert usage.total_token_count == usage.prompt_token_count + output
    if not got.candidates:
        return Seen("", "", usage.prompt_token_count, output, thought, got.prompt_feedback.block_reason is not None)
    (candidate,) = got.candidates
    text = "".join(part.text for part in candidate.content.parts or [])
    return Seen(text, candidate.finish_reason.value, usage.prompt_token_count, output, thought, False)


@FORMATS
def test_answer_names_size_format_and_colour(form: Format) -> None:
    """The answer comes from the decoded picture."""
    seen = read(form, ask(form, form.body([bodies.picture(320, 200, "#2850be")])))
    assert "JPEG of 320 x 200 pixels, mostly blue" in seen.text
    assert not seen.is_refused


@FORMATS
def test_answer_with_two_pictures_names_both_in_order(form: Format) -> None:
    """Several pictures are seen in the order in which they were sent."""
    seen = read(form, ask(form, form.body([bodies.picture(10, 20), bodies.picture(30, 40)])))
    assert seen.text.index("10 x 20") < seen.text.index("30 x 40")


@FORMATS
def test_usage_is_formula_for_images_and_stated_rule_for_text(form: Format) -> None:
    """Input is the published formula for the picture and a quarter of the text's bytes."""
    text = "Wie groß ist das Bild?"
    seen = read(form, ask(form, form.body([bodies.picture()], text)))
    detail = "high" if form is RESPONSES else None
    bill = image_tokens(Asked(bodies.MODEL, detail=detail), 640, 480)
    assert bill > 0
    assert seen.input_tokens == bill + 6  # 23 bytes
    assert seen.output_tokens == -(-len(seen.text.encode()) // 4)


@FORMATS
def test_small_limit_cuts_the_answer_and_says_so(form: Format) -> None:
    """An answer over the output limit is cut, and billed the whole limit."""
    seen = read(form, ask(form, form.body([bodies.picture()], **form.cap)))
    assert seen.text == "Rehearsal answer: the picture is"[:32]
    assert seen.output_tokens == 8
    assert seen.stop in {"length", "max_output_tokens", "max_tokens", "MAX_TOKENS"}


@FORMATS
def test_reasoning_that_uses_up_the_limit_leaves_no_text(form: Format) -> None:
    """Reasoning counts in the limit."""
    more = _gemini(**form.cap["generationConfig"], **form.thinking["generationConfig"]) if form is GENERATE else None  # type: ignore[index]
    seen = read(form, ask(form, form.body([bodies.picture()], **(more or {**form.cap, **form.thinking}))))
    assert seen.text == ""
    assert (seen.output_tokens, seen.reasoning_tokens) == (8, 8)


@FORMATS
def test_reasoning_asked_for_is_billed(form: Format) -> None:
    """An effort costs its reasoning tokens, which are part of the output."""
    plain = read(form, ask(form, form.body([bodies.picture()])))
    seen = read(form, ask(form, form.body([bodies.picture()], **form.thinking)))
    assert seen.reasoning_tokens == 64
    assert seen.output_tokens == plain.output_tokens + 64


@FORMATS
def test_schema_asked_for_is_answered_with_fitting_json(form: Format) -> None:
    """Structured output fits the schema and holds values from the picture."""
    seen = read(form, ask(form, form.body([bodies.picture()], **form.schema)))
    value = json.loads(seen.text)
    jsonschema.validate(value, SCHEMA)
    assert value == {"colour": "red", "width": 640}


@FORMATS
def test_picture_that_is_none_is_refused_with_400(form: Format) -> None:
    """What cannot be decoded gets the provider's 400."""
    reply = ask(form, form.body([b"this is no picture"]))
    assert reply.status == 400
    assert "error" in json.loads(reply.body)


@FORMATS
def test_body_that_is_no_json_is_refused_with_400(form: Format) -> None:
    """A broken body is the client's fault."""
    assert Replies(Faults()).reply(form.wire, "m", b'{"model"', "0" * 64, 0).status == 400


@FORMATS
def test_body_without_messages_is_refused_with_400(form: Format) -> None:
    """A body of another format is refused, not guessed at."""
    assert ask(form, {"model": bodies.MODEL, "max_tokens": 5}).status == 400


@FORMATS
def test_unknown_model_is_refused_with_404(form: Format) -> None:
    """Where the models are listed, others are unknown."""
    assert ask(form, form.body([bodies.picture()]), models=("other",)).status == 404


@FORMATS
@pytest.mark.parametrize(
    ("fault", "text", "refused"),
    [("refusal", False, True), ("empty", False, False), ("empty_at_cap", False, False), ("truncated", True, False)],
)
def test_answer_fault_shows_in_the_answer(form: Format, fault: str, text: bool, refused: bool) -> None:
    """Each answer fault looks as the provider's own would."""
    seen = read(form, ask(form, form.body([bodies.picture()]), always(fault)))
    assert (bool(seen.text), seen.is_refused) == (text, refused)
    at_cap = {"length", "max_output_tokens", "max_tokens", "MAX_TOKENS"}
    assert (seen.stop in at_cap) == (fault in {"empty_at_cap", "truncated"})


@FORMATS
def test_invalid_json_fault_breaks_json_alone(form: Format) -> None:
    """The fault spoils an answer that was to be JSON, and leaves plain ones be."""
    broken = read(form, ask(form, form.body([bodies.picture()], **form.schema), always("invalid_json")))
    with pytest.raises(ValueError, match="Expecting value"):
        json.loads(broken.text)
    assert "640 x 480" in read(form, ask(form, form.body([bodies.picture()]), always("invalid_json"))).text


@FORMATS
@pytest.mark.parametrize("status", [429, 500, 503])
def test_try_fault_is_an_error_in_the_wire_words(form: Format, status: int) -> None:
    """A failed try has the status and an error body."""
    reply = ask(form, form.body([bodies.picture()]), always(f"http_{status}"))
    assert reply.status == status
    assert "error" in json.loads(reply.body)


def test_429_names_the_wait_where_each_format_has_it() -> None:
    """The wait stands in headers, for generateContent in the body."""
    faults = parse_faults({"rates": {"http_429": 1}, "retry_after_s": 1.5})
    for form in (CHAT, RESPONSES, MESSAGES):
        headers = ask(form, form.body([bodies.picture()]), faults).headers
        assert (headers["retry-after"], headers["retry-after-ms"]) == ("2", "1500")
    error = json.loads(ask(GENERATE, GENERATE.body([bodies.picture()]), faults).body)["error"]
    assert error["details"][0]["retryDelay"] == "1.5s"


def test_messages_refuses_a_media_type_that_lies() -> None:
    """This format compares the declared type with the bytes."""
    reply = ask(MESSAGES, bodies.messages([bodies.picture()], media_type="image/png"))
    assert reply.status == 400
    assert b"media type" in reply.body


@pytest.mark.parametrize("url", ["http://127.0.0.1/a.jpg", "data:image/png,abc", 7])
def test_picture_by_url_is_refused(url: Any) -> None:
    """The rehearsal fetches nothing."""
    body = bodies.chat([])
    body["messages"][0]["content"].append({"type": "image_url", "image_url": {"url": url}})
    assert ask(CHAT, body).status == 400


@pytest.mark.parametrize("form", ["PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_other_formats_are_decoded_and_named(form: str) -> None:
    """Whatever Pillow reads is seen."""
    seen = read(CHAT, ask(CHAT, bodies.chat([bodies.picture(form=form)], media_type="image/png")))
    assert f"a {form} of 640 x 480 pixels, mostly red" in seen.text


def test_same_body_gives_the_same_bytes() -> None:
    """There is no clock and no chance in an answer."""
    body = bodies.chat([bodies.picture()])
    assert ask(CHAT, body).body == ask(CHAT, body).body
