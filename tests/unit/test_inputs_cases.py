"""Every table and tree of the trouble cases, as far as the source decides it (tests/cli carries them through build)."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.trees import make_tree
from vlmbatch.errors import InputError
from vlmbatch.inputs import SourceOptions, open_source
from vlmbatch.inputs.base import Item, Rejected, Source

if TYPE_CHECKING:
    from collections.abc import Iterator

DATA = Path(__file__).resolve().parents[1] / "data"
TABLES = json.loads((DATA / "tables" / "cases.json").read_text(encoding="utf-8"))
TREES = json.loads((DATA / "trees" / "cases.json").read_text(encoding="utf-8"))

IMAGES_DECIDE = {"tree-bomb", "tree-mixed-bad", "tree-big-base64", "tree-unreadable", "tree-vanishing", "tree-exists"}
"""Trees whose faults show only when the pictures are read, or the run folder is made."""


def _options(**more: Any) -> SourceOptions:
    base = {"image_fields": ("image",), "question_field": "question", "id_fields": ("id",)}
    return SourceOptions(**{**base, **more})


def _read(source: Source) -> tuple[list[Item], list[Rejected]]:
    made = list(source)
    assert [one.index for one in made] == list(range(len(made)))
    return [m for m in made if isinstance(m, Item)], [m for m in made if isinstance(m, Rejected)]


def _check_counts(case: dict[str, Any], items: list[Item], rejected: list[Rejected]) -> None:
    check = case["check"]
    if "requests" in check:
        assert len(items) == check["requests"], rejected
    if "requests_in" in check:
        assert len(items) in check["requests_in"]
    if "rejected" in check:
        assert len(rejected) == check["rejected"]
    if "bad_lines" in check:
        assert [r.source_line for r in rejected] == check["bad_lines"]


@pytest.mark.parametrize("case", TABLES, ids=[case["id"] for case in TABLES])
def test_table_case_behaves_as_stated(case: dict[str, Any], tmp_path: Path) -> None:
    """Each table gives the stated numbers of items and bad rows, or is refused as a whole."""
    options = _options(image_base_path=str(DATA / "tables" / "images"))
    if "tree" in case:
        root = make_tree(case["tree"], tmp_path)
        path = os.path.normpath(root / case["table"])
        options = _options(image_base_path=str(root), id_fields=())
    else:
        path = str(DATA / case["files"][0])
    if "exit" in case["check"]:
        with pytest.raises(InputError) as caught:
            _read(open_source([path], options))
        for line in case["check"].get("bad_lines", []):
            assert str(line) in " ".join(str(problem) for problem in caught.value.problems)
        return
    source = open_source([path], options)
    items, rejected = _read(source)
    _check_counts(case, items, rejected)
    assert source.report.sha256 == hashlib.sha256(Path(path).read_bytes()).hexdigest()
    rows = {str(json.loads(item.row).get("id")): item for item in items}
    for key, text in case["check"].get("row_text", {}).items():
        assert text.encode() in rows[key].row
    for key, digest in case["check"].get("image_sha256", {}).items():
        assert hashlib.sha256(rows[key].images[0].read()).hexdigest() == digest
    for item in items:
        assert b"\n" not in item.row
        assert all(len(image.path) < 256 for image in item.images)
        words = {word for part in item.parts if isinstance(part, str) for word in part.split()}
        assert not {"None", "null", "nan"} & words


@pytest.mark.parametrize("case", TREES, ids=[case["id"] for case in TREES])
def test_tree_case_behaves_as_stated(case: dict[str, Any], tmp_path: Path) -> None:
    """Each folder gives the stated inputs in byte order, once each, under their own names."""
    root = make_tree(case["tree"], tmp_path)
    if "table" in case["check"]:
        table = os.path.normpath(root / case["check"]["table"])
        source = open_source([table], _options(image_base_path=str(root), id_fields=()))
    else:
        source = open_source([str(root)], SourceOptions(prompt="what?"))
    if case["check"].get("exit") and case["id"] not in IMAGES_DECIDE:
        with pytest.raises(InputError):
            list(source)
        return
    items, rejected = _read(source)
    if case["id"] not in IMAGES_DECIDE:
        _check_counts(case, items, rejected)
    paths = [item.images[0].path_bytes or item.images[0].path.encode() for item in items]
    assert paths == sorted(set(paths))
    if "order" in case["check"]:
        assert paths == [name.encode() for name in case["check"]["order"]]
    for path, item in zip(paths, items, strict=True):
        assert os.path.samefile(os.path.join(os.fsencode(root), path), item.images[0].location)


def test_tree_decomposed_name_is_found_with_one_warning(tmp_path: Path) -> None:
    """A composed spelling finds the decomposed file; the file's own name is recorded, and it is said."""
    root = make_tree("tree-nfd", tmp_path)
    source = open_source([str(tmp_path / "table.jsonl")], _options(image_base_path=str(root), id_fields=()))
    (item,), _ = _read(source)
    assert item.images[0].path == "cafe\u0301.jpg"
    assert len(source.report.warnings) == 1


def test_tree_links_are_named_and_counted(tmp_path: Path) -> None:
    """Links that are not followed are counted, named in a warning, and no path leads out of the root."""
    root = make_tree("tree-symlink-loop", tmp_path)
    source = open_source([str(root)], SourceOptions(prompt="what?"))
    items, _ = _read(source)
    assert [item.images[0].path for item in items] == ["a.jpg"]
    assert source.report.left_out == {"link": 2}
    assert "loop" in source.report.warnings[0]
    assert "sub/up" in source.report.warnings[0]


def test_tree_hidden_and_litter_are_counted_apart(tmp_path: Path) -> None:
    """What is left out by its name is counted by reason."""
    root = make_tree("tree-hidden", tmp_path)
    source = open_source([str(root)], SourceOptions(prompt="what?"))
    _read(source)
    assert source.report.left_out == {"litter": 2, "hidden": 3}


@pytest.fixture
def plain_user(tmp_path: Path) -> Iterator[Path]:
    """Return a folder that a user without privileges may use, and be such a user: root reads what is locked."""
    if os.geteuid():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, 65534, -1)
        os.seteuid(65534)
        try:
            yield Path(folder)
        finally:
            os.seteuid(0)


def test_tree_unreadable_folder_is_a_problem(plain_user: Path) -> None:
    """A folder that cannot be read is named as bad input; a locked file fails when it is read."""
    root = make_tree("tree-unreadable", plain_user / "tree")
    source = open_source([str(root)], SourceOptions(prompt="what?"))
    items, rejected = _read(source)
    assert ([item.images[0].path for item in items], rejected) == (["a.jpg", "locked.jpg"], [])
    assert [(problem.code, problem.where) for problem in source.report.problems] == [
        ("unreadable_folder", "lockeddir/")
    ]
    with pytest.raises(PermissionError):
        items[1].images[0].read()
    os.chmod(root / "lockeddir", 0o700)


def test_tree_vanished_file_fails_when_read(tmp_path: Path) -> None:
    """A file that is gone between scan and read raises, so that build makes one bad row of it."""
    root = make_tree("tree-vanishing", tmp_path)
    items, _ = _read(open_source([str(root)], SourceOptions(prompt="what?")))
    (root / "b.jpg").unlink()
    with pytest.raises(FileNotFoundError):
        items[1].images[0].read()
