"""Prices as somebody typed them, and what usage costs at them. No price is built in, none is ever guessed.

Prices are USD per million tokens, as decimal strings on disk and :class:`~decimal.Decimal` in the program, so that
no sum is rounded. They stand in estimates.jsonl with the page and the day that they were read from.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, fields
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, NamedTuple

from vlmbatch import jsonl
from vlmbatch.errors import InputError, cannot_read, flag_of
from vlmbatch.records import ESTIMATE_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vlmbatch.records import Channel, Usage

_MILLION = Decimal(1_000_000)
_ONE = Decimal(1)
_DEAREST = Decimal(10**9)
"""Beyond it sums would outgrow the digits of a Decimal; nothing costs so much."""

_KEYS = {
    "price_in": "price_in_usd_per_mtok",
    "price_out": "price_out_usd_per_mtok",
    "price_cached": "price_cached_usd_per_mtok",
    "price_batch_in": "price_batch_in_usd_per_mtok",
    "price_batch_out": "price_batch_out_usd_per_mtok",
    "batch_discount": "batch_discount",
    "price_source": "price_source",
    "price_date": "price_date",
}
"""Field of :class:`Prices` → key in estimates.jsonl and in a price file."""

_TEXTS = frozenset({"price_source", "price_date"})


class Rates(NamedTuple):
    """What a million tokens cost over one channel, in USD."""

    input: Decimal
    output: Decimal
    cached: Decimal

    def cost(self, usage: Usage) -> Decimal | None:
        """Return what one answer costs, None where the provider did not say its tokens."""
        used, made = usage["input_tokens"], usage["output_tokens"]
        if used is None or made is None:
            return None
        return self.of_tokens(used, made, usage["cached_tokens"] or 0)

    def of_tokens(self, used: Decimal | int, made: Decimal | int, cached: Decimal | int) -> Decimal:
        """Return what tokens cost; ``used`` includes ``cached``, ``made`` includes reasoning."""
        return ((used - cached) * self.input + cached * self.cached + made * self.output) / _MILLION


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices of one model, as they were given.

    Attributes:
        price_in: USD for a million input tokens.
        price_out: USD for a million output tokens, reasoning included.
        price_cached: The same for input read from the provider's cache; None = as ``price_in``.
        price_batch_in: Input over the batch channel, where the page names it; None = by the discount.
        price_batch_out: Output over the batch channel, likewise.
        batch_discount: Part that the batch channel takes off: 0.5 = half price, 0.4 = 40 % off.
        price_source: The page that they were read on.
        price_date: The day that they were read.
    """

    price_in: Decimal | None = None
    price_out: Decimal | None = None
    price_cached: Decimal | None = None
    price_batch_in: Decimal | None = None
    price_batch_out: Decimal | None = None
    batch_discount: Decimal | None = None
    price_source: str | None = None
    price_date: str | None = None

    @classmethod
    def parse(cls, values: Mapping[str, Any], *, where: str) -> Prices:
        """Take prices from a price file or a line of estimates.jsonl; keys that are no prices are passed over.

        Args:
            values: Keys as in estimates.jsonl; values are decimal strings, or numbers.
            where: How messages name the place.

        Raises:
            InputError: A price is no number, or is negative, or the discount is not between 0 and 1.
        """
        named = {name: values.get(key) for name, key in _KEYS.items()}
        return cls._of(named, {name: f"{where}: {key}" for name, key in _KEYS.items()})

    @classmethod
    def typed(cls, **words: str | None) -> Prices:
        """Take prices from the user's flags, by the names of the fields; None = not said.

        Raises:
            InputError: As for :meth:`parse`.
        """
        return cls._of(words, {name: flag_of(name) for name in words})

    @classmethod
    def _of(cls, values: Mapping[str, Any], labels: Mapping[str, str]) -> Prices:
        taken = {
            name: str(value) if name in _TEXTS else parse_price(value, labels[name])
            for name, value in values.items()
            if value is not None
        }
        prices = cls(**taken)  # type: ignore[arg-type]  # the loop above gave each field its type
        if prices.batch_discount is not None and prices.batch_discount > 1:
            raise InputError(
                f"{labels['batch_discount']}: {prices.batch_discount} is not a part of 1",
                hint="0.5 means half price over the batch channel",
            )
        return prices

    def as_record(self) -> dict[str, str | None]:
        """Return the prices as estimates.jsonl has them: decimal strings, None = not given."""
        values = {key: getattr(self, name) for name, key in _KEYS.items()}
        return {key: None if value is None else str(value) for key, value in values.items()}

    def over(self, other: Prices) -> Prices:
        """Return these prices, with the other's where this one has none (flags over a price file)."""
        mine = {f.name: getattr(self, f.name) for f in fields(self)}
        return Prices(**{name: getattr(other, name) if value is None else value for name, value in mine.items()})

    def rates(self, channel: Channel) -> Rates | None:
        """Return what a million tokens cost over a channel, None where the prices given do not tell."""
        if channel == "realtime":
            return self._realtime()
        used, made = self.price_batch_in, self.price_batch_out
        rates = self._realtime()
        if rates is not None and self.batch_discount is not None:
            part = _ONE - self.batch_discount
            less = Rates(*(rate * part for rate in rates))
            return Rates(less.input if used is None else used, less.output if made is None else made, less.cached)
        return None if used is None or made is None else Rates(used, made, used)

    def _realtime(self) -> Rates | None:
        if self.price_in is None or self.price_out is None:
            return None
        return Rates(self.price_in, self.price_out, self.price_in if self.price_cached is None else self.price_cached)


def parse_price(value: Any, where: str) -> Decimal:
    """Return a price typed by a person.

    Raises:
        InputError: It is no number from 0 to a billion.
    """
    try:
        price = Decimal(str(value))
    except InvalidOperation:
        price = Decimal(-1)
    if not price.is_finite() or not 0 <= price <= _DEAREST:
        raise InputError(f"{where}: {value!r} is not a price", hint="give a number, such as 2.50 (USD)")
    return price


def cost(usage: Usage, prices: Prices, channel: Channel) -> Decimal | None:
    """Return what one answer costs in USD, None where usage or prices do not tell."""
    rates = prices.rates(channel)
    return None if rates is None else rates.cost(usage)


def read_last(path: str) -> Prices | None:
    """Return the prices of the last line of an estimates.jsonl that has any, None where nobody gave prices.

    Raises:
        InputError: A price in it is no number.
    """
    if not os.path.exists(path):
        return None
    last = None
    for line in jsonl.iter_lines(path):
        record = jsonl.parse_object(line.data)
        if record is not None and record.get("schema") == ESTIMATE_SCHEMA:
            prices = Prices.parse(record, where=os.path.basename(path))
            last = prices if prices.rates("realtime") or prices.rates("batch") else last
    return last


def read_file(path: str) -> Prices:
    """Return the prices of a price file: TOML or JSON with the keys of estimates.jsonl.

    Raises:
        InputError: It cannot be read, holds no prices or wrong ones, or a key that is none.
    """
    try:
        with open(path, "rb") as file:
            data = file.read().removeprefix(jsonl.BOM)
        values = jsonl.loads(data) if data.lstrip()[:1] == b"{" else tomllib.loads(data.decode("utf-8"))
    except OSError as error:
        raise cannot_read(f"--price-file {path}", error) from None
    except ValueError as error:
        raise InputError(f"--price-file {path}: neither TOML nor JSON ({error})", hint="mend the file") from None
    unknown = sorted(set(values) - set(_KEYS.values()))
    if unknown or not values:
        raise InputError(
            f"--price-file {path}: {'no prices' if not values else 'unknown ' + ', '.join(unknown)}",
            hint=f"the keys are {', '.join(_KEYS.values())}",
        )
    return Prices.parse(values, where=path)
