"""The numbers of the summary, each computed a second time by the query that explains it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.stages.result_runs import attempt, completion, failed, make_run, write_results
from vlmbatch import jsonl
from vlmbatch.errors import InputError
from vlmbatch.records import ESTIMATE_SCHEMA, Status
from vlmbatch.stages.collect import CollectOptions, collect
from vlmbatch.stages.collecting.explain import explain, queries

if TYPE_CHECKING:
    from vlmbatch.rundir import RunDir

PRICES = {
    "schema": ESTIMATE_SCHEMA,
    "price_in_usd_per_mtok": "2.50",
    "price_out_usd_per_mtok": "10",
    "price_cached_usd_per_mtok": "0.25",
    "batch_discount": "0.5",
    "price_source": "https://example.com/prices",
    "price_date": "2026-01-01",
}
BROKEN = {"status_code": None, "error": "reset", "waited_s": 0, "sent": True}


def _estimates(run: RunDir, *lines: dict[str, Any]) -> None:
    Path(run.file("estimates.jsonl")).write_bytes(b"".join(jsonl.dumps(line) + b"\n" for line in lines))


def _mixed(tmp_path: Path) -> RunDir:
    """Return a run in which every kind of number is more than zero."""
    run = make_run(tmp_path / "run", [b'{"k":%d}' % n for n in range(6)], outputs=("a", 'b "x"'), answer=_ANSWER)
    cached = completion("cached", used=1000, made=10)
    cached["usage"] |= {
        "prompt_tokens_details": {"cached_tokens": 400},
        "completion_tokens_details": {"reasoning_tokens": 4},
    }
    silent = completion("silent", model='m "2"')
    del silent["usage"]
    full = [
        attempt(run, 0, completion("first"), at=0, direct=True, latency_s=1.25),
        attempt(run, 0, cached, at=1, direct=True, latency_s=2.5, tries=[BROKEN, {"status_code": 200, "error": None}]),
        attempt(run, 1, {**silent, "system_fingerprint": "fp_1"}, direct=False, latency_s=0.5),
        failed(run, 2, 503),
        failed(run, 3, 400),
        attempt(run, 4, tries=[BROKEN, BROKEN]),
        attempt(run, 5, completion("cut", finish="length", made=64)),
        attempt(run, 6, completion("", finish="length", made=64)),
        attempt(run, 7, completion("")),
        attempt(run, 8, completion(None, finish="content_filter")),
        attempt(run, 9, completion("<think>hm</think>fine \ud83d", model="\udc00")),
    ]
    write_results(run, "full.jsonl", [*full, b'{"torn": \n'])
    (ten,) = [entry.custom_id for entry in run.iter_entries() if entry.position == 10]
    line = {"custom_id": ten, "response": {"status_code": 200, "body": completion("batch", used=500, made=20)}}
    write_results(run, "batch-b1.output.jsonl", [line, line])
    ids = [entry.custom_id for entry in run.iter_entries()]
    reviews = [
        {"custom_id": ids[0], "verdict": "accept", "comment": "good"},
        {"custom_id": ids[1], "verdict": "reject"},
    ]
    Path(run.file("reviews.jsonl")).write_bytes(b"".join(jsonl.dumps(one) + b"\n" for one in reviews))
    _estimates(run, PRICES, {"schema": ESTIMATE_SCHEMA, "requests": 12})
    return run


_ANSWER = {"json": False, "outputs": {"a": {"json": False}, 'b "x"': {"json": False}}}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return make_run(tmp_path / "run", 3)


# --- explained -----------------------------------------------------------------------------------------------


def _leaves(node: Any, path: str = "") -> dict[str, Any]:
    """Return every number and hash of the summary by its path."""
    if isinstance(node, dict):
        return {
            k: v for key, inner in node.items() for k, v in _leaves(inner, f"{path}.{key}" if path else key).items()
        }
    if isinstance(node, list):
        return {k: v for at, inner in enumerate(node) for k, v in _leaves(inner, f"{path}.{at}").items()}
    return {path: node} if isinstance(node, int | float) and not isinstance(node, bool) else {}


@pytest.mark.skipif(shutil.which("jq") is None, reason="the queries are written for jq")
def test_every_number_is_what_its_query_computes(tmp_path: Path) -> None:
    """Each query, run by a shell over the delivered files, gives the summary's number."""
    run = _mixed(tmp_path)
    summary = collect(run, (), CollectOptions(write=run.file("merged.jsonl"))).summary
    known = queries(summary)
    assert len(known) > 100
    script = "\n".join(f"({query.command}) | head -n 1" for _, query in known.values())
    done = subprocess.run(
        ["sh", "-euc", script], cwd=run.path, capture_output=True, text=True, check=True, env=_plain()
    )
    found = done.stdout.splitlines()
    assert len(found) == len(known), done.stderr
    for (name, (value, query)), told in zip(known.items(), found, strict=True):
        same = told == value if name.endswith("sha256") else float(told) == pytest.approx(float(value), abs=1e-6)
        assert same, f"{name}: {value} != {told}: {query.command}"


def _plain() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}


def test_every_number_has_a_query(tmp_path: Path) -> None:
    """No number of the summary is left unexplained, but for those of the estimate that stands beside it."""
    run = _mixed(tmp_path)
    summary = collect(run, (), CollectOptions(write=run.file("merged.jsonl"))).summary
    plain = {name for name in _leaves(summary) if not name.startswith(("estimate.", "output_tokens.limits"))}
    assert not plain - set(queries(summary))


def test_explain_unknown_number_names_near_ones(run: RunDir) -> None:
    """A slip of the pen is answered with what may have been meant."""
    summary = collect(run).summary
    with pytest.raises(InputError, match="no number") as caught:
        explain(summary, "counts.refusals")
    assert "counts.refusal" in caught.value.hint
    assert explain(summary, "requests")[0] == 3


# --- what the numbers are ------------------------------------------------------------------------------------


def test_tokens_and_cost_hold_superseded_attempts_and_the_discount(run: RunDir) -> None:
    """Everything that could be billed counts: the beaten answer too, cached input at its price, batch at half."""
    cached = completion("b", used=1000, made=10)
    cached["usage"]["prompt_tokens_details"] = {"cached_tokens": 400}
    write_results(run, "a.jsonl", [attempt(run, 0, completion("a", used=100, made=1)), attempt(run, 0, cached, at=1)])
    line = {"custom_id": next(run.iter_entries()).custom_id, "response": {"status_code": 200, "body": completion("c")}}
    write_results(run, "batch-b.output.jsonl", [line])
    _estimates(run, PRICES)
    summary = collect(run).summary
    assert summary["tokens"]["realtime"] == {
        "attempts": 2,
        "input_tokens": 1100,
        "output_tokens": 11,
        "reasoning_tokens": 0,
        "cached_tokens": 400,
        "total_tokens": 1111,
    }
    cost = summary["cost"]
    assert cost["realtime_usd"] == "0.00196"  # (700 x 2.50 + 400 x 0.25 + 11 x 10) / 1e6
    assert cost["batch_usd"] == "0.00106"  # (812 x 2.50 + 9 x 10) / 2e6 = 0.00106
    assert cost["total_usd"] == "0.00302"
    assert cost["is_lower_bound"] is False
    assert cost["prices"]["price_source"] == "https://example.com/prices"


def test_cost_without_prices_is_unknown_not_zero(run: RunDir) -> None:
    """No price is built in."""
    write_results(run, "a.jsonl", [attempt(run, 0, completion("a"))])
    cost = collect(run).summary["cost"]
    assert (cost["total_usd"], cost["realtime_usd"], cost["prices"]) == (None, None, None)


def test_cost_of_a_channel_without_price_is_unknown_in_all(run: RunDir) -> None:
    """A batch without a batch price leaves the total unknown; the realtime part is told."""
    line = {"custom_id": next(run.iter_entries()).custom_id, "response": {"status_code": 200, "body": completion("c")}}
    write_results(run, "batch-b.output.jsonl", [line])
    write_results(run, "a.jsonl", [attempt(run, 1, completion("a"))])
    _estimates(run, {key: value for key, value in PRICES.items() if key != "batch_discount"})
    cost = collect(run).summary["cost"]
    assert (cost["batch_usd"], cost["total_usd"]) == (None, None)
    assert cost["realtime_usd"] == "0.00212"


def test_unknown_usage_is_counted_and_makes_a_lower_bound(run: RunDir) -> None:
    """An answer without usage and sendings that broke after going out are unknown, and said to be."""
    silent = completion("a")
    del silent["usage"]
    write_results(run, "a.jsonl", [attempt(run, 0, silent, tries=[BROKEN, BROKEN]), failed(run, 1)])
    result = collect(run)
    assert result.summary["unknown_usage"] == {"realtime": 3, "batch": 0}
    assert result.summary["cost"]["is_lower_bound"] is True
    assert any("lower bound" in sentence for sentence in result.warnings)


def test_more_than_one_model_is_said(run: RunDir) -> None:
    """Two versions of a model in one run are counted and warned of."""
    answers = [completion("a", model="m-1"), completion("a", model="m-2"), completion("a", model="m-2")]
    write_results(run, "a.jsonl", [attempt(run, n, answer) for n, answer in enumerate(answers)])
    result = collect(run)
    assert list(result.summary["models"].items()) == [("m-2", 2), ("m-1", 1)]
    assert any("more than one model" in sentence for sentence in result.warnings)


def test_equal_failures_are_told_once_with_their_count(run: RunDir) -> None:
    """The most frequent cause comes first, however many rows it has."""
    write_results(run, "a.jsonl", [failed(run, 0), failed(run, 1), attempt(run, 2)])
    reasons = collect(run).summary["reasons"]
    assert [(one["status"], one["count"]) for one in reasons] == [("http_error", 2), ("network_error", 1)]
    assert "invented" in reasons[0]["reason"]


def test_latency_is_of_winning_realtime_attempts(run: RunDir) -> None:
    """Percentiles are by nearest rank; a beaten attempt and a batch count for nothing."""
    values = [attempt(run, 0, completion("a"), latency_s=99.0)]
    values += [attempt(run, n, completion("a"), at=1, latency_s=s) for n, s in ((0, 1.0), (1, 2.0), (2, 3.0))]
    write_results(run, "a.jsonl", values)
    latency = collect(run).summary["latency_s"]
    assert latency == {"count": 3, "p50": 2.0, "p90": 3.0, "p95": 3.0, "p99": 3.0, "max": 3.0}


def test_outputs_near_the_limit_are_counted(run: RunDir) -> None:
    """61 of 64 tokens are more than 95 % of the limit; 60 are not."""
    answers = [completion("a", made=made) for made in (60, 61, 63)]
    write_results(run, "a.jsonl", [attempt(run, n, answer) for n, answer in enumerate(answers)])
    told = collect(run).summary["output_tokens"]
    assert (told["limits"], told["near_limit"]) == ([64], 2)


def test_files_are_told_with_hash_and_damage(run: RunDir) -> None:
    """Each results file stands there with its digest, its readable lines and its torn ones."""
    path = write_results(run, "a.jsonl", [attempt(run, 0, completion("a")), b"{torn"])
    (told,) = collect(run).summary["files"]
    sha256, size = jsonl.sha256_file(path)
    assert told == {
        "file": "results/a.jsonl",
        "sha256": sha256,
        "bytes": size,
        "records": 1,
        "torn_lines": 1,
        "left_out": 0,
    }


def test_estimate_stands_beside_the_actual(run: RunDir) -> None:
    """The last estimate is in the summary as it was written."""
    _estimates(run, PRICES, {"schema": ESTIMATE_SCHEMA, "input_tokens": {"mid": 5}}, {"schema": "other"})
    assert collect(run).summary["estimate"] == {"schema": ESTIMATE_SCHEMA, "input_tokens": {"mid": 5}}


def test_outputs_of_a_pipeline_are_counted_apart(tmp_path: Path) -> None:
    """Each named output has its own nine counts."""
    run = make_run(tmp_path / "run", [b"{}", b"{}"], outputs=("a", "b"))
    write_results(run, "a.jsonl", [attempt(run, 0, completion("a")), attempt(run, 1, completion(""))])
    told = collect(run).summary["by_output"]
    assert (told["a"]["ok"], told["a"]["missing"], told["b"]["empty"], told["b"]["missing"]) == (1, 1, 1, 1)
    assert all(sum(counts.values()) == 2 and set(counts) == set(map(str, Status)) for counts in told.values())


def test_many_different_messages_stay_in_bounds(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider that puts a new id into each message does not fill the memory: beyond a bound they are others."""
    monkeypatch.setattr("vlmbatch.stages.collecting.overlay._MANY", 3)
    values = [failed(run, 0) | {"response": {"error": {"message": f"id {n}"}}} for n in range(9)]
    write_results(run, "a.jsonl", values)
    assert collect(run).summary["reasons"] == [{"status": "http_error", "reason": "(others)", "count": 1}]
