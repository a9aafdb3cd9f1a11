"""Every trouble case of the build stage, carried through the command line: images, tables and folders."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.doors import Called, call
from tests.trees import make_tree
from vlmbatch.records import CUSTOM_ID
from vlmbatch.rundir import RunDir

DATA = Path(__file__).resolve().parents[1] / "data"
PROVIDERS = ("openai", "anthropic", "gemini")
LARGE = {"tree-big-base64"}
"""Cases whose outcome differs by provider; tests/unit/test_providers_limits.py looks at the limit itself."""


def _cases(area: str) -> list[dict[str, Any]]:
    return json.loads((DATA / area / "cases.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def _params(area: str) -> Any:
    return pytest.mark.parametrize("case", _cases(area), ids=[case["id"] for case in _cases(area)])


def _lines(run: Path, name: str) -> list[dict[str, Any]]:
    path = run / name
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line] if path.exists() else []


def _names_in(run: Path) -> list[bytes]:
    """Return the names of the images in the manifest as bytes, as they stand on the disk."""
    return [
        base64.b64decode(image["path_bytes"]) if "path_bytes" in image else image["path"].encode()
        for entry in _lines(run, "manifest.jsonl")
        for image in entry["images"]
    ]


def _check_run(run: Path, case: dict[str, Any], done: Called) -> None:
    """Check what holds of any run: it is whole, its ids are good, and manifest and rejected are all inputs."""
    assert done.status == 0, done.err
    assert "Traceback" not in done.err
    opened = RunDir.open(run)
    opened.verify()
    ids = [entry.custom_id for entry in opened.iter_entries()]
    assert len(set(ids)) == len(ids) == opened.requests
    assert all(CUSTOM_ID.fullmatch(one) for one in ids)
    rejected = _lines(run, "rejected.jsonl")
    assert opened.info["source"]["count"] == len(ids) + len(rejected)
    assert all(line["reason"]["code"] and line["reason"]["message"] for line in rejected)
    check = case["check"]
    if "requests" in check:
        assert len(ids) == check["requests"]
    if "requests_in" in check:
        assert len(ids) in check["requests_in"]
    if "rejected" in check:
        assert len(rejected) == check["rejected"]
    if "bad_lines" in check:
        assert [line["source_line"] for line in rejected] == check["bad_lines"]


# --- images ------------------------------------------------------------------------------------------------


@_params("images")
def test_image_case_is_taken_or_refused_as_stated(case: dict[str, Any], tmp_path: Path) -> None:
    """Each picture is taken or refused by each provider as its case says, and its facts stand in the manifest."""
    check = case["check"]
    name = Path(case["files"][0]).name
    taken = set()
    for provider in PROVIDERS:
        run = tmp_path / provider
        words = ("build", DATA / "images" / name, "--out", run, "--model", "m", "--prompt", "p", "--provider", provider)
        done = call(*words)
        assert done.status in {0, 2}, done.err
        assert "Traceback" not in done.err
        assert run.exists() == (done.status == 0)
        if done.status == 0:
            taken.add(provider)
            (image,) = _lines(run, "manifest.jsonl")[0]["images"]
            data = (DATA / "images" / name).read_bytes()
            assert image["sha256"] == hashlib.sha256(data).hexdigest()
            assert image["media_type"] == check["media_type"]
            assert "sent" not in image
            if "size" in check:
                assert [image["width"], image["height"]] == check["size"]
    if "accepted" in check:
        assert taken == (set(PROVIDERS) if check["accepted"] else set())
    if "accepted_by" in check:
        assert taken == set(check["accepted_by"])


@pytest.mark.parametrize(
    ("case", "takers"),
    [
        ("animated.gif", {"anthropic"}),
        ("single.gif", {"openai", "anthropic"}),
        ("one-by-20000.png", {"openai", "gemini"}),
    ],
)
def test_picture_that_providers_see_differently(case: str, takers: set[str], tmp_path: Path) -> None:
    """GIFs and very long pictures are taken by some providers only."""
    taken = {
        provider
        for provider in PROVIDERS
        if call(
            *("build", DATA / "images" / case, "--out", tmp_path / provider, "--model", "m", "--prompt", "p"),
            *("--provider", provider),
        ).status
        == 0
    }
    assert taken == takers


def test_all_bad_pictures_are_told_at_once_and_skipped_together(tmp_path: Path) -> None:
    """A folder of everything: one refusal names every bad picture; with --skip-bad each is one line with its reason."""
    folder = tmp_path / "in"
    shutil.copytree(DATA / "images", folder, ignore=shutil.ignore_patterns("*.json", "*.md"))
    bad = {Path(c["files"][0]).name for c in _cases("images") if c["check"].get("accepted") is False}
    refused = call("build", folder, "--out", tmp_path / "one", "--model", "m", "--prompt", "p", "--json")
    assert refused.status == 2
    named = {error["path"] for error in refused.json()["errors"][1:]}
    assert bad <= named
    done = call("build", folder, "--out", tmp_path / "two", "--model", "m", "--prompt", "p", "--skip-bad")
    _check_run(tmp_path / "two", {"check": {}}, done)
    assert {line["path"] for line in _lines(tmp_path / "two", "rejected.jsonl")} == named


def test_convert_unsupported_takes_what_can_be_decoded(tmp_path: Path) -> None:
    """With --convert-unsupported, types that the provider refuses are sent as something that it takes."""
    names = ["multipage.tif", "picture.bmp", "picture.jp2", "phone.heic", "animated.gif", "cmyk.jpg"]
    words = [DATA / "images" / name for name in names]
    done = call("build", *words, "--out", tmp_path / "run", "--model", "m", "--prompt", "p", "--convert-unsupported")
    _check_run(tmp_path / "run", {"check": {"requests": len(names)}}, done)
    for entry in _lines(tmp_path / "run", "manifest.jsonl"):
        assert entry["images"][0]["sent"]["media_type"] in {"image/jpeg", "image/png", "image/webp", "image/gif"}


# --- tables ------------------------------------------------------------------------------------------------


@_params("tables")
def test_table_case_builds_as_stated(case: dict[str, Any], tmp_path: Path) -> None:
    """Each table gives the stated requests and rejections, or is refused whole and leaves nothing."""
    run = tmp_path / "run"
    common = ("--out", run, "--model", "m", "--image-field", "image", "--question-field", "question")
    if "tree" in case:
        root = make_tree(case["tree"], tmp_path)
        words = ("build", os.path.normpath(root / case["table"]), *common, "--image-base-path", root)
    else:
        base = DATA / "tables" / "images"
        words = ("build", DATA / case["files"][0], *common, "--id-fields", "id", "--image-base-path", base)
    done = call(*words, "--skip-bad")
    if done.status == 2 and ("exit" in case["check"] or 0 in case["check"].get("requests_in", [])):
        assert not run.exists()
        assert "Traceback" not in done.err
        return
    _check_run(run, case, done)
    rows = {str(entry["row"].get("id")): entry for entry in _lines(run, "manifest.jsonl")}
    raw = (run / "manifest.jsonl").read_text(encoding="utf-8")
    for text in case["check"].get("row_text", {}).values():
        assert text in raw
    for key, digest in case["check"].get("image_sha256", {}).items():
        assert rows[key]["images"][0]["sha256"] == digest
    if case["check"].get("rejected"):
        strict = tmp_path / "strict"
        refused = call(*(strict if word == run else word for word in words))
        assert refused.status == 2
        assert not strict.exists()


# --- folders -----------------------------------------------------------------------------------------------


@_params("trees")
def test_tree_case_builds_as_stated(case: dict[str, Any], tmp_path: Path) -> None:
    """Each folder gives the stated requests; names come back byte for byte, and nothing is lost in silence."""
    check = case["check"]
    if check.get("needs") == "not root" and os.geteuid() == 0:
        pytest.skip("root reads everything")
    root = make_tree(case["tree"], tmp_path / "tree")
    run = tmp_path / "run"
    if case["id"] == "tree-exists":
        run.mkdir()
        (run / "mine").write_text("mine")
    before = sorted(os.listdir(tmp_path))
    source: tuple[Any, ...] = (root,)
    if "table" in check:
        source = (os.path.normpath(root / check["table"]), "--image-field", "image", "--image-base-path", root)
    words = ("build", *source, "--out", run, "--model", "m", "--prompt", "p")
    done = call(*words, "--skip-bad")
    if "exit" in check:
        assert done.status == check["exit"]
        assert sorted(os.listdir(tmp_path)) == before
        assert [p.name for p in run.iterdir()] == ["mine"] if case["id"] == "tree-exists" else not run.exists()
        return
    if case["id"] in LARGE:
        assert done.status in {0, 2}
        return
    _check_run(run, case, done)
    _check_names(run, root, check)
    if check.get("rejected"):
        assert call(*("build", *source, "--out", tmp_path / "strict", "--model", "m", "--prompt", "p")).status == 2
        assert not (tmp_path / "strict").exists()


def _check_names(run: Path, root: Path, check: dict[str, Any]) -> None:
    """Check that names come back byte for byte, in the stated order."""
    names = _names_in(run)
    if "order" in check:
        assert [name.decode() for name in names] == check["order"]
    if "duplicate_images" in check:
        assert RunDir.open(run).info["counts"]["duplicate_images"] == check["duplicate_images"]
    if "table" not in check:
        assert all(os.path.isfile(os.path.join(os.fsencode(root), name)) for name in names)
