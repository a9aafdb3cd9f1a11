"""The array: which parts are queued, what a task does, and what the job behind them does."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from vlmbatch import journal, jsonl, keys, providers, resume, rundir
from vlmbatch.console import Console, Watch
from vlmbatch.errors import InputError, VlmbatchError
from vlmbatch.rundir import RunDir
from vlmbatch.slurm import sbatch
from vlmbatch.slurm.checks import check
from vlmbatch.slurm.options import Job, Submitted
from vlmbatch.stages.collect import collect
from vlmbatch.stages.collecting.options import CollectOptions
from vlmbatch.stages.run import run as send
from vlmbatch.stop import Stop

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vlmbatch.providers.base import Provider

FOLDER: Final = "slurm"
"""Folder of the run in which submitit keeps its scripts and the tasks' logs."""

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
"""What SLURM sends before it kills (cancelled, preempted), and submitit's own word that the time is nearly up."""


def submit(job: Job) -> Submitted:
    """Check the run and queue the parts that still have rows to send.

    Raises:
        InputError: Options make no sense on a cluster, submitit is not installed, or SLURM refuses the job.
        IntegrityError: The folder is not what build wrote.
    """
    run = RunDir.open(job.run)
    check(run, _provider(run), job)
    run.verify(depth="full" if job.send.verify == "full" else "quick")
    there = replace(
        job,
        run=os.path.abspath(job.run),
        key_file=None if job.key_file is None else os.path.abspath(job.key_file),
        # The whole folder was checked just now; each task checks what it sends, line by line.
        send=replace(job.send, verify="lines"),
    )
    return _queue(there, _open_parts(run, job))


def _provider(run: RunDir) -> Provider:
    return providers.get(run.info["provider"], run.info["request"]["url"])


def _open_parts(run: RunDir, job: Job) -> tuple[int, ...]:
    """Return the parts that have a row to send: no answer, no final error, in no batch job, or to be asked again."""
    tasks, asked = job.slurm.tasks, enumerate(resume.positions(run, limit=job.send.limit))
    if job.send.retry_status:
        return tuple(sorted({rank % tasks for rank, _ in asked}))
    standing = resume.read_standing(run, _provider(run), run.index())
    for position in journal.in_flight(run):
        standing.note(position, resume.Mark.IN_BATCH)
    return tuple(sorted({rank % tasks for rank, at in asked if standing.marks[at] == resume.Mark.OPEN}))


def _queue(job: Job, parts: Sequence[int]) -> Submitted:
    """Queue an array of parts and, where there is something to do after it, the job that does it: both or neither."""
    submitit, slurm = sbatch.library(), job.slurm
    folder = os.path.join(job.run, FOLDER)
    behind = sbatch.at_work(folder)
    array = follow_up = None
    with sbatch.refusals(submitit), sbatch.environment(submitit, slurm):
        if parts:
            tasks = sbatch.executor(submitit, folder, sbatch.parameters(slurm, behind))
            array = tasks.map_array(work, [job] * len(parts), parts)[0].job_id.partition("_")[0]
        if slurm.merge or (parts and slurm.max_retries):
            before = behind if array is None else (array,)
            try:
                next_one = sbatch.executor(submitit, folder, sbatch.follow_up_parameters(slurm, before))
                follow_up = next_one.submit(follow, job).job_id
            except BaseException:
                if array is not None:
                    sbatch.cancel(array)
                raise
    return Submitted(array, tuple(parts), follow_up, folder, behind=behind, merges=slurm.merge)


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
    options = replace(job.send, num_shards=job.slurm.tasks, shard_id=part)
    key = keys.key_for_run(
        _provider(run),
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
        _fail(error)
    except OSError as error:
        what_failed = f"{error.filename or 'input or output'}: {error.strerror or error}"
        _fail(InputError(what_failed, hint="check path, permissions and space"))


def _fail(error: VlmbatchError) -> None:
    Console().error(error)
    sys.exit(error.exit_code)
