"""Makes a folder of tests/data/runs, once for each version that is released: ``python -m tests.golden.make_run``.

The folder is a whole run over two small images: built, sent to a rehearsal server by its address, collected, sealed.
Nothing in it is touched up afterwards; the host's name is a neutral one from the start, and all paths are relative.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
from pathlib import Path
from unittest import mock

from tests.cli.doors import call
from vlmbatch import __version__
from vlmbatch.rehearsal.server import serve
from vlmbatch.rundir import LOCKS

DATA = Path(__file__).resolve().parents[1] / "data"
RUNS = DATA / "runs"

IMAGES = ("base.jpg", "base.png")
PROMPT = "What does this picture show? Answer in one word (été, 写真)."
SYSTEM = "Be brief.\n"
OPTIONS = ("--model", "test-vlm", "--temperature", "0.2", "--max-tokens", "64", "--shard-max-requests", "1")


def build(place: Path) -> Path:
    """Build the run of the corpus in an empty folder, from relative paths; return the run folder."""
    (place / "images").mkdir()
    for name in IMAGES:
        shutil.copyfile(DATA / "images" / name, place / "images" / name)
    (place / "system.txt").write_text(SYSTEM, encoding="utf-8")
    words = ("build", "images", "--out", "run", "--prompt", PROMPT, "--system-file", "system.txt", *OPTIONS)
    with contextlib.chdir(place), mock.patch.object(socket, "gethostname", return_value="example"):
        _must(*words)
    return place / "run"


def make(target: Path) -> None:
    """Make a whole run and put it in its place, which must be free."""
    with tempfile.TemporaryDirectory() as place:
        run = build(Path(place))
        with contextlib.chdir(place):
            with serve() as server:
                _must("run", "run", "--base-url", f"{server.base_url}/v1", "--out", "full.jsonl")
            _must("collect", "run", "--write", "run/merged.jsonl")
            _must("collect", "run", "--seal")
        shutil.copytree(run, target, ignore=shutil.ignore_patterns(LOCKS))


def _must(*words: str) -> None:
    done = call(*words)
    if done.status:
        raise RuntimeError(f"{' '.join(words)}: {done.err}")


if __name__ == "__main__":
    make(RUNS / __version__)
