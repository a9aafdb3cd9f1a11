"""The realtime channel, put together: where to send, what may be spent, who writes, and the loop over them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, TypeVar

from vlmbatch import __version__, attempts, journal, resume, rundir
from vlmbatch.errors import InputError, RefusedError, counted
from vlmbatch.pace import Limiter
from vlmbatch.realtime import health
from vlmbatch.realtime.endpoints import Endpoint, Endpoints
from vlmbatch.realtime.errand import Errand
from vlmbatch.realtime.sender import Sender
from vlmbatch.realtime.writer import ResultsWriter
from vlmbatch.rundir import REHEARSAL_PREFIX, RESULTS, LineReader
from vlmbatch.stages.running.task import last_rates
from vlmbatch.stop import to_the_end
from vlmbatch.transport import LIBRARIES, Transport, check_base_url

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence
    from decimal import Decimal

    from vlmbatch.providers.base import Provider
    from vlmbatch.serve import Serve
    from vlmbatch.stages.running.task import RunOptions, RunResult, Task
    from vlmbatch.stop import Stop

T = TypeVar("T")

_REHEARSAL_KEY = "rehearsal"
_FROZEN = "model and parameters are frozen: build a new run with others, or check where --base-url leads"


def send(task: Task, name: str | None, key: str | None) -> RunResult:
    """Send what a task selects, one by one.

    Args:
        task: What has to be sent.
        name: The results file, None = a new rehearsal's.
        key: The API key.

    Raises:
        InputError: There is nowhere to send to, or a key is needed and missing.
        IntegrityError: A frozen line changed under way; nothing more was sent.
        RefusedError: The provider refuses the whole run.
    """
    with addresses(task) as base_urls:
        endpoints = _endpoints(task, base_urls)
        if not task.options.rehearsal and task.options.serve is None:
            need_key(task.provider, base_urls, key)
        if not task.selection.to_send:
            task.catch_up(_progress_name(task.options))
            return task.result(endpoints=_told(endpoints))
        task.tell_seal()
        _need_results_folder(task)
        _name_full_price(task)
        session = _Session(task, name or _next_rehearsal(task), _REHEARSAL_KEY if task.options.rehearsal else key)
        return in_loop(lambda: session.run(endpoints), task.stop)


@contextlib.contextmanager
def addresses(task: Task) -> Iterator[tuple[str, ...]]:
    """Yield the base URLs; a rehearsal's server, or one of the user's, lives as long as the block."""
    options = task.options
    if options.serve is not None:
        with _served(task, options.serve) as base_urls:
            yield base_urls
        return
    if not options.rehearsal:
        given = tuple(dict.fromkeys(check_base_url(url) for url in options.base_urls))
        yield given or (task.provider.default_base_url(),)
        return
    from vlmbatch.rehearsal.faults import load_faults
    from vlmbatch.rehearsal.server import serve

    with serve(load_faults(options.faults) if options.faults else None) as server:
        yield (server.base_url,)


@contextlib.contextmanager
def _served(task: Task, serve: Serve) -> Iterator[tuple[str, ...]]:
    """Yield the base URL of a server of the user's own; with nothing to send none is started."""
    if not task.selection.to_send:
        yield ()
        return
    from vlmbatch.serve import serving

    log = task.run.file(f"{rundir.LOGS}/serve-{task.options.shard_id:04d}.log")
    task.note(f"starting the server; its log is {log}")
    with serving(serve, model=task.run.info["model"], log=log, stop=task.stop) as base_url:
        task.note(f"the server answers at {base_url}")
        yield (base_url,)


def _endpoints(task: Task, base_urls: Sequence[str]) -> list[Endpoint]:
    provider, options = task.provider, task.options
    session = {
        "tool": {"name": "vlmbatch", "version": __version__},
        "libraries": {**LIBRARIES, "python": platform.python_version()},
        "concurrency": options.concurrency,
    }
    return [
        Endpoint(
            base_url=base_url,
            url=provider.endpoint(task.run.info["request"]["url"], base_url),
            is_direct=provider.is_direct(base_url),
            limiter=Limiter(options.concurrency),
            session={**session},
        )
        for base_url in base_urls
    ]


def need_key(provider: Provider, base_urls: Sequence[str], key: str | None) -> None:
    """Check that there is a key where the provider's own address is the only place to send to.

    Raises:
        InputError: There is none.
    """
    names = provider.default_key_envs()
    if key is None and names and all(provider.is_direct(url) for url in base_urls):
        raise InputError(
            f"no API key: {' or '.join(names)} is not set",
            hint=f"nothing was sent: export {names[0]}=…, or name another variable with --api-key-env; "
            "--rehearsal tries the run without a key",
        )


def _need_results_folder(task: Task) -> None:
    """Refuse to send where answers could not be kept."""
    folder = task.run.file(RESULTS)
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made ({error.strerror})", hint="nothing was sent") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{folder}: cannot be written to", hint="nothing was sent; check the folder's permissions")


def _name_full_price(task: Task) -> None:
    """Say what realtime costs, where batch jobs have left the rows that are about to be sent."""
    jobs = [] if task.options.rehearsal else journal.Journal(task.run).jobs.values()
    if not any(job.is_over and job.batch_id for job in jobs):
        return
    rates = last_rates(task.run)
    price = f"{rates.input} USD in, {rates.output} USD out for a million tokens" if rates else "no price is on record"
    task.note(f"{task.selection.to_send:,} row(s) that batch jobs left are sent in realtime, at full price: {price}")


def _told(endpoints: Sequence[Endpoint]) -> list[dict[str, Any]]:
    return [{"base_url": endpoint.name, "direct": endpoint.is_direct} for endpoint in endpoints]


def _next_rehearsal(task: Task) -> str:
    """Return the first free name of a rehearsal's results file."""
    taken = {os.path.basename(path) for path in task.run.results(rehearsal=True)}
    number = 1
    while f"{REHEARSAL_PREFIX}{number:04d}.jsonl" in taken:
        number += 1
    return f"{REHEARSAL_PREFIX}{number:04d}.jsonl"


def in_loop(main: Callable[[], Coroutine[Any, Any, T]], stop: Stop) -> T:
    """Run a coroutine to its end, in a loop of its own, also where the caller (a notebook) has one already.

    Raises:
        KeyboardInterrupt: The user pressed Ctrl-C; the coroutine was asked to stop, and has.
    """

    async def whole() -> T:
        return await to_the_end(asyncio.ensure_future(main()), stop)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(whole())  # which makes a cancelling of Ctrl-C
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(lambda: asyncio.run(main()))
        interrupt: KeyboardInterrupt | None = None
        while not done.done():
            try:
                wait([done])
            except KeyboardInterrupt as error:
                interrupt = error
                stop.ask()
        if interrupt is not None:
            raise interrupt
        return done.result()


def _progress_name(options: RunOptions) -> str:
    """Return the progress file of what is sent: the whole run, or one part of it."""
    return rundir.progress_of(None if options.num_shards == 1 else options.shard_id)


class _Session:
    """One sending: everything that lives as long as the loop."""

    def __init__(self, task: Task, name: str, key: str | None) -> None:
        self._task = task
        self._results = f"{RESULTS}/{name}"
        self._key = key
        self._headers = task.provider.headers(key, task.run.info["request"].get("headers") or {})

    async def run(self, places: list[Endpoint]) -> RunResult:
        """Look who answers, send, save, and say what came of it."""
        task, options = self._task, self._task.options
        endpoints = Endpoints(
            places, options.policy, rpm=options.rpm, tpm=options.tpm, delay_s=options.rate_limit_delay_s
        )
        spent_before = task.budget.spent_usd
        async with Transport(trust_env=not options.rehearsal, secret=self._key) as transport:
            if not options.rehearsal:
                await health.look(
                    endpoints,
                    transport,
                    task.provider,
                    self._headers,
                    task.run.info["model"],
                    options.policy.patience_s,
                    task.warn,
                )
            with LineReader(task.run) as lines:
                sender, writer = await self._send(endpoints, transport, lines)
        self._raise_if_refused(sender)
        return self._result(endpoints, sender, writer, spent_before)

    async def _send(
        self, endpoints: Endpoints, transport: Transport, lines: LineReader
    ) -> tuple[Sender, ResultsWriter]:
        loop = asyncio.get_running_loop()
        reporters = self._task.reporters(_progress_name(self._task.options))
        writer = ResultsWriter(
            self._task.run.file(self._results),
            reporters=reporters,
            on_failure=lambda: loop.call_soon_threadsafe(self._disk_failed, sender, writer),
            on_written=self._task.on_written,
        )
        sender = Sender(
            self._errand(lines),
            transport=transport,
            endpoints=endpoints,
            writer=writer,
            stop=self._task.stop,
            on_event=self._task.on_event,
        )
        try:
            await sender.run()
        finally:
            writer.close()
            for reporter in reporters:
                reporter.finalize()
            self._task.stop.heed(None)
        return sender, writer

    def _disk_failed(self, sender: Sender, writer: ResultsWriter) -> None:
        error = writer.failure
        said = (error.strerror or str(error)) if error is not None else "unknown"
        sender.end_because_disk(f"{self._results} cannot be written ({said}); make room")

    def _errand(self, lines: LineReader) -> Errand:
        task, selection = self._task, self._task.selection
        return Errand(
            entries=resume.entries(task.run, selection.wanted),
            lines=lines,
            provider=task.provider,
            asked=attempts.asked_by_output(task.run, task.provider),
            headers=self._headers,
            policy=task.options.policy,
            budget=task.budget,
            rehearsal=task.options.rehearsal,
            is_fresh=task.is_fresh,
            retry_status=task.options.retry_status,
            retry_times=task.options.retry_times,
            times=task.times,
            total=selection.asked,
            done=selection.asked - selection.to_send,
        )

    def _raise_if_refused(self, sender: Sender) -> None:
        ending, tally = sender.ending, sender.tally
        if ending.fault is not None:
            raise ending.fault
        if ending.refused:
            raise RefusedError(
                f"the provider refuses the run: {ending.refused}",
                hint=f"{counted(tally.answers, '[answer of this run is|answers of this run are]')} saved; "
                + (_FROZEN if ending.is_frozen else "once that is mended, give the command again"),
            )

    def _result(
        self, endpoints: Endpoints, sender: Sender, writer: ResultsWriter, spent_before: Decimal | None
    ) -> RunResult:
        tally, ending, spent = sender.tally, sender.ending, self._task.budget.spent_usd
        if self._task.budget.is_passed:
            self._task.warn("the limit on spending was passed: the last rows took more than any before and any formula")
        return self._task.result(
            results=self._results if tally.ended else None,
            statuses={status.value: count for status, count in sorted(tally.statuses.items())},
            errors=dict(sorted(tally.errors.items())),
            tries=tally.tries,
            input_tokens=tally.input_tokens,
            output_tokens=tally.output_tokens,
            spent_usd=None if spent is None or spent_before is None else spent - spent_before,
            elapsed_s=tally.elapsed_s,
            concurrency={
                "asked": self._task.options.concurrency * len(endpoints.all),
                "peak": endpoints.peak,
                "mean": round(endpoints.mean_in_flight(), 1),
            },
            endpoints=_told(endpoints.all),
            stopped=ending.stopped,
            is_interrupted=ending.is_interrupted,
            lost_lines=writer.lost,
        )
