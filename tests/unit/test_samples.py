"""The sample images: a dozen, varied, the same every time, with a table that fits them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from vlmbatch.errors import InputError
from vlmbatch.rehearsal import samples

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of sample images."""
    path = tmp_path_factory.mktemp("drawn") / "samples"
    samples.draw(str(path))
    return path


def test_a_dozen_images_of_three_formats_and_many_sizes(folder: Path) -> None:
    """They are what their names say, and no two are of one size and format."""
    seen = set()
    formats = set()
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix != ".jsonl"):
        with Image.open(path) as image:
            image.load()
            assert image.format == {".png": "PNG", ".jpg": "JPEG", ".webp": "WEBP"}[path.suffix]
            formats.add(image.format)
            seen.add((image.format, image.size))
            assert len(image.convert("RGB").getcolors(1 << 24) or []) > 50
    assert len(seen) == 12
    assert formats == {"PNG", "JPEG", "WEBP"}


def test_table_names_every_image_once(folder: Path) -> None:
    """The table beside them has a question and an answer for each."""
    rows = [json.loads(line) for line in (folder / samples.TABLE).read_text().splitlines()]
    files = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and p.suffix != ".jsonl"}
    assert sorted(row["image_path"] for row in rows) == sorted(files)
    assert all(row["question_string"] and row["expected"] for row in rows)


def test_drawing_twice_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    """Nothing in a drawing depends on the moment."""
    samples.draw(str(tmp_path / "again"))
    for path in (p for p in folder.rglob("*") if p.is_file()):
        assert (tmp_path / "again" / path.relative_to(folder)).read_bytes() == path.read_bytes()


def test_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    """Nothing is written over."""
    (tmp_path / "mine.png").write_bytes(b"x")
    with pytest.raises(InputError, match="not empty"):
        samples.draw(str(tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["mine.png"]


def test_command_says_what_it_drew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command line returns 0 and names the folder, or 2 and the reason."""
    assert samples.main([str(tmp_path / "s")]) == 0
    assert "12 images" in capsys.readouterr().out
    assert samples.main([str(tmp_path / "s")]) == 2
    assert "not empty" in capsys.readouterr().err
