"""vlmbatch run where machines are concerned: --serve, --slurm, parts, and what a pipeline file says of them."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.doors import call
from tests.pictures import png
from tests.sendable import attempts_of, make_run
from tests.slurm.finding import cluster
from tests.waiting import wait_until
from vlmbatch.api.run import Run
from vlmbatch.cli.cluster import Flags, concurrency_of, part_of, serve_of, slurm_of
from vlmbatch.errors import InputError
from vlmbatch.rehearsal.server import serve
from vlmbatch.rundir import RunDir
from vlmbatch.slurm import SlurmOptions, Submitted

__all__ = ["cluster"]  # the fixture

SERVE = f"{sys.executable} -m vlmbatch.rehearsal --port {{port}}"
NONE = Flags(None, None, None, None, None, None, None, None, None, merge=False)

PIPELINE = """
processors:
  - type: llm
    server_args: {model_path: org/model, tp_size: 4, trust_remote_code: true}
    chat_template: qwen2-vl
loading_params:
  datasets:
    - {path: data.jsonl, type: JSONL, image_base_path: .}
  num_shards: 8
  shard_id: "$SLURM_ARRAY_TASK_ID"
  batch_size: 5
processing_params:
  inputs:
    - {name: image, key: image_path, type: image}
  outputs:
    - {name: answer, type: llm, output_type: plain, prompt: "{{ image }} What is this?"}
execution_params:
  mode: slurm
  account: ${PROJECT}
  reservation: week
  job_name: vlm-pipeline
  nodes: 2
  ntasks_per_node: 1
  gpus: 4
  cpus_per_task: 32
  time_limit: "05:59:59"
  hf_home: /cache/hf
  retry: true
  merge: true
  max_retries: 2
"""


@pytest.fixture
def pipeline_run(tmp_path: Path) -> Run:
    """Return a run of sixteen rows, built from a pipeline file that speaks of a cluster."""
    rows = []
    for number in range(16):
        (tmp_path / f"{number}.png").write_bytes(png(30 + number, 20))
        rows.append(json.dumps({"image_path": f"{number}.png"}))
    (tmp_path / "data.jsonl").write_text("\n".join(rows))
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    done = call("build", "--config", tmp_path / "pipeline.yaml", "--out", tmp_path / "run")
    assert done.status == 0, done.err
    return Run.open(tmp_path / "run")


# --- a server on this machine ----------------------------------------------------------------------------------------


def test_serve_starts_a_server_for_the_run(tmp_path: Path) -> None:
    """The server that is started answers all rows, its log is kept, and with nothing left to send none is started."""
    run = make_run(tmp_path / "run", 5, provider="vllm")
    done = call("run", run.path, "--serve", SERVE)
    assert done.status == 0, done.err
    assert len(attempts_of(run)) == 5
    log = tmp_path / "run" / "logs" / "serve-0000.log"
    assert str(log) in done.err
    before = log.read_bytes()
    assert call("run", run.path, "--serve", SERVE).status == 0
    assert log.read_bytes() == before


def test_serve_goes_without_another_address(tmp_path: Path) -> None:
    """A server that is started is where rows are sent: a further address contradicts it."""
    run = make_run(tmp_path / "run", 1)
    for more in (["--base-url", "http://127.0.0.1:9"], ["--rehearsal"], ["--channel", "batch"]):
        done = call("run", run.path, "--serve", SERVE, *more)
        assert done.status == 2
        assert "--serve goes without" in done.err


def test_server_that_fails_ends_the_run_with_its_log(tmp_path: Path) -> None:
    """A server that cannot start is bad input: its last words are shown, nothing was sent."""
    run = make_run(tmp_path / "run", 1)
    done = call("run", run.path, "--serve", f"{sys.executable} -c 'raise SystemExit(\"no GPU\")' {{port}}")
    assert done.status == 2
    assert "no GPU" in done.err
    assert attempts_of(run) == []


# --- parts -----------------------------------------------------------------------------------------------------------


def test_plain_array_script_divides_the_run_by_the_file(pipeline_run: Run) -> None:
    """In an array of sbatch the pipeline file's own variable names the part; each task has its own results file."""
    with serve() as server:
        for task in ("3", "5"):
            where = {"SLURM_ARRAY_TASK_ID": task}
            done = call("run", pipeline_run.path, "--base-url", server.base_url, env=where)
            assert done.status == 0, done.err
    results = sorted(path.name for path in Path(pipeline_run.path, "results").iterdir())
    assert results == ["task-0003.jsonl", "task-0005.jsonl"]
    assert len(attempts_of(pipeline_run.folder)) == 4


def test_outside_of_an_array_the_run_is_whole(pipeline_run: Run) -> None:
    """Where the file's variable is not set nothing divides the run."""
    with serve() as server:
        assert call("run", pipeline_run.path, "--base-url", server.base_url).status == 0
        assert server.requests == 16


@pytest.mark.parametrize(
    ("settings", "flags", "environ", "expected"),
    [
        ({}, (None, None), {}, (1, 0)),
        ({}, ("4", "$I"), {"I": "2"}, (4, 2)),
        ({}, ("${N}", "1"), {"N": "3"}, (3, 1)),
        ({"num_shards": 8, "shard_id": "$I"}, (None, None), {"I": "7"}, (8, 7)),
        ({"num_shards": 8, "shard_id": "${I}"}, (None, None), {}, (1, 0)),
        ({"num_shards": 8}, (None, None), {}, (1, 0)),
        ({"num_shards": 8, "shard_id": 2}, (None, None), {}, (8, 2)),
        ({"num_shards": "$N", "shard_id": "$I"}, (None, None), {"I": "1", "N": "4"}, (4, 1)),
        ({"num_shards": 8, "shard_id": 2}, ("2", "0"), {}, (2, 0)),
        ({"num_shards": 8, "shard_id": "$I"}, ("4", None), {"I": "3"}, (4, 3)),
        ({"num_shards": 8, "shard_id": "$I"}, (None, "5"), {}, (8, 5)),
    ],
)
def test_part_is_found(
    settings: dict[str, Any],
    flags: tuple[str | None, str | None],
    environ: dict[str, str],
    expected: tuple[int, int],
) -> None:
    """Flags come first, then the file, where its variable is set; else the run is whole."""
    assert part_of(settings, *flags, environ) == expected


@pytest.mark.parametrize(("parts", "part"), [("4", "$NOWHERE"), ("4", ""), ("", "1")])
def test_part_that_is_no_number_is_told(parts: str, part: str) -> None:
    """A flag whose variable is empty is an error, not part 0, whether the shell looked it up or is left to us."""
    with pytest.raises(InputError, match="not a whole number"):
        part_of({}, parts, part, {})


def test_concurrency_comes_from_the_file_unless_typed() -> None:
    """batch_size is how many requests may be open; the flag comes before it."""
    assert concurrency_of({}, None) == 32
    assert concurrency_of({"batch_size": 5}, None) == 5
    assert concurrency_of({"batch_size": 5}, 64) == 64


# --- SLURM -----------------------------------------------------------------------------------------------------------


def test_pipeline_file_sets_what_no_flag_says(pipeline_run: Run) -> None:
    """execution_params become the array's settings; a flag comes before each of them."""
    environ = {"PROJECT": "acc"}
    assert slurm_of(pipeline_run, NONE, environ) is None
    assert slurm_of(pipeline_run, NONE._replace(slurm="auto"), environ) == SlurmOptions(
        tasks=8,
        account="acc",
        time="05:59:59",
        gpus=4,
        cpus_per_task=32,
        nodes=2,
        job_name="vlm-pipeline",
        sbatch={"reservation": "week"},
        environ={"HF_HOME": "/cache/hf"},
        max_retries=2,
        merge=True,
    )
    typed = NONE._replace(
        slurm="3", account="other", gpus=1, max_retries=0, sbatch=["qos=long", "reservation=now", "requeue"]
    )
    asked = slurm_of(pipeline_run, typed, environ)
    assert asked is not None
    assert (asked.tasks, asked.account, asked.gpus, asked.max_retries) == (3, "other", 1, 0)
    assert asked.sbatch == {"qos": "long", "reservation": "now", "requeue": True}


def test_variables_are_wanted_only_where_they_act(pipeline_run: Run) -> None:
    """A variable of a setting that a flag displaces, or that nobody acts on, need not be set."""
    pipeline_run.info["settings"]["execution"]["report_dir"] = "$NOWHERE/logs"
    with pytest.raises(InputError, match="PROJECT is not set"):
        slurm_of(pipeline_run, NONE._replace(slurm="auto"), {})
    asked = slurm_of(pipeline_run, NONE._replace(slurm="auto", account="acc"), {})
    assert asked is not None
    assert asked.account == "acc"


@pytest.mark.parametrize(
    ("execution", "retries"),
    [
        ({}, 0),
        ({"retry": True}, 3),
        ({"retry": True, "max_retries": 0}, 0),
        ({"max_retries": 2}, 2),
        ({"retry": False, "max_retries": 2}, 0),
    ],
)
def test_retries_of_the_file(pipeline_run: Run, execution: dict[str, Any], retries: int) -> None:
    """A number asks for retries, unless retry says no; without a number there are three."""
    pipeline_run.info["settings"]["execution"] = execution
    asked = slurm_of(pipeline_run, NONE._replace(slurm="auto"), {})
    assert asked is not None
    assert asked.max_retries == retries


def test_serve_auto_is_the_files_own_server(pipeline_run: Run, tmp_path: Path) -> None:
    """server_args make the command of the run's server; a run without one is told so."""
    served = serve_of(pipeline_run, "auto", 60.0)
    assert served is not None
    words = " ".join(served.words(model=pipeline_run.info["model"], port=8000))
    assert words == "vllm serve org/model --host 127.0.0.1 --port 8000 --tensor-parallel-size 4 --trust-remote-code"
    assert serve_of(pipeline_run, None, 60.0) is None
    with pytest.raises(InputError, match="no server of openai"):
        serve_of(Run(make_run(tmp_path / "plain", 1)), "auto", 60.0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--merge", "--gpus", "0"], "--gpus, --merge: for a SLURM array alone"),
        (["--slurm", "auto"], "built without num_shards"),
        (["--slurm", "many"], "not a whole number"),
        (["--slurm", "\u00b2"], "not a whole number"),
        (["--slurm", "2", "--sbatch", "=long"], "not NAME=VALUE"),
        (["--slurm", "2", "--sbatch", "--qos=long"], "not NAME=VALUE"),
        (["--slurm", "2", "--num-shards", "2"], "--slurm N deals them out itself"),
        (["--slurm", "2", "--num-shards", "2", "--shard-id", "1"], "deals the rows out itself"),
        (["--num-shards", "2"], "--num-shards without --shard-id"),
        (["--shard-id", "1"], "--shard-id without --num-shards"),
        (["--serve", "serve {port}", "--serve-wait", "nan"], "--serve-wait must be positive"),
    ],
)
def test_flags_that_make_no_sense_are_refused(tmp_path: Path, words: list[str], said: str) -> None:
    """Each is told in a line, with status 2, before anything is queued."""
    run = make_run(tmp_path / "run", 1)
    done = call("run", run.path, "--base-url", "http://127.0.0.1:9", *words)
    assert done.status == 2
    assert said in done.err


def test_array_is_queued_from_the_command_line(cluster: None, tmp_path: Path) -> None:
    """The command says what was queued, and the rows are answered by the tasks' own server and merged."""
    run = make_run(tmp_path / "run", 9, provider="vllm")
    flags = ["--slurm", "2", "--time", "5", "--gpus", "1", "--cpus-per-task", "1", "--account", "me", "--merge"]
    done = call("run", run.path, "--serve", SERVE, *flags, "--json")
    assert done.status == 0, done.err
    data = done.json()["data"]
    assert data["parts"] == [0, 1]
    merged = tmp_path / "run" / "merged.jsonl"
    wait_until(merged.exists, "nothing was merged")
    assert len(merged.read_text().splitlines()) == 9
    assert len(attempts_of(RunDir.open(run.path))) == 9
    told = subprocess.run(["scontrol", "show", "job", data["array"]], capture_output=True, text=True, check=True).stdout
    assert "gres" in told.lower()
    assert "Account=me" in told
    done = call("run", run.path, "--serve", SERVE, "--slurm", "2", "--time", "5")
    assert "no task was queued" in done.out


@pytest.mark.parametrize(
    ("queued", "said", "unsaid"),
    [
        (Submitted("17", (0, 1), "18", "r/slurm", merges=True), ["collects"], ["queues again", "next:", "wait for"]),
        (Submitted("17", (0,), "18", "r/slurm", retries=2), ["queues again", "2 times"], ["and collects"]),
        (
            Submitted("17", (0, 1), "18", "r/slurm", behind=("12", "13"), merges=True, retries=1),
            ["queues again", "and collects", "12, 13"],
            ["next:"],
        ),
        (Submitted(None, (), "18", "r/slurm", merges=True), ["no task was queued", "which collects"], ["after it"]),
        (Submitted("17", (0, 1), None, "r/slurm"), ["once they have ended"], ["job", "collects"]),
    ],
)
def test_what_was_queued_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queued: Submitted, said: list[str], unsaid: list[str]
) -> None:
    """Only what was asked for is said of the job behind; ids stand where one looks and stops, and in the JSON."""
    run = make_run(tmp_path / "run", 1)
    monkeypatch.setattr("vlmbatch.slurm.submit", lambda *_: queued)
    words = ("run", run.path, "--base-url", "http://127.0.0.1:9", "--slurm", "2")
    done = call(*words)
    told = done.out.replace(run.path, "")
    assert [word for word in said if word not in told] == []
    assert [word for word in unsaid if word in told] == []
    jobs = [job for job in (queued.array, queued.follow_up) if job]
    assert f"squeue -j {','.join(jobs)};" in done.out
    assert f"scancel {' '.join(jobs)}" in done.out
    data = call(*words, "--json").json()["data"]
    assert (data["behind"], data["merges"]) == ([*queued.behind], queued.merges)


def test_next_command_is_the_one_that_collects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell reads it as it is meant, whatever the folder is called, and it works."""
    run = make_run(tmp_path / "it's a $HOME; run", 1)
    monkeypatch.setattr("vlmbatch.slurm.submit", lambda *_: Submitted("17", (0,), None, "r/slurm"))
    done = call("run", run.path, "--base-url", "http://127.0.0.1:9", "--slurm", "2")
    (line,) = [line for line in done.out.splitlines() if line.startswith("next: ")]
    program, *words = shlex.split(line.removeprefix("next: "))
    assert program == "vlmbatch"
    assert call(*words).status == 0
    assert len((Path(run.path) / "merged.jsonl").read_text().splitlines()) == 1


def test_system_without_posix_is_told(tmp_path: Path) -> None:
    """Where there are no locks and no signals of the kind, the command line says so in words."""
    text = """
import signal, sys
sys.modules["fcntl"] = None
del signal.SIGHUP, signal.SIGUSR2
import os
from vlmbatch.cli import main
os.name = "nt"
main(["run", "somewhere"])
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "runs on Linux and macOS alone" in done.stderr
    assert "Traceback" not in done.stderr
