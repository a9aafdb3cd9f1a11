"""Where output goes, whatever becomes of it: full disks, quiet, terminals of any width, lines that can be pasted."""

from __future__ import annotations

import os
import pty
import shlex
import subprocess
import sys
import termios
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pytest

from tests.cli.doors import call
from tests.faults import faulty
from tests.pictures import png
from tests.sendable import make_run
from vlmbatch.cli.onward import say_next

if TYPE_CHECKING:
    from vlmbatch.rundir import RunDir

ROOT = Path(__file__).parents[2]
FULL = Path("/dev/full")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Return a folder of two pictures."""
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(2):
        (folder / f"{number}.png").write_bytes(png(30 + number, 40))
    return folder


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """Return a run of thirteen rows."""
    return make_run(tmp_path / "run", 13)


def build(images: Path, out: object) -> tuple[object, ...]:
    """Return the words that build a run of some images."""
    return ("build", images, "--out", out, "--model", "gpt-5.4", "--prompt", "p")


def run_into(out: IO[Any], *words: object, buffered: bool = True) -> subprocess.CompletedProcess[str]:
    """Run the program with stdout into a file; Python may hold it back until the end, or write at once."""
    env = {**os.environ, "PYTHONUNBUFFERED": "" if buffered else "1"}
    line = [sys.executable, "-m", "vlmbatch", *map(str, words)]
    return subprocess.run(line, stdout=out, stderr=subprocess.PIPE, text=True, check=False, cwd=ROOT, env=env)


# --- a full disk -----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("command", ["build", "estimate", "run", "collect", "--help", "--version", "nothing --json"])
def test_output_that_cannot_be_written_is_one_error(
    images: Path, tmp_path: Path, command: str, *, buffered: bool
) -> None:
    """Status 2 and one line, also where Python would find it out while it ends."""
    made = tmp_path / "made"
    call(*build(images, made))
    words = {
        "build": build(images, tmp_path / "new"),
        "run": ("run", made, "--rehearsal"),
        "estimate": ("estimate", made),
        "collect": ("collect", made),
    }
    with FULL.open("w") as full:
        done = run_into(full, *words.get(command, command.split()), buffered=buffered)
    assert done.returncode == 2
    assert [line for line in done.stderr.splitlines() if line.startswith("error:")] == [
        "error: the output cannot be written: No space left on device"
    ]
    assert "Exception" not in done.stderr


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
def test_messages_that_cannot_be_written_change_no_status(images: Path, tmp_path: Path) -> None:
    """Who cannot be warned gets the result all the same."""
    with FULL.open("w") as full:
        line = [sys.executable, "-m", "vlmbatch", *map(str, build(images, tmp_path / "run")), "--temperature", "1"]
        done = subprocess.run(line, stdout=subprocess.PIPE, stderr=full, check=False, cwd=ROOT)
    assert done.returncode == 0


# --- quiet -----------------------------------------------------------------------------------------------------------


def test_quiet_twice_prints_nothing_but_errors(images: Path, tmp_path: Path) -> None:
    """-qq says errors only, and keeps to it; what --json asks for is printed."""
    made = tmp_path / "made"
    assert call(*build(images, made), "-qq") == (0, "", "")
    assert call("run", made, "--rehearsal", "-qq") == (0, "", "")
    assert call("estimate", made, "-qq") == (0, "", "")
    assert call("collect", made, "--rehearsal", "-qq") == (0, "", "")
    assert call("collect", made, "--rehearsal", "-q").out
    assert call("collect", made, "--rehearsal", "-qq", "--json").json()["status"] == "success"
    failed = call("collect", made, "--gate", "-qq")
    assert (failed.status, failed.out) == (1, "")
    assert "error:" in failed.err


# --- the next command ------------------------------------------------------------------------------------------------


def test_next_after_a_limit_is_the_same_command_for_the_rest(run_dir: RunDir) -> None:
    """Four of thirteen are sent: what comes next is the others, and collect once all have an answer."""
    with faulty() as server:
        where = ("--base-url", server.base_url, "--concurrency", "2")
        first = call("run", run_dir.path, "--limit", "4", *where)
        line = first.out.splitlines()[-1]
        assert line == f"next: vlmbatch run {run_dir.path} {shlex.join(where)}"
        last = call(*shlex.split(line)[2:])
    assert last.out.splitlines()[-1].startswith(f"next: vlmbatch collect {run_dir.path} ")


def test_next_after_a_limit_written_with_a_sign_is_the_rest(run_dir: RunDir) -> None:
    """--limit=4 is the same flag."""
    with faulty() as server:
        out = call("run", "--limit=4", run_dir.path, "--base-url", server.base_url).out
    assert out.splitlines()[-1] == f"next: vlmbatch run {run_dir.path} --base-url {server.base_url}"


def test_next_after_a_rehearsal_is_its_collect(run_dir: RunDir) -> None:
    """A rehearsal of a few rows is looked at, not gone on with."""
    out = call("run", run_dir.path, "--rehearsal", "--limit", "4").out
    assert "collect" in out.splitlines()[-1]


def test_next_after_a_stop_is_the_same_command(run_dir: RunDir) -> None:
    """What ended before its last row goes on by the same words."""
    with faulty() as server:
        words = (run_dir.path, "--base-url", server.base_url, "--max-tokens-total", "250", "--concurrency", "1")
        called = call("run", *words)
        again = call("run", *words, "--no-resume")
    assert called.status == again.status == 1
    lines = {called.out.splitlines()[-1], again.out.splitlines()[-1]}
    assert lines == {f"next: vlmbatch run {shlex.join(words)}"}, "what is answered is not paid for once more"


def test_next_that_could_not_be_pasted_is_left_out(images: Path, tmp_path: Path, capsys: Any) -> None:
    """A line break in a path would make two commands of one."""
    done = call(*build(images, f"{tmp_path}/a\nb"))
    assert done.status == 0
    assert "next:" not in done.out
    say_next("vlmbatch", "run", "it's here")
    assert shlex.split(capsys.readouterr().out) == ["next:", "vlmbatch", "run", "it's here"]


# --- terminals -------------------------------------------------------------------------------------------------------


def on_terminal(columns: int, *words: object) -> str:
    """Return what the program prints on a terminal of so many columns."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, columns))
    env = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    line = [sys.executable, "-m", "vlmbatch", *map(str, words)]
    with subprocess.Popen(line, stdout=theirs, stderr=theirs, cwd=ROOT, env=env) as process:
        os.close(theirs)
        parts = []
        try:
            while part := os.read(ours, 65536):
                parts.append(part)
        except OSError:
            pass  # how a terminal ends here
    os.close(ours)
    assert process.returncode is not None
    return b"".join(parts).decode().replace("\r\n", "\n")


def test_sentences_are_broken_between_words_on_a_terminal(images: Path, tmp_path: Path) -> None:
    """No line is longer than the terminal is wide, and none is lost; commands and digests stay whole."""
    words = ("build", images, "--out", tmp_path / "run", "--model", "Qwen/Qwen2.5-VL-7B-Instruct", "--prompt", "p")
    shown = on_terminal(60, *words)
    prose = [
        line for line in shown.splitlines() if not line.startswith(("next:", "fingerprint:")) and " " in line.strip()
    ]
    assert len(prose) > 3
    assert max(map(len, prose)) <= 60
    assert "--provider vllm|sglang|compatible, and run with --base-url" in " ".join(shown.split())
    assert f"\nnext: vlmbatch estimate {tmp_path / 'run'}\n" in shown
