"""Run folders of earlier versions: they verify, they collect to what they said then, and their bytes are made anew."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.golden.make_run import RUNS, build
from vlmbatch.rundir import RunDir
from vlmbatch.stages.collect import collect
from vlmbatch.stages.collecting.options import CollectOptions

FOLDERS = sorted(path for path in RUNS.iterdir() if path.is_dir())
each_run = pytest.mark.parametrize("folder", FOLDERS, ids=[path.name for path in FOLDERS])


def _said(path: Path) -> list[dict[str, Any]]:
    """Return what the records of a file say of each request, as far as no version may see it otherwise."""
    keys = ("custom_id", "status", "text", "finish_reason", "usage")
    records = [json.loads(line) for line in path.read_bytes().splitlines()]
    return [{key: record[key] for key in keys} for record in records]


def test_there_is_a_run_to_look_at() -> None:
    """An empty corpus would pass every test below."""
    assert "0.1.0" in {path.name for path in FOLDERS}


@each_run
def test_old_run_verifies(folder: Path) -> None:
    """Our own check of the frozen files finds nothing."""
    RunDir.open(folder).verify()


@each_run
@pytest.mark.parametrize("sums", ["SHA256SUMS", "SEALED.sha256"])
def test_old_run_passes_sha256sum(folder: Path, sums: str) -> None:
    """The tool that every reviewer has agrees with both lists."""
    tool = shutil.which("sha256sum")
    if tool is None:
        pytest.skip("no sha256sum on this machine")
    done = subprocess.run([tool, "-c", "--strict", sums], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@each_run
def test_old_run_passes_its_own_script(folder: Path) -> None:
    """The script that was sealed with the run still runs, and finds nothing."""
    done = subprocess.run([sys.executable, "verify.py"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@each_run
def test_old_run_collects_to_what_it_said_then(folder: Path, tmp_path: Path) -> None:
    """The results of an earlier version are read as that version read them: statuses, texts, tokens."""
    merged = tmp_path / "merged.jsonl"
    collect(folder, options=CollectOptions(write=str(merged)))
    assert _said(merged) == _said(folder / "merged.jsonl")
    assert [one["status"] for one in _said(merged)] == ["ok", "ok"]


@each_run
def test_same_inputs_give_the_frozen_bytes_of_then(folder: Path, tmp_path: Path) -> None:
    """Manifest and shards come out byte for byte: neither our code nor a library has changed a frozen byte.

    A change of the bytes that is meant changes everybody's ids and hashes: it belongs into a new version, told in
    docs/explanation/frozen-bytes.md, and not into this folder.
    """
    run = build(tmp_path)
    frozen = sorted(path.relative_to(folder) for path in (folder / "shards").iterdir())
    assert sorted(path.relative_to(run) for path in (run / "shards").iterdir()) == frozen
    for name in [Path("manifest.jsonl"), *frozen]:
        assert (run / name).read_bytes() == (folder / name).read_bytes(), name
