"""The array: which parts are queued, what a task does, and what the job behind them does."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from vlmbatch import descriptors, journal, jsonl, keys, providers, resume, rundir
from vlmbatch.console import Console, Watch
from vlmbatch.errors import InputError, VlmbatchError
from vlmbatch.rundir import RunDir
from vlmbatch.slurm import sbatch
from vlmbatch.slurm.checks import check
from vlmbatch.slurm.options import Submission, Submitted
from vlmbatch.slurm.queueing import Order, queue
from vlmbatch.stages.collect import collect
from vlmbatch.stages.collecting.options import CollectOptions
from vlmbatch.stages.run import run as send
from vlmbatch.stop import Stop

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vlmbatch.providers.base import Provider

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
"""What SLURM sends before it kills (cancelled, preempted), and submitit's own word that the time is nearly up."""


def submit(submission: Submission, environ: Mapping[str, str]) -> Submitted:
    """Check the run and queue the parts that still have rows to send.

    Args:
        submission: What travels to the cluster.
        environ: The environment in which jobs are queued, and which SLURM hands on to them; keys are looked up in it.

    Raises:
        InputError: Options make no sense on a cluster, submitit is not installed, or SLURM refuses the job.
        IntegrityError: The folder is not what build wrote.
    """
    run = RunDir.open(submission.run)
    check(run, _provider(run), submission, environ)
    run.verify(depth="full" if submission.send.verify == "full" else "quick")
    there = replace(
        submission,
        run=os.path.abspath(submission.run),
        key_file=None if submission.key_file is None else os.path.abspath(submission.key_file),
        # The whole folder was checked just now; each task checks what it sends, line by line.
        send=replace(submission.send, verify="lines"),
    )
    return _queue(run, there, _open_parts(run, submission), environ)


def _provider(run: RunDir) -> Provider:
    return providers.get(run.info["provider"], run.info["request"]["url"])


def _open_parts(run: RunDir, submission: Submission) -> tuple[int, ...]:
    """Return the parts that have a row to send: no answer, no final error, in no batch job, or to be asked again."""
    tasks, asked = submission.slurm.tasks, enumerate(resume.positions(run, limit=submission.send.limit))
    if submission.send.retry_status:
        return tuple(sorted({rank % tasks for rank, _ in asked}))
    standing = resume.read_standing(run, _provider(run), run.index())
    for position in journal.in_flight(run):
        standing.note(position, resume.Mark.IN_BATCH)
    return tuple(sorted({rank % tasks for rank, at in asked if standing.marks[at] == resume.Mark.OPEN}))


def _queue(run: RunDir, submission: Submission, parts: tuple[int, ...], environ: Mapping[str, str]) -> Submitted:
    """Queue an array of parts and, where there is something to do after it, the job that does it: both or neither."""
    slurm = submission.slurm
    sbatch.check_tools(environ)
    follows = slurm.merge or bool(parts and slurm.max_retries)
    folder = os.path.join(submission.run, rundir.SLURM)
    if not parts and not follows:
        return Submitted(None, (), None, folder)
    # Who came between looking and queuing would see nothing at work: it waits, and then sees this.
    with run.lock("submit", wait=True):
        behind = sbatch.at_work(folder, environ)
        order = Order(
            folder=folder,
            submission=submission,
            parts=parts,
            behind=behind,
            work=work,
            follow=follow if follows else None,
        )
        array, follow_up = queue(order, environ)
    retries = slurm.max_retries if follows else 0
    return Submitted(array, parts, follow_up, folder, behind=behind, merges=slurm.merge, retries=retries)


# --- on the cluster ------------------------------------------------------------------------------------------


def work(submission: Submission, part: int) -> None:
    """Send one part: what a task of the array does. It leaves with the exit status of ``run``."""
    if int(os.environ.get("SLURM_PROCID", "0")):
        return  # one process sends; the others hold the nodes for the server
    descriptors.raise_limit()
    stop = Stop()
    for number in _SIGNALS:
        signal.signal(number, lambda *_: stop.ask())
    _leave(lambda: _send_part(submission, part, stop))


def _send_part(submission: Submission, part: int, stop: Stop) -> None:
    run = RunDir.open(submission.run)
    console = Console()
    options = replace(submission.send, num_shards=submission.slurm.tasks, shard_id=part)
    key = keys.key_for_run(
        _provider(run),
        options.base_urls,
        os.environ,
        name=submission.key_env,
        file=submission.key_file,
        is_served=options.serve is not None,
        tell=console.note,
    )
    with Watch(console, f"part {part}") as watch:
        result = send(run, options, key=key, on_event=watch.on_event, stop=stop)
    console.note(f"part {part}: {jsonl.dumps(result.statuses).decode()}, {result.without_answer:,} without an answer")
    problem = result.problem()
    if problem is not None:
        raise problem


def follow(submission: Submission) -> None:
    """Queue parts that are still open again, or else collect: what the job behind the array does."""
    _leave(lambda: _follow(submission))


def _follow(submission: Submission) -> None:
    run, console = RunDir.open(submission.run), Console()
    # A status that was to be asked again was asked; what is open now is what failed.
    parts = _open_parts(run, replace(submission, send=replace(submission.send, retry_status=frozenset())))
    if parts and submission.slurm.max_retries:
        fewer = replace(submission.slurm, max_retries=submission.slurm.max_retries - 1)
        queued = _queue(run, replace(submission, slurm=fewer), parts, os.environ)
        console.note(f"{len(parts)} part(s) are still open and were queued again as {queued.array}")
    elif submission.slurm.merge:
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
