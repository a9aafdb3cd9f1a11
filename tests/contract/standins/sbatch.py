"""``sbatch``, as far as it is called here: the job's settings are checked and noted in ``$SBATCH_CALLS``.

With ``--wait`` the tasks of a plain array script are run one after the other, as SLURM would run them on one node.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
from pathlib import Path

OPTIONS = frozenset(
    (
        *("account", "array", "cpus-per-task", "dependency", "error", "export", "gpus-per-node", "job-name", "nodes"),
        *("ntasks-per-node", "open-mode", "output", "partition", "reservation", "signal", "time", "wckey"),
    )
)
"""Long options of sbatch 22.05 that may come."""


def main() -> None:
    """Note the job, print its id, and run its tasks where that was asked for."""
    parser = argparse.ArgumentParser(prog="sbatch")
    parser.add_argument("--wait", action="store_true")
    parser.add_argument("script", type=Path)
    options = parser.parse_args()
    lines = re.findall(r"^#SBATCH (.*)$", options.script.read_text(encoding="utf-8"), re.MULTILINE)
    said = dict(re.findall(r"--([a-z-]+)(?:=(\S+))?", " ".join(lines)))
    if unknown := set(said) - OPTIONS:
        parser.error(f"unrecognized option '--{min(unknown)}'")
    calls = Path(os.environ["SBATCH_CALLS"])
    with calls.open("a", encoding="utf-8") as file:
        file.write(json.dumps(said) + "\n")
    print(f"Submitted batch job {len(calls.read_text(encoding='utf-8').splitlines())}")  # noqa: T201
    if options.wait:
        first, last = map(int, said["array"].split("-"))
        for task in range(first, last + 1):
            environ = {**os.environ, "SLURM_ARRAY_TASK_ID": str(task)}
            subprocess.run([options.script.resolve()], env=environ, check=True)


if __name__ == "__main__":
    main()
