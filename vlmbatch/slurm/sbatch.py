"""SLURM's side: its tools, options in sbatch's words, the variables that it hears, and what it has in its queue."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING, Any, Final

from vlmbatch.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vlmbatch.slurm.options import SlurmOptions

TIME: Final = re.compile(r"([0-9]+-)?[0-9]+(:[0-9]+){0,2}")
"""A time limit, as sbatch takes it."""

_DEFAULT_MINUTES: Final = 60
_FOLLOW_MINUTES: Final = 60
_SQUEUE_TIMEOUT_S: Final = 60.0

_OF_A_JOB: Final = ("SLURM_", "SLURMD_", "SRUN_", "SBATCH_", "SUBMITIT_")
"""Beginnings of the variables that SLURM and submitit set in a job."""

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


def check_tools(environ: Mapping[str, str]) -> None:
    """See that jobs can be queued from here.

    Raises:
        InputError: Submitit is not installed, or this machine knows no SLURM.
    """
    if importlib.util.find_spec("submitit") is None:
        raise InputError("--slurm needs submitit, which is not installed", hint="pip install 'vlmbatch[slurm]'")
    path = environ.get("PATH", os.defpath)
    missing = [name for name in ("sbatch", "srun", "squeue") if shutil.which(name, path=path) is None]
    if missing:
        raise InputError(
            f"--slurm: {', '.join(missing)} cannot be found, so nothing can be queued from here",
            hint="give the command on a login node of the cluster",
        )


# --- options ---------------------------------------------------------------------------------------------------------


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


def environment(environ: Mapping[str, str], slurm: SlurmOptions) -> dict[str, str]:
    """Return an environment without what would displace in sbatch what is said to it.

    It prefers its variables (``SBATCH_ACCOUNT`` ...) to the lines of a script: those of what is said here are left out,
    all others are the user's and stay. A job that queues jobs must not hand its own settings (``SLURM_...``) down.
    """
    hidden = {*_displacing(slurm)}
    if "SLURM_JOB_ID" in environ:
        hidden |= {name for name in environ if name.startswith(_OF_A_JOB) and not _is_users(name)}
    return {name: value for name, value in environ.items() if name not in hidden}


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


def at_work(folder: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the jobs whose scripts lie in a folder and that have not ended, whoever queued them, but for the asking.

    Raises:
        InputError: SLURM does not say.
    """
    # --all: partitions that are hidden, too; variables of squeue's own would leave jobs out.
    command = ["squeue", "--all", "--noheader", "--format=%F|%o"]
    env = {name: value for name, value in environ.items() if not name.startswith("SQUEUE_")}
    try:
        done = subprocess.run(command, capture_output=True, timeout=_SQUEUE_TIMEOUT_S, check=False, env=env)  # noqa: S603
    except subprocess.TimeoutExpired:
        raise _unknown(f"squeue did not answer within {_SQUEUE_TIMEOUT_S:.0f} s") from None
    except OSError as error:
        raise _unknown(f"squeue: {error.strerror or error}") from None
    if done.returncode != 0:
        raise _unknown("; ".join(os.fsdecode(done.stderr).split("\n")).strip("; ") or f"status {done.returncode}")
    asking, place = environ.get("SLURM_JOB_ID"), os.path.realpath(folder)
    jobs = (line.partition("|") for line in os.fsdecode(done.stdout).split("\n"))
    return tuple(
        dict.fromkeys(
            job
            for job, _, script in jobs
            if script and job != asking and os.path.realpath(os.path.dirname(script)) == place
        )
    )


def _unknown(why: str) -> InputError:
    return InputError(
        f"SLURM does not say what it has in the queue, so this run's rows may be at work already: {why}",
        hint="nothing was queued; give the command again when squeue answers",
    )


def cancel(job: str, environ: Mapping[str, str]) -> None:
    """Take a job out of the queue again."""
    subprocess.run(["scancel", job], capture_output=True, check=False, env={**environ})  # noqa: S603, S607
