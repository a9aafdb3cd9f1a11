"""Run folders for tests of sending: frozen as build freezes, but with small made-up bodies: many rows cost nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.made import manifest_head, run_json
from vlmbatch import jsonl, providers
from vlmbatch.freeze import LineWriter, ShardWriter, custom_id
from vlmbatch.rundir import MANIFEST, Draft, RunDir

if TYPE_CHECKING:
    from pathlib import Path

STEM = "t5e9d1f"
MODEL = "test-vlm-1"
URL = "/v1/chat/completions"


def make_run(
    target: Path,
    count: int,
    *,
    body_bytes: int = 0,
    per_shard: int = 1 << 30,
    provider: str = "openai",
    max_tokens: int = 64,
) -> RunDir:
    """Freeze ``count`` requests, each padded by ``body_bytes``, ``per_shard`` of them in a shard."""
    with Draft(target) as draft:
        shards = ShardWriter(draft, max_bytes=1 << 40, max_requests=per_shard)
        manifest = LineWriter(draft, MANIFEST)
        for index in range(count):
            manifest.put(jsonl.dumps(_freeze(shards, index, body_bytes, max_tokens)))
        shards.close()
        draft.publish(
            run_json(
                provider=provider,
                model=MODEL,
                request={"method": "POST", "url": URL, "params": {"max_tokens": max_tokens}},
                id_stem=STEM,
                shards=shards.shards,
                manifest=manifest.close(),
            )
        )
    assert providers.get(provider, URL)
    return RunDir.open(target)


def row_id(index: int) -> str:
    """Return the custom_id of a row."""
    return custom_id(STEM, index, None)


def row_prompt(index: int) -> str:
    """Return the text by which a server knows the row."""
    return f"row {index:07d}"


def _freeze(shards: ShardWriter, index: int, body_bytes: int, max_tokens: int) -> dict[str, Any]:
    text = f"{row_prompt(index)}{'x' * body_bytes}"
    body = {"model": MODEL, "max_tokens": max_tokens, "messages": [{"role": "user", "content": text}]}
    inner = jsonl.dumps_canonical(body)
    line = jsonl.dumps({"custom_id": row_id(index), "method": "POST", "url": URL, "body": jsonl.Fragment(inner)})
    shard, offset = shards.put(line, images=0)
    return {**manifest_head(row_id(index), inner, line, shard=shard, offset=offset), "row": {}}


def attempts_of(run: RunDir, *, rehearsal: bool = False) -> list[dict[str, Any]]:
    """Return every whole line of the run's results files."""
    lines = [line for path in run.results(rehearsal=rehearsal) for line in jsonl.iter_lines(path)]
    values = [jsonl.parse_object(line.data) for line in lines]
    return [value for value in values if value is not None]
