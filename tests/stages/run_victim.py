"""Runs of the run stage in processes that can be killed: forked from one that has everything loaded, so cheap.

Commands come on stdin, one JSON object a line: ``{"run", "base_url", "options", "kill_after_s"}``; the answer is one
line on stdout: how the process ended, and its peak memory.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from typing import Any

from vlmbatch import transport  # noqa: F401  (loaded before the forks)
from vlmbatch.retry import Policy
from vlmbatch.rundir import RunDir
from vlmbatch.stages.run import RunOptions, run
from vlmbatch.stages.running import sending  # noqa: F401


def _send(command: dict[str, Any]) -> int:
    options = RunOptions(
        base_urls=(command["base_url"],), policy=Policy(base_s=0.02, backoff_cap_s=0.1), **command["options"]
    )
    problem = run(RunDir.open(command["run"]), options, key="sk-victim-0123456789").problem()
    return 0 if problem is None else int(problem.exit_code)


def _forked(command: dict[str, Any]) -> dict[str, Any]:
    child = os.fork()
    if child == 0:
        code = 70
        try:
            code = _send(command)
        finally:
            os._exit(code)
    if command.get("kill_after_s") is not None:
        time.sleep(command["kill_after_s"])
        os.kill(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    return {"status": os.waitstatus_to_exitcode(status), "rss_mb": usage.ru_maxrss / 1024}


def main() -> None:
    """Do what comes on stdin."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        sys.stdout.write(json.dumps(_forked(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
