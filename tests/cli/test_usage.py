"""Wrong command lines: what is said of them, in our words, and what would be right."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.cli.doors import call
from vlmbatch import providers
from vlmbatch.records import Status

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        ("help", "--help", "vlmbatch --help"),
        ("help run", "--help", "vlmbatch run --help"),
        ("run help", "--help", "vlmbatch run --help"),
        ("report", "no command 'report'", "collect RUN --write RUN/merged.jsonl --report"),
        ("seal", "no command 'seal'", "collect RUN --seal"),
        ("gate", "no command 'gate'", "collect RUN --gate"),
        ("status", "no command 'status'", "run RUN --channel batch --status"),
        ("verify", "no command 'verify'", "python RUN/verify.py"),
        ("biuld", "did you mean 'build'?", "vlmbatch --help"),
        ("frob", "no command 'frob'", "build, estimate, run, collect"),
        ("build", "SOURCE, --out RUN, --model NAME and --prompt TEXT are missing", "vlmbatch build images/"),
        ("run", "RUN is missing", "vlmbatch run --help"),
        ("estimate", "RUN is missing", "vlmbatch estimate --help"),
        ("collect", "RUN is missing", "vlmbatch collect --help"),
        ("run --base-url", "--base-url needs a value", "vlmbatch run --help"),
        ("build x --out", "--out needs a value", "vlmbatch build --help"),
        ("build x --promt y", "did you mean --prompt?", "vlmbatch build --help"),
        ("build x", "--out is missing", "vlmbatch build --help"),
        ("run x --limit abc", "--limit abc: not a whole number", "vlmbatch run --help"),
        ("run x --timeout soon", "--timeout soon: not a number", "vlmbatch run --help"),
        ("build x --out y --quality 3.5", "--quality 3.5: not a whole number", "vlmbatch build --help"),
        ("--frob", "no option --frob", "vlmbatch --help"),
    ],
)
def test_wrong_line_is_told_with_the_right_one(words: str, said: str, hint: str) -> None:
    """One error, one hint, status 2, nothing on stdout, and no word of the libraries that read the line."""
    called = call(*words.split())
    error, told = called.err.splitlines()
    assert (called.status, called.out) == (2, "")
    assert error.startswith("error: ")
    assert said in error
    assert hint in told
    assert "Input should be" not in error


def test_folder_called_help_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there is meant."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "help").mkdir()
    assert "run.json" in call("run", "help").err


def test_program_alone_shows_its_help() -> None:
    """Who does not know where to begin sees the commands, and how to try without a key."""
    called = call()
    assert called.status == 2
    assert "vlmbatch run runs/r001 --rehearsal" in called.out


def _offered(words: str) -> list[str]:
    """Return what bash offers behind some words, the last of which is begun."""
    env = {"_VLMBATCH_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    code = "from vlmbatch.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | env, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("vlmbatch run r --channel ", ["realtime", "batch"]),
        ("vlmbatch run r --channel b", ["batch"]),
        ("vlmbatch run r --retry-status ", [*Status]),
        ("vlmbatch run r --verify ", ["full", "lines"]),
        ("vlmbatch build x --provider ", [*providers.names()]),
        ("vlmbatch build x --detail ", [*providers.details()]),
        ("vlmbatch build x --reasoning-effort m", ["minimal", "medium", "max"]),
        ("vlmbatch build x --format ", ["jpeg", "png", "webp"]),
        ("vlmbatch build x --response-format ", ["json"]),
    ],
)
def test_completion_offers_values(words: str, offered: list[str]) -> None:
    """Where few words are possible, the shell knows them."""
    assert _offered(words) == offered
