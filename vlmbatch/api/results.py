"""What became of rows, in the shape that users of inference engines know; and how a run's records come into it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from vlmbatch.errors import InputError, Problem
from vlmbatch.inputs.memory import KIND
from vlmbatch.records import ErrorType, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from vlmbatch.api.run import Run
    from vlmbatch.records import Record

InferenceErrorType = ErrorType
"""Where a failure comes from; a str Enum."""

_BY_STATUS: Final = {
    Status.INVALID_JSON: ErrorType.PARSE_ERROR,
    Status.TRUNCATED: ErrorType.CONFIG,
    Status.EMPTY_AT_CAP: ErrorType.CONFIG,
    Status.EMPTY: ErrorType.ENGINE_FAILURE,
    Status.REFUSAL: ErrorType.ENGINE_FAILURE,
    Status.MISSING: ErrorType.RUNTIME,
}
"""Whose fault a row without a usable answer is, where no error was recorded: a limit that is too low is a setting's."""


@dataclass(frozen=True, slots=True)
class FailureDetail:
    """Why one row failed.

    Attributes:
        error_message: For people.
        status_code: HTTP status of the last try, None where no HTTP answer came or none is to blame.
        is_retryable: Whether the same row, sent again as it is, could succeed.
        error_type: Where the failure comes from.
    """

    error_message: str
    status_code: int | None = None
    is_retryable: bool = True
    error_type: InferenceErrorType = InferenceErrorType.UNKNOWN


@dataclass(frozen=True, slots=True)
class InferenceResult:
    """What became of some rows.

    Attributes:
        successful: Index and record of each row with a usable answer, ascending.
        failures: Why the others failed, by index.
    """

    successful: list[tuple[int, Record]]
    failures: dict[int, FailureDetail] = field(default_factory=dict)

    @property
    def failed_indices(self) -> list[int]:
        """Indices of the rows that failed, ascending."""
        return sorted(self.failures)

    @property
    def error_messages(self) -> dict[int, str]:
        """Why each of them failed, in words."""
        return {index: self.failures[index].error_message for index in self.failed_indices}

    @property
    def has_failures(self) -> bool:
        """Whether any row failed."""
        return bool(self.failures)


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What a provider's batch job came to, for the rows that were in it.

    Attributes:
        successful: Index and record of each row with a usable answer, ascending.
        failed_indices: Indices of the rows that failed, ascending.
        error_messages: Why, in words, by index.
    """

    successful: list[tuple[int, Record]]
    failed_indices: list[int]
    error_messages: dict[int, str]

    @property
    def has_failures(self) -> bool:
        """Whether any row failed."""
        return bool(self.failed_indices)


def sorted_out(run: Run, records: Iterable[Record], wanted: set[str] | None = None) -> InferenceResult:
    """Sort records into answers and failures, by the index of the row that each one's id stands for.

    Args:
        run: The run; its table has one row a line.
        records: Its records.
        wanted: Ids to look at, None = all, and the inputs that became no request too.
    """
    indices = {entry.custom_id: (entry.source_line or 0) - 1 for entry in run.manifest()}
    successful: list[tuple[int, Record]] = []
    failures: dict[int, FailureDetail] = {}
    for record in records:
        index = indices[record["custom_id"]]
        if wanted is not None and record["custom_id"] not in wanted:
            continue
        if record["status"] == Status.OK:
            successful.append((index, record))
        else:
            failures[index] = _failure(record)
    for rejection in run.rejected() if wanted is None else ():
        reason = rejection["reason"]
        failures[(rejection["source_line"] or 0) - 1] = _unusable(reason["code"], reason["message"])
    return InferenceResult(sorted(successful, key=lambda pair: pair[0]), dict(sorted(failures.items())))


def _failure(record: Record) -> FailureDetail:
    status, error, reason = Status(record["status"]), record["error"], record["reason"]
    message = f"{status}: {reason}" if reason else status.value
    if error is None:
        return FailureDetail(message, None, status is Status.MISSING, _BY_STATUS.get(status, ErrorType.UNKNOWN))
    known = error["type"] in set(ErrorType)
    kind = ErrorType(error["type"]) if known else ErrorType.UNKNOWN
    return FailureDetail(message, error["status_code"], error["is_retryable"], kind)


def _unusable(code: str, message: str) -> FailureDetail:
    return FailureDetail(f"{code}: {message}", None, False, ErrorType.CONFIG)


def all_failed(error: InputError, rows: int) -> dict[int, FailureDetail]:
    """Return every row's failure where no row could be used; raise again what is about something else, by indices."""
    found = {line - 1: _unusable(one.code, one.message) for one in error.problems for line in one.lines}
    if set(found) != set(range(rows)) or any(one.code == "duplicate_id" for one in error.problems):
        raise by_index(error) from None
    return dict(sorted(found.items()))


def by_index(error: InputError) -> InputError:
    """Return an error whose problems name rows as a program counts them: each row by itself, by its index."""
    if not any(one.where == KIND for one in error.problems):
        return error
    problems = [told for one in error.problems for told in _each_row(one)]
    return InputError(error.message, hint=error.hint, problems=problems)


def row_problem(index: int, code: str, message: str) -> Problem:
    """Return what is wrong with one row."""
    return Problem(code, message, f"row {index}")


def _each_row(problem: Problem) -> Iterator[Problem]:
    if problem.where != KIND or not problem.lines:
        yield problem
        return
    first, *others = (line - 1 for line in problem.lines)
    yield row_problem(first, problem.code, problem.message)
    for other in others:
        yield row_problem(other, problem.code, f"{problem.message} (as in row {first})")
