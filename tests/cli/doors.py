"""Calls the command line in this process and tells what it printed where."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from typing import Any, NamedTuple
from unittest import mock

from vlmbatch.cli import make_app
from vlmbatch.cli.base import run_app


class Called(NamedTuple):
    """What came of a call: exit status, stdout, stderr."""

    status: int
    out: str
    err: str

    def json(self) -> Any:
        """Return stdout as the one JSON object that it must be."""
        return json.loads(self.out)


class _Stream(io.TextIOWrapper):
    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)

    def text(self) -> str:
        return self.buffer.getvalue().decode()  # type: ignore[attr-defined]


def call(*words: object, stdin: bytes = b"", env: dict[str, str] | None = None) -> Called:
    """Run ``vlmbatch WORDS`` and return what came of it."""
    out, err = _Stream(), _Stream()
    inlet = io.TextIOWrapper(io.BytesIO(stdin))
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "stdin", inlet),
        mock.patch.dict("os.environ", env or {}),
    ):
        status = run_app(make_app(), [str(word) for word in words], "vlmbatch")
    return Called(int(status), out.text(), err.text())
