"""Results files of either kind read into one shape; what resume takes as done; the order of files."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.stages.result_runs import attempt, completion, make_run, write_results
from vlmbatch import jsonl, providers
from vlmbatch.attempts import (
    Origins,
    Reader,
    asked,
    is_settled,
    iter_settled,
    judge,
    order_files,
    parse_time,
    relative_name,
)
from vlmbatch.errors import InputError, SchemaVersionError
from vlmbatch.records import BATCH_SCHEMA, Asked, Status

if TYPE_CHECKING:
    from vlmbatch.rundir import RunDir

OPENAI = providers.get("openai")
NOTHING = Asked()


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return make_run(tmp_path / "run", 3)


def _read(run: RunDir, *values: Any, name: str = "full.jsonl") -> Reader:
    return Reader(write_results(run, name, values), run, OPENAI)


# --- one shape -----------------------------------------------------------------------------------------------


def test_reader_own_attempt_gives_every_field(run: RunDir) -> None:
    """Nothing that an attempt says is lost on the way into the one shape."""
    value = attempt(run, 1, completion("hi"), direct=True, rehearsal=True, final=False)
    (outcome,) = _read(run, value)
    assert outcome.custom_id == value["custom_id"]
    assert outcome.line_sha256 == value["line_sha256"]
    assert (outcome.status_code, outcome.body, outcome.error) == (200, value["response"], None)
    assert (outcome.started_at, outcome.latency_s, outcome.channel) == ("2026-01-01T00:00:00Z", 1.5, "realtime")
    assert (outcome.endpoint, outcome.request_id) == ("http://127.0.0.1/v1", "r")
    assert outcome.tries == value["tries"]
    assert (outcome.rehearsal, outcome.is_final, outcome.is_direct) == (True, False, True)
    assert (outcome.file, outcome.line) == ("results/full.jsonl", 1)


def test_reader_raw_batch_line_has_no_hash_and_is_batch(run: RunDir) -> None:
    """A provider's own line becomes the same shape; what it does not tell is None."""
    line = {
        "custom_id": "x",
        "response": {"status_code": 200, "request_id": "q", "body": completion("a")},
        "error": None,
    }
    (outcome,) = _read(run, line, name="batch-b.output.jsonl")
    assert (outcome.custom_id, outcome.line_sha256, outcome.channel) == ("x", None, "batch")
    assert (outcome.started_at, outcome.latency_s, outcome.is_direct) == (None, None, None)
    assert outcome.request_id == "q"
    assert judge(outcome, OPENAI, NOTHING)[1].status is Status.OK


def test_reader_line_of_a_plain_runner_keeps_its_latency(run: RunDir) -> None:
    """A results line in the OpenAI batch shape with attempts and latency_s is read as it is."""
    line = {
        "custom_id": "x",
        "attempts": 2,
        "latency_s": 3.25,
        "response": {"status_code": 200, "body": completion("a")},
    }
    (outcome,) = _read(run, line)
    assert outcome.latency_s == 3.25


@pytest.mark.parametrize(
    ("more", "body"),
    [
        ({"response_text": "<html>"}, "<html>"),
        ({"response_base64": base64.b64encode(b"\xff\xfe").decode()}, b"\xff\xfe"),
        ({"response_base64": "@"}, b""),
        ({}, None),
    ],
)
def test_reader_answer_that_is_no_json_keeps_its_form(run: RunDir, more: dict[str, Any], body: Any) -> None:
    """Text stays text, bytes stay bytes, nothing stays nothing."""
    value = {k: v for k, v in attempt(run, 0, {}).items() if k != "response"}
    (outcome,) = _read(run, value | more)
    assert outcome.body == body


@pytest.mark.parametrize("body", [{"response_text": "<html>"}, {}])
def test_judge_no_json_under_200_is_http_error(run: RunDir, body: dict[str, str]) -> None:
    """A web page or nothing under a good status is no answer of the model."""
    value = {k: v for k, v in attempt(run, 0, {}).items() if k != "response"}
    (outcome,) = _read(run, value | body)
    assert judge(outcome, OPENAI, NOTHING)[1].status is Status.HTTP_ERROR


def test_judge_broken_connection_keeps_the_senders_words(run: RunDir) -> None:
    """Where no body came, the error that the sender wrote down is the reading's."""
    (outcome,) = _read(run, attempt(run, 0))
    reading, verdict = judge(outcome, OPENAI, NOTHING)
    assert verdict.status is Status.NETWORK_ERROR
    assert reading.error is not None
    assert reading.error["message"] == "refused"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("boom", {"type": "unknown", "message": "boom", "status_code": None, "is_retryable": False}),
        ({"type": "connect"}, {"type": "connect", "message": "", "status_code": None, "is_retryable": False}),
        (
            {"type": "connection", "code": "tls", "message": "m", "status_code": None, "is_retryable": True},
            {"type": "connection", "code": "tls", "message": "m", "status_code": None, "is_retryable": True},
        ),
    ],
)
def test_reader_error_of_any_writer_is_completed(run: RunDir, error: Any, expected: dict[str, Any]) -> None:
    """Every error has all its keys, and an unknown type stays what it is."""
    (outcome,) = _read(run, attempt(run, 0, error=error))
    assert outcome.error == expected


# --- damage and strangers ------------------------------------------------------------------------------------


def test_reader_damaged_lines_are_counted_and_passed_over(run: RunDir) -> None:
    """Half lines, other JSON and lines without an id are counted; blank ones are not."""
    good = jsonl.dumps(attempt(run, 0, completion("a")))
    reader = _read(run, good + b"\n", b"\n", b"null\n[]\n{}\n", good[:-5] + b"\n", b'{"custom_id":7}\n', good[:40])
    assert len(list(reader)) == 1
    assert (reader.torn, reader.lines) == (6, 1)


def test_reader_torn_tail_at_every_byte_costs_that_line_alone(run: RunDir) -> None:
    """A crash may cut the last line anywhere: what stood before is read, and the tail is never half an answer."""
    whole = jsonl.dumps(attempt(run, 0, completion("a"))) + b"\n"
    last = jsonl.dumps(attempt(run, 1, completion("b")))
    for cut in range(len(last)):
        reader = _read(run, whole + last[:cut])
        assert [outcome.line for outcome in reader] == [1], cut
        assert reader.torn == (cut > 0)
    assert len(list(_read(run, whole + last))) == 2


def test_reader_lone_surrogate_escape_is_no_damage(run: RunDir) -> None:
    """A model's half of a character pair is kept, not counted as a torn line."""
    line = jsonl.dumps(attempt(run, 0, completion("MARK"))).replace(b"MARK", b"\\ud83d")
    reader = _read(run, line + b"\n")
    (outcome,) = reader
    assert judge(outcome, OPENAI, NOTHING)[0].text == "\ud83d"
    assert reader.torn == 0


def test_reader_newer_schema_with_known_fields_is_read(run: RunDir) -> None:
    """A later version's line is read as long as what is read of it stands where it stood."""
    (outcome,) = _read(run, attempt(run, 0, completion("a"), schema="vlmbatch.attempt/9", more=1))
    assert outcome.status_code == 200


def test_reader_newer_schema_of_other_shape_is_refused(run: RunDir) -> None:
    """A later version's line whose shape changed is refused, not guessed at."""
    with pytest.raises(SchemaVersionError):
        list(_read(run, {"schema": "vlmbatch.attempt/2", "id": "x", "outcome": []}))


def test_reader_other_schema_is_refused(run: RunDir) -> None:
    """A file of ours of another kind is no results file."""
    with pytest.raises(InputError):
        list(_read(run, {"schema": "vlmbatch.batch/1", "event": "seen"}))


def test_reader_merged_records_are_refused(run: RunDir) -> None:
    """What collect wrote is not read back as results."""
    with pytest.raises(InputError, match="records, not results"):
        list(_read(run, {"custom_id": "x", "status": "ok", "superseded": []}))


def test_relative_name_outside_the_folder_is_the_base_name(run: RunDir, tmp_path: Path) -> None:
    """Records never hold an absolute path."""
    assert relative_name(run.file("results/a.jsonl"), run) == "results/a.jsonl"
    assert relative_name(str(tmp_path / "else" / "b.jsonl"), run) == "b.jsonl"


# --- what was asked ------------------------------------------------------------------------------------------


def test_asked_plain_run_has_the_frozen_limit(run: RunDir) -> None:
    """The limit comes from the frozen params, whatever their spelling."""
    assert asked(run, OPENAI) == Asked(max_tokens=64)


def test_asked_output_of_a_pipeline_has_its_own_form(tmp_path: Path) -> None:
    """Each output's JSON and schema are its own."""
    schema = {"type": "object"}
    answer = {"json": False, "outputs": {"a": {"json": True, "schema": schema}, "b": {"json": False, "schema": None}}}
    run = make_run(tmp_path / "run", [b'{"n":1}'], outputs=("a", "b"), answer=answer)
    assert asked(run, OPENAI, "a") == Asked(max_tokens=64, json=True, schema=schema)
    assert asked(run, OPENAI, "b") == Asked(max_tokens=64)


def test_asked_of_an_output_without_params_is_nothing(tmp_path: Path) -> None:
    """An output that asks for nothing of its own asks for nothing: the run's params are another output's."""
    run = make_run(tmp_path / "run", [b'{"n":1}'], outputs=("a", "b"))
    run.info["request"]["params"] = {"max_tokens": 64}
    run.info["request"]["outputs"] = {"a": {"max_tokens": 7}, "b": {}}
    assert [asked(run, OPENAI, name).max_tokens for name in ("a", "b", "c")] == [7, None, 64]


# --- what needs no sending any more --------------------------------------------------------------------------


def _filter_400() -> dict[str, Any]:
    return {"error": {"message": "filtered", "type": None, "code": "content_filter"}}


@pytest.mark.parametrize(
    ("response", "more", "settled"),
    [
        (completion("a"), {}, True),
        (completion(""), {}, True),
        (completion(None, finish="length"), {}, True),
        ({"choices": []}, {}, True),
        (_filter_400(), {"status_code": 400}, True),
        ({"error": {"message": "bad image", "code": "invalid_image"}}, {"status_code": 400}, True),
        ({"error": {"message": "no key"}}, {"status_code": 401, "final": False}, False),
        ({"error": {"message": "busy"}}, {"status_code": 500}, False),
        ({"error": {"message": "slow", "code": 429}}, {"status_code": 429}, False),
        (None, {}, False),
        (None, {"error": {"type": "config", "message": "m", "status_code": None, "is_retryable": False}}, True),
    ],
)
@pytest.mark.parametrize("has_schema", [True, False])
def test_settled_by_word_and_by_judgement_agree(
    run: RunDir, response: Any, more: dict[str, Any], settled: bool, has_schema: bool
) -> None:
    """The cheap path over lines of ours says what reading the answer says; foreign lines are read."""
    value = attempt(run, 0, response) | more
    reading = OPENAI.read(value["status_code"], response)
    if has_schema and reading.error is not None and response is not None:
        value["error"] = reading.error
    if not has_schema:
        del value["schema"]
    path = write_results(run, "full.jsonl", [value])
    (cheap,) = iter_settled(path, run, OPENAI)
    (outcome,) = Reader(path, run, OPENAI)
    reading, verdict = judge(outcome, OPENAI, NOTHING)
    assert cheap.is_settled is is_settled(verdict, reading, outcome) is settled
    assert cheap.custom_id == value["custom_id"]


def test_settled_error_under_200_by_an_older_writer_is_not_settled(run: RunDir) -> None:
    """A line without our schema is judged by its answer, although it says error null."""
    value = attempt(run, 0, {"error": {"message": "busy", "code": 429}})
    del value["schema"]
    (one,) = iter_settled(write_results(run, "a.jsonl", [value]), run, OPENAI)
    assert not one.is_settled


def test_settled_rehearsals_and_torn_lines_settle_nothing(run: RunDir) -> None:
    """An answer that no model gave, or half an answer, leaves the row open."""
    whole = jsonl.dumps(attempt(run, 0, completion("a"), rehearsal=True))
    glued = jsonl.dumps(attempt(run, 1, completion("a")))
    path = write_results(run, "a.jsonl", [whole + b"\n", glued[:60] + glued + b"\n"])
    assert list(iter_settled(path, run, OPENAI)) == []


@pytest.mark.parametrize("damage", [{"custom_id": 7}, {"line_sha256": None}])
def test_settled_line_that_collect_calls_damaged_settles_nothing(run: RunDir, damage: dict[str, Any]) -> None:
    """What names no request of anybody's is passed over by both, not taken for a stranger's by one of them."""
    path = write_results(run, "a.jsonl", [attempt(run, 0, completion("a")) | damage])
    assert list(iter_settled(path, run, OPENAI)) == []
    assert list(Reader(path, run, OPENAI)) == []


def test_settled_raw_batch_file_counts_answers(run: RunDir) -> None:
    """What a provider's batch answered is not asked again; what expired is."""
    lines = [
        {"custom_id": "a", "response": {"status_code": 200, "body": completion("x")}, "error": None},
        {"custom_id": "b", "response": None, "error": {"code": "batch_expired", "message": "m"}},
    ]
    path = write_results(run, "batch-b.output.jsonl", lines)
    assert {one.custom_id: one.is_settled for one in iter_settled(path, run, OPENAI)} == {"a": True, "b": False}


# --- order of files ------------------------------------------------------------------------------------------


def test_order_files_is_by_first_time_not_by_name(run: RunDir) -> None:
    """Names do not decide; a torn first line is passed over; files without times come last as listed."""
    late = write_results(run, "a.jsonl", [b'{"torn\n', attempt(run, 0, completion("a"), at=5)])
    early = write_results(run, "b.jsonl", [attempt(run, 0, completion("a"), at=1)])
    raw = write_results(run, "c.jsonl", [{"custom_id": "x", "response": None, "error": None}])
    empty = write_results(run, "d.jsonl", [])
    for listed in ([late, early, raw, empty], [empty, raw, late, early]):
        rest = [path for path in listed if path in {raw, empty}]
        assert order_files(listed, Origins(())) == [early, late, *rest]


def test_order_files_takes_times_as_times(run: RunDir) -> None:
    """Fractions of a second and other zones are compared as times, not as text."""
    half = write_results(run, "a.jsonl", [attempt(run, 0, {}, started_at="2026-01-01T00:00:00.5Z")])
    whole = write_results(run, "b.jsonl", [attempt(run, 0, {}, started_at="2026-01-01T00:00:00Z")])
    zone = write_results(run, "c.jsonl", [attempt(run, 0, {}, started_at="2026-01-01T00:59:00+01:00")])
    assert order_files([half, whole, zone], Origins(())) == [zone, whole, half]


def _origins(run: RunDir, events: list[dict[str, Any]]) -> Origins:
    lines = b"".join(jsonl.dumps({"schema": BATCH_SCHEMA, **event}) + b"\n" for event in events)
    Path(run.file("batches.jsonl")).write_bytes(lines + b'{"torn')
    return Origins.load(run)


def test_order_files_raw_file_stands_where_its_job_began(run: RunDir) -> None:
    """A raw file has the time of its job's submission, known by name or, renamed, by length and hash."""
    raw = write_results(run, "batch-b7.output.jsonl", [{"custom_id": "x", "response": None, "error": None}])
    sha256, size = jsonl.sha256_file(raw)
    before = write_results(run, "a.jsonl", [attempt(run, 0, completion("a"), at=1)])
    after = write_results(run, "b.jsonl", [attempt(run, 0, completion("a"), at=9)])
    origins = _origins(
        run,
        [
            {
                "event": "intent",
                "job": "k",
                "at": "2026-01-01T00:02:00Z",
                "shard": "shards/00000.jsonl",
                "sha256": "s",
                "requests": 4,
            },
            {"event": "submitted", "job": "k", "at": "2026-01-01T00:03:00Z", "batch_id": "b7"},
            {"event": "seen", "job": "k", "at": "2026-01-01T00:20:00Z", "batch_id": "b7"},
            {
                "event": "downloaded",
                "job": "k",
                "at": "2026-01-01T00:30:00Z",
                "batch_id": "b7",
                "files": [{"file": "results/batch-b7.output.jsonl", "sha256": sha256, "bytes": size}],
            },
        ],
    )
    assert order_files([after, raw, before], origins) == [before, raw, after]
    renamed = os.path.join(os.path.dirname(raw), "copy.jsonl")
    os.rename(raw, renamed)
    job = origins.job(renamed)
    assert job is not None
    assert (job.batch_id, job.shard, job.sha256, job.requests) == ("b7", "shards/00000.jsonl", "s", 4)
    assert order_files([after, renamed, before], origins) == [before, renamed, after]
    (outcome,) = Reader(renamed, run, OPENAI, job)
    assert outcome.started_at == "2026-01-01T00:03:00Z"


def test_origins_of_an_absent_or_silent_journal_are_unknown(run: RunDir) -> None:
    """A run without a journal, or a file that none of its events names, has no job."""
    path = write_results(run, "batch-x.output.jsonl", [b"{}\n"])
    assert Origins.load(run).job(path) is None
    assert _origins(run, [{"event": "submitted", "at": 3, "batch_id": "b"}]).job(path) is None


@pytest.mark.parametrize("text", [None, 3, "", "yesterday", "2026-13-01T00:00:00Z"])
def test_parse_time_no_time_is_none(text: Any) -> None:
    """Whatever is no time is None, never an exception."""
    assert parse_time(text) is None
