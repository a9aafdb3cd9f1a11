"""What build writes of a run and of each request, for tests that make run folders by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vlmbatch import jsonl
from vlmbatch.records import RUN_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def run_json(
    *,
    model: str,
    request: Mapping[str, Any],
    id_stem: str,
    shards: Sequence[Mapping[str, Any]],
    manifest: Mapping[str, Any],
    **more: Any,
) -> Any:
    """Return a run.json over shards and a manifest; ``more`` is laid over what a plain run has."""
    counts = {key: sum(shard[key] for shard in shards) for key in ("requests", "images")}
    plain = {
        "schema": RUN_SCHEMA,
        "tool": {"name": "vlmbatch", "version": "0.0.0"},
        "libraries": {},
        "created_at": "2026-05-01T10:00:00Z",
        "host": "maker",
        "provider": "openai",
        "model": model,
        "request": request,
        "prompt": None,
        "system": None,
        "inputs": [],
        "source": {"kind": "folder", "path": "made", "sha256": "0" * 64, "count": counts["requests"]},
        "image_policy": {"name": "as-is"},
        "answer": {"json": False, "schema": None},
        "id_stem": id_stem,
        "counts": {**counts, "rejected": 0, "duplicate_images": 0},
        "shards": shards,
        "manifest": {**manifest, "requests": counts["requests"]},
        "rejected": None,
        "extensions": {},
    }
    return plain | more


def manifest_head(
    custom_id: str, inner: bytes, line: bytes, *, shard: str, offset: int, images: Sequence[Any] = ()
) -> dict[str, Any]:
    """Return a manifest line but for its row: where a request stands, whose body ends one byte before its line."""
    return {
        "custom_id": custom_id,
        "shard": shard,
        "offset": offset,
        "length": len(line),
        "body_offset": len(line) - 1 - len(inner),
        "body_length": len(inner),
        "inner_sha256": jsonl.sha256(inner),
        "line_sha256": jsonl.sha256(line),
        "images": images,
    }
