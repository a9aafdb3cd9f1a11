"""Ctrl-C at any moment of a command: one line, status 130, and no word of Python's."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import IO

import pytest

from tests.cli.doors import call
from vlmbatch import interrupt
from vlmbatch.cli import COMMANDS
from vlmbatch.cli.base import envelope
from vlmbatch.errors import Interrupted

ROOT = Path(__file__).parents[2]
MOMENTS = 30
_CODE = "from vlmbatch.__main__ import main; main()"
_TAKEN = b"vlmbatch.interrupt"
"""The module that takes Ctrl-C: what happens before it is loaded is Python's own affair."""


def _start(*words: str, stdin: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    """Start the program so that it tells on stderr of each module that it has loaded."""
    line = [sys.executable, "-X", "importtime", "-c", _CODE, *words]
    return subprocess.Popen(line, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)


def _read_until_taken(stderr: IO[bytes] | None) -> IO[bytes]:
    assert stderr is not None
    while _TAKEN not in stderr.readline():
        pass
    return stderr


def _said(err: bytes) -> list[str]:
    return [line for line in err.decode().splitlines() if not line.startswith("import time:")]


def test_ctrl_c_at_thirty_moments_of_the_start_is_one_line(tmp_path: Path) -> None:
    """From the first module of ours to the moment when build waits for its table."""
    words = ("build", "-", "--out", str(tmp_path / "run"), "--model", "m", "--prompt", "p", "--provider", "vllm")
    with _start(*words, stdin=subprocess.DEVNULL) as whole:
        loaded = len(_read_until_taken(whole.stderr).readlines())
    assert loaded > 5 * MOMENTS
    for number in range(MOMENTS):
        with _start(*words) as process:
            stderr = _read_until_taken(process.stderr)
            for _ in range(loaded * number // MOMENTS):
                stderr.readline()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        said = _said(err)
        assert (process.returncode, out, len(said)) == (130, b"", 1), said
        assert said[0].startswith("error: ")
        assert "interrupted" in said[0]


def test_ctrl_c_at_the_start_is_json_too_where_that_was_asked_for() -> None:
    """The envelope that is made without a library is the one of all other endings."""
    with _start("build", "-", "--json", "--out", "x", "--model", "m", "--prompt", "p") as process:
        _read_until_taken(process.stderr)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert _said(err) == ["error: interrupted"]
    assert json.loads(out) == envelope("build", None, Interrupted("interrupted"))
    assert json.loads(interrupt.as_json('"no"'))["command"] == ""


def test_ctrl_c_that_is_ignored_stays_ignored() -> None:
    """What nohup and shells do for work in the background holds for the start as well."""
    code = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); {_CODE}"
    with subprocess.Popen(
        [sys.executable, "-X", "importtime", "-c", code, "--version"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    ) as process:
        _read_until_taken(process.stderr)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.parametrize("name", COMMANDS)
def test_command_lets_ctrl_c_clean_up_once_it_works(name: str) -> None:
    """A command that did not say so would be ended on the spot, in the middle of a file."""
    assert import_module(f"vlmbatch.cli.{name}").started


def test_call_from_python_leaves_the_signals_alone(tmp_path: Path) -> None:
    """A test, or whoever calls the command line from Python, keeps the handler that they have."""
    before = signal.getsignal(signal.SIGINT)
    call("run", tmp_path / "none")
    assert signal.getsignal(signal.SIGINT) is before
