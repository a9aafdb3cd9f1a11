"""build against its floor, in one run on one machine: ``python -m tests.bench.bench_build [--count 500] [--rounds 3]``.

The floor is the least that must be done for the same promise: read, header, SHA-256 of image, body and line, base64,
write shards; assembled by hand, one thread, no packaging. Rounds alternate; ratios are of medians. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import orjson
import pybase64
from PIL import Image

from vlmbatch.images import ImagePolicy
from vlmbatch.stages.build import build
from vlmbatch.stages.building.plan import BuildOptions

PROMPT = "Describe this photo in one sentence. Mention the main colours, any people and any text."
HEAD = b'{"max_completion_tokens":256,"messages":[{"content":[{"image_url":{"url":"data:image/jpeg;base64,'
TAIL = b'"},"type":"image_url"},{"text":' + orjson.dumps(PROMPT) + b',"type":"text"}],"role":"user"}],"model":"m"}'
SHARD = 90_000_000


def draw(folder: Path, count: int) -> int:
    """Write JPEGs of about 220 kB from a seed; return their bytes."""
    rng = random.Random(7)
    folder.mkdir(parents=True)
    tiles = [Image.frombytes("RGB", (64, 64), rng.randbytes(64 * 64 * 3)) for _ in range(16)]
    size = 0
    for number in range(count):
        image = Image.new("RGB", (1024, 768), tuple(rng.randrange(256) for _ in range(3)))
        for _ in range(60):
            image.paste(rng.choice(tiles), (rng.randrange(960), rng.randrange(704)))
        path = folder / f"{number:05d}.jpg"
        image.save(path, quality=88)
        size += path.stat().st_size
    return size


def floor(files: list[Path], out: Path) -> None:
    """Do the least: hand-assembled lines, three hashes each, shards by bytes, a manifest."""
    out.mkdir()
    shard, size, number = (out / "00000.jsonl").open("wb", buffering=0), 0, 0
    with (out / "manifest.jsonl").open("wb") as manifest:
        for index, path in enumerate(files):
            data = path.read_bytes()
            width, height = Image.open(io.BytesIO(data)).size
            body = b"".join((HEAD, pybase64.b64encode(data), TAIL))
            line = b'{"custom_id":"a-%06d","method":"POST","url":"/v1/chat/completions","body":' % index + body + b"}\n"
            if size + len(line) > SHARD:
                shard.close()
                number, size = number + 1, 0
                shard = (out / f"{number:05d}.jsonl").open("wb", buffering=0)
            shard.write(line)
            record = {
                "path": path.name,
                "offset": size,
                "length": len(line),
                "size": (width, height),
                "image": hashlib.sha256(data).hexdigest(),
                "body": hashlib.sha256(body).hexdigest(),
                "line": hashlib.sha256(line).hexdigest(),
            }
            manifest.write(orjson.dumps(record) + b"\n")
            size += len(line)
    shard.close()


def decode(files: list[Path], _: Path) -> None:
    """Decode every image on as many threads as build uses by default."""
    from concurrent.futures import ThreadPoolExecutor

    def one(path: Path) -> None:
        with Image.open(path) as image:
            image.load()

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(one, files))


def ours(check: str, workers: int | None) -> Callable[[list[Path], Path], None]:
    """Return a build with some check on some workers."""

    def work(files: list[Path], out: Path) -> None:
        options = BuildOptions(
            sources=(str(files[0].parent),),
            out=str(out),
            model="m",
            prompt=PROMPT,
            max_tokens=256,
            image_policy=ImagePolicy(check=check),  # type: ignore[arg-type]
            workers=workers,
        )
        build(options)

    return work


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    ways = {
        "floor, 1 thread": floor,
        "build quick, 1 worker": ours("quick", 1),
        "build quick, 2 workers": ours("quick", 2),
        "decode alone, all threads": decode,
        "build full, default workers": ours("full", None),
    }
    with tempfile.TemporaryDirectory() as place:
        size = draw(Path(place) / "in", args.count)
        files = sorted((Path(place) / "in").iterdir())
        print(f"{args.count} JPEGs, {size / args.count / 1000:.0f} kB each, {os.cpu_count()} processors")
        wall: dict[str, list[float]] = {name: [] for name in ways}
        cpu: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(args.rounds + 1):
            for name, work in ways.items():
                out = Path(place) / "out"
                before, busy = time.perf_counter(), time.process_time()
                work(files, out)
                wall[name].append(time.perf_counter() - before)
                cpu[name].append(time.process_time() - busy)
                shutil.rmtree(out, ignore_errors=True)
        base = {"floor": statistics.median(wall["floor, 1 thread"][1:])}
        base["decode"] = statistics.median(wall["decode alone, all threads"][1:])
        for name in ways:
            middle, busy = statistics.median(wall[name][1:]), statistics.median(cpu[name][1:])
            print(
                f"{name:28} {size / middle / 1e6:7.0f} MB/s  {middle / args.count * 1000:6.2f} s/1k  "
                f"{busy / args.count * 1000:6.2f} CPU s/1k  x floor {middle / base['floor']:5.2f}  "
                f"x decode {middle / base['decode']:5.2f}"
            )


if __name__ == "__main__":
    main()
