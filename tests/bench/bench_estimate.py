"""estimate against reading the manifest once, in one process: ``python -m tests.bench.bench_estimate [N] [ROUNDS]``.

Prints medians of CPU seconds per 100,000 requests and of the ratio to reading, for manifests with few and with all
different image sizes (each new size costs one use of the rule).
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.sendable import STEM, make_run
from vlmbatch import jsonl, tokens
from vlmbatch.rundir import MANIFEST, RunDir
from vlmbatch.stages.estimating.workload import Frame, Ruler, survey

if TYPE_CHECKING:
    from collections.abc import Callable

FEW = 300


def make(folder: Path, count: int, sizes: int) -> RunDir:
    """Write a run folder whose manifest names ``count`` photographs of ``sizes`` different sizes."""
    path = make_run(folder, 1).file(MANIFEST)
    head: dict[str, Any] = jsonl.loads(Path(path).read_bytes().splitlines()[0])
    row = head.pop("row")
    rng = random.Random(3)
    os.chmod(path, 0o644)
    with open(path, "wb") as file:
        for index in range(count):
            size = rng.randrange(sizes)
            digest = rng.randbytes(32).hex()
            image = {
                "path": f"photos/{index // 1000:03d}/{index:06d}.jpg",
                "sha256": digest,
                "bytes": 217_000 + index % 1000,
                "width": 300 + size % 2700,
                "height": 300 + size // 2700,
                "media_type": "image/jpeg",
            }
            line = {**head, "custom_id": f"{STEM}-{index:06d}-{digest[:8]}", "body_length": 290_879, "images": [image]}
            file.write(jsonl.dumps({**line, "row": row}) + b"\n")
    return RunDir.open(folder)


def _cpu(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def measure(run: RunDir, count: int, rounds: int, label: str) -> None:
    """Print one line: reading, estimating, their ratio."""
    reads, surveys = [], []
    for _ in range(rounds):
        reads.append(_cpu(lambda: sum(1 for _ in run.iter_entries())))
        surveys.append(_cpu(lambda: survey(run, Ruler(tokens.pick("gpt-4o")), Frame())))
    per = 100_000 / count
    ratio = statistics.median(b / a for a, b in zip(reads, surveys, strict=True))
    read, whole = statistics.median(reads) * per, statistics.median(surveys) * per
    print(f"{label:22} reading {read:.2f} s/100k   estimate {whole:.2f} s/100k   ratio {ratio:.2f}")


def main() -> None:
    """Make both manifests and measure."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    with tempfile.TemporaryDirectory() as folder:
        measure(make(Path(folder, "few"), count, FEW), count, rounds, f"{FEW} image sizes")
        measure(make(Path(folder, "all"), count, count), count, rounds, "all sizes different")


if __name__ == "__main__":
    main()
