"""What batch jobs leave behind is read by collect as it is: one record per row, with the reason where none came."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.stages.batch_runs import CHAT, GEMINI, KINDS, Kind, ids, make, send
from vlmbatch.rehearsal.faults import parse_faults
from vlmbatch.rehearsal.server import serve
from vlmbatch.stages.collect import collect
from vlmbatch.stages.collecting.options import CollectOptions

if TYPE_CHECKING:
    from vlmbatch.rundir import RunDir

WIRE = Path(__file__).resolve().parents[1] / "data" / "wire"
EVERY_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def _records(run: RunDir, **more: Any) -> list[dict[str, Any]]:
    """Collect a run and return its records in manifest order."""
    path = run.file("merged.jsonl")
    collect(run, options=CollectOptions(write=path, **more))
    return [json.loads(line) for line in Path(path).read_bytes().splitlines()]


@EVERY_KIND
def test_finished_jobs_become_ok_records(tmp_path: Path, kind: Kind) -> None:
    """Text, usage, model and lineage are there, whatever the provider's own line looks like."""
    run = make(tmp_path, kind)
    with serve() as server:
        send(run, server, kind)
    records = _records(run)
    assert [record["custom_id"] for record in records] == ids(run)
    assert {record["status"] for record in records} == {"ok"}
    assert all("8 pixels" in record["text"] for record in records)
    assert all(record["usage"]["input_tokens"] > 0 and record["usage"]["output_tokens"] > 0 for record in records)
    assert {record["channel"] for record in records} == {"batch"}
    assert all(record["source_file"].startswith("results/batch-") for record in records)


@EVERY_KIND
def test_row_errors_inside_a_finished_job_are_retryable(tmp_path: Path, kind: Kind) -> None:
    """A 429 or 500 of one row is that row's, and worth another run."""
    run = make(tmp_path, kind)
    with serve(parse_faults({"rates": {"http_500": 1}})) as server:
        send(run, server, kind)
    records = _records(run)
    assert {record["status"] for record in records} == {"http_error"}
    assert all(record["error"]["is_retryable"] for record in records)


@pytest.mark.parametrize("end", ["expired", "cancelled"])
@EVERY_KIND
def test_rows_of_a_job_cut_short_are_retryable_and_say_why(tmp_path: Path, kind: Kind, end: str) -> None:
    """What was done is ok; what never ran is a network error whose reason names the end, or missing."""
    run = make(tmp_path, kind, rows=6, per_shard=6)
    with serve(parse_faults({"batch": {"end": end}})) as server:
        send(run, server, kind)
    records = _records(run)
    if kind is GEMINI:
        assert {record["status"] for record in records} == {"missing"}
        return
    assert sorted(record["status"] for record in records) == ["network_error"] * 3 + ["ok"] * 3
    cut = [record for record in records if record["status"] == "network_error"]
    assert all(record["error"]["is_retryable"] for record in cut)
    assert all(end[:5] in f"{record['reason']} {record['error']}" for record in cut)


def test_rows_in_neither_file_are_missing(tmp_path: Path) -> None:
    """A row that the provider dropped has no attempt."""
    run = make(tmp_path, rows=5, per_shard=5)
    with serve(parse_faults({"batch": {"missing_rows": 2}})) as server:
        send(run, server)
    assert sorted(record["status"] for record in _records(run)) == ["missing"] * 2 + ["ok"] * 3


def test_answer_of_a_second_job_wins_over_the_failure_of_the_first(tmp_path: Path) -> None:
    """Files are ordered by the journal's times, and the failure is listed as beaten."""
    run = make(tmp_path, rows=4, per_shard=4)
    with serve(parse_faults({"rates": {"http_500": 1}})) as server:
        send(run, server)
    with serve() as server:
        send(run, server)
    records = _records(run)
    assert {record["status"] for record in records} == {"ok"}
    assert {tuple(one["status"] for one in record["superseded"]) for record in records} == {("http_error",)}


def test_rehearsed_jobs_are_collected_alone_and_marked(tmp_path: Path) -> None:
    """Without --rehearsal they are not there."""
    run = make(tmp_path, rows=3)
    with serve() as server:
        send(run, server, rehearsal=True)
    assert {record["status"] for record in _records(run)} == {"missing"}
    marked = _records(run, rehearsal=True)
    assert {(record["status"], record["rehearsal"]) for record in marked} == {("ok", True)}


# --- vllm run-batch ----------------------------------------------------------------------------------------

VLLM = Kind("vllm", "", "/v1")


def _recorded(name: str, custom_id: str) -> bytes:
    line = json.loads((WIRE / f"vllm-run-batch-line.{name}.json").read_text())["payload"]
    return json.dumps({**line, "custom_id": custom_id}).encode() + b"\n"


def test_shards_are_what_run_batch_reads(tmp_path: Path) -> None:
    """VLLM 0.33.0 reads custom_id, method, url and body, and nothing else stands in a line."""
    run = make(tmp_path, VLLM)
    for shard in run.info["shards"]:
        for line in Path(run.file(shard["file"])).read_bytes().splitlines():
            value = json.loads(line)
            assert set(value) == {"custom_id", "method", "url", "body"}
            assert (value["method"], value["url"]) == ("POST", "/v1/chat/completions")


def test_output_of_run_batch_is_collected_as_it_is(tmp_path: Path) -> None:
    """Good lines, both shapes of error with a null body, and a torn last line."""
    run = make(tmp_path, VLLM, rows=5, per_shard=5)
    names = ids(run)
    good = _recorded("ok", names[0])
    output = good + _recorded("error", names[1]) + _recorded("error-string", names[2]) + _recorded("ok", names[3])[:-40]
    Path(run.file("results/batch-vllm-00000.output.jsonl")).write_bytes(output)
    records = _records(run)
    assert [record["status"] for record in records] == ["ok", "http_error", "http_error", "missing", "missing"]
    assert records[0]["text"] == "a red square"
    assert records[0]["usage"]["input_tokens"] == 1215
    assert "could not be decoded" in records[1]["error"]["message"]
    assert "Unsupported URL" in records[2]["error"]["message"]


def test_what_run_batch_left_is_sent_by_another_command(tmp_path: Path) -> None:
    """Its answers count for resume, so that only the other rows are sent."""
    run = make(tmp_path, CHAT, rows=4, per_shard=4)
    output = b"".join(_recorded("ok", name) for name in ids(run)[:3])
    Path(run.file("results/batch-vllm-00000.output.jsonl")).write_bytes(output)
    with serve() as server:
        send(run, server)
        assert [row.custom_id for job in server.store.jobs for row in job.rows] == ids(run)[3:]
