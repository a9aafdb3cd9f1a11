"""The half of vlmbatch run that is about machines: a server of one's own, SLURM, and which part of the run this is.

What a pipeline file says of machines is kept in run.json (``settings``) and acts here alone; a flag comes before it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from vlmbatch.cli.base import finish, option
from vlmbatch.cli.onward import say_collect
from vlmbatch.console import out, safe, say
from vlmbatch.errors import InputError, counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vlmbatch.api.run import Run
    from vlmbatch.serve import Serve
    from vlmbatch.slurm import SlurmOptions, Submitted

PANEL = "Servers and clusters"
AUTO = "auto"
DEFAULT_CONCURRENCY = 32
_DEFAULT_RETRIES = 3

ServeOption = Annotated[
    str | None,
    option(
        PANEL,
        "Start a server for the run. {model}, {port} are set; auto: by the pipeline file.",
        "--serve",
        metavar="CMD",
    ),
]
ServeWaitOption = Annotated[
    float, option(PANEL, "Seconds that the server may take to start.", "--serve-wait", metavar="S")
]
SlurmOption = Annotated[
    str | None,
    option(PANEL, "Queue the run as a SLURM array of N tasks. auto: by the pipeline file.", "--slurm", metavar="N"),
]
PartitionOption = Annotated[
    str | None, option(PANEL, "Partition of the cluster whose queue the tasks wait in.", "--partition", metavar="NAME")
]
AccountOption = Annotated[str | None, option(PANEL, "Account that is charged.", "--account", metavar="NAME")]
TimeOption = Annotated[
    str | None, option(PANEL, "Time limit of each task, such as 05:59:59.", "--time", metavar="LIMIT")
]
GpusOption = Annotated[int | None, option(PANEL, "GPUs of each node.", "--gpus", metavar="N")]
CpusOption = Annotated[int | None, option(PANEL, "Processors of each task.", "--cpus-per-task", metavar="N")]
JobNameOption = Annotated[str | None, option(PANEL, "Name of the job in the queue.", "--job-name", metavar="NAME")]
SbatchOption = Annotated[
    list[str] | None, option(PANEL, "Any other option of sbatch; repeatable.", "--sbatch", metavar="NAME=VALUE")
]
MaxRetriesOption = Annotated[
    int | None, option(PANEL, "How often parts that are still open are queued again.", "--max-retries", metavar="N")
]
MergeOption = Annotated[bool, option(PANEL, "Collect into RUN/merged.jsonl when all tasks are done.", "--merge")]


class Flags(NamedTuple):
    """What was typed about the cluster; None = not said."""

    slurm: str | None
    partition: str | None
    account: str | None
    time: str | None
    gpus: int | None
    cpus_per_task: int | None
    job_name: str | None
    sbatch: list[str] | None
    max_retries: int | None
    merge: bool

    def without_slurm(self) -> list[str]:
        """Return the flags that were given although --slurm was not."""
        given = [name for name, value in self._asdict().items() if value is not None and value is not False]
        return [f"--{name.replace('_', '-')}" for name in given if name != "slurm"]


# --- which part, how many at once ------------------------------------------------------------------------------------


def part_of(
    settings: Mapping[str, Any], num_shards: str | None, shard_id: str | None, environ: Mapping[str, str]
) -> tuple[int, int]:
    """Return (number of parts, this part): by the flags, what they leave open by the pipeline file, else the whole run.

    A file that names its part by a variable divides the run where that variable is set (in a job array), and nowhere
    else.

    Raises:
        InputError: A flag, or a variable that is set, holds no number, or one of the two is not known.
    """
    if num_shards is not None or shard_id is not None:
        parts = num_shards if num_shards is not None else settings.get("num_shards")
        part = shard_id if shard_id is not None else settings.get("shard_id")
        if parts is None or part is None:
            raise InputError(
                "--num-shards without --shard-id" if part is None else "--shard-id without --num-shards",
                hint="how many parts, and which of them this is, from 0; --slurm N deals them out itself",
            )
        return _number("--num-shards", str(parts), environ), _number("--shard-id", str(part), environ)
    said = settings.get("shard_id")
    if said is None or (isinstance(said, str) and not environ.get(said.strip("${}"))):
        return 1, 0
    from vlmbatch.inputs.variables import parse_shard

    part, parts = parse_shard(settings.get("num_shards", 1), said, environ)
    return parts, part


def _number(flag: str, text: str, environ: Mapping[str, str]) -> int:
    """Return a whole number, given as such or as the variable that holds it (``$SLURM_ARRAY_TASK_ID``)."""
    match = re.fullmatch(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?", text.strip())
    value = environ.get(match.group(1), "") if match else text
    if not re.fullmatch(r"[0-9]{1,9}", value.strip()):
        where = f"{flag} {text}" + (f" is {value!r}" if match else "")
        raise InputError(f"{where}: not a whole number", hint="give a number, or a variable that holds one")
    return int(value)


def concurrency_of(settings: Mapping[str, Any], flag: int | None) -> int:
    """Return how many requests may be open: by the flag, else by the pipeline file's batch_size."""
    return flag if flag is not None else int(settings.get("batch_size", DEFAULT_CONCURRENCY))


# --- a server, an array ----------------------------------------------------------------------------------------------


def serve_of(run: Run, command: str | None, wait_s: float) -> Serve | None:
    """Return the server that is to be started, None where there is none.

    Raises:
        InputError: ``auto``, and nobody knows how the run's server is started.
    """
    if command is None:
        return None
    from vlmbatch.serve import Serve

    if command == AUTO:
        from vlmbatch.providers.servers import serve_command

        settings = run.info.get("settings") or {}
        command = serve_command(run.info["provider"], settings.get("server_args") or {}, settings.get("chat_template"))
    return Serve(command, wait_s=wait_s)


def slurm_of(run: Run, flags: Flags, environ: Mapping[str, str]) -> SlurmOptions | None:
    """Return what is asked of the cluster, None where the run is sent here: flags first, then the pipeline file.

    Raises:
        InputError: A flag or a setting is not what it should be, or speaks of a cluster where there is none.
    """
    if flags.slurm is None:
        stray = flags.without_slurm()
        if stray:
            raise InputError(f"{', '.join(stray)}: for a SLURM array alone", hint="add --slurm N, or leave it out")
        return None
    from vlmbatch.slurm import SlurmOptions

    settings = run.info.get("settings") or {}
    execution = settings.get("execution") or {}
    typed = {
        "partition": flags.partition,
        "account": flags.account,
        "time": flags.time,
        "gpus": flags.gpus,
        "cpus_per_task": flags.cpus_per_task,
        "job_name": flags.job_name,
    }
    found = {name: value for name, value in typed.items() if value is not None}
    said = _looked_up(execution, environ, {theirs for name, theirs in _SETTINGS.items() if name not in found})
    named = {name: said[theirs] for name, theirs in _SETTINGS.items() if theirs in said}
    return SlurmOptions(
        tasks=_tasks(flags.slurm, settings, environ),
        max_retries=_retries(execution) if flags.max_retries is None else flags.max_retries,
        merge=flags.merge or bool(execution.get("merge")),
        sbatch={
            **{theirs: str(said[name]) for name, theirs in _SBATCH.items() if said.get(name)},
            **_pairs(flags.sbatch or []),
        },
        environ={"HF_HOME": said["hf_home"]} if said.get("hf_home") else {},
        **{**named, **found},
    )


_SETTINGS = {
    "partition": "partition",
    "account": "account",
    "time": "time_limit",
    "gpus": "gpus",
    "cpus_per_task": "cpus_per_task",
    "job_name": "job_name",
    "nodes": "nodes",
    "ntasks_per_node": "ntasks_per_node",
}
"""Our names of what ``execution_params`` says under its own."""

_SBATCH = {"reservation": "reservation", "project_root": "chdir", "edf_env": "environment"}
"""What it says that sbatch takes under another name."""


def _looked_up(execution: Mapping[str, Any], environ: Mapping[str, str], names: set[str]) -> dict[str, Any]:
    """Return some of ``execution_params``, and what is for sbatch and the server, with their variables looked up."""
    from vlmbatch.inputs.variables import expand

    acting = {name: value for name, value in execution.items() if name in {*names, *_SBATCH, "hf_home"}}
    return {name: expand(value, environ) if isinstance(value, str) else value for name, value in acting.items()}


def _retries(execution: Mapping[str, Any]) -> int:
    """Return how often open parts are queued again; a number without ``retry`` is asked for, too."""
    number = execution.get("max_retries")
    return (_DEFAULT_RETRIES if number is None else number) if execution.get("retry", number is not None) else 0


def _pairs(texts: list[str]) -> dict[str, str | bool]:
    pairs: dict[str, str | bool] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
            raise InputError(
                f"--sbatch {text}: not NAME=VALUE", hint="a long option of sbatch: --sbatch qos=long, --sbatch requeue"
            )
        pairs[name] = value if equals else True
    return pairs


def _tasks(text: str, settings: Mapping[str, Any], environ: Mapping[str, str]) -> int:
    if text != AUTO:
        return _number("--slurm", text, environ)
    said = settings.get("num_shards")
    if said is None:
        raise InputError("--slurm auto: the run was built without num_shards", hint="give the number: --slurm 8")
    return _number("num_shards", str(said), environ)


# --- what was queued -------------------------------------------------------------------------------------------------


def finish_submitted(run: Run, submitted: Submitted, *, as_json: bool, quiet: int = 0) -> None:
    """End a command that queued an array: say what, and where to look."""
    data = {
        "run": run.path,
        "fingerprint": run.fingerprint,
        "array": submitted.array,
        "parts": list(submitted.parts),
        "follow_up": submitted.follow_up,
        "folder": submitted.folder,
        "behind": list(submitted.behind),
        "merges": submitted.merges,
    }
    finish("run", data, as_json=as_json, quiet=quiet, text=lambda: _print(run, submitted))


def _print(run: Run, submitted: Submitted) -> None:
    if submitted.array is None:
        say("no task was queued: every row has an answer or a final error, or is in an open batch job")
    else:
        out(f"queued: array {submitted.array} of {counted(len(submitted.parts), '[task|tasks]')}")
    if submitted.follow_up is not None:
        say(f"queued: job {submitted.follow_up}{_of_follow_up(submitted)}")
    jobs = [job for job in (submitted.array, submitted.follow_up) if job]
    if jobs and submitted.behind:
        say(f"they wait for {', '.join(submitted.behind)}, which this run has in the queue already")
    if jobs:
        out(f"look: squeue -j {','.join(jobs)}; logs in {safe(submitted.folder)}; to stop: scancel {' '.join(jobs)}")
        say("the same command again goes on with what is still open")
    if not submitted.merges:
        if jobs:
            say("collect once they have ended; before, what they have not sent counts as missing")
        say_collect(run)


def _of_follow_up(submitted: Submitted) -> str:
    """Return what the job behind the array does, as far as it was asked for."""
    times = counted(submitted.retries, "[time|times]")
    again = f"queues again what is open then, {times} at most" if submitted.retries else ""
    does = " and ".join(filter(None, (again, "collects" if submitted.merges else "")))
    return (" after it" if submitted.array is not None else "") + f", which {does}"
