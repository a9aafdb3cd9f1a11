"""Image tokens from an image's size: a few rules, every constant in data/image_tokens.toml, with its source.

A *scheme* is a rule with constants, under the name that people know it by (``openai-tile``). A *model row* gives the
constants of some models. :func:`pick` chooses a scheme for a model and says how sure it is; what it returns counts.
No provider's name stands in this code: which models count how is data, and a user's own file may add to it.
A formula is a first look. The usage that a sample was billed replaces it.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from vlmbatch.errors import InputError
from vlmbatch.tokens.rules import RULES
from vlmbatch.tokens.table import AUTO, SURE, Row, Table, load

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "AUTO",
    "DEFAULT_FIXED_TOKENS",
    "FIXED",
    "SURE",
    "ImageTokens",
    "Scheme",
    "Spread",
    "Table",
    "load",
    "pick",
    "settings",
    "spread",
]

FIXED = "fixed"
DEFAULT_FIXED_TOKENS = 1000
"""Tokens of an image whose size nobody knows, and of every image under ``--scheme fixed``."""

_DEFAULT_TOLERANCE = 0.02
"""How far a bill may lie from an exact rule: sides round in ways that no page states."""

_DETAIL_PREFIX = "media_resolution_"


class ImageTokens(NamedTuple):
    """What one image costs.

    Attributes:
        tokens: Input tokens, without the markers that a chat template puts around an image.
        scheme: The scheme that counted.
        width: Columns in pixels of the picture that the model sees, None where the rule does not tell.
        height: Rows of that picture.
        refused: Why the model's own processor refuses such an image (``tokens`` is 0 then); empty = it takes it.
    """

    tokens: int
    scheme: str
    width: int | None = None
    height: int | None = None
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Scheme:
    """A way to count, settled for one model and one detail.

    Attributes:
        name: The scheme's name.
        rule: The rule's name.
        params: All constants.
        label: Whom the row that gave the constants is for.
        picked_by: ``user`` or ``model``.
        sure: One of :data:`SURE`.
        as_of: Year and month of the source.
        source: The page, the code, or the report.
        note: What to know about it, empty where there is nothing.
        tolerance: How far a bill may lie from the count, as a part of it.
        unknown_size_tokens: What an image of unknown size counts as.
    """

    name: str
    rule: str
    params: Mapping[str, Any]
    label: str = ""
    picked_by: str = "user"
    sure: str = "guess"
    as_of: str = ""
    source: str = ""
    note: str = ""
    tolerance: float = _DEFAULT_TOLERANCE
    unknown_size_tokens: int = DEFAULT_FIXED_TOKENS

    def count(self, width: int | None, height: int | None) -> ImageTokens:
        """Return what one image costs.

        Args:
            width: Columns in pixels of the image as it is sent, None where nobody knows.
            height: Rows.

        Raises:
            InputError: A side is not positive, or the scheme lacks a constant that its rule needs.
        """
        if width is None or height is None:
            return ImageTokens(self.unknown_size_tokens, FIXED)
        if width < 1 or height < 1:
            raise InputError(f"{width} x {height} is no size of an image", hint="give WIDTHxHEIGHT in pixels")
        try:
            seen = RULES[self.rule](width, height, **self.params)
        except (TypeError, ArithmeticError) as error:
            raise InputError(
                f"scheme {self.name}: {error}", hint="name a model that has a row, or a scheme file"
            ) from None
        return ImageTokens(seen.tokens, self.name, seen.width, seen.height, seen.refused)

    def describe(self) -> str:
        """Return in one line what was picked, by what, and how sure that is."""
        by = "by the model's name" if self.picked_by == "model" else "as asked"
        whom = f" for {self.label}" if self.label else ""
        note = f"; {self.note}" if self.note else ""
        return f"{self.name}{whom}, picked {by}; {self.sure}, as of {self.as_of or 'unknown'} ({self.source}){note}"


def pick(
    model: str,
    scheme: str = AUTO,
    *,
    detail: str | None = None,
    provider: str = "",
    table: Table | None = None,
    fixed_tokens: int = DEFAULT_FIXED_TOKENS,
) -> Scheme | None:
    """Choose how a model's images are counted.

    Args:
        model: The model's name, a vendor's prefix and a date around it do not matter; may be empty.
        scheme: A scheme's name, an alias, or ``auto``.
        detail: The image detail asked for, None = the provider's default.
        provider: Whose model it is; rows of the alias of that name are looked at before all others.
        table: What is known; None = the built-in table.
        fixed_tokens: Tokens of an image of unknown size, and of every image under ``fixed``.

    Returns:
        The scheme, or None where ``auto`` (or an alias) finds no row for the model.

    Raises:
        InputError: There is no scheme of that name.
    """
    table = table or load()
    if scheme != AUTO and scheme not in table.schemes and scheme not in table.aliases:
        raise InputError(f"--scheme {scheme}: no such scheme", hint=f"one of: {', '.join(table.names())}")
    level = _level(detail)
    row = _find(table, model, scheme, level, provider)
    if row is None:
        return None
    base = table.schemes[row.scheme]
    constants = _constants(table, row, level)
    if row.scheme == FIXED:
        constants.setdefault("tokens", fixed_tokens)
    return Scheme(
        row.scheme,
        base.rule,
        constants,
        label=row.label if row.match else "",
        picked_by="user" if scheme in table.schemes else "model",
        sure=row.sure,
        as_of=row.as_of or base.as_of,
        source=row.source or base.source,
        note=row.note or base.note,
        tolerance=row.tolerance or base.tolerance or _DEFAULT_TOLERANCE,
        unknown_size_tokens=fixed_tokens,
    )


def _constants(table: Table, row: Row, level: str) -> dict[str, Any]:
    """Return a row's constants at a detail, over those of its scheme."""
    base = table.schemes[row.scheme]
    own = {} if row is base else {**row.params, **_of_detail(row, level)}
    return {**base.params, **_of_detail(base, level), **own}


def _find(table: Table, model: str, scheme: str, level: str, provider: str) -> Row | None:
    """Return the row that decides: the first model row that fits, else the scheme's own where the user named it.

    Where nobody named a scheme, a user's own rows come first, then those of the provider, then all others.
    """
    is_named = scheme in table.schemes
    wanted = (scheme,) if is_named else table.aliases.get(scheme, tuple(table.schemes))
    fitting = [
        row
        for row in table.models
        if row.scheme in wanted and row.is_for(model) and (is_named or not row.details or level in row.details)
    ]
    family = table.aliases.get(provider, ()) if scheme == AUTO else ()
    if fitting:
        return min(fitting, key=lambda row: 0 if row.is_own or not family else row.scheme not in family)
    return table.schemes[scheme] if is_named else None


def _level(detail: str | None) -> str:
    """Return a detail in the table's words; nothing asked is ``default``."""
    return (detail or "default").lower().removeprefix(_DETAIL_PREFIX)


def _of_detail(row: Row, level: str) -> Mapping[str, Any]:
    """Return a row's constants for a detail; one that it does not know counts as its default."""
    value = row.detail.get(level, row.detail.get("default", {}))
    if isinstance(value, str):
        value = row.detail[value]
    taken: Mapping[str, Any] = value
    return taken


class Spread(NamedTuple):
    """The least and the most that any known scheme would give, for a model that no row is for."""

    low: int
    high: int


def spread(width: int | None, height: int | None, *, settings: Sequence[Scheme] | None = None) -> Spread:
    """Return the range of what schemes would give for a size: by default all that are built in.

    An image of unknown size, or one that every scheme refuses, gives ``Spread(0, 0)``.
    """
    if width is None or height is None:
        return Spread(0, 0)
    counts = [scheme.count(width, height).tokens for scheme in (_builtin_settings() if settings is None else settings)]
    taken = [tokens for tokens in counts if tokens]
    return Spread(min(taken, default=0), max(taken, default=0))


@functools.cache
def _builtin_settings() -> list[Scheme]:
    return settings()


def settings(table: Table | None = None, family: str = "") -> list[Scheme]:
    """Return every way to count that a table knows, each row's constants at its default detail.

    Args:
        table: What is known; None = the built-in table.
        family: An alias; only its schemes then, all where there is no such alias.
    """
    table = table or load()
    wanted = table.aliases.get(family) or tuple(table.schemes)
    found = []
    for row in (*table.schemes.values(), *table.models):
        rule, params = table.schemes[row.scheme].rule, _constants(table, row, "default")
        signature = inspect.signature(RULES[rule]).parameters.values()
        needed = {p.name for p in signature if p.kind is p.KEYWORD_ONLY and p.default is p.empty}
        if row.scheme in wanted and row.scheme != FIXED and needed <= set(params):
            found.append(Scheme(row.scheme, rule, params))
    return found
