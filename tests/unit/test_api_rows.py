"""Rows from Python: every kind of value has its JSON or makes its row a bad one, and images may be in memory."""

from __future__ import annotations

import base64
import datetime as dt
import enum
import uuid
from collections import UserDict
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.pictures import jpeg, png
from vlmbatch import BuildOptions, InputError, Run, jsonl
from vlmbatch.images import as_png, inspect


class NaT(dt.datetime):
    """What pandas has for a missing time: a time that equals nothing."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return False

    def __ne__(self, other: object) -> bool:
        return True


class NA:
    """What pandas has for a missing value: it does not even tell whether it equals itself."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> Any:
        return self

    def __ne__(self, other: object) -> Any:
        return self

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")


class Number:
    """A number out of an array, as NumPy has it."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def tolist(self) -> Any:
        return self._value


class Moment(Number):
    """A time out of an array, which turns into a number of whatever unit it has."""

    dtype = SimpleNamespace(kind="M")


class Colour(enum.Enum):
    """A choice."""

    RED = "red"


def build(tmp_path: Path, rows: Any, **more: Any) -> Run:
    """Return a run over rows, with a picture a.png at hand."""
    (tmp_path / "a.png").write_bytes(png(50, 40))
    given: dict[str, Any] = {
        "model": "m",
        "out": str(tmp_path / f"run-{len(list(tmp_path.iterdir()))}"),
        "question_field": "question",
        "image_base_path": str(tmp_path),
        "skip_bad": True,
    }
    return Run.build(BuildOptions(rows=rows, **{**given, **more}))


def row(**more: Any) -> dict[str, Any]:
    """Return a good row."""
    return {"image_path": "a.png", "question": "What?", **more}


def kept(run: Run) -> list[Any]:
    """Return the rows as the manifest has them."""
    return [jsonl.loads_exact(entry.row) for entry in run.manifest()]


# --- values ----------------------------------------------------------------------------------------------------------

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.text(), _JSON, max_size=4), min_size=1, max_size=4))
def test_rows_of_json_are_kept_as_they_are(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    """What JSON has comes back equal, in order, integers of any size and odd names among it."""
    rows = [row(**one) | row() for one in rows]
    assert kept(build(tmp_path, rows)) == rows


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Path("a/b"), "a/b"),
        (dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC), "2024-07-01T12:00:00+00:00"),
        (dt.date(2024, 7, 1), "2024-07-01"),
        (dt.time(12, 30), "12:30:00"),
        (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (Decimal("1.50"), "1.50"),
        (Colour.RED, "red"),
        (b"\x00\xff", "AP8="),
        (bytearray(b"\x00"), "AA=="),
        ((1, (2,)), [1, [2]]),
        (UserDict({"x": UserDict({1: 2})}), {"x": {"1": 2}}),
        (2**70, 2**70),
        (Number(5), 5),
        (Number([[1, Number(2)], [3, 4.5]]), [[1, 2], [3, 4.5]]),
        (float("nan"), None),
        (float("-inf"), None),
        ([1.5, float("nan")], [1.5, None]),
        (NaT(2024, 7, 1), None),
        (NA(), None),
        (Number(float("nan")), None),
        (Image.new("RGB", (2, 2)), {"path": None}),
        ({"bytes": b"x", "path": "p.png"}, {"bytes": "eA==", "path": "p.png"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_value_has_its_json(tmp_path: Path, value: Any, expected: Any) -> None:
    """One rule per type; None stands for what is missing."""
    assert kept(build(tmp_path, [row(x=value)])) == [row(x=expected)]


def test_missing_values_are_counted(tmp_path: Path) -> None:
    """Null is not what was given, so it is said how often it stands for something else."""
    run = build(tmp_path, [row(x=float("nan"), y=1), row(x=NA(), y=[float("inf")])])
    assert [one for one in run.warnings if "stand as null" in one] == [
        "rows: 2 missing, NaN or infinite value(s) of field 'x' stand as null",
        "rows: 1 missing, NaN or infinite value(s) of field 'y' stand as null",
    ]


def _endless() -> list[Any]:
    endless: list[Any] = []
    endless.append(endless)
    return endless


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (None, "not_an_object"),
        ([1], "not_an_object"),
        ("text", "not_an_object"),
        (row(x={1, 2}), "bad_value"),
        (row(x=object()), "bad_value"),
        (row(x=1j), "bad_value"),
        (row(x=Moment(1577836800000000000)), "bad_value"),
        ({**row(), ("a", 1): 2}, "bad_value"),
        ({**row(), 1: 2, "1": 3}, "duplicate_key"),
        (row(x=[{1: 2, "1": 3}]), "duplicate_key"),
        (row(x=_endless()), "too_deep"),
        (row(x="\ud800"), "lone_surrogate"),
        (row(question="\ud800"), "lone_surrogate"),
        ({**row(), "\udfff": 1}, "lone_surrogate"),
        (row(image_path=float("nan")), "no_image"),
        (row(image_path=7), "bad_image"),
        (row(image_path=[[png(2, 2)]]), "bad_image"),
        (row(image_path=b"no picture"), "not_an_image"),
        (row(image_path=Image.new("CMYK", (2, 2))), "cannot_convert"),
        ({}, "no_image"),
    ],
)
def test_row_that_fits_no_rule_is_a_bad_one(tmp_path: Path, bad: Any, code: str) -> None:
    """It is rejected with its number and its cause; the others are built."""
    run = build(tmp_path, [row(), bad, row()])
    assert [entry.source_line for entry in run.manifest()] == [1, 3]
    (rejection,) = run.rejected()
    assert (rejection["source_line"], rejection["reason"]["code"]) == (2, code)


@pytest.mark.parametrize(
    "rows", [{"image_path": "a.png"}, "rows", b"rows", 7, type("DataFrame", (list,), {"columns": ["x"]})()]
)
def test_what_is_no_list_of_rows_is_refused(tmp_path: Path, rows: Any) -> None:
    """An object, a text or a data frame could be iterated over, and would give nonsense."""
    with pytest.raises(InputError, match="rows come as a list of objects"):
        build(tmp_path, rows)


def test_sources_and_rows_exclude_each_other(tmp_path: Path) -> None:
    """A run is about the one or the other; and no rows are none."""
    with pytest.raises(InputError) as caught:
        build(tmp_path, [row()], sources=[str(tmp_path)])
    assert "sources and rows exclude each other" in str(caught.value.problems[0])
    with pytest.raises(InputError, match="no rows"):
        build(tmp_path, iter(()))


# --- runs ------------------------------------------------------------------------------------------------------------


def test_rows_make_the_same_requests_as_their_table(tmp_path: Path) -> None:
    """The frozen lines are those of the same rows in a JSONL file, ids and all."""
    rows = [row(n=number, question=f"q{number}") for number in range(5)]
    (tmp_path / "table.jsonl").write_bytes(b"".join(jsonl.dumps(one) + b"\n" for one in rows))
    table = build(tmp_path, None, sources=[str(tmp_path / "table.jsonl")])
    memory = build(tmp_path, rows)
    assert list(memory.manifest()) == list(table.manifest())
    assert memory.info["source"]["kind"] == "rows"
    assert memory.info["source"]["sha256"] == table.info["source"]["sha256"]


def test_rows_are_taken_one_by_one(tmp_path: Path) -> None:
    """A generator is never far ahead of what is written: rows need not fit into memory."""
    ahead: list[int] = []
    asked = 0

    def rows() -> Any:
        nonlocal asked
        for asked in range(1, 301):
            yield row(n=asked)

    run = Run.build(
        BuildOptions(
            rows=rows(),
            model="m",
            out=str(tmp_path / "run"),
            question_field="question",
            allow_no_image=True,
            image_field=("none",),
            workers=1,
        ),
        on_event=lambda event: ahead.append(asked - event.done),
    )
    assert len(run) == 300
    assert max(ahead) < 10


def test_two_rows_of_one_id_stop_the_build(tmp_path: Path) -> None:
    """As in a table; numbers and texts are different ids, and so are long numbers that differ in the last digit."""
    long = [row(id=2**70), row(id=2**70 + 1)]
    assert len(build(tmp_path, [row(id=1), row(id="1"), *long], id_fields=("id",))) == 4
    with pytest.raises(InputError, match="repeat an id"):
        build(tmp_path, [row(id=Number(1)), row(id=1)], id_fields=("id",))


# --- images in memory ------------------------------------------------------------------------------------------------


def _sent(run: Run) -> list[bytes]:
    """Return the images of all requests, as the frozen bodies hold them."""
    found: list[bytes] = []
    for file in sorted(Path(run.path, "shards").iterdir()):
        for line in file.read_bytes().splitlines():
            parts = jsonl.loads(line)["body"]["messages"][0]["content"]
            uris = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
            found += [base64.b64decode(uri.partition(",")[2]) for uri in uris]
    return found


def test_bytes_are_frozen_as_they_are(tmp_path: Path) -> None:
    """The kind of a file is read off its bytes; nothing of it stands in the row, whatever holds the bytes."""
    files = [jpeg(30, 20), png(31, 21), jpeg(32, 22), png(33, 23)]
    values = [files[0], bytearray(files[1]), memoryview(files[2]), {"bytes": files[3], "path": "own/name.png"}]
    run = build(tmp_path, [row(image_path=value) for value in values])
    assert _sent(run) == files
    images = [entry.images[0] for entry in run.manifest()]
    assert [image["media_type"] for image in images] == ["image/jpeg", "image/png", "image/jpeg", "image/png"]
    assert [image["sha256"] for image in images] == [jsonl.sha256(file) for file in files]
    assert [image["path"] for image in images][2:] == ["row-3-image-0", "own/name.png"]
    assert [one["image_path"] for one in kept(run)] == [{"path": None}] * 3 + [{"path": "own/name.png"}]
    assert "pillow" not in run.info["libraries"]


def test_pixels_are_frozen_as_png(tmp_path: Path) -> None:
    """A picture of Pillow's becomes the same PNG every time, and run.json names what wrote it."""
    picture = Image.effect_noise((40, 30), 60)
    rows = [row(image_path=picture), row(image_path=[picture, Path("a.png"), jpeg(9, 8)])]
    run, again = build(tmp_path, rows), build(tmp_path, rows)
    assert _sent(run) == [as_png(picture), as_png(picture), png(50, 40), jpeg(9, 8)]
    assert inspect(_sent(run)[0]).width == 40
    assert kept(run)[1]["image_path"] == [{"path": None}, "a.png", {"path": None}]
    assert "pillow" in run.info["libraries"]
    assert again.fingerprint == run.fingerprint


def test_data_uris_are_images_too(tmp_path: Path) -> None:
    """As in a table; bare base64 is refused with the reason."""
    text = base64.b64encode(jpeg(30, 20)).decode()
    run = build(tmp_path, [row(image_path=f"data:image/png;base64,{text}"), row(image_path=text)])
    assert _sent(run) == [jpeg(30, 20)]
    assert [entry.images[0]["media_type"] for entry in run.manifest()] == ["image/jpeg"]
    assert [rejection["reason"]["code"] for rejection in run.rejected()] == ["bare_base64"]
