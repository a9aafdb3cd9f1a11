"""Small run folders with frozen lines of any provider, and attempts in every shape, for tests of reading results."""

from __future__ import annotations

import base64
import os
from typing import TYPE_CHECKING, Any

from tests.made import manifest_head, run_json
from vlmbatch import jsonl, providers
from vlmbatch.providers.base import Ask, ImagePart
from vlmbatch.records import ATTEMPT_SCHEMA
from vlmbatch.rundir import MANIFEST, Draft, RunDir

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

STEM = "t0f3a9c"
MAX_TOKENS = 64
EARLIER = b'{"custom_id":"t0f3a9c-000000-00000000","status":"ok"}\n'
"""Records that an earlier collect left: they may be replaced."""


def make_run(
    target: Path,
    rows: int | Sequence[bytes] = 3,
    *,
    provider: str = "openai",
    outputs: Sequence[str] = ("",),
    answer: dict[str, Any] | None = None,
    images: Sequence[str] | None = None,
    rejected: Collection[int] = (),
) -> RunDir:
    """Build a run: one request for each row and output, each with an image of its own.

    Args:
        target: The folder.
        rows: How many rows, or their JSON.
        provider: Whose wire format.
        outputs: Names of the pipeline outputs.
        answer: run.json's ``answer``.
        images: What the images hold, by row; the same text is the same image.
        rejected: Inputs that became no request, by their index, which counts on over a row's outputs.
    """
    table = [b"{}"] * rows if isinstance(rows, int) else list(rows)
    adapter = providers.get(provider)
    ask = Ask(model="test-model", max_tokens=MAX_TOKENS)
    shard, manifest = bytearray(), bytearray()
    inputs = [(number, output) for number in range(len(table)) for output in outputs]
    with Draft(target) as draft:
        for index, (number, output) in enumerate(inputs):
            if index in rejected:
                continue
            data = (images[number] if images else f"image {number}").encode()
            head, line = _freeze(adapter, ask, index, data, output, len(shard))
            if not isinstance(rows, int):
                head["source_line"] = number + 1
            if output:
                head["output"] = output
            shard += line + b"\n"
            manifest += jsonl.dumps({**head, "row": jsonl.Fragment(table[number])}) + b"\n"
        count = len(inputs) - len(rejected)
        prompt = draft.write("inputs/prompt.txt", b"What is this?")
        shards = [{**draft.write("shards/00000.jsonl", bytes(shard)), "requests": count, "images": count}]
        draft.publish(
            run_json(
                provider=provider,
                model="test-model",
                request={"method": "POST", "url": adapter.url(ask), "params": adapter.params(ask)},
                id_stem=STEM,
                shards=shards,
                manifest=draft.write(MANIFEST, bytes(manifest)),
                prompt=prompt,
                inputs=[prompt],
                source={"kind": "folder", "path": "images", "sha256": "0" * 64, "count": len(inputs)},
                answer=answer or {"json": False, "schema": None},
            )
        )
    return RunDir.open(target)


def _freeze(adapter: Any, ask: Ask, index: int, data: bytes, output: str, offset: int) -> tuple[dict[str, Any], bytes]:
    digest = jsonl.sha256(data)
    custom_id = f"{STEM}-{index:06d}-{digest[:8]}"
    parts = [ImagePart("image/png", base64=base64.b64encode(data).decode()), f"What is this? {output}"]
    inner = jsonl.dumps_canonical(adapter.body(ask, parts))
    line = jsonl.dumps(adapter.line(custom_id, jsonl.Fragment(inner), ask))
    image = {
        "path": f"set/{index:03d}.png",
        "sha256": digest,
        "bytes": len(data),
        "width": 640,
        "height": 480,
        "media_type": "image/png",
    }
    return manifest_head(custom_id, inner, line, shard="shards/00000.jsonl", offset=offset, images=[image]), line


def fill_in(data: bytes, run: RunDir) -> bytes:
    """Replace the marks @ID0@, @LINE0@ ... of a case file by what the run has."""
    for entry in run.iter_entries():
        data = data.replace(b"@ID%d@" % entry.position, entry.custom_id.encode())
        data = data.replace(b"@LINE%d@" % entry.position, entry.line_sha256.encode())
    return data


def completion(
    text: str | None, *, finish: str = "stop", model: str = "test-vlm-1", used: int = 812, made: int = 9
) -> Any:
    """Return a chat completion."""
    return {
        "id": "chatcmpl-t",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}],
        "usage": {"prompt_tokens": used, "completion_tokens": made, "total_tokens": used + made},
    }


def attempt(run: RunDir, position: int, response: Any = None, *, at: int = 0, **more: Any) -> dict[str, Any]:
    """Return an attempt of ours at the request of one manifest line; ``at`` is its minute."""
    entry = next(entry for entry in run.iter_entries() if entry.position == position)
    answered = response is not None
    return {
        "schema": ATTEMPT_SCHEMA,
        "custom_id": entry.custom_id,
        "line_sha256": entry.line_sha256,
        "channel": "realtime",
        "endpoint": "http://127.0.0.1/v1",
        "started_at": f"2026-01-01T00:{at:02d}:00Z",
        "latency_s": 1.5,
        "tries": [{"status_code": 200 if answered else None, "error": None if answered else "connect", "waited_s": 0}],
        "status_code": 200 if answered else None,
        "response": response,
        "request_id": "r",
        "error": None
        if answered
        else {"type": "connection", "message": "refused", "status_code": None, "is_retryable": True},
    } | more


def failed(run: RunDir, position: int, status_code: int = 500, *, at: int = 0) -> dict[str, Any]:
    """Return an attempt that ended in an HTTP error."""
    body = {"error": {"message": "invented", "type": "x", "code": None}}
    return attempt(run, position, body, at=at, status_code=status_code)


def write_results(run: RunDir, name: str, values: Sequence[Any]) -> str:
    """Write a file of results/, bytes as they are and objects as JSON lines; return its path."""
    folder = run.file("results")
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name)
    with open(path, "wb") as file:
        file.writelines(value if isinstance(value, bytes) else jsonl.dumps(value) + b"\n" for value in values)
    return path


def records(path: str | Path) -> list[dict[str, Any]]:
    """Return the records of a merged.jsonl."""
    with open(path, "rb") as file:
        return [jsonl.loads(line) for line in file]
