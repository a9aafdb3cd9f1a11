"""Collected run folders for tests of what stands behind collect, made by hand so that no other stage is needed."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.made import manifest_head, run_json
from vlmbatch import jsonl
from vlmbatch.records import Status, no_usage
from vlmbatch.rundir import MANIFEST, Draft, RunDir

STEM = "t0f3a9c"
PROMPT = "Describe the picture."


def picture(number: int, side: int = 64) -> bytes:
    """Return a small PNG that differs for each number."""
    from PIL import Image

    colour = ((number * 67) % 256, (number * 131 + 40) % 256, (number * 29 + 90) % 256)
    image = Image.new("RGB", (side, side * 3 // 4), colour)
    image.paste((255 - colour[0], 220, 90), (side // 4, side // 4, side // 2, side // 2))
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


@dataclass
class Made:
    """One request with what became of it; what is not given is plain."""

    text: str | None = "A plain answer."
    status: Status = Status.OK
    path: str = ""
    prompt: str = PROMPT
    row: dict[str, Any] = field(default_factory=dict)
    image: bytes | None = None
    record: dict[str, Any] = field(default_factory=dict)


def make_run(target: Path, made: list[Made], *, max_tokens: int = 512, system: str = "") -> RunDir:
    """Write a whole collected run folder: frozen files, results, merged.jsonl and summary.json."""
    with Draft(target) as draft:
        copies = {"prompt": draft.write("inputs/prompt.txt", PROMPT.encode())}
        if system:
            copies["system"] = draft.write("inputs/system.txt", system.encode())
        config = draft.write("inputs/pipeline.yaml", b"source: /home/someone/private/photos\n")
        shard, manifest = bytearray(), bytearray()
        heads = []
        for index, one in enumerate(made):
            data = one.image if one.image is not None else picture(index)
            line, head = _frozen(index, one, data, max_tokens, len(shard))
            shard += line + b"\n"
            heads.append(head)
            manifest += jsonl.dumps({**head, "row": one.row}) + b"\n"
        shard_ref = draft.write("shards/00000.jsonl", bytes(shard))
        manifest_ref = draft.write(MANIFEST, bytes(manifest))
        draft.publish(
            run_json(
                model="test-model",
                request={
                    "method": "POST",
                    "url": "/v1/chat/completions",
                    "params": {"max_tokens": max_tokens, "temperature": 0.1, "top_p": 1e-7},
                },
                id_stem=STEM,
                shards=[{**shard_ref, "requests": len(made), "images": len(made)}],
                manifest=manifest_ref,
                libraries={"orjson": "3"},
                prompt=copies["prompt"],
                system=copies.get("system"),
                inputs=[*copies.values(), config],
                source={"kind": "folder", "path": "private-photos", "sha256": "0" * 64, "count": len(made)},
            )
        )
    run = RunDir.open(target)
    _collect(run, made, heads)
    return run


def _frozen(index: int, one: Made, data: bytes, max_tokens: int, offset: int) -> tuple[bytes, dict[str, Any]]:
    sha256 = jsonl.sha256(data)
    custom_id = f"{STEM}-{index:06d}-{sha256[:8]}"
    image_url = {"url": f"data:image/png;base64,{base64.b64encode(data).decode()}"}
    content = [{"type": "image_url", "image_url": image_url}, {"type": "text", "text": one.prompt}]
    body = {
        "model": "test-model",
        "max_tokens": max_tokens,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}],
    }
    inner = jsonl.dumps_canonical(body)
    line = jsonl.dumps(
        {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": jsonl.Fragment(inner)}
    )
    image = {
        "path": one.path or f"set/picture-{index:05d}.png",
        "sha256": sha256,
        "bytes": len(data),
        "width": 64,
        "height": 48,
        "media_type": "image/png",
    }
    return line, manifest_head(custom_id, inner, line, shard="shards/00000.jsonl", offset=offset, images=[image])


def _collect(run: RunDir, made: list[Made], heads: list[dict[str, Any]]) -> None:
    merged, results = bytearray(), bytearray()
    for index, (one, head) in enumerate(zip(made, heads, strict=True)):
        usage = {**no_usage(), "input_tokens": 900 + index % 7, "output_tokens": 20 + (index * 37) % 400}
        record = {
            "custom_id": head["custom_id"],
            "status": one.status.value,
            "reason": None,
            "text": one.text,
            "json": None,
            "reasoning": None,
            "usage": usage,
            "finish_reason": "stop",
            "model": "test-model-2026",
            "source_file": "results/run.jsonl",
            "source_line": index + 1,
            "error": None,
            "authoritative": "text",
            "notes": [],
            "channel": "realtime",
            "latency_s": 0.4 + (index * 13 % 50) / 20,
            "system_fingerprint": None,
            "rehearsal": False,
            "images": head["images"],
            "superseded": [],
            "review": None,
            **one.record,
            "row": one.row,
        }
        merged += jsonl.dumps(record) + b"\n"
        results += (
            jsonl.dumps(
                {
                    "schema": "vlmbatch.attempt/1",
                    "custom_id": head["custom_id"],
                    "line_sha256": head["line_sha256"],
                    "started_at": f"2026-05-02T10:{index // 60 % 60:02d}:{index % 60:02d}Z",
                    "latency_s": record["latency_s"],
                }
            )
            + b"\n"
        )
    jsonl.write_atomic(run.file("results/run.jsonl"), results)
    jsonl.write_atomic(run.file("merged.jsonl"), merged)
    jsonl.write_atomic(run.file("summary.json"), jsonl.dumps_pretty(_summary(run, made, bytes(results))))


def _summary(run: RunDir, made: list[Made], results: bytes) -> dict[str, Any]:
    counts = {status.value: sum(one.status is status for one in made) for status in Status}
    tokens = {"attempts": len(made), "input_tokens": 900 * len(made), "output_tokens": 200 * len(made)}
    return {
        "schema": "vlmbatch.summary/1",
        "tool": {"name": "vlmbatch", "version": "0.0.0"},
        "run": {"fingerprint": run.fingerprint, "provider": "openai", "model": "test-model"},
        "rehearsal": False,
        "requests": len(made),
        "counts": counts,
        "reasons": [{"status": "truncated", "reason": "the output limit cut it", "count": counts["truncated"]}],
        "tokens": {"realtime": {**tokens, "cached_tokens": 0, "reasoning_tokens": 0}, "batch": {"attempts": 0}},
        "cost": {
            "currency": "USD",
            "prices": {
                "price_in_usd_per_mtok": "2.50",
                "price_out_usd_per_mtok": "10.00",
                "price_source": "https://example.org/prices",
                "price_date": "2026-05-01",
            },
            "realtime_usd": "12.345678",
            "batch_usd": None,
            "total_usd": "12.345678",
            "is_lower_bound": False,
        },
        "latency_s": {"count": len(made), "p50": 1.2, "p90": 2.4, "p95": 2.6, "p99": 2.8, "max": 2.9},
        "output_tokens": {"count": len(made), "p50": 200, "limits": [512], "near_limit": counts["truncated"]},
        "models": {"test-model-2026": len(made)},
        "endpoints": {"https://api.example.org/v1/chat/completions": len(made)},
        "files": [
            {
                "file": "results/run.jsonl",
                "sha256": jsonl.sha256(results),
                "bytes": len(results),
                "records": len(made),
                "torn_lines": 0,
            }
        ],
        "merged": None,
        "checks": [
            {
                "name": "complete",
                "asked": "one record per input",
                "holds": True,
                "detail": f"{len(made)} of {len(made)}",
            },
            {
                "name": "none at the limit",
                "asked": "0",
                "holds": not counts["truncated"],
                "detail": f"{counts['truncated']}",
            },
        ],
    }


def read_summary(run: RunDir) -> dict[str, Any]:
    """Return the folder's summary.json."""
    value: dict[str, Any] = jsonl.loads(Path(run.file("summary.json")).read_bytes())
    return value
