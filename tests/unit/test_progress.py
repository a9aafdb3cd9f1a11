"""The progress file: whole at every moment, seldom written, never in the way."""

from __future__ import annotations

import json
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from vlmbatch import progress
from vlmbatch.progress import ProgressFileReporter

if TYPE_CHECKING:
    from pathlib import Path


def read(path: Path) -> dict[str, Any]:
    """Return what the file says."""
    return json.loads(path.read_text(encoding="utf-8"))


def test_start_and_finalize_always_write(tmp_path: Path) -> None:
    """The first and the last state are there however short the time between them."""
    path = tmp_path / "progress.json"
    reporter = ProgressFileReporter(path, 10, min_write_interval=3600)
    reporter.start(completed=2, failed=1)
    assert {key: read(path)[key] for key in ("total", "completed", "failed")} == {
        "total": 10,
        "completed": 2,
        "failed": 1,
    }
    reporter.record_completed(3)
    reporter.record_failed()
    assert read(path)["completed"] == 2
    reporter.finalize()
    assert (read(path)["completed"], read(path)["failed"]) == (5, 2)
    assert read(path)["updated_at"].endswith("Z")
    assert list(read(path))[:4] == ["total", "completed", "failed", "updated_at"]


def test_writes_are_throttled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most one write an interval, by the clock."""
    writes: list[bytes] = []
    clock = [0.0]
    monkeypatch.setattr(progress.jsonl, "write_atomic", lambda _path, data, durable: writes.append(data))
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    reporter = ProgressFileReporter(tmp_path / "p.json", 1000)
    reporter.start()
    for step in range(1000):
        clock[0] = step / 100
        reporter.record_completed()
    assert len(writes) == 1 + 9
    reporter.finalize()
    assert json.loads(writes[-1])["completed"] == 1000


def test_counts_from_many_threads_add_up(tmp_path: Path) -> None:
    """Nothing is lost between threads."""
    path = tmp_path / "p.json"
    reporter = ProgressFileReporter(path, 8000, min_write_interval=0.001)
    reporter.start()

    def work() -> None:
        for _ in range(500):
            reporter.record_completed()
            reporter.record_failed()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reporter.finalize()
    assert (read(path)["completed"], read(path)["failed"]) == (4000, 4000)


@pytest.mark.parametrize("name", ["no/such/folder/p.json", "folder"])
def test_broken_path_is_told_once_and_stops_nothing(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A progress file that cannot be written is no reason to lose a run."""
    (tmp_path / "folder").mkdir()
    reporter = ProgressFileReporter(tmp_path / name, 3, min_write_interval=0)
    reporter.start()
    reporter.record_completed()
    reporter.finalize()
    assert len(caplog.records) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_what_is_no_regular_file_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A pipe (or /dev/null, for root) is not replaced by a file."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    ProgressFileReporter(path, 3).start()
    assert path.is_fifo()
    assert "not a regular file" in caplog.text


def test_extra_fields_are_kept(tmp_path: Path) -> None:
    """What the caller adds stands in every state."""
    path = tmp_path / "p.json"
    ProgressFileReporter(path, 1, extra={"rehearsal": True}).start()
    assert read(path)["rehearsal"] is True
