"""A model server of one's own: started for a run, waited for, and stopped with it.

The command is a template in which ``{model}`` and ``{port}`` are filled in word by word; no shell ever sees it. It is
started under a guard (:mod:`vlmbatch.serve.guard`), so that nothing of it outlives the run, however that one ends.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vlmbatch.errors import InputError, Interrupted, Problem
from vlmbatch.serve import guard

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vlmbatch.stop import Stop

HOST: Final = "127.0.0.1"

_LOOK_EVERY_S: Final = 0.25
_LOOK_TIMEOUT_S: Final = 5.0
_GRACE_S: Final = 10.0
_SHOWN_LINES: Final = 12
_SHOWN_BYTES: Final = 1 << 14
_OK: Final = 200
_NOT_FOUND: Final = 404


@dataclass(frozen=True, slots=True)
class Serve:
    """How a server is started.

    Attributes:
        command: The command line, with ``{port}`` and, where it is wanted, ``{model}`` in it.
        wait_s: Seconds that it may take until it answers.

    Raises:
        InputError: The seconds are not positive.
    """

    command: str
    wait_s: float = 1800.0

    def __post_init__(self) -> None:
        if not self.wait_s > 0:  # which is no number either
            raise InputError("--serve-wait must be positive", hint="it is the seconds that the server may take")

    def words(self, *, model: str, port: int) -> list[str]:
        """Return the command's words with the model and the port filled in; other braces stay as they are.

        Raises:
            InputError: The command is no command line, or does not say where the port goes.
        """
        try:
            words = shlex.split(self.command)
        except ValueError as error:
            raise InputError(f"--serve: no command line ({error})", hint="check the quotes") from None
        if not any("{port}" in word for word in words):
            raise InputError(
                "--serve: the command does not say where the port goes",
                hint="for example: --serve 'vllm serve {model} --port {port}'",
            )
        return [word.replace("{port}", str(port)).replace("{model}", model) for word in words]


@contextlib.contextmanager
def serving(serve: Serve, *, model: str, log: str, stop: Stop) -> Iterator[str]:
    """Run a server as long as the block lasts; yield its base URL once it answers.

    Args:
        serve: How it is started.
        model: The model's name, for ``{model}``.
        log: File to which its output is appended; its folder is made.
        stop: Looked at while the server is waited for.

    Raises:
        InputError: It cannot be started, ended before it answered, or took too long.
        Interrupted: The user asked to stop in the meantime.
    """
    port = free_port()
    words = serve.words(model=model, port=port)
    if shutil.which(words[0]) is None:
        raise InputError(f"--serve: {words[0]} cannot be started: there is no such program", hint="check the command")
    os.makedirs(os.path.dirname(log), exist_ok=True)
    with open(log, "ab", buffering=0) as file:
        process = subprocess.Popen(  # noqa: S603  (words that the user gave, without a shell)
            [sys.executable, "-I", "-S", guard.__file__, str(_GRACE_S), *words],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait(process, port, log, serve.wait_s, stop)
        yield f"http://{HOST}:{port}"
    finally:
        _end(process)


def free_port() -> int:
    """Return a port of this machine on which nothing listens now."""
    with socket.socket() as one:
        one.bind((HOST, 0))
        return int(one.getsockname()[1])


def is_healthy(host: str, port: int, *, timeout_s: float = _LOOK_TIMEOUT_S) -> bool:
    """Tell whether a server is ready: ``/health`` says so, or, where there is no such page, ``/v1/models``."""
    status = _status(host, port, "/health", timeout_s)
    return (_status(host, port, "/v1/models", timeout_s) if status == _NOT_FOUND else status) == _OK


def _status(host: str, port: int, path: str, timeout_s: float) -> int | None:
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _wait(process: subprocess.Popen[bytes], port: int, log: str, wait_s: float, stop: Stop) -> None:
    """Wait until the server answers."""
    until = time.monotonic() + wait_s
    while not is_healthy(HOST, port):
        if stop.level:
            raise Interrupted("interrupted while the server was starting", hint="the same command starts it again")
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = process.wait(_LOOK_EVERY_S)
            raise _failed(f"--serve: the server ended with status {status} before it answered", log)
        if time.monotonic() > until:
            raise _failed(f"--serve: the server did not answer within {wait_s:.0f} s", log)


def _failed(message: str, log: str) -> InputError:
    """Return an error that shows the end of the server's log."""
    with open(log, "rb") as file:
        file.seek(max(0, os.path.getsize(log) - _SHOWN_BYTES))
        lines = file.read().decode("utf-8", "replace").splitlines()[-_SHOWN_LINES:]
    problems = [Problem("server", line) for line in lines if line.strip()]
    return InputError(message, hint=f"its whole log is {log}; nothing was sent", problems=problems)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the server and whatever it started: the guard does so when its pipe closes."""
    if process.stdin is not None:
        process.stdin.close()
    process.wait()
