"""What the pages take for granted: images, tables, a prompt, settings, and runs with answers."""

from __future__ import annotations

import json
import re
import shutil
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from tests.cli.doors import call
from tests.contract import pages
from tests.pictures import jpeg, png
from vlmbatch.rehearsal.samples import draw

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

DATA = {
    "docs/how-to/pipeline-file.md": ("pipeline.yaml", ""),
    "docs/how-to/rehearse.md": ("faults.json", ""),
    "docs/how-to/review.md": ("reviews.jsonl", "vlmbatch collect runs/r001 --reviews reviews.jsonl"),
    "docs/reference/faults.md": ("faults.json", "vlmbatch run runs/r001 --rehearsal --faults faults.json"),
    "references/image-tokens.md": (
        "schemes.toml",
        "vlmbatch estimate --size 1024x768 --model gpt-7 --scheme-file schemes.toml",
    ),
}
"""The file that the data block of a page is, and the command that reads it where no block of the page does."""

CLUSTER = """
processors:
  - type: llm
    server_args: {model_path: Qwen/Qwen3-VL-8B-Instruct, tp_size: 4}
loading_params:
  datasets: [{path: table.jsonl, type: JSONL, image_base_path: .}]
  num_shards: 2
processing_params:
  inputs: [{name: image, key: image_path, type: image}]
  outputs: [{name: answer, type: llm, output_type: plain, prompt: "{{ image }} What is this?"}]
execution_params:
  {account: acc, partition: gpu, job_name: vlm, gpus: 4, cpus_per_task: 32, time_limit: "05:59:59", merge: true}
"""
"""A pipeline file for a cluster, with the keys that the page has."""

QUEUED_ROWS = 2
"""Rows of runs that go to a cluster: every part takes a while."""

_RUN = "runs/r001"
_MODEL, _OWN_MODEL = "gpt-5.4-mini", "Qwen/Qwen3-VL-8B-Instruct"


def make_kit(place: Path, base_url: str) -> None:
    """Write what pages may want into a folder: inputs, and a run that a provider has answered, with a paid sample."""
    for folder in ("images", "data/images"):
        (place / folder).mkdir(parents=True)
        for number in range(6):
            (place / folder / f"{number}.png").write_bytes(png(300 + 40 * number, 200))
    (place / "photo.jpg").write_bytes(jpeg(2000, 1000))
    (place / "prompt.txt").write_text("What does this picture show?\n")
    rows = [_row(number) for number in range(6)]
    for name in ("table.jsonl", "rows.jsonl"):
        (place / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    turns = [
        {"image_path": f"{number}.png", "conversations": [{"content": f"What is {number}?"}]} for number in range(6)
    ]
    pq.write_table(pa.Table.from_pylist(turns), place / "data" / "train.parquet")
    run = place / _RUN
    _build(place / "images", "--out", run, "--model", _MODEL, "--prompt-file", place / "prompt.txt")
    for more in (("--limit", 2, "--out", "smoke.jsonl"), ()):
        assert call("run", run, "--base-url", base_url, *more).status == 0


def _row(number: int) -> dict[str, object]:
    question = f"What is {number}?"
    asked = {"question_string": question, "question": question}
    return {"image_path": f"images/{number}.png", **asked, "triplet_id": number, "condition": "plain"}


def _build(*words: object) -> None:
    done = call("build", *words)
    assert done.status == 0, done.err


def furnish(place: Path, kit: Path, page: str, blocks: Sequence[pages.Block]) -> None:
    """Put into a folder what these blocks of a page take for granted, and nothing that they are going to make."""
    code = "\n".join(block.code for block in blocks)
    if ".venv" in code:
        _checkout(place)
    shutil.copytree(kit, place, dirs_exist_ok=True)
    for made in re.findall(r"vlmbatch build .*?--out (\S+)|out=\"(\S+)\"", code.replace("\\\n", "")):
        shutil.rmtree(place / "".join(made), ignore_errors=True)
    if f"vlmbatch run {_RUN} " in code and (place / _RUN).exists():
        _open_run(place, few="--slurm" in code or "--shard-id" in code, is_own="--serve" in code)
    for name in re.findall(r"--compare (\S+)|collect (runs/teacher-\S+)", code):
        shutil.copytree(place / _RUN, place / "".join(name), dirs_exist_ok=True)
    if "samples" in code and "rehearsal.samples" not in code:
        draw(str(place / "samples"))
    for block in pages.blocks(page):
        if block.language in {"yaml", "json", "toml"}:
            (place / DATA[page][0]).write_text(_with_ids(block.code, place / _RUN))
    if "pipeline.yaml" in code and page not in DATA:
        (place / "pipeline.yaml").write_text(CLUSTER)


def _open_run(place: Path, *, few: bool, is_own: bool) -> None:
    """Make the run anew, without answers; for a cluster of a few rows, for a server of one's own of its model."""
    shutil.rmtree(place / _RUN)
    images = sorted((place / "images").iterdir())[: QUEUED_ROWS if few else None]
    asked = ("--model", _OWN_MODEL, "--provider", "vllm") if is_own else ("--model", _MODEL)
    _build(*images, "--out", place / _RUN, *asked, "--prompt-file", place / "prompt.txt")


def _with_ids(data: str, run: Path) -> str:
    """Return a page's data with the run's first id where the page leaves an id open."""
    with (run / "manifest.jsonl").open() as manifest:
        first = json.loads(manifest.readline())["custom_id"]
    return data.replace('"custom_id": "…"', f'"custom_id": "{first}"')


def _checkout(place: Path) -> None:
    """Make the folder a checkout of this repository; its environment for developers is the one that runs this."""
    left_out = shutil.ignore_patterns(".git", ".venv*", ".*_cache", ".hypothesis", "__pycache__")
    shutil.copytree(pages.ROOT, place, ignore=left_out, dirs_exist_ok=True)
    (place / ".venv-dev").symlink_to(sys.prefix)
