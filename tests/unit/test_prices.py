"""Prices: as typed, exact to the last digit, by channel, from flags, a file, or the last record."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmbatch import prices
from vlmbatch.errors import InputError
from vlmbatch.prices import Prices
from vlmbatch.records import ESTIMATE_SCHEMA, Usage, no_usage

if TYPE_CHECKING:
    from pathlib import Path

PRICE = st.decimals(0, 1000, places=4)
TOKENS = st.integers(0, 10**9)


def _parse(**values: Any) -> Prices:
    return Prices.parse({prices._KEYS[name]: value for name, value in values.items()}, where="here")


def _usage(used: int, made: int, cached: int = 0) -> Usage:
    return {**no_usage(), "input_tokens": used, "output_tokens": made, "cached_tokens": cached}


@given(price_in=PRICE, price_out=PRICE, used=TOKENS, made=TOKENS)
def test_cost_is_exact_and_adds_up(price_in: Decimal, price_out: Decimal, used: int, made: int) -> None:
    """Money is exact: a million answers cost a million times one."""
    known = Prices(price_in=price_in, price_out=price_out)
    one = prices.cost(_usage(used, made), known, "realtime")
    many = prices.cost(_usage(used * 1_000_000, made * 1_000_000), known, "realtime")
    assert one is not None
    assert many == one * 1_000_000 == price_in * used + price_out * made


def test_cost_of_cached_input_takes_its_own_price() -> None:
    """Cached tokens are part of the input and cost what the page says of them, or as much as the rest."""
    usage = _usage(1_000_000, 0, cached=400_000)
    plain, cached = _parse(price_in="2", price_out="8"), _parse(price_in="2", price_out="8", price_cached="0.5")
    assert prices.cost(usage, plain, "realtime") == 2
    assert prices.cost(usage, cached, "realtime") == Decimal("1.4")


def test_cost_over_batch_comes_from_discount_or_batch_prices() -> None:
    """The discount is what is taken off; a batch price that the page names stands over it."""
    usage = _usage(1_000_000, 1_000_000)
    assert prices.cost(usage, _parse(price_in="2", price_out="8"), "batch") is None
    assert prices.cost(usage, _parse(price_in="2", price_out="8", batch_discount="0.4"), "batch") == 6
    assert (
        prices.cost(usage, _parse(price_in="2", price_out="8", batch_discount="0.5", price_batch_out="3"), "batch") == 4
    )
    alone = _parse(price_batch_in="1", price_batch_out="4")
    assert prices.cost(usage, alone, "batch") == 5
    assert prices.cost(usage, alone, "realtime") is None


def test_cost_without_usage_is_unknown() -> None:
    """What a provider did not say is not taken for nothing."""
    assert prices.cost(no_usage(), _parse(price_in="2", price_out="8"), "realtime") is None


@pytest.mark.parametrize("text", ["2,50", "-1", "nan", "inf", "", "two", "1e30", True])
def test_price_that_is_none_is_refused(text: Any) -> None:
    """A price is a number of at least nothing, and none that no sum could hold; where it was said is named."""
    with pytest.raises(InputError, match=r"^here: price_in_usd_per_mtok: .* is not a price"):
        _parse(price_in=text)
    with pytest.raises(InputError, match=r"^--price-batch-in: .* is not a price"):
        Prices.typed(price_in="1", price_batch_in=text)


def test_discount_over_one_is_refused() -> None:
    """50 for 50 % would make the batch channel pay us."""
    with pytest.raises(InputError, match="not a part of 1"):
        _parse(batch_discount="50")


def test_record_round_trip_keeps_every_digit() -> None:
    """Prices come back from a record as they were typed."""
    known = _parse(
        price_in="2.50", price_out="10", batch_discount="0.50", price_source="https://x", price_date="2026-11-30"
    )
    assert known.as_record()["price_in_usd_per_mtok"] == "2.50"
    assert Prices.parse(known.as_record(), where="here") == known


def test_flags_stand_over_the_file(tmp_path: Path) -> None:
    """What was typed on the command line wins over the price file, key by key."""
    path = tmp_path / "prices.toml"
    path.write_text('price_in_usd_per_mtok = "2.50"\nprice_out_usd_per_mtok = 10\nprice_source = "page"\n')
    both = _parse(price_in="1").over(prices.read_file(str(path)))
    assert (both.price_in, both.price_out, both.price_source) == (Decimal(1), Decimal(10), "page")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("price_in = 2.5", "unknown price_in"),
        ("", "no prices"),
        ("{", "neither TOML nor JSON"),
        ("price_in_usd_per_mtok = 'x'", "not a price"),
    ],
)
def test_price_file_with_a_mistake_is_refused(tmp_path: Path, text: str, said: str) -> None:
    """A misspelt key would cost silently: it is refused."""
    path = tmp_path / "prices"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        prices.read_file(str(path))


@pytest.mark.parametrize("text", ['{"price_in_usd_per_mtok": "2.5"}', 'price_in_usd_per_mtok = "2.5"'])
def test_price_file_may_begin_with_a_byte_order_mark(tmp_path: Path, text: str) -> None:
    """As some editors save it."""
    path = tmp_path / "prices"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert prices.read_file(str(path)).price_in == Decimal("2.5")


def test_json_price_file_is_read(tmp_path: Path) -> None:
    """A price file may be JSON."""
    path = tmp_path / "prices.json"
    path.write_text('{"price_in_usd_per_mtok": 0.25, "price_out_usd_per_mtok": "2.00"}')
    assert prices.read_file(str(path)).price_in == Decimal("0.25")
    with pytest.raises(InputError, match="cannot be read"):
        prices.read_file(str(tmp_path / "nowhere"))


def test_last_prices_on_record_pass_over_lines_without_any(tmp_path: Path) -> None:
    """An estimate without prices does not take back the ones that were given before it; a torn line does no harm."""
    path = tmp_path / "estimates.jsonl"
    lines = [
        f'{{"schema":"{ESTIMATE_SCHEMA}","price_in_usd_per_mtok":"1","price_out_usd_per_mtok":"2"}}',
        f'{{"schema":"{ESTIMATE_SCHEMA}","price_in_usd_per_mtok":"3","price_out_usd_per_mtok":"4"}}',
        f'{{"schema":"{ESTIMATE_SCHEMA}","price_in_usd_per_mtok":null}}',
        '{"schema":"vlmb',
    ]
    path.write_text("\n".join(lines))
    last = prices.read_last(str(path))
    assert last is not None
    assert (last.price_in, last.price_out) == (3, 4)
    assert prices.read_last(str(tmp_path / "nowhere")) is None
