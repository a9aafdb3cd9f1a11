"""Every trouble case of results files and of providers' batch files, as it came from public reports."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.stages.result_runs import EARLIER, fill_in, make_run, records
from vlmbatch.errors import IntegrityError
from vlmbatch.stages.collect import CollectOptions, collect

if TYPE_CHECKING:
    from vlmbatch.rundir import RunDir

DATA = Path(__file__).parents[1] / "data"
CASES = [case for kind in ("results", "batches") for case in json.loads((DATA / kind / "cases.json").read_bytes())]


def _place(run: RunDir, case: dict[str, Any]) -> None:
    """Put the case's results files into results/, named as run and batch name them."""
    os.makedirs(run.file("results"), exist_ok=True)
    for name in case["files"]:
        if name.endswith("job.json"):
            continue
        stem = Path(name).stem
        target = f"{stem}.jsonl" if name.startswith("results/") else f"batch-b1.{stem}.jsonl"
        Path(run.file(f"results/{target}")).write_bytes(fill_in((DATA / name).read_bytes(), run))


def _named(run: RunDir, by_mark: dict[str, Any]) -> dict[str, Any]:
    return json.loads(fill_in(json.dumps(by_mark).encode(), run))


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_collect_trouble_case_ends_as_reported_cases_should(case: dict[str, Any], tmp_path: Path) -> None:
    """Statuses, texts, superseded attempts, retryable rows and damaged lines are those that the case asks for."""
    setup, check = case["setup"], case["check"]
    run = make_run(tmp_path / "run", setup["rows"], provider=setup.get("provider", "openai"))
    _place(run, case)
    write, again = run.file("merged.jsonl"), str(tmp_path / "again.txt")
    Path(write).write_bytes(EARLIER)
    options = CollectOptions(write=write, retry_ids=again)
    if check["exit"] == 3:
        with pytest.raises(IntegrityError):
            collect(run, (), options)
        assert Path(write).read_bytes() == EARLIER
        assert not os.path.exists(again)
        return
    result = collect(run, (), options)
    merged = {record["custom_id"]: record for record in records(write)}
    assert len(merged) == setup["rows"]
    assert {name: merged[name]["status"] for name in merged} == _named(run, check["statuses"])
    for name, text in _named(run, check.get("texts", {})).items():
        assert merged[name]["text"] == text
    for name, beaten in _named(run, check.get("superseded", {})).items():
        assert [one["status"] for one in merged[name]["superseded"]] == beaten
    missing = {name for name in merged if merged[name]["status"] == "missing"}
    if "retryable" in check:
        assert set(Path(again).read_text().split()) == {*_named(run, check["retryable"]), *missing}
    assert sum(file["torn_lines"] for file in result.summary["files"]) == check.get("torn_lines", 0)
