"""What a person reads when vlmbatch run has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlmbatch.cli.onward import after_run
from vlmbatch.cli.run_batch import print_batch
from vlmbatch.console import duration, out, safe, say
from vlmbatch.errors import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vlmbatch.api.run import Run
    from vlmbatch.stages.running.task import RunResult


def show(run: Run, result: RunResult, typed: Sequence[str]) -> None:
    """Say what came of it: rows, speed, tokens, concurrency, and what one may do next.

    Args:
        run: The run.
        result: What came of the command.
        typed: The words behind ``vlmbatch run``.
    """
    if result.pending is not None:
        say(f"{counted(result.to_send, '[line|lines]')} still to be sent: {safe(result.pending)}")
        return
    if result.rehearsal:
        say("rehearsal: nothing left this machine, and nothing of it counts")
    if result.batch is not None:
        print_batch(result.batch)
    _print_rows(result)
    if result.tries:
        _print_figures(result)
    for endpoint in result.endpoints:
        if not endpoint["direct"] and not result.rehearsal:
            where = safe(endpoint["base_url"])
            say(f"endpoint: {where} is a relay, not the provider's own address: scores do not compare")
    if result.lost_lines:
        say(f"lost: {counted(result.lost_lines, '[answer|answers]')} could not be written")
    out(f"fingerprint: {run.fingerprint}")
    after_run(run, result, typed)


def _print_rows(result: RunResult) -> None:
    left = [
        (result.answered_before, "had an answer"),
        (result.failed_before, "had a final error"),
        (result.in_batch, "[is|are] in an open batch job"),
    ]
    before = ", ".join(counted(count, words) for count, words in left if count)
    say(f"rows: {result.asked:,} asked for" + (f"; left alone: {before}" if before else ""))
    ended = ", ".join(f"{count:,} {status}" for status, count in result.statuses.items())
    errors = ", ".join(f"{kind}: {count:,}" for kind, count in result.errors.items())
    say(f"now: {ended or 'nothing was sent'}" + (f" ({errors})" if errors else ""))
    if result.without_answer:
        say(f"without an answer: {result.without_answer:,}")


def _print_figures(result: RunResult) -> None:
    reached = result.concurrency
    cost = "" if result.spent_usd is None else f"; {result.spent_usd:.4f} USD at the prices on record"
    say(
        f"speed: {result.requests_per_s:.1f} requests/s over {duration(result.elapsed_s)}, "
        f"{counted(result.tries, '[try|tries]')}; "
        f"concurrency {reached['asked']:.0f} asked, {reached['peak']:.0f} at most, {reached['mean']:.1f} on average"
    )
    say(f"tokens: {result.input_tokens:,} in, {result.output_tokens:,} out{cost}")
    say(f"results: {safe(result.results or '')}")
