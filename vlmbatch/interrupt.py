"""Ctrl-C while nothing is at stake: one line, and the process is over, whatever is being loaded.

Python's own way, an exception, comes up anywhere: out of a half-loaded module as a traceback, and out of a callback of
the interpreter's not at all. So it holds only while a command works, for then there is something to put in order. This
room is loaded first of all, so it needs next to nothing.
"""

from __future__ import annotations

import os
import signal
import sys

_STATUS = 130
_is_ours = False
_is_over = False


def end(*_signal: object) -> None:
    """Say it (as JSON too, where that was asked for and no result was given yet) and leave."""
    try:
        if not _is_over and "--json" in sys.argv:
            os.write(1, as_json(next((word for word in sys.argv[1:] if not word.startswith("-")), "")))
        os.write(2, b"error: interrupted\n")
    finally:  # also where nobody reads it
        os._exit(_STATUS)


def as_json(command: str) -> bytes:
    """Return the envelope of ``--json``, made without a library: none may be loaded yet.

    Args:
        command: What was called.
    """
    name = command if command.isascii() and command.isalnum() else ""
    return (
        f'{{"schema": "vlmbatch.result/1", "command": "{name}", "status": "error", "exit_code": {_STATUS}, '
        '"data": null, "errors": [{"code": "interrupted", "message": "interrupted", "hint": ""}]}\n'
    ).encode()


def ends_at_once() -> None:
    """Let Ctrl-C end this process on the spot, unless whoever started it lets it be ignored."""
    global _is_ours  # noqa: PLW0603  (a process has one such handler)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        _is_ours = True
        signal.signal(signal.SIGINT, end)


def raises() -> None:
    """Let Ctrl-C be an exception, so that what is being written is put in order."""
    if signal.getsignal(signal.SIGINT) is end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def is_over() -> None:
    """Let Ctrl-C end this process on the spot once more, where it did before: there is nothing left to put in order."""
    global _is_over  # noqa: PLW0603  (a process ends once)
    if _is_ours:
        _is_over = True
        ends_at_once()
