"""A process that sends batches and kills itself at a chosen step, for the tests of what a crash leaves behind.

A step is every moment before something that lasts: a journal line, a call, a file that takes its place. (What follows
such a thing is what comes before the next one.)
"""

from __future__ import annotations

import os
import signal
from typing import Any

from tests.stages.batch_runs import KINDS, send
from vlmbatch import jsonl
from vlmbatch.rundir import RunDir
from vlmbatch.transport import Transport


class Address:
    """Stands where a server would: only its address is known here."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url


def run_until(folder: str, base_url: str, kind: str, step: int, *, torn: bool = False) -> None:
    """Send what is left of a run, and die by SIGKILL at the ``step``-th moment (from 1).

    Args:
        folder: The run folder.
        base_url: Where the provider listens.
        kind: One of :data:`KINDS`.
        step: Which moment; with ``torn``, which journal line.
        torn: Whether to die in the middle of writing a journal line.
    """
    left = step

    def moment() -> None:
        nonlocal left
        left -= not torn
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    append, post, replace = jsonl.Appender.append, Transport.send, os.replace

    def killed_append(self: jsonl.Appender, line: bytes) -> None:
        nonlocal left
        left -= torn
        if torn and left == 0:
            self.append_block(line[: len(line) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        moment()
        append(self, line)

    async def killed_send(self: Transport, *args: Any, **more: Any) -> Any:
        moment()
        return await post(self, *args, **more)

    def killed_replace(*args: Any, **more: Any) -> None:
        moment()
        replace(*args, **more)

    jsonl.Appender.append = killed_append  # type: ignore[method-assign]
    Transport.send = killed_send  # type: ignore[method-assign]
    os.replace = killed_replace
    send(RunDir.open(folder), Address(base_url), KINDS[kind], settle_s=0.1)  # type: ignore[arg-type]
