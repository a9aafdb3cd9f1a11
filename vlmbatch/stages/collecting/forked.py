"""The same work on many pieces, on all processors where that is safe, with the results in order either way.

A piece is worked on by a forked child, which sees everything that the parent has read so far without any copying.
Forking is safe in a process of one thread; in any other, and for few pieces, the work is done here, one by one.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import tempfile
import threading
from collections import deque
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Piece = TypeVar("Piece")
Result = TypeVar("Result")


class _Child(NamedTuple):
    pid: int
    answer: IO[bytes]


def in_order(
    pieces: Sequence[Piece], work: Callable[[Piece], Result], *, workers: int | None = None
) -> Iterator[Result]:
    """Yield ``work(piece)`` for each piece, in order.

    Args:
        pieces: What is to be worked on.
        work: Does it; its result has to be picklable. What it changes in memory may be lost, what it writes to a file
            that was open before stays.
        workers: Children at a time; None = one for each processor. Less than two: no child at all.

    Raises:
        Exception: Whatever ``work`` raised for the first piece that failed.
        OSError: A child ended without an answer.
    """
    count = min(len(pieces), (os.cpu_count() or 1) if workers is None else workers)
    if count < 2 or not can_fork():
        for piece in pieces:
            yield work(piece)
        return
    children: deque[_Child] = deque()
    try:
        for piece in pieces:
            if len(children) >= count:
                yield _answer_of(children)
            children.append(_fork(piece, work))
        while children:
            yield _answer_of(children)
    finally:
        for child in children:
            with contextlib.suppress(OSError):
                os.kill(child.pid, signal.SIGKILL)
                os.waitpid(child.pid, 0)


def can_fork() -> bool:
    """Tell whether forking is safe: on a system that has it, in a process whose only thread is this one."""
    return hasattr(os, "fork") and sys.platform != "darwin" and threading.active_count() == 1


def _fork(piece: Piece, work: Callable[[Piece], Result]) -> _Child:
    answer = tempfile.TemporaryFile()  # noqa: SIM115  (closed by _answer_of)
    pid = os.fork()
    if pid:
        return _Child(pid, answer)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it, and ends its children
    try:
        pickle.dump(_result(piece, work), answer, protocol=pickle.HIGHEST_PROTOCOL)
        answer.flush()
    finally:
        os._exit(0)  # nothing of the parent's is closed, flushed or cleaned up here


def _result(piece: Piece, work: Callable[[Piece], Result]) -> tuple[bool, Any]:
    try:
        return True, work(piece)
    except Exception as error:  # noqa: BLE001  (raised again by the parent)
        return False, error


def _answer_of(children: deque[_Child]) -> Any:
    """Wait for the oldest child; return what it worked out."""
    child = children.popleft()
    os.waitpid(child.pid, 0)
    with child.answer as answer:
        answer.seek(0)
        try:
            is_done, result = pickle.load(answer)  # noqa: S301  (our own child's)
        except (EOFError, pickle.UnpicklingError):
            raise OSError("a helper process ended without an answer; is memory or disk space short?") from None
    if not is_done:
        raise result
    return result
