"""Images that go into the provider's own file store first: still our bytes, uploaded once, named by id."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from tests.cli.doors import call
from tests.pictures import jpeg, png
from vlmbatch.batch.carrier import FileStore
from vlmbatch.rehearsal.server import serve

WIRES = {"responses": ("openai", "/v1/responses"), "anthropic": ("anthropic", ""), "gemini": ("gemini", "")}


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Return a folder of three pictures, two of them alike to the byte."""
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "a.png").write_bytes(png(60, 40))
    (folder / "b.png").write_bytes(png(60, 40))
    (folder / "c.jpg").write_bytes(jpeg(50, 70))
    return folder


def _words(images: Path, run: Path, wire: str, base_url: str) -> list[object]:
    provider, url = WIRES[wire]
    words = ["build", images, "--out", run, "--model", "m", "--prompt", "p", "--provider", provider]
    words += ["--carrier", "provider-file", "--base-url", base_url, "--api-key-env", "KEY"]
    return words + (["--url", url] if url else [])


@pytest.mark.parametrize("wire", WIRES)
def test_carried_images_are_uploaded_once_and_answered(wire: str, images: Path, tmp_path: Path) -> None:
    """Each distinct picture is uploaded once, also over a second build; bodies name ids, the manifest keeps hashes."""
    env = {"KEY": "k-12345"}
    with serve() as server:
        done = call(*_words(images, tmp_path / "run", wire, server.base_url), env=env)
        assert done.status == 0, done.err
        assert "file store: 2 images uploaded, 0 there already" in done.out
        uploads = (tmp_path / "run.uploads.jsonl").read_text().splitlines()
        assert len(uploads) == 2
        (tmp_path / "run").rename(tmp_path / "first")
        again = call(*_words(images, tmp_path / "run", wire, server.base_url), "--json", env=env)
        assert again.status == 0, again.err
        assert again.json()["data"]["uploads"] == {"uploaded": 0, "reused": 2}
        assert (tmp_path / "run.uploads.jsonl").read_text().splitlines() == uploads
        entries = [json.loads(line) for line in (tmp_path / "run/manifest.jsonl").read_text().splitlines()]
        shard = (tmp_path / "run/shards/00000.jsonl").read_text()
        stored = {json.loads(line)["file_id"]: json.loads(line)["sha256"] for line in uploads}
        for entry in entries:
            (image,) = entry["images"]
            assert stored[image["file_id"]] == image["sha256"]
            assert image["file_id"] in shard
        assert "base64," not in shard
        for away in (["--rehearsal"], ["--base-url", "http://127.0.0.1:9", "--api-key-env", "KEY"]):
            astray = call("run", tmp_path / "run", *away, env=env)
            assert astray.status == 2
            assert "file store" in astray.err
        sent = call("run", tmp_path / "run", "--base-url", server.base_url, "--api-key-env", "KEY", env=env)
        assert sent.status == 0, sent.err
    collected = call("collect", tmp_path / "run", "--json").json()
    assert collected["data"]["summary"]["counts"]["ok"] == 3
    info = json.loads((tmp_path / "run/run.json").read_text())
    assert info["carrier"]["kind"] == "provider-file"


def test_wire_without_a_file_store_is_refused_before_anything(images: Path, tmp_path: Path) -> None:
    """Chat completions has no place for file ids: status 2, and nothing is uploaded or left."""
    with serve() as server:
        words = ["build", images, "--out", tmp_path / "run", "--model", "m", "--prompt", "p"]
        done = call(*words, "--carrier", "provider-file", "--base-url", server.base_url)
    assert done.status == 2
    assert "Traceback" not in done.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["images"]


def test_no_key_is_told_before_anything_is_uploaded(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the provider's own address nothing begins without a key: status 2, nobody is called, nothing is left."""
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.setattr(FileStore, "__enter__", lambda _: pytest.fail("an upload was begun"))
    words = ["build", images, "--out", tmp_path / "run", "--model", "m", "--prompt", "p", "--provider", "anthropic"]
    done = call(*words, "--carrier", "provider-file")
    assert done.status == 2
    assert "ANTHROPIC_API_KEY is not set" in done.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["images"]


def test_address_that_is_none_is_refused(images: Path, tmp_path: Path) -> None:
    """As run refuses it: status 2, and nothing is left."""
    done = call(*_words(images, tmp_path / "run", "anthropic", "nonsense"), env={"KEY": "k-12345"})
    assert done.status == 2
    assert "not an http or https URL" in done.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["images"]


def test_journal_that_cannot_be_written_ends_the_build_and_its_thread(images: Path, tmp_path: Path) -> None:
    """The journal of uploads is looked at before anything is started: status 2, it is named, no thread goes on."""
    (tmp_path / "run.uploads.jsonl").symlink_to(tmp_path / "nowhere" / "uploads.jsonl")
    done = call(*_words(images, tmp_path / "run", "responses", "http://127.0.0.1:9"), env={"KEY": "k-12345"})
    assert done.status == 2
    assert "run.uploads.jsonl: cannot be written" in done.err
    assert not (tmp_path / "run").exists()
    assert "file-store" not in {thread.name for thread in threading.enumerate()}
