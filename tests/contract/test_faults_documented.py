"""docs/reference/faults.md names every key that a faults file may hold, and no other."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

from vlmbatch.rehearsal.faults import ANSWER_FAULTS, BATCH_ENDS, TRY_FAULTS, BatchFaults, Faults, parse_faults

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "faults.md").read_text(encoding="utf-8")


def test_every_key_has_its_row_and_every_row_its_key() -> None:
    """The tables of the page are the fields of the program."""
    rows = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    known = {one.name for one in fields(Faults)} | {one.name for one in fields(BatchFaults)}
    assert rows == known | {*TRY_FAULTS, *ANSWER_FAULTS}


def test_every_end_is_named() -> None:
    """How a job may end stands on the page."""
    assert all(f"`{end}`" in PAGE for end in BATCH_ENDS)


def test_example_is_a_good_file() -> None:
    """What the page shows can be used as it is."""
    (example,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert parse_faults(json.loads(example)).seed == 7


def test_defaults_are_those_of_the_program() -> None:
    """The plain numbers in the last column are the program's own."""
    told = dict(re.findall(r"^\| `(\w+)` \|.*\| (\d+) \|$", PAGE, re.MULTILINE))
    faults = Faults()
    for name, value in told.items():
        holder = faults.batch if hasattr(faults.batch, name) else faults
        actual = getattr(holder, name)
        assert float(value) == float(actual[0] if isinstance(actual, tuple) else actual), name
    assert len(told) > 8
