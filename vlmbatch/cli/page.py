"""How a help screen looks: one layout in two dresses, plain for pipes and programs, framed on a terminal.

Nothing is ever cut: what does not fit on a line goes on in the next one.
"""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, NamedTuple

from vlmbatch.console import has_colour, is_terminal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_NARROWEST, _WIDEST = 50, 100


class Part(NamedTuple):
    """A part of a screen under its title: rows of a label and its words, or paragraphs, one a line."""

    title: str
    rows: Sequence[tuple[str, str]] = ()
    text: str = ""


class Screen(NamedTuple):
    """A help screen, from top to bottom."""

    description: str
    usage: str
    arguments: Sequence[tuple[str, str]]
    examples: Sequence[str]
    parts: Sequence[Part]


def draw(screen: Screen, *, is_airy: bool = False) -> str:
    """Return a screen as text without a line feed at its end, as wide as the terminal (50 to 100 columns).

    Args:
        screen: What it says.
        is_airy: Whether plain parts stand apart by an empty line.
    """
    width = _columns()
    lines = [*_wrap(screen.description, width), "", *_wrap(f"Usage: {screen.usage}", width, indent="       ")]
    lines += [f"  {line}" for line in _rows(screen.arguments, width - 2, _column(screen.arguments))]
    lines += ["", "Examples:"]
    lines += [f"  {line}" for example in screen.examples for line in shell_lines(example, width - 2)]
    column = _column([row for part in screen.parts for row in part.rows])
    inner = width - 4
    laid = [
        (part.title, [*_wrap(part.text, inner, indent="  "), *_rows(part.rows, inner, column)]) for part in screen.parts
    ]
    if is_terminal(sys.stdout) and has_colour(sys.stdout) and "utf" in sys.stdout.encoding.lower():
        return _coloured("\n".join([*lines, *_framed(laid, width)]))
    return "\n".join([*lines, *_plain(laid, is_airy=is_airy)])


def room(labels: Iterable[str]) -> int:
    """Return how many columns there are for the words behind such labels."""
    return _columns() - 4 - _column([(label, "") for label in labels])


def shell_lines(command: str, width: int) -> list[str]:
    """Return a command of a shell on lines of a width, broken before options, with backslashes."""
    units: list[str] = []
    for word in re.findall(r"""(?:[^\s"']|"[^"]*"|'[^']*')+""", command):
        if units and not word.startswith("-"):
            units[-1] += f" {word}"
        else:
            units.append(word)
    lines = [units[0]]
    for unit in units[1:]:
        if len(f"{lines[-1]} {unit} \\") <= width:
            lines[-1] += f" {unit}"
        else:
            lines[-1] += " \\"
            lines.append(f"    {unit}")
    return lines


def _columns() -> int:
    return max(_NARROWEST, min(shutil.get_terminal_size().columns, _WIDEST))


def _column(rows: Sequence[tuple[str, str]]) -> int:
    """Return where the words of some rows begin; behind a label wider than a third, they begin on the next line."""
    return min(max((len(label) for label, _ in rows), default=0), _columns() // 3) + 2


def _rows(rows: Sequence[tuple[str, str]], width: int, column: int) -> Iterator[str]:
    for label, words in rows:
        first, *others = _wrap(words, width - column)
        if len(label) > column - 2:
            yield label
            yield " " * column + first
        else:
            yield f"{label:<{column}}{first}"
        yield from (" " * column + line for line in others)


def _wrap(text: str, width: int, *, indent: str = "") -> list[str]:
    """Return text as lines of a width: options stay whole, and the word behind a colon stays beside it."""
    wrapper = textwrap.TextWrapper(width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)
    paragraphs = text.replace(": ", ":\N{NO-BREAK SPACE}").splitlines()
    return [line.replace("\N{NO-BREAK SPACE}", " ") for paragraph in paragraphs for line in wrapper.wrap(paragraph)]


def _plain(parts: Sequence[tuple[str, list[str]]], *, is_airy: bool) -> Iterator[str]:
    for number, (title, lines) in enumerate(parts):
        if is_airy or number == 0:
            yield ""
        yield f"{title}:"
        yield from (f"  {line}" for line in lines)


def _framed(parts: Sequence[tuple[str, list[str]]], width: int) -> Iterator[str]:
    for number, (title, lines) in enumerate(parts):
        left, right = "├┤" if number else "╭╮"
        yield f"{left}─ {title} {'─' * (width - len(title) - 5)}{right}"
        yield from (f"│ {line:<{width - 4}} │" for line in lines)
    yield f"╰{'─' * (width - 2)}╯"


_COLOURED = re.compile(
    r"(?P<frame>[╭╮╰╯├┤│─]+)|(?P<option>(?<![\w-])--?[a-z][\w-]*)|(?P<fact>\[(?:default|env|required)[^\]\n]*\])"
    r"|(?P<title>^(?:Usage|Examples):)",
    re.MULTILINE,
)
_COLOURS = {"frame": "2", "option": "1;36", "fact": "2", "title": "1;33"}


def _coloured(text: str) -> str:
    return _COLOURED.sub(lambda found: f"\x1b[{_COLOURS[str(found.lastgroup)]}m{found[0]}\x1b[0m", text)
