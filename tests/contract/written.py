"""Everything that the commands write, made for real: run folders of every kind, and what ``--json`` printed."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from tests.cli.doors import Called, call
from tests.pictures import png
from vlmbatch.rehearsal.faults import parse_faults
from vlmbatch.rehearsal.samples import TABLE, draw
from vlmbatch.rehearsal.server import serve
from vlmbatch.slurm import Submitted

if TYPE_CHECKING:
    from collections.abc import Mapping

IMAGES = Path(__file__).resolve().parents[1] / "data" / "images"
MODEL = "gpt-5.4-mini"
_ROUGH = {
    "seed": 3,
    "rates": {"http_429": 0.3, "reset": 0.3, "html_200": 0.2, "refusal": 0.2, "truncated": 0.2, "empty": 0.2},
    "retry_after_s": 0.01,
}
_PRICES = ("--price-in", "0.25", "--price-out", "2.00", "--batch-discount", "0.5", "--price-source", "a page")
_KEY = {"KEY": "sk-test-0123456789abcdef"}
_PIPELINE = """
processors:
  - type: llm
    server_args: {model_path: test/vlm, tp_size: 2}
    chat_template: qwen2-vl
    default_sampling_params: {temperature: 0.1, max_new_tokens: 300}
loading_params:
  state_dir: state
  datasets:
    - {path: samples.jsonl, type: JSONL, output_dir: merged}
  num_shards: 4
  shard_id: "$TASK"
  batch_size: 8
processing_params:
  inputs:
    - {name: image, key: image_path, type: image}
    - {name: question, key: question_string}
  outputs:
    - {name: short, type: llm, output_type: plain, prompt: "{{ image }} {{ question }}"}
    - {name: facts, type: llm, output_type: JSON, output_schema: {object: str}, prompt: "{{ image }} Name it."}
  output_schema: {answer: "{{ short }}"}
execution_params: {mode: slurm, account: someone}
"""


@dataclass
class Written:
    """What the commands of a scenario left behind.

    Attributes:
        place: The scenario's own folder.
        runs: Run folders (and redacted copies) in it.
        told: What ``--json`` printed, call by call.
    """

    place: Path
    runs: list[Path] = field(default_factory=list)
    told: list[dict[str, Any]] = field(default_factory=list)

    def call(self, *words: object, status: int = 0, env: Mapping[str, str] | None = None) -> Called:
        """Run a command with ``--json``, keep what it printed, and see that it ended as it should."""
        done = call(*words, "--json", env=dict(env or {}))
        assert done.status == status, (words, done.status, done.err)
        self.told.append(done.json())
        return done

    def build(self, name: str, *words: object, env: Mapping[str, str] | None = None) -> Path:
        """Build a run."""
        self.runs.append(self.place / name)
        self.call("build", *words, "--out", self.runs[-1], env=env)
        return self.runs[-1]


def samples(place: Path) -> Path:
    """Draw the sample images, with some odd ones among them; return their folder."""
    folder = place / "samples"
    draw(str(folder))
    shutil.copyfile(IMAGES / "orient6.jpg", folder / "turned.jpg")
    (folder / "broken.jpg").write_bytes(b"<html>no image</html>")
    with open(os.path.join(os.fsencode(folder), b"caf\xe9.png"), "wb") as file:
        file.write(png(90, 60))
    return folder


def rehearsed(place: Path) -> Written:
    """A rehearsal with faults over converted images, one of them bad: estimated, collected, reported and sealed."""
    made = Written(place)
    run = made.build("run", samples(place), "--model", MODEL, "--prompt", "What?", "--skip-bad", "--max-side", "500")
    faults = place / "faults.json"
    faults.write_text(json.dumps(_ROUGH))
    made.call("estimate", run, "--out-tokens", "50", *_PRICES)
    made.call("run", run, "--rehearsal", "--faults", faults, "--max-tries", "2", status=1)
    made.call("estimate", run, "--calibrate", run / "results" / "rehearsal-0001.jsonl", "--rehearsal")
    merged = run / "merged.jsonl"
    made.call("collect", run, "--rehearsal", "--write", merged, "--report", "--gate", status=1)
    made.call("collect", run, "--rehearsal", "--write", merged, "--report", "--seal", "--bag", place / "bag")
    made.call("collect", run, "--rehearsal", "--explain", "counts.ok")
    return made


def sent(place: Path) -> Written:
    """A run over a table: smoke, calibration, the rest, a second answer for every row; reviewed, compared, redacted."""
    made = Written(place)
    table = samples(place) / TABLE
    more = ("--model", MODEL, "--question-field", "question_string", "--id-fields", "image_path")
    system = place / "system.txt"
    system.write_text("Be brief.")
    run = made.build("run", table, *more, "--system-file", system, "--response-format", "json")
    with serve(parse_faults({**_ROUGH, "rates": {"http_500": 0.2, "empty": 0.2}}), models=[MODEL]) as server:
        to = ("--base-url", f"{server.base_url}/v1", "--api-key-env", "KEY", "--max-tries", "1")
        smoke = run / "results" / "smoke.jsonl"
        made.call("run", run, *to, "--limit", "5", "--out", smoke, status=1, env=_KEY)
        made.call("estimate", run, "--calibrate", smoke, *_PRICES)
        wrong = ("--scheme", "gemini-tile", "--require-receipt")
        made.call("estimate", run, "--calibrate", smoke, *wrong, status=1)
        for _ in range(2):
            made.call("run", run, *to, "--no-resume", status=1, env=_KEY)
    ids = [json.loads(line)["custom_id"] for line in (run / "manifest.jsonl").read_bytes().splitlines()]
    (run / "reviews.jsonl").write_text(json.dumps({"custom_id": ids[0], "verdict": "accept", "comment": "yes"}) + "\n")
    other = made.build("other", table, *more)
    made.call("run", run, "--pending", place / "pending.jsonl")
    made.call("collect", run, "--write", run / "merged.jsonl", "--compare", other, "--csv", place / "flat.csv")
    made.call("collect", run, "--redact", place / "copy", "--leave-out", "paths", "--leave-out", "prompts")
    made.runs.append(place / "copy")
    return made


def piped(place: Path) -> Written:
    """A pipeline file with two outputs, one of them JSON."""
    made = Written(place)
    samples(place)
    (place / "samples" / "pipeline.yaml").write_text(_PIPELINE)
    run = made.build("run", "--config", place / "samples" / "pipeline.yaml")
    made.call("run", run, "--rehearsal")
    made.call("collect", run, "--rehearsal", "--write", run / "merged.jsonl", "--compare", run, "--require", "ok>=1")
    made.call("collect", run, "--redact", place / "copy", "--leave-out", "paths", "--leave-out", "prompts")
    made.runs.append(place / "copy")
    return made


def batched(place: Path) -> Written:
    """Batch jobs that end well, jobs that fail, and one that is looked at while it is open."""
    made = Written(place)
    source = place / "images"
    source.mkdir()
    for number in range(6):
        (source / f"{number}.png").write_bytes(png(40 + number, 30))
    faults = {"batch": {"ends": ["completed", "failed", "expired"], "fail_code": "model_mismatch", "looks": 3}}
    run = made.build("run", source, "--model", MODEL, "--prompt", "What?", "--shard-max-requests", "2")
    with serve(parse_faults(faults)) as server:
        to = ("--channel", "batch", "--base-url", f"{server.base_url}/v1", "--api-key-env", "KEY", "--poll-interval")
        made.call("run", run, *to, "0.01", "--detach", env=_KEY)
        made.call("run", run, *to, "0.01", "--status", status=1, env=_KEY)
        made.call("run", run, *to, "0.01", status=1, env=_KEY)
        made.call("collect", run, "--write", run / "merged.jsonl")
    made.call("run", run, "--rehearsal", "--channel", "batch", "--poll-interval", "0.01")
    return made


def converted(place: Path) -> Written:
    """Requests in another provider's words, with every image written anew."""
    made = Written(place)
    anew = ("--format", "jpeg", "--max-pixels", "90000", "--strip-metadata", "--convert-unsupported")
    words = ("--provider", "anthropic", "--model", "claude-sonnet-5", "--prompt", "What?")
    run = made.build("run", samples(place) / "charts", *words, *anew)
    made.call("run", run, "--rehearsal")
    queued = Submitted(array="17", parts=(0, 1), follow_up="18", folder="slurm")  # what a cluster would have said
    with mock.patch("vlmbatch.slurm.submit", return_value=queued):
        made.call("run", run, "--slurm", "2")
    return made


def carried(place: Path) -> Written:
    """Images that the provider's file store carries."""
    made = Written(place)
    words = ("--provider", "anthropic", "--model", "claude-sonnet-5", "--prompt", "What?", "--carrier", "provider-file")
    with serve() as server:
        to = ("--base-url", server.base_url, "--api-key-env", "KEY")
        run = made.build("run", samples(place) / "charts", *words, *to, env=_KEY)
        made.call("run", run, *to, env=_KEY)
    made.call("collect", run, "--write", run / "all.jsonl")
    return made


def refused(place: Path) -> Written:
    """Every kind of failure: wrong words, no run, damage, a provider that refuses, a check that does not hold."""
    made = Written(place)
    run = made.build("run", samples(place) / "charts", "--model", MODEL, "--prompt", "What?")
    made.call("nope", status=2)
    made.call("build", "--what", status=2)
    made.call("build", place / "samples", "--model", MODEL, "--prompt", "What?", "--out", place / "new", status=2)
    made.call("estimate", place / "none", status=2)
    made.call("estimate", "--size", "640x480", "--model", MODEL)
    made.call("estimate", "--size", "640x480", "--model", "nobody-knows-it")
    made.call("estimate", run, "--shard-limit-bytes", "20000", status=1)
    with serve(parse_faults({"quota_after": 0})) as server:
        made.call("run", run, "--base-url", server.base_url, "--api-key-env", "KEY", status=4, env=_KEY)
    made.call("collect", run, "--require", "ok>=100%", status=1)
    made.call("run", run, "--api-key-env", "NOT_THERE", status=2)
    damaged = place / "damaged"
    shutil.copytree(run, damaged)
    shard = damaged / "shards" / "00000.jsonl"
    shard.chmod(0o644)
    shard.write_bytes(shard.read_bytes().replace(b"What?", b"What!"))
    made.call("collect", damaged, status=3)
    return made


SCENARIOS = {one.__name__: one for one in (rehearsed, sent, piped, batched, converted, carried, refused)}
