"""How the rehearsal provider misbehaves: a small JSON file, and draws that come out alike every time.

Whether the n-th try of a request fails follows from the seed, the request body's hash and n; what is wrong with its
answer follows from the seed and the hash alone. So the same run meets the same faults, in whatever order it is sent.
The file is described in docs/reference/faults.md.
"""

from __future__ import annotations

import difflib
import hashlib
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Literal, cast, get_args

from vlmbatch import jsonl
from vlmbatch.errors import InputError, Problem, cannot_read
from vlmbatch.rehearsal.answers import AnswerFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

TryFault = Literal["http_429", "http_500", "http_503", "reset", "html_200"]

BatchEnd = Literal["completed", "expired", "failed", "cancelled"]

TRY_FAULTS: Final[tuple[TryFault, ...]] = get_args(TryFault)
ANSWER_FAULTS: Final[tuple[AnswerFault, ...]] = get_args(AnswerFault)
BATCH_ENDS: Final[tuple[BatchEnd, ...]] = get_args(BatchEnd)


@dataclass(frozen=True, slots=True)
class BatchFaults:
    """What happens to batch jobs. Numbers count from the server's start.

    Attributes:
        looks: How often a job is looked at, by itself or in a list, until it has ended.
        end: How jobs end: ``completed``, ``expired`` (half of the rows done), ``failed`` or ``cancelled``.
        ends: Ends of the first jobs in order of their making; ``end`` holds for the others.
        fail_code: The code of a failed job's error (``token_limit_exceeded``, ``duplicate_custom_id`` ...).
        full_creates: How many creates are answered with 429 because the queue is full.
        lost_creates: How many creates make their job and then break the connection instead of answering.
        lost_uploads: How many uploads are kept and then break the connection instead of answering.
        upload_status: Status with which every upload is refused, None = uploads are taken.
        look_statuses: HTTP statuses with which the first looks at a job are answered (0 = the connection breaks).
        missing_rows: How many rows of each job are in neither file.
        repeat_rows: How many rows of each job stand twice in its output.
    """

    looks: int = 2
    end: BatchEnd = "completed"
    ends: tuple[BatchEnd, ...] = ()
    fail_code: str = "token_limit_exceeded"
    full_creates: int = 0
    lost_creates: int = 0
    lost_uploads: int = 0
    upload_status: int | None = None
    look_statuses: tuple[int, ...] = ()
    missing_rows: int = 0
    repeat_rows: int = 0


@dataclass(frozen=True, slots=True)
class Faults:
    """Everything that a faults file says.

    Attributes:
        seed: Start of all draws.
        rates: Share of requests by fault, 0 to 1; those of one kind (a try's, an answer's) add up to 1 at most.
        retry_after_s: The wait that a 429 names, None = it names none.
        latency_s: Least and most seconds before an answer.
        max_in_flight: Answer 429 to what comes while so many requests are open, None = take all.
        quota_after: Answer that the quota is used up after so many requests, None = never.
        batch: What happens to batch jobs.
    """

    seed: int = 0
    rates: Mapping[str, float] = field(default_factory=dict)
    retry_after_s: float | None = 1.0
    latency_s: tuple[float, float] = (0.0, 0.0)
    max_in_flight: int | None = None
    quota_after: int | None = None
    batch: BatchFaults = field(default_factory=BatchFaults)

    def for_try(self, digest: str, number: int) -> TryFault | None:
        """Return how the ``number``-th try (from 0) of the request with this body hash fails, None = it does not."""
        return cast("TryFault | None", self._draw(TRY_FAULTS, f"try:{digest}:{number}"))

    def for_answer(self, digest: str) -> AnswerFault | None:
        """Return what is wrong with the answer to the request with this body hash, None = nothing."""
        return cast("AnswerFault | None", self._draw(ANSWER_FAULTS, f"answer:{digest}"))

    def latency(self, digest: str, number: int) -> float:
        """Return the seconds before the answer to one try."""
        low, high = self.latency_s
        return low if high <= low else low + (high - low) * self.chance(f"latency:{digest}:{number}")

    def chance(self, what: str) -> float:
        """Return a number from 0 (included) to 1 (excluded) that depends on the seed and ``what`` alone."""
        return int.from_bytes(hashlib.sha256(f"{self.seed}:{what}".encode()).digest()[:8], "big") / 2**64

    def _draw(self, names: Iterable[str], what: str) -> str | None:
        if not self.rates:
            return None
        left = self.chance(what)
        for name in names:
            left -= self.rates.get(name, 0.0)
            if left < 0:
                return name
        return None


def load_faults(path: str) -> Faults:
    """Read a faults file.

    Raises:
        InputError: It cannot be read, is no JSON object, or holds a key or value that is not known.
    """
    try:
        with open(path, "rb") as file:
            value = jsonl.loads(file.read())
    except OSError as error:
        raise cannot_read(path, error) from None
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error})", hint="mend the file") from None
    return parse_faults(value, where=path)


def parse_faults(value: Any, *, where: str = "faults") -> Faults:
    """Check what a faults file holds and return it.

    Raises:
        InputError: It holds a key or value that is not known; all of them are listed.
    """
    checker = _Checker(where)
    faults = checker.faults(value)
    if checker.problems or faults is None:
        raise InputError(
            f"{where}: {len(checker.problems)} thing(s) wrong in this faults file",
            hint="docs/reference/faults.md lists what may stand in it",
            problems=checker.problems,
        )
    return faults


class _Checker:
    """Collects everything that is wrong with one faults file."""

    def __init__(self, where: str) -> None:
        self._where = where
        self.problems: list[Problem] = []

    def faults(self, value: Any) -> Faults | None:
        known = {one.name for one in fields(Faults)}
        found = self._keys(value, known, "")
        if found is None:
            return None
        readers: dict[str, Callable[[str, Any], Any]] = {
            "rates": self._rates,
            "latency_s": self._latency,
            "batch": self._batch,
        }
        made = {key: readers.get(key, self._scalar)(key, one) for key, one in found.items()}
        return Faults(**made) if not self.problems else None

    def _wrong(self, message: str) -> None:
        self.problems.append(Problem("bad_faults", message, self._where))

    def _keys(self, value: Any, known: set[str], prefix: str) -> dict[str, Any] | None:
        if not isinstance(value, dict):
            self._wrong(f"{prefix.rstrip('.') or 'the file'} must be a JSON object")
            return None
        for key in value.keys() - known:
            near = difflib.get_close_matches(key, known, 1)
            self._wrong(f"unknown key {prefix}{key}" + (f"; did you mean {near[0]}?" if near else ""))
        return {key: one for key, one in value.items() if key in known}

    def _rates(self, key: str, value: Any) -> Mapping[str, float]:
        rates = self._keys(value, {*TRY_FAULTS, *ANSWER_FAULTS}, f"{key}.") or {}
        for name, rate in rates.items():
            if not _is_number(rate) or not 0 <= rate <= 1:
                self._wrong(f"{key}.{name} must be a number from 0 to 1")
                return {}
        for names in (TRY_FAULTS, ANSWER_FAULTS):
            if sum(rates.get(name, 0) for name in names) > 1 + 1e-9:
                self._wrong(f"{key}: {', '.join(names)} must not add up to more than 1")
        return rates

    def _latency(self, key: str, value: Any) -> tuple[float, float]:
        if _is_number(value) and value >= 0:
            return float(value), float(value)
        found = self._keys(value, {"min", "max"}, f"{key}.") or {}
        low, high = found.get("min", 0.0), found.get("max", found.get("min", 0.0))
        if not _is_number(low) or not _is_number(high) or not 0 <= low <= high:
            self._wrong(f"{key} must be a number of seconds, or min and max with 0 <= min <= max")
            return 0.0, 0.0
        return float(low), float(high)

    def _batch(self, key: str, value: Any) -> BatchFaults:
        found = self._keys(value, {one.name for one in fields(BatchFaults)}, f"{key}.") or {}
        for name, one in list(found.items()):
            if name in {"end", "ends"}:
                ends = [one] if name == "end" else one
                if not isinstance(ends, list) or not all(end in BATCH_ENDS for end in ends):
                    self._wrong(f"{key}.{name} must be of {', '.join(BATCH_ENDS)}")
                found[name] = one if name == "end" else tuple(ends) if isinstance(ends, list) else ()
            elif name == "look_statuses":
                if not isinstance(one, list) or not all(_is_count(status) for status in one):
                    self._wrong(f"{key}.{name} must be a list of HTTP statuses (0 = the connection breaks)")
                found[name] = tuple(one) if isinstance(one, list) else ()
            elif name == "fail_code":
                if not isinstance(one, str):
                    self._wrong(f"{key}.{name} must be a text")
            elif not _is_count(one):
                self._wrong(f"{key}.{name} must be a whole number of at least 0")
        return BatchFaults(**found)

    def _scalar(self, key: str, value: Any) -> Any:
        if key == "retry_after_s":
            if value is not None and (not _is_number(value) or value < 0):
                self._wrong(f"{key} must be a number of seconds, or null for none")
        elif value is None and key != "seed":
            return None
        elif not _is_count(value):
            self._wrong(f"{key} must be a whole number of at least 0")
        return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
