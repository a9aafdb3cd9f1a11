"""docs/reference/rejections.md has every code under which build refuses an input, and no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from vlmbatch.providers import limits
from vlmbatch.providers.base import Limits

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "rejections.md").read_text(encoding="utf-8")
_MAKERS = {"RowError": 0, "ImageError": 0, "field_of": 2, "_reject": 2, "_rejected": 2, "Problem": 0}
"""What makes a refusal of an input, and which argument its code is."""

_OF_OPTIONS = ("pipeline", "variables", "template")
"""Modules that refuse options and pipeline files with :class:`Problem`, not inputs."""

_OPTION_CODES = {"bad_option", "usage"}
"""The same, where modules do both."""


def _said() -> set[str]:
    """Return the codes that stand in the program's text."""
    package = ROOT / "vlmbatch"
    files = [*(package / "inputs").glob("*.py"), *(package / "images").glob("*.py"), package / "stages" / "build.py"]
    codes = set()
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = getattr(node.func, "id", getattr(node.func, "attr", "")) if isinstance(node, ast.Call) else ""
            if name not in _MAKERS or (name == "Problem" and path.stem.startswith(_OF_OPTIONS)):
                continue
            arguments = node.args[_MAKERS[name] :][:1]  # type: ignore[attr-defined]
            codes |= {one.value for one in arguments if isinstance(one, ast.Constant)}
    return codes


def _of_limits() -> set[str]:
    """Return the codes of what a provider does not take: the limits of one request."""
    of_jobs = {"batch_file_bytes", "batch_requests"}
    return {"media_type", *Limits._fields} - {"media_types", "many_images", "warn"} - of_jobs


def test_every_code_has_its_row_and_every_row_its_code() -> None:
    """Whoever finds a code in rejected.jsonl finds it on the page."""
    rows = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    codes = (_said() - _OPTION_CODES) | _of_limits()
    assert len(codes) > 40
    assert rows == codes


def test_every_limit_that_can_be_changed_has_a_way_out() -> None:
    """The hint of build names an option for each, and nothing for codes that are no limits."""
    for code in _of_limits() - {"media_type", "animated"}:
        assert f"--limit-override {code}=N" in " ".join(limits.ways_out({code, "truncated"}))
    assert limits.ways_out({"truncated", "media_type"}) == []
