"""Limits on money and tokens: what the next request may cost at worst has to fit into what is left.

What a request may cost is what a formula says of its own images and text, set right by the answers so far, no less than
the largest input seen, and the whole output limit. Spent is what the answers' usage says, over the whole run folder,
earlier runs included: the same command repeated does not spend the same budget again. A try that went out and brought
no answer may have been billed: it counts at its worst.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from decimal import Decimal

    from vlmbatch.prices import Rates
    from vlmbatch.records import Entry, Usage


class Reserve(NamedTuple):
    """Tokens set aside for one request in flight."""

    input_tokens: int
    output_tokens: int


class Budget:
    """Keeps count of tokens and money, and says whether one more request fits.

    Args:
        max_tokens: Input and output tokens of the run at most, None = no limit.
        max_usd: Money of the run at most, None = no limit.
        rates: Prices; needed for a limit on money.
        output_limit: The frozen limit of output tokens, None where the requests have none.
        count_tokens: Returns the input tokens that a row takes by formula; None = nobody can tell.
        is_rule_known: Whether that is the model's own formula; a guess has no say before the first answer.

    Attributes:
        input_tokens: Billed so far, as far as the provider said.
        output_tokens: Likewise, reasoning included.
        unknown: Tries that went out and brought no usage.
    """

    def __init__(
        self,
        *,
        max_tokens: int | None = None,
        max_usd: Decimal | None = None,
        rates: Rates | None = None,
        output_limit: int | None = None,
        count_tokens: Callable[[Entry], int] | None = None,
        is_rule_known: bool = True,
    ) -> None:
        self._max_tokens = max_tokens
        self._max_usd = max_usd
        self._rates = rates
        self._output_limit = output_limit
        self._count_tokens = count_tokens if self.is_limited else None
        self.input_tokens = self.output_tokens = self._cached_tokens = 0
        self.unknown = 0
        self._most_input = self._most_output = 0
        self._is_rule_known = is_rule_known
        self._counted = self._counted_used = 0
        self._held_input = self._held_output = self._held = 0

    @property
    def is_limited(self) -> bool:
        """Whether there is any limit to keep."""
        return self._max_tokens is not None or self._max_usd is not None

    @property
    def spent_usd(self) -> Decimal | None:
        """What the answers so far cost, None without prices; tries without usage are not in it."""
        if self._rates is None:
            return None
        return self._rates.of_tokens(self.input_tokens, self.output_tokens, self._cached_tokens)

    @property
    def mean_tokens(self) -> float:
        """Tokens that a request may take at worst, as far as is known: the guess for budgets per minute."""
        return float(self._most_input + self._most_output)

    def add(self, usage: Usage, entry: Entry | None = None) -> None:
        """Count one answer; the row that it is to, where it is at hand, shows how good the formula is."""
        used, made = usage["input_tokens"], usage["output_tokens"]
        if used is None and made is None:
            self.unknown += 1
            return
        self.input_tokens += used or 0
        self.output_tokens += made or 0
        self._cached_tokens += usage["cached_tokens"] or 0
        self._most_input = max(self._most_input, used or 0)
        self._most_output = max(self._most_output, made or 0)
        if used and entry is not None and self._count_tokens is not None:
            self._counted += self._count_tokens(entry)
            self._counted_used += used

    def add_unknown(self, tries: int = 1) -> None:
        """Count tries that may have been billed and brought no usage."""
        self.unknown += tries

    def worst(self, entry: Entry) -> Reserve:
        """Return what a row may take: no less than the largest input seen, and the whole output limit."""
        made = self._output_limit if self._output_limit is not None else self._most_output
        if self._count_tokens is None or not (self._counted or self._is_rule_known):
            return Reserve(self._most_input, made)
        ratio = self._counted_used / self._counted if self._counted else 1.0
        return Reserve(max(self._most_input, math.ceil(self._count_tokens(entry) * ratio)), made)

    def fits(self, entry: Entry) -> bool:
        """Return whether a row fits, beside those in flight and those that may have been billed unseen.

        While no input is known yet, one request goes alone, to learn it.
        """
        if not self.is_limited:
            return True
        if not self._most_input and self._held:
            return False
        worst = self.worst(entry)
        used = self.input_tokens + self._held_input + worst.input_tokens * (self.unknown + 1)
        made = self.output_tokens + self._held_output + worst.output_tokens * (self.unknown + 1)
        return self._is_within(used, made)

    @property
    def is_passed(self) -> bool:
        """Whether the answers took more than the limit: some row was larger than anything spoke for."""
        return not self._is_within(self.input_tokens, self.output_tokens)

    def _is_within(self, used: int, made: int) -> bool:
        if self._max_tokens is not None and used + made > self._max_tokens:
            return False
        if self._max_usd is None or self._rates is None:
            return True
        return self._rates.of_tokens(used, made, self._cached_tokens) <= self._max_usd

    def hold(self, entry: Entry) -> Reserve:
        """Set the worst aside for a row that is about to be sent."""
        worst = self.worst(entry)
        self._held += 1
        self._held_input += worst.input_tokens
        self._held_output += worst.output_tokens
        return worst

    def free(self, reserve: Reserve) -> None:
        """Take back what was set aside, once the request has ended."""
        self._held -= 1
        self._held_input -= reserve.input_tokens
        self._held_output -= reserve.output_tokens
