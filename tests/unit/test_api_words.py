"""Words that are given from Python: keys stay hidden, a text is no list, and every name is described and used."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import vlmbatch
from tests.faults import faulty
from tests.pictures import png
from tests.sendable import make_run
from vlmbatch import (
    AsyncRun,
    BuildOptions,
    CollectOptions,
    Engine,
    EstimateOptions,
    InputError,
    Policy,
    Run,
    RunOptions,
    Stop,
)
from vlmbatch.rehearsal.server import Server, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY = "sk-CANARY-0123456789abcdef"


@pytest.fixture
def server() -> Iterator[Server]:
    """Return a provider that answers all."""
    with serve() as running:
        yield running


def test_keys_show_nowhere(tmp_path: Path, server: Server) -> None:
    """Neither objects nor errors show a key, or an environment that may hold some."""
    rows = [{"image_path": png(50, 40), "question": "What?"}]
    options = BuildOptions(model="m", provider="vllm", question_field="question", env={"SECRET": KEY})
    send = RunOptions(base_urls=(server.base_url,), policy=Policy(max_tries=1))
    with Engine(options, send, key=KEY) as one:
        one.infer(rows)
        assert repr(one) == "Engine(model='m', provider='vllm')"
        shown = [one, one.run, options, send, AsyncRun(one.run) if one.run else None]
        assert KEY not in repr(shown)
    for bad in (f"{KEY}\nX: y", f"{KEY} y", f"{KEY}\N{BULLET}"):
        broken = Engine(options, send, key=bad)
        for call in (lambda one=broken: one.infer(rows), lambda one=broken: one.list_models(chat_only=False)):
            with pytest.raises(InputError, match="characters that no header takes") as caught:
                call()
            assert KEY not in repr([caught.value, caught.value.hint, caught.value.problems])


def test_blank_key_is_none(tmp_path: Path) -> None:
    """A variable that is not set often comes as an empty text: no empty key is sent."""
    run = Run(make_run(tmp_path / "run", 1))
    with pytest.raises(InputError, match="no API key"):
        run.send(key=" ")
    with faulty({}) as provider:
        run.send(RunOptions(base_urls=(provider.base_url,)), key="")
    assert [seen.headers.get("authorization", "") for seen in provider.seen] == [""]


# --- words -----------------------------------------------------------------------------------------------------------


def test_text_where_a_list_is_taken_is_refused(tmp_path: Path) -> None:
    """The letters of a text are no list of names, and nobody means them."""
    run = Run(make_run(tmp_path / "run", 1))
    calls = {
        "sources": lambda: Run.build(BuildOptions(sources="x", out="y")),
        "id_fields": lambda: Engine(BuildOptions(model="m", id_fields="id")),
        "base_urls": lambda: run.send(RunOptions(base_urls="http://127.0.0.1/v1")),  # type: ignore[arg-type]
        "retry_status": lambda: run.send(RunOptions(retry_status="refusal")),  # type: ignore[arg-type]
        "require": lambda: run.collect(CollectOptions(require="ok>=1")),
        "results": lambda: list(run.records("results/run.jsonl")),
        "calibrate": lambda: run.estimate(EstimateOptions(calibrate="x")),
        "leave_out": lambda: run.redact("x", "images"),
    }
    for name, call in calls.items():
        with pytest.raises(InputError) as caught:
            call()
        assert [problem.where for problem in caught.value.problems] == [name]


def test_status_that_is_none_is_refused(tmp_path: Path) -> None:
    """A word that is no status would send nothing again, silently."""
    with pytest.raises(InputError, match="--retry-status"):
        Run(make_run(tmp_path / "run", 1)).send(RunOptions(rehearsal=True, retry_status=frozenset({"refused"})))  # type: ignore[arg-type]


def test_stop_may_be_asked_before(tmp_path: Path) -> None:
    """A wish that is there already sends nothing."""
    stop = Stop()
    stop.ask()
    with faulty({}) as provider:
        result = Run(make_run(tmp_path / "run", 3)).send(RunOptions(base_urls=(provider.base_url,)), key=KEY, stop=stop)
    assert (result.is_interrupted, provider.seen) == (True, [])


@pytest.mark.parametrize("name", [name for name in vlmbatch.__all__ if inspect.isclass(getattr(vlmbatch, name))])
def test_public_methods_are_described(name: str) -> None:
    """help() says what each public method is for."""
    members = vars(getattr(vlmbatch, name))
    methods = [one for key, one in members.items() if not key.startswith("_") and inspect.isroutine(one)]
    assert [one for one in methods if not inspect.getdoc(one)] == []


def test_command_line_is_written_on_the_runs_methods() -> None:
    """Nothing of what a method of Run does is called past it."""
    stages = {"build", "estimate", "run", "collect", "write_report", "seal", "bag", "redact"}
    called = []
    for path in sorted(Path(vlmbatch.__file__).parent.joinpath("cli").glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vlmbatch.stages"):
                called += [f"{path.name} {one.name}" for one in node.names if one.name in stages]
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "archive" and node.attr in stages:
                called.append(f"{path.name} archive.{node.attr}")
    assert called == []
