"""What Python lets pass and no command line could say."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from vlmbatch.errors import InputError, Problem

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def check_lists(options: DataclassInstance | None = None, **named: Any) -> None:
    """Refuse a text or path alone where several are taken: its letters would be taken for them.

    Args:
        options: Options; fields that hold nothing by default take several.
        **named: Arguments that take several.

    Raises:
        InputError: There are some; all are listed.
    """
    several = [one.name for one in fields(options) if isinstance(one.default, tuple | frozenset)] if options else []
    given = {**{name: getattr(options, name) for name in several}, **named}
    problems = [
        Problem("usage", f"one {type(value).__name__} where a list of them is taken: [{value!r}]", name)
        for name, value in given.items()
        if isinstance(value, str | bytes | os.PathLike)
    ]
    if problems:
        raise InputError(f"{len(problems)} option(s) are no lists", hint="put brackets around them", problems=problems)
