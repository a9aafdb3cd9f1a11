"""A server of one's own: started without a shell, waited for, and stopped with everything that it started."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from tests.waiting import wait_until
from vlmbatch.errors import InputError, Interrupted
from vlmbatch.providers.servers import serve_command
from vlmbatch.serve import Serve, free_port, is_healthy, serving
from vlmbatch.stop import Stop

HEALTHY = """
import http.server, os, subprocess, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == {path!r} else {other})
        self.end_headers()
        self.wfile.write(sys.argv[2].encode())
print("words", sys.argv[1:], flush=True)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
open(sys.argv[3], "w").write(f"{{os.getpid()}} {{child.pid}}")
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def script(tmp_path: Path, text: str) -> str:
    """Write a server and return the command that starts it, up to its own words."""
    (tmp_path / "server.py").write_text(text)
    return f"{sys.executable} {tmp_path}/server.py"


def healthy(tmp_path: Path, *, path: str = "/health", other: int = 404) -> Serve:
    """Return a server that says it is well at one path."""
    command = script(tmp_path, HEALTHY.format(path=path, other=other))
    return Serve(f"{command} {{port}} 'model={{model}};$HOME' {tmp_path}/pids", wait_s=60)


def is_running(pid: int) -> bool:
    """Tell whether a process is there and no zombie."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_until_gone(pids: list[int]) -> None:
    """Wait until processes have ended (an orphan is reaped by somebody else, in its own time)."""
    wait_until(lambda: not any(map(is_running, pids)), "the server left processes behind")


@pytest.mark.parametrize("path", ["/health", "/v1/models"])
def test_server_lives_as_long_as_the_block(tmp_path: Path, path: str) -> None:
    """It is ready when health (or, without such a page, the list of models) answers; its children end with it."""
    log = tmp_path / "logs" / "serve.log"
    with serving(healthy(tmp_path, path=path), model="a b'c", log=str(log), stop=Stop()) as base_url:
        host, _, port = base_url.removeprefix("http://").partition(":")
        assert is_healthy(host, int(port))
        connection = http.client.HTTPConnection(host, int(port))
        connection.request("GET", path)
        assert connection.getresponse().read() == b"model=a b'c;$HOME", "filled in without a shell"
        connection.close()
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        assert all(map(is_running, pids))
    wait_until_gone(pids)
    assert not is_healthy(host, int(port), timeout_s=1)
    assert f"words ['{port}'" in log.read_text()


def test_log_is_kept_and_appended_to(tmp_path: Path) -> None:
    """A second start does not wipe what the first one said."""
    log = tmp_path / "serve.log"
    for _ in range(2):
        with serving(healthy(tmp_path), model="m", log=str(log), stop=Stop()):
            pass
    assert log.read_text().count("words") == 2


def test_server_that_ignores_the_signal_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not end when it is asked is ended all the same."""
    monkeypatch.setattr("vlmbatch.serve.server._GRACE_S", 0.2)
    stubborn = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + HEALTHY.format(
        path="/health", other=404
    )
    serve = Serve(f"{script(tmp_path, stubborn)} {{port}} x {tmp_path}/pids", wait_s=60)
    with serving(serve, model="m", log=str(tmp_path / "log"), stop=Stop()):
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    wait_until_gone(pids)


def test_exception_inside_the_block_stops_the_server(tmp_path: Path) -> None:
    """Whatever ends the block, Ctrl-C included, ends the server."""
    pids: list[int] = []

    def work() -> None:
        with serving(healthy(tmp_path), model="m", log=str(tmp_path / "log"), stop=Stop()):
            pids.extend(int(pid) for pid in (tmp_path / "pids").read_text().split())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    wait_until_gone(pids)


def test_server_that_dies_shows_its_last_words(tmp_path: Path) -> None:
    """One that ends before it answers is told with its status and the end of its log."""
    command = script(tmp_path, "import sys\nprint('loading')\nsys.exit('no GPU here')")
    log = tmp_path / "log"
    with (
        pytest.raises(InputError, match="ended with status 1 before it answered") as caught,
        serving(Serve(f"{command} {{port}}", wait_s=60), model="m", log=str(log), stop=Stop()),
    ):
        pass
    assert [problem.message for problem in caught.value.problems] == ["loading", "no GPU here"]
    assert str(log) in caught.value.hint


def test_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    """After the wait it is stopped and told; one that answers 503 is not ready."""
    serve = healthy(tmp_path, path="/nowhere", other=503)
    with (
        pytest.raises(InputError, match="did not answer within 1 s"),
        serving(Serve(serve.command, wait_s=1), model="m", log=str(tmp_path / "log"), stop=Stop()),
    ):
        pass
    wait_until_gone([int(pid) for pid in (tmp_path / "pids").read_text().split()])


def test_stop_ends_the_waiting(tmp_path: Path) -> None:
    """Whoever asks to stop while the server loads need not wait for it."""
    stop, pids = Stop(), tmp_path / "pids"
    text = "import os, sys, time\nopen(sys.argv[2], 'w').write(f'{os.getpid()} ')\ntime.sleep(300)"
    serve = Serve(f"{script(tmp_path, text)} {{port}} {pids}", wait_s=300)

    def ask() -> None:
        wait_until(lambda: pids.exists() and pids.read_text().endswith(" "))
        stop.ask()

    asking = threading.Thread(target=ask)
    asking.start()
    with pytest.raises(Interrupted), serving(serve, model="m", log=str(tmp_path / "log"), stop=stop):
        pass
    asking.join()
    wait_until_gone([int(pids.read_text())])


@pytest.mark.skipif(sys.platform != "linux", reason="no other system keeps hold of orphans")
def test_orphan_in_a_session_of_its_own_ends_too(tmp_path: Path) -> None:
    """What the server has started as daemons are started, and does not know any more, ends with it all the same."""
    daemon = """orphan = subprocess.run(["sh", "-c", "setsid sleep 300 >/dev/null 2>&1 & echo $!"], capture_output=True)
child = """
    text = HEALTHY.format(path="/health", other=404).replace("child = ", daemon)
    text = text.replace("{child.pid}", "{child.pid} {int(orphan.stdout)}")
    serve = Serve(f"{script(tmp_path, text)} {{port}} x {tmp_path}/pids", wait_s=60)
    with serving(serve, model="m", log=str(tmp_path / "log"), stop=Stop()):
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        assert len(pids) == 3
        assert all(map(is_running, pids))
    wait_until_gone(pids)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_server_ends_with_a_run_that_is_killed(tmp_path: Path, number: int) -> None:
    """A run that is killed outright can end nothing itself; its server and the server's children end nonetheless."""
    serve = healthy(tmp_path)
    text = f"""
import time
from vlmbatch.serve import Serve, serving
from vlmbatch.stop import Stop
with serving(Serve({serve.command!r}, wait_s=60), model="m", log={str(tmp_path / "log")!r}, stop=Stop()):
    print("ready", flush=True)
    time.sleep(300)
"""
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"ready\n"
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        run.send_signal(number)
    wait_until_gone(pids)


def test_word_of_the_time_limit_does_not_end_the_server(tmp_path: Path) -> None:
    """SLURM may send it to every process of a task; requests still wait for the server's answers."""
    with serving(healthy(tmp_path), model="m", log=str(tmp_path / "log"), stop=Stop()) as base_url:
        host, _, port = base_url.removeprefix("http://").partition(":")
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        for pid in pids:
            os.kill(pid, signal.SIGUSR2)
        assert is_healthy(host, int(port))
        assert all(map(is_running, pids))


def test_file_that_is_no_program_is_told(tmp_path: Path) -> None:
    """What the system says of it stands in the log and in the error."""
    program = tmp_path / "model.bin"
    program.write_bytes(b"\0\0\0\0")
    program.chmod(0o755)
    with (
        pytest.raises(InputError, match="ended with status 127") as caught,
        serving(Serve(f"{program} {{port}}"), model="m", log=str(tmp_path / "log"), stop=Stop()),
    ):
        pass
    assert "Exec format error" in caught.value.problems[-1].message


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_wait_that_never_ends_is_refused(seconds: float) -> None:
    """The seconds that a server may take are positive."""
    with pytest.raises(InputError, match="must be positive"):
        Serve("serve {port}", wait_s=seconds)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("vllm serve {model}", "does not say where the port goes"),
        ("vllm 'serve {port}", "no command line"),
        ("/nonexistent/program {port}", "cannot be started"),
        ("/ {port}", "cannot be started"),
    ],
)
def test_command_that_cannot_work_is_refused(tmp_path: Path, command: str, words: str) -> None:
    """A command without a port, with open quotes, or of a program that is not there, is told."""
    with (
        pytest.raises(InputError, match=words),
        serving(Serve(command), model="m", log=str(tmp_path / "log"), stop=Stop()),
    ):
        pass


def test_other_braces_are_left_alone() -> None:
    """JSON in a server's own arguments stays as it is; a model's name can fill in nothing else."""
    serve = Serve("run --limit '{\"image\": 1}' --model {model} --port={port}")
    assert serve.words(model="{port}; rm -rf $HOME", port=1234) == [
        "run",
        "--limit",
        '{"image": 1}',
        "--model",
        "{port}; rm -rf $HOME",
        "--port=1234",
    ]


def test_free_port_is_free() -> None:
    """Nothing answers at a port that is free, and it can be bound."""
    assert 1024 < free_port() < 65536
    assert not is_healthy("127.0.0.1", free_port(), timeout_s=0.5)


# --- the command of a pipeline file ----------------------------------------------------------------------------------


def test_settings_become_the_servers_own_flags() -> None:
    """tp_size, trust_remote_code and the rest stand under each server's own names, values as words."""
    args = {
        "tp_size": 4,
        "trust_remote_code": True,
        "disable_custom_all_reduce": False,
        "extra_engine_args": {"max_model_len": 4096, "limit_mm_per_prompt": {"image": 2}, "enforce_eager": True},
    }
    assert serve_command("vllm", args, "qwen2-vl") == (
        "vllm serve '{model}' --host 127.0.0.1 --port '{port}' --tensor-parallel-size 4 --trust-remote-code "
        "--max-model-len 4096 --limit-mm-per-prompt '{\"image\":2}' --enforce-eager"
    )
    assert serve_command("sglang", {"tp_size": 2}, "qwen2-vl") == (
        "python3 -m sglang.launch_server --model-path '{model}' --host 127.0.0.1 --port '{port}' --tp-size 2 "
        "--chat-template qwen2-vl"
    )
    assert serve_command("vllm", {}, "own.jinja").endswith("--chat-template own.jinja")


def test_provider_without_a_server_is_refused() -> None:
    """Nobody starts a provider's own service."""
    with pytest.raises(InputError, match="no server of openai"):
        serve_command("openai", {})


def test_parent_environment_reaches_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server runs in the environment of the command (CUDA_VISIBLE_DEVICES, caches)."""
    monkeypatch.setenv("MARK_OF_THE_PARENT", "seen")
    command = script(tmp_path, "import os, sys\nsys.exit(os.environ['MARK_OF_THE_PARENT'])")
    with (
        pytest.raises(InputError) as caught,
        serving(Serve(f"{command} {{port}}"), model="m", log=str(tmp_path / "log"), stop=Stop()),
    ):
        pass
    assert [problem.message for problem in caught.value.problems] == ["seen"]
    assert os.environ["MARK_OF_THE_PARENT"] == "seen"
