"""Errors of any shape, whole-run errors, waits named in bodies, lines of batch files; nothing here may raise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmbatch import jsonl, providers
from vlmbatch.classify import classify
from vlmbatch.records import Asked, Ended, Reading, Status

if TYPE_CHECKING:
    from collections.abc import Iterator

ALL = [(name, "") for name in providers.names()] + [("openai", "/v1/responses")]


def status_of(reading: Reading) -> Status:
    """Return the status of a reading when nothing special was asked for."""
    return classify(reading, Asked()).status


# --- shapes of error bodies ----------------------------------------------------------------------------------

SHAPES: list[Any] = [
    {"error": {"message": "said so", "type": "t", "param": None, "code": None}},
    {"error": {"message": "said so", "type": "BadRequestError", "param": None, "code": 400}},
    {"error": {"error": {"message": "said so"}}},
    {"error": "said so"},
    {"object": "error", "message": "said so", "type": "BadRequestError", "code": 400},
    {"type": "error", "error": {"type": "invalid_request_error", "message": "said so"}},
    [{"error": {"code": 400, "message": "said so", "status": "INVALID_ARGUMENT"}}],
    {"message": "said so"},
    {"detail": "said so"},
    "<html><body>\n said so </body></html>",
    "said so",
]


@pytest.mark.parametrize("pair", ALL, ids="".join)
@pytest.mark.parametrize("body", SHAPES, ids=range(len(SHAPES)))
def test_error_body_of_any_shape_gives_its_message(pair: tuple[str, str], body: Any) -> None:
    """Nested, flat, a list of one, a string, HTML: the provider's sentence reaches the record."""
    error = providers.get(*pair).read(400, body).error
    assert error is not None
    assert "said so" in error["message"]
    assert error["status_code"] == 400
    assert error["is_retryable"] is False
    assert error["type"] == "api_status"


@pytest.mark.parametrize("pair", ALL, ids="".join)
@pytest.mark.parametrize(
    "body", [None, "", b"", b"\xff\xfe", {}, [], [1, 2], 7, True, "<html></html>", {"id": "x"}, [{"a": 1}]]
)
def test_body_that_is_no_answer_under_a_good_status_is_an_http_error(pair: tuple[str, str], body: Any) -> None:
    """Nothing, HTML, a list, bytes that are no text: never an answer, never empty, and worth another try."""
    reading = providers.get(*pair).read(200, body)
    assert status_of(reading) is Status.HTTP_ERROR
    assert reading.error is not None
    assert reading.error["type"] == "parse_error"
    assert reading.error["is_retryable"] is True
    assert reading.error["message"].strip()


@pytest.mark.parametrize("pair", ALL, ids="".join)
@pytest.mark.parametrize(
    "status_code", [400, 401, 403, 404, 405, 408, 409, 413, 422, 425, 429, 500, 501, 503, 504, 529]
)
def test_http_status_decides_whether_to_send_again(pair: tuple[str, str], status_code: int) -> None:
    """408, 409, 429 and every 5xx may fare better; every other status is final for the row."""
    error = providers.get(*pair).read(status_code, "").error
    assert error is not None
    assert error["is_retryable"] is (status_code in {408, 409, 429} or status_code >= 500)
    assert status_of(Reading(error=error)) is Status.HTTP_ERROR


def test_redirect_is_an_error_that_names_the_way_out() -> None:
    """A redirect is not followed; the message says what to set."""
    error = providers.get("openai").read(302, "").error
    assert error is not None
    assert "base URL" in error["message"]
    assert error["is_retryable"] is False


def test_no_answer_at_all_is_a_network_error() -> None:
    """Without status and body there was no HTTP answer."""
    for pair in ALL:
        assert status_of(providers.get(*pair).read(None, None)) is Status.NETWORK_ERROR


@pytest.mark.parametrize(
    ("body", "status_code", "is_retryable"),
    [
        ({"error": {"message": "m", "code": 429}}, 429, True),
        ({"error": {"message": "m", "code": 503}}, 503, True),
        ({"error": {"message": "m", "code": 400}}, 400, False),
        ({"error": {"message": "m", "code": "429"}}, 429, True),
        ({"error": {"message": "m", "code": "rate_limit_exceeded"}}, 429, True),
        ({"error": {"message": "m", "code": "model_not_found"}}, 404, False),
        ({"error": {"message": "m", "type": "overloaded_error"}}, 529, True),
        ({"error": {"message": "m", "code": True}}, 200, False),
        ({"error": {"message": "m", "code": 7}}, 200, False),
        ({"error": "m"}, 200, False),
    ],
)
def test_error_under_status_200_is_judged_by_its_own_code(body: Any, status_code: int, is_retryable: bool) -> None:
    """The code inside decides, as the HTTP status would have; without one the error is final."""
    error = providers.get("compatible").read(200, body).error
    assert error is not None
    assert (error["status_code"], error["is_retryable"]) == (status_code, is_retryable)


@pytest.mark.parametrize("empty", [None, {}, "", " "])
def test_empty_error_field_beside_an_answer_is_none(empty: Any) -> None:
    """An error field that says nothing is no error."""
    body = {"choices": [{"message": {"content": "red"}, "finish_reason": "stop"}], "error": empty}
    assert status_of(providers.get("compatible").read(200, body)) is Status.OK


@pytest.mark.parametrize(
    ("status_code", "error"),
    [
        (400, {"message": "m", "code": "content_filter"}),
        (400, {"message": "m", "code": None, "innererror": {"code": "content_filter"}}),
        (400, {"message": "m", "code": "image_content_policy_violation"}),
        (403, {"message": "m", "code": 403, "metadata": {"reasons": ["x"], "flagged_input": "…"}}),
        (200, {"message": "m", "code": "content_filter"}),
    ],
)
def test_filter_under_an_error_status_is_a_refusal_and_ends_no_run(status_code: int, error: dict[str, Any]) -> None:
    """A filter is the provider's answer to this row alone; the error beside it is kept."""
    provider = providers.get("openai")
    reading = provider.read(status_code, {"error": error})
    assert status_of(reading) is Status.REFUSAL
    assert (reading.refusal, reading.ended) == ("m", Ended.FILTER)
    assert reading.error is not None
    assert reading.error["is_retryable"] is False
    assert provider.ends_run(status_code, {"error": error}) is None


# --- what ends the run ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("pair", ALL, ids="".join)
@pytest.mark.parametrize(
    ("status_code", "body", "ends"),
    [
        (401, {"error": {"message": "m"}}, True),
        (402, None, True),
        (403, "<html>", True),
        (404, {"error": {"message": "m", "code": "model_not_found"}}, True),
        (429, {"error": {"message": "m", "code": "insufficient_quota"}}, True),
        (429, {"error": {"message": "m", "type": "insufficient_quota", "code": None}}, True),
        (400, {"error": {"message": "m", "code": "billing_hard_limit_reached"}}, True),
        (429, {"error": {"message": "m", "details": {"error_code": "enforced_spend_limit_reached"}}}, True),
        (429, {"error": {"message": "m", "details": {"error_code": "contract_spend_limit_reached"}}}, True),
        (200, {"error": {"message": "m", "code": 401}}, True),
        (200, {"error": {"message": "m", "code": "insufficient_quota"}}, True),
        (429, {"error": {"message": "m", "code": "rate_limit_exceeded"}}, False),
        (400, {"error": {"message": "m", "code": "invalid_image"}}, False),
        (413, None, False),
        (500, {"error": {"message": "m"}}, False),
        (None, None, False),
        (200, {}, False),
        (200, "<html>", False),
    ],
)
def test_run_ends_on_key_access_model_and_money_alone(
    pair: tuple[str, str], status_code: int | None, body: Any, ends: bool
) -> None:
    """These no row can get around; anything else is the row's own trouble."""
    assert (providers.get(*pair).ends_run(status_code, body) is not None) is ends


OUT_OF_MONEY = [
    ("anthropic", 400, "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing."),
    ("anthropic", 400, "You have reached your specified API usage limits. You will regain access on 2026-12-01."),
    ("anthropic", 400, "You have reached your specified workspace API usage limits."),
    ("gemini", 429, "Your prepayment credits are depleted. Please go to AI Studio to manage your project and billing."),
    ("gemini", 429, "Your project has exceeded its monthly spending cap."),
    ("compatible", 429, "Your team has either used all available credits or reached its monthly spending limit."),
    ("compatible", 200, "Your team has either used all available credits or reached its monthly spending limit."),
    ("compatible", 429, "Insufficient balance or no resource package. Please recharge."),
]


@pytest.mark.parametrize(("name", "status_code", "message"), OUT_OF_MONEY)
def test_empty_account_told_in_words_alone_ends_the_run_and_leaves_the_row_open(
    name: str, status_code: int, message: str
) -> None:
    """The code is that of a bad request or a rate limit: only the words tell, and no row is settled by them."""
    kind = {400: "invalid_request_error", 429: "rate_limit_error"}.get(status_code)
    body = {"type": "error", "error": {"type": kind, "message": message}}
    provider = providers.get(name)
    reason = provider.ends_run(status_code, body)
    assert reason is not None
    assert message in reason
    error = provider.read(status_code, body).error
    assert error is not None
    assert error["is_retryable"] is True


def test_empty_account_in_a_batch_line_leaves_the_row_open() -> None:
    """Hours later in a result file the same holds: once someone has paid, the row may be sent again."""
    fault = {"type": "error", "error": {"type": "invalid_request_error", "message": OUT_OF_MONEY[0][2]}}
    provider = providers.get("anthropic")
    line = provider.read_batch_line({"custom_id": "a", "result": {"type": "errored", "error": fault}})
    error = provider.read(line.status_code, line.body).error
    assert error is not None
    assert (error["status_code"], error["is_retryable"]) == (400, True)


@pytest.mark.parametrize("code", ["billing_not_active", "exceeded_current_quota_error"])
def test_empty_account_told_by_a_code_ends_the_run(code: str) -> None:
    """Under a rate limit's status the code alone tells that waiting is no use."""
    assert providers.get("compatible").ends_run(429, {"error": {"message": "m", "type": code}}) is not None


@pytest.mark.parametrize(
    ("message", "ends"),
    [
        ("User location is not supported for the API use.", True),
        ("Gemini API free tier is not available in your country. Please enable billing on your project.", True),
        ("The File abc is not in an ACTIVE state and usage is not allowed.", False),
    ],
)
def test_gemini_country_that_is_not_served_ends_the_run(message: str, ends: bool) -> None:
    """A failed precondition is the account's trouble or that of one stored file: its sentence tells which."""
    body = {"error": {"code": 400, "message": message, "status": "FAILED_PRECONDITION"}}
    assert (providers.get("gemini").ends_run(400, body) is not None) is ends


def test_good_answer_ends_no_run() -> None:
    """An answer is no error."""
    assert providers.get("openai").ends_run(200, {"choices": [{"message": {"content": "red"}}]}) is None
    assert providers.get("gemini").ends_run(200, {"candidates": []}) is None


def quota(name: str, delay: str = "34.07s") -> dict[str, Any]:
    """Return a Gemini 429 about one quota."""
    details = [
        {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": name}]},
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay},
    ]
    return {"error": {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED", "details": details}}


def test_gemini_quota_of_the_day_ends_the_run_and_that_of_the_minute_does_not() -> None:
    """The quota's own name tells; only a help page instead of a delay means the same as a day's."""
    provider = providers.get("gemini")
    assert provider.ends_run(429, quota("GenerateRequestsPerMinutePerProjectPerModel")) is None
    assert provider.ends_run(429, quota("GenerateRequestsPerDayPerProjectPerModel-FreeTier")) is not None
    only_help = {"error": {"message": "m", "details": [{"@type": "type.googleapis.com/google.rpc.Help", "links": []}]}}
    assert provider.ends_run(429, only_help) is not None
    assert provider.ends_run(429, {"error": {"message": "m"}}) is None
    assert provider.ends_run(429, [quota("x-PerDay-y")]) is not None


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [
        ("34.074824224s", 34.074824224),
        ("40s", 40.0),
        ("0s", 0.0),
        ("-5s", None),
        ("soon", None),
        ("1m", None),
        ("", None),
    ],
)
def test_gemini_wait_is_read_from_the_body(delay: str, seconds: float | None) -> None:
    """RetryInfo is a decimal number with an s; anything else names no wait."""
    assert providers.get("gemini").retry_after_s(429, quota("x", delay)) == seconds


def test_wait_is_in_no_other_body() -> None:
    """The other providers name it in headers."""
    for pair in ALL:
        assert providers.get(*pair).retry_after_s(429, {"error": {"message": "m"}}) is None
        assert providers.get(*pair).retry_after_s(200, {}) is None


# --- lines of batch files ------------------------------------------------------------------------------------


def line_status(name: str, line: dict[str, Any]) -> tuple[str | None, Status, bool | None]:
    """Return the id, the status and whether to send again, of one line."""
    provider = providers.get(name)
    read = provider.read_batch_line(line)
    reading = Reading(error=read.error) if read.error else provider.read(read.status_code, read.body)
    return read.custom_id, status_of(reading), None if reading.error is None else reading.error["is_retryable"]


GOOD = {"choices": [{"message": {"content": "red"}, "finish_reason": "stop"}]}
FAILED = {"error": {"message": "m", "code": "x"}}


@pytest.mark.parametrize(
    ("name", "line", "expected"),
    [
        (
            "openai",
            {"custom_id": "a", "response": {"status_code": 200, "body": GOOD}, "error": None},
            ("a", "ok", None),
        ),
        ("openai", {"custom_id": "a", "response": {"status_code": 429, "body": FAILED}}, ("a", "http_error", True)),
        ("openai", {"custom_id": "a", "response": {"status_code": 500, "body": None}}, ("a", "http_error", True)),
        ("openai", {"custom_id": "a", "response": {"status_code": 400, "body": FAILED}}, ("a", "http_error", False)),
        (
            "openai",
            {"custom_id": "a", "response": None, "error": {"code": "batch_expired"}},
            ("a", "network_error", True),
        ),
        ("openai", {"custom_id": "a", "response": None, "error": "gone"}, ("a", "network_error", True)),
        ("openai", {"custom_id": "a"}, ("a", "network_error", True)),
        ("openai", {"custom_id": 7, "response": {"body": GOOD}}, (None, "ok", None)),
        ("openai", {"custom_id": "a", "response": {"status_code": 200, "body": None}}, ("a", "http_error", True)),
        (
            "vllm",
            {"custom_id": "a", "response": {"status_code": 400, "body": None}, "error": "x"},
            ("a", "http_error", False),
        ),
        (
            "vllm",
            {"custom_id": "a", "response": {"status_code": 400, "body": None}, "error": FAILED},
            ("a", "http_error", False),
        ),
        ("vllm", {"custom_id": "a", "response": {"body": None}, "error": FAILED}, ("a", "http_error", True)),
        ("anthropic", {"custom_id": "a", "result": {"type": "expired"}}, ("a", "network_error", True)),
        ("anthropic", {"custom_id": "a", "result": {"type": "canceled"}}, ("a", "network_error", True)),
        ("anthropic", {"custom_id": "a", "result": {"type": "something new"}}, ("a", "network_error", True)),
        ("anthropic", {"custom_id": "a"}, ("a", "network_error", True)),
        ("anthropic", {"custom_id": "a", "result": {"type": "errored", "error": {}}}, ("a", "http_error", True)),
        ("anthropic", {"custom_id": "a", "result": {"type": "succeeded", "message": None}}, ("a", "http_error", True)),
        ("gemini", {"key": "a", "error": {"code": 3, "message": "m"}}, ("a", "http_error", False)),
        ("gemini", {"key": "a", "error": {"code": 8, "message": "m"}}, ("a", "http_error", True)),
        ("gemini", {"key": "a", "error": {"code": 13, "message": "m"}}, ("a", "http_error", True)),
        ("gemini", {"key": "a", "error": {"code": 400, "message": "m"}}, ("a", "http_error", False)),
        ("gemini", {"key": "a", "error": {"code": 77, "message": "m"}}, ("a", "http_error", True)),
        ("gemini", {"key": "a", "error": "m"}, ("a", "http_error", True)),
        ("gemini", {"key": "a"}, ("a", "network_error", True)),
        ("gemini", {"response": {"candidates": []}}, (None, "empty", None)),
        ("gemini", {"metadata": {"key": "a"}, "response": {"candidates": []}}, ("a", "empty", None)),
    ],
)
def test_batch_line_says_whose_it_is_and_what_became_of_it(
    name: str, line: dict[str, Any], expected: tuple[str | None, str, bool | None]
) -> None:
    """The id, the status and whether to send again, whatever the line looks like."""
    assert line_status(name, line) == expected


def test_batch_line_that_never_ran_says_why() -> None:
    """The reason names expiry or cancellation."""
    provider = providers.get("openai")
    line = provider.read_batch_line(
        {"custom_id": "a", "response": None, "error": {"code": "batch_expired", "message": "late"}}
    )
    assert line.error is not None
    verdict = classify(Reading(error=line.error), Asked())
    assert verdict.reason == "batch_expired: late"


# --- nothing that a server may send makes an adapter raise ---------------------------------------------------

SAMPLES = [
    json.loads(path.read_text())["payload"] for path in sorted((Path(__file__).parents[1] / "data/wire").iterdir())
]
leaves = st.none() | st.booleans() | st.integers(-5, 700) | st.floats(allow_nan=False) | st.text(max_size=8)
trees = st.recursive(leaves, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=3), v), max_leaves=5)
statuses = st.none() | st.sampled_from([200, 200, 200, 400, 403, 429, 500]) | st.integers(100, 599)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value inside a value."""
    yield at
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, (*at, key))


def replaced(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    """Return a value with the one at a path replaced."""
    if not at:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[at[0]] = replaced(value[at[0]], at[1:], new)
    return copy


@st.composite
def damaged(draw: st.DrawFn) -> Any:
    """Draw a recorded answer in which one or two values are something else."""
    value = draw(st.sampled_from(SAMPLES))
    for _ in range(draw(st.integers(0, 2))):
        value = replaced(value, draw(st.sampled_from(list(places(value)))), draw(trees))
    return value


@settings(max_examples=500)
@given(st.sampled_from(ALL), statuses, damaged() | trees | st.binary(max_size=8))
def test_adapter_reads_any_body_without_raising(pair: tuple[str, str], status_code: int | None, body: Any) -> None:
    """Whatever comes, there is one status; an HTTP error is never an answer, and a failure has a cause and no text."""
    provider = providers.get(*pair)
    reading = provider.read(status_code, body)
    verdict = classify(reading, Asked(json=True))
    assert verdict.status is not Status.MISSING
    if status_code is not None and not 200 <= status_code <= 299:
        assert verdict.status in {Status.HTTP_ERROR, Status.REFUSAL}
    if verdict.status in {Status.HTTP_ERROR, Status.NETWORK_ERROR}:
        assert reading.error is not None
        assert reading.text is None
    jsonl.dumps([reading.usage, reading.text, reading.reasoning, reading.refusal, reading.error, reading.notes])
    provider.ends_run(status_code, body)
    provider.retry_after_s(status_code, body)
    provider.read_models(body)
    if isinstance(body, dict):
        provider.max_tokens(body)


@settings(max_examples=300)
@given(st.sampled_from(ALL), damaged())
def test_adapter_reads_any_batch_line_without_raising(pair: tuple[str, str], line: Any) -> None:
    """Any object of a results file gives an id or none, and something to judge."""
    if not isinstance(line, dict):
        return
    provider = providers.get(*pair)
    read = provider.read_batch_line(line)
    reading = Reading(error=read.error) if read.error else provider.read(read.status_code, read.body)
    assert read.custom_id is None or isinstance(read.custom_id, str)
    assert classify(reading, Asked()).status is not Status.MISSING


def test_adapter_reads_deeply_nested_bodies_without_raising() -> None:
    """Nesting that a server could send to bring a reader down does no harm."""
    deep: Any = "x"
    for _ in range(900):
        deep = [deep]
    wide: Any = {"message": "m"}
    for _ in range(900):
        wide = {"error": wide}
    for pair in ALL:
        provider = providers.get(*pair)
        provider.read(
            200, {"choices": [{"message": {"content": deep}}], "content": deep, "output": deep, "candidates": deep}
        )
        provider.read(400, wide)
        provider.read(200, wide)


# --- thoughts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "text", "reasoning"),
    [
        ("<think>a</think>b", "b", "a"),
        ("\n<think>\na\n</think>\n\nb", "b", "a"),
        ("a</think>\nb", "b", "a"),
        ("<think>a", None, "a"),
        ("<think>\n\n</think>\n\n", None, None),
        ("<think>a</think>\n<think>c</think>b", "b", "a\nc"),
        ("<think></think><think>c", None, "c"),
        ("a</think>b</think>", "b</think>", "a"),
        ("◁think▷a◁/think▷b", "b", "a"),
        ("◁think▷a", None, "a"),
        ("b", "b", None),
        ("see <think>a</think>", "see <think>a</think>", None),
        ("<thinking>a</thinking>b", "<thinking>a</thinking>b", None),
    ],
)
def test_thought_at_the_start_of_a_chat_answer_is_kept_apart(
    content: str, text: str | None, reasoning: str | None
) -> None:
    """A server without a reasoning parser leaves the thought in the content; text and reasoning never mix."""
    body = {"choices": [{"message": {"content": content}, "finish_reason": "stop"}]}
    reading = providers.get("vllm").read(200, body)
    assert (reading.text, reading.reasoning) == (text, reasoning)


@given(st.text(), st.text())
def test_thought_law_block_and_answer_come_apart_whole(thought: str, answer: str) -> None:
    """For any thought and answer, a block at the start gives back both, and the answer holds none of the thought."""
    if "</think>" in thought or "</think>" in answer or answer.lstrip().startswith(("<think>", "◁think▷")):
        return
    body = {"choices": [{"message": {"content": f"<think>{thought}</think>{answer}"}, "finish_reason": "stop"}]}
    reading = providers.get("vllm").read(200, body)
    assert (reading.text or "") == (answer.lstrip() if answer.strip() else "")
    assert (reading.reasoning or "") == thought.strip()
