"""Small built runs and one call of the batch channel, for the tests of it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.contract import schemas
from tests.pictures import png
from vlmbatch import attempts, providers, resume
from vlmbatch.batch.base import BatchOptions, BatchResult
from vlmbatch.batch.channel import send_batches
from vlmbatch.records import Event
from vlmbatch.stages.build import build
from vlmbatch.stages.building.plan import BuildOptions

if TYPE_CHECKING:
    from pathlib import Path

    from vlmbatch.rehearsal.server import Server
    from vlmbatch.rundir import RunDir
    from vlmbatch.stop import Stop


@dataclass(frozen=True)
class Kind:
    """A provider with a batch API: its name, the endpoint's path, and what stands behind the host."""

    name: str
    url: str
    base: str


CHAT = Kind("openai", "", "/v1")
RESPONSES = Kind("openai", "/v1/responses", "/v1")
MESSAGES = Kind("anthropic", "", "")
GEMINI = Kind("gemini", "", "")
KINDS = {"chat": CHAT, "responses": RESPONSES, "messages": MESSAGES, "gemini": GEMINI}


def make(folder: Path, kind: Kind = CHAT, *, rows: int = 7, per_shard: int = 3, prompt: str = "What?") -> RunDir:
    """Build a run of some small pictures; another prompt makes other ids."""
    source = folder / "images"
    source.mkdir(parents=True, exist_ok=True)
    for number in range(rows):
        (source / f"{number:03d}.png").write_bytes(png(10 + number, 8))
    options = BuildOptions(
        sources=[str(source)],
        out=str(folder / "run"),
        model="test-model-1",
        provider=kind.name,
        url=kind.url,
        prompt=prompt,
        max_tokens=200,
        shard_max_requests=per_shard,
    )
    return build(options).run


class Heard(list[Event]):
    """Collects events."""

    def __call__(self, event: Event) -> None:
        self.append(event)

    def said(self) -> str:
        """Return every sentence that was said."""
        return "\n".join(event.message for event in self if event.message)


def send(
    run: RunDir, server: Server, kind: Kind = CHAT, *, stop: Stop | None = None, heard: Heard | None = None, **more: Any
) -> BatchResult:
    """Send what is left of a run by the batch channel."""
    provider = providers.get(run.info["provider"], run.info["request"]["url"])
    index = run.index()
    standing = resume.read_standing(run, provider, index)
    wanted = resume.select(more.pop("rows", range(run.requests)), standing).wanted
    base_url = more.pop("base_url", server.base_url + kind.base)
    options = BatchOptions(**{"base_url": base_url, "key": "k", "poll_interval_s": 0.01, "settle_s": 0.3, **more})
    sending = send_batches(run, provider, options, wanted, index, count_tokens=lambda _: 50, on_event=heard, stop=stop)
    result = asyncio.run(sending)
    schemas.check_run_folder(run.path)
    return result


def answers(run: RunDir, *, rehearsal: bool = False) -> Counter[str]:
    """Return how many answered lines results/ holds for each custom_id."""
    provider = providers.get(run.info["provider"], run.info["request"]["url"])
    counts: Counter[str] = Counter()
    for path in run.results(rehearsal=rehearsal):
        counts.update(o.custom_id for o in attempts.Reader(path, run, provider) if o.status_code == 200)
    return counts


def ids(run: RunDir) -> list[str]:
    """Return the custom_ids in manifest order."""
    return [entry.custom_id for entry in run.iter_entries()]


def events(run: RunDir) -> list[dict[str, Any]]:
    """Return the journal's events."""
    with open(run.file("batches.jsonl"), "rb") as file:
        return [json.loads(line) for line in file]
