"""A SLURM that queues nothing: sbatch, srun, squeue and scancel as programs that note what they were asked."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.slurm.finding import ROOT

if TYPE_CHECKING:
    from pathlib import Path

_SBATCH = """#!/bin/sh
cd {home}
echo asked >> asked
number=$(wc -l < asked)
env > environment.$number
[ -z "$HOLD" ] || until [ -e go ]; do sleep 0.02; done
echo "$number|$1" >> queue
echo "Submitted batch job $number"
"""

_SQUEUE = """#!/bin/sh
cd {home}
case "$*" in *--user*|*--me*) exit 0 ;; esac
[ -z "$SQUEUE_USERS" ] || exit 0
[ ! -e says ] || { /bin/cat says >&2; exit 1; }
/bin/cat queue
"""


class Standins:
    """What was asked of them, in files of a folder.

    Attributes:
        home: The folder: ``queue`` is what squeue tells, ``says`` makes it fail with these words, and where HOLD is in
            its environment sbatch waits for ``go``.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.programs = home / "bin"
        self.programs.mkdir(parents=True)
        (home / "queue").touch()
        self.write("sbatch", _SBATCH)
        self.write("squeue", _SQUEUE)
        self.write("srun", "#!/bin/sh\n")
        self.write("scancel", '#!/bin/sh\necho "$@" >> {home}/cancelled\n')

    def write(self, name: str, text: str) -> None:
        """Write one of the programs."""
        program = self.programs / name
        program.write_text(text.replace("{home}", str(self.home)))
        program.chmod(0o755)

    def is_asked(self) -> bool:
        """Say whether a job was to be queued."""
        return (self.home / "asked").exists()

    def environment(self, job: int) -> dict[str, str]:
        """Return the environment in which a job was queued."""
        lines = (self.home / f"environment.{job}").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def cancelled(self) -> list[str]:
        """Return the jobs that were taken back."""
        told = self.home / "cancelled"
        return told.read_text().split() if told.exists() else []


@pytest.fixture
def standins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Standins:
    """Put them before whatever SLURM there is."""
    made = Standins(tmp_path / "standins")
    monkeypatch.setenv("PATH", f"{made.programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return made
