"""What a program hears of a run: attempts with their verdicts, inputs that were left out, its own functions called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypedDict, TypeVar

from vlmbatch import attempts, jsonl, rundir
from vlmbatch.attempts import Reader
from vlmbatch.errors import IntegrityError
from vlmbatch.providers import get
from vlmbatch.records import Event

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vlmbatch.attempts import Outcome
    from vlmbatch.records import Reading, Verdict
    from vlmbatch.rundir import RunDir
    from vlmbatch.stop import Stop

_T = TypeVar("_T")


class Judged(NamedTuple):
    """One attempt: as the results file has it, as the provider's adapter reads it, and what became of the request."""

    outcome: Outcome
    reading: Reading
    verdict: Verdict


class RejectionReason(TypedDict):
    """Why an input could not become a request."""

    code: str
    message: str


class Rejection(TypedDict):
    """One line of rejected.jsonl. ``source_line`` is the 1-based row of a table, None for files."""

    schema: str
    index: int
    source_line: int | None
    path: str | None
    reason: RejectionReason


class Judge:
    """Judges outcomes of one run, by what each of its outputs asked for.

    Attributes:
        provider: The adapter of the run's provider.
    """

    def __init__(self, folder: RunDir) -> None:
        self.provider = get(folder.info["provider"], folder.info["request"]["url"])
        self._index = folder.index()
        self._asked = attempts.asked_by_output(folder, self.provider)
        self._output = [entry.output for entry in folder.iter_entries()] if len(self._asked) > 1 else []

    def __call__(self, outcome: Outcome) -> Judged:
        """Judge one.

        Raises:
            IntegrityError: It is of another run.
        """
        position = self._index.position(outcome.custom_id, outcome.line_sha256)
        if position < 0:
            raise IntegrityError(
                f"{outcome.file}:{outcome.line}: {outcome.custom_id!r} is not an id of this run",
                hint="results of another run were mixed in: move that file out of results/",
            )
        asked = self._asked[self._output[position] if self._output else ""]
        return Judged(outcome, *attempts.judge(outcome, self.provider, asked))


class Hearing:
    """Calls the caller's functions while rows are sent; what one of them raises stops the sending in good order.

    Args:
        stop: Asked then; the functions are not called any more.
    """

    def __init__(self, stop: Stop) -> None:
        self._stop = stop
        self._error: BaseException | None = None

    def of(self, function: Callable[[_T], object]) -> Callable[[_T], None]:
        """Return what calls a function of one argument."""

        def call(what: _T) -> None:
            if self._error is not None:
                return
            try:
                function(what)
            except BaseException as error:
                self._error = error
                self._stop.ask()
                if not self._stop.is_heeded:  # nothing is in flight yet
                    raise

        return call

    def of_attempts(self, folder: RunDir, function: Callable[[Judged], object]) -> Callable[[Sequence[bytes]], None]:
        """Return what calls a function with each attempt of some written lines."""
        judge = Judge(folder)
        reader = Reader(folder.file(rundir.RESULTS), folder, judge.provider)

        def call(lines: Sequence[bytes]) -> None:
            for line in lines:
                outcome = reader.read(jsonl.loads(line), 0)
                if outcome is not None:
                    function(judge(outcome))

        return self.of(call)

    def raise_again(self) -> None:
        """Raise what a function raised, if one did."""
        if self._error is not None:
            raise self._error


def teller(
    kind: Literal["note", "warning"], stage: str, on_event: Callable[[Event], object] | None
) -> Callable[[str], object]:
    """Return what tells a sentence as an event."""
    return lambda sentence: on_event(Event(kind, stage, sentence)) if on_event else None
