"""A temporary folder that lives as long as somebody holds it."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref


class Scratch:
    """A temporary folder; it goes when :meth:`remove` is called, when nobody holds this object, or with the program.

    Attributes:
        path: The folder.
    """

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="vlmbatch-")
        self._finalizer = weakref.finalize(self, _remove, self.path, os.getpid())

    def remove(self) -> None:
        """Delete it now."""
        self._finalizer()


def _remove(path: str, maker: int) -> None:
    """Delete a folder, unless this is a child of the process that made it: the parent still works there."""
    if os.getpid() == maker:
        shutil.rmtree(path, ignore_errors=True)
