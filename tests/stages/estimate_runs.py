"""Run folders for tests of estimate: images of given sizes and texts of given lengths, and results billed at will."""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.made import manifest_head, run_json
from vlmbatch import jsonl, providers
from vlmbatch.freeze import LineWriter, ShardWriter, custom_id, freeze
from vlmbatch.providers.base import Ask, ImagePart
from vlmbatch.records import ATTEMPT_SCHEMA
from vlmbatch.rundir import MANIFEST, Draft, RunDir

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

STEM = "t7e57a0"
MODEL = "gpt-4o"
PROMPT = "What does this picture show? Answer in one sentence."


@dataclass
class Row:
    """One request: its images by size (``sent`` where another size is sent), its text, its row."""

    sizes: Sequence[tuple[int, int]] = ((1024, 1024),)
    text: str = PROMPT
    row: bytes = b"{}"
    sent: tuple[int, int] | None = None
    image: str = ""
    media_type: str = "image/jpeg"


def make_run(
    target: Path,
    rows: Sequence[Row] | int = 3,
    *,
    model: str = MODEL,
    provider: str = "openai",
    detail: str | None = "high",
    max_tokens: int | None = 64,
    json_answer: bool = False,
    per_shard: int = 1000,
    max_bytes: int = 1 << 40,
) -> RunDir:
    """Freeze a run; images are a few bytes whose sizes the manifest claims."""
    rows = [Row(image=f"image {i}") for i in range(rows)] if isinstance(rows, int) else rows
    ask = Ask(model=model, max_tokens=max_tokens, detail=detail, system="Be brief.", json_answer=json_answer)
    adapter = providers.get(provider)
    with Draft(target) as draft:
        shards = ShardWriter(draft, max_bytes=max_bytes, max_requests=per_shard)
        manifest = LineWriter(draft, MANIFEST)
        for index, row in enumerate(rows):
            manifest.put(_freeze(adapter, ask, shards, index, row))
        shards.close()
        draft.publish(
            run_json(
                provider=provider,
                model=model,
                request={"method": "POST", "url": adapter.url(ask), "params": adapter.params(ask)},
                id_stem=STEM,
                shards=shards.shards,
                manifest=manifest.close(),
                answer={"json": json_answer, "schema": None},
            )
        )
    return RunDir.open(target)


def _freeze(adapter: Any, ask: Ask, shards: ShardWriter, index: int, row: Row) -> bytes:
    records, parts = [], []
    for number, (width, height) in enumerate(row.sizes):
        data = f"{row.image or index}.{number}".encode() * 7
        digest = jsonl.sha256(data)
        record: dict[str, Any] = {"path": f"set/{index:04d}.{number}.jpg", "sha256": digest, "bytes": len(data)}
        record |= {"width": width, "height": height, "media_type": row.media_type}
        if row.sent:
            sent = {"sha256": digest, "bytes": len(data), "width": row.sent[0], "height": row.sent[1]}
            record |= {"bytes": 10**6, "sent": {**sent, "media_type": row.media_type}}
        records.append(record)
        parts.append(ImagePart(row.media_type, base64=base64.b64encode(data).decode()))
    frozen = freeze(adapter, ask, custom_id(STEM, index, records[0]["sha256"] if records else None), [*parts, row.text])
    shard, offset = shards.put(frozen.line, images=len(records))
    inner = frozen.line[frozen.body_offset : -1]
    head = manifest_head(frozen.custom_id, inner, frozen.line, shard=shard, offset=offset, images=records)
    return jsonl.dumps({**head, "row": jsonl.Fragment(row.row)})


@dataclass
class Billed:
    """What one row was billed and answered."""

    used: int = 779
    made: int = 9
    text: str = "A red square left of a green one."
    finish: str = "stop"
    reasoning: int | None = None
    cached: int | None = None
    images: int | None = None
    status_code: int = 200
    body: Any = None

    def response(self) -> Any:
        """Return the answer as the provider words it."""
        if self.body is not None:
            return self.body
        usage: dict[str, Any] = {
            "prompt_tokens": self.used,
            "completion_tokens": self.made,
            "total_tokens": self.used + self.made,
        }
        prompt = {"cached_tokens": self.cached, "image_tokens": self.images}
        usage["prompt_tokens_details"] = {key: value for key, value in prompt.items() if value is not None}
        if self.reasoning is not None:
            usage["completion_tokens_details"] = {"reasoning_tokens": self.reasoning}
        message = {"role": "assistant", "content": self.text}
        choice = {"index": 0, "message": message, "finish_reason": self.finish}
        return {"id": "c", "object": "chat.completion", "model": MODEL, "choices": [choice], "usage": usage}


def bill(run: RunDir, rows: Iterable[Billed | None], name: str = "smoke.jsonl", **more: Any) -> str:
    """Write a results file that answers the manifest's rows in order (None = no line); return its path."""
    path = os.path.join(run.file("results"), name)
    with open(path, "wb") as file:
        for entry, one in zip(run.iter_entries(), rows, strict=False):
            if one is not None:
                file.write(jsonl.dumps(_attempt(entry, one) | more) + b"\n")
    return path


def _attempt(entry: Any, one: Billed) -> dict[str, Any]:
    return {
        "schema": ATTEMPT_SCHEMA,
        "custom_id": entry.custom_id,
        "line_sha256": entry.line_sha256,
        "channel": "realtime",
        "endpoint": "http://127.0.0.1/v1",
        "started_at": f"2026-11-30T00:{entry.position // 60:02d}:{entry.position % 60:02d}Z",
        "latency_s": 1.0,
        "tries": [],
        "status_code": one.status_code,
        "response": one.response(),
        "request_id": None,
        "error": None,
    }
