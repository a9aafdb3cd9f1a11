"""The smoke verdict: each question is answered with a figure, and what cannot be told is not passed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.stages.estimate_runs import PROMPT, Billed, Row, bill, make_run
from vlmbatch import jsonl
from vlmbatch.errors import InputError
from vlmbatch.stages.estimate import estimate
from vlmbatch.stages.estimating.options import EstimateOptions

if TYPE_CHECKING:
    from vlmbatch.rundir import RunDir
    from vlmbatch.stages.estimating.smoke import Check

NOW = "2026-11-30T12:00:00Z"


def verdict(run: RunDir, rows: list[Billed], **options: Any) -> dict[str, Check]:
    """Return the verdict on what some rows were billed and answered, by question."""
    result = estimate(run, EstimateOptions(calibrate=(bill(run, rows),), **options), now=NOW)
    return {check.name: check for check in result.verdict}


def _answers(*texts: str) -> list[Billed]:
    return [Billed(text=text) for text in texts]


def test_good_sample_passes_every_question(tmp_path: Path) -> None:
    """Nothing wrong: all pass but the one that was not asked."""
    checks = verdict(make_run(tmp_path / "run", 6), _answers("a", "b", "c", "d", "e", "f"))
    assert {name: check.answer for name, check in checks.items()} == {
        "request shape accepted": "pass",
        "image arrived": "pass",
        "answers vary with the image": "pass",
        "no answer at the limit": "pass",
        "JSON is valid": "cannot tell",
    }


@pytest.mark.parametrize(
    ("status_code", "answer"),
    [(400, "fail"), (422, "fail"), (413, "fail"), (401, "cannot tell"), (429, "cannot tell"), (500, "cannot tell")],
)
def test_shape_is_refused_by_a_400_not_by_haste_or_key(tmp_path: Path, status_code: int, answer: str) -> None:
    """What speaks against the request itself fails; a key, a quota or a fault of the server tells nothing."""
    body = {"error": {"message": "invented", "type": "invalid_request_error", "code": None}}
    checks = verdict(make_run(tmp_path / "run", 3), [Billed(status_code=status_code, body=body)] * 3)
    assert checks["request shape accepted"].answer == answer


def test_one_label_for_all_images_fails(tmp_path: Path) -> None:
    """The same answer to every image means that nobody looked; white space and case make no difference."""
    run = make_run(tmp_path / "run", 6)
    same = verdict(run, _answers("A cat.", "a  cat.", "A CAT.\n", "A cat.", "A cat.", "A cat."))
    assert same["answers vary with the image"] == (
        "answers vary with the image",
        "fail",
        "1 different answer(s) to 6 image(s)",
    )
    assert verdict(run, _answers("A cat.", "A cat."))["answers vary with the image"].answer == "cannot tell"


def test_different_questions_do_not_hide_one_answer_to_all_images(tmp_path: Path) -> None:
    """Answers are compared among rows that were asked the same, and the same image twice is one image."""
    rows = [Row(image=f"i{n}", text=PROMPT) for n in range(6)] + [Row(image="i0", text="Say no.")]
    checks = verdict(make_run(tmp_path / "run", rows), _answers(*["yes"] * 6, "no"))
    assert checks["answers vary with the image"].answer == "fail"
    rows = [Row(image="same", text=PROMPT) for _ in range(6)]
    checks = verdict(make_run(tmp_path / "one", rows), _answers(*["yes"] * 6))
    assert checks["answers vary with the image"].answer == "cannot tell"


def test_unique_questions_cannot_show_that_images_matter(tmp_path: Path) -> None:
    """Where no two rows are asked the same nothing can be told, but for one answer to everything."""
    rows = [Row(image=f"i{n}", text="word " * (n + 1)) for n in range(6)]
    run = make_run(tmp_path / "run", rows)
    assert verdict(run, _answers("a", "b", "c", "d", "e", "f"))["answers vary with the image"].answer == "cannot tell"
    assert verdict(run, _answers(*["yes"] * 6))["answers vary with the image"].answer == "fail"


def test_answer_at_the_limit_fails(tmp_path: Path) -> None:
    """One cut answer in a smoke sample is many in the run."""
    rows = [*_answers("a", "b", "c"), Billed(text="d", finish="length", made=64)]
    check = verdict(make_run(tmp_path / "run", 4), rows)["no answer at the limit"]
    assert (check.answer, check.figure) == ("fail", "1 of 4 at the limit")


def test_json_rate_is_told_where_json_was_asked_for(tmp_path: Path) -> None:
    """Every answer must parse."""
    run = make_run(tmp_path / "run", 4, json_answer=True)
    assert verdict(run, _answers('{"a":1}', '{"a":2}', '{"a":3}', '{"a":4}'))["JSON is valid"].answer == "pass"
    check = verdict(run, _answers('{"a":1}', '{"a":2}', '{"a":3}', "no"))["JSON is valid"]
    assert (check.answer, check.figure) == ("fail", "3 of 4 (75%)")


# --- an earlier run --------------------------------------------------------------------------------------------


def _earlier(tmp_path: Path, run: RunDir, texts: list[str], **more: Any) -> str:
    """Write the records of an earlier run about the same images."""
    folder = tmp_path / "earlier"
    folder.mkdir(exist_ok=True)
    records = [
        {"custom_id": f"old-{n}", "status": "ok", "text": text, "json": None, "images": entry.images, "row": {}} | more
        for n, (entry, text) in enumerate(zip(run.iter_entries(), texts, strict=False))
    ]
    (folder / "merged.jsonl").write_bytes(b"".join(jsonl.dumps(record) + b"\n" for record in records))
    return str(folder)


NAME = "agrees with the earlier run"


def test_agreement_with_an_earlier_run_is_by_image(tmp_path: Path) -> None:
    """Rows are matched by the hash of their images, whatever their ids, and nine of ten equal answers pass."""
    run = make_run(tmp_path / "run", 10)
    texts = [f"label {n}" for n in range(10)]
    against = _earlier(tmp_path, run, texts)
    check = verdict(run, _answers(*texts[:9], "another"), against=against)[NAME]
    assert (check.answer, check.figure) == ("pass", "9 of 10 (90%)")
    check = verdict(run, _answers(*texts[:5], *["another"] * 5), against=against)[NAME]
    assert (check.answer, check.figure) == ("fail", "5 of 10 (50%)")


def test_agreement_of_free_text_is_told_not_judged(tmp_path: Path) -> None:
    """Two long descriptions may both be right without sharing a sentence."""
    run = make_run(tmp_path / "run", 3)
    check = verdict(run, _answers(*["long " * 60] * 3), against=_earlier(tmp_path, run, ["other " * 60] * 3))[NAME]
    assert (check.answer, check.figure) == ("cannot tell", "0 of 3 (0%) word for word")


def test_agreement_with_several_records_of_one_image_goes_by_the_row(tmp_path: Path) -> None:
    """Several questions about one image are told apart by their rows; what stays unclear does not count."""
    rows = [Row(image="same", row=jsonl.dumps({"q": n})) for n in range(3)]
    run = make_run(tmp_path / "run", rows)
    folder = Path(_earlier(tmp_path, run, ["a", "b", "c"]))
    lines = [json.loads(line) for line in (folder / "merged.jsonl").read_text().splitlines()]
    for n, line in enumerate(lines):
        line["row"] = {"q": n}
    (folder / "merged.jsonl").write_bytes(b"".join(jsonl.dumps(line) + b"\n" for line in lines))
    check = verdict(run, _answers("a", "b", "x"), against=str(folder))[NAME]
    assert check.figure == "2 of 3 (67%)"


def test_agreement_passes_over_lines_that_are_no_records(tmp_path: Path) -> None:
    """Torn lines and lines of another shape in the earlier run's file are no answers."""
    run = make_run(tmp_path / "run", 2)
    folder = Path(_earlier(tmp_path, run, ["a", "b"]))
    image = next(run.iter_entries()).images[0]
    odd: list[Any] = [[], {}, {"images": 5}, {"images": [1]}, {"images": [{}]}, {"images": [{"sha256": ["x"]}]}]
    odd += [{"images": [image], "status": "ok", "row": {}, "text": 5, "json": None}]
    with open(folder / "merged.jsonl", "ab") as file:
        file.write(b"".join(jsonl.dumps(line) + b"\n" for line in odd) + b'{"images":[{"sha')
    assert verdict(run, _answers("a", "b"), against=str(folder))[NAME].figure == "2 of 2 (100%)"


def test_agreement_with_nothing_in_common_cannot_be_told(tmp_path: Path) -> None:
    """Another run's images say nothing about these; a folder without records is bad input."""
    run = make_run(tmp_path / "run", 2)
    other = make_run(tmp_path / "other", [Row(image="x"), Row(image="y")])
    check = verdict(run, _answers("a", "b"), against=_earlier(tmp_path, other, ["a", "b"]))[NAME]
    assert check.answer == "cannot tell"
    with pytest.raises(InputError, match=r"no merged\.jsonl"):
        verdict(run, _answers("a", "b"), against=run.path)
