"""Putting attempts on disk without holding up the sending: one queue, one thread that writes, one that waits.

Whatever has come in is written in one go, so a killed process loses at most what was in flight. The disk is waited
for on a timer and at the end, beside the writing, which never waits for it. When the disk is full, the lines that did
not fit are kept and tried once more at the end; a torn line is ended first, so that it never merges with the next.
"""

from __future__ import annotations

import os
import queue
import threading
from typing import TYPE_CHECKING, Final, TypeAlias

from vlmbatch.jsonl import Appender

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vlmbatch.progress import ProgressFileReporter

OnWritten: TypeAlias = "Callable[[Sequence[bytes]], object]"
"""Takes lines, without their newlines; what it raises is its own affair, so it must not raise."""

_Line: TypeAlias = "tuple[bytes, bool | None]"
"""A line without its newline, and whether its row ended with an answer, None where it has not ended."""

_SYNC_EVERY_S: Final = 5.0
_END: Final = None


class ResultsWriter:
    """Appends lines to one results file from threads of its own; the file is made when the first line comes.

    Args:
        path: The file.
        reporters: Told of every row once its line is written.
        on_failure: Called, in the writer's thread, at the first write that fails.
        on_written: Told, in the writer's thread, of the lines that the file has now.

    Attributes:
        failure: The error of that write, None as long as all is well.
        lost: Lines that could not be written even at the end.
    """

    def __init__(
        self,
        path: str,
        *,
        reporters: Sequence[ProgressFileReporter] = (),
        on_failure: Callable[[], object],
        on_written: OnWritten | None = None,
    ) -> None:
        self.path = path
        self.failure: OSError | None = None
        self.lost = 0
        self._reporters = reporters
        self._on_failure = on_failure
        self._on_written = on_written
        self._queue: queue.SimpleQueue[_Line | None] = queue.SimpleQueue()
        self._file: Appender | None = None
        self._size = 0
        self._unwritten: list[_Line] = []
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=work, name=f"results-{name}", daemon=True)
            for name, work in (("writer", self._work), ("syncer", self._keep_syncing))
        ]
        for thread in self._threads:
            thread.start()

    def put(self, line: bytes, *, is_answer: bool | None) -> None:
        """Hand over one line, without its newline; never waits.

        Args:
            line: One JSON object.
            is_answer: Whether the row ended with a model's answer, for the progress file; None: it has not ended.
        """
        self._queue.put((line, is_answer))

    def close(self) -> None:
        """Wait until everything is on disk, or is known not to fit."""
        self._queue.put(_END)
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        self._finish()

    def _keep_syncing(self) -> None:
        while not self._is_over.wait(_SYNC_EVERY_S):
            self._sync()

    def _work(self) -> None:
        is_open = True
        while is_open:
            taken, is_open = self._take()
            if taken:
                self._write(taken)

    def _take(self) -> tuple[list[_Line], bool]:
        """Return everything that has come in, and whether more may come."""
        taken: list[_Line] = []
        try:
            one = self._queue.get()
            while one is not None:
                taken.append(one)
                one = self._queue.get_nowait()
        except queue.Empty:
            return taken, True
        return taken, False

    def _write(self, taken: list[_Line]) -> None:
        if self.failure is not None:
            self._unwritten += taken
            return
        try:
            if self._file is None:
                self._file = Appender(self.path)
                self._size = os.path.getsize(self.path)
            block = b"\n".join([*(line for line, _ in taken), b""])
            self._file.append_block(block)
            self._size += len(block)
        except OSError as error:
            whole = self._whole(taken)
            self._fail(error, taken[whole:])
            self._tell(taken[:whole])
            return
        self._tell(taken)

    def _tell(self, written: list[_Line]) -> None:
        """Let those who wait for it know what the file has now."""
        if self._on_written is not None and written:
            self._on_written([line for line, _ in written])
        answers = sum(is_answer is True for _, is_answer in written)
        failures = sum(is_answer is False for _, is_answer in written)
        for reporter in self._reporters:
            if answers:
                reporter.record_completed(answers)
            if failures:
                reporter.record_failed(failures)

    def _whole(self, lines: list[_Line]) -> int:
        """Return how many lines of a failed write are in the file as a whole."""
        try:
            room = os.path.getsize(self.path) - self._size
        except OSError:
            return 0
        for done, (line, _) in enumerate(lines):
            room -= len(line) + 1
            if room < 0:
                return done
        return len(lines)

    def _sync(self) -> None:
        try:
            if self._file is not None:
                self._file.sync()
        except OSError as error:
            self._fail(error, [])

    def _fail(self, error: OSError, lines: list[_Line]) -> None:
        self._unwritten += lines
        if self.failure is None:
            self.failure = error
            self._on_failure()

    def _finish(self) -> None:
        """Try what did not fit once more, line by line, and close the file."""
        try:
            if self._unwritten:
                if self._file is not None:
                    self._file.close()
                self._file = Appender(self.path)
                while self._unwritten:
                    self._file.append(self._unwritten[0][0])
                    self._tell([self._unwritten.pop(0)])
            if self._file is not None:
                self._file.close()
        except OSError as error:
            self._fail(error, [])
        self.lost = len(self._unwritten)
