"""The loop that sends: one dispatcher gives rows to places, one task does one try, one thread writes.

A row that fails goes back into a queue ordered by when it is due; nobody sleeps on its behalf, so it holds neither a
place nor the others up. Bodies are read by offset when their turn comes and dropped when the try ends, so memory
follows what is in flight and not what there is to do.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from vlmbatch import retry
from vlmbatch.errors import IntegrityError
from vlmbatch.realtime.endpoints import NoEndpointError, change
from vlmbatch.realtime.errand import Ending, Held
from vlmbatch.realtime.exchange import INTERRUPTED, Pending, Understood, as_try, attempt_line, understand
from vlmbatch.realtime.tally import Tally
from vlmbatch.records import Event
from vlmbatch.transport import Answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from vlmbatch.realtime.budget import Reserve
    from vlmbatch.realtime.endpoints import Endpoints, Place
    from vlmbatch.realtime.errand import Errand
    from vlmbatch.realtime.writer import ResultsWriter
    from vlmbatch.records import Entry
    from vlmbatch.stop import Stop
    from vlmbatch.transport import Transport

_NOT_FOUND: Final = 404
_OFFLOAD_BYTES: Final = 128 << 10
"""Lines from this size on are read and hashed in a thread, beside the loop."""
_READERS: Final = 2
"""Threads for that: hashing is faster than any network, and each thread keeps memory of its own."""
_TICK_S: Final = 0.25


class Sender:
    """Sends an errand's rows until all have ended, or something ends the run.

    Args:
        errand: What to send.
        transport: The wire.
        endpoints: Where to.
        writer: Keeps the attempts.
        stop: The user's wish to stop.
        on_event: Told of progress, warnings, and (as notes) of single retries.

    Attributes:
        tally: What was counted.
        ending: Why it ended early, if it did.
    """

    def __init__(
        self,
        errand: Errand,
        *,
        transport: Transport,
        endpoints: Endpoints,
        writer: ResultsWriter,
        stop: Stop,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        self._errand = errand
        self._transport = transport
        self._endpoints = endpoints
        self._writer = writer
        self._stop = stop
        self._on_event = on_event
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="read")
        self._rng = random.Random()  # noqa: S311  (jitter)
        self._changed = asyncio.Event()
        self._again: list[Pending] = []
        self._is_drained = False
        self._number = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._dispatcher: asyncio.Task[None] | None = None
        self._in_hand: Pending | None = None
        self._held = Held(is_over=not errand.is_fresh)
        self.tally = Tally()
        self.ending = Ending()

    async def run(self) -> None:
        """Send everything; what was begun is on its way to the disk when this returns.

        Whoever calls this ends the heeding of ``stop``, once the disk has it too.
        """
        loop = asyncio.get_running_loop()
        self._stop.heed(partial(loop.call_soon_threadsafe, self._heed_stop))
        ticker = asyncio.create_task(self._tick())
        self._dispatcher = asyncio.create_task(self._dispatch())
        try:
            if self._stop.level:
                self._heed_stop()
            await self._wait_for_dispatcher(self._dispatcher)
            while self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            ticker.cancel()
            self._readers.shutdown()
        self._record_left_over()
        self.tally.ended_s = time.monotonic()
        self._show_progress()

    def end_because_disk(self, message: str) -> None:
        """Stop sending: answers can no longer be kept. Safe to call only inside the loop."""
        self._end(Ending(stopped=message))

    # --- giving rows to places --------------------------------------------------------------------------

    async def _wait_for_dispatcher(self, dispatcher: asyncio.Task[None]) -> None:
        try:
            await dispatcher
        except NoEndpointError as error:
            self._end(Ending(stopped=str(error)))
        except (IntegrityError, OSError) as error:
            self._end(Ending(fault=error))
        except asyncio.CancelledError:
            if not self.ending:
                raise

    async def _dispatch(self) -> None:
        """Give each row to a place, as rows come due and places come free."""
        budget = self._errand.budget
        while (pending := await self._next()) is not None:
            self._in_hand = pending
            place = await self._place(pending.entry)
            self._in_hand = None
            task = asyncio.create_task(self._try(pending, place, budget.hold(pending.entry)))
            self._tasks.add(task)
            task.add_done_callback(self._after_task)
            await asyncio.sleep(0)  # it goes out before the next is read: rows that end together do not leave together

    async def _place(self, entry: Entry) -> Place:
        """Wait for a place, and for room in the budget: what ended while a place was waited for may have taken it."""
        budget = self._errand.budget
        while True:
            while not budget.fits(entry):
                if not self._tasks:
                    self._end(Ending(stopped="the next request could pass --max-usd or --max-tokens-total (raise it)"))
                await change(self._changed, None)
            place = await self._endpoints.acquire(budget.mean_tokens)
            if budget.fits(entry):
                return place
            self._endpoints.release(place, used_tokens=0.0)

    async def _next(self) -> Pending | None:
        """Return the next row to send: one that is due again before a new one; None when all have ended."""
        while True:
            due_s = self._again[0].due_s - time.monotonic() if self._again else None
            if due_s is not None and due_s <= 0:
                return heapq.heappop(self._again)
            if not self._is_drained and not (self._again and len(self._again) > 4 * self._endpoints.limit):
                entry = next(self._errand.entries, None)
                if entry is not None:
                    self._number += 1
                    return Pending(entry, number=self._number)
                self._is_drained = True
            if self._is_drained and not self._again and not self._tasks:
                return None
            await change(self._changed, due_s)

    def _after_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._changed.set()
        if not task.cancelled():
            task.exception()  # it is in the ending already

    # --- one try ----------------------------------------------------------------------------------------

    async def _try(self, pending: Pending, place: Place, reserve: Reserve) -> None:
        """Send a row once and see to what follows."""
        errand, endpoint = self._errand, place.endpoint
        now = time.monotonic()
        waited_s = pending.begin(now)
        used: float | None = None
        try:
            body = await self._body(pending.entry)
            self.tally.tries += 1
            answer = await self._send(pending, place, body)
            asked = errand.asked[pending.entry.output]
            understood = understand(answer, errand.provider, asked, endpoint, body.nbytes)
            used = self._spend(understood, pending.entry)
        except BaseException as error:
            if pending.tries:
                heapq.heappush(self._again, pending)  # what was tried before goes on record at the end
            if isinstance(error, Exception):
                self._end(Ending(fault=error))
            raise
        finally:
            errand.budget.free(reserve)
            self._endpoints.release(place, used_tokens=used)
        pending.last = understood
        pending.ended_s = time.monotonic()
        pending.tries.append(as_try(understood, waited_s))
        if understood.is_answer:
            hold_s = retry.headroom_wait_s(answer.headers, datetime.now(UTC), errand.budget.mean_tokens)
            self._endpoints.answered(place, min(hold_s, errand.policy.max_wait_s))
            self._take_answer(pending, understood)
        else:
            self._take_failure(pending, understood, place)

    async def _body(self, entry: Entry) -> memoryview:
        """Return a row's inner bytes, a slice of the frozen line, once the line's hash agrees."""
        lines = self._errand.lines
        if entry.length < _OFFLOAD_BYTES:
            line = lines.line(entry)
        else:
            line = await asyncio.get_running_loop().run_in_executor(self._readers, lines.line, entry)
        return memoryview(line)[entry.body_offset : entry.body_offset + entry.body_length]

    async def _send(self, pending: Pending, place: Place, body: memoryview) -> Answer:
        errand = self._errand
        timeout_s = retry.next_timeout_s(errand.policy, pending.tries)
        try:
            return await self._transport.send(
                "POST", place.endpoint.url, headers=errand.headers, body=body, timeout_s=timeout_s
            )
        except asyncio.CancelledError:
            # The user asked twice. What was in flight may be billed all the same: it goes on record.
            return Answer(None, code=INTERRUPTED, message="interrupted while in flight", sent=True)

    def _spend(self, understood: Understood, entry: Entry) -> float | None:
        """Count a try's tokens; return them, None where nobody said."""
        budget, usage = self._errand.budget, understood.reading.usage
        if understood.answer.status_code is None and understood.answer.sent:
            budget.add_unknown()
        if not understood.is_answer and usage["output_tokens"] is None:
            return None
        budget.add(usage, entry)
        self.tally.add_usage(usage)
        return float((usage["input_tokens"] or 0) + (usage["output_tokens"] or 0)) or None

    # --- what follows -----------------------------------------------------------------------------------

    def _take_answer(self, pending: Pending, understood: Understood) -> None:
        errand, position = self._errand, pending.entry.position
        self._release_held(is_final=True)
        if errand.times is not None and understood.verdict.status in errand.retry_status:
            errand.times[position] = min(255, errand.times[position] + 1)
            if errand.times[position] <= errand.retry_times and not self.ending:
                self._write(pending, understood, is_final=True, note="", is_last=False)
                self._requeue(Pending(pending.entry, number=pending.number), 0.0)
                return
        self._write(pending, understood, is_final=True, note="")

    def _take_failure(self, pending: Pending, understood: Understood, place: Place) -> None:
        errand, answer = self._errand, understood.answer
        reason = (
            errand.provider.ends_run(answer.status_code, understood.value) if answer.status_code is not None else None
        )
        if reason is not None:
            is_unknown = understood.error is not None and understood.error["status_code"] == _NOT_FOUND
            self._end(Ending(refused=reason, is_frozen=is_unknown))
            self._write(pending, understood, is_final=False, note="")
            return
        failure = understood.failure(errand.provider)
        now = datetime.now(UTC)
        decision = retry.decide(failure, pending.tries, now, self._rng, errand.policy)
        self._tell_endpoint(understood, place, decision, retry.asked_wait_s(answer.headers, now, failure.body_wait_s))
        if isinstance(decision, retry.Wait) and not self.ending:
            self._tell_retry(pending, understood, decision)
            self._requeue(pending, 0.0 if decision.is_shared else decision.seconds)
            return
        note = decision.reason if isinstance(decision, retry.GiveUp) else ""
        if understood.error is not None and not understood.error["is_retryable"]:
            self._take_final_error(pending, understood, note)
        else:
            self._write(pending, understood, is_final=True, note=note)

    def _tell_endpoint(
        self, understood: Understood, place: Place, decision: retry.Wait | retry.GiveUp, asked_s: float | None
    ) -> None:
        """Let the endpoint's limit and health learn from a failure."""
        status, message = understood.answer.status_code, understood.error["message"] if understood.error else ""
        if status is None:
            if understood.answer.code != INTERRUPTED:
                self._endpoints.failed(place, message, is_broken=understood.answer.code != retry.TIMEOUT)
            return
        if isinstance(decision, retry.Wait) and decision.is_shared:
            self._endpoints.pushed_back(place, decision.seconds)
        elif asked_s is not None and asked_s > self._errand.policy.max_wait_s:
            self._endpoints.rest(place.endpoint, asked_s)
        if status >= 500 or status <= 299:  # unwell, or not the server that it should be
            self._endpoints.failed(place, message, is_broken=False)
        elif status != 429:
            self._endpoints.refused_row(place)

    def _requeue(self, pending: Pending, wait_s: float) -> None:
        pending.due_s = time.monotonic() + wait_s
        self._number += 1
        pending.number = self._number
        heapq.heappush(self._again, pending)
        self._changed.set()

    def _take_final_error(self, pending: Pending, understood: Understood, note: str) -> None:
        """Hold the first final errors back while they are all alike; so many of them end the run."""
        held = self._held
        if not held.takes(pending, understood, note):
            self._release_held(is_final=True)
            self._write(pending, understood, is_final=True, note=note)
        elif held.is_damning and understood.error is not None:
            said = understood.error["message"]
            alike = f"the first {len(held.kept)} requests were all refused alike: {said}"
            self._end(Ending(refused=alike, is_frozen=True))

    def _release_held(self, *, is_final: bool) -> None:
        held = self._held
        held.is_over = True
        for pending, understood, note in held.kept:
            self._write(pending, understood, is_final=is_final, note=note)
        held.kept.clear()

    def _write(
        self, pending: Pending, understood: Understood, *, is_final: bool, note: str, is_last: bool = True
    ) -> None:
        """Put an attempt on record; ``is_last``: the row has ended, it is not sent again."""
        line = attempt_line(pending, understood, rehearsal=self._errand.rehearsal, is_final=is_final, error_note=note)
        self._writer.put(line, is_answer=understood.is_answer if is_last else None)
        if is_last:
            self.tally.add(understood.verdict.status, understood.kind)

    # --- endings ----------------------------------------------------------------------------------------

    def _heed_stop(self) -> None:
        """First asking: take no more rows. Second: give up what is in flight, too."""
        self._end(Ending(is_interrupted=True))
        if self._stop.level >= 2:
            for task in self._tasks:
                task.cancel()
        else:
            self._warn(f"stopping: {len(self._tasks)} request(s) in flight are finished; ask again to give them up")

    def _end(self, ending: Ending) -> None:
        """Send nothing more; the first reason stands."""
        if not self.ending:
            self.ending = ending
        if self._dispatcher is not None:
            self._dispatcher.cancel()

    def _record_left_over(self) -> None:
        """Put on record what was tried and waits for its next try: those tries may have been billed."""
        self._release_held(is_final=not self.ending.refused)
        left = [*self._again, *([self._in_hand] if self._in_hand is not None else [])]
        for pending in sorted(left):
            if pending.last is not None:
                self._write(pending, pending.last, is_final=True, note="the run ended before the next try")
        self._again.clear()
        self._in_hand = None

    # --- telling ----------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self._show_progress()

    def _show_progress(self) -> None:
        if self._on_event is None:
            return
        tally, budget = self.tally, self._errand.budget
        data = {
            "answers": tally.answers,
            "errors": dict(tally.errors),
            "requests_per_s": tally.requests_per_s,
            "tokens_per_s": tally.tokens_per_s,
            "in_flight": self._endpoints.in_flight,
            "limit": self._endpoints.limit,
            "retrying": len(self._again),
            "spent_usd": budget.spent_usd,
        }
        done = self._errand.done + tally.ended
        self._on_event(Event("progress", "run", done=done, total=self._errand.total, data=data))

    def _warn(self, message: str) -> None:
        if self._on_event is not None:
            self._on_event(Event("warning", "run", message))

    def _tell_retry(self, pending: Pending, understood: Understood, decision: retry.Wait) -> None:
        if self._on_event is not None:
            said = understood.error["message"] if understood.error else ""
            name, tries = pending.entry.custom_id, len(pending.tries)
            message = f"{name}: try {tries} failed ({said}), again in {decision.seconds:.1f} s"
            self._on_event(Event("note", "run", message, data={"row": True}))
