"""The pages on collect name what is there: every record key, status, gate line and condition."""

from __future__ import annotations

import re
from pathlib import Path

from vlmbatch.records import Record, Status
from vlmbatch.stages.collecting.gate import DEFAULTS

DOCS = Path(__file__).resolve().parents[2] / "docs"


def _rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the table whose heading row starts so."""
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith(heading)) + 2
    table = [line for line in lines[start : lines.index("", start)] if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_every_record_key_is_documented() -> None:
    """The how-to names each key of a record, and no other."""
    named = {key for row in _rows("how-to/collect.md", "| key |") for key in re.findall(r"`(\w+)`", row[0])}
    assert named == set(Record.__annotations__)


def test_every_status_is_documented() -> None:
    """The reference has a row for each of the nine, in their order."""
    assert [row[0].strip("`") for row in _rows("reference/statuses.md", "| status |")] == [str(one) for one in Status]


def test_every_gate_line_is_documented_with_its_condition() -> None:
    """The how-to's table is the gate's own."""
    rows = _rows("how-to/gate.md", "| line |")
    assert {row[0]: row[1].strip("`") for row in rows} == DEFAULTS
