"""The last line of a result: the command that may come next, so that it can be pasted."""

from __future__ import annotations

import os
import re
import shlex
from typing import TYPE_CHECKING, Any

from vlmbatch.console import out, safe, say

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from vlmbatch.api.run import Run
    from vlmbatch.stages.collect import CollectResult
    from vlmbatch.stages.running.task import RunResult


def say_next(*words: str) -> None:
    """Print a command as a shell takes it; one with characters that a terminal does not show is left out."""
    if all(safe(word) == word for word in words):
        out(f"next: {shlex.join(words)}")


def say_collect(run: Run, *flags: str) -> None:
    """Print how the answers of a run are joined."""
    say_next("vlmbatch", "collect", run.path, *flags, "--write", os.path.join(run.path, "merged.jsonl"))


def after_run(run: Run, result: RunResult, typed: Sequence[str]) -> None:
    """Print what comes after run: the same command where rows are open, the rest after a limit, else collect.

    Args:
        run: The run.
        result: What came of the command.
        typed: The words behind ``vlmbatch run``.
    """
    batch = result.batch
    is_open = batch is not None and bool(batch.rows_open or batch.rows_waiting) and "--cancel" not in typed
    if is_open or result.is_interrupted or result.stopped:
        say_next("vlmbatch", "run", *_going_on(typed))
    elif not result.rehearsal and result.asked < run.info["counts"]["requests"] and _without_limit(typed) != [*typed]:
        say_next("vlmbatch", "run", *_going_on(_without_limit(typed)))
    else:
        mark = ["--rehearsal"] if result.rehearsal else []
        say_collect(run, *mark)


def _going_on(typed: Sequence[str]) -> list[str]:
    """Return the words of a command that goes on: ``--no-resume`` would pay for the answers so far once more."""
    return [word for word in typed if word not in {"--status", "--no-resume"}]


def _without_limit(typed: Sequence[str]) -> list[str]:
    before = ("", *typed)
    return [
        word
        for word, earlier in zip(typed, before, strict=False)
        if "--limit" not in {word, earlier} and not word.startswith("--limit=")
    ]


# --- after collect ---------------------------------------------------------------------------------------------------

_HTTP = re.compile(r"HTTP (\d{3})\b")
_ACCOUNT = frozenset({"401", "402", "403"})
"""Refusals that say nothing against the request: key, credit, rights."""


def after_collect(result: CollectResult, told: Container[str], flags: Sequence[str]) -> None:
    """Print what keeps the run from being whole, and the command that comes next.

    Args:
        result: What collect found.
        told: What was handed over (``report``, ``seal`` ...).
        flags: The words that decide what the records say.
    """
    run, summary = result.run, result.summary
    mark = ["--rehearsal"] if summary["rehearsal"] else []
    if not summary["attempts"]["total"] and not result.in_batch:
        _say_unsent(result)
        say_next("vlmbatch", "run", run.path, *mark)
        return
    account, frozen = _refused(summary)
    again = summary["worth_sending_again"] - result.in_batch
    for sentence in _left(result, again, account, frozen):
        say(sentence)
    if again or account:
        say_next("vlmbatch", "run", run.path, *mark)
    elif result.in_batch:
        say_next("vlmbatch", "run", run.path, "--channel", "batch")
    elif not frozen and not summary["needs_higher_limit"]:
        _say_delivery(result, told, flags)


def _say_unsent(result: CollectResult) -> None:
    """Say that there is nothing to collect yet, and what was left out where there are rehearsals."""
    if result.summary["rehearsal"]:
        say("no rehearsal is on record yet")
        return
    say("nothing was sent yet")
    rehearsed = len(result.run.results(rehearsal=True))
    if rehearsed:
        say(f"left out: {rehearsed:,} rehearsal file(s), which count for nothing; --rehearsal reads them alone")


def _refused(summary: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many requests were refused for the account's sake, and how many as they are, for good."""
    failed = sum(summary["counts"][status] for status in ("http_error", "network_error", "missing"))
    account = sum(cause["count"] for cause in summary["reasons"] if _code(cause) in _ACCOUNT)
    return account, max(failed - summary["worth_sending_again"] - account, 0)


def _code(cause: Mapping[str, Any]) -> str:
    """Return the HTTP status in the reason of a failure, empty where it names none."""
    found = _HTTP.match(cause["reason"]) if cause["status"] == "http_error" else None
    return found[1] if found else ""


def _left(result: CollectResult, again: int, account: int, frozen: int) -> Iterator[str]:
    """Yield what keeps the run from being whole, a sentence for each cause."""
    summary = result.summary
    if result.in_batch:
        yield f"{result.in_batch:,} request(s) are in open batch jobs"
    if again:
        yield f"{again:,} request(s) have no answer and are worth sending again"
    if account:
        yield f"{account:,} request(s) were refused for key, credit or rights: see to that, then send them again"
    if frozen:
        codes = sorted({code for cause in summary["reasons"] if (code := _code(cause)).startswith("4")} - _ACCOUNT)
        said = f" (HTTP {', '.join(codes)})" if codes else ""
        yield (
            f"{frozen:,} request(s) were refused as they are{said}: their bytes are frozen, so only a new build "
            "with another model or other parameters helps"
        )
    if capped := summary["needs_higher_limit"]:
        yield f"{capped:,} request(s) need a new run with a higher --max-tokens; --cap-ids FILE names them"


def _say_delivery(result: CollectResult, told: Container[str], flags: Sequence[str]) -> None:
    """Print what delivers a run that is whole; a rehearsal is followed by the run itself."""
    path, seal = result.run.path, result.seal
    is_handed_over = any(name in told for name in ("seal", "bag", "redact"))
    if result.summary["rehearsal"]:
        say_next("vlmbatch", "run", path)
    elif not is_handed_over and (seal is None or seal.problems):
        merged = os.path.join(path, "merged.jsonl")
        say_next("vlmbatch", "collect", path, *flags, "--write", merged, "--report", "--seal")
