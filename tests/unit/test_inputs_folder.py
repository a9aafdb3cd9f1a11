"""Folders and names: order, what is left out, links, roots, and names of any bytes."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmbatch.errors import InputError
from vlmbatch.inputs import SourceOptions, open_source
from vlmbatch.inputs.base import Item, Rejected, Source
from vlmbatch.inputs.folder import left_out_by_name
from vlmbatch.inputs.names import readable
from vlmbatch.rundir import RUN_JSON, SHA256SUMS

if TYPE_CHECKING:
    from pathlib import Path

NAMES = st.binary(min_size=1, max_size=12).filter(lambda n: not {0, 0x2F} & set(n) and n not in {b".", b".."})


def _source(*paths: Path | str, **options: Any) -> Source:
    return open_source([str(path) for path in paths], SourceOptions(prompt="what?", **options))


def _paths(source: Source) -> list[str]:
    return [one.images[0].path if isinstance(one, Item) else f"!{one.path}" for one in source]


def _touch(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return root


@given(st.sets(st.lists(NAMES, min_size=1, max_size=3).map(b"/".join), min_size=1, max_size=8))
def test_folder_order_is_that_of_path_bytes(tmp_path_factory: pytest.TempPathFactory, names: set[bytes]) -> None:
    """The walk gives the paths sorted as bytes, whatever they hold, each back to its own file."""
    root = os.fsencode(tmp_path_factory.mktemp("any"))
    made = set()
    for name in sorted(names):
        if any(name.startswith(other + b"/") for other in names):
            continue
        path = os.path.join(root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            with open(path, "xb") as file:
                file.write(name)
        except OSError:
            continue
        made.add(name)
    steps = {name: name.split(b"/") for name in made}
    wanted = sorted(
        name
        for name, parts in steps.items()
        if not any(left_out_by_name(part, is_folder=at < len(parts) - 1) for at, part in enumerate(parts))
    )
    source = _source(os.fsdecode(root))
    if not wanted:
        with pytest.raises(InputError):
            list(source)
        return
    items = [one for one in source if isinstance(one, Item)]
    assert [one.images[0].path_bytes or one.images[0].path.encode() for one in items] == wanted
    assert [one.images[0].read() for one in items] == wanted
    assert source.total == len(wanted)


@given(st.binary(max_size=20))
def test_readable_name_is_text_and_keeps_its_bytes(name: bytes) -> None:
    """Text goes into our files; bytes stand beside it exactly where the text is not simply their UTF-8."""
    text, kept = readable(name)
    assert text.encode("utf-8") == name if kept is None else kept == name
    assert "\\x" in text or kept is None


def test_folder_names_that_are_not_utf8_are_escaped(tmp_path: Path) -> None:
    r"""The contract's form: \xNN in the text, the true bytes beside it."""
    (tmp_path / os.fsdecode(b"caf\xe9.jpg")).write_bytes(b"x")
    (item,) = _source(tmp_path)
    assert isinstance(item, Item)
    assert (item.images[0].path, item.images[0].path_bytes) == ("caf\\xe9.jpg", b"caf\xe9.jpg")
    assert item.images[0].read() == b"x"


def test_folder_leaves_out_what_is_known_and_counts_it(tmp_path: Path) -> None:
    """Hidden files, litter and known suffixes are counted apart; names without suffix and unknown ones are taken."""
    _touch(tmp_path, "a.JPG", "noextension", "x.unknown", "p.svg", "b/photo.jpg", "notes.TXT", "t.jsonl", "v.mp4")
    _touch(tmp_path, ".hidden/x.jpg", ".h.jpg", "Thumbs.db", "__MACOSX/a.jpg", "@eaDir/b.jpg", "docs.txt/inside.png")
    source = _source(tmp_path)
    assert _paths(source) == ["a.JPG", "b/photo.jpg", "docs.txt/inside.png", "noextension", "p.svg", "x.unknown"]
    assert source.report.left_out == {"suffix": 3, "hidden": 2, "litter": 3}


def test_run_folders_in_a_folder_are_left_out(tmp_path: Path) -> None:
    """Who builds again from the folder that the runs stand in means the pictures, not what was made of them."""
    _touch(tmp_path, "a.jpg", f"runs/r1/{RUN_JSON}", f"runs/r1/{SHA256SUMS}", "runs/r1/inputs/prompt", "x/run.json")
    source = _source(tmp_path)
    assert _paths(source) == ["a.jpg"]
    assert source.report.left_out == {"run_folder": 1, "suffix": 1}
    with pytest.raises(InputError, match=r"left out: 1 run folder\(s\)"):
        list(_source(tmp_path / "runs" / "r1"))


def test_files_named_singly_are_taken_whatever_their_name(tmp_path: Path) -> None:
    """Who names a hidden file or a .txt means it; one file's root is its folder."""
    _touch(tmp_path, ".h.jpg", "n.txt", "sub/a.jpg")
    assert _paths(_source(tmp_path / ".h.jpg", tmp_path / "n.txt")) == [".h.jpg", "n.txt"]
    source = _source(tmp_path / "sub" / "a.jpg")
    assert (_paths(source), source.kind, source.path) == (["a.jpg"], "files", "a.jpg")


def test_several_sources_share_their_parent_and_one_order(tmp_path: Path) -> None:
    """The order is by path and not that of the command line; what is named twice is taken once and counted."""
    _touch(tmp_path, "b/2.jpg", "b/1.jpg", "a.jpg", "b-c/3.jpg", "b/deep/4.jpg")
    source = _source(tmp_path / "b", tmp_path / "b-c", tmp_path / "a.jpg", tmp_path / "b" / "1.jpg", tmp_path / "b/")
    assert _paths(source) == ["a.jpg", "b-c/3.jpg", "b/1.jpg", "b/2.jpg", "b/deep/4.jpg"]
    assert source.report.left_out == {"named_twice": 2}


def test_one_folder_named_twice_is_its_own_root(tmp_path: Path) -> None:
    """A path given again, or a part of it, changes nothing but the count."""
    _touch(tmp_path / "in", "a.jpg", "s/b.jpg")
    source = _source(tmp_path / "in", tmp_path / "in" / "s", tmp_path / "in" / "s" / "..")
    assert _paths(source) == ["a.jpg", "s/b.jpg"]


def test_links_are_followed_only_when_asked_and_inside(tmp_path: Path) -> None:
    """--follow-links follows what stays in the root; out of it only with --allow-outside; never round."""
    root = _touch(tmp_path / "root", "real/a.jpg")
    _touch(tmp_path / "out", "secret.jpg")
    (root / "file.jpg").symlink_to("real/a.jpg")
    (root / "folder").symlink_to("real")
    (root / "out.jpg").symlink_to("../out/secret.jpg")
    (root / "real" / "up").symlink_to("..")
    assert _paths(_source(root)) == ["real/a.jpg"]
    source = _source(root, follow_links=True)
    assert _paths(source) == ["file.jpg", "folder/a.jpg", "real/a.jpg"]
    assert source.report.left_out == {"link": 3}
    assert "out.jpg" in _paths(_source(root, follow_links=True, allow_outside=True))


def test_a_link_to_nothing_is_a_bad_row_in_its_place(tmp_path: Path) -> None:
    """A dangling link keeps its index, so that the ids of its neighbours do not depend on it."""
    _touch(tmp_path, "a.jpg", "c.jpg")
    (tmp_path / "b.jpg").symlink_to("nowhere")
    (tmp_path / "loop.jpg").symlink_to("loop.jpg")
    source = _source(tmp_path)
    made = list(source)
    assert [(one.index, type(one)) for one in made] == [(0, Item), (1, Rejected), (2, Item)]
    assert isinstance(made[1], Rejected)
    assert (made[1].code, made[1].path) == ("dangling_link", "b.jpg")
    assert source.report.left_out == {"link": 1}


def test_pipes_and_sockets_are_never_opened(tmp_path: Path) -> None:
    """Special files in a folder are named and counted; given singly they are refused."""
    _touch(tmp_path, "a.jpg")
    os.mkfifo(tmp_path / "pipe.jpg")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        source = _source(tmp_path)
        assert _paths(source) == ["a.jpg"]
    assert source.report.left_out == {"special": 2}
    assert "pipe.jpg" in source.report.warnings[0]
    with pytest.raises(InputError) as caught:
        _source(tmp_path / "pipe.jpg", tmp_path / "gone.jpg")
    assert len(caught.value.problems) == 2


def test_deep_folders_are_walked_without_recursion(tmp_path: Path) -> None:
    """As deep as the system allows a path to be."""
    made = [tmp_path]
    for _ in range(1200):
        made.append(made[-1] / "d")
        os.mkdir(made[-1])
    (made[-1] / "a.jpg").write_bytes(b"x")
    assert len(_paths(_source(tmp_path))) == 1
    (made[-1] / "a.jpg").unlink()
    for folder in reversed(made[1:]):
        os.rmdir(folder)


def test_empty_folder_tells_what_was_left_out(tmp_path: Path) -> None:
    """Nothing to build is an error that says what there was."""
    _touch(tmp_path, "n.txt", ".h")
    with pytest.raises(InputError, match="1 hidden, 1 by suffix \\(no image\\)"):
        list(_source(tmp_path))


@pytest.mark.parametrize(
    "more",
    [
        {"question_field": "q"},
        {"id_fields": ("id",)},
        {"image_fields": ("x",)},
        {"encoding": "latin-1"},
        {"image_base_path": "."},
    ],
)
def test_options_about_rows_are_refused_for_folders(tmp_path: Path, more: dict[str, Any]) -> None:
    """A flag that could do nothing is refused, not ignored."""
    with pytest.raises(InputError, match="no rows"):
        _source(_touch(tmp_path, "a.jpg"), **more)


def test_template_places_the_image_of_a_folder(tmp_path: Path) -> None:
    """A template works without a row; one that places no image loses none, it has it before the text."""
    _touch(tmp_path, "a.jpg")

    def parts(template: str) -> object:
        (item,) = open_source([str(tmp_path)], SourceOptions(prompt_template=template))
        return item.parts if isinstance(item, Item) else item.code

    assert parts("before {{ image }} after") == ("before ", 0, " after")
    assert parts("text alone") == (0, "text alone")
    assert parts("{% if false %}{{ image }}{% endif %}text") == "no_image"
    assert parts("{{ caption }}") == "template"
