"""The page on working from Python does what it says: its blocks run, in order, against a rehearsal provider."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlmbatch.rehearsal.samples import draw
from vlmbatch.rehearsal.server import serve

if TYPE_CHECKING:
    import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "python.md"


def test_blocks_of_the_python_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every block runs as it stands; rows are asked once, whoever asks again."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    draw(tmp_path / "samples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MY_KEY", "sk-CANARY-0123456789abcdef")
    with serve() as server:
        names: dict[str, Any] = {"base_url": server.base_url}
        for number, block in enumerate(blocks):
            exec(compile(block, f"{PAGE.name}, block {number + 1}", "exec"), names)  # noqa: S102
        assert server.requests == 12 + 12 + 2
    told = capsys.readouterr().out
    assert "12 requests" in told
    assert "12 had an answer already" in told
    assert len(blocks) == 5
