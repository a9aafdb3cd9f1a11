"""New folders that stages make: whole or not at all, and what a killed process leaves goes with the next one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vlmbatch.errors import InputError
from vlmbatch.stages.folders import new_folder

VICTIM = """
import os, signal, sys
from vlmbatch.stages.folders import new_folder
with new_folder(sys.argv[1]) as folder:
    open(os.path.join(folder, "half"), "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def _names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_folder_gets_to_its_place_whole_or_not_at_all(tmp_path: Path) -> None:
    """What is in it is there at once; where the block raises, neither it nor the parents that it needed are left."""
    with new_folder(str(tmp_path / "a" / "new")) as folder:
        Path(folder, "file").write_bytes(b"x")
        assert not (tmp_path / "a" / "new").exists()
    assert _names(tmp_path / "a") == ["new"]
    assert (tmp_path / "a" / "new" / "file").read_bytes() == b"x"
    with pytest.raises(KeyError), new_folder(str(tmp_path / "b" / "new")):
        raise KeyError
    assert _names(tmp_path) == ["a"]


def test_what_a_killed_process_left_goes_with_the_next_folder(tmp_path: Path) -> None:
    """A half-made folder is swept once its maker is dead, and left alone as long as somebody works in it."""
    target = tmp_path / "new"
    victim = subprocess.run([sys.executable, "-c", VICTIM, str(target)], check=False)
    assert victim.returncode == -signal.SIGKILL
    (left,) = _names(tmp_path)
    with new_folder(str(target)) as alive:
        assert left not in _names(tmp_path)
        beside = subprocess.run([sys.executable, "-c", VICTIM, str(target)], check=False)
        assert beside.returncode == -signal.SIGKILL
        assert len(_names(tmp_path)) == 2
        assert os.path.basename(alive) in _names(tmp_path)


def test_place_that_is_taken_meanwhile_is_not_written_over(tmp_path: Path) -> None:
    """Whoever came first stays."""
    target = tmp_path / "new"
    with pytest.raises(InputError, match="came to exist"), new_folder(str(target)):
        target.write_bytes(b"mine")
    assert target.read_bytes() == b"mine"
    assert _names(tmp_path) == ["new"]
