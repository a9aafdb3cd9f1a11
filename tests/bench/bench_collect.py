"""collect against the orjson floor, on the same manifest and results: read, join, write, in one process each.

``python -m tests.bench.bench_collect [N] [ROUNDS]`` makes N requests with one answer each, a little out of order, and
prints medians of the ratio of each way to the floor, CPU seconds per 100,000 (helpers included), and memory: the
largest process, and bytes per request of it. The floor parses every result and manifest line with orjson, keeps a small
tuple per result, and writes six fields a row; *whole* writes what a record has to hold; nothing is checked, classified
or counted in either.
"""

from __future__ import annotations

import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import orjson

STEM = "b0f3a9c"
SENTENCE = "A smooth colour field with film grain, no people and no text. "


def make(folder: Path, count: int) -> None:
    """Write a run folder with a one-line shard (collect reads none) and one answer for each request."""
    from vlmbatch import jsonl
    from vlmbatch.records import ATTEMPT_SCHEMA, RUN_SCHEMA
    from vlmbatch.rundir import MANIFEST, Draft

    rng = random.Random(3)
    with Draft(folder) as draft:
        ids, hashes = [], []
        with open(draft.file(MANIFEST), "wb") as file:
            for index in range(count):
                image = rng.randbytes(32).hex()
                ids.append(f"{STEM}-{index:06d}-{image[:8]}")
                hashes.append(rng.randbytes(32).hex())
                head = {
                    "custom_id": ids[-1],
                    "shard": f"shards/{index // 300:05d}.jsonl",
                    "offset": index % 300 * 291000,
                    "length": 291000,
                    "body_offset": 120,
                    "body_length": 290879,
                    "inner_sha256": rng.randbytes(32).hex(),
                    "line_sha256": hashes[-1],
                    "images": [
                        {
                            "path": f"photos/{index // 1000:03d}/{index:06d}.jpg",
                            "sha256": image,
                            "bytes": 217000,
                            "width": 1024,
                            "height": 768,
                            "media_type": "image/jpeg",
                        }
                    ],
                    "row": {},
                }
                file.write(orjson.dumps(head) + b"\n")
        sha256, size = jsonl.sha256_file(draft.file(MANIFEST))
        draft.add(MANIFEST, sha256, size)
        shard = draft.write("shards/00000.jsonl", b"{}\n")
        info: Any = {
            "schema": RUN_SCHEMA,
            "tool": {"name": "vlmbatch", "version": "0"},
            "libraries": {},
            "created_at": "2026-01-01T00:00:00Z",
            "host": "h",
            "provider": "openai",
            "model": "m",
            "request": {"method": "POST", "url": "/v1/chat/completions", "params": {"max_tokens": 4096}},
            "prompt": None,
            "system": None,
            "inputs": [],
            "source": {},
            "image_policy": {},
            "answer": {"json": False, "schema": None},
            "id_stem": STEM,
            "counts": {"requests": count},
            "shards": [{**shard, "requests": count, "images": count}],
            "manifest": {"file": MANIFEST, "sha256": sha256, "bytes": size, "requests": count},
            "rejected": None,
            "extensions": {},
        }
        draft.publish(info)
    order = list(range(count))
    for start in range(0, count, 64):  # answers come back a little out of order, as with 64 requests in flight
        block = order[start : start + 64]
        rng.shuffle(block)
        order[start : start + 64] = block
    os.makedirs(folder / "results", exist_ok=True)
    with open(folder / "results" / "full.jsonl", "wb") as file:
        for index in order:
            text = f"{ids[index]} " + SENTENCE * rng.randint(3, 6)
            made = len(text) // 4
            response = {
                "id": f"chatcmpl-{rng.randbytes(12).hex()}",
                "object": "chat.completion",
                "created": 1767225600 + index,
                "model": "m-2026-01-01",
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": text, "refusal": None},
                        "logprobs": None,
                        "finish_reason": "stop",
                    }
                ],
                "usage": {
                    "prompt_tokens": 812,
                    "completion_tokens": made,
                    "total_tokens": 812 + made,
                    "prompt_tokens_details": {"cached_tokens": 0},
                    "completion_tokens_details": {"reasoning_tokens": 0},
                },
                "system_fingerprint": "fp_44709d6fcb",
            }
            value = {
                "schema": ATTEMPT_SCHEMA,
                "custom_id": ids[index],
                "line_sha256": hashes[index],
                "channel": "realtime",
                "endpoint": "https://api.example.com/v1/chat/completions",
                "started_at": "2026-01-01T00:00:00.123Z",
                "latency_s": rng.randint(200, 3000) / 1000,
                "tries": [{"status_code": 200, "error": None, "waited_s": 0.0}],
                "status_code": 200,
                "response": response,
                "request_id": f"req_{rng.randbytes(8).hex()}",
                "error": None,
            }
            file.write(orjson.dumps(value) + b"\n")


def _tuples(folder: Path) -> dict[str, Any]:
    kept = {}
    with open(folder / "results" / "full.jsonl", "rb") as file:
        for line in file:
            value = orjson.loads(line)
            body = value["response"]
            usage = body["usage"]
            kept[value["custom_id"]] = (
                value["status_code"],
                body["choices"][0]["message"]["content"],
                usage["prompt_tokens"],
                usage["completion_tokens"],
            )
    return kept


def floor(folder: Path) -> int:
    """Join as short as it can be done with orjson."""
    kept = _tuples(folder)
    with open(folder / "manifest.jsonl", "rb") as file, open(folder / "floor.out", "wb", buffering=1 << 20) as out:
        for line in file:
            head = orjson.loads(line)
            status, text, used, made = kept[head["custom_id"]]
            row = {
                "id": head["custom_id"],
                "path": head["images"][0]["path"],
                "status": status,
                "text": text,
                "prompt_tokens": used,
                "completion_tokens": made,
            }
            out.write(orjson.dumps(row) + b"\n")
    return len(kept)


def whole(folder: Path) -> int:
    """Join likewise, but write a whole record."""
    kept = _tuples(folder)
    with open(folder / "manifest.jsonl", "rb") as file, open(folder / "floor.out", "wb", buffering=1 << 20) as out:
        for number, line in enumerate(file):
            head = orjson.loads(line)
            _, text, used, made = kept[head["custom_id"]]
            row = {
                "custom_id": head["custom_id"],
                "status": "ok",
                "reason": None,
                "text": text,
                "json": None,
                "reasoning": None,
                "usage": {
                    "input_tokens": used,
                    "output_tokens": made,
                    "reasoning_tokens": 0,
                    "cached_tokens": 0,
                    "total_tokens": used + made,
                },
                "finish_reason": "stop",
                "model": "m-2026-01-01",
                "images": head["images"],
                "row": head["row"],
                "source_file": "results/full.jsonl",
                "source_line": number,
                "superseded": [],
                "error": None,
            }
            out.write(orjson.dumps(row) + b"\n")
    return len(kept)


def collect(folder: Path) -> int:
    """Do it as vlmbatch does."""
    from vlmbatch.stages.collect import CollectOptions
    from vlmbatch.stages.collect import collect as stage

    result = stage(folder, (), CollectOptions(write=str(folder / "merged.jsonl")))
    return int(result.summary["counts"]["ok"])


def read_only(folder: Path) -> int:
    """Read and count, as the reviewer's command does."""
    from vlmbatch.stages.collect import collect as stage

    return int(stage(folder).summary["counts"]["ok"])


WAYS = {"floor": floor, "whole": whole, "collect": collect, "read_only": read_only}


def main() -> None:
    """Make the data where there is none, take the ways in turn, print ratios."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    folder = Path(os.environ.get("BENCH_TMP", tempfile.gettempdir())) / f"bench-collect-{count}"
    if not folder.exists():  # in a process of its own: children inherit their parent's peak of memory
        subprocess.check_call([sys.executable, "-m", "tests.bench.bench_collect", "--make", str(count), str(folder)])
    taken: dict[str, list[list[float]]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name in WAYS:
            command = [sys.executable, "-m", "tests.bench.bench_collect", "--way", name, str(folder)]
            taken[name].append(json.loads(subprocess.check_output(command)))
    print(f"{count:,} requests, {rounds} rounds")
    for name, runs in taken.items():
        ratios = [run[0] / floor_run[0] for run, floor_run in zip(runs, taken["floor"], strict=True)]
        wall, cpu, peak = (statistics.median(run[i] for run in runs) for i in range(3))
        print(
            f"{name:10s} x{statistics.median(ratios):5.2f} [{min(ratios):.2f}-{max(ratios):.2f}]  wall {wall:7.2f} s"
            f"  CPU {cpu / count * 1e5:5.2f} s/100k  peak {peak / 1e6:6.0f} MB  {peak / count:5.0f} bytes/request"
        )


def _one(name: str, folder: str) -> None:
    start = time.perf_counter()
    WAYS[name](Path(folder))
    wall = time.perf_counter() - start
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
    print(json.dumps([wall, cpu, max(own.ru_maxrss, children.ru_maxrss) * 1024]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--way"]:
        _one(sys.argv[2], sys.argv[3])
    elif sys.argv[1:2] == ["--make"]:
        make(Path(sys.argv[3]), int(sys.argv[2]))
    else:
        main()
