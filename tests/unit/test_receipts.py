"""Image receipts: what bills prove, and what they do not."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmbatch import tokens
from vlmbatch.stages.estimating import receipts
from vlmbatch.stages.estimating.receipts import Arrival, Bill

SIZES = (200, 765, 1105, 2300, 425, 630)


def _bills(
    billed: list[int], formula: list[int], text: float = 40.0, told: list[int | None] | None = None
) -> list[Bill]:
    told = told or [None] * len(billed)
    return [Bill(f"r{i}", f, text, b, t) for i, (b, f, t) in enumerate(zip(billed, formula, told, strict=True))]


def _check(bills: list[Bill], scheme: str = "openai-tile") -> receipts.Receipts:
    return receipts.check(bills, tokens.pick("", scheme))


def _arrivals(bills: list[Bill]) -> list[Arrival]:
    return [row.arrival for row in _check(bills).rows]


def test_image_billed_by_formula_has_arrived() -> None:
    """14 text tokens and 765 for the picture: nothing to remark."""
    assert _arrivals(_bills([779], [765], text=13)) == [Arrival.ARRIVED]


def test_image_billed_as_text_alone_is_missing() -> None:
    """14 tokens in all for a picture of 765: it never reached the model."""
    found = _check(_bills([14], [765], text=13))
    assert [(row.arrival, row.measured) for row in found.rows] == [(Arrival.MISSING, 0)]
    assert found.at_fault == found.rows


def test_tokens_told_apart_settle_it_whatever_the_text() -> None:
    """A provider that counts image tokens apart needs no guess about the text."""
    bills = _bills([5000] * 4, [765] * 4, text=1.0, told=[765, 0, 300, 1400])
    assert _arrivals(bills) == [Arrival.ARRIVED, Arrival.MISSING, Arrival.FEWER, Arrival.MORE]
    assert _check(bills).text_tokens is None


def test_constant_share_is_found_among_the_rows() -> None:
    """A chat template's tokens are no fault: they are the same for all rows."""
    formula = [SIZES[i % len(SIZES)] for i in range(30)]
    found = _check(_bills([f + 40 + 85 for f in formula], formula))
    assert not found.at_fault
    assert found.text_tokens == pytest.approx(125)
    assert [row.measured for row in found.rows] == formula


def test_shrunk_and_crossed_rows_are_listed() -> None:
    """One image shrunk by the server and two rows crossed stand out against the others."""
    formula = [SIZES[i % len(SIZES)] for i in range(30)]
    billed = [f + 60 for f in formula]
    billed[3] = 400 + 60
    billed[7], billed[8] = billed[8], billed[7]
    found = _check(_bills(billed, formula))
    assert [(row.custom_id, row.arrival) for row in found.at_fault] == [
        ("r3", Arrival.FEWER),
        ("r7", Arrival.MORE),
        ("r8", Arrival.FEWER),
    ]


def test_one_lost_image_among_many_is_missing() -> None:
    """A row that was billed as its text alone is found among whole ones."""
    formula = [765] * 20
    billed = [765 + 60] * 20
    billed[11] = 60
    found = _check(_bills(billed, formula))
    assert [(row.custom_id, row.arrival, row.measured) for row in found.at_fault] == [("r11", Arrival.MISSING, 0)]


def test_all_images_lost_is_seen_though_the_rows_agree() -> None:
    """Rows that agree on text alone prove that no image arrived, not that all did."""
    formula = [SIZES[i % len(SIZES)] for i in range(30)]
    assert set(_arrivals(_bills([45] * 30, formula))) == {Arrival.MISSING}


def test_long_text_hides_a_lost_image_only_where_sizes_do_not_differ() -> None:
    """With a long prompt and images of one size nothing can be told; images of several sizes tell."""
    text = 3000.0
    assert set(_arrivals(_bills([2200] * 12, [765] * 12, text=text))) == {Arrival.UNCLEAR}
    formula = [SIZES[i % len(SIZES)] for i in range(12)]
    assert set(_arrivals(_bills([2200] * 12, formula, text=text))) == {Arrival.MISSING}
    assert set(_arrivals(_bills([2200 + f for f in formula], formula, text=text))) == {Arrival.ARRIVED}


def test_bill_that_ignores_size_is_not_passed() -> None:
    """Every image billed alike though they differ: the formula is wrong or the server shrinks, so nothing is proven."""
    formula = [SIZES[i % len(SIZES)] for i in range(24)]
    assert Arrival.ARRIVED not in _arrivals(_bills([700 + 40] * 24, formula))


def test_rows_without_images_have_no_receipt() -> None:
    """Text rows are left out."""
    assert _check(_bills([50, 60], [0, 0])).rows == []
    assert _check([]) == receipts.Receipts([], None)


@given(
    extra=st.integers(-10, 100),
    noise=st.integers(0, 4),
    formula=st.lists(st.integers(300, 4000), min_size=4, max_size=40),
    seed=st.integers(0, 1000),
)
def test_whole_images_are_never_accused(extra: int, noise: int, formula: list[int], seed: int) -> None:
    """Whatever the sizes, a constant share and a little noise in the text make no image suspect."""
    rng = random.Random(seed)
    bills = _bills([f + 50 + extra + rng.randint(-noise, noise) for f in formula], formula, text=50.0)
    assert _check(bills).at_fault == []


@given(formula=st.lists(st.integers(400, 4000), min_size=1, max_size=40), text=st.integers(10, 100))
def test_lost_images_are_never_passed(formula: list[int], text: int) -> None:
    """Whatever the sizes, bills of text alone never count as arrived."""
    found = _check(_bills([text] * len(formula), formula, text=float(text)))
    assert {row.arrival for row in found.rows} <= {Arrival.MISSING, Arrival.FEWER, Arrival.UNCLEAR}


def test_receipts_do_not_depend_on_order() -> None:
    """The same bills in another order give the same receipts."""
    rng = random.Random(3)
    bills: list[Any] = _bills([rng.randint(40, 2500) for _ in range(30)], [rng.choice(SIZES) for _ in range(30)])
    there = {row.custom_id: row for row in _check(bills).rows}
    rng.shuffle(bills)
    assert {row.custom_id: row for row in _check(bills).rows} == there


def test_rule_that_is_called_approximate_allows_more() -> None:
    """A budget that the page calls approximate may be billed some per cent off; an exact rule may not."""
    bills = _bills([5000] * 2, [1120] * 2, told=[1060, 700])
    assert [row.arrival for row in _check(bills, "gemini-media-resolution").rows] == [Arrival.ARRIVED, Arrival.FEWER]
    assert _arrivals(bills)[0] is Arrival.FEWER


@pytest.mark.parametrize("scheme", ["fixed", "auto"])
def test_number_that_somebody_chose_accuses_nobody(scheme: str) -> None:
    """Without a formula only a provider's own word on image tokens proves anything."""
    bills = _bills([14, 779, 779, 779], [1000] * 4, told=[None, None, 0, 765])
    found = [row.arrival for row in _check(bills, scheme).rows]
    assert found == [Arrival.UNCLEAR, Arrival.UNCLEAR, Arrival.MISSING, Arrival.ARRIVED]
