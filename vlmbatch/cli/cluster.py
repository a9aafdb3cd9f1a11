"""The half of vlmbatch run that is about machines: a server of one's own, SLURM, and which part of the run this is.

What a pipeline file says of machines is kept in run.json (``settings``) and acts here alone; a flag comes before it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from vlmbatch.cli.base import finish
from vlmbatch.console import out, safe
from vlmbatch.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vlmbatch.api.run import Run
    from vlmbatch.serve import Serve
    from vlmbatch.slurm import SlurmOptions, Submitted

PANEL = "Servers and clusters"
AUTO = "auto"
DEFAULT_CONCURRENCY = 32

ServeOption = Annotated[
    str | None,
    typer.Option(
        "--serve", metavar="CMD", help="Start this server; {model}, {port} (auto: by RUN).", rich_help_panel=PANEL
    ),
]
ServeWaitOption = Annotated[
    float, typer.Option("--serve-wait", metavar="S", help="Until it answers, at most.", rich_help_panel=PANEL)
]
SlurmOption = Annotated[
    str | None,
    typer.Option("--slurm", metavar="N", help="Queue an array of N tasks (auto: by RUN).", rich_help_panel=PANEL),
]
PartitionOption = Annotated[
    str | None, typer.Option("--partition", metavar="NAME", help="Where it waits.", rich_help_panel=PANEL)
]
AccountOption = Annotated[
    str | None, typer.Option("--account", metavar="NAME", help="Who is charged.", rich_help_panel=PANEL)
]
TimeOption = Annotated[
    str | None, typer.Option("--time", metavar="LIMIT", help="Time of each task: 05:59:59.", rich_help_panel=PANEL)
]
GpusOption = Annotated[
    int | None, typer.Option("--gpus", metavar="N", help="GPUs of each node.", rich_help_panel=PANEL)
]
CpusOption = Annotated[
    int | None, typer.Option("--cpus-per-task", metavar="N", help="Processors of each task.", rich_help_panel=PANEL)
]
JobNameOption = Annotated[
    str | None, typer.Option("--job-name", metavar="NAME", help="Name in the queue.", rich_help_panel=PANEL)
]
SbatchOption = Annotated[
    list[str] | None,
    typer.Option("--sbatch", metavar="NAME=VALUE", help="Any other sbatch option.", rich_help_panel=PANEL),
]
MaxRetriesOption = Annotated[
    int | None,
    typer.Option("--max-retries", metavar="N", help="Queue open parts again.", rich_help_panel=PANEL),
]
MergeOption = Annotated[bool, typer.Option("--merge", help="Collect after the array.", rich_help_panel=PANEL)]


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
    """Return (number of parts, this part): by the flags, else by the pipeline file, else the whole run.

    A file that names its part by a variable divides the run where that variable is set (in a job array), and nowhere
    else.

    Raises:
        InputError: A flag, or a variable that is set, holds no number.
    """
    if num_shards is not None or shard_id is not None:
        return (
            _number("--num-shards", num_shards or "1", environ),
            _number("--shard-id", shard_id or "0", environ),
        )
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
    if not value.strip().isdigit():
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
    said = _execution(settings.get("execution") or {}, environ)
    retries = said.get("max_retries", 3) if said.get("retry") else 0
    typed = {
        "partition": flags.partition,
        "account": flags.account,
        "time": flags.time,
        "gpus": flags.gpus,
        "cpus_per_task": flags.cpus_per_task,
        "job_name": flags.job_name,
    }
    named = {name: said[theirs] for name, theirs in _SETTINGS.items() if theirs in said}
    return SlurmOptions(
        tasks=_tasks(flags.slurm, settings, environ),
        max_retries=retries if flags.max_retries is None else flags.max_retries,
        merge=flags.merge or bool(said.get("merge")),
        sbatch={**_sbatch(said), **_pairs(flags.sbatch or [])},
        **{**named, **{name: value for name, value in typed.items() if value is not None}},
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


def _execution(said: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return ``execution_params`` with its variables looked up."""
    from vlmbatch.inputs.variables import expand

    return {name: expand(value, environ) if isinstance(value, str) else value for name, value in said.items()}


def _sbatch(said: Mapping[str, Any]) -> dict[str, str]:
    found = {theirs: str(said[name]) for name, theirs in _SBATCH.items() if said.get(name)}
    return {**found, "export": f"ALL,HF_HOME={said['hf_home']}"} if said.get("hf_home") else found


def _pairs(texts: list[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"[a-z][a-z0-9-]*", name):
            raise InputError(f"--sbatch {text}: not NAME=VALUE", hint="for example --sbatch qos=long")
        pairs[name] = value
    return pairs


def _tasks(text: str, settings: Mapping[str, Any], environ: Mapping[str, str]) -> int:
    if text != AUTO:
        return _number("--slurm", text, environ)
    said = settings.get("num_shards")
    if said is None:
        raise InputError("--slurm auto: the run was built without num_shards", hint="give the number: --slurm 8")
    return _number("num_shards", str(said), environ)


# --- what was queued -------------------------------------------------------------------------------------------------


def finish_submitted(run: Run, submitted: Submitted, *, as_json: bool) -> None:
    """End a command that queued an array: say what, and where to look."""
    data = {
        "run": run.path,
        "fingerprint": run.fingerprint,
        "array": submitted.array,
        "parts": list(submitted.parts),
        "follow_up": submitted.follow_up,
        "folder": submitted.folder,
    }
    finish("run", data, as_json=as_json, text=lambda: _print(submitted))


def _print(submitted: Submitted) -> None:
    if submitted.array is None:
        out("every row has an answer or a final error: no task was queued")
    else:
        out(f"queued: array {submitted.array} of {len(submitted.parts):,} task(s)")
    if submitted.follow_up is not None:
        out(f"queued: job {submitted.follow_up} behind it, which sees to open parts and collects where that was asked")
    jobs = ",".join(job for job in (submitted.array, submitted.follow_up) if job)
    if jobs:
        out(f"look: squeue -j {jobs}; logs in {safe(submitted.folder)}")
        out("the same command again goes on with what is still open")
