"""Bodies, lines, addresses and headers of every adapter: what goes on the wire, and what is refused before it does."""

from __future__ import annotations

from typing import Any

import pytest

from vlmbatch import providers
from vlmbatch.errors import InputError
from vlmbatch.providers.base import Ask, ImagePart, Provider

PNG = ImagePart("image/png", base64="aGk=")
RESPONSES = ("openai", "/v1/responses")
ALL = [(name, "") for name in providers.names()] + [RESPONSES]
CHAT = ["openai", "vllm", "sglang", "compatible"]
SCHEMA = {
    "type": "object",
    "properties": {"label": {"type": "string"}},
    "required": ["label"],
    "additionalProperties": False,
}
OPEN_SCHEMA = {"type": "object", "properties": {"label": {"type": "string"}}}


def refused(provider: Provider, ask: Ask) -> set[str]:
    """Return the flags that a provider refuses."""
    return {problem.where for problem in provider.check_ask(ask)[0]}


# --- the registry --------------------------------------------------------------------------------------------
def test_registry_names_every_provider() -> None:
    """The names are those that --provider takes, and each leads to an adapter of that name."""
    assert set(providers.names()) == {"openai", "anthropic", "gemini", "vllm", "sglang", "compatible"}
    assert all(providers.get(name).name == name for name in providers.names())
    assert all(isinstance(providers.get(*pair), Provider) for pair in ALL)


def test_registry_unknown_name_is_refused_with_the_names() -> None:
    """A wrong name is bad input, and the hint lists the right ones."""
    with pytest.raises(InputError) as caught:
        providers.get("openia")
    assert "openai" in caught.value.hint


def test_registry_url_of_responses_picks_that_wire() -> None:
    """One provider has a second wire format, chosen by the endpoint's path."""
    assert providers.get("openai", "/v1/responses").wire == "openai-responses"
    assert providers.get("openai", "/v1/responses/").wire == "openai-responses"
    assert providers.get("openai", "/v1/chat/completions").wire == "openai-chat"
    assert len({providers.get(name).wire for name in CHAT}) == 1


# --- bodies --------------------------------------------------------------------------------------------------
PARTS = ["What is this?", PNG]
BODIES = {
    ("openai", ""): {
        "model": "m",
        "max_completion_tokens": 100,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is this?"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
                ],
            },
        ],
    },
    RESPONSES: {
        "model": "m",
        "max_output_tokens": 100,
        "instructions": "Be brief.",
        "input": [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "What is this?"},
                    {"type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "auto"},
                ],
            }
        ],
    },
    ("anthropic", ""): {
        "model": "m",
        "max_tokens": 100,
        "system": "Be brief.",
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is this?"},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
                ],
            }
        ],
    },
    ("gemini", ""): {
        "generationConfig": {"maxOutputTokens": 100},
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "contents": [
            {
                "role": "user",
                "parts": [{"text": "What is this?"}, {"inlineData": {"mimeType": "image/png", "data": "aGk="}}],
            }
        ],
    },
}
BODIES["vllm", ""] = BODIES["sglang", ""] = BODIES["compatible", ""] = {
    ("max_tokens" if key == "max_completion_tokens" else key): value for key, value in BODIES["openai", ""].items()
}


@pytest.mark.parametrize("pair", ALL, ids="".join)
def test_body_has_prompt_image_and_limit_where_the_provider_wants_them(pair: tuple[str, str]) -> None:
    """The plain body of each wire format, field by field."""
    provider, ask = providers.get(*pair), Ask("m", max_tokens=100, system="Be brief.")
    assert provider.body(ask, PARTS) == BODIES[pair]
    assert provider.max_tokens(provider.body(ask, PARTS)) == provider.max_tokens(provider.params(ask)) == 100


@pytest.mark.parametrize("pair", ALL, ids="".join)
def test_body_keeps_the_order_of_text_and_images(pair: tuple[str, str]) -> None:
    """Where the image stands is the user's choice, and part of the request."""
    provider, ask = providers.get(*pair), Ask("m")
    first, last = provider.body(ask, [PNG, "a", PNG]), provider.body(ask, ["a", PNG, PNG])
    assert first != last
    text = repr(first)
    assert text.index("aGk=") < text.index("'a'") < text.rindex("aGk=")


@pytest.mark.parametrize("pair", ALL, ids="".join)
def test_params_hold_neither_model_nor_messages(pair: tuple[str, str]) -> None:
    """What run.json keeps is the body without what it keeps elsewhere; prompt and images change nothing of it."""
    provider, ask = providers.get(*pair), Ask("m", system="Be brief.", extra_body={"seed": 1})
    body = provider.body(ask, PARTS)
    beside = {"model", "messages", "input", "instructions", "system", "contents", "systemInstruction"}
    assert provider.params(ask) == {key: value for key, value in body.items() if key not in beside}
    assert provider.params(ask)["seed"] == 1


@pytest.mark.parametrize("name", CHAT)
def test_chat_body_of_text_alone_is_plain_text(name: str) -> None:
    """A message without an image is a string, which servers of text models take too; empty texts are left out."""
    body = providers.get(name).body(Ask("m"), ["only words", ""])
    assert body["messages"] == [{"role": "user", "content": "only words"}]


LINES = {
    ("openai", ""): ({"custom_id": "a-1", "method": "POST", "url": "/v1/chat/completions", "body": 1}),
    RESPONSES: ({"custom_id": "a-1", "method": "POST", "url": "/v1/responses", "body": 1}),
    ("anthropic", ""): ({"custom_id": "a-1", "params": 1}),
    ("gemini", ""): ({"key": "a-1", "request": 1}),
}
LINES["vllm", ""] = LINES["sglang", ""] = LINES["compatible", ""] = LINES["openai", ""]


@pytest.mark.parametrize("pair", ALL, ids="".join)
def test_line_has_the_batch_shape_with_the_body_last(pair: tuple[str, str]) -> None:
    """Each line is in the provider's own batch shape, and the inner value stands last."""
    line = providers.get(*pair).line("a-1", 1, Ask("m"))
    assert line == LINES[pair]
    assert list(line.values())[-1] == 1


# --- the output limit's name ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "model", "field"),
    [
        ("openai", "gpt-4o", "max_completion_tokens"),
        ("openai", "gpt-5.6-sol", "max_completion_tokens"),
        ("vllm", "Qwen/Qwen3-VL-8B-Instruct", "max_tokens"),
        ("vllm", "gpt-5", "max_tokens"),
        ("sglang", "Qwen/Qwen3-VL-8B-Instruct", "max_tokens"),
        ("compatible", "llava", "max_tokens"),
        ("compatible", "openai/gpt-5.1", "max_completion_tokens"),
        ("compatible", "o3", "max_completion_tokens"),
        ("compatible", "gpt-6.1-mini", "max_completion_tokens"),
    ],
)
def test_chat_limit_has_the_name_that_the_model_family_takes(name: str, model: str, field: str) -> None:
    """Reasoning models refuse the old name; servers of open models know it best."""
    assert providers.get(name).params(Ask(model, max_tokens=7)) == {field: 7}


def test_chat_limit_field_given_by_the_user_wins() -> None:
    """--max-tokens-field decides, and the limit is found again under any name that is taken."""
    provider = providers.get("openai")
    for field in ("max_tokens", "max_completion_tokens", "max_new_tokens"):
        ask = Ask("gpt-5", max_tokens=7, max_tokens_field=field)
        assert provider.params(ask) == {field: 7}
        assert provider.max_tokens(provider.params(ask)) == 7
    assert refused(provider, Ask("m", max_tokens_field="cap")) == {"--max-tokens-field"}


@pytest.mark.parametrize(
    ("pair", "extra"),
    [
        (("openai", ""), {"max_completion_tokens": 9}),
        (("vllm", ""), {"max_tokens": 9}),
        (RESPONSES, {"max_output_tokens": 9}),
        (("anthropic", ""), {"max_tokens": 9}),
        (("gemini", ""), {"generationConfig": {"maxOutputTokens": 9}}),
    ],
)
def test_limit_overridden_by_extra_body_is_the_one_that_counts(pair: tuple[str, str], extra: dict[str, Any]) -> None:
    """The at-cap rule reads the limit that is really asked for, whatever put it into the body."""
    provider, ask = providers.get(*pair), Ask("m", max_tokens=100, extra_body=extra)
    assert provider.max_tokens(provider.body(ask, PARTS)) == 9


def test_chat_limit_under_two_names_is_the_smaller() -> None:
    """Where two limits stand in one body, the answer ends at the first that is reached."""
    ask = Ask("m", max_tokens=100, extra_body={"max_tokens": 50})
    assert providers.get("openai").max_tokens(providers.get("openai").params(ask)) == 50


def test_limit_left_out_is_none_but_required_by_one() -> None:
    """No limit is legal wherever the provider has a default; one has none."""
    for pair in ALL:
        provider = providers.get(*pair)
        assert provider.max_tokens(provider.params(Ask("m", max_tokens=None))) is None
    assert refused(providers.get("anthropic"), Ask("m", max_tokens=None)) == {"--max-tokens"}
    assert refused(providers.get("openai"), Ask("m", max_tokens=None)) == set()


# --- sampling ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("pair", "model", "effort", "is_sent"),
    [
        (("openai", ""), "gpt-4o", None, True),
        (("openai", ""), "gpt-5", None, False),
        (("openai", ""), "gpt-5-mini-2025-08-07", None, False),
        (("openai", ""), "gpt-5.1", None, True),
        (("openai", ""), "gpt-5.1", "low", False),
        (("openai", ""), "gpt-5.4-nano", "none", True),
        (("openai", ""), "gpt-5.6-terra", None, False),
        (("openai", ""), "gpt-5.6-terra", "none", True),
        (("openai", ""), "gpt-6-astra", "none", False),
        (("openai", ""), "o3", None, False),
        (("openai", ""), "ft:o4-mini-2025-04-16:org::id", None, False),
        (("compatible", ""), "openai/gpt-5:nitro", None, False),
        (RESPONSES, "gpt-5.5", None, False),
        (RESPONSES, "gpt-4.1", None, True),
        (("compatible", ""), "openai/gpt-5", None, False),
        (("vllm", ""), "gpt-5", None, True),
        (("sglang", ""), "any", "high", True),
        (("anthropic", ""), "claude-opus-4-6", None, True),
        (("anthropic", ""), "claude-3-5-sonnet-20241022", None, True),
        (("anthropic", ""), "claude-sonnet-4-20250514", None, True),
        (("anthropic", ""), "claude-opus-4-7", None, False),
        (("anthropic", ""), "anthropic/claude-opus-4.7", None, False),
        (("anthropic", ""), "anthropic/claude-sonnet-4.5", None, True),
        (("anthropic", ""), "us.anthropic.claude-sonnet-4-5-20250929-v1:0", None, True),
        (("anthropic", ""), "claude-sonnet-5-5", None, False),
        (("anthropic", ""), "an-unknown-one", None, False),
        (("anthropic", ""), "test-claude-1", None, False),
    ],
)
def test_temperature_is_left_out_with_a_warning_where_the_model_refuses_it(
    pair: tuple[str, str], model: str, effort: str | None, is_sent: bool
) -> None:
    """It is sent where it is taken; where it is not, the body goes without it and build says so."""
    provider = providers.get(*pair)
    ask = Ask(model, temperature=0.0, top_p=0.9, reasoning_effort=effort)
    assert ({"temperature", "top_p"} <= set(provider.params(ask))) is is_sent
    warnings = " ".join(provider.check_ask(ask)[1])
    assert ("--temperature" in warnings) is ("--top-p" in warnings) is not is_sent


@pytest.mark.parametrize("thinking", [{"thinking_budget": 2048}, {"extra_body": {"thinking": {"type": "adaptive"}}}])
def test_anthropic_sampling_is_left_out_while_an_older_model_thinks(thinking: dict[str, Any]) -> None:
    """Thinking excludes a temperature, and a top_p below 0.95: the provider would answer 400 to every row."""
    provider = providers.get("anthropic")
    ask = Ask("claude-opus-4-5", temperature=0.0, top_p=0.9, **thinking)
    assert not {"temperature", "top_p"} & set(provider.params(ask))
    problems, warnings = provider.check_ask(ask)
    assert not problems
    assert [warning.split()[0] for warning in warnings] == ["--temperature", "--top-p"]
    assert all("while it thinks" in warning for warning in warnings)
    assert provider.frozen_headers(ask) == {"anthropic-version": "2026-10-21"}
    assert provider.params(Ask("claude-opus-4-5", top_p=0.95, **thinking))["top_p"] == 0.95


def test_anthropic_sampling_is_sent_where_thinking_is_switched_off() -> None:
    """A budget of 0 is no thinking."""
    provider = providers.get("anthropic")
    assert provider.params(Ask("claude-opus-4-5", temperature=0.0, thinking_budget=0))["temperature"] == 0.0
    extra = {"thinking": {"type": "disabled"}}
    assert provider.params(Ask("claude-opus-4-5", temperature=0.0, extra_body=extra))["temperature"] == 0.0


@pytest.mark.parametrize(
    ("model", "is_refused"),
    [
        ("claude-3-5-sonnet-20241022", False),
        ("claude-sonnet-4-20250514", False),
        ("claude-opus-4-1", True),
        ("claude-sonnet-4-5", True),
        ("claude-opus-4-6", True),
        ("claude-opus-4-7", False),
    ],
)
def test_anthropic_temperature_and_top_p_together_are_refused_from_4_1_on(model: str, is_refused: bool) -> None:
    """Claude 4.1 to 4.6 take one of the two; later ones take none, so that both are left out."""
    provider = providers.get("anthropic")
    assert refused(provider, Ask(model, temperature=0.0, top_p=0.9)) == ({"--top-p"} if is_refused else set())
    assert refused(provider, Ask(model, temperature=0.0)) == set()


def test_gemini_sampling_is_sent_under_its_own_names() -> None:
    """Gemini keeps them in generationConfig; from version 4 on there is a doubt, which is told."""
    provider = providers.get("gemini")
    ask = Ask("gemini-4-argon", temperature=0.0, top_p=0.9)
    config = provider.params(ask)["generationConfig"]
    assert (config["temperature"], config["topP"]) == (0.0, 0.9)
    assert any("deprecated" in warning for warning in provider.check_ask(ask)[1])


def test_sampling_not_asked_for_is_not_sent() -> None:
    """No body holds a temperature that the user did not set."""
    for pair in ALL:
        assert "temperature" not in repr(providers.get(*pair).body(Ask("m"), PARTS))


# --- effort and budget ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("pair", "model", "effort", "params"),
    [
        (("openai", ""), "gpt-5.6-sol", "max", {"reasoning_effort": "max"}),
        (RESPONSES, "gpt-5.6-sol", "low", {"reasoning": {"effort": "low"}}),
        (("vllm", ""), "m", "none", {"reasoning_effort": "none"}),
        (("anthropic", ""), "claude-opus-5", "xhigh", {"output_config": {"effort": "xhigh"}}),
        (
            ("gemini", ""),
            "gemini-3.5-flash",
            "minimal",
            {"generationConfig": {"thinkingConfig": {"thinkingLevel": "MINIMAL"}}},
        ),
    ],
)
def test_effort_goes_where_the_provider_has_it(
    pair: tuple[str, str], model: str, effort: str, params: dict[str, Any]
) -> None:
    """Each provider's own field, in its own spelling."""
    provider, ask = providers.get(*pair), Ask(model, max_tokens=None, reasoning_effort=effort)
    assert provider.params(ask) == params
    assert "--reasoning-effort" not in refused(provider, ask)


@pytest.mark.parametrize(
    ("pair", "model", "effort"),
    [
        (("openai", ""), "gpt-5", "none"),
        (("openai", ""), "gpt-5.1", "minimal"),
        (RESPONSES, "gpt-5.6-sol", "huge"),
        (("anthropic", ""), "claude-opus-5", "none"),
        (("anthropic", ""), "claude-haiku-4-5", "low"),
        (("anthropic", ""), "claude-sonnet-4-5", "low"),
        (("anthropic", ""), "claude-opus-4-1", "high"),
        (("anthropic", ""), "claude-opus-4-5", "max"),
        (("anthropic", ""), "claude-sonnet-4-6", "xhigh"),
        (("gemini", ""), "gemini-3.8-flash", "minimal"),
        (("gemini", ""), "gemini-4-argon", "xhigh"),
        (("gemini", ""), "gemini-3.5-flash", "max"),
        (("gemini", ""), "gemini-2.5-pro", "low"),
    ],
)
def test_effort_that_the_model_has_not_is_refused(pair: tuple[str, str], model: str, effort: str) -> None:
    """A word that is documented to fail is refused before anything is paid."""
    assert refused(providers.get(*pair), Ask(model, reasoning_effort=effort)) == {"--reasoning-effort"}


def test_effort_that_is_only_reported_to_fail_is_warned_about() -> None:
    """What no documentation settles is the user's choice."""
    problems, warnings = providers.get("openai").check_ask(Ask("gpt-6-astra", reasoning_effort="none"))
    assert problems == []
    assert any("as far as known" in warning for warning in warnings)


@pytest.mark.parametrize(
    ("pair", "model", "budget", "params"),
    [
        (("vllm", ""), "m", 500, {"thinking_token_budget": 500}),
        (("anthropic", ""), "claude-opus-4-6", 2048, {"thinking": {"type": "enabled", "budget_tokens": 2048}}),
        (("anthropic", ""), "claude-sonnet-5", 0, {"thinking": {"type": "disabled"}}),
        (("gemini", ""), "gemini-2.5-pro", 0, {"generationConfig": {"thinkingConfig": {"thinkingBudget": 0}}}),
        (("gemini", ""), "gemini-2.5-pro", -1, {"generationConfig": {"thinkingConfig": {"thinkingBudget": -1}}}),
    ],
)
def test_thinking_budget_goes_where_the_provider_has_it(
    pair: tuple[str, str], model: str, budget: int, params: dict[str, Any]
) -> None:
    """Each provider's own field."""
    provider, ask = providers.get(*pair), Ask(model, max_tokens=4096, thinking_budget=budget)
    problems, warnings = provider.check_ask(ask)
    assert (problems, warnings) == ([], [])
    assert provider.params(Ask(model, max_tokens=None, thinking_budget=budget)) == params


@pytest.mark.parametrize(
    ("pair", "model", "budget"),
    [
        (("openai", ""), "gpt-5", 500),
        (RESPONSES, "gpt-5", 500),
        (("sglang", ""), "m", 500),
        (("compatible", ""), "m", 500),
        (("anthropic", ""), "claude-opus-4-7", 2048),
        (("anthropic", ""), "claude-sonnet-5-5", 2048),
        (("anthropic", ""), "claude-opus-4-6", 1023),
        (("anthropic", ""), "claude-opus-4-6", 4096),
        (("anthropic", ""), "claude-opus-5-5", 0),
        (("anthropic", ""), "claude-fable-5", 0),
        (("gemini", ""), "gemini-2.5-pro", -2),
    ],
)
def test_thinking_budget_that_there_is_not_is_refused(pair: tuple[str, str], model: str, budget: int) -> None:
    """Where the provider or the model has none, or the number cannot be, build says so."""
    ask = Ask(model, max_tokens=4096, thinking_budget=budget)
    assert refused(providers.get(*pair), ask) == {"--thinking-budget"}


def test_anthropic_thinking_off_and_high_effort_exclude_each_other_on_some() -> None:
    """Opus 5 and Haiku 5.5 can be kept from thinking only up to effort high."""
    provider = providers.get("anthropic")
    for model in ("claude-opus-5", "claude-haiku-5-5"):
        assert refused(provider, Ask(model, reasoning_effort="max", thinking_budget=0)) == {"--thinking-budget"}
        assert refused(provider, Ask(model, reasoning_effort="high", thinking_budget=0)) == set()


def test_gemini_level_and_budget_exclude_each_other() -> None:
    """Both together are a 400 there; a budget on newer models is doubtful and told."""
    provider = providers.get("gemini")
    both = Ask("gemini-3.5-flash", reasoning_effort="low", thinking_budget=100)
    assert refused(provider, both) == {"--thinking-budget"}
    assert any("2.5" in said for said in provider.check_ask(Ask("gemini-3.5-flash", thinking_budget=100))[1])


def test_gemini_limit_beyond_one_answer_is_told() -> None:
    """gemini-4-argon ends a plain answer at 32,768 tokens, whatever the limit."""
    assert any(
        "32,768" in said for said in providers.get("gemini").check_ask(Ask("gemini-4-argon", max_tokens=40_000))[1]
    )


# --- detail --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("pair", "detail", "found"),
    [
        (("openai", ""), "original", "'detail': 'original'"),
        (("sglang", ""), "low", "'detail': 'low'"),
        (RESPONSES, "high", "'detail': 'high'"),
        (("gemini", ""), "low", "'mediaResolution': 'MEDIA_RESOLUTION_LOW'"),
        (("gemini", ""), "high", "'mediaResolution': 'MEDIA_RESOLUTION_HIGH'"),
    ],
)
def test_detail_goes_where_the_provider_has_it(pair: tuple[str, str], detail: str, found: str) -> None:
    """Beside the image, or as the media resolution of the request."""
    assert found in repr(providers.get(*pair).body(Ask("m", detail=detail), PARTS))


def test_detail_that_a_provider_lacks_is_refused_or_told() -> None:
    """No provider silently drops it."""
    for pair in ALL:
        assert refused(providers.get(*pair), Ask("m", detail="fine")) >= {"--detail"}
    assert refused(providers.get("anthropic"), Ask("m", detail="high")) == {"--detail"}
    assert refused(providers.get("gemini"), Ask("m", detail="original")) == {"--detail original"}
    assert any("ignores --detail" in said for said in providers.get("vllm").check_ask(Ask("m", detail="low"))[1])


# --- structured output ---------------------------------------------------------------------------------------
def test_schema_goes_in_the_form_of_structured_output() -> None:
    """Each provider's own form, strict where the schema lies in the strict subset."""
    ask = Ask("m", max_tokens=None, json_answer=True, json_schema=SCHEMA)
    strict = {"name": "answer", "schema": SCHEMA, "strict": True}
    for name in CHAT:
        assert providers.get(name).params(ask) == {"response_format": {"type": "json_schema", "json_schema": strict}}
    assert providers.get(*RESPONSES).params(ask) == {"text": {"format": {"type": "json_schema", **strict}}}
    assert providers.get("anthropic").params(ask) == {
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}
    }
    assert providers.get("gemini").params(ask) == {
        "generationConfig": {"responseMimeType": "application/json", "responseJsonSchema": SCHEMA}
    }


def test_json_without_a_schema_goes_in_the_json_mode() -> None:
    """JSON mode where there is one, and a warning where there is none."""
    ask = Ask("m", max_tokens=None, json_answer=True)
    for name in CHAT:
        assert providers.get(name).params(ask) == {"response_format": {"type": "json_object"}}
    assert providers.get(*RESPONSES).params(ask) == {"text": {"format": {"type": "json_object"}}}
    assert providers.get("gemini").params(ask) == {"generationConfig": {"responseMimeType": "application/json"}}
    assert providers.get("anthropic").params(ask) == {}
    assert any("JSON mode" in said for said in providers.get("anthropic").check_ask(ask)[1])


def test_schema_outside_the_strict_subset_is_sent_without_strict_and_told() -> None:
    """Strict would be a 400 for every row: the schema still guides, and collect checks."""
    ask = Ask("m", json_answer=True, json_schema=OPEN_SCHEMA)
    for pair in [("openai", ""), RESPONSES]:
        provider = providers.get(*pair)
        assert "'strict': False" in repr(provider.params(ask))
        assert any("without strict" in said for said in provider.check_ask(ask)[1])


def test_anthropic_schema_outside_its_subset_is_refused_with_the_places() -> None:
    """Open objects, too many optional properties and too many unions are named, all at once."""
    many = {f"p{n}": {"type": ["string", "null"]} for n in range(25)}
    schema = {
        "type": "object",
        "additionalProperties": False,
        "properties": {**many, "properties": {"type": "object"}},
    }
    problems, _ = providers.get("anthropic").check_ask(Ask("m", json_answer=True, json_schema=schema))
    said = " ".join(problem.message for problem in problems)
    assert "$.properties.properties: needs additionalProperties false" in said
    assert "26 optional properties" in said
    assert "25 unions" in said


# --- extra body ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("pair", ALL, ids="".join)
def test_extra_body_replaces_top_level_fields_whole(pair: tuple[str, str]) -> None:
    """The user's fields come last, each replacing what stands there."""
    provider = providers.get(*pair)
    ask = Ask(
        "m", json_answer=True, json_schema=SCHEMA, extra_body={"seed": 1, "text": {"a": 1}, "response_format": None}
    )
    params = provider.params(ask)
    assert (params["seed"], params["text"], params["response_format"]) == (1, {"a": 1}, None)


def test_extra_body_of_gemini_is_laid_over_its_generation_config() -> None:
    """There the parameters stand one level down, so an extra one drops none of the others."""
    ask = Ask("m", max_tokens=100, extra_body={"generationConfig": {"seed": 1}, "safetySettings": []})
    assert providers.get("gemini").params(ask) == {
        "generationConfig": {"maxOutputTokens": 100, "seed": 1},
        "safetySettings": [],
    }


@pytest.mark.parametrize(
    ("pair", "extra"),
    [
        *((pair, {"model": "other"}) for pair in ALL),
        *((pair, {"stream": True}) for pair in ALL if pair[0] != "gemini"),
        *((pair, {"n": 2}) for pair in ALL),
        *(((name, ""), {"messages": []}) for name in [*CHAT, "anthropic"]),
        (RESPONSES, {"input": []}),
        (RESPONSES, {"background": True}),
        (("anthropic", ""), {"store": True}),
        (("anthropic", ""), {"speed": "fast"}),
        (("anthropic", ""), {"fallbacks": []}),
        (("gemini", ""), {"contents": []}),
        (("gemini", ""), {"generation_config": {}}),
        (("gemini", ""), {"generationConfig": {"candidateCount": 2}}),
        (("gemini", ""), {"generationConfig": {"max_output_tokens": 5}}),
    ],
)
def test_extra_body_that_would_change_what_a_line_is_is_refused(pair: tuple[str, str], extra: dict[str, Any]) -> None:
    """A frozen line means what run.json says, goes through both channels, and has one answer."""
    assert refused(providers.get(*pair), Ask("m", extra_body=extra)) == {"--extra-body"}


def test_extra_body_n_of_one_is_harmless() -> None:
    """One answer is what is asked anyway."""
    assert refused(providers.get("openai"), Ask("m", extra_body={"n": 1})) == set()


# --- file ids ------------------------------------------------------------------------------------------------
def test_file_id_takes_the_place_of_the_bytes() -> None:
    """Where a provider has a file store, an id names the image."""
    part = ImagePart("image/png", file_id="file-1")
    ask = Ask("m")
    assert providers.get(*RESPONSES).body(ask, [part])["input"][0]["content"] == [
        {"type": "input_image", "file_id": "file-1", "detail": "auto"}
    ]
    assert providers.get("anthropic").body(ask, [part])["messages"][0]["content"] == [
        {"type": "image", "source": {"type": "file", "file_id": "file-1"}}
    ]
    assert providers.get("gemini").body(ask, [part])["contents"][0]["parts"] == [
        {"fileData": {"mimeType": "image/png", "fileUri": "file-1"}}
    ]


@pytest.mark.parametrize("name", CHAT)
def test_file_id_in_chat_is_refused(name: str) -> None:
    """Chat completions have no place for one."""
    provider = providers.get(name)
    assert provider.takes_file_ids is False
    with pytest.raises(InputError):
        provider.body(Ask("m"), [ImagePart("image/png", file_id="file-1")])


# --- addresses -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "base_url", "url"),
    [
        ("openai", "", "https://api.openai.com/v1/chat/completions"),
        ("openai", "http://127.0.0.1:8000", "http://127.0.0.1:8000/v1/chat/completions"),
        ("openai", "http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1/chat/completions"),
        ("openai", "http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000/v1/chat/completions"),
        ("openai", "http://127.0.0.1:8000/v1/chat/completions", "http://127.0.0.1:8000/v1/chat/completions"),
        ("vllm", "http://h/gateway/v1", "http://h/gateway/v1/chat/completions"),
        ("vllm", "http://h/gateway", "http://h/gateway/v1/chat/completions"),
        ("compatible", "https://h/api/paas/v4", "https://h/api/paas/v4/chat/completions"),
        ("compatible", "https://h/v1beta/openai", "https://h/v1beta/openai/chat/completions"),
        ("compatible", "https://h/openai/v1?api-version=1", "https://h/openai/v1/chat/completions?api-version=1"),
        ("anthropic", "", "https://api.anthropic.com/v1/messages"),
        ("anthropic", "https://h/v1", "https://h/v1/messages"),
        ("gemini", "", "https://generativelanguage.googleapis.com/v1beta/models/m:generateContent"),
        ("gemini", "https://h/v1", "https://h/v1/models/m:generateContent"),
        ("gemini", "https://h/v1/models/m:generateContent", "https://h/v1/models/m:generateContent"),
    ],
)
def test_endpoint_joins_base_and_path_with_one_version(name: str, base_url: str, url: str) -> None:
    """The version segment is never doubled, and the base's own wins."""
    provider = providers.get(name)
    assert provider.endpoint(provider.url(Ask("m")), base_url) == url


@pytest.mark.parametrize(
    ("name", "base_url", "path", "url"),
    [
        ("openai", "http://h/v1/chat/completions", "/v1/models", "http://h/v1/models"),
        ("openai", "http://h/v1/responses/", "/v1/files", "http://h/v1/files"),
        ("openai", "http://h/openai/v1/chat/completions?a=1", "/v1/batches", "http://h/openai/v1/batches?a=1"),
        ("anthropic", "http://h/v1/messages", "/v1/models?limit=1000", "http://h/v1/models?limit=1000"),
        ("anthropic", "http://h/v1/messages", "/v1/messages/batches", "http://h/v1/messages/batches"),
        (
            "gemini",
            "http://h/v1/models/m:generateContent",
            "/v1beta/models?pageSize=9",
            "http://h/v1/models?pageSize=9",
        ),
    ],
)
def test_endpoint_given_as_the_base_leads_to_the_other_paths_too(name: str, base_url: str, path: str, url: str) -> None:
    """A pasted endpoint is a base like any other: models and batches are not looked for below it."""
    assert providers.get(name).endpoint(path, base_url) == url


@pytest.mark.parametrize(("name", "base_url"), [("vllm", ""), ("openai", "127.0.0.1:8000"), ("openai", "ftp://h/v1")])
def test_endpoint_without_a_usable_base_is_refused(name: str, base_url: str) -> None:
    """A server without an address of its own needs one, and it has to be http."""
    with pytest.raises(InputError):
        providers.get(name).endpoint("/v1/chat/completions", base_url)


def test_gemini_model_stands_in_the_path_escaped() -> None:
    """The model's name is part of the URL: tuned models keep their folder, odd characters are escaped."""
    provider = providers.get("gemini")
    assert provider.url(Ask("models/gemini-3.5-flash")) == "/v1beta/models/gemini-3.5-flash:generateContent"
    assert provider.url(Ask("tunedModels/mine")) == "/v1beta/tunedModels/mine:generateContent"
    assert provider.url(Ask("a?b#c d")) == "/v1beta/models/a%3Fb%23c%20d:generateContent"


@pytest.mark.parametrize(
    ("name", "base_url", "is_direct"),
    [
        ("openai", "", True),
        ("openai", "https://api.openai.com/v1", True),
        ("openai", "https://eu.api.openai.com/v1", True),
        ("openai", "http://api.openai.com/v1", False),
        ("openai", "https://api.openai.com.example.org/v1", False),
        ("openai", "https://evilapi.openai.com/v1", False),
        ("openai", "http://127.0.0.1:8000/v1", False),
        ("anthropic", "https://api.anthropic.com", True),
        ("gemini", "https://relay.example.org", False),
        ("vllm", "http://127.0.0.1:8000/v1", True),
    ],
)
def test_is_direct_tells_a_relay_from_the_provider(name: str, base_url: str, is_direct: bool) -> None:
    """Only the provider's own host counts; a server of the user's own is always direct."""
    assert providers.get(name).is_direct(base_url) is is_direct


def test_url_of_another_wire_is_refused() -> None:
    """A path that is no chat completions would be read by the wrong rules."""
    assert refused(providers.get("vllm"), Ask("m", url="/v1/completions")) == {"--url"}
    assert refused(providers.get("anthropic"), Ask("claude-opus-5", url="/v1/chat/completions")) == {"--url"}
    assert refused(providers.get("anthropic"), Ask("claude-opus-5", url="/v1/messages")) == set()
    assert refused(providers.get("gemini"), Ask("m", url="/v1/chat/completions")) == {"--url"}


def test_gemini_url_of_another_model_is_refused() -> None:
    """The model stands in the path alone: another one there would answer, and be billed, in this one's name."""
    provider = providers.get("gemini")
    assert refused(provider, Ask("g-2", url="/v1/models/g-3:generateContent")) == {"--url"}
    assert refused(provider, Ask("g-2", url="/v1/models/xg-2:generateContent")) == {"--url"}
    assert refused(provider, Ask("g-2", url="/v1/models/g-2:generateContent")) == set()
    assert refused(providers.get("vllm"), Ask("m", url="/v1/chat/completions")) == set()
    assert providers.get("vllm").url(Ask("m", url="/v2/chat/completions")) == "/v2/chat/completions"


# --- keys and headers ----------------------------------------------------------------------------------------
def test_key_stands_in_the_header_that_the_provider_reads() -> None:
    """One header has it, and no header where there is no key."""
    places = {"openai": "authorization", "vllm": "authorization", "anthropic": "x-api-key", "gemini": "x-goog-api-key"}
    for name, header in places.items():
        provider = providers.get(name)
        value = provider.headers("k-1", {})[header]
        assert value in {"k-1", "Bearer k-1"}
        assert header not in provider.headers(None, {})
        assert provider.headers(None, {})["content-type"] == "application/json"


def test_key_variables_follow_the_conventions() -> None:
    """The first one set wins; a local server needs none."""
    assert providers.get("openai").default_key_envs() == ("OPENAI_API_KEY",)
    assert providers.get("anthropic").default_key_envs() == ("ANTHROPIC_API_KEY",)
    assert providers.get("gemini").default_key_envs() == ("GOOGLE_API_KEY", "GEMINI_API_KEY")
    assert providers.get("vllm").default_key_envs() == ()


def test_anthropic_version_is_frozen_with_the_request() -> None:
    """The header decides what the body means: the older version only where sampling fields are sent."""
    provider = providers.get("anthropic")
    assert provider.frozen_headers(Ask("claude-opus-4-6")) == {"anthropic-version": "2026-10-21"}
    assert provider.frozen_headers(Ask("claude-opus-4-6", temperature=0.0)) == {"anthropic-version": "2023-06-01"}
    assert provider.frozen_headers(Ask("claude-opus-5", temperature=0.0)) == {"anthropic-version": "2026-10-21"}
    sampled = Ask("claude-opus-4-6", extra_body={"top_k": 5})
    assert provider.frozen_headers(sampled) == {"anthropic-version": "2023-06-01"}
    headers = provider.headers("k", {"anthropic-version": "2023-06-01"})
    assert headers["anthropic-version"] == "2023-06-01"
    assert provider.headers("k", {})["anthropic-version"] == "2026-10-21"


def test_frozen_headers_are_empty_elsewhere() -> None:
    """No other wire format has a header that means anything."""
    assert all(providers.get(*pair).frozen_headers(Ask("m")) == {} for pair in ALL if pair[0] != "anthropic")


# --- lists of models -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "body", "names"),
    [
        ("openai", {"object": "list", "data": [{"id": "gpt-5"}, {"id": "gpt-5.1"}]}, ["gpt-5", "gpt-5.1"]),
        ("vllm", {"data": [{"id": "Qwen/Qwen3-VL-8B-Instruct", "root": "x"}]}, ["Qwen/Qwen3-VL-8B-Instruct"]),
        ("compatible", [{"name": "llava"}, 7, {}], ["llava"]),
        ("anthropic", {"data": [{"id": "claude-opus-5"}], "has_more": False}, ["claude-opus-5"]),
        ("gemini", {"models": [{"name": "models/gemini-3.5-flash"}]}, ["gemini-3.5-flash"]),
        ("openai", "<html>", []),
        ("openai", {"data": None}, []),
    ],
)
def test_list_of_models_is_read_by_name(name: str, body: Any, names: list[str]) -> None:
    """The names as --model takes them; anything else is no list."""
    provider = providers.get(name)
    assert provider.read_models(body) == names
    call = provider.models_call()
    assert call is not None
    assert call.method == "GET"
    assert "models" in provider.endpoint(call.path, "http://h/v1")


@pytest.mark.parametrize("pair", ALL, ids="".join)
def test_supported_params_are_those_that_change_the_body(pair: tuple[str, str]) -> None:
    """A parameter is supported exactly where setting it is not refused and changes what is sent."""
    provider = providers.get(*pair)
    model = "gemini-2.5-pro" if pair[0] == "gemini" else "claude-opus-4-6" if pair[0] == "anthropic" else "m"
    tries: dict[str, Ask] = {
        "max_tokens": Ask(model, max_tokens=1),
        "temperature": Ask(model, temperature=0.0),
        "top_p": Ask(model, top_p=0.5),
        "detail": Ask(model, detail="low"),
        "reasoning_effort": Ask("gemini-3.5-flash" if pair[0] == "gemini" else model, reasoning_effort="low"),
        "thinking_budget": Ask(model, thinking_budget=2000),
        "json_answer": Ask(model, json_answer=True),
        "json_schema": Ask(model, json_schema=SCHEMA),
    }
    for param, ask in tries.items():
        is_taken = provider.check_ask(ask)[0] == []
        if (pair[0], param) == ("anthropic", "json_answer"):
            continue  # taken, and told that nothing of it is sent
        assert is_taken is (param in provider.supported_params()), param
        if is_taken:
            assert provider.body(ask, PARTS) != provider.body(Ask(ask.model), PARTS), param
