"""The exceptions of vlmbatch, drawn as one tree; each class knows its exit status.

::

    VlmbatchError              base, never raised itself
    ├─ InputError          2   wrong usage or bad input; nothing was written
    │   └─ SchemaVersionError  a file written by a newer major version of its schema
    ├─ IntegrityError      3   bytes, hashes or ids disagree; nothing was sent
    ├─ RefusedError        4   the provider refused the whole run (key, quota, credit, model)
    ├─ CheckFailed         1   the work is done, a check that was asked for does not hold
    └─ Interrupted       130   the user stopped it; what was done is saved

An exception holds data: what, where, what to do next. Only the console makes sentences with colour of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHOWN_LINES = 3


class Exit(IntEnum):
    """The exit statuses that all four commands share (docs/reference/exit-codes.md)."""

    DONE = 0
    CHECK_FAILED = 1
    BAD_INPUT = 2
    INTEGRITY = 3
    REFUSED = 4
    FAULT = 70
    INTERRUPTED = 130
    BROKEN_PIPE = 141


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, so that all of them can be listed at once.

    Attributes:
        code: Stable name for programs, such as ``not_an_image``; an open list, documented in docs/reference.
        message: What is wrong, in a few words, without the place.
        where: File, row or field at fault; empty where there is no place to name.
        line: 1-based line of the input file as an editor counts, or None.
        again: Further lines of the same file of which the same is to be said.
    """

    code: str
    message: str
    where: str = ""
    line: int | None = None
    again: tuple[int, ...] = ()

    @property
    def lines(self) -> tuple[int, ...]:
        """All lines that it is about, none where it is about no line."""
        return self.again if self.line is None else (self.line, *self.again)

    @property
    def sentence(self) -> str:
        """The message, and on which further lines the same holds: the first few of them, and how many there are."""
        if not self.again:
            return self.message
        shown = ", ".join(map(str, self.again[:_SHOWN_LINES]))
        more = len(self.again) - _SHOWN_LINES
        lines = f"{'line' if len(self.again) == 1 else 'lines'} {shown}{f' and {more:,} more' if more > 0 else ''}"
        return f"{self.message} (also {lines})"

    def __str__(self) -> str:
        place = ":".join(str(p) for p in (self.where, self.line) if p not in {"", None})
        return f"{place}: {self.sentence}" if place else self.sentence


class VlmbatchError(Exception):
    """Base of every error that vlmbatch raises on purpose.

    Args:
        message: What is wrong and where, in one line without a final period.
        hint: What to do next, in one line; empty where there is nothing to add.
        problems: Everything of the kind that was found, in input order.
    """

    exit_code: ClassVar[Exit] = Exit.FAULT
    code: ClassVar[str] = "error"

    def __init__(self, message: str, *, hint: str = "", problems: Sequence[Problem] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.problems = tuple(problems)


class InputError(VlmbatchError):
    """Wrong usage or bad input: nothing was written."""

    exit_code = Exit.BAD_INPUT
    code = "bad_input"


def counted(number: int, words: str) -> str:
    """Return a number with what it counts: where ``[one|many]`` stands, the words for one, or for many (and none).

    ``counted(1, "[row is|rows are] open")`` is ``1 row is open``.
    """
    return f"{number:,} " + re.sub(r"\[([^][|]*)\|([^][|]*)\]", r"\1" if number == 1 else r"\2", words)


def flag_of(name: str) -> str:
    """Return the flag of the command line that sets an option of this name."""
    return f"--{name.replace('_', '-')}"


def cannot_read(what: str, error: OSError) -> InputError:
    """Return the error of a file that the user named and that the system does not give.

    Args:
        what: The file, with the flag that named it where there is one.
        error: What the system said.
    """
    return InputError(f"{what}: cannot be read ({error.strerror or error})", hint="check the path")


class SchemaVersionError(InputError):
    """A file was written by a newer major version of its schema than this program reads."""

    code = "newer_schema"


class IntegrityError(VlmbatchError):
    """Bytes, hashes or ids do not agree: nothing was sent, nothing was written over."""

    exit_code = Exit.INTEGRITY
    code = "integrity"


class RefusedError(VlmbatchError):
    """The provider refused the whole run: key, quota, credit or model."""

    exit_code = Exit.REFUSED
    code = "refused"


class CheckFailed(VlmbatchError):  # noqa: N818  (a verdict, not a fault)
    """The work is done and sound, but a check that the user asked to hold does not."""

    exit_code = Exit.CHECK_FAILED
    code = "check_failed"


class Interrupted(VlmbatchError):  # noqa: N818  (a wish, not a fault)
    """The user stopped the work; what was done is saved."""

    exit_code = Exit.INTERRUPTED
    code = "interrupted"
