"""The same run for programs with an event loop: every call works in a thread and can be cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING, Final, TypeVar

from vlmbatch.api.run import Run
from vlmbatch.errors import Interrupted
from vlmbatch.stop import Stop

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from vlmbatch.api.run import Judged, OnAttempt, OnEvent, Rejection
    from vlmbatch.records import Entry, Event, Record
    from vlmbatch.stages.building.plan import BuildOptions
    from vlmbatch.stages.collect import CollectResult
    from vlmbatch.stages.collecting.options import CollectOptions
    from vlmbatch.stages.estimating.options import EstimateOptions, EstimateResult
    from vlmbatch.stages.running.task import RunOptions, RunResult

_T = TypeVar("_T")
_AT_ONCE: Final = 256
"""Lines that an iterator takes from its thread at once."""


class AsyncRun:
    """A run folder, asynchronously: the methods of :class:`~vlmbatch.api.run.Run`, to be awaited.

    Callbacks are called in the working thread. Cancelling an awaited call asks the work to stop and waits until it has:
    sending finishes what is in flight, everything else ends at its next event.

    Attributes:
        run: The run itself.
    """

    def __init__(self, run: Run) -> None:
        self.run = run

    @classmethod
    async def build(cls, options: BuildOptions, *, on_event: OnEvent | None = None) -> AsyncRun:
        """See :meth:`Run.build`; cancelled, it leaves no folder behind."""
        return cls(await _stoppable(lambda tell: Run.build(options, on_event=tell), on_event))

    @classmethod
    async def open(cls, path: str | os.PathLike[str]) -> AsyncRun:
        """See :meth:`Run.open`."""
        return cls(await asyncio.to_thread(Run.open, path))

    async def estimate(
        self, options: EstimateOptions | None = None, *, now: str | None = None, on_event: OnEvent | None = None
    ) -> EstimateResult:
        """See :meth:`Run.estimate`."""
        return await _stoppable(lambda tell: self.run.estimate(options, now=now, on_event=tell), on_event)

    async def send(
        self,
        options: RunOptions | None = None,
        *,
        key: str | None = None,
        environ: Mapping[str, str] | None = None,
        key_env: str | None = None,
        key_file: str | None = None,
        on_event: OnEvent | None = None,
        on_attempt: OnAttempt | None = None,
        stop: Stop | None = None,
    ) -> RunResult:
        """See :meth:`Run.send`; cancelled, what was answered is saved and the same call goes on there."""
        asked = stop or Stop()

        def work() -> RunResult:
            return self.run.send(
                options,
                key=key,
                environ=environ,
                key_env=key_env,
                key_file=key_file,
                on_event=on_event,
                on_attempt=on_attempt,
                stop=asked,
            )

        return await _in_thread(work, asked)

    async def collect(
        self, options: CollectOptions | None = None, results: Sequence[str] = (), *, on_event: OnEvent | None = None
    ) -> CollectResult:
        """See :meth:`Run.collect`."""
        return await _stoppable(lambda tell: self.run.collect(options, results, on_event=tell), on_event)

    def manifest(self) -> AsyncIterator[Entry]:
        """See :meth:`Run.manifest`."""
        return _iterate(self.run.manifest)

    def rejected(self) -> AsyncIterator[Rejection]:
        """See :meth:`Run.rejected`."""
        return _iterate(self.run.rejected)

    def attempts(self, *, rehearsal: bool = False) -> AsyncIterator[Judged]:
        """See :meth:`Run.attempts`."""
        return _iterate(lambda: self.run.attempts(rehearsal=rehearsal))

    def records(self, results: Sequence[str] = (), *, rehearsal: bool = False) -> AsyncIterator[Record]:
        """See :meth:`Run.records`."""
        return _iterate(lambda: self.run.records(results, rehearsal=rehearsal))


async def _stoppable(work: Callable[[OnEvent], _T], on_event: OnEvent | None) -> _T:
    """Run a stage that knows no stop: cancelled, it ends at its next event."""
    stop = Stop()

    def tell(event: Event) -> None:
        if stop.level:
            raise Interrupted("cancelled")
        if on_event is not None:
            on_event(event)

    return await _in_thread(lambda: work(tell), stop)


async def _in_thread(work: Callable[[], _T], stop: Stop) -> _T:
    """Run something in a thread; each cancelling asks it to stop once more, and it is waited for."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            stop.ask()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        task.exception()  # taken, so that the loop does not complain that nobody did
        raise


async def _iterate(start: Callable[[], Iterator[_T]]) -> AsyncIterator[_T]:
    """Yield what an iterator yields, a handful at a time from a thread."""
    iterator = await asyncio.to_thread(start)

    def some() -> list[_T]:
        return list(itertools.islice(iterator, _AT_ONCE))

    try:
        while taken := await asyncio.to_thread(some):
            for one in taken:
                yield one
    finally:
        close = getattr(iterator, "close", None)
        if close is not None:
            with contextlib.suppress(ValueError):  # a thread is still at it: it ends with its last reference
                close()
