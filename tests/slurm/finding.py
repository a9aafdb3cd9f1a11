"""The fixture that finds a SLURM, or skips: ``cluster.sh up`` beside this file starts one."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

HOME = Path(os.environ.get("SLURM_TEST_HOME", "/tmp/vlmbatch-test-slurm"))
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sbatch find a SLURM, or skip."""
    if "SLURM_CONF" not in os.environ and (HOME / "slurm.conf").exists():
        monkeypatch.setenv("SLURM_CONF", str(HOME / "slurm.conf"))
    if shutil.which("sinfo") is None:
        pytest.skip("no SLURM here: bash tests/slurm/cluster.sh up")
    with contextlib.suppress(subprocess.TimeoutExpired):
        if subprocess.run(["sinfo"], capture_output=True, timeout=10, check=False).returncode == 0:
            monkeypatch.setenv("PYTHONPATH", str(ROOT))
            return
    pytest.skip("no SLURM answers: bash tests/slurm/cluster.sh up")
