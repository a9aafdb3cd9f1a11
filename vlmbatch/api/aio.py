"""The same run for programs with an event loop: calls work in threads and can be cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING, Final, TypeVar

from vlmbatch.api.run import Run
from vlmbatch.errors import Interrupted
from vlmbatch.stop import Stop, to_the_end

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence

    from vlmbatch.api.hearing import Judged, Rejection
    from vlmbatch.api.run import OnAttempt, OnEvent
    from vlmbatch.records import Entry, Event, Record
    from vlmbatch.slurm import SlurmOptions, Submitted
    from vlmbatch.stages.archive import BagOptions, BagResult, RedactResult, SealResult
    from vlmbatch.stages.building.plan import BuildOptions
    from vlmbatch.stages.collect import CollectResult
    from vlmbatch.stages.collecting.options import CollectOptions
    from vlmbatch.stages.estimating.options import EstimateOptions, EstimateResult
    from vlmbatch.stages.report import ReportOptions
    from vlmbatch.stages.running.task import RunOptions, RunResult

_T = TypeVar("_T")
_AT_ONCE: Final = 256
"""Lines that an iterator takes from its thread at once."""


class AsyncRun:
    """A run folder, asynchronously: the methods of :class:`~vlmbatch.api.run.Run`, to be awaited.

    What may take long works in a thread of its own; ``open``, ``submit`` and the iterators take turns in the loop's
    pool. Cancelling an awaited call asks the work to stop and waits until it has: sending finishes what is in flight,
    everything else ends at its next event.

    Attributes:
        run: The run itself.
    """

    def __init__(self, run: Run) -> None:
        self.run = run

    def __repr__(self) -> str:
        return f"AsyncRun({self.run!r})"

    @classmethod
    async def build(
        cls,
        options: BuildOptions,
        *,
        key: str | None = None,
        environ: Mapping[str, str] | None = None,
        key_env: str | None = None,
        key_file: str | None = None,
        on_event: OnEvent | None = None,
    ) -> AsyncRun:
        """See :meth:`Run.build`; cancelled, it leaves no folder behind."""

        def work(tell: OnEvent) -> Run:
            return Run.build(options, key=key, environ=environ, key_env=key_env, key_file=key_file, on_event=tell)

        return cls(await _stoppable(work, on_event))

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

    async def submit(
        self,
        slurm: SlurmOptions,
        options: RunOptions | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        key_env: str | None = None,
        key_file: str | None = None,
    ) -> Submitted:
        """See :meth:`Run.submit`; once begun it goes through."""
        return await asyncio.to_thread(
            self.run.submit, slurm, options, environ=environ, key_env=key_env, key_file=key_file
        )

    async def collect(
        self, options: CollectOptions | None = None, results: Sequence[str] = (), *, on_event: OnEvent | None = None
    ) -> CollectResult:
        """See :meth:`Run.collect`."""
        return await _stoppable(lambda tell: self.run.collect(options, results, on_event=tell), on_event)

    async def report(
        self, collected: CollectResult, options: ReportOptions | None = None, *, on_event: OnEvent | None = None
    ) -> str:
        """See :meth:`Run.report`."""
        return await _stoppable(lambda tell: self.run.report(collected, options, on_event=tell), on_event)

    async def seal(self, *, on_event: OnEvent | None = None) -> SealResult:
        """See :meth:`Run.seal`."""
        return await _stoppable(lambda tell: self.run.seal(on_event=tell), on_event)

    async def bag(
        self, target: str, options: BagOptions | None = None, *, on_event: OnEvent | None = None
    ) -> BagResult:
        """See :meth:`Run.bag`."""
        return await _stoppable(lambda tell: self.run.bag(target, options, on_event=tell), on_event)

    async def redact(
        self,
        target: str,
        leave_out: Collection[str],
        *,
        keep_fields: Collection[str] = (),
        on_event: OnEvent | None = None,
    ) -> RedactResult:
        """See :meth:`Run.redact`."""

        def work(tell: OnEvent) -> RedactResult:
            return self.run.redact(target, leave_out, keep_fields=keep_fields, on_event=tell)

        return await _stoppable(work, on_event)

    async def verify(self, *, on_event: OnEvent | None = None) -> None:
        """See :meth:`Run.verify`."""
        await _stoppable(lambda tell: self.run.verify(on_event=tell), on_event)

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
    """Run something in a thread; each cancelling asks it to stop once more, and it is waited for.

    The thread is its own, for the loop's own few would be taken for hours; and what stands for it is no task, which a
    loop that ends would cancel beside its caller, while the thread goes on.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix="vlmbatch")
    done = asyncio.get_running_loop().run_in_executor(pool, copy_context().run, work)
    pool.shutdown(wait=False)
    return await to_the_end(done, stop)


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
