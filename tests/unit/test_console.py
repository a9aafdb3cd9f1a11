"""The console: paragraphs at the width of a terminal, bars that fit, counts in words."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmbatch.console import fitted, wrapped
from vlmbatch.errors import counted


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@given(st.lists(st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1, max_size=30), min_size=1))
def test_wrapped_keeps_every_word_and_the_width(words: list[str]) -> None:
    """No word is broken, lost or moved; a line is too long only where one word is."""
    import unicodedata

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "40")
        lines = wrapped(" ".join(words), _Terminal()).split("\n")
    assert " ".join(lines).split() == words
    for line in lines:
        columns = sum(
            0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line
        )
        assert columns <= 40 or len(line.split()) == 1


def test_wrapped_leaves_a_pipe_alone() -> None:
    """Programs that read lines get whole ones."""
    assert wrapped("word " * 99, io.StringIO()) == "word " * 99


def test_wrapped_keeps_an_indent() -> None:
    """A listed problem stays below its head."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "20")
        assert wrapped("  a.png: is no image at all", _Terminal()) == "  a.png: is no image\n  at all"


@given(st.lists(st.sampled_from(["12.3/s", "1,234 tokens/s", "32 of 32 in flight", "3 x 429"])), st.integers(-5, 120))
def test_bar_and_figures_fit_the_room(parts: list[str], room: int) -> None:
    """Figures are dropped from the end, never cut, before the bar is too short to be seen."""
    bar, rest = fitted(", ".join(parts), room)
    assert rest == ", ".join(parts[: len(rest.split(", ")) if rest else 0])
    assert 1 <= bar <= 28
    assert bar + len(rest) <= max(room, 1)


@pytest.mark.parametrize(
    ("number", "said"),
    [(0, "0 rows are open"), (1, "1 row is open"), (2, "2 rows are open"), (1234, "1,234 rows are open")],
)
def test_counted_agrees_with_its_number(number: int, said: str) -> None:
    """One is one, everything else is many."""
    assert counted(number, "[row is|rows are] open") == said


def test_counted_leaves_other_brackets_alone() -> None:
    """The name of an extra is no choice of words."""
    assert counted(1, "[image|images] (vlmbatch[heif])") == "1 image (vlmbatch[heif])"
