"""All four commands in a row, on real bytes: what the project promises, seen from outside."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.doors import Called, call
from tests.pictures import png
from vlmbatch.rehearsal.faults import Faults
from vlmbatch.rehearsal.samples import draw
from vlmbatch.rehearsal.server import Server, serve

CANARY = "sk-CANARY-0123456789abcdef"


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of the sample images."""
    folder = tmp_path_factory.mktemp("samples")
    draw(folder)
    return folder


@pytest.fixture
def run(samples: Path, tmp_path: Path) -> Path:
    """Return a built run over the sample images."""
    done = call("build", samples, "--out", tmp_path / "run", "--model", "m", "--prompt", "What is this?")
    assert done.status == 0, done.err
    return tmp_path / "run"


def _send(run: Path, server: Server, *more: object) -> Called:
    return call("run", run, "--base-url", f"{server.base_url}/v1", "--api-key-env", "KEY", *more, env={"KEY": CANARY})


def test_newcomer_sees_all_rows_answered(run: Path) -> None:
    """build, estimate, run --rehearsal, collect --rehearsal: twelve rows, twelve answers, all different."""
    assert call("estimate", run).status == 0
    assert call("run", run, "--rehearsal").status == 0
    done = call("collect", run, "--rehearsal", "--write", run / "merged.jsonl", "--json")
    assert done.status == 0, done.err
    records = [json.loads(line) for line in (run / "merged.jsonl").read_text().splitlines()]
    assert [r["status"] for r in records] == ["ok"] * 12
    assert len({r["text"] for r in records}) == 12
    assert all(r["rehearsal"] for r in records)


def test_rehearsal_counts_nowhere_else(run: Path) -> None:
    """A rehearsal settles no row, calibrates nothing and is collected only when asked for."""
    call("run", run, "--rehearsal")
    assert call("collect", run, "--json").json()["data"]["summary"]["counts"]["missing"] == 12
    with serve() as server:
        assert _send(run, server).status == 0
        assert server.requests == 12


def test_tampered_shard_sends_nothing(photos: Path, tmp_path: Path) -> None:
    """One byte off in one shard of real photographs: nothing is sent, and the status is 3."""
    source = tmp_path / "in"
    for path in sorted(photos.rglob("*")):
        if path.suffix.lower() in {".jpg", ".png"} and "invalid" not in path.parts:
            target = source / path.relative_to(photos)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    run = tmp_path / "run"
    assert call("build", source, "--out", run, "--model", "m", "--prompt", "What?").status == 0
    shard = run / "shards" / "00000.jsonl"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.chmod(0o644)
    shard.write_bytes(data)
    with serve() as server:
        done = _send(run, server)
        assert done.status == 3
        assert "shards/00000.jsonl" in done.err
        assert server.requests == 0
    assert list((run / "results").iterdir()) == []
    assert call("collect", run).status == 3


def test_tampered_line_is_never_sent(run: Path) -> None:
    """With --verify lines, a line that differs is found when its turn comes, and does not leave."""
    shard = run / "shards" / "00000.jsonl"
    data = shard.read_bytes()
    lines = data.splitlines(keepends=True)
    spot = len(b"".join(lines[:7])) + 300
    shard.chmod(0o644)
    shard.write_bytes(data[:spot] + bytes([data[spot] ^ 1]) + data[spot + 1 :])
    with serve() as server:
        done = _send(run, server, "--verify", "lines")
        assert done.status == 3
        assert json.loads(lines[7])["custom_id"] in done.err
        inner = [
            json.dumps(json.loads(line)["body"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
            for line in lines
        ]
        good = {hashlib.sha256(body.encode()).hexdigest() for body in inner}
        assert set(server.bodies) <= good - {hashlib.sha256(inner[7].encode()).hexdigest()}


def test_key_is_written_and_printed_nowhere(run: Path) -> None:
    """Whatever happens, refusals and retries too, the key stands in no file and on no stream."""
    printed = ""
    for faults in (Faults(), Faults(seed=1, rates={"http_429": 0.3, "http_500": 0.2}, retry_after_s=None)):
        with serve(faults) as server:
            done = _send(run, server, "--no-resume", "-v", "-v")
            printed += done.out + done.err
    done = _send(run, server, "--no-resume", "--max-tries", "1", "-v")  # nobody listens there any more
    assert done.status != 0
    printed += done.out + done.err
    done = call("run", run, "--api-key-env", CANARY)
    assert done.status == 2
    printed += done.out + done.err
    printed += call("collect", run, "--json").out
    for path in run.rglob("*"):
        if path.is_file():
            assert CANARY.encode() not in path.read_bytes(), path
    assert CANARY not in printed


def test_odd_names_survive_to_the_records(tmp_path: Path) -> None:
    """Names with spaces, newlines, quotes, leading dashes, emoji and bytes that are no text come back as they were."""
    folder = tmp_path / "in"
    folder.mkdir()
    names = [b"a b.png", b"new\nline.png", b"quote'\".png", b"--out.png", "\U0001f408.png".encode(), b"\xff\xfe.png"]
    names += ["e\u0301.png".encode(), "\u00e9.png".encode()]
    for number, name in enumerate(names):
        with open(os.path.join(os.fsencode(folder), name), "wb") as file:
            file.write(png(30 + number, 40))
    assert call("build", folder, "--out", tmp_path / "run", "--model", "m", "--prompt", "p").status == 0
    assert call("run", tmp_path / "run", "--rehearsal").status == 0
    done = call("collect", tmp_path / "run", "--rehearsal", "--write", tmp_path / "run/merged.jsonl")
    assert done.status == 0, done.err
    images = [json.loads(line)["images"][0] for line in (tmp_path / "run/merged.jsonl").read_bytes().splitlines()]
    found = [base64.b64decode(i["path_bytes"]) if "path_bytes" in i else i["path"].encode() for i in images]
    assert found == sorted(names)


def test_same_command_again_pays_for_nothing(run: Path) -> None:
    """A smoke, the rest, and both again: each row is sent once."""
    with serve() as server:
        smoke = _send(run, server, "--limit", "5", "--out", run / "results" / "smoke.jsonl")
        assert smoke.status == 0, smoke.err
        assert server.requests == 5
        assert _send(run, server, "--limit", "5", "--out", run / "results" / "smoke.jsonl").status == 0
        assert server.requests == 5
        assert _send(run, server).status == 0
        assert _send(run, server).status == 0
        assert server.requests == 12
        assert set(server.bodies.values()) == {1}


def test_module_and_script_behave_alike() -> None:
    """``python -m vlmbatch`` is the same program under its own name."""
    one = subprocess.run([sys.executable, "-m", "vlmbatch", "--help"], capture_output=True, text=True, check=True)
    assert "python -m vlmbatch [OPTIONS]" in one.stdout
    two = call("--help")
    assert one.stdout.replace("python -m vlmbatch [", "vlmbatch [").split()[:20] == two.out.split()[:20]


def test_version_is_one_everywhere(run: Path) -> None:
    """The option, the package and run.json agree."""
    from vlmbatch import __version__

    assert call("--version").out.strip() == f"vlmbatch {__version__}"
    assert json.loads((run / "run.json").read_text())["tool"]["version"] == __version__


@pytest.mark.parametrize("words", [["nope"], ["run"], ["collect", "none"], ["--what"], ["build", "--modle", "x"]])
def test_wrong_words_are_status_two_without_traceback(words: list[str]) -> None:
    """A typo is told in words."""
    done = call(*words)
    assert done.status == 2
    assert "Traceback" not in done.err + done.out


def test_broken_pipe_ends_quietly(run: Path) -> None:
    """When the reader of our output leaves, we leave too: status 141 and no noise."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "vlmbatch", "collect", str(run), "--json"],
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writer)
    assert done.returncode == 141
    assert b"Traceback" not in done.stderr
    assert b"BrokenPipe" not in done.stderr


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_closed_stream_is_no_fault(run: Path, stream: str) -> None:
    """A program started with a closed stream does its work and says what it can."""
    close = f"import os, sys; os.close({1 if stream == 'stdout' else 2}); os.execv(sys.executable, sys.argv[1:])"
    words = [sys.executable, "-m", "vlmbatch", "collect", str(run)]
    done = subprocess.run([sys.executable, "-c", close, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert ("missing" in done.stdout) == (stream == "stderr")
