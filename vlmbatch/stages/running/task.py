"""What one run command is about: its options, the rows that are left to send, and what came of it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from vlmbatch import attempts, journal, jsonl, resume, rundir
from vlmbatch.batch.base import BatchOptions
from vlmbatch.errors import CheckFailed, InputError, Interrupted, VlmbatchError
from vlmbatch.prices import Prices
from vlmbatch.progress import ProgressFileReporter
from vlmbatch.realtime.budget import Budget
from vlmbatch.records import Event, Status
from vlmbatch.retry import Policy

if TYPE_CHECKING:
    from collections.abc import Callable
    from decimal import Decimal

    from vlmbatch.attempts import Outcome
    from vlmbatch.batch.base import BatchResult
    from vlmbatch.prices import Rates
    from vlmbatch.providers.base import Provider
    from vlmbatch.realtime.writer import OnWritten
    from vlmbatch.records import Reading
    from vlmbatch.rundir import IdIndex, RunDir
    from vlmbatch.serve import Serve
    from vlmbatch.stages.running.weights import RowTokens
    from vlmbatch.stop import Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What run is asked to do. The key is no option: it is handed over beside them and kept nowhere.

    Attributes:
        channel: ``realtime`` (one by one) or ``batch`` (jobs of the provider's batch API).
        batch: How jobs are sent and watched; address, key and what follows from the rest are filled in.
        base_urls: Where to send; empty = the provider's own address.
        serve: A server to start for as long as rows are sent, instead of an address; None = there is one.
        concurrency: Open requests per endpoint, at most.
        limit: Send a sample of so many rows, spread evenly over the whole run, the same every time.
        ids: A file of custom_ids: send these, whatever they have.
        out: Name of the results file in results/; None = by default.
        resume: Whether rows with an answer or a final error are left alone.
        policy: Tries, deadlines, waits.
        rpm: Requests per minute over all endpoints.
        tpm: Tokens per minute over all endpoints.
        rate_limit_delay_s: Least time between two requests.
        max_usd: Stop before the run's answers could cost more, earlier ones included.
        max_tokens_total: Stop before the run's tokens could be more, earlier ones included.
        retry_status: Send rows that ended so again ...
        retry_times: ... this often at most, over all runs.
        pending: Write the lines that are still to be sent to this file, and send nothing.
        verify: ``full`` checks every frozen file first; ``lines`` only what is sent, as its turn comes.
        rehearsal: Send to the rehearsal provider.
        faults: A file that says how that one misbehaves.
        num_shards: Number of parts that the rows are dealt out to.
        shard_id: Which part this is, from 0.
        progress_path: A further progress file.
    """

    channel: str = "realtime"
    batch: BatchOptions = field(default_factory=BatchOptions)
    base_urls: tuple[str, ...] = ()
    serve: Serve | None = None
    concurrency: int = 32
    limit: int | None = None
    ids: str | None = None
    out: str | None = None
    resume: bool = True
    policy: Policy = field(default_factory=Policy)
    rpm: float | None = None
    tpm: float | None = None
    rate_limit_delay_s: float = 0.0
    max_usd: Decimal | None = None
    max_tokens_total: int | None = None
    retry_status: frozenset[Status] = frozenset()
    retry_times: int = 2
    pending: str | None = None
    verify: Literal["full", "lines"] = "full"
    rehearsal: bool = False
    faults: str | None = None
    num_shards: int = 1
    shard_id: int = 0
    progress_path: str | None = None

    @property
    def is_look(self) -> bool:
        """Whether open batch jobs are only looked at (``--status``): nothing is sent, and nothing is written."""
        return self.channel == "batch" and self.batch.action == "status"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a run came to.

    Attributes:
        results: The results file, relative to the run folder; None where nothing was written.
        asked: Rows that the command was about.
        answered_before: Those that had an answer already and were left alone.
        failed_before: Those that had a final error already and were left alone.
        in_batch: Those that are in an open batch job and were left alone.
        statuses: Rows that ended in this run, by status.
        errors: Those without an answer, by kind.
        tries: Requests sent.
        input_tokens: Tokens of this run's answers.
        output_tokens: Likewise, reasoning included.
        spent_usd: What the answers cost at the prices on record, this run alone; None without prices.
        elapsed_s: Seconds of sending.
        concurrency: ``{asked, peak, mean}``: how many requests were really open.
        endpoints: ``{base_url, direct}`` of each.
        rehearsal: Whether the rehearsal provider answered.
        stopped: Why the run ended early, empty where it did not.
        is_interrupted: Whether the user stopped it.
        lost_lines: Attempts that could not be written.
        pending: The file that was written instead of sending, None where rows were sent.
        to_send: Rows that were still to be sent when it began.
        batch: What became of the batch jobs, None for the other channel.
    """

    results: str | None = None
    asked: int = 0
    answered_before: int = 0
    failed_before: int = 0
    in_batch: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    tries: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    spent_usd: Decimal | None = None
    elapsed_s: float = 0.0
    concurrency: dict[str, float] = field(default_factory=dict)
    endpoints: list[dict[str, Any]] = field(default_factory=list)
    rehearsal: bool = False
    stopped: str = ""
    is_interrupted: bool = False
    lost_lines: int = 0
    pending: str | None = None
    to_send: int = 0
    batch: BatchResult | None = None

    @property
    def answers(self) -> int:
        """Rows that the model answered in this run."""
        return sum(self.statuses.values()) - sum(self.errors.values())

    @property
    def without_answer(self) -> int:
        """Rows that the command was about and that have no answer now, those in a batch job not counted."""
        return self.asked - self.answered_before - self.in_batch - self.answers

    @property
    def requests_per_s(self) -> float:
        """Rows that ended per second of sending."""
        return sum(self.statuses.values()) / self.elapsed_s if self.elapsed_s > 0 else 0.0

    def problem(self) -> VlmbatchError | None:
        """Return what keeps the exit status from being 0, None where nothing does."""
        again = "the same command goes on where it ended"
        left = f"{self.without_answer:,} of {self.asked:,} rows have no answer"
        if self.lost_lines:
            left += f", and {self.lost_lines:,} attempt(s) could not be kept (their rows are sent again)"
        if self.pending is not None:
            return None
        if self.is_interrupted:
            return Interrupted(f"interrupted: {left}", hint=again)
        if self.stopped:
            return CheckFailed(f"stopped: {self.stopped}; {left}", hint=again)
        if self.without_answer:
            return CheckFailed(left, hint="collect says why, row by row, and which of them are worth another run")
        return None


@dataclass(frozen=True, slots=True)
class Task:
    """One run command after its options were checked and the folder was read: what every channel needs.

    Attributes:
        run: The run.
        provider: Its adapter.
        options: What is asked.
        selection: What has to be sent.
        budget: What may be spent, with what is spent already.
        times: How often each row ended in one of ``retry_status`` before, None where none is asked for.
        is_fresh: Whether the run has no answer yet.
        stop: The user's wish to stop.
        on_event: Told of progress.
        on_written: Told of attempts once the disk has them.
    """

    run: RunDir
    provider: Provider
    options: RunOptions
    selection: resume.Selection
    budget: Budget
    times: bytearray | None
    is_fresh: bool
    stop: Stop
    on_event: Callable[[Event], None] | None
    on_written: OnWritten | None = None

    def note(self, message: str) -> None:
        """Say something that one may want to know."""
        if self.on_event is not None:
            self.on_event(Event("note", "run", message))

    def warn(self, message: str) -> None:
        """Say something that one should know."""
        if self.on_event is not None:
            self.on_event(Event("warning", "run", message))

    def reporters(self, name: str) -> list[ProgressFileReporter]:
        """Return the progress files, started from what was settled before.

        Args:
            name: The one in the run folder; ``progress_path`` is another.
        """
        paths, further = [self.run.file(name)], self.options.progress_path
        if further is not None and rundir.belongs_to_run(further):
            self.warn(f"--progress-path {further}: that place in the run folder has its own use and keeps it")
        elif further is not None:
            paths.append(further)
        extra = {"rehearsal": True} if self.options.rehearsal else {}
        reporters = [ProgressFileReporter(path, self.selection.asked, extra=extra) for path in paths]
        for path, reporter in zip(paths, reporters, strict=True):
            reporter.start(self.selection.answered, self.selection.failed)
            if reporter.problem:
                self.warn(f"{path}: progress cannot be written ({reporter.problem})")
        return reporters

    def tell_seal(self) -> None:
        """Say that what is written now is not under the folder's seal."""
        if self.run.is_sealed:
            self.warn(rundir.SEAL_BROKEN)

    def catch_up(self, name: str) -> None:
        """Let the progress file tell what the results hold, where a command that was killed left it behind them."""
        selection, path = self.selection, self.run.file(name)
        try:
            with open(path, "rb") as file:
                told = jsonl.parse_object(file.read()) or {}
        except OSError:
            told = {}
        standing = {"total": selection.asked, "completed": selection.answered, "failed": selection.failed}
        if any(told.get(key) != value for key, value in standing.items()) or self.options.progress_path is not None:
            self.tell_seal()
            self.reporters(name)

    def result(self, **more: Any) -> RunResult:
        """Return a result that starts from what was there before."""
        selection = self.selection
        return RunResult(
            asked=selection.asked,
            answered_before=selection.answered,
            failed_before=selection.failed,
            in_batch=selection.in_batch,
            to_send=selection.to_send,
            rehearsal=self.options.rehearsal,
            **more,
        )


def look_up(
    run: RunDir,
    provider: Provider,
    options: RunOptions,
    *,
    stop: Stop,
    on_event: Callable[[Event], None] | None,
    on_written: OnWritten | None = None,
) -> Task:
    """Read what is settled and decide what has to be sent.

    Raises:
        InputError: A file of ids names rows that there are not, or there is a limit on money without prices.
        IntegrityError: results/ holds results of another run.
    """
    budget = _budget(run, provider, options)
    has_results = bool(run.results(rehearsal=options.rehearsal))
    standing = resume.Standing(run.requests)
    ids: bytearray | None = None
    if has_results or options.ids is not None:
        index = run.index()
        if has_results:
            standing = _standing(run, provider, options, index, budget)
        if options.ids is not None:
            ids = resume.read_ids(options.ids, index)
    if not options.rehearsal:
        for position in journal.in_flight(run):
            standing.note(position, resume.Mark.IN_BATCH)
    asked = resume.positions(run, limit=options.limit, num_shards=options.num_shards, shard_id=options.shard_id)
    selection = resume.select(asked, standing, resume=options.resume, ids=ids)
    return Task(
        run=run,
        provider=provider,
        options=options,
        selection=selection,
        budget=budget,
        times=(standing.times or bytearray(run.requests)) if options.retry_status else None,
        is_fresh=resume.Mark.ANSWERED not in standing.marks,
        stop=stop,
        on_event=on_event,
        on_written=on_written,
    )


def _standing(run: RunDir, provider: Provider, options: RunOptions, index: IdIndex, budget: Budget) -> resume.Standing:
    if not options.retry_status and not budget.is_limited:
        return resume.read_standing(run, provider, index, rehearsal=options.rehearsal)

    def count(outcome: Outcome, reading: Reading, *, is_answer: bool) -> None:
        if is_answer or reading.usage["output_tokens"] is not None:
            budget.add(reading.usage)
        budget.add_unknown(sum(one["status_code"] is None and one.get("sent", False) for one in outcome.tries))

    return resume.judge_standing(
        run,
        provider,
        index,
        retry_status=options.retry_status,
        retry_times=options.retry_times,
        on_outcome=count,
        rehearsal=options.rehearsal,
    )


def _budget(run: RunDir, provider: Provider, options: RunOptions) -> Budget:
    """Return what may be spent, at the last prices that estimate put on record."""
    rates = last_rates(run)
    if options.max_usd is not None and rates is None:
        raise InputError(
            "--max-usd needs prices, and this run has none on record",
            hint=f"vlmbatch estimate {run.path} --price-in P --price-out P puts them there (USD per million tokens)",
        )
    outputs = list(run.info["request"].get("outputs") or [""])
    limits = [attempts.asked(run, provider, name).max_tokens for name in outputs]
    known = [limit for limit in limits if limit is not None]
    count = _row_tokens(run) if options.max_tokens_total is not None or options.max_usd is not None else None
    return Budget(
        max_tokens=options.max_tokens_total,
        max_usd=options.max_usd,
        rates=rates,
        output_limit=max(known) if len(known) == len(limits) else None,
        count_tokens=count,
        is_rule_known=count is not None and count.is_rule_known,
    )


def _row_tokens(run: RunDir) -> RowTokens:
    from vlmbatch.stages.running.weights import RowTokens  # what estimate needs is slow to load, and few runs do

    return RowTokens(run)


def last_rates(run: RunDir) -> Rates | None:
    """Return the realtime prices of the last line of estimates.jsonl that has any."""
    path = run.file(rundir.ESTIMATES)
    if not os.path.exists(path):
        return None
    found = None
    for line in jsonl.iter_lines(path):
        value = jsonl.parse_object(line.data)
        rates = Prices.parse(value, where=rundir.ESTIMATES).rates("realtime") if value is not None else None
        found = rates or found
    return found
