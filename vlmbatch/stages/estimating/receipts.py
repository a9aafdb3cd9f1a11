"""Image receipts: does what was billed prove that each image arrived, whole?

A provider that tells image tokens apart settles it. Else the text's share of the input has to come off first, and
nobody knows it exactly: the rule for text gives a band that it must lie in, the rows among themselves narrow it down
(the share is the same for all, but for their own text), and where images differ in size, so does what is billed for
them. What none of these settles is said to be unclear, never passed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, median
from typing import TYPE_CHECKING, NamedTuple

from vlmbatch import tokens

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_LEAST_TEXT = 0.4
_MOST_TEXT = 1.6
_MOST_EXTRA = 128
"""The text's tokens lie between these parts of the rule's; templates, markers and schemas may add so many."""

_SLACK = 8
_SCATTERS = 4
_MOST_SCATTER = 0.05
_LEAST_AGREEING = 3
_LEAST_FOR_SLOPE = 4
_LEAST_SPREAD = 64


class Arrival(StrEnum):
    """What a receipt says."""

    ARRIVED = "arrived"
    MISSING = "missing"
    """What was billed is the text alone."""
    FEWER = "fewer"
    """Less was billed than the image takes: it was shrunk, or rows were crossed, or the formula is wrong."""
    MORE = "more"
    """More was billed: rows were crossed, or the formula is wrong."""
    UNCLEAR = "unclear"


class Bill(NamedTuple):
    """One row of the sample: what it should cost, and what it did.

    Attributes:
        custom_id: The row.
        formula: Tokens of its images by the formula.
        text: Tokens of its text by the rule.
        input_tokens: What was billed.
        image_tokens: What the provider says was the images' part, None where it does not.
    """

    custom_id: str
    formula: int
    text: float
    input_tokens: int
    image_tokens: int | None


class Receipt(NamedTuple):
    """What one row's bill proves. ``measured`` is the images' part of it, None where it cannot be told."""

    custom_id: str
    formula: int
    measured: int | None
    arrival: Arrival


@dataclass(frozen=True, slots=True)
class Receipts:
    """All receipts of a sample.

    Attributes:
        rows: One for each row with images, in the order given.
        text_tokens: The text's share that was taken off, per row on average; None where the provider tells image
            tokens apart for every row.
    """

    rows: list[Receipt]
    text_tokens: float | None

    def with_arrival(self, *arrivals: Arrival) -> list[Receipt]:
        """Return the receipts that say one of these."""
        return [row for row in self.rows if row.arrival in arrivals]

    @property
    def at_fault(self) -> list[Receipt]:
        """Receipts that are against the image."""
        return self.with_arrival(Arrival.MISSING, Arrival.FEWER, Arrival.MORE)


def check(bills: Sequence[Bill], scheme: tokens.Scheme | None) -> Receipts:
    """Return a receipt for each row; rows without images are left out.

    Args:
        bills: The rows.
        scheme: What the formula's tokens were counted by; a number that somebody chose proves nothing.
    """
    due = [bill for bill in bills if bill.formula > 0]
    if scheme is None or scheme.name == tokens.FIXED:
        return Receipts([_told_at_all(bill) for bill in due], None)
    noise = scheme.tolerance
    unsettled = [bill for bill in due if bill.image_tokens is None]
    share = _find_share(unsettled)
    rows = [_told(bill, noise) if bill.image_tokens is not None else _by_share(bill, share, noise) for bill in due]
    extra = share.extra if share.is_known else 0.0
    return Receipts(rows, fmean(bill.text + extra for bill in unsettled) if unsettled else None)


def _told_at_all(bill: Bill) -> Receipt:
    """Settle a row without a formula: image tokens of its own prove an image, none disprove it."""
    known = {None: Arrival.UNCLEAR, 0: Arrival.MISSING}
    return Receipt(bill.custom_id, bill.formula, bill.image_tokens, known.get(bill.image_tokens, Arrival.ARRIVED))


def _told(bill: Bill, noise: float) -> Receipt:
    """Settle a row whose image tokens the provider tells."""
    measured = bill.image_tokens or 0
    arrival = Arrival.MISSING if measured == 0 else _compare(measured, bill.formula, noise * bill.formula + _SLACK)
    return Receipt(bill.custom_id, bill.formula, measured, arrival)


def _compare(measured: float, formula: float, tolerance: float) -> Arrival:
    if abs(measured - formula) <= tolerance:
        return Arrival.ARRIVED
    return Arrival.FEWER if measured < formula else Arrival.MORE


class _Share(NamedTuple):
    """The text's part of the input, as far as the rows agree on it.

    Attributes:
        is_known: Whether enough rows agree.
        extra: What comes on top of the rule's text, the same for all rows.
        scatter: How far rows lie from it, as a rule.
        is_flat: Whether what is billed does not follow the images' size: then no row proves anything by itself.
    """

    is_known: bool
    extra: float
    scatter: float
    is_flat: bool


def _find_share(bills: Sequence[Bill]) -> _Share:
    follows = _follows_size(bills)
    sure = [bill for bill in bills if _alone(bill) is Arrival.ARRIVED]
    if follows:
        sure = [bill for bill in bills if _alone(bill) in {Arrival.ARRIVED, Arrival.UNCLEAR}]
    if len(sure) < _LEAST_AGREEING:
        return _Share(False, 0.0, 0.0, follows is False)
    extras = [_rest(bill) - bill.text for bill in sure]
    extra = median(extras)
    scatter = median(abs(one - extra) for one in extras)
    agree = follows is not False and scatter <= max(_SLACK, _MOST_SCATTER * median(bill.formula for bill in sure))
    return _Share(agree, extra, scatter, not agree)


def _by_share(bill: Bill, share: _Share, noise: float) -> Receipt:
    """Settle a row of which the provider tells the whole input alone."""
    if not share.is_known:
        arrival = _alone(bill)
        if share.is_flat and arrival is Arrival.UNCLEAR:
            arrival = Arrival.MISSING
        elif share.is_flat and arrival is Arrival.ARRIVED:
            arrival = Arrival.UNCLEAR
        left = None if arrival is Arrival.UNCLEAR else max(0, round(bill.input_tokens - bill.text))
        return Receipt(bill.custom_id, bill.formula, 0 if arrival is Arrival.MISSING else left, arrival)
    measured = max(0, round(bill.input_tokens - bill.text - share.extra))
    tolerance = _SLACK + _SCATTERS * share.scatter + noise * bill.formula
    if bill.formula <= tolerance:
        return Receipt(bill.custom_id, bill.formula, measured, Arrival.UNCLEAR)
    arrival = _compare(measured, bill.formula, tolerance)
    if arrival is Arrival.FEWER and measured <= tolerance:
        arrival = Arrival.MISSING
    return Receipt(bill.custom_id, bill.formula, measured, arrival)


def _rest(bill: Bill) -> int:
    """Return what is left for the text if the image was billed by the formula."""
    return bill.input_tokens - bill.formula


def _alone(bill: Bill) -> Arrival:
    """Judge a row by itself: is what the formula leaves a possible text, and is all of the input one?"""
    least, most = _LEAST_TEXT * bill.text, _MOST_TEXT * bill.text + _MOST_EXTRA
    is_whole = least <= _rest(bill) <= most
    is_bare = bill.input_tokens <= most
    if is_whole:
        return Arrival.UNCLEAR if is_bare else Arrival.ARRIVED
    if is_bare:
        return Arrival.MISSING
    return Arrival.FEWER if _rest(bill) < least else Arrival.MORE


def _follows_size(bills: Sequence[Bill]) -> bool | None:
    """Tell whether what is billed grows with the images as the formula has it; None where the rows do not tell."""
    if len(bills) < _LEAST_FOR_SLOPE or _spread(bill.formula for bill in bills) < _LEAST_SPREAD:
        return None
    size, used = fmean(bill.formula for bill in bills), fmean(bill.input_tokens - bill.text for bill in bills)
    square = sum((bill.formula - size) ** 2 for bill in bills)
    slope = sum((bill.formula - size) * (bill.input_tokens - bill.text - used) for bill in bills) / square
    if 0.8 <= slope <= 1.25:
        return True
    return False if abs(slope) <= 0.2 else None


def _spread(values: Iterable[int]) -> int:
    known = list(values)
    return max(known) - min(known)
