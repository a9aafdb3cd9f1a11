"""What all tests share: no network but loopback, plain help, and real photographs where they are at hand."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("COLUMNS", "120")
os.environ["_TYPER_FORCE_DISABLE_TERMINAL"] = "1"
for _name in ("FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS"):
    os.environ.pop(_name, None)
os.environ["NO_COLOR"] = "1"

settings.register_profile(
    "vlmbatch", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.load_profile("vlmbatch")  # no test judges time; a test that wants more examples says so

PHOTOS = Path(__file__).resolve().parents[2] / "shared" / "data" / "photos"
"""Real photographs beside the checkout; they are not ours, so they are not in it."""

_connect = socket.socket.connect


def _loopback_only(self: socket.socket, address: Any) -> None:
    if self.family in {socket.AF_INET, socket.AF_INET6} and not str(address[0]).startswith(
        ("127.", "::1", "localhost")
    ):
        raise AssertionError(f"a test tried to reach {address!r}")
    _connect(self, address)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tests talk to this machine alone."""
    monkeypatch.setattr(socket.socket, "connect", _loopback_only)


@pytest.fixture
def photos() -> Path:
    """Return the folder of real photographs, or skip where there is none."""
    if not PHOTOS.is_dir():
        pytest.skip("no photographs beside the checkout")
    return PHOTOS
