"""How many descriptors there are, and that doors raise what a shell allows."""

from __future__ import annotations

import resource
from typing import Any

import pytest

from vlmbatch import descriptors
from vlmbatch.transport.network import Network


def test_limit_of_the_shell_is_raised_by_doors_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell's 256 or 1024 are too few for a wide run; what the system forbids is left alone, and so is a library."""
    asked: list[Any] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    for limits in [(256, 1024), (1024, resource.RLIM_INFINITY), (100_000, 100_000), (resource.RLIM_INFINITY,) * 2]:
        monkeypatch.setattr(resource, "getrlimit", lambda _, limits=limits: limits)
        Network()
        assert descriptors.limit() >= limits[0]
        before = len(asked)
        descriptors.raise_limit()
        assert len(asked) - before <= 1
    assert asked == [(1024, 1024), (8192, resource.RLIM_INFINITY)]


def test_limit_that_cannot_be_raised_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that says no is no fault of the run."""

    def refuse(*_: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4096))
    descriptors.raise_limit()
    assert descriptors.limit() == 256
