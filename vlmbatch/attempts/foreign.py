"""Attempts that are not of the run: how they are told, whoever reads results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vlmbatch.errors import IntegrityError, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vlmbatch.attempts.shape import Outcome

NAMED: Final = 5
"""So many of them are named: one file of another run holds nothing else, and its first lines tell which it is."""


def foreign(outcome: Outcome, *, is_known: bool) -> Problem:
    """Return what is wrong with an attempt that is not of the run.

    Args:
        outcome: The attempt.
        is_known: Whether the manifest has its id, and only the line was another one.
    """
    if is_known:
        message = f"{outcome.custom_id} answers a line of another hash than ours"
        return Problem("foreign_line", message, outcome.file, outcome.line)
    return Problem("foreign_id", f"custom_id {outcome.custom_id!r} is not in the manifest", outcome.file, outcome.line)


def refuse_foreign(count: int, problems: Sequence[Problem]) -> None:
    """Refuse results among which there are such attempts.

    Args:
        count: How many there are; 0 = none, and nothing is refused.
        problems: The first of them at least.

    Raises:
        IntegrityError: There are some; the first few are named.
    """
    if count:
        raise IntegrityError(
            f"{count:,} line(s) are not answers to this run's requests",
            hint="results of another run were mixed in: name this run's files alone; nothing was written",
            problems=problems[:NAMED],
        )
