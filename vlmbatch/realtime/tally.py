"""What a run counts while it sends: rows by status, errors by kind, tokens, tries."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vlmbatch.records import MODEL_ANSWERS, Status

if TYPE_CHECKING:
    from vlmbatch.records import Usage


@dataclass(slots=True)
class Tally:
    """Counts of this run alone.

    Attributes:
        statuses: Rows that ended, by status.
        errors: Rows that ended without an answer, by kind (the HTTP status, or our code for the network).
        tries: Requests sent.
        input_tokens: Tokens of the answers, as far as the provider said.
        output_tokens: Likewise, reasoning included.
        started_s: When sending began, by the monotonic clock.
        ended_s: When it ended.
    """

    statuses: Counter[Status] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    tries: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    started_s: float = field(default_factory=time.monotonic)
    ended_s: float | None = None

    @property
    def ended(self) -> int:
        """Rows that ended, with an answer or without."""
        return sum(self.statuses.values())

    @property
    def answers(self) -> int:
        """Rows that the model answered."""
        return sum(count for status, count in self.statuses.items() if status in MODEL_ANSWERS)

    @property
    def elapsed_s(self) -> float:
        """Seconds of sending so far, or in all."""
        return (time.monotonic() if self.ended_s is None else self.ended_s) - self.started_s

    @property
    def requests_per_s(self) -> float:
        """Rows ended per second."""
        return self.ended / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second, input and output."""
        tokens = self.input_tokens + self.output_tokens
        return tokens / self.elapsed_s if self.elapsed_s > 0 else 0.0

    def add(self, status: Status, kind: str | None) -> None:
        """Count one row that ended; ``kind`` says what went wrong where nothing was answered."""
        self.statuses[status] += 1
        if kind is not None:
            self.errors[kind] += 1

    def add_usage(self, usage: Usage) -> None:
        """Count an answer's tokens."""
        self.input_tokens += usage["input_tokens"] or 0
        self.output_tokens += usage["output_tokens"] or 0
