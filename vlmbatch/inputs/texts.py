"""The text of a request: a fixed prompt, a row's question, or a template; and where the images stand in it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

from vlmbatch.inputs.base import RowError, describe, those_there

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Parts = tuple[str | int, ...]
"""A message in order: text, or the number of an image."""


class Text(Protocol):
    """Makes the user's message of one row."""

    output: str
    """Name of the pipeline output that it asks for, else empty."""

    def parts(self, row: Mapping[str, Any], images: Mapping[str, Sequence[int]]) -> Parts:
        """Return text and image numbers in order.

        Args:
            row: The row's fields.
            images: Numbers of the row's images by the name under which they are known, in row order.

        Raises:
            RowError: The row gives no usable text.
        """
        ...


def question_text(value: Any, field: str) -> str:
    """Return a row's question: text as it is, a number as JSON writes it; anything else is refused.

    Raises:
        RowError: There is no question.
    """
    if value is None:
        raise RowError("no_question", f"{field!r} is null")
    if isinstance(value, str):
        if not value.strip():
            raise RowError("no_question", f"{field!r} is blank")
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return repr(value)
    raise RowError("bad_question", f"{field!r} is {describe(value)}: neither text nor a number")


def field_of(row: Mapping[str, Any], field: str, code: str) -> Any:
    """Return a field of a row.

    Raises:
        RowError: The row lacks it; the fields that it has are named.
    """
    try:
        return row[field]
    except KeyError:
        raise RowError(code, f"no field {field!r}", aside=those_there(field, tuple(row))) from None


class PlainText:
    """The prompt as it stands, then the row's question, a blank line between them where both are given.

    Args:
        prompt: None where the question alone is sent.
        question_field: None where the prompt alone is sent.
        images_first: Whether the images stand before the text or behind it.
    """

    output = ""

    def __init__(self, prompt: str | None, question_field: str | None, *, images_first: bool) -> None:
        self._prompt = prompt
        self._field = question_field
        self._images_first = images_first

    def parts(self, row: Mapping[str, Any], images: Mapping[str, Sequence[int]]) -> Parts:
        """Return the images in row order and the text (see :class:`Text`)."""
        texts = [] if self._prompt is None else [self._prompt]
        if self._field is not None:
            texts.append(question_text(field_of(row, self._field, "no_question"), self._field))
        return around("\n\n".join(texts), images, images_first=self._images_first)


def around(text: str, images: Mapping[str, Sequence[int]], *, images_first: bool) -> Parts:
    """Return all images before the text or behind it, in the order of their numbers."""
    numbers = sorted({number for group in images.values() for number in group})
    return (*numbers, text) if images_first else (text, *numbers)
