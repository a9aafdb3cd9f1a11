"""The whole way on a real vision-language server that this machine starts.

Two commands, given by environment, say how; without them these tests skip::

    REAL_MODEL      the model's name, as the server lists it
    REAL_SERVE      the command that starts it, with {model} and {port}; it should tell image tokens apart
                    (vLLM: --enable-prompt-tokens-details), for that is what the image receipt is read from
    REAL_RUN_BATCH  vLLM's offline runner over one file, with {input} and {output}
"""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.cli.doors import call
from vlmbatch.api.run import Run
from vlmbatch.records import MODEL_ANSWERS
from vlmbatch.rehearsal.samples import draw

pytestmark = pytest.mark.real


def _asked(name: str) -> str:
    if name not in os.environ:
        pytest.skip(f"{name} is not set")
    return os.environ[name]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a run over the sample images, built for the model at hand."""
    draw(tmp_path / "samples")
    flags = ["--provider", "vllm", "--max-tokens", "32", "--temperature", "0", "--prompt", "What is this?"]
    done = call("build", tmp_path / "samples", "--out", tmp_path / "run", "--model", _asked("REAL_MODEL"), *flags)
    assert done.status == 0, done.err
    return Run.open(tmp_path / "run")


def _check(run: Run, results: Path) -> None:
    """Check that every row was answered, differently by image, and that every image is on the bill."""
    records = list(run.records([str(results)]))
    assert {record["status"] for record in records} <= {status.value for status in MODEL_ANSWERS}
    assert len({record["text"] for record in records}) > len(records) / 2, "answers do not depend on the image"
    done = call("estimate", run.path, "--calibrate", results, "--require-receipt")
    assert done.status == 0, done.out + done.err


def test_own_server_answers_with_receipts(run: Run) -> None:
    """build, run --serve, collect: every row is answered, and what is billed proves that each image arrived."""
    done = call("run", run.path, "--serve", _asked("REAL_SERVE"), "--serve-wait", "600", "--concurrency", "8")
    assert done.status == 0, done.err
    results = Path(run.path) / "results" / "run.jsonl"
    _check(run, results)
    done = call("collect", run.path, "--write", Path(run.path) / "merged.jsonl")
    assert done.status == 0, done.err
    assert len((Path(run.path) / "merged.jsonl").read_text().splitlines()) == len(run)


def test_offline_runner_takes_our_shards(run: Run, tmp_path: Path) -> None:
    """Vllm run-batch reads a shard as it stands; collect reads what it leaves, and the receipts hold."""
    output = tmp_path / "out.jsonl"
    (shard,) = sorted((Path(run.path) / "shards").iterdir())
    words = [
        word.replace("{input}", str(shard)).replace("{output}", str(output))
        for word in shlex.split(_asked("REAL_RUN_BATCH"))
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    _check(run, output)
