"""The loop of the batch channel: take up what a crash left, submit what fits, look, fetch, and come back later."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from vlmbatch.batch import adopt, watch
from vlmbatch.batch.base import BatchResult, JobReport, Work
from vlmbatch.batch.calls import Caller, patient
from vlmbatch.batch.plan import Planned, plan, with_tokens
from vlmbatch.batch.submit import Effect, submit
from vlmbatch.errors import InputError
from vlmbatch.journal import Journal
from vlmbatch.providers.base_batch import Phase
from vlmbatch.providers.pick_batch import batch_api
from vlmbatch.records import Event
from vlmbatch.transport import Transport, without_query

if TYPE_CHECKING:
    from collections.abc import Callable

    from vlmbatch.batch.base import BatchOptions
    from vlmbatch.journal import Job
    from vlmbatch.providers.base import Provider
    from vlmbatch.providers.base_batch import Batch
    from vlmbatch.records import Entry
    from vlmbatch.rundir import IdIndex, RunDir
    from vlmbatch.stop import Stop

_FIRST_LOOK_S = 2.0
_SLOWER = 1.5
_FULL_WAIT_S = 30.0
_LONGEST_FULL_WAIT_S = 600.0
_MOST_TURNS = 8
_PATIENCE = 30
"""Looks in a row that may fail before this command stops waiting for a job (the job itself is kept)."""


async def send_batches(
    run: RunDir,
    provider: Provider,
    options: BatchOptions,
    wanted: bytearray,
    index: IdIndex,
    *,
    count_tokens: Callable[[Entry], int],
    on_event: Callable[[Event], None] | None = None,
    stop: Stop | None = None,
) -> BatchResult:
    """Send rows through the provider's batch API, or look after those that were sent.

    The caller has verified the frozen files and, unless ``options.action`` is ``status`` (which writes nothing), holds
    the run's lock. Rows that are in an open job already are left alone, whatever ``wanted`` says; those of them that
    are wanted are sent if their job comes to nothing.

    Args:
        run: The run.
        provider: Its adapter.
        options: Where to, how, and what to do.
        wanted: 1 for each manifest line that is to be sent; not looked at unless ``options.action`` is ``send``.
        index: The run's ids.
        count_tokens: Estimates a row's input tokens; asked only where ``options`` limit them.
        on_event: Hears notes, warnings and progress (rows through, of rows in jobs).
        stop: Asked once, the step at hand is finished and everything open is left to the next command; asked twice,
            the step is broken off, which the journal survives.

    Raises:
        InputError: The provider has no batch API here, or open jobs belong to another address.
        IntegrityError: A frozen line is not what build wrote.
        RefusedError: The provider refuses the key, the account, or jobs of this kind.
        OSError: The journal or results could not be written; nothing was sent after that.
    """
    base_url = options.base_url or provider.default_base_url()
    endpoint = without_query(base_url)
    api = batch_api(provider, run.info["request"]["url"], run.info["model"])
    headers = provider.headers(options.key, run.info["request"].get("headers") or {})

    hear = _nobody if on_event is None else on_event
    async with Transport(trust_env=not options.rehearsal, secret=options.key) as transport:
        with Journal(run, rehearsal=options.rehearsal) as journal:
            caller = Caller(transport, api, base_url, headers, patient(options.timeout_s))
            work = Work(run, provider, api, options, endpoint, journal, caller, index, hear)
            return await _Channel(work, wanted, count_tokens, stop).run()


def _nobody(event: Event) -> None:
    """Hear an event that nobody asked for."""


class _Channel:
    """One command of the batch channel."""

    def __init__(self, work: Work, wanted: bytearray, count_tokens: Callable[[Entry], int], stop: Stop | None) -> None:
        self._work = work
        self._left = bytearray(wanted if work.options.action == "send" else len(wanted))
        self._count_tokens = count_tokens
        self._stop = stop
        self._queue: deque[Planned] = deque()  # what is left and in no open job
        self._tokens: dict[str, int] = {}  # of open jobs
        self._seen: dict[str, Batch] = {}
        self._failed_looks: dict[str, int] = {}
        self._not_before = 0.0
        self._full_turns = 0
        self._awake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def _journal(self) -> Journal:
        return self._work.journal

    def _is_stopped(self) -> bool:
        return self._stop is not None and self._stop.level > 0

    async def run(self) -> BatchResult:
        """Do what the options ask for and say what was done."""
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._go())
        if self._stop is not None:
            self._stop.heed(lambda: loop.call_soon_threadsafe(self._wake))
        try:
            await self._task
        except asyncio.CancelledError:
            if not self._is_stopped():
                raise
        finally:
            if self._stop is not None:
                self._stop.heed(None)
        return self._result()

    def _wake(self) -> None:
        self._awake.set()
        if self._stop is not None and self._stop.level > 1 and self._task is not None:
            self._task.cancel()

    async def _go(self) -> None:
        self._check_endpoints()
        for job in self._journal.open_jobs():
            self._work.touch(job)
        action = self._work.options.action
        if action == "status":
            await self._tell_status()
            return
        if not self._work.touched and action == "send" and 1 not in self._left:
            return
        await adopt.adopt(self._work)
        if action == "cancel":
            for job in self._submitted():
                await watch.cancel(self._work, job)
        self._fill_queue()
        await self._until_done()

    async def _tell_status(self) -> None:
        """Look at each open job once, and leave everything as it is, here and there."""
        for job in self._journal.open_jobs():
            if job.is_doubtful:
                self._work.hindered(job, "nobody knows whether it was made: the next run looks for it")
                continue
            batch = await watch.ask(self._work, job)
            if batch is not None:
                self._seen[job.key] = batch
                watch.note_flaws(self._work, job, batch)
                # For the report alone: the journal on the disk is left to the command that watches the job.
                job.state, job.is_over = batch.state, batch.phase is Phase.FAILED
        self._report()

    def _check_endpoints(self) -> None:
        """Refuse to look for jobs where they are not."""
        elsewhere = [job for job in self._journal.open_jobs() if job.endpoint != self._work.endpoint]
        if self._work.options.rehearsal:
            for job in elsewhere if self._work.options.action != "status" else ():
                self._journal.append("abandoned", job.key, why="the rehearsal's provider has gone")
        elif elsewhere:
            places = sorted({job.endpoint for job in elsewhere})
            raise InputError(
                f"open batch jobs of this run were sent to {', '.join(places)}, not to {self._work.endpoint}",
                hint="give that --base-url again until they have ended, or --cancel them there",
            )

    # --- the loop -------------------------------------------------------------------------------------------

    async def _until_done(self) -> None:
        options = self._work.options
        wait_s = min(_FIRST_LOOK_S, options.poll_interval_s)
        while not self._is_stopped():
            made = await self._submit_what_fits()
            self._report()
            if options.detach or not (self._queue or self._waited_for()):
                return
            await self._sleep(wait_s)
            if self._is_stopped():
                return
            moved = await self._look_all()
            wait_s = min(_FIRST_LOOK_S if made or moved else wait_s * _SLOWER, options.poll_interval_s)

    async def _sleep(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._awake.wait(), seconds)

    def _submitted(self) -> list[Job]:
        return [job for job in self._journal.jobs.values() if job.is_submitted]

    def _waited_for(self) -> list[Job]:
        """Return the open jobs that this command still has patience for."""
        return [job for job in self._journal.open_jobs() if self._failed_looks.get(job.key, 0) < _PATIENCE]

    async def _look_all(self) -> bool:
        """Look at every open job; return whether one of them has ended and left its place to another."""
        moved = False
        for job in self._waited_for():
            if self._is_stopped():
                break
            if job.is_doubtful:
                await self._settle(job)
            else:
                moved = await self._look(job) or moved
        if moved:
            self._not_before = 0.0  # there is room again
        return moved

    async def _settle(self, job: Job, since: datetime | None = None) -> None:
        """Look for a job that may have been made; what was found and is not wanted is ended."""
        await adopt.settle(self._work, job, since)
        if job.is_over:
            self._fill_queue()
        if job.is_submitted and self._work.options.action == "cancel":
            await watch.cancel(self._work, job)

    async def _look(self, job: Job) -> bool:
        """Look at a job; return whether it has ended, so that there is room for another."""
        batch = await watch.look(self._work, job)
        if batch is None:
            self._failed_looks[job.key] = self._failed_looks.get(job.key, 0) + 1
            return False
        self._failed_looks[job.key] = 0
        self._seen[job.key] = batch
        if batch.phase is Phase.FAILED and batch.is_queue_full:
            self._fill_queue()
            alone = "" if self._journal.open_jobs() else "; it was alone: if it stays so, build smaller shards"
            self._hold_back(None, job.why + alone)
            return False
        if job.is_over:
            self._full_turns = 0
            for start, end in job.ranges:
                self._left[start:end] = bytes(end - start)  # what it left is another command's to send
        return job.is_over

    # --- submitting -----------------------------------------------------------------------------------------

    def _fill_queue(self) -> None:
        """Plan jobs of all rows that are left and not in flight; with a budget, count them and those in flight."""
        open_jobs = self._journal.open_jobs()
        wanted = bytearray(self._left)
        for job in open_jobs:
            for start, end in job.ranges:
                wanted[start:end] = bytes(end - start)
        jobs = plan(self._work.run, wanted)
        if jobs and self._work.options.max_enqueued_tokens is not None:
            in_flight = [Planned(job.shard, job.ranges) for job in open_jobs]
            counted = with_tokens(self._work.run, [*jobs, *in_flight], self._count_tokens)
            jobs = counted[: len(jobs)]
            self._tokens = {job.key: one.tokens for job, one in zip(open_jobs, counted[len(jobs) :], strict=True)}
        self._queue = deque(jobs)

    async def _submit_what_fits(self) -> int:
        """Submit from the queue while there is room; return how many jobs were made."""
        made = 0
        while self._queue and not self._is_stopped() and self._has_room(self._queue[0]):
            effect, job, wait_s, reason = await submit(self._work, self._queue[0])
            if effect is Effect.NOT_NOW:
                self._hold_back(wait_s, reason)
                break
            self._tokens[job.key] = self._queue.popleft().tokens
            if effect is Effect.DOUBTFUL:
                await self._settle(job, since=datetime.now(UTC))
            made += job.is_submitted
        return made

    def _has_room(self, planned: Planned) -> bool:
        options, in_flight = self._work.options, self._journal.open_jobs()
        if time.monotonic() < self._not_before:
            return False
        if options.max_in_flight is not None and len(in_flight) >= options.max_in_flight:
            return False
        if options.max_enqueued_tokens is None or not in_flight:
            return True
        enqueued = sum(self._tokens[job.key] for job in in_flight)
        return enqueued + planned.tokens <= options.max_enqueued_tokens

    def _hold_back(self, asked_wait_s: float | None, reason: str) -> None:
        """Wait before the next create. A job of ours that ends may make room sooner."""
        wait_s = asked_wait_s
        if wait_s is None:
            ceiling = min(_LONGEST_FULL_WAIT_S, 10 * self._work.options.poll_interval_s)
            wait_s = min(_FULL_WAIT_S * 2**self._full_turns, ceiling)
        self._full_turns = min(self._full_turns + 1, _MOST_TURNS)
        self._not_before = time.monotonic() + wait_s
        self._work.note(f"no job is taken now ({reason}); next try in {wait_s:.0f} s, or when a job ends")

    # --- telling --------------------------------------------------------------------------------------------

    def _report(self) -> None:
        jobs = list(self._work.touched.values())
        batches = [self._seen.get(job.key) for job in jobs]
        done = sum(
            job.requests if job.is_over else (batch.done or 0) if batch else 0
            for job, batch in zip(jobs, batches, strict=True)
        )
        waiting = sum(planned.requests for planned in self._queue)
        total = sum(job.requests for job in jobs) + waiting
        data = {"jobs": {job.batch_id: job.state for job in jobs if job.batch_id}, "waiting": waiting}
        self._work.on_event(Event("progress", "batch", done=done, total=total, data=data))

    def _result(self) -> BatchResult:
        work = self._work
        reports = tuple(
            JobReport(
                job.batch_id,
                job.shard,
                job.requests,
                job.state,
                job.is_over,
                job.why or work.trouble.get(job.key, ""),
                work.flaws.get(job.key, ()),
                tuple(ref["file"] for ref in job.files),
            )
            for job in work.touched.values()
        )
        return BatchResult(
            reports,
            work.counts["submitted"],
            work.counts["adopted"],
            work.counts["downloaded"],
            rows_open=sum(job.requests for job in self._journal.open_jobs()),
            open_ranges=tuple(one for job in self._journal.open_jobs() for one in job.ranges),
            rows_waiting=sum(planned.requests for planned in self._queue),
            is_interrupted=self._is_stopped(),
        )
