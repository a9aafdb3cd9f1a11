"""What the door for single scripts refuses before it reads or asks, and ids that it must not mistake for others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.test_inference_runner import answers, call, keys, write
from tests.pictures import png
from vlmbatch.rehearsal.server import serve

if TYPE_CHECKING:
    from pathlib import Path

ROW: dict[str, Any] = {"triplet_id": 1, "condition": "a", "image_path": "a.png", "question_string": "What is this?"}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--n-concurrent", "0"], "--n-concurrent must be positive"),
        (["--n-concurrent", "-3"], "--n-concurrent must be positive"),
        (["--id-fields", ","], "--id-fields names no field"),
        (["--output", "/dev/null"], "--output is no plain file"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_options_that_cannot_work_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    """Before a line is read or a server is asked; status 2."""
    assert call(tmp_path, None, *more, rows=[ROW]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", ["in.jsonl", "link.jsonl"])
def test_input_is_never_written_to(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """An output that is the input itself, by name or by link, is refused."""
    write(tmp_path / "in.jsonl", [ROW])
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "in.jsonl")
    before = (tmp_path / "in.jsonl").read_bytes()
    assert call(tmp_path, None, "--output", str(tmp_path / name)) == 2
    assert "never written to" in capsys.readouterr().err
    assert (tmp_path / "in.jsonl").read_bytes() == before


def test_long_ids_differ_in_their_last_digit(tmp_path: Path) -> None:
    """Ids beyond 64 bits keep all their digits, in the output and where it goes on."""
    long = [{**ROW, "triplet_id": 2**70 + number} for number in range(2)]
    (tmp_path / "a.png").write_bytes(png(50, 40))
    with serve() as server:
        assert call(tmp_path, server, rows=long) == 0
        assert keys(answers(tmp_path)) == keys(long)
        assert call(tmp_path, server, rows=[*long, {**ROW, "triplet_id": 2**70 + 2}]) == 0
        assert server.requests == 3
