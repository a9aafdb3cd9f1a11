"""The table: which models count by which rule, with which constants, from which source of which date.

It is data/image_tokens.toml; a user's own file of the same form may stand over it, so that a new model needs no code.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vlmbatch import jsonl
from vlmbatch.errors import InputError, Problem, cannot_read
from vlmbatch.tokens.rules import RULES

if TYPE_CHECKING:
    from collections.abc import Mapping

AUTO = "auto"

SURE = ("documented", "computed", "reported", "inferred", "guess")
"""How sure a row is: the provider's own page; its reference code, run; a public report; by family; a guess."""

_KINDS: dict[str, type] = {
    "label": str,
    "params": dict,
    "detail": dict,
    "match": list,
    "details": list,
    "rule": str,
    "sure": str,
    "as_of": str,
    "source": str,
    "note": str,
    "tolerance": float,
}
_NAME_KEY = {"scheme": "name", "model": "scheme"}

_FILE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "data", "image_tokens.toml")


@dataclass(frozen=True, slots=True)
class Row:
    """A scheme, or a model row of one: constants and where they come from.

    Attributes:
        scheme: The scheme's name.
        label: Whom it is for, in words for people.
        params: Constants; a model row's stand over its scheme's.
        detail: Constants by image detail, or the name of another detail that this one equals.
        match: Patterns of model names; empty for a scheme's own row.
        details: Details at which ``auto`` takes this row; empty = at all.
        rule: The rule's name; empty in model rows.
        sure: One of :data:`SURE`.
        as_of: Year and month in which the source was read.
        source: The page, the code, or the report.
        note: What to know about it, empty where there is nothing.
        tolerance: How far a bill may lie from the count, as a part of it; 0 = as its scheme.
        is_own: Whether it is from a user's own file.
    """

    scheme: str
    label: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    detail: Mapping[str, Any] = field(default_factory=dict)
    match: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    rule: str = ""
    sure: str = "guess"
    as_of: str = ""
    source: str = ""
    note: str = ""
    tolerance: float = 0.0
    is_own: bool = False

    def is_for(self, model: str) -> bool:
        """Return whether a model's name is one of this row's, whatever stands before or behind it."""
        return any(_pattern(text).fullmatch(model) for text in self.match)


@functools.cache
def _pattern(text: str) -> re.Pattern[str]:
    """Compile a pattern so that a vendor's prefix, a date or a tag around the name do not matter."""
    return re.compile(rf"(?:.*[/:.@])?(?:{text})(?:-\d{{4}}-?\d\d-?\d\d|-latest)?(?:[:@].*)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Table:
    """Everything that is known of image tokens.

    Attributes:
        schemes: Each scheme's own row, by name.
        models: Model rows; the first that fits a model is the one.
        aliases: A name that stands for several schemes, of which the model decides.
    """

    schemes: Mapping[str, Row]
    models: tuple[Row, ...]
    aliases: Mapping[str, tuple[str, ...]]

    def names(self) -> list[str]:
        """Return what ``--scheme`` takes."""
        return [AUTO, *self.aliases, *self.schemes]


def load(extra: str | None = None) -> Table:
    """Return the table, with a user's file over it.

    Args:
        extra: A TOML file with ``[[scheme]]`` and ``[[model]]`` entries; its rows stand before ours.

    Raises:
        InputError: The file cannot be read, or its entries make no sense (all of them listed).
    """
    table = _builtin()
    if extra is None:
        return table
    try:
        with open(extra, "rb") as file:
            values = tomllib.loads(file.read().removeprefix(jsonl.BOM).decode("utf-8"))
    except OSError as error:
        raise cannot_read(f"--scheme-file {extra}", error) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"--scheme-file {extra}: not TOML ({error})", hint="mend the file") from None
    return _read(values, extra, table, is_own=True)


@functools.cache
def _builtin() -> Table:
    with open(_FILE, "rb") as file:
        return _read(tomllib.load(file), "image_tokens.toml", Table({}, (), {}))


def _read(values: dict[str, Any], where: str, under: Table, *, is_own: bool = False) -> Table:
    """Read entries and lay them over a table.

    Raises:
        InputError: Entries make no sense.
    """
    problems = [f"unknown key {key!r}" for key in values if key not in {"scheme", "model", "alias"}]
    entries = {kind: values.get(kind, []) for kind in ("scheme", "model")}
    problems += [
        f"{kind!r} is no list of entries, [[{kind}]]" for kind, found in entries.items() if not _is_list(found)
    ]
    aliases = values.get("alias", {})
    if not isinstance(aliases, dict) or not all(isinstance(names, list) for names in aliases.values()):
        problems.append("'alias' is no table of lists of schemes, [alias]")
    if not problems:
        problems = [problem for kind, found in entries.items() for one in found for problem in _misfits(one, kind)]
    if problems:
        raise _refusal(where, problems)
    schemes = dict(under.schemes) | {row.scheme: row for row in (_row(one, is_own) for one in entries["scheme"])}
    models = tuple(_row(one, is_own) for one in entries["model"])
    problems = [problem for row in (*schemes.values(), *models) for problem in _check(row, schemes)]
    problems += [
        f"alias {alias!r}: no scheme {name!r}"
        for alias, names in aliases.items()
        for name in names
        if name not in schemes
    ]
    if problems:
        raise _refusal(where, problems)
    aliases = {name: tuple(names) for name, names in aliases.items()}
    return Table(schemes, (*models, *under.models), {**under.aliases, **aliases})


def _refusal(where: str, problems: list[str]) -> InputError:
    return InputError(
        f"{where}: {len(problems)} mistake(s)",
        hint="references/image-tokens.md shows the form",
        problems=[Problem("scheme_file", message, where) for message in problems],
    )


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) for one in value)


def _misfits(entry: dict[str, Any], kind: str) -> list[str]:
    """Return what is wrong with the form of an entry: keys that there are not, values of another type."""
    key = _NAME_KEY[kind]
    who = str(entry.get(key, "an entry"))
    kinds = {**_KINDS, key: str}
    problems = [] if entry.get(key) else [f"{who} lacks {key!r}"]
    for name, value in entry.items():
        if name not in kinds:
            problems.append(f"{who}: unknown key {name!r}")
        elif not isinstance(value, kinds[name]):
            problems.append(f"{who}: {name} is {value!r}, not a {kinds[name].__name__}")
    return problems


def _row(entry: dict[str, Any], is_own: bool) -> Row:
    taken = {key: value for key, value in entry.items() if key in _KINDS}
    for key in ("match", "details"):
        taken[key] = tuple(map(str, taken.get(key, ())))
    return Row(entry.get("scheme") or entry["name"], **taken, is_own=is_own)


def _check(row: Row, schemes: Mapping[str, Row]) -> list[str]:
    """Return what is wrong with a row: its scheme, its rule, its constants, its patterns."""
    who = f"{row.scheme} ({row.label or ', '.join(row.match) or 'scheme'})"
    scheme = schemes.get(row.scheme)
    if scheme is None or scheme.rule not in RULES:
        return [f"{who}: no scheme of that name with a rule out of {', '.join(RULES)}"]
    problems = [] if row.sure in SURE else [f"{who}: sure is one of {', '.join(SURE)}"]
    for params in (row.params, *(value for value in row.detail.values() if isinstance(value, dict))):
        problems += [f"{who}: {problem}" for problem in _wrong_constants(params, scheme.rule)]
    problems += [
        f"{who}: detail {name!r} stands for {value!r}, which is not there"
        for name, value in row.detail.items()
        if not _is_detail(row, value)
    ]
    for text in row.match:
        try:
            _pattern(text)
        except re.error as error:
            problems.append(f"{who}: pattern {text!r}: {error}")
    return problems


def _wrong_constants(params: Mapping[str, Any], rule: str) -> list[str]:
    """Return what is wrong with some constants of a rule: names that it does not know, values of another kind."""
    known = inspect.signature(RULES[rule]).parameters
    problems = [f"rule {rule} has no constant {key!r}" for key in params if key not in known]
    return problems + [
        f"{key} is {value!r}, which rule {rule} cannot count with"
        for key, value in params.items()
        if key in known and not _is_constant(value, known[key].annotation)
    ]


def _is_detail(row: Row, value: Any) -> bool:
    """Tell whether what a row has for a detail is constants, or the name of a detail that is."""
    return isinstance(value, dict) or (isinstance(value, str) and isinstance(row.detail.get(value), dict))


def _is_constant(value: Any, annotation: str) -> bool:
    if annotation.startswith("Sequence"):
        return _is_pairs(value)
    if annotation == "bool":
        return isinstance(value, bool)
    kinds = int | float if annotation == "float" else int
    return isinstance(value, kinds) and not isinstance(value, bool) and 0 <= value < float("inf")


def _is_pairs(value: Any) -> bool:
    pairs = value if isinstance(value, list) else [None]
    return all(
        isinstance(pair, list) and len(pair) == 2 and all(_is_constant(n, "int") for n in pair) for pair in pairs
    )
