"""What users write against the package, for the type checker: nothing here runs, mypy alone reads it.

``assert_type`` states what a caller may rely on; a change here is a change that callers notice.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TypedDict, assert_type

from vlmbatch import (
    AsyncRun,
    BagOptions,
    BatchResult,
    BuildOptions,
    CheckFailed,
    CollectOptions,
    Engine,
    EstimateOptions,
    Event,
    FailureDetail,
    ImagePolicy,
    InferenceErrorType,
    InferenceResult,
    InputError,
    Judged,
    Policy,
    Prices,
    Problem,
    ProgressFileReporter,
    Record,
    ReportOptions,
    Run,
    RunOptions,
    RunResult,
    Serve,
    SlurmOptions,
    Status,
    Stop,
    VlmbatchError,
    __version__,
)

assert_type(__version__, str)


def show(event: Event) -> None:
    """Take an event, as a progress bar would."""
    assert_type(event.done, int)
    assert_type(event.total, int | None)


def notice(judged: Judged) -> None:
    """Take an attempt while others are under way."""
    assert_type(judged.outcome.custom_id, str)
    assert_type(judged.reading.text, str | None)
    assert_type(judged.verdict.status, Status)


def four_steps(stop: Stop) -> None:
    """Go all the way."""
    policy = ImagePolicy(max_side=1024)
    run = Run.build(
        BuildOptions(sources=["images/"], out="runs/r001", model="M", prompt="What?", image_policy=policy),
        on_event=show,
    )
    assert_type(run, Run)
    assert_type(len(run), int)
    assert_type(run.fingerprint, str)
    prices = Prices.parse({"price_in_usd_per_mtok": "2.5", "price_out_usd_per_mtok": "10"}, where="here")
    estimate = run.estimate(EstimateOptions(out_tokens=300, prices=prices))
    assert_type(estimate.warnings, list[str])
    options = RunOptions(base_urls=("http://127.0.0.1:8000/v1",), concurrency=64, policy=Policy(max_tries=3))
    result = run.send(options, environ=os.environ, key_env="MY_KEY", on_event=show, on_attempt=notice, stop=stop)
    assert_type(result, RunResult)
    assert_type(result.problem(), VlmbatchError | None)
    collected = run.collect(CollectOptions(write="runs/r001/merged.jsonl", gate=True))
    assert_type([check.holds for check in collected.checks], list[bool])


def iterators(run: Run) -> None:
    """Read what the steps left."""
    for entry in run.manifest():
        assert_type(entry.row, bytes)
    assert_type(run.attempts(), Iterator[Judged])
    for record in run.records():
        assert_type(record, Record)
        assert_type(record["text"], str | None)
        assert_type(record["usage"]["output_tokens"], int | None)
    for rejection in run.rejected():
        assert_type(rejection["reason"]["message"], str)


def machines(run: Run) -> None:
    """Send with a server of one's own, here or on a cluster."""
    served = RunOptions(serve=Serve("vllm serve {model} --port {port}", wait_s=600.0))
    run.send(served)
    submitted = run.submit(SlurmOptions(tasks=8, gpus=4, merge=True), served)
    assert_type(submitted.array, str | None)
    assert_type(submitted.parts, tuple[int, ...])


async def asynchronously() -> None:
    """Do the same inside a loop."""
    run = await AsyncRun.open("runs/r001")
    assert_type(await run.send(RunOptions(), key="…"), RunResult)
    async for record in run.records():
        assert_type(record, Record)
    assert_type([judged.verdict.status async for judged in run.attempts()], list[Status])


def inference(rows: list[dict[str, str]]) -> None:
    """Use it as an engine."""
    with Engine(BuildOptions(model="M", provider="vllm", question_field="q"), runs="runs", key="…") as engine:
        assert_type(engine.infer(rows), list[Record])
        result = engine.infer_partial(rows, progress_path="progress.json")
        assert_type(result, InferenceResult)
        assert_type(result.successful, list[tuple[int, Record]])
        assert_type(result.failures, dict[int, FailureDetail])
        assert_type(result.failed_indices, list[int])
        assert_type(result.error_messages, dict[int, str])
        assert_type(engine.get_batch_results_partial("batch_1", rows), BatchResult)
        assert_type(engine.get_supported_params(), set[str])
        assert_type(engine.list_models(chat_only=False), list[str])
        assert_type(engine.run, Run | None)
    detail = FailureDetail("slow", 503, is_retryable=True, error_type=InferenceErrorType.API_STATUS)
    assert_type(detail.status_code, int | None)


class Asked(TypedDict):
    """A row with fields of known types."""

    id: int
    image_path: bytes


def rows_in_memory(rows: list[Asked], pairs: Iterator[dict[str, object]]) -> None:
    """Hand over rows of one's own, whatever they are made of."""
    run = Run.build(BuildOptions(rows=pairs, out="runs/r002", model="M", prompt="What?"))
    assert_type(run.warnings, tuple[str, ...])
    with Engine(BuildOptions(model="M", prompt="What?")) as engine:
        assert_type(engine.infer(rows), list[Record])
        assert_type(engine.infer_partial(row for row in rows), InferenceResult)


def hand_over(run: Run) -> None:
    """Show what came of it, and give it away."""
    collected = run.collect(CollectOptions(write="merged.jsonl"))
    assert_type(run.report(collected, ReportOptions(sample=20)), str)
    assert_type(run.seal().sha256, str)
    assert_type(run.bag("bag", BagOptions(license="CC0-1.0")).files, int)
    assert_type(run.redact("copy", ["images"], keep_fields=("id",)).what, tuple[str, ...])
    run.verify()


def errors() -> int:
    """Tell errors apart, and list what is wrong."""
    try:
        Run.open("runs/none")
    except InputError as error:
        assert_type(error.problems, tuple[Problem, ...])
        return error.exit_code
    except CheckFailed as error:
        assert_type(error.hint, str)
    reporter = ProgressFileReporter("progress.json", total=3, min_write_interval=0.5)
    reporter.start(completed=1)
    reporter.record_completed()
    reporter.record_failed(n=1)
    reporter.finalize()
    return 0
