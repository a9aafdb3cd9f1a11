"""Rows become items: paths and roots, image forms, questions, ids, several tables, and options that contradict."""

from __future__ import annotations

import ast
import base64
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmbatch.errors import InputError
from vlmbatch.inputs import SourceOptions, open_source
from vlmbatch.inputs.base import Item, Rejected
from vlmbatch.inputs.ids import SeenIds

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return an image root with a few files, and a secret beside it."""
    folder = tmp_path / "root"
    (folder / "sub").mkdir(parents=True)
    for name in ("a.jpg", "b.jpg", "sub/c.jpg", "with space.jpg", "a%20b.jpg"):
        (folder / name).write_bytes(name.encode())
    (tmp_path / "secret.jpg").write_bytes(b"secret")
    (folder / "out.jpg").symlink_to("../secret.jpg")
    (folder / "in.jpg").symlink_to("sub/c.jpg")
    return folder


def _rows(root: Path, *rows: dict[str, Any], **options: Any) -> list[Item | Rejected]:
    table = root / "t.jsonl"
    table.write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    return list(open_source([str(table)], SourceOptions(**{"prompt": "what?", "image_fields": ("image",), **options})))


def _one(root: Path, row: dict[str, Any], **options: Any) -> Item:
    (made,) = _rows(root, row, **options)
    assert isinstance(made, Item), made
    return made


def _bad(root: Path, row: dict[str, Any], **options: Any) -> Rejected:
    (made,) = _rows(root, row, **options)
    assert isinstance(made, Rejected), made
    return made


# --- paths -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "recorded"),
    [
        ("a.jpg", "a.jpg"),
        ("./sub//c.jpg", "sub/c.jpg"),
        ("sub/../a.jpg", "a.jpg"),
        ("in.jpg", "in.jpg"),
        ("with space.jpg", "with space.jpg"),
        ("a%20b.jpg", "a%20b.jpg"),
    ],
)
def test_path_inside_the_root_is_taken(root: Path, path: str, recorded: str) -> None:
    """What stays inside is taken under its own name, without a dot or two slashes, and never with '..'."""
    item = _one(root, {"image": path})
    assert item.images[0].path == recorded
    assert item.images[0].read() == Path(os.path.realpath(root / path)).read_bytes()


@pytest.mark.parametrize(
    "path", ["../secret.jpg", "sub/../../secret.jpg", "/etc/hostname", "out.jpg", "file:///etc/hostname", ".."]
)
def test_path_outside_the_root_is_refused(root: Path, path: str) -> None:
    """By its words or through a link, nothing leaves the root."""
    assert _bad(root, {"image": path}).code == "outside_root"


def test_path_outside_is_refused_before_the_disk_is_asked(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path that climbs by its words is never looked up."""
    asked: list[object] = []
    monkeypatch.setattr(os, "stat", lambda path, *a, **k: asked.append(path))
    from vlmbatch.inputs.base import RowError, SourceReport
    from vlmbatch.inputs.names import ImageRoot

    place = ImageRoot(os.fsencode(root), SourceReport())
    with pytest.raises(RowError):
        place.find("../../etc/passwd")
    assert asked == []


@pytest.mark.parametrize(
    ("path", "recorded"),
    [
        ("../secret.jpg", "outside/up/secret.jpg"),
        ("out.jpg", "out.jpg"),
        ("{root}/a.jpg", "a.jpg"),
        ("file://{root}/with%20space.jpg", "with space.jpg"),
        ("file://localhost{root}/../secret.jpg", None),
    ],
)
def test_path_outside_is_taken_when_allowed(root: Path, path: str, recorded: str | None) -> None:
    """--allow-outside takes it; what is recorded is never absolute and never climbs."""
    item = _one(root, {"image": path.format(root=root)}, allow_outside=True)
    kept = item.images[0].path
    assert not kept.startswith("/")
    assert ".." not in kept.split("/")
    if recorded is not None:
        assert kept == recorded


@pytest.mark.parametrize("url", ["http://x.invalid/a.jpg", "HTTPS://x.invalid/a", "s3://b/k", "gs://b/k", "hf://d/f"])
def test_urls_are_refused_with_the_reason(root: Path, url: str) -> None:
    """The provider would fetch it, so it is not taken, whatever is allowed."""
    bad = _bad(root, {"image": url}, allow_outside=True)
    assert bad.code == "url"
    assert "provider would fetch" in bad.message


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("nope.jpg", "image_not_found"),
        ("a.jpg/x", "image_not_found"),
        ("sub", "not_a_file"),
        (".", "not_a_file"),
        ("a\0b", "bad_path"),
        ("x" * 5000, "unreadable"),
        ("file://host/a.jpg", "bad_path"),
        (base64.b64encode(PNG + bytes(300)).decode(), "bare_base64"),
        ("/9j/" + "A" * 4000, "bare_base64"),
        ("data:image/png;base64,####", "bad_data_uri"),
        ("data:image/png;base64", "bad_data_uri"),
        ("data:,", "bad_data_uri"),
        (7, "bad_image"),
        ({"url": "a.jpg"}, "bad_image"),
        ({"bytes": "abc"}, "bad_image"),
        ([["a.jpg"]], "bad_image"),
        (["a.jpg", None], "bad_image"),
        (None, "no_image"),
        ("", "no_image"),
        ([], "no_image"),
    ],
)
def test_value_that_names_no_image_is_a_bad_row(root: Path, value: Any, code: str) -> None:
    """Each way of not being an image has its code, and no message prints a long value."""
    bad = _bad(root, {"image": value}, allow_outside=True)
    assert bad.code == code
    assert len(bad.message) < 250
    assert len(bad.path) < 250


def test_image_forms_that_are_taken(root: Path) -> None:
    """Paths, lists, {path}, and data: URIs with white space or percent signs, in the row's order."""
    uri = "data:image/png;base64," + "\n ".join(
        [base64.b64encode(PNG).decode()[:4], base64.b64encode(PNG).decode()[4:]]
    )
    row = {"image": ["b.jpg", {"path": "a.jpg", "bytes": None}, uri, "data:image/png,%89PNG"]}
    item = _one(root, row)
    assert [image.path for image in item.images] == ["b.jpg", "a.jpg", "row-1-image-2", "row-1-image-3"]
    assert [image.read() for image in item.images[2:]] == [PNG, b"\x89PNG"]
    assert item.parts == (0, 1, 2, 3, "what?")
    assert json.loads(item.row) == row


def test_several_image_fields_keep_their_order(root: Path) -> None:
    """Fields in the order of the flags, lists inside them, the same picture as often as it stands."""
    row = {"left": "a.jpg", "right": ["b.jpg", "a.jpg"]}
    item = _one(root, row, image_fields=("right", "left"), image_order="last")
    assert [image.path for image in item.images] == ["b.jpg", "a.jpg", "a.jpg"]
    assert item.parts == ("what?", 0, 1, 2)


def test_rows_without_images_go_through_when_allowed(root: Path) -> None:
    """--allow-no-image lets a field be empty, null or absent."""
    made = _rows(root, {"image": []}, {"image": None}, {}, {"image": "a.jpg"}, allow_no_image=True)
    assert [len(one.images) for one in made if isinstance(one, Item)] == [0, 0, 0, 1]


def test_table_without_an_image_column_goes_through_when_allowed(root: Path) -> None:
    """The usual column need not be there then; one that was named must be, for it may be misspelt."""
    (root / "t.csv").write_bytes(b"q\nwhat?\n")
    (item,) = open_source([str(root / "t.csv")], SourceOptions(question_field="q", allow_no_image=True))
    assert isinstance(item, Item)
    assert (item.parts, item.images) == (("what?",), ())
    named = SourceOptions(question_field="q", allow_no_image=True, image_fields=("imgae",))
    with pytest.raises(InputError, match="columns"):
        list(open_source([str(root / "t.csv")], named))


# --- questions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "text"), [("how many?", "how many?"), (17, "17"), (7.5, "7.5"), (" x ", " x ")])
def test_question_is_text_or_a_number(root: Path, value: Any, text: str) -> None:
    """A question stands as it is; a number as JSON writes it."""
    item = _one(root, {"image": "a.jpg", "q": value}, prompt=None, question_field="q")
    assert item.parts == (0, text)


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({"q": None}, "no_question"),
        ({"q": " \n"}, "no_question"),
        ({}, "no_question"),
        ({"q": True}, "bad_question"),
        ({"q": ["a"]}, "bad_question"),
        ({"q": {}}, "bad_question"),
    ],
)
def test_question_that_is_none_is_a_bad_row(root: Path, row: dict[str, Any], code: str) -> None:
    """Nothing but text and numbers is asked, with a template too."""
    assert _bad(root, {"image": "a.jpg", **row}, prompt=None, question_field="q").code == code
    template = {"prompt": None, "question_field": "q", "prompt_template": "{{ question }}"}
    assert _bad(root, {"image": "a.jpg", **row}, **template).code == code


def test_prompt_stands_before_the_question(root: Path) -> None:
    """Both together: prompt, blank line, question."""
    item = _one(root, {"image": "a.jpg", "q": "how many?"}, prompt="Look well.", question_field="q")
    assert item.parts == (0, "Look well.\n\nhow many?")


# --- ids -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "code"),
    [({"k": None}, "no_id"), ({"k": " "}, "no_id"), ({}, "no_id"), ({"k": [1]}, "bad_id"), ({"k": {"a": 1}}, "bad_id")],
)
def test_row_without_an_id_is_a_bad_row(root: Path, row: dict[str, Any], code: str) -> None:
    """An id is text or a number."""
    assert _bad(root, {"image": "a.jpg", **row}, id_fields=("k",)).code == code


def test_composite_ids_are_told_apart_by_value_and_type(root: Path) -> None:
    """Two fields together are one id; 1 with "1" and "1" with 1 are two, and so are values that join alike."""
    pairs: list[tuple[Any, Any]] = [(1, "1"), ("1", 1), ("a,b", "c"), ("a", "b,c"), (True, 1), (1.0, 1), (1, 1)]
    made = _rows(root, *({"image": "a.jpg", "x": x, "y": y} for x, y in pairs), id_fields=("x", "y"))
    assert [type(one) for one in made] == [Item] * len(pairs)


def test_repeated_ids_are_listed_with_all_their_lines(root: Path) -> None:
    """Each repeated id is told once, at the end, with every line; bad rows count too, blank ids do not."""
    rows = [
        {"k": k, "image": image}
        for k, image in [(1, "a.jpg"), (2, "a.jpg"), (1, "nope"), (2, "a.jpg"), ("", "a.jpg"), ("", ""), (1, "a.jpg")]
    ]
    with pytest.raises(InputError, match=r"3 row\(s\) repeat an id") as caught:
        _rows(root, *rows, id_fields=("k",))
    assert [(p.lines, p.message) for p in caught.value.problems] == [
        ((1, 3, 7), "the same k in more than one row"),
        ((2, 4), "the same k in more than one row"),
    ]
    assert str(caught.value.problems[0]).endswith(":1: the same k in more than one row (also lines 3, 7)")


@given(st.lists(st.integers(0, 3000), max_size=4000))
def test_seen_ids_remembers_the_first_place_of_each(keys: list[int]) -> None:
    """It behaves as a dictionary does, through its growth."""
    seen, model = SeenIds(), {}
    for place, key in enumerate(keys):
        assert seen.add(str(key).encode(), place) == model.get(key)
        model.setdefault(key, place)


# --- several tables ------------------------------------------------------------------------------------------


def test_several_tables_are_one_input(root: Path) -> None:
    """Rows go on from table to table; paths start in each table's folder and are recorded from the common parent."""
    (root / "t.jsonl").write_bytes(b'{"image": "a.jpg", "k": 1}\n')
    (root / "sub" / "t.csv").write_bytes(b"image,k\nc.jpg,x\n")
    options = SourceOptions(prompt="what?", image_fields=("image",), id_fields=("k",))
    source = open_source([str(root / "t.jsonl"), str(root / "sub" / "t.csv")], options)
    made = [one for one in source if isinstance(one, Item)]
    assert [(one.index, one.where, one.source_line, one.images[0].path) for one in made] == [
        (0, "t.jsonl", 1, "a.jpg"),
        (1, "t.csv", 2, "sub/c.jpg"),
    ]
    assert (source.kind, source.path) == ("tables", "root")


def test_repeated_ids_are_found_across_tables(root: Path) -> None:
    """The other table is named."""
    for name in ("one.jsonl", "two.jsonl"):
        (root / name).write_bytes(b'{"image": "a.jpg", "k": 1}\n')
    options = SourceOptions(prompt="what?", image_fields=("image",), id_fields=("k",))
    with pytest.raises(InputError) as caught:
        list(open_source([str(root / "one.jsonl"), str(root / "two.jsonl")], options))
    assert str(caught.value.problems[0]) == "two.jsonl:1: the same k as line 1 of one.jsonl"


def test_standard_input_is_json_lines(root: Path) -> None:
    """- reads rows from the stream that the door hands in; its digest is that of the bytes."""
    options = SourceOptions(prompt="what?", image_fields=("image",), image_base_path=str(root))
    source = open_source(["-"], options, stdin=io.BytesIO(b'{"image": "a.jpg"}\n{"image": "b.jpg"}'))
    assert [one.source_line for one in source] == [1, 2]
    assert (source.kind, source.path, len(source.report.sha256 or "")) == ("stdin", "-", 64)
    with pytest.raises(InputError, match="alone"):
        open_source(["-", str(root)], options, stdin=io.BytesIO())


def test_missing_columns_are_named_all_at_once(root: Path) -> None:
    """A table with a header is refused before any row, with the near name and those there are."""
    (root / "t.csv").write_bytes(b"idx,images,text\n1,a.jpg,x\n")
    options = SourceOptions(image_fields=("image",), question_field="q", id_fields=("idx",))
    with pytest.raises(InputError) as caught:
        list(open_source([str(root / "t.csv")], options))
    assert [p.message for p in caught.value.problems] == [
        "no column 'image'; did you mean 'images'? there are: 'idx', 'images', 'text'",
        "no column 'q'; there are: 'idx', 'images', 'text'",
    ]


def test_missing_field_names_those_there_are(root: Path) -> None:
    """Rows without a header are judged one by one; what the row has is told apart from what is wrong with it."""
    bad = _bad(root, {"imag": "a.jpg", "q": 1})
    assert (bad.message, bad.aside) == ("no field 'image'", "did you mean 'imag'? there are: 'imag', 'q'")


@pytest.mark.parametrize(
    ("paths", "options", "said"),
    [
        (["t.jsonl", "a.jpg"], {"prompt": "x"}, "read as"),
        (["t.jsonl"], {"prompt_template": "{{ x"}, ""),
        (["t.jsonl.gz"], {"prompt": "x"}, "unpack"),
        (["gone.jsonl", "gone.csv"], {"prompt": "x"}, "No such file"),
        (["t.jsonl"], {"prompt": "x", "image_base_path": "/nowhere"}, "image-base-path"),
    ],
)
def test_wrong_usage_is_refused_with_the_way_out(
    root: Path, paths: list[str], options: dict[str, Any], said: str
) -> None:
    """Options that contradict, and paths that are no source, are told before anything is read."""
    (root / "t.jsonl").write_bytes(b'{"image_path": "a.jpg"}\n')
    (root / "t.jsonl.gz").write_bytes(b"\x1f\x8b")
    with pytest.raises(InputError) as caught:
        list(open_source([str(root / path) for path in paths], SourceOptions(**options)))
    assert said in " ".join([str(caught.value), *map(str, caught.value.problems)])
    assert caught.value.hint


def test_every_code_of_a_rejection_is_documented() -> None:
    """docs/reference/rejections.md has a line for each code that an input can be refused with, and for no other."""
    package = Path(__file__).resolve().parents[2] / "vlmbatch" / "inputs"
    used = set()
    for path in package.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "RowError":
                used |= {node.args[0].value} if isinstance(node.args[0], ast.Constant) else set()
    page = (package.parents[1] / "docs" / "reference" / "rejections.md").read_text(encoding="utf-8")
    section = page.split("## Rows and paths")[1].split("\n## ")[0]
    documented = set(re.findall(r"^\| `([a-z0-9_]+)` \|", section, re.MULTILINE))
    assert documented == used
