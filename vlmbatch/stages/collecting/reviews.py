"""What reviewers said of records: reviews.jsonl, exported by the report, read back in by collect."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from vlmbatch import jsonl, rundir
from vlmbatch.errors import InputError, IntegrityError, Problem, cannot_read
from vlmbatch.records import Review

if TYPE_CHECKING:
    from vlmbatch.rundir import RunDir
    from vlmbatch.stages.collecting.overlay import Ledger

_VERDICTS: Final = ("accept", "reject")


def load_reviews(run: RunDir, ledger: Ledger, path: str | None) -> dict[int, Review] | None:
    """Return the reviews by manifest line; of two reviews of one record the later counts.

    Args:
        run: The run.
        ledger: Its manifest.
        path: The file; None = reviews.jsonl of the run folder. Without one there: None.

    Raises:
        InputError: The file is not there, or lines of it are no reviews; all are listed.
        IntegrityError: A review is of a record that the run does not have.
    """
    name = path or run.file(rundir.REVIEWS)
    if path is None and not os.path.exists(name):
        return None
    reviews: dict[int, Review] = {}
    problems: list[Problem] = []
    strangers: list[Problem] = []
    try:
        for line in jsonl.iter_lines(name):
            value = jsonl.parse_object(line.data)
            review = _review(value or {})
            position = ledger.position(str((value or {}).get("custom_id")))
            if review is None:
                problems.append(Problem("review", "no review", name, line.number))
            elif position < 0:
                strangers.append(Problem("foreign_id", "custom_id is not in the manifest", name, line.number))
            else:
                reviews[position] = review
    except OSError as error:
        raise cannot_read(f"--reviews {name}", error) from None
    if problems:
        raise InputError(
            f"{len(problems)} line(s) of {name} are no reviews",
            hint='a line is {"custom_id": …, "verdict": "accept" or "reject", "comment": …}',
            problems=problems,
        )
    if strangers:
        raise IntegrityError(f"{len(strangers)} review(s) are of another run", problems=strangers)
    return reviews


def _review(value: dict[str, Any]) -> Review | None:
    verdict, comment = value.get("verdict"), value.get("comment") or ""
    if verdict not in _VERDICTS or not isinstance(comment, str) or not isinstance(value.get("custom_id"), str):
        return None
    return Review(verdict="accept" if verdict == "accept" else "reject", comment=comment)
