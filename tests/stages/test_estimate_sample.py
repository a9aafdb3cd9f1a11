"""estimate --calibrate: totals from what was billed, what has to be said aloud, and whose results count."""

from __future__ import annotations

import hashlib
import json
import os
import random
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.stages.estimate_runs import Billed, Row, bill, make_run
from vlmbatch import jsonl
from vlmbatch.cli.estimate_text import show
from vlmbatch.errors import InputError, IntegrityError
from vlmbatch.prices import Prices
from vlmbatch.stages.collect import collect
from vlmbatch.stages.estimate import estimate
from vlmbatch.stages.estimating.options import EstimateOptions, EstimateResult

if TYPE_CHECKING:
    from vlmbatch.rundir import RunDir

CASES = Path(__file__).parents[1] / "data" / "tokens"
NOW = "2026-11-30T12:00:00Z"
PRICES = Prices(price_in=Decimal("2.50"), price_out=Decimal(10), batch_discount=Decimal("0.5"))


def calibrate(run: RunDir, *paths: str, **options: Any) -> EstimateResult:
    """Estimate from results files."""
    return estimate(run, EstimateOptions(calibrate=paths, prices=PRICES, **options), now=NOW)


def _said(result: EstimateResult, words: str) -> bool:
    return any(words in warning for warning in result.warnings)


# --- totals ----------------------------------------------------------------------------------------------------


def test_means_are_carried_over_to_the_whole_run(tmp_path: Path) -> None:
    """Thirty measured rows of 300 give the run's totals with a range, and prices from both ends."""
    run = make_run(tmp_path / "run", 300, max_tokens=4096)
    rng = random.Random(1)
    rows = [Billed(used=779 + rng.randrange(3), made=200 + rng.randrange(80), reasoning=100) for _ in range(30)]
    result = calibrate(run, bill(run, rows))
    one, found = result.forecast.calibration, result.forecast
    assert one is not None
    assert (one.rows, one.billed) == (30, 30)
    assert one.means["input"] == pytest.approx(sum(row.used for row in rows) / 30)
    assert found.input_tokens.mid == pytest.approx(10 * sum(row.used for row in rows))
    made = found.output_tokens
    assert made is not None
    assert made.low is not None
    assert made.mid is not None
    assert made.high is not None
    assert made.high_as_seen is not None
    assert made.low < made.mid < made.high_as_seen < 1.1 * made.mid
    # A sample of 30 out of 300 misses a kind of which there are 27 in one of twenty cases; each may run to the limit.
    assert made.high == pytest.approx(made.mid + 27.2 * (4096 - made.mid / 300), rel=0.01)
    assert found.reasoning_tokens is not None
    assert found.reasoning_tokens.mid == 30_000
    usd = found.realtime_usd
    assert usd is not None
    assert found.input_tokens.high is not None
    ends = round(found.input_tokens.high) * Decimal("2.50") + round(made.high) * 10
    assert usd.high == (ends / 10**6).quantize(Decimal("0.0001"))
    assert found.batch_usd is not None
    assert found.batch_usd.mid == pytest.approx(usd.mid / 2, abs=Decimal("0.0001"))  # type: ignore[operator]


@pytest.mark.parametrize("outputs", [{}, {"short": {"max_tokens": 64}, "free": {"temperature": 0}}])
def test_high_end_has_no_room_where_some_answers_have_no_limit(tmp_path: Path, outputs: dict[str, Any]) -> None:
    """What a row without a limit may take nobody knows: no limit of other rows cuts it or stands in for it."""
    run = make_run(tmp_path / "run", 300, max_tokens=64 if outputs else None)
    run.info["request"]["outputs"] = outputs
    made = calibrate(run, bill(run, [Billed(used=779, made=20 + n) for n in range(30)])).forecast.output_tokens
    assert made is not None
    assert made.mid is not None
    assert made.high is not None
    assert made.mid < made.high == made.high_as_seen


def test_both_upper_ends_are_shown_and_priced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The tables and the record tell the end with room for missed rows from the one without."""
    run = make_run(tmp_path / "run", 300, max_tokens=4096)
    result = calibrate(run, bill(run, [Billed(used=779, made=20, reasoning=0)] * 30))
    usd = result.forecast.realtime_usd
    assert usd is not None
    assert usd.low == usd.mid == usd.high_as_seen == Decimal("0.6442")  # 0.64425, to even
    assert usd.high is not None
    assert usd.high > Decimal("1.5")
    assert result.record["realtime_usd"]["high_as_seen"] == "0.6442"
    assert result.record["reasoning_tokens"] == {"mid": 0, "low": 0, "high": 0, "high_as_seen": 0}
    show(result)
    printed = capsys.readouterr().out
    assert printed.count("high as seen") == 3
    assert "high takes them at the output limit" in printed


def test_sizes_of_the_run_count_not_those_of_the_sample(tmp_path: Path) -> None:
    """A sample of small images prices a run of large ones by the formula that its bills confirm."""
    large = ((2048, 4096),)
    rows = [Row((size,)) for size in [(512, 512), (1024, 512), (1024, 1024)] * 10] + [Row(large) for _ in range(70)]
    run = make_run(tmp_path / "run", rows)
    tokens = {(512, 512): 255, (1024, 512): 425, (1024, 1024): 765}
    result = calibrate(run, bill(run, [Billed(used=tokens[row.sizes[0]] + 30) for row in rows[:30]]))
    assert result.forecast.calibration is not None
    assert result.forecast.calibration.by["input"] == "formula"
    assert result.forecast.input_tokens.mid == pytest.approx(sum(tokens.values()) * 10 + 900 + 70 * (1105 + 30))
    assert _said(result, "images are not like the run's")


def test_all_rows_measured_leave_no_range(tmp_path: Path) -> None:
    """A run that is done has cost what it cost."""
    run = make_run(tmp_path / "run", 6)
    result = calibrate(run, bill(run, [Billed(used=779, made=n) for n in range(1, 7)]))
    assert set(result.forecast.output_tokens or ()) == {21}
    assert not _said(result, "measured row(s)")


def test_several_files_make_one_sample_and_the_answer_wins(tmp_path: Path) -> None:
    """--calibrate repeats; of two attempts at a row an answer is never lost to a failure."""
    run = make_run(tmp_path / "run", 40)
    one = bill(run, [Billed(made=10)] * 5, "a.jsonl")
    failed: list[Billed | None] = [Billed(status_code=500, body={"error": {"message": "x"}})] * 2
    two = bill(run, [*failed, None, None, None, *[Billed(made=20)] * 5], "b.jsonl", started_at="2026-11-30T05:00:00Z")
    one_more = calibrate(run, two, one).forecast.calibration
    assert one_more is not None
    assert (one_more.rows, one_more.billed, one_more.means["output"]) == (10, 10, 15)


def test_cached_input_is_cheaper_but_not_promised(tmp_path: Path) -> None:
    """The measured share of cached input takes its own price in the middle, none of it at the high end."""
    run = make_run(tmp_path / "run", 100)
    path = bill(run, [Billed(used=1000, made=0, cached=500)] * 30)
    prices = Prices(price_in=Decimal(2), price_out=Decimal(0), price_cached=Decimal(1))
    usd = estimate(run, EstimateOptions(calibrate=(path,), prices=prices), now=NOW).forecast.realtime_usd
    assert usd is not None
    assert (usd.mid, usd.high) == (Decimal("0.1500"), Decimal("0.2000"))


def test_throughput_and_wall_time_come_from_the_sample(tmp_path: Path) -> None:
    """One row a second was seen: the other 70 take 70 seconds or so."""
    run = make_run(tmp_path / "run", 100)
    one = calibrate(run, bill(run, [Billed()] * 30)).forecast.calibration
    assert one is not None
    assert one.rows_per_s == pytest.approx(1.0)
    assert one.wall_time_s == pytest.approx(70.0)


# --- said aloud ------------------------------------------------------------------------------------------------


def test_few_rows_are_said_aloud(tmp_path: Path) -> None:
    """Below twenty rows the tail may move everything; below five there is no range at all."""
    run = make_run(tmp_path / "run", 100)
    result = calibrate(run, bill(run, [Billed()] * 19))
    assert _said(result, "only 19 measured row(s)")
    assert not _said(calibrate(run, bill(run, [Billed()] * 20)), "measured row(s)")
    none = calibrate(run, bill(run, [Billed()] * 4)).forecast
    assert none.input_tokens.low is None
    assert none.realtime_usd is not None
    assert (none.realtime_usd.low, none.realtime_usd.high) == (None, None)


def test_answers_near_the_limit_are_said_aloud(tmp_path: Path) -> None:
    """From 95 % of the limit on an answer is as good as cut."""
    run = make_run(tmp_path / "run", 100, max_tokens=1000)
    near = calibrate(run, bill(run, [Billed(made=950), *[Billed(made=100)] * 29]))
    assert _said(near, "1 of 30 answers reach 95% of the limit of 1,000")
    assert not _said(calibrate(run, bill(run, [Billed(made=949), *[Billed(made=100)] * 29])), "reach 95%")


def test_formula_far_from_measured_is_said_aloud_and_measured_wins(tmp_path: Path) -> None:
    """A quarter apart: the measured figures are used, and the scheme is named as wrong."""
    run = make_run(tmp_path / "run", 100)
    result = calibrate(run, bill(run, [Billed(used=1600)] * 30))
    assert _said(result, "the measured figures are used")
    assert result.forecast.input_tokens.mid == 160_000
    assert not _said(calibrate(run, bill(run, [Billed(used=779)] * 30)), "measured figures")


def test_rows_without_usage_do_not_count(tmp_path: Path) -> None:
    """Zero, missing or failed usage is no measurement; a sample of nothing else falls back to the formula."""
    run = make_run(tmp_path / "run", 100)
    zero = Billed(used=0, made=0)
    result = calibrate(
        run, bill(run, [zero, Billed(status_code=500, body={"error": {"message": "x"}}), *[Billed()] * 28])
    )
    assert result.forecast.calibration is not None
    assert result.forecast.calibration.billed == 28
    assert _said(result, "2 of 30 rows of the sample have no usage")
    nothing = calibrate(run, bill(run, [zero] * 30))
    assert nothing.forecast.calibration is None
    assert _said(nothing, "no row of the sample has usage")


def test_unlike_measured_out_tokens_are_not_used(tmp_path: Path) -> None:
    """What was measured stands over what was guessed."""
    run = make_run(tmp_path / "run", 100)
    result = calibrate(run, bill(run, [Billed(made=10)] * 30), out_tokens=500)
    assert result.forecast.output_tokens is not None
    assert result.forecast.output_tokens.mid == 1000
    assert _said(result, "--out-tokens is not used")


def test_torn_line_is_counted_and_passed_over(tmp_path: Path) -> None:
    """A crash in the middle of a line spoils that line alone."""
    run = make_run(tmp_path / "run", 100)
    path = bill(run, [Billed()] * 30)
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[:-40])
    result = calibrate(run, path)
    assert result.forecast.calibration is not None
    assert result.forecast.calibration.rows == 29
    assert _said(result, "1 damaged line(s)")


def test_unknown_model_is_priced_by_its_bills_without_blame(tmp_path: Path) -> None:
    """Where no rule is known the sample alone tells: a price, no receipt, no word on a formula."""
    run = make_run(tmp_path / "run", 100, model="test-vlm-1")
    result = calibrate(run, bill(run, [Billed(used=300)] * 30))
    assert result.forecast.input_tokens.mid == 30_000
    assert result.forecast.calibration is not None
    assert result.forecast.calibration.formula_ratio is None
    assert next(check for check in result.verdict if check.name == "image arrived").answer == "cannot tell"
    assert not _said(result, "formula")


# --- whose results ---------------------------------------------------------------------------------------------


def test_rehearsal_is_refused_for_calibration(tmp_path: Path) -> None:
    """A rehearsal bills nothing; only --rehearsal takes it, alone, and the record says so."""
    run = make_run(tmp_path / "run", 10)
    played = bill(run, [Billed()] * 5, "rehearsal-0001.jsonl", rehearsal=True)
    marked = bill(run, [Billed()] * 5, "copy.jsonl", rehearsal=True)
    real = bill(run, [Billed()] * 5)
    for path in (played, marked):
        with pytest.raises(InputError, match="a rehearsal"):
            calibrate(run, path)
    with pytest.raises(InputError, match="not a rehearsal"):
        calibrate(run, played, real, rehearsal=True)
    assert not os.path.exists(run.file("estimates.jsonl"))
    assert calibrate(run, played, rehearsal=True).record["rehearsal"] is True


def test_results_of_another_run_are_an_integrity_fault(tmp_path: Path) -> None:
    """Foreign ids and other lines under the same id are named, all of them."""
    run = make_run(tmp_path / "run", 10)
    path = bill(run, [Billed()] * 6)
    lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
    lines[1]["custom_id"] = "t7e57a0-000099-00000000"
    lines[2]["line_sha256"] = "0" * 64
    Path(path).write_bytes(b"".join(jsonl.dumps(line) + b"\n" for line in lines))
    with pytest.raises(IntegrityError) as caught:
        calibrate(run, path)
    assert [problem.line for problem in caught.value.problems] == [2, 3]


def test_unreadable_results_are_bad_input(tmp_path: Path) -> None:
    """A file that is not there ends in a message."""
    run = make_run(tmp_path / "run", 3)
    with pytest.raises(InputError, match="cannot be read"):
        calibrate(run, str(tmp_path / "nowhere.jsonl"))


def test_raw_batch_output_can_be_calibrated_on(tmp_path: Path) -> None:
    """A provider's own result file is a sample like any other."""
    run = make_run(tmp_path / "run", 100)
    path = run.file("results/batch-b1.output.jsonl")
    with open(path, "wb") as file:
        for entry in list(run.iter_entries())[:30]:
            response = {"status_code": 200, "request_id": "r", "body": Billed().response()}
            line = {"id": "x", "custom_id": entry.custom_id, "response": response, "error": None}
            file.write(jsonl.dumps(line) + b"\n")
    result = calibrate(run, path)
    assert result.forecast.calibration is not None
    assert (result.forecast.calibration.billed, result.forecast.calibration.rows_per_s) == (30, None)
    assert result.verdict[0].answer == "pass"


# --- receipts and the record -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "is_flagged"), [("receipt-full", False), ("receipt-none", True)])
def test_receipt_case_is_flagged_as_it_should(tmp_path: Path, case: str, is_flagged: bool) -> None:
    """One picture of 1024 x 1024 with 14 text tokens: 779 is right, 14 means that the picture never arrived."""
    body = json.loads((CASES / f"{case}.json").read_text())
    run = make_run(tmp_path / "run", [Row(text="What is in this picture? Please say.")])
    result = calibrate(run, bill(run, [Billed(body=body)]), scheme="openai-tile", require_receipt=True)
    assert _said(result, "did not arrive") is is_flagged
    assert (result.failure is not None) is is_flagged
    arrived = next(check for check in result.verdict if check.name == "image arrived")
    assert arrived.answer == ("fail" if is_flagged else "pass")


def test_missing_receipts_fail_only_where_they_are_asked_for(tmp_path: Path) -> None:
    """--require-receipt lists the rows and exits 1; without it they are a warning."""
    run = make_run(tmp_path / "run", 30)
    path = bill(run, [*[Billed()] * 28, Billed(used=14), Billed(used=300)])
    ids = [entry.custom_id for entry in run.iter_entries()]
    assert calibrate(run, path).failure is None
    failure = calibrate(run, path, require_receipt=True).failure
    assert failure is not None
    assert failure.exit_code == 1
    assert [problem.where for problem in failure.problems] == ids[28:]


def test_record_names_sample_files_by_hash(tmp_path: Path) -> None:
    """The record says what was measured: files with their hashes, rows, means, the verdict."""
    run = make_run(tmp_path / "run", 100)
    path = bill(run, [Billed()] * 30)
    record = calibrate(run, path).record
    data = Path(path).read_bytes()
    measured = {"file": "results/smoke.jsonl", "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    assert record["calibrated_from"] == [measured]
    assert (record["sample"]["rows"], record["sample"]["means"]["input"]) == (30, 779)
    assert next(check["name"] for check in record["verdict"]) == "request shape accepted"
    assert record["receipts"]["arrived"] == 30
    assert json.loads(Path(run.file("estimates.jsonl")).read_text()) == json.loads(jsonl.dumps(record))


def test_foreign_results_are_named_by_the_first_few(tmp_path: Path) -> None:
    """A whole file of another run is told with its count and five of its lines, as collect tells it."""
    run, other = make_run(tmp_path / "run", 3), make_run(tmp_path / "other", 30)
    path = bill(other, [Billed()] * 30)
    with pytest.raises(IntegrityError, match="not answers to this run") as caught:
        calibrate(run, path)
    assert len(caught.value.problems) == 5
    with pytest.raises(IntegrityError) as collected:
        collect(run, [path])
    assert collected.value.problems == caught.value.problems
