"""What stands between a server and the run that started it: whatever ends the run ends the server.

A program of its own, so that it outlives a run that is killed (``kill -9``, out of memory, a lost terminal), and then
ends the server and everything that this one has started. It imports the standard library alone.

    python guard.py GRACE COMMAND [WORD ...]        stdin: a pipe that the run holds open for as long as it wants one
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

_PR_SET_CHILD_SUBREAPER = 36
_LOOK_EVERY_S = 0.25
_INSIST_EVERY_S = 0.05
_INSISTENCE_S = 5.0
_CANNOT_START = 127
_BY_SIGNAL = 128
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> int:
    """Run the command until it ends or the pipe closes; return its exit status, 128 + N for a signal."""
    grace_s, words = float(sys.argv[1]), sys.argv[2:]
    _adopt_orphans()
    # SLURM's word that the time is nearly up reaches every process of a task on some clusters, and would end a server
    # that requests still wait for. What is ignored here stays ignored there; a handler is not handed down.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    for number in _SIGNALS:
        signal.signal(number, lambda *_: None)
    try:
        server = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)  # noqa: S603
    except OSError as error:
        print(f"{words[0]}: {error.strerror}", file=sys.stderr)  # noqa: T201
        return _CANNOT_START
    status = None
    while status is None and not select.select([sys.stdin], [], [], _LOOK_EVERY_S)[0]:
        status = _reap(server.pid)
    ended = _end(server.pid, grace_s)
    code = os.waitstatus_to_exitcode(ended if status is None else status)
    return code if code >= 0 else _BY_SIGNAL - code


def _adopt_orphans() -> None:
    """Become the parent of whoever below here loses its own, so that no descendant gets out of sight (Linux)."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0)


def _reap(pid: int) -> int | None:
    """Take leave of every child that has ended; return the wait status of one of them, None = it has not ended."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            found = ended[1] if ended[0] == pid else found
    return found


def _end(group: int, grace_s: float) -> int:
    """End the server and all that it started: ask first, then insist; return the server's wait status."""
    status = 0
    for number, seconds in ((signal.SIGTERM, grace_s), (signal.SIGKILL, _INSISTENCE_S)):
        until = time.monotonic() + seconds
        left = _signal(group, number)
        while left and time.monotonic() < until:
            time.sleep(_INSIST_EVERY_S)
            found = _reap(group)
            status = status if found is None else found
            left = _signal(group, number if number == signal.SIGKILL else 0)
    return status


def _signal(group: int, number: int) -> bool:
    """Send a signal (0 = none) to the server's group and to all descendants; return whether anybody was there."""
    is_there = False
    for send, target in ((os.killpg, group), *((os.kill, pid) for pid in _descendants())):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(target, number)
            is_there = True
    return is_there


def _descendants() -> list[int]:
    """Return every process below this one; none where the system does not show them in /proc."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            parent = int(file.read().rpartition(b")")[2].split()[1])  # the name before it may hold anything
            children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    left = [os.getpid()]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found


if __name__ == "__main__":
    sys.exit(main())
