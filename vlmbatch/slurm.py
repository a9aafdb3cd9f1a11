"""A run on a SLURM cluster, through submitit: an array of parts, what follows it, and what happens inside a task.

The run folder on a shared file system is all that tasks share. Each task sends its part of the manifest (position
modulo the number of parts), appends to a results file of its own, and may be killed at any time: what it had written
counts, and whoever sends the part again goes on behind it. After the array one small job looks which parts are still
open, queues those again as often as it may, and then collects.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from vlmbatch import journal, jsonl, keys, providers, resume, rundir
from vlmbatch.console import Console, Watch
from vlmbatch.errors import InputError, VlmbatchError
from vlmbatch.rundir import RunDir
from vlmbatch.stages.collect import collect
from vlmbatch.stages.collecting.options import CollectOptions
from vlmbatch.stages.run import run as send
from vlmbatch.stop import Stop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from vlmbatch.stages.run import RunOptions

FOLDER: Final = "slurm"
"""Folder of the run in which submitit keeps its scripts and the tasks' logs."""

_WHERE_SLURM_IS: Final = ("SLURM_CONF", "SLURM_CLUSTERS")
_TIME: Final = re.compile(r"(\d+-)?\d+(:\d+){0,2}")
_DEFAULT_MINUTES: Final = 60
_FOLLOW_MINUTES: Final = 60
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
"""What SLURM sends before it kills (cancelled, preempted), and submitit's own word that the time is nearly up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    """What is asked of the cluster; what is not set is left to it.

    Attributes:
        tasks: Parts of the run, which is tasks of the array.
        partition: Partition.
        account: Account.
        time: Limit of each task, as sbatch takes it (``90``, ``05:59:59``, ``1-12:00:00``).
        gpus: GPUs of each node.
        cpus_per_task: Processors of each task.
        nodes: Nodes of each task.
        ntasks_per_node: Processes on each node; the first one sends, the others are the server's affair.
        job_name: Name.
        sbatch: Further options of sbatch by their long names, such as ``{"qos": "long", "mem": "64G"}``.
        max_retries: How often parts that are still open are queued again.
        merge: Whether the run is collected at the end.
    """

    tasks: int
    partition: str | None = None
    account: str | None = None
    time: str | None = None
    gpus: int | None = None
    cpus_per_task: int | None = None
    nodes: int = 1
    ntasks_per_node: int = 1
    job_name: str = "vlmbatch"
    sbatch: Mapping[str, str] = field(default_factory=dict)
    max_retries: int = 0
    merge: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What travels to the cluster: names and settings, never a key.

    Attributes:
        run: The run folder, absolute.
        slurm: What is asked of the cluster.
        send: How each part is sent.
        key_env: The variable that holds the key there, None = the provider's conventional one.
        key_file: The file that holds it, None = none.
    """

    run: str
    slurm: SlurmOptions
    send: RunOptions
    key_env: str | None = None
    key_file: str | None = None


@dataclass(frozen=True, slots=True)
class Submitted:
    """What was queued.

    Attributes:
        array: Id of the array, None where every part is done.
        parts: The parts that are in it.
        follow_up: Id of the job behind it, None where there is none.
        folder: Where scripts and logs are.
    """

    array: str | None
    parts: tuple[int, ...]
    follow_up: str | None
    folder: str


def submit(job: Job) -> Submitted:
    """Check the run and queue the parts that still have rows to send.

    Raises:
        InputError: Options make no sense on a cluster, submitit is not installed, or SLURM refuses the job.
        IntegrityError: The folder is not what build wrote.
    """
    _check(job)
    run = RunDir.open(job.run)
    run.verify(depth="full" if job.send.verify == "full" else "quick")
    parts = _open_parts(run, job)
    # The whole folder was checked just now; each task checks what it sends, line by line.
    return _queue(replace(job, run=os.path.abspath(job.run), send=replace(job.send, verify="lines")), parts)


def _check(job: Job) -> None:
    slurm, options = job.slurm, job.send
    rules = {
        "--slurm must be positive": slurm.tasks < 1,
        "--time takes minutes, hours:minutes:seconds or days-hours:minutes:seconds": (
            slurm.time is not None and not _TIME.fullmatch(slurm.time)
        ),
        "--gpus and --max-retries must not be negative": min(slurm.gpus or 0, slurm.max_retries) < 0,
        "--cpus-per-task must be positive": slurm.cpus_per_task is not None and slurm.cpus_per_task < 1,
        "--slurm deals the rows out itself: it goes without --num-shards, --shard-id, --out and --progress-path": (
            options.num_shards != 1 or options.out is not None or options.progress_path is not None
        ),
        "--slurm goes on where a run stands: it goes without --ids and --no-resume": (
            options.ids is not None or not options.resume
        ),
        "--max-usd and --max-tokens-total are for one process: tasks do not see what the others spend": (
            options.max_usd is not None or options.max_tokens_total is not None
        ),
        "--slurm sends realtime requests: it goes without --channel batch, --rehearsal and --pending": (
            options.channel == "batch" or options.rehearsal or options.pending is not None
        ),
    }
    wrong = [sentence for sentence, holds in rules.items() if holds]
    if wrong:
        raise InputError("; ".join(wrong), hint="docs/how-to/cluster.md shows what goes with --slurm")


def _open_parts(run: RunDir, job: Job) -> tuple[int, ...]:
    """Return the parts that have a row to send: no answer, no final error, in no batch job, or to be asked again."""
    if job.send.retry_status:
        return tuple(range(job.slurm.tasks))
    provider = providers.get(run.info["provider"], run.info["request"]["url"])
    standing = resume.read_standing(run, provider, run.index())
    for position in journal.in_flight(run):
        standing.note(position, resume.Mark.IN_BATCH)
    asked = resume.positions(run, limit=job.send.limit)
    return tuple(sorted({at % job.slurm.tasks for at in asked if standing.marks[at] == resume.Mark.OPEN}))


# --- queueing ------------------------------------------------------------------------------------------------


def _queue(job: Job, parts: Sequence[int]) -> Submitted:
    """Queue an array of parts and, where there is something to do after it, the job that does it."""
    submitit = _submitit()
    folder = os.path.join(job.run, FOLDER)
    array = follow_up = None
    try:
        with _as_from_outside(submitit):
            if parts:
                executor = submitit.SlurmExecutor(folder=folder)
                executor.update_parameters(**_parameters(job.slurm))
                array = executor.map_array(work, [job] * len(parts), parts)[0].job_id.partition("_")[0]
            if job.slurm.merge or (parts and job.slurm.max_retries):
                executor = submitit.SlurmExecutor(folder=folder)
                executor.update_parameters(**_follow_up_parameters(job.slurm, array))
                follow_up = executor.submit(follow, job).job_id
    except (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError, RuntimeError) as error:
        said = _last_line(error)
        raise InputError(f"SLURM took no job: {said}", hint="check partition, account and limits") from None
    return Submitted(array, tuple(parts), follow_up, folder)


@contextlib.contextmanager
def _as_from_outside(submitit: Any) -> Iterator[None]:
    """Queue from inside a job as from a login node: the job's own settings must not be handed down.

    Outside of jobs the environment is the user's (``SBATCH_ACCOUNT`` ...) and stays; so does where SLURM is found.
    """
    if "SLURM_JOB_ID" not in os.environ:
        yield
        return
    found = {name: os.environ[name] for name in _WHERE_SLURM_IS if name in os.environ}
    with submitit.helpers.clean_env():
        os.environ.update(found)
        yield


def _submitit() -> Any:
    try:
        import submitit
        import submitit.helpers
    except ImportError:
        raise InputError(
            "--slurm needs submitit, which is not installed", hint="pip install 'vlmbatch[slurm]'"
        ) from None
    return submitit


def _last_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__


def _parameters(slurm: SlurmOptions) -> dict[str, Any]:
    """Return what submitit is told about the tasks of the array."""
    per_task = [] if slurm.cpus_per_task is None else [f"--cpus-per-task={slurm.cpus_per_task}"]
    told = {
        **_shared_parameters(slurm),
        "time": _minutes(slurm.time),
        "nodes": slurm.nodes,
        "ntasks_per_node": slurm.ntasks_per_node,
        "gpus_per_node": slurm.gpus or None,
        "cpus_per_task": slurm.cpus_per_task,
        "array_parallelism": slurm.tasks,
        "additional_parameters": {**({"time": slurm.time} if slurm.time else {}), **slurm.sbatch},
        "srun_args": per_task,  # steps do not inherit it since SLURM 22.05
    }
    return {name: value for name, value in told.items() if value is not None}


def _follow_up_parameters(slurm: SlurmOptions, array: str | None) -> dict[str, Any]:
    """Return what submitit is told about the job behind the array: a short one on one processor."""
    told = {
        **_shared_parameters(slurm),
        "job_name": f"{slurm.job_name}-next",
        "time": _FOLLOW_MINUTES,
        "cpus_per_task": 1,
        "use_srun": False,  # only so may it queue jobs itself
        "additional_parameters": {"dependency": f"afterany:{array}"} if array else {},
    }
    return {name: value for name, value in told.items() if value is not None}


def _shared_parameters(slurm: SlurmOptions) -> dict[str, Any]:
    return {
        "job_name": slurm.job_name,
        "partition": slurm.partition,
        "account": slurm.account,
        "stderr_to_stdout": True,
    }


def _minutes(time: str | None) -> int:
    """Return a time limit in whole minutes, rounded up; a bare number is minutes, behind days it is hours."""
    if time is None:
        return _DEFAULT_MINUTES
    days, _, clock = time.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if not days and len(parts) < 3:
        parts.insert(0, 0)
    hours, minutes, seconds = (*parts, 0, 0)[:3]
    return (int(days or 0) * 24 + hours) * 60 + minutes + bool(seconds)


# --- on the cluster ------------------------------------------------------------------------------------------


def work(job: Job, part: int) -> None:
    """Send one part: what a task of the array does. It leaves with the exit status of ``run``."""
    if int(os.environ.get("SLURM_PROCID", "0")):
        return  # one process sends; the others hold the nodes for the server
    stop = Stop()
    for number in _SIGNALS:
        signal.signal(number, lambda *_: stop.ask())
    _leave(lambda: _send_part(job, part, stop))


def _send_part(job: Job, part: int, stop: Stop) -> None:
    run = RunDir.open(job.run)
    console = Console()
    provider = providers.get(run.info["provider"], run.info["request"]["url"])
    options = replace(job.send, num_shards=job.slurm.tasks, shard_id=part)
    key = keys.key_for_run(
        provider,
        options.base_urls,
        os.environ,
        name=job.key_env,
        file=job.key_file,
        is_served=options.serve is not None,
        tell=console.note,
    )
    with Watch(console, f"part {part}") as watch:
        result = send(run, options, key=key, on_event=watch.on_event, stop=stop)
    console.note(f"part {part}: {jsonl.dumps(result.statuses).decode()}, {result.without_answer:,} without an answer")
    problem = result.problem()
    if problem is not None:
        raise problem


def follow(job: Job) -> None:
    """Queue parts that are still open again, or else collect: what the job behind the array does."""
    _leave(lambda: _follow(job))


def _follow(job: Job) -> None:
    run, console = RunDir.open(job.run), Console()
    # A status that was to be asked again was asked; what is open now is what failed.
    parts = _open_parts(run, replace(job, send=replace(job.send, retry_status=frozenset())))
    if parts and job.slurm.max_retries:
        fewer = replace(job.slurm, max_retries=job.slurm.max_retries - 1)
        queued = _queue(replace(job, slurm=fewer), parts)
        console.note(f"{len(parts)} part(s) are still open and were queued again as {queued.array}")
    elif job.slurm.merge:
        result = collect(run, (), CollectOptions(write=run.file(rundir.MERGED)))
        console.note(f"collected: {jsonl.dumps(result.summary['counts']).decode()}")


def _leave(what: Callable[[], None]) -> None:
    """Do something and leave with the exit status that fits: an error of ours is told in words, not as a traceback."""
    try:
        what()
    except VlmbatchError as error:
        Console().error(error)
        sys.exit(error.exit_code)
