"""Inputs that became no request, as they are told: what differs in its line alone is told once, with all its lines."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import TYPE_CHECKING

from vlmbatch.errors import Problem
from vlmbatch.inputs.base import COLUMNS_HINT
from vlmbatch.providers import limits

if TYPE_CHECKING:
    from vlmbatch.inputs.base import Rejected

_MOST_KINDS = 1000
"""Different things that are told of one build; all are counted."""

_CONVERTIBLE = frozenset({"media_type", "animated"})
"""Why a provider refuses images that would pass as another file."""


class Refusals:
    """Bad inputs in input order, 8 bytes for each that is like an earlier one.

    Args:
        is_each_told: Whether the caller asks for every single one, however many there are.

    Attributes:
        count: How many there are.
    """

    def __init__(self, *, is_each_told: bool) -> None:
        self.count = 0
        self._most = float("inf") if is_each_told else _MOST_KINDS
        self._kinds: dict[tuple[str, str, str], tuple[Problem, array[int]]] = {}
        self._lacks_fields = False

    def add(self, rejected: Rejected) -> None:
        """Take in one."""
        self.count += 1
        self._lacks_fields |= bool(rejected.aside)
        line = rejected.source_line
        where = (rejected.path if line is None else rejected.where) or rejected.path
        kind = rejected.code, rejected.message, where
        if kind in self._kinds:
            first, again = self._kinds[kind]
            if line not in {None, again[-1] if again else first.line}:  # each output of a row is a request
                again.append(line or 0)
        elif len(self._kinds) < self._most:
            self._kinds[kind] = Problem(rejected.code, rejected.sentence, where, line), array("Q")

    def problems(self) -> list[Problem]:
        """Return what is to be told."""
        return [replace(first, again=tuple(again)) for first, again in self._kinds.values()]

    def way_out(self, *, is_all: bool, names_fields: bool, converts: bool) -> str:
        """Return what may be done about them.

        Args:
            is_all: Whether no input is left, so that there is nothing to go on with.
            names_fields: Whether the user named the fields of rows by flags.
            converts: Whether what the provider does not take is converted already.
        """
        codes = {code for code, _, _ in self._kinds}
        ways = {
            "mend them": True,
            **dict.fromkeys(limits.ways_out(codes), True),
            "--convert-unsupported converts what the provider does not take": not converts and codes & _CONVERTIBLE,
            COLUMNS_HINT: is_all and self._lacks_fields and names_fields,
            "say with --image-base-path where image paths start": is_all and codes == {"image_not_found"},
            "--skip-bad records them in rejected.jsonl and goes on": not is_all,
        }
        return ", or ".join(way for way, is_open in ways.items() if is_open)
