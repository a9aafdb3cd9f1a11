"""The inference-engine shape: rows in, answers out by id, and a run folder behind every call."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pictures import png
from vlmbatch import (
    BatchOptions,
    BatchResult,
    BuildOptions,
    CheckFailed,
    Engine,
    FailureDetail,
    InferenceErrorType,
    InferenceResult,
    InputError,
    Policy,
    Run,
    RunOptions,
)
from vlmbatch.journal import Journal
from vlmbatch.rehearsal.faults import BatchFaults, Faults
from vlmbatch.rehearsal.server import Server, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY = "sk-CANARY-0123456789abcdef"
QUICK = Policy(max_tries=1, base_s=0.01, backoff_cap_s=0.02)
Row = dict[str, Any]


@pytest.fixture
def server() -> Iterator[Server]:
    """Return a well-behaved provider whose answers take differently long, so that they come out of order."""
    with serve(Faults(latency_s=(0.0, 0.2))) as running:
        yield running


@pytest.fixture
def rows(tmp_path: Path) -> list[Row]:
    """Return six rows about six pictures, in an order that is not that of their names."""
    made = []
    for number in (3, 1, 5, 0, 4, 2):
        (tmp_path / f"{number}.png").write_bytes(png(50 + number, 40))
        made.append({"id": f"row-{number}", "image_path": f"{number}.png", "question": f"What is {number}?"})
    return made


def options(tmp_path: Path, **more: Any) -> BuildOptions:
    """Return what the engines of these tests ask."""
    given: dict[str, Any] = {
        "model": "m",
        "provider": "vllm",
        "question_field": "question",
        "id_fields": ("id",),
        "image_base_path": str(tmp_path),
    }
    return BuildOptions(**{**given, **more})


def engine(tmp_path: Path, server: Server, send: RunOptions | None = None, **more: Any) -> Engine:
    """Return an engine over a server."""
    given = {name: more.pop(name) for name in ("runs", "key", "environ", "key_env") if name in more}
    send = send or RunOptions(base_urls=(server.base_url,), policy=QUICK)
    return Engine(options(tmp_path, **more), send, **given)


# --- answers ---------------------------------------------------------------------------------------------------------


def test_answers_come_in_the_order_of_the_rows(tmp_path: Path, server: Server, rows: list[Row]) -> None:
    """Whatever order the provider answers in, record i is row i's, joined by its id."""
    with engine(tmp_path, server) as one:
        records = one.infer(rows)
    assert [record["row"] for record in records] == rows
    for row, record in zip(rows, records, strict=True):
        number = int(row["id"].removeprefix("row-"))
        assert f"{50 + number} x 40" in (record["text"] or "")


def test_rows_come_back_with_all_their_digits(tmp_path: Path, server: Server, rows: list[Row]) -> None:
    """A number beyond 64 bits is in the record what it was in the row."""
    rows[0]["number"], rows[1]["number"] = 2**70 + 1, -(2**63) - 1
    with engine(tmp_path, server) as one:
        assert [record["row"] for record in one.infer(rows)] == rows


def test_partial_result_names_index_and_cause(tmp_path: Path, server: Server, rows: list[Row]) -> None:
    """Rows that cannot be asked fail with a cause of their own; the others are answered."""
    rows[1]["image_path"] = "missing.png"
    del rows[4]["question"]
    with engine(tmp_path, server) as one:
        result = one.infer_partial(rows)
    assert result.has_failures
    assert result.failed_indices == [1, 4]
    assert [index for index, _ in result.successful] == [0, 2, 3, 5]
    assert all(record["row"] == rows[index] for index, record in result.successful)
    assert "missing.png" in result.error_messages[1]
    assert "question" in result.error_messages[4]
    detail = result.failures[1]
    assert (detail.status_code, detail.is_retryable, detail.error_type) == (None, False, InferenceErrorType.CONFIG)


def test_infer_raises_with_every_failure_named(tmp_path: Path, server: Server, rows: list[Row]) -> None:
    """One failing row makes infer raise; the exception lists all of them, and the answers are kept."""
    rows[0]["image_path"] = rows[5]["image_path"] = "missing.png"
    with engine(tmp_path, server) as one:
        with pytest.raises(CheckFailed, match="2 of 6 rows failed") as caught:
            one.infer(rows)
        assert one.run is not None
        assert len(list(one.run.attempts())) == 4
    assert [problem.where for problem in caught.value.problems] == ["row 0", "row 5"]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("truncated", FailureDetail("", None, False, InferenceErrorType.CONFIG)),
        ("empty_at_cap", FailureDetail("", None, False, InferenceErrorType.CONFIG)),
        ("empty", FailureDetail("", None, False, InferenceErrorType.ENGINE_FAILURE)),
        ("refusal", FailureDetail("", None, False, InferenceErrorType.ENGINE_FAILURE)),
        ("invalid_json", FailureDetail("", None, False, InferenceErrorType.PARSE_ERROR)),
        ("http_500", FailureDetail("", 500, True, InferenceErrorType.API_STATUS)),
        ("reset", FailureDetail("", None, True, InferenceErrorType.CONNECTION)),
    ],
)
def test_failures_tell_whose_fault_it_is(tmp_path: Path, rows: list[Row], fault: str, expected: FailureDetail) -> None:
    """Each kind of trouble has its type, its status code, and whether the same row could fare better."""
    more = {"response_format": "json"} if fault == "invalid_json" else {}
    with serve(Faults(rates={fault: 1.0})) as server, engine(tmp_path, server, **more) as one:
        result = one.infer_partial(rows[:2])
    assert result.successful == []
    for detail in result.failures.values():
        assert detail.error_message
        assert (detail.status_code, detail.is_retryable, detail.error_type) == (
            expected.status_code,
            expected.is_retryable,
            expected.error_type,
        )


def test_rows_that_were_not_reached_may_be_sent_again(tmp_path: Path, rows: list[Row]) -> None:
    """Where the run stops early, rows without an attempt fail as retryable."""
    with serve() as server:
        send = RunOptions(base_urls=(server.base_url,), concurrency=1, max_tokens_total=1)
        with engine(tmp_path, server, send) as one:
            result = one.infer_partial(rows)
    assert result.failures
    assert {detail.error_type for detail in result.failures.values()} == {InferenceErrorType.RUNTIME}
    assert all(detail.is_retryable for detail in result.failures.values())


def test_duplicate_ids_raise(tmp_path: Path, server: Server, rows: list[Row]) -> None:
    """Two rows of one id cannot be told apart: nothing is sent, and each is named by its index, as failures are."""
    bad = {**rows[2], "image_path": "missing.png"}
    with engine(tmp_path, server) as one, pytest.raises(InputError, match="repeat an id") as caught:
        one.infer_partial([rows[0], bad, rows[1], rows[0], rows[0]])
    assert server.requests == 0
    told = {problem.where: problem.message for problem in caught.value.problems if problem.code == "duplicate_id"}
    assert told == {
        "row 0": "the same id in more than one row",
        "row 3": "the same id in more than one row (as in row 0)",
        "row 4": "the same id in more than one row (as in row 0)",
    }
    assert [problem.where for problem in caught.value.problems if problem.code != "duplicate_id"] == ["row 1"]
    assert {problem.line for problem in caught.value.problems} == {None}


def test_rows_of_a_job_are_told_by_index_too(tmp_path: Path, server: Server, rows: list[Row]) -> None:
    """Whichever call the rows come with."""
    with engine(tmp_path, server) as one, pytest.raises(InputError, match="repeat an id") as caught:
        one.get_batch_results_partial("batch_1", [rows[0], rows[0]])
    assert [problem.where for problem in caught.value.problems] == ["row 0", "row 1"]


def test_equal_rows_without_ids_are_rows_of_their_own(tmp_path: Path, server: Server, rows: list[Row]) -> None:
    """Where no id fields are named each row has an id of its own, so equal rows get an answer each."""
    with engine(tmp_path, server, id_fields=()) as one:
        assert [index for index, _ in one.infer_partial([rows[0], rows[0]]).successful] == [0, 1]


def test_no_rows_are_no_failure(tmp_path: Path, server: Server) -> None:
    """Nothing in, nothing out, and no folder."""
    with engine(tmp_path, server) as one:
        assert one.infer([]) == []
        assert one.run is None


def test_rows_that_are_all_bad_are_failures(tmp_path: Path, server: Server, rows: list[Row]) -> None:
    """Where no row can be asked there is nothing to send, and every row says why."""
    for row in rows:
        row["image_path"] = "missing.png"
    with engine(tmp_path, server) as one:
        result = one.infer_partial(rows)
    assert result.failed_indices == list(range(6))
    assert server.requests == 0


def test_wrong_options_are_told_at_once(tmp_path: Path) -> None:
    """An engine refuses what cannot work, all of it, before any row comes."""
    with pytest.raises(InputError) as caught:
        Engine(options(tmp_path, model=None, sources=["x"], out="a"), runs=tmp_path)
    assert len(caught.value.problems) == 3


def test_images_that_are_uploaded_are_refused_with_the_way_out(tmp_path: Path) -> None:
    """An engine builds anew with each call and would pay for uploads and requests again: Run.build is named."""
    with pytest.raises(InputError) as caught:
        Engine(options(tmp_path, provider="anthropic", carrier="provider-file"), key=KEY)
    (problem,) = caught.value.problems
    assert "Run.build" in problem.message


def test_progress_file_tells_the_end(tmp_path: Path, server: Server, rows: list[Row]) -> None:
    """progress_path holds total, completed and failed; they add up at the end."""
    with engine(tmp_path, server) as one:
        one.infer_partial(rows, progress_path=tmp_path / "progress.json")
    progress = json.loads((tmp_path / "progress.json").read_text())
    assert (progress["total"], progress["completed"], progress["failed"]) == (6, 6, 0)
    assert progress["updated_at"].endswith("Z")


# --- folders ---------------------------------------------------------------------------------------------------------


def test_temporary_folder_goes_with_the_engine(tmp_path: Path, server: Server, rows: list[Row]) -> None:
    """Without a place to keep them, run folders live as long as the engine."""
    with engine(tmp_path, server) as one:
        one.infer(rows)
        assert one.run is not None
        folder = Path(one.run.path)
        assert (folder / "run.json").is_file()
    assert not folder.parent.exists()


def test_same_rows_are_not_asked_twice(tmp_path: Path, server: Server, rows: list[Row]) -> None:
    """In a folder of runs the same rows with the same settings find their answers; another prompt is another run."""
    with engine(tmp_path, server, runs=tmp_path / "runs") as one:
        first = one.infer(rows)
    with engine(tmp_path, server, runs=tmp_path / "runs") as two:
        second = two.infer(rows)
    assert second == first
    assert server.requests == 6
    with engine(tmp_path, server, runs=tmp_path / "runs", prompt="Look closely.") as three:
        three.infer(rows)
    assert server.requests == 12
    assert len([path for path in (tmp_path / "runs").iterdir() if (path / "run.json").is_file()]) == 2
    assert not [path for path in (tmp_path / "runs").iterdir() if path.name.startswith(".")]


def test_named_folder_holds_one_set_of_rows(tmp_path: Path, server: Server, rows: list[Row]) -> None:
    """A folder that is named keeps its rows: the same ones go on there, others are refused."""
    folder = tmp_path / "runs" / "r001"
    with engine(tmp_path, server, out=str(folder)) as one:
        one.infer(rows[:3])
        one.infer(rows[:3])
        with pytest.raises(InputError, match="other rows or settings"):
            one.infer(rows)
    assert server.requests == 3
    assert len(Run.open(folder)) == 3


def test_rows_that_failed_are_asked_again(tmp_path: Path, rows: list[Row]) -> None:
    """What failed in passing is kept as failed and asked again by the same call; what was answered is not."""
    with serve(Faults(seed=3, rates={"http_503": 0.5})) as server:
        one = engine(tmp_path, server, runs=tmp_path / "runs")
        first = one.infer_partial(rows)
        before = server.requests
        result = first
        for _ in range(40):
            result = one.infer_partial(rows)
        assert 0 < len(first.failures) < 6
        assert not result.has_failures
        assert server.statuses[200] == 6
        assert before == 6


# --- batch jobs ------------------------------------------------------------------------------------------------------


def _jobs(one: Engine) -> set[str]:
    assert one.run is not None
    return Journal(one.run.folder).batch_ids()


def test_batch_results_come_by_id(tmp_path: Path, rows: list[Row]) -> None:
    """A job's rows are told apart by id; a row that is missing from its files is a failure."""
    faults = Faults(batch=BatchFaults(looks=0, missing_rows=1))
    with serve(faults) as server:
        send = RunOptions(channel="batch", base_urls=(server.base_url,), batch=BatchOptions(poll_interval_s=0.01))
        one = engine(tmp_path, server, send, provider="openai", runs=tmp_path / "runs", key=KEY)
        partial = one.infer_partial(rows)
        (batch_id,) = _jobs(one)
        result = one.get_batch_results_partial(batch_id, rows)
        assert isinstance(result, BatchResult)
        assert result.has_failures
        assert len(result.failed_indices) == 1
        assert set(result.error_messages) == set(result.failed_indices)
        assert [index for index, _ in result.successful] == [index for index, _ in partial.successful]
        assert all(record["row"] == rows[index] for index, record in result.successful)
        with pytest.raises(InputError, match="no job of this run"):
            one.get_batch_results_partial("batch_nobody", rows)


def test_open_batch_job_has_no_results_yet(tmp_path: Path, rows: list[Row]) -> None:
    """While a job is open its results are not there, and the error says what fetches them."""
    with serve(Faults(batch=BatchFaults(looks=1000))) as server:
        batch = BatchOptions(poll_interval_s=0.01, detach=True)
        send = RunOptions(channel="batch", base_urls=(server.base_url,), batch=batch)
        one = engine(tmp_path, server, send, provider="openai", runs=tmp_path / "runs", key=KEY)
        result = one.infer_partial(rows)
        assert len(result.failures) == 6
        (batch_id,) = _jobs(one)
        with pytest.raises(InputError, match=r"not ended|validating|in_progress") as caught:
            one.get_batch_results_partial(batch_id, rows)
        assert caught.value.message.startswith(batch_id)


# --- the model -------------------------------------------------------------------------------------------------------


def test_models_are_listed(tmp_path: Path) -> None:
    """By default the engine's own model; else what the endpoint lists, or why it lists none."""
    with serve(models=["m", "n"]) as server, engine(tmp_path, server) as one:
        assert one.list_models() == ["m"]
        assert one.list_models(chat_only=False) == ["m", "n"]
    with serve() as server, engine(tmp_path, server) as one, pytest.raises(InputError, match="HTTP 404"):
        one.list_models(chat_only=False)


def test_supported_params_are_options_of_build(tmp_path: Path, server: Server) -> None:
    """Every name is a field of BuildOptions, so that it can be set."""
    with engine(tmp_path, server) as one:
        names = one.get_supported_params()
    assert {"max_tokens", "temperature"} <= names
    assert names <= set(BuildOptions.__dataclass_fields__)


def test_chat_template_needs_a_tokenizer(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without transformers, or without the model on this machine, the error says so."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    one = engine(tmp_path, server)
    with pytest.raises(InputError, match="transformers is not installed"):
        one.apply_chat_template([{"role": "user", "content": "Hi"}])

    class AutoTokenizer:
        """Has one model, and looks for it on this machine alone."""

        @classmethod
        def from_pretrained(cls, name: str, *, local_files_only: bool) -> AutoTokenizer:
            assert local_files_only
            if name != "m":
                raise OSError("not cached")
            return cls()

        def apply_chat_template(self, messages: list[Row], *, tokenize: bool, **kwargs: Any) -> str:
            assert not tokenize
            return f"{messages[0]['role']}: {messages[0]['content']} {kwargs}"

    there = types.ModuleType("transformers")
    monkeypatch.setattr(there, "AutoTokenizer", AutoTokenizer, raising=False)
    monkeypatch.setitem(sys.modules, "transformers", there)
    assert one.apply_chat_template([{"role": "user", "content": "Hi"}], add_generation_prompt=True) == (
        "user: Hi {'add_generation_prompt': True}"
    )
    other = engine(tmp_path, server, model="elsewhere")
    with pytest.raises(InputError, match="elsewhere: no chat template"):
        other.apply_chat_template([])


# --- the shapes ------------------------------------------------------------------------------------------------------


def test_defaults_are_the_known_ones() -> None:
    """A failure of unknown cause may be retried; the error types are strings."""
    assert FailureDetail("x") == FailureDetail("x", None, True, InferenceErrorType.UNKNOWN)
    assert [kind.value for kind in InferenceErrorType] == [
        "api_status",
        "config",
        "connection",
        "engine_failure",
        "parse_error",
        "runtime",
        "unknown",
    ]
    assert InferenceErrorType("config") == "config"
    assert InferenceResult([], {5: FailureDetail("b"), 2: FailureDetail("a")}).failed_indices == [2, 5]
    assert not InferenceResult([]).has_failures
