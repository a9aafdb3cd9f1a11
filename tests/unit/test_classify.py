"""The nine statuses: a truth table in the order of the rules, and the laws that hold for any answer."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmbatch import jsonl
from vlmbatch.classify import MAX_DEPTH, classify, rank, schema_problem
from vlmbatch.records import MODEL_ANSWERS, Asked, Ended, ErrorInfo, Reading, Status, Usage, no_usage

CAP = 64
HTTP: ErrorInfo = {"type": "api_status", "code": "x", "message": "said so", "status_code": 400, "is_retryable": False}
NETWORK: ErrorInfo = {"type": "connection", "message": "no answer", "status_code": None, "is_retryable": True}
SCHEMA = {"type": "object", "properties": {"label": {"type": "string"}}, "required": ["label"]}


def spent(tokens: int | None) -> Usage:
    """Return a usage of which only the output is known."""
    usage = no_usage()
    usage["output_tokens"] = tokens
    return usage


TABLE = [
    # error code
    (Reading(error=NETWORK), Asked(), Status.NETWORK_ERROR),
    (Reading(error=HTTP), Asked(), Status.HTTP_ERROR),
    (Reading(error=HTTP, text="all the same", ended=Ended.CAP), Asked(), Status.HTTP_ERROR),
    (Reading(error=HTTP, refusal="filtered", ended=Ended.FILTER), Asked(), Status.REFUSAL),
    # finish reason, and refusal fields
    (Reading(refusal="no"), Asked(), Status.REFUSAL),
    (Reading(refusal="no", text="Here is", ended=Ended.STOP), Asked(), Status.REFUSAL),
    (Reading(refusal="no", ended=Ended.CAP), Asked(), Status.REFUSAL),
    (Reading(ended=Ended.FILTER), Asked(), Status.REFUSAL),
    (Reading(ended=Ended.FILTER, text="Here is"), Asked(), Status.REFUSAL),
    (Reading(ended=Ended.ERROR, text="a red"), Asked(), Status.HTTP_ERROR),
    (Reading(ended=Ended.CAP, text="a red"), Asked(), Status.TRUNCATED),
    (Reading(ended=Ended.CAP, text='{"label": "a"}'), Asked(json=True), Status.TRUNCATED),
    (Reading(ended=Ended.CAP), Asked(), Status.EMPTY_AT_CAP),
    (Reading(ended=Ended.CAP, text=" \n"), Asked(), Status.EMPTY_AT_CAP),
    # tokens against the limit
    (Reading(text="a red", usage=spent(CAP)), Asked(CAP), Status.TRUNCATED),
    (Reading(text="a red", usage=spent(CAP + 1)), Asked(CAP), Status.TRUNCATED),
    (Reading(text="a red", usage=spent(CAP - 1)), Asked(CAP), Status.OK),
    (Reading(text="a red", usage=spent(None)), Asked(CAP), Status.OK),
    (Reading(text="a red", usage=spent(CAP)), Asked(None), Status.OK),
    (Reading(usage=spent(CAP)), Asked(CAP), Status.EMPTY_AT_CAP),
    (Reading(usage=spent(CAP), ended=Ended.TOOL), Asked(CAP), Status.EMPTY_AT_CAP),
    # text
    (Reading(), Asked(CAP), Status.EMPTY),
    (Reading(text=""), Asked(), Status.EMPTY),
    (Reading(text="\n\t "), Asked(json=True), Status.EMPTY),
    (Reading(ended=Ended.TOOL, finish_reason="tool_calls"), Asked(), Status.EMPTY),
    (Reading(reasoning="left is red"), Asked(), Status.EMPTY),
    (Reading(text="a red square"), Asked(), Status.OK),
    (Reading(text="{}", ended=Ended.TOOL), Asked(), Status.OK),
    (Reading(text="I'm sorry, I can't."), Asked(), Status.OK),
    # JSON
    (Reading(text="a red square"), Asked(json=True), Status.INVALID_JSON),
    (Reading(text='{"label": "a"}'), Asked(json=True), Status.OK),
    (Reading(text='{"label": 1}'), Asked(json=True, schema=SCHEMA), Status.INVALID_JSON),
    (Reading(text='{"label": "a"}'), Asked(json=True, schema=SCHEMA), Status.OK),
    (Reading(text='{"label": 1}'), Asked(schema=SCHEMA), Status.INVALID_JSON),
    (Reading(text="7"), Asked(json=True), Status.OK),
    (Reading(text="7"), Asked(json=True, schema=SCHEMA), Status.INVALID_JSON),
]


@pytest.mark.parametrize(("reading", "asked", "status"), TABLE)
def test_classify_by_the_truth_table(reading: Reading, asked: Asked, status: Status) -> None:
    """Each row gets its one status."""
    assert classify(reading, asked).status is status


def test_classify_every_combination_follows_the_order_of_causes() -> None:
    """Over all combinations of what can be said, the first cause in the stated order decides."""
    errors, refusals = (None, HTTP, NETWORK), (None, "no")
    texts = (None, "", " ", "words", '{"a": 1}', '{"a": 1')
    for error, refusal, ended, tokens, text, wants in itertools.product(
        errors, refusals, Ended, (None, CAP - 1, CAP), texts, (False, True)
    ):
        reading = Reading(text=text, refusal=refusal, ended=ended, usage=spent(tokens), error=error)
        got = classify(reading, Asked(CAP, json=wants)).status
        has_text = text is not None and bool(text.strip())
        if error is not None and refusal is None:
            expected = Status.NETWORK_ERROR if error["status_code"] is None else Status.HTTP_ERROR
        elif refusal is not None or ended is Ended.FILTER:
            expected = Status.REFUSAL
        elif ended is Ended.ERROR:
            expected = Status.HTTP_ERROR
        elif ended is Ended.CAP or tokens == CAP:
            expected = Status.TRUNCATED if has_text else Status.EMPTY_AT_CAP
        elif not has_text:
            expected = Status.EMPTY
        elif wants and text != '{"a": 1}':
            expected = Status.INVALID_JSON
        else:
            expected = Status.OK
        assert got is expected, (error, refusal, ended, tokens, text, wants)


# --- JSON ----------------------------------------------------------------------------------------------------

GOOD_JSON = [
    ('{"a": 1}', {"a": 1}, ()),
    (' \r\n\t{"a": 1}\n', {"a": 1}, ()),
    ("null", None, ()),
    ('```json\n{"a": 1}\n```', {"a": 1}, ("code_fence",)),
    ('```\n{"a": 1}\n```\n', {"a": 1}, ("code_fence",)),
    ('```JSON5\r\n{"a": 1}\r\n```', {"a": 1}, ("code_fence",)),
    ('```json {"a": 1}```', {"a": 1}, ("code_fence",)),
    ('```{"a": 1}```', {"a": 1}, ("code_fence",)),
    ('{"fence": "```"}', {"fence": "```"}, ()),
    ('```json\n{"fence": "```"}\n```', {"fence": "```"}, ("code_fence",)),
    ('{"a": 1, "a": 2}', {"a": 2}, ("duplicate_keys",)),
    ("123456789012345678901234567890", 123456789012345678901234567890, ()),
    ('"\\ud800"', "\ud800", ()),
    ("[" * MAX_DEPTH + "]" * MAX_DEPTH, None, ()),
]


@pytest.mark.parametrize(("text", "value", "notes"), GOOD_JSON)
def test_json_answer_is_parsed_whole(text: str, value: object, notes: tuple[str, ...]) -> None:
    """The whole answer is one JSON value; a fence around all of it and doubled keys are noted."""
    verdict = classify(Reading(text=text), Asked(json=True))
    assert verdict.status is Status.OK
    assert verdict.notes == notes
    if "[" * 9 not in text:
        assert verdict.json == value
    assert json.loads(jsonl.dumps(verdict.json)) == verdict.json


BAD_JSON = [
    '{"a": 1}\n\nI hope this helps!',
    'Sure: {"a": 1}',
    '{"a": 1}\n{"a": 1}',
    '```json\n{"a": 1}\n```\n```json\n{"a": 1}\n```',
    '```json\n{"a": 1}',
    "```json\n```",
    "```",
    "``````",
    '{"a": NaN}',
    '{"a": Infinity}',
    '{"a": -Infinity}',
    "1e999",
    '{"a": 1,}',
    "{'a': 1}",
    '\ufeff{"a": 1}',
    "\u00a07",
    "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
    "[" * 100_000 + "]" * 100_000,
    "1" * 5000,
    '{"a": "raw \x01 control"}',
]


@pytest.mark.parametrize("text", BAD_JSON, ids=range(len(BAD_JSON)))
def test_json_answer_with_anything_else_is_invalid(text: str) -> None:
    """Nothing is cut out and called ok, nothing is read that a strict JSON file could not hold."""
    verdict = classify(Reading(text=text), Asked(json=True))
    assert verdict.status is Status.INVALID_JSON
    assert verdict.json is None
    assert verdict.reason


def test_json_answer_that_breaks_the_schema_names_the_place() -> None:
    """The reason says where and what, and the value is not offered as an answer."""
    verdict = classify(Reading(text='{"label": 1}'), Asked(json=True, schema=SCHEMA))
    assert verdict.status is Status.INVALID_JSON
    assert verdict.reason is not None
    assert "$.label" in verdict.reason
    assert verdict.json is None


def test_json_schema_with_recursion_and_references_is_applied() -> None:
    """References inside the schema are followed."""
    schema = {"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}
    assert schema_problem(schema) is None
    assert classify(Reading(text="[[],[[]]]"), Asked(json=True, schema=schema)).status is Status.OK
    assert classify(Reading(text="[[],[1]]"), Asked(json=True, schema=schema)).status is Status.INVALID_JSON


@pytest.mark.parametrize(
    ("schema", "part"),
    [
        ({"type": "no such type"}, "$.type"),
        ({"properties": {"a": {"$ref": "#/$defs/none"}}}, "#/$defs/none"),
        ({"$ref": "#"}, "back to itself"),
        ({"$ref": "https://example.org/schema"}, "only references inside"),
        ({"pattern": "["}, "$.pattern"),
    ],
)
def test_json_schema_that_cannot_be_used_is_told(schema: dict[str, object], part: str) -> None:
    """A broken schema is found before anything is paid, and never fetched from anywhere."""
    problem = schema_problem(schema)
    assert problem is not None
    assert part in problem
    assert classify(Reading(text="{}"), Asked(json=True, schema=schema)).status is Status.INVALID_JSON


# --- laws ----------------------------------------------------------------------------------------------------

usages = st.builds(spent, st.none() | st.integers(0, 200))
errors = st.none() | st.sampled_from([HTTP, NETWORK])
readings = st.builds(
    Reading,
    text=st.none() | st.text(max_size=20) | st.sampled_from(["", " ", "{}", "[1", '```json\n{"a":1}\n```']),
    reasoning=st.none() | st.text(max_size=5),
    refusal=st.none() | st.just("no"),
    ended=st.sampled_from(list(Ended)),
    finish_reason=st.none() | st.text(max_size=5),
    usage=usages,
    image_tokens=st.none(),
    model=st.none(),
    system_fingerprint=st.none(),
    error=errors,
    notes=st.just(()),
)
askeds = st.builds(
    Asked, max_tokens=st.none() | st.integers(1, 200), json=st.booleans(), schema=st.none() | st.just(SCHEMA)
)


@given(readings, askeds)
def test_classify_gives_one_status_and_the_same_each_time(reading: Reading, asked: Asked) -> None:
    """Any answer has one status, never missing; the rule is a function; only what is not ok has a cause."""
    verdict = classify(reading, asked)
    assert isinstance(verdict.status, Status)
    assert verdict.status is not Status.MISSING
    assert verdict == classify(reading, asked)
    assert verdict.json is None or verdict.status is Status.OK
    assert verdict.status is not Status.OK or verdict.reason is None


@given(readings, askeds)
def test_classify_ok_always_has_text_below_the_limit(reading: Reading, asked: Asked) -> None:
    """Nothing that is blank, refused, failed, or at the limit ever counts as ok."""
    if classify(reading, asked).status is not Status.OK:
        return
    assert reading.text is not None
    assert reading.text.strip()
    assert reading.error is None
    assert reading.refusal is None
    assert reading.ended in {Ended.STOP, Ended.TOOL}
    output = reading.usage["output_tokens"]
    assert asked.max_tokens is None or output is None or output < asked.max_tokens


@given(readings, askeds, st.text(max_size=20))
def test_classify_reads_no_reasoning(reading: Reading, asked: Asked, thought: str) -> None:
    """Thinking text changes no status: it is never taken for the answer."""
    other = Reading(
        text=reading.text,
        reasoning=thought,
        refusal=reading.refusal,
        ended=reading.ended,
        finish_reason=reading.finish_reason,
        usage=reading.usage,
        error=reading.error,
    )
    assert classify(other, asked) == classify(reading, asked)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v)
    )
)
def test_classify_keeps_any_json_value_exactly(value: object) -> None:
    """What the model wrote as JSON comes back as that value, fenced or not."""
    text = json.dumps(value)
    for shown in (text, f"```json\n{text}\n```"):
        verdict = classify(Reading(text=shown), Asked(json=True))
        assert verdict.status is Status.OK
        assert verdict.json == value


# --- the overlay's ranks -------------------------------------------------------------------------------------


def test_rank_puts_ok_over_answers_over_failures() -> None:
    """An ok is never displaced, an answer of the model never by a failure."""
    ok, failed = rank(Status.OK), rank(Status.HTTP_ERROR)
    assert all(ok > rank(status) > failed for status in MODEL_ANSWERS if status is not Status.OK)
    assert failed == rank(Status.NETWORK_ERROR) > rank(Status.MISSING)
    assert {status: rank(status) for status in Status}.keys() == set(Status)
