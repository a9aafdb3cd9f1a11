"""New folders that a stage makes: whole, or not at all."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from vlmbatch.errors import InputError
from vlmbatch.rundir.newfolder import NewFolder, missing_parents

if TYPE_CHECKING:
    from collections.abc import Iterator


def why_not(target: str) -> str | None:
    """Return why no new folder can stand in a place, None where one can (as far as looking tells)."""
    if os.path.lexists(target):
        return "exists already"
    stops = [one for one in missing_parents(os.path.dirname(os.path.abspath(target))) if os.path.lexists(one)]
    return f"{stops[0]} is no folder" if stops else None


def check_new(target: str) -> None:
    """Check that a new folder can stand in a place.

    Raises:
        InputError: It cannot.
    """
    why = why_not(target)
    if why:
        raise InputError(f"{target}: {why}", hint="choose another place")


@contextlib.contextmanager
def new_folder(target: str) -> Iterator[str]:
    """Make a folder under a hidden name beside its place; it gets there when the block ends without an exception.

    Args:
        target: Where the folder is to stand.

    Yields:
        Where it is made.

    Raises:
        InputError: Something stands there already, or nothing can be made there.
    """
    check_new(target)
    with NewFolder(target) as folder:
        yield folder.path
        folder.put_in_place()
