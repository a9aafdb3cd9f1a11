"""Two runs on the inputs that both have, known by the hash of their images."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.stages.result_runs import attempt, completion, make_run, write_results
from vlmbatch.errors import InputError, IntegrityError
from vlmbatch.stages.collect import CollectOptions, collect


def _run(path: Path, answers: dict[str, Any], **options: Any) -> str:
    """Build a run over images and answer some of them; return its folder."""
    run = make_run(path, len(answers), images=list(answers), **options)
    values = [attempt(run, n, answer) for n, answer in enumerate(answers.values()) if answer is not None]
    write_results(run, "a.jsonl", values)
    return run.path


def _compare(one: str, *others: str, **options: Any) -> list[dict[str, Any]]:
    return list(collect(one, (), CollectOptions(compare=others, **options)).comparisons)


def test_compare_is_on_images_whatever_their_place(tmp_path: Path) -> None:
    """Inputs are matched by image; ids, order and inputs of one run alone do not matter."""
    one = _run(tmp_path / "one", {"cat": completion("a cat"), "dog": completion("a dog"), "elk": completion("an elk")})
    two = _run(
        tmp_path / "two", {"dog": completion(" a dog\n"), "fox": completion("a fox"), "cat": completion("a lion")}
    )
    (told,) = _compare(one, two)
    assert (told["matched"], told["only_here"], told["only_there"], told["unclear"]) == (2, 1, 1, 0)
    assert told["agreement"] == {"both_ok": 2, "equal": 1, "rate": 0.5}
    assert told["run"] == "two"
    assert told["here"]["counts"]["ok"] == told["there"]["counts"]["ok"] == 2


def test_compare_tells_statuses_as_columns_and_what_changed(tmp_path: Path) -> None:
    """Refusals, empties and missing rows are rates side by side, and each change of status is counted."""
    refused, blank = completion(None, finish="content_filter"), completion("")
    one = _run(tmp_path / "one", {"a": completion("x"), "b": refused, "c": blank, "d": None})
    two = _run(tmp_path / "two", {"a": completion("x"), "b": completion("x"), "c": completion("x"), "d": refused})
    (told,) = _compare(one, two)
    assert (told["here"]["refusal_rate"], told["here"]["empty_rate"], told["here"]["failed_rate"]) == (0.25, 0.25, 0.25)
    assert (told["there"]["ok_rate"], told["there"]["refusal_rate"]) == (0.75, 0.25)
    assert {(one["here"], one["there"]): one["count"] for one in told["changes"]} == {
        ("refusal", "ok"): 1,
        ("empty", "ok"): 1,
        ("missing", "refusal"): 1,
    }


def test_compare_json_answers_by_value_and_by_field(tmp_path: Path) -> None:
    """Key order and spaces are no difference; fields are compared one by one."""
    one = _run(tmp_path / "one", {"a": completion('{"k": 1, "l": [1]}'), "b": completion('{"k": 1, "l": 2}')})
    two = _run(tmp_path / "two", {"a": completion('{"l":[1],"k":1}'), "b": completion('{"k": 2, "l": 2}')})
    (told,) = _compare(one, two, expect_json=True)
    assert told["agreement"]["equal"] == 1
    whole = {"filled_here": 1.0, "filled_there": 1.0}
    assert told["fields"] == {
        "k": {"both": 2, "equal": 1, "rate": 0.5, **whole},
        "l": {"both": 2, "equal": 2, "rate": 1.0, **whole},
    }


def test_compare_tells_how_often_each_side_fills_a_field(tmp_path: Path) -> None:
    """A teacher that leaves a field empty, or out, shows beside one that fills it."""
    one = _run(tmp_path / "one", {"a": completion('{"k": ""}'), "b": completion('{"k": "x"}')})
    two = _run(tmp_path / "two", {"a": completion('{"k": "x", "l": 0}'), "b": completion('{"k": "x"}')})
    (told,) = _compare(one, two, expect_json=True)
    filled = {name: (field["filled_here"], field["filled_there"]) for name, field in told["fields"].items()}
    assert filled == {"k": (0.5, 1.0), "l": (0.0, 0.5)}


def test_compare_several_questions_on_one_image_are_told_apart_by_row(tmp_path: Path) -> None:
    """The same image with two questions is matched question by question; equal rows twice cannot be."""
    rows = [b'{"q":"colour"}', b'{"q":"shape"}', b'{"q":"twin"}', b'{"q":"twin"}']
    folders = []
    for name, order in (("one", [0, 1, 2, 3]), ("two", [1, 0, 2, 3])):
        run = make_run(tmp_path / name, [rows[n] for n in order], images=["same"] * 4)
        write_results(run, "a.jsonl", [attempt(run, at, completion(f"answer {n}")) for at, n in enumerate(order)])
        folders.append(run.path)
    (told,) = _compare(*folders)
    assert (told["matched"], told["unclear"], told["agreement"]["equal"]) == (2, 2, 2)


def test_compare_several_teachers_side_by_side(tmp_path: Path) -> None:
    """Each other run has its own comparison, in the order given; cost stands beside."""
    folders = [_run(tmp_path / name, {"a": completion(name)}) for name in ("one", "two", "three")]
    prices = b'{"schema":"vlmbatch.estimate/1","price_in_usd_per_mtok":"1","price_out_usd_per_mtok":"1"}\n'
    (Path(folders[2]) / "estimates.jsonl").write_bytes(prices)
    told = _compare(*folders)
    assert [one["run"] for one in told] == ["two", "three"]
    assert [one["there"]["cost_usd"] for one in told] == [None, "0.000821"]


def test_compare_checks_the_other_run_too(tmp_path: Path) -> None:
    """A changed manifest or foreign results in the other run stop the comparison."""
    one, two = (_run(tmp_path / name, {"a": completion("x")}) for name in ("one", "two"))
    with pytest.raises(InputError):
        _compare(one, str(tmp_path / "none"))
    manifest = Path(two) / "manifest.jsonl"
    os.chmod(manifest, 0o600)
    manifest.write_bytes(manifest.read_bytes().replace(b"set/", b"SET/"))
    with pytest.raises(IntegrityError):
        _compare(one, two)


def test_json_is_compared_by_value(tmp_path: Path) -> None:
    """1.0 is 1, in whatever order keys stand; true is not 1, and text is not a number."""
    pairs = {
        "a": ('{"n":1,"m":[2]}', '{"m":[2.0],"n":1.0}'),
        "b": ('{"n":1}', '{"n":true}'),
        "c": ('{"n":1}', '{"n":"1"}'),
    }
    one, two = (
        _run(tmp_path / str(side), {name: completion(pair[side]) for name, pair in pairs.items()}) for side in (0, 1)
    )
    (told,) = _compare(one, two, expect_json=True)
    assert told["agreement"] == {"both_ok": 3, "equal": 1, "rate": 0.333333}
    assert told["fields"]["n"]["equal"] == 1
