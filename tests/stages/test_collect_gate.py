"""The gate before delivery: what it asks, what it finds, and how conditions are written."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.stages.result_runs import attempt, completion, failed, make_run, write_results
from vlmbatch.errors import InputError
from vlmbatch.stages.collect import CollectOptions, collect
from vlmbatch.stages.collecting.gate import DEFAULTS, Condition, parse_condition, parse_field

if TYPE_CHECKING:
    from vlmbatch.rundir import RunDir
    from vlmbatch.stages.collecting.gate import Check


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return make_run(tmp_path / "run", 4)


def _gate(run: RunDir, *values: Any, **options: Any) -> dict[str, Check]:
    write_results(run, "a.jsonl", values)
    return {check.name: check for check in collect(run, (), CollectOptions(**options)).checks}


# --- the language --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("refusal<=2%", Condition("refusal", "<=", Decimal(2), True)),
        (" refusal <= 2 % ", Condition("refusal", "<=", Decimal(2), True)),
        ("ok>=99.5%", Condition("ok", ">=", Decimal("99.5"), True)),
        ("missing=0", Condition("missing", "==", Decimal(0), False)),
        ("models==1", Condition("models", "==", Decimal(1), False)),
        ("cost.total_usd<5", Condition("cost.total_usd", "<", Decimal(5), False)),
        ("torn_lines!=3", Condition("torn_lines", "!=", Decimal(3), False)),
    ],
)
def test_condition_is_read_as_written(text: str, expected: Condition) -> None:
    """Name, sign, number, share."""
    assert parse_condition(text) == expected


@pytest.mark.parametrize(
    "text", ["", "refusal", "refusal<=", "<=2%", "refusal=<2", "refusal<=-1", "refusal<=2%%", "a<b<3"]
)
def test_condition_that_is_none_is_refused(text: str) -> None:
    """A slip is an error before anything is read."""
    with pytest.raises(InputError, match="not a condition"):
        parse_condition(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("label", Condition("field:label", ">=", Decimal(100), True)),
        ("box.width >= 90 %", Condition("field:box.width", ">=", Decimal(90), True)),
    ],
)
def test_field_alone_asks_for_all(text: str, expected: Condition) -> None:
    """A required field is asked of every ok answer unless a share is given."""
    assert parse_field(text) == expected


@pytest.mark.parametrize("text", ["", " ", "label>", "100%"])
def test_field_that_is_none_is_refused(text: str) -> None:
    """A slip is an error before anything is read."""
    with pytest.raises(InputError):
        parse_field(text)


def test_unknown_number_is_refused_before_anything_is_written(run: RunDir, tmp_path: Path) -> None:
    """A condition on what nobody counts is an error, and no file is written."""
    write = tmp_path / "merged.jsonl"
    for text in ("refusals<=2%", "counts<=2", "run.model==1", "cost.total_usd<=2%"):
        with pytest.raises(InputError):
            collect(run, (), CollectOptions(write=str(write), require=[text]))
    assert not write.exists()


# --- the defaults --------------------------------------------------------------------------------------------


def test_gate_whole_run_passes_every_line(run: RunDir) -> None:
    """Four good answers meet what a delivery should meet."""
    checks = _gate(run, *(attempt(run, n, completion("a")) for n in range(4)), gate=True)
    assert list(checks) == list(DEFAULTS)
    assert all(check.holds for check in checks.values())
    assert checks["complete"].detail == "0 of 4 (0 %)"


@pytest.mark.parametrize(
    ("spoilt", "name"),
    [
        (None, "complete"),
        (500, "no failures"),
        (completion("cu", finish="length"), "none at the cap"),
        (completion(None, finish="length"), "none at the cap"),
        (completion(""), "empty answers"),
        (completion(None, finish="content_filter"), "refusals"),
        (completion("a", used=14), "image receipts"),
    ],
)
def test_gate_one_bad_row_fails_its_line_alone(run: RunDir, spoilt: Any, name: str) -> None:
    """Each way of falling short is caught by one line, with its figure."""
    values = [attempt(run, n, completion("a")) for n in range(3)]
    if spoilt is not None:
        values.append(failed(run, 3) if spoilt == 500 else attempt(run, 3, spoilt))
    checks = _gate(run, *values, gate=True)
    assert [check.name for check in checks.values() if not check.holds] == [name]
    assert checks[name].detail.startswith(("1 of 4 (25 %)", "3 of 4 (75 %)"))


def test_gate_condition_takes_the_place_of_its_default(run: RunDir) -> None:
    """The user's bound on refusals replaces ours; other lines stay."""
    values = [attempt(run, n, completion("a")) for n in range(3)]
    values.append(attempt(run, 3, completion(None, finish="content_filter")))
    checks = _gate(run, *values, gate=True, require=["refusal<=30%"])
    assert len(checks) == len(DEFAULTS)
    assert checks["refusal"].holds
    assert "refusals" not in checks


def test_require_without_gate_asks_that_alone(run: RunDir) -> None:
    """--require needs no --gate and brings no defaults."""
    checks = _gate(run, attempt(run, 0, completion("a")), require=["missing<=3", "ok>=25%", "latency_s.p95<=1"])
    assert [(check.name, check.holds) for check in checks.values()] == [
        ("missing", True),
        ("ok", True),
        ("latency_s.p95", False),
    ]


def test_require_number_that_is_unknown_fails(run: RunDir) -> None:
    """A cost that nobody can tell does not pass as one that is low."""
    (check,) = _gate(run, attempt(run, 0, completion("a")), require=["cost.total_usd<=5"]).values()
    assert (check.holds, check.detail) == (False, "cost.total_usd is not known")


def test_gate_exact_bound_is_exact(tmp_path: Path) -> None:
    """One of fifty is 2 %, neither more nor less: no rounding decides."""
    run = make_run(tmp_path / "fifty", 50)
    values = [attempt(run, n, completion("a")) for n in range(49)]
    values.append(attempt(run, 49, completion(None, finish="content_filter")))
    write_results(run, "a.jsonl", values)
    found = collect(run, (), CollectOptions(require=["refusal<=2%", "refusal<2%"])).checks
    assert [check.holds for check in found] == [True, False]


def test_gate_required_fields_are_counted_over_ok_answers(run: RunDir) -> None:
    """Null, blank, empty list and no field at all are not filled; zero and false are."""
    said = ['{"a": {"b": "x"}}', '{"a": {"b": 0}}', '{"a": {"b": false}}', '{"a": {"b": " "}}']
    values = [attempt(run, n, completion(text)) for n, text in enumerate(said)]
    checks = _gate(run, *values, expect_json=True, require_fields=["a.b", "a>=100%", "a.b.c<=0%"])
    assert checks["field a.b"].detail == "3 of 4 (75 %)"
    assert not checks["field a.b"].holds
    assert checks["field a"].holds
    assert checks["field a.b.c"].holds


@pytest.mark.parametrize("text", ["null", "[]", "{}", '""', '"  "'])
def test_gate_required_field_that_is_empty_is_not_filled(run: RunDir, text: str) -> None:
    """Every form of nothing counts as nothing."""
    checks = _gate(run, attempt(run, 0, completion(f'{{"a": {text}}}')), expect_json=True, require_fields=["a"])
    assert checks["field a"].detail == "0 of 1 (0 %)"


def test_required_field_of_a_run_without_json_is_refused(run: RunDir) -> None:
    """Fields are fields of JSON answers."""
    with pytest.raises(InputError, match="JSON"):
        collect(run, (), CollectOptions(require_fields=["a"]))


def test_gate_receipts_believe_the_providers_own_count(run: RunDir) -> None:
    """Where image tokens are told apart they decide; an answer that tells nothing proves nothing."""
    seen, unseen, silent = completion("a"), completion("a"), completion("a")
    seen["usage"] |= {"prompt_tokens": 30, "prompt_tokens_details": {"image_tokens": 16}}
    unseen["usage"]["prompt_tokens_details"] = {"image_tokens": 0}
    del silent["usage"]
    values = [attempt(run, n, answer) for n, answer in enumerate((seen, unseen, silent))]
    assert _gate(run, *values, gate=True)["image receipts"].detail == "1 of 3 (33.33 %)"


def test_gate_share_of_nothing_holds_and_says_so(run: RunDir) -> None:
    """Without any answer there is nothing that a receipt could be missing for; completeness fails instead."""
    checks = _gate(run, gate=True)
    assert checks["image receipts"].holds
    assert "nothing" in checks["image receipts"].detail
    assert not checks["complete"].holds


def test_gate_lines_stand_in_the_summary(run: RunDir) -> None:
    """The summary keeps name, condition, verdict and figure of each line."""
    summary = collect(run, (), CollectOptions(require=["missing==0"])).summary
    assert summary["checks"] == [{"name": "missing", "asked": "missing==0", "holds": False, "detail": "4 of 4 (100 %)"}]


# --- what is not known, and whose fields are asked for -------------------------------------------------------


@pytest.mark.parametrize("reviews", [None, b""])
@pytest.mark.parametrize("condition", ["accepted>=90%", "accepted>=1", "rejected<=5%"])
def test_share_of_reviews_that_nobody_made_does_not_hold(run: RunDir, reviews: bytes | None, condition: str) -> None:
    """Without a single review nothing is accepted, and nothing is known to be right."""
    if reviews is not None:
        Path(run.file("reviews.jsonl")).write_bytes(reviews)
    (check,) = _gate(run, require=[condition]).values()
    assert not check.holds
    assert "not known" in check.detail


def test_required_field_is_asked_of_the_outputs_that_are_json(tmp_path: Path) -> None:
    """Of a pipeline's outputs those that are plain text have no fields, and need none."""
    answer = {"json": False, "outputs": {"a": {"json": True}, "b": {"json": False}}}
    run = make_run(tmp_path / "mixed", 2, outputs=("a", "b"), answer=answer)
    values = [attempt(run, n, completion(text)) for n, text in enumerate(['{"x":1}', "text", '{"x":null}', "text"])]
    checks = _gate(run, *values, require_fields=["x>=50%"])
    assert checks["field x"].holds
    assert checks["field x"].detail == "1 of 2 (50 %)"


def test_required_field_of_one_output_is_asked_of_that_one_alone(tmp_path: Path) -> None:
    """Two JSON outputs of a row have fields of their own; a name before the path says whose is meant."""
    answer = {"json": True, "outputs": {"a": {"json": True}, "b.c": {"json": True}}}
    run = make_run(tmp_path / "two", 2, outputs=("a", "b.c"), answer=answer)
    said = ['{"x":1}', '{"a":{"x":1}}', '{"x":1}', '{"y":1}']
    values = [attempt(run, n, completion(text)) for n, text in enumerate(said)]
    checks = _gate(run, *values, require_fields=["x", "a.x", "b.c.y>=50%", "b.c.a.x<=50%", "a.a.x==0"])
    assert {name: (check.holds, check.detail) for name, check in checks.items()} == {
        "field x": (False, "2 of 4 (50 %)"),
        "field a.x": (True, "2 of 2 (100 %)"),
        "field b.c.y": (True, "1 of 2 (50 %)"),
        "field b.c.a.x": (True, "1 of 2 (50 %)"),
        "field a.a.x": (True, "0 of 2 (0 %)"),
    }


def test_required_field_of_an_output_that_is_text_is_refused(tmp_path: Path) -> None:
    """A condition that no answer can be held against is a slip."""
    answer = {"json": False, "outputs": {"a": {"json": True}, "b": {"json": False}}}
    run = make_run(tmp_path / "mixed", 1, outputs=("a", "b"), answer=answer)
    with pytest.raises(InputError, match="and b has none"):
        collect(run, (), CollectOptions(require_fields=["b.x"]))


@pytest.mark.parametrize("path", ["models.gpt-4.1==2", "files.0.records==2"])
def test_number_is_found_by_its_path_whatever_dots_it_holds(run: RunDir, path: str) -> None:
    """Every path that --explain knows can be asked for."""
    values = [attempt(run, n, completion("a", model="gpt-4.1")) for n in range(2)]
    (check,) = _gate(run, *values, require=[path]).values()
    assert check.holds, check
