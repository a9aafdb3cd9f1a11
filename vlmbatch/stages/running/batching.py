"""The batch channel, put together: where the jobs go, which rows they take, and what came of it."""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from vlmbatch import attempts, journal, resume, rundir
from vlmbatch.batch.channel import send_batches
from vlmbatch.errors import InputError
from vlmbatch.records import MODEL_ANSWERS, Status
from vlmbatch.stages.running.sending import addresses, in_loop, need_key
from vlmbatch.stages.running.weights import RowTokens
from vlmbatch.transport import without_query

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vlmbatch.attempts import Outcome
    from vlmbatch.batch.base import BatchOptions, BatchResult
    from vlmbatch.rundir import IdIndex
    from vlmbatch.stages.running.task import RunResult, Task

_REHEARSAL_POLL_S = 0.2
"""A rehearsal's jobs end after some looks, not after hours."""


def send(task: Task, key: str | None, options: BatchOptions) -> RunResult:
    """Submit what a task selects, look after what is open, and fetch what has ended.

    Args:
        task: What has to be sent.
        key: The API key.
        options: What the flags of the batch channel say; address, key and what follows from the task are filled in.

    Raises:
        InputError: There is nowhere to send to, a key is needed and missing, or an option is for the other channel.
        IntegrityError: A frozen line is not what build wrote.
        RefusedError: The provider refuses the whole run.
    """
    asked = task.options
    _check(task)
    started = time.monotonic()
    index = task.run.index()
    is_asked = _asked(task, index)
    with addresses(task) as (base_url,):
        if not asked.rehearsal:
            need_key(task.provider, [base_url], key)
        filled = replace(
            options,
            base_url=base_url,
            key=key,
            timeout_s=asked.policy.timeout_s,
            poll_interval_s=min(options.poll_interval_s, _REHEARSAL_POLL_S if asked.rehearsal else math.inf),
            rehearsal=asked.rehearsal,
        )
        if not asked.is_look:
            task.tell_seal()
        reporters = [] if asked.is_look else task.reporters(rundir.PROGRESS)
        result = in_loop(
            lambda: send_batches(
                task.run,
                task.provider,
                filled,
                _left(task, is_asked, index),
                index,
                count_tokens=RowTokens(task.run),
                on_event=task.on_event,
                stop=task.stop,
            ),
            task.stop,
        )
    rows = _Rows(task, index, is_asked)
    rows.count([file for job in result.jobs for file in job.files], result.open_ranges)
    for reporter in reporters:
        reporter.record_completed(rows.answers)
        reporter.record_failed(rows.errors.total())
        reporter.finalize()
    return _result(task, result, rows, base_url, time.monotonic() - started)


def _check(task: Task) -> None:
    """Refuse what the batch channel has no use for."""
    options = task.options
    wrong = {
        "--channel batch takes one --base-url": len(options.base_urls) > 1,
        "--channel batch makes jobs of whole shards: --num-shards and --shard-id are for realtime": (
            options.num_shards > 1
        ),
        "--max-usd and --max-tokens-total are for realtime": task.budget.is_limited,
        "--out is for realtime: a job's results are named after the job": options.out is not None,
    }
    said = [sentence for sentence, holds in wrong.items() if holds]
    if said:
        raise InputError("; ".join(said), hint="docs/how-to/batch.md lists what goes with --channel batch")


class _Rows:
    """The rows that the command is about, and how they stand by the files that it fetched.

    Attributes:
        statuses: Rows that ended in this command, by status.
        errors: Those without an answer, by kind.
        in_batch: Rows that are in an open job now.
        input_tokens: Tokens of this command's answers.
        output_tokens: Likewise, reasoning included.
    """

    def __init__(self, task: Task, index: IdIndex, is_asked: bytearray) -> None:
        self._task = task
        self._index = index
        self._is_asked = is_asked
        self.statuses: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.in_batch = self.input_tokens = self.output_tokens = 0

    @property
    def answers(self) -> int:
        """Rows that the model answered."""
        return self.statuses.total() - self.errors.total()

    def count(self, files: Sequence[str], open_ranges: Sequence[journal.Range]) -> None:
        """Judge every row of some results files; of a row that came twice, an answer stands, else the later one.

        Args:
            files: The files, relative to the run folder.
            open_ranges: Manifest lines in jobs that may still answer.
        """
        task, order = self._task, list(Status)
        asked = attempts.asked_by_output(task.run, task.provider)
        names = [entry.output for entry in task.run.iter_entries()] if len(asked) > 1 else None
        last = bytearray(task.run.requests)
        kinds: dict[int, str] = {}
        for file in files:
            for outcome in attempts.Reader(task.run.file(file), task.run, task.provider):
                position = self._index.position(outcome.custom_id)
                if position < 0 or not self._is_asked[position]:
                    continue
                reading, verdict = attempts.judge(outcome, task.provider, asked[names[position] if names else ""])
                self.input_tokens += reading.usage["input_tokens"] or 0
                self.output_tokens += reading.usage["output_tokens"] or 0
                if verdict.status in MODEL_ANSWERS or not last[position] or position in kinds:
                    last[position] = order.index(verdict.status) + 1
                    kinds.pop(position, None)
                    if verdict.status not in MODEL_ANSWERS:
                        kinds[position] = _kind(outcome)
        self.statuses.update(order[number - 1].value for number in last if number)
        self.errors.update(kinds.values())
        held = () if task.options.rehearsal else (row for start, end in open_ranges for row in range(start, end))
        self.in_batch = len({row for row in held if self._is_asked[row]})


def _asked(task: Task, index: IdIndex) -> bytearray:
    """Return 1 for each row that the command is about."""
    options = task.options
    if options.ids is not None:
        return resume.read_ids(options.ids, index)
    marks = bytearray(task.run.requests)
    for position in resume.positions(task.run, limit=options.limit):
        marks[position] = 1
    return marks


def _in_flight(task: Task, is_asked: bytearray) -> bytearray:
    """Return 1 for each row of the command that is in an open job."""
    marks = bytearray(task.run.requests)
    for position in () if task.options.rehearsal else journal.in_flight(task.run):
        marks[position] = is_asked[position]
    return marks


def _left(task: Task, is_asked: bytearray, index: IdIndex) -> bytearray:
    """Return 1 for each row that is to be sent, or would be if the open job that it is in came to nothing."""
    held = _in_flight(task, is_asked)
    if held.count(1) != task.selection.in_batch:  # some were answered by other means
        marks = resume.read_standing(task.run, task.provider, index).marks
        held = bytearray(is_held and mark == resume.Mark.OPEN for is_held, mark in zip(held, marks, strict=True))
    return bytearray(is_wanted | is_held for is_wanted, is_held in zip(task.selection.wanted, held, strict=True))


def _kind(outcome: Outcome) -> str:
    """Return why a row has no answer, in a word: the HTTP status, or the provider's code for a row that never ran."""
    if outcome.status_code is not None or outcome.error is None:
        return str(outcome.status_code)
    return outcome.error.get("code") or "no_response"


def _result(task: Task, result: BatchResult, rows: _Rows, base_url: str, elapsed_s: float) -> RunResult:
    return replace(
        task.result(
            statuses=dict(sorted(rows.statuses.items())),
            errors=dict(sorted(rows.errors.items())),
            input_tokens=rows.input_tokens,
            output_tokens=rows.output_tokens,
            elapsed_s=elapsed_s,
            endpoints=[{"base_url": without_query(base_url), "direct": task.provider.is_direct(base_url)}],
            is_interrupted=result.is_interrupted,
            batch=result,
        ),
        in_batch=rows.in_batch,
    )
