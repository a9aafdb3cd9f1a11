"""SLURM's side: options in sbatch's words, the variables that it hears, its refusals, and what it has in its queue."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

from vlmbatch.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vlmbatch.slurm.options import SlurmOptions

TIME: Final = re.compile(r"([0-9]+-)?[0-9]+(:[0-9]+){0,2}")
"""A time limit, as sbatch takes it."""

_DEFAULT_MINUTES: Final = 60
_FOLLOW_MINUTES: Final = 60
_SQUEUE_TIMEOUT_S: Final = 60.0

_WHERE_SLURM_IS: Final = ("SLURM_CONF", "SLURM_CLUSTERS")
_SAID_ALWAYS: Final = ("array", "error", "job-name", "open-mode", "output", "signal", "wait")
_VARIABLES: Final = {"array": "ARRAY_INX", "mem": "MEM_PER_NODE", "switches": "REQ_SWITCH", "time": "TIMELIMIT"}
"""What sbatch calls an option's variable, behind ``SBATCH_``, where it is not the option's name."""

_OF_TASKS: Final = (
    *("array", "begin", "contiguous", "cores", "cpus", "dependency", "exclusive", "gpu", "gres", "hold", "licenses"),
    *("mem", "mincpus", "nodes", "ntasks", "oversubscribe", "overcommit", "signal", "sockets", "switches", "threads"),
    *("time", "tmp", "tres", "wait"),
)
"""Beginnings of options that say how much a task needs, or when it starts: nothing for the small job behind them."""


def library() -> Any:
    """Return submitit.

    Raises:
        InputError: It is not installed, or this machine cannot queue jobs.
    """
    try:
        import submitit
        import submitit.helpers
    except ImportError:
        raise InputError(
            "--slurm needs submitit, which is not installed", hint="pip install 'vlmbatch[slurm]'"
        ) from None
    missing = [name for name in ("sbatch", "srun") if shutil.which(name) is None]
    if missing:
        raise InputError(
            f"--slurm: {' and '.join(missing)} cannot be found, so nothing can be queued from here",
            hint="give the command on a login node of the cluster",
        )
    return submitit


# --- options ---------------------------------------------------------------------------------------------------------


def executor(submitit: Any, folder: str, parameters: dict[str, Any]) -> Any:
    """Return what queues jobs with these parameters.

    Tasks use the Python of this process; what lies about in the folder from where it was called is none of its modules.
    """
    made = submitit.SlurmExecutor(folder=folder, python=f"{shlex.quote(sys.executable)} -P")
    made.update_parameters(**parameters)
    return made


def parameters(slurm: SlurmOptions, behind: Sequence[str]) -> dict[str, Any]:
    """Return what submitit is told about the tasks of the array.

    Args:
        slurm: What is asked.
        behind: Jobs that must have ended before.
    """
    cpus = slurm.sbatch.get("cpus-per-task", slurm.cpus_per_task)
    after = [str(value) for name, value in slurm.sbatch.items() if name == "dependency"] + _after(behind)
    told = {
        **_shared_parameters(slurm),
        "time": minutes(slurm.time),
        "nodes": slurm.nodes,
        "ntasks_per_node": slurm.ntasks_per_node,
        "gpus_per_node": slurm.gpus or None,
        "cpus_per_task": slurm.cpus_per_task,
        "array_parallelism": slurm.tasks,
        "additional_parameters": {
            **({"time": slurm.time} if slurm.time else {}),
            **_further(slurm, set(slurm.sbatch)),
            **({"dependency": ",".join(after)} if after else {}),
        },
        "setup": [f"export {name}={shlex.quote(value)}" for name, value in slurm.environ.items()] or None,
        # The first process alone sends: the others' early end is none. Steps inherit neither the script's variables
        # under --export=NONE nor, since SLURM 22.05, the processors.
        "srun_args": ["--export=ALL", "--wait=0", *([] if cpus is None else [f"--cpus-per-task={cpus}"])],
    }
    return {name: value for name, value in told.items() if value is not None}


def follow_up_parameters(slurm: SlurmOptions, behind: Sequence[str]) -> dict[str, Any]:
    """Return what submitit is told about the job behind the array: a short one on one processor, at the same place."""
    limit = minutes(slurm.time)
    place = {name for name in slurm.sbatch if not name.startswith(_OF_TASKS)}
    told = {
        **_shared_parameters(slurm),
        "job_name": f"{slurm.job_name}-next",
        "time": min(limit or _FOLLOW_MINUTES, _FOLLOW_MINUTES),
        "cpus_per_task": 1,
        "use_srun": False,  # only so may it queue jobs itself
        "additional_parameters": {
            **_further(slurm, place - {"job-name"}),
            **({"dependency": ",".join(_after(behind))} if behind else {}),
        },
    }
    return {name: value for name, value in told.items() if value is not None}


def _shared_parameters(slurm: SlurmOptions) -> dict[str, Any]:
    return {
        "job_name": slurm.job_name,
        "partition": slurm.partition,
        "account": slurm.account,
        "stderr_to_stdout": True,
    }


def _further(slurm: SlurmOptions, names: set[str]) -> dict[str, str | bool]:
    """Return options under the names that submitit has them by, so that they displace its own."""
    return {name.replace("-", "_"): value for name, value in slurm.sbatch.items() if name in names}


def _after(jobs: Sequence[str]) -> list[str]:
    return [f"afterany:{':'.join(jobs)}"] if jobs else []


def minutes(time: str | None) -> int:
    """Return a time limit in whole minutes, rounded up; a bare number is minutes, behind days it is hours."""
    if time is None:
        return _DEFAULT_MINUTES
    days, _, clock = time.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if not days and len(parts) < 3:
        parts.insert(0, 0)
    hours, minutes, seconds = (*parts, 0, 0)[:3]
    return (int(days or 0) * 24 + hours) * 60 + minutes + bool(seconds)


# --- variables -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def environment(submitit: Any, slurm: SlurmOptions) -> Iterator[None]:
    """Hide from sbatch what would displace what is said to it.

    It prefers its variables (``SBATCH_ACCOUNT`` ...) to the lines of a script: those of what is said here are hidden,
    all others are the user's and stay. A job that queues jobs must not hand its own settings (``SLURM_...``) down.
    """
    with contextlib.ExitStack() as stack:
        if "SLURM_JOB_ID" in os.environ:
            kept = {name: value for name, value in os.environ.items() if _is_users(name)}
            stack.enter_context(submitit.helpers.clean_env())
            os.environ.update(kept)
        hidden = {name: os.environ.pop(name) for name in _displacing(slurm) if name in os.environ}
        stack.callback(os.environ.update, hidden)
        yield


def _is_users(name: str) -> bool:
    """Say whether a variable is none that SLURM itself sets in a job."""
    return name in _WHERE_SLURM_IS or (name.startswith("SBATCH_") and not name.startswith("SBATCH_MEM_BIND"))


def _displacing(slurm: SlurmOptions) -> list[str]:
    values = {
        "account": slurm.account,
        "cpus-per-task": slurm.cpus_per_task,
        "gpus-per-node": slurm.gpus,
        "partition": slurm.partition,
        "time": slurm.time,
    }
    said = {*_SAID_ALWAYS, *slurm.sbatch, *(name for name, value in values.items() if value is not None)}
    return [f"SBATCH_{_VARIABLES.get(name, name.upper().replace('-', '_'))}" for name in sorted(said)]


# --- the queue -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def refusals(submitit: Any) -> Iterator[None]:
    """Make an error of ours of what sbatch says when it takes a job not; nothing else of it is shown.

    Raises:
        InputError: It took none.
    """
    errors = submitit.core.utils
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    except (errors.FailedJobError, errors.FailedSubmissionError, RuntimeError) as error:
        lines = [line.removeprefix("sbatch:").strip() for line in str(error).splitlines()]
        said = "; ".join(line.removeprefix("error: ") for line in lines if line and not line.startswith("Try "))
        raise InputError(
            f"SLURM took no job: {said or type(error).__name__}", hint="check partition, account and limits"
        ) from None


def at_work(folder: str) -> tuple[str, ...]:
    """Return the jobs whose scripts lie in a folder and that have not ended, but for the one that asks."""
    asking = os.environ.get("SLURM_JOB_ID")
    command = ["squeue", "--noheader", f"--user={os.getuid()}", "--format=%F|%o"]
    try:
        told = subprocess.run(command, capture_output=True, timeout=_SQUEUE_TIMEOUT_S, check=False).stdout  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ()
    place = os.path.realpath(folder)
    jobs = (line.partition("|") for line in os.fsdecode(told).splitlines())
    return tuple(
        dict.fromkeys(
            job for job, _, script in jobs if job != asking and os.path.realpath(os.path.dirname(script)) == place
        )
    )


def cancel(job: str) -> None:
    """Take a job out of the queue again."""
    subprocess.run(["scancel", job], capture_output=True, check=False)  # noqa: S603, S607
