"""Queuing, in a process of its own: what submitit and sbatch hear is that process's environment, and nobody else's.

So nothing of the process that asks is changed, whatever else its threads do meanwhile; and where it is interrupted,
what was queued by then is taken back.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shlex
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vlmbatch import jsonl
from vlmbatch.errors import InputError
from vlmbatch.slurm import sbatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from vlmbatch.slurm.options import Submission

_CODE: Final = f"from {__name__} import main; main()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be queued.

    Attributes:
        folder: Where scripts, pickles and logs go.
        submission: What travels to the cluster.
        parts: The parts that make the array; none = no array.
        behind: Jobs that must have ended before.
        work: What a task of the array does with the submission and its part.
        follow: What the job behind it does with the submission; None = there is none.
    """

    folder: str
    submission: Submission
    parts: tuple[int, ...]
    behind: tuple[str, ...]
    work: Callable[[Submission, int], None]
    follow: Callable[[Submission], None] | None


class Queued(NamedTuple):
    """Ids of the array and of the job behind it, None where there is none."""

    array: str | None
    follow_up: str | None


def queue(order: Order, environ: Mapping[str, str]) -> Queued:
    """Queue an array and the job behind it: both or neither.

    Args:
        order: What is to be queued.
        environ: The environment of whoever asks; SLURM hands it on to the jobs.

    Raises:
        InputError: SLURM takes them not, or the folder cannot be written to.
    """
    env = sbatch.environment(environ, order.submission.slurm)
    # A session of its own: Ctrl-C comes here alone, and what is half queued comes to be known.
    with subprocess.Popen(  # noqa: S603  (this program)
        [sys.executable, "-P", "-c", _CODE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        start_new_session=True,
    ) as child:
        try:
            told, said = child.communicate(pickle.dumps(order))
        except BaseException:
            told, _ = child.communicate()
            for job in filter(None, _answer(told, b"").values()):
                sbatch.cancel(job, env)
            raise
    answer = _answer(told, said)
    if "refused" in answer:
        raise InputError(answer["refused"], hint=answer["hint"])
    return Queued(**answer)


def _answer(told: bytes, said: bytes) -> dict[str, Any]:
    answer = jsonl.parse_object(told)
    if answer is not None:
        return answer
    lines = said.decode("utf-8", "replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "it was killed")
    hint = "what was queued was taken back; tasks use the same Python, so it has to work there, too"
    return {"refused": f"what queues jobs failed: {last}", "hint": hint}


# --- in that process -------------------------------------------------------------------------------------------------


def main() -> None:
    """Read an order and queue it; tell the ids, or why there are none, as one JSON object."""
    order = pickle.load(sys.stdin.buffer)  # noqa: S301  (what queue has sent)
    with contextlib.redirect_stdout(sys.stderr):
        answer = _told(order)
    sys.stdout.buffer.write(jsonl.dumps(answer))


def _told(order: Order) -> dict[str, Any]:
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    try:
        return _queue(order)._asdict()
    except (FailedJobError, FailedSubmissionError, RuntimeError) as error:
        return {"refused": _in_words(error), "hint": "check partition, account and limits"}
    except OSError as error:
        what = f"{error.filename or order.folder}: {error.strerror or error}"
        return {"refused": what, "hint": "check path, permissions and space"}


def _queue(order: Order) -> Queued:
    slurm, array, follow_up = order.submission.slurm, None, None
    try:
        if order.parts:
            tasks = _executor(order.folder, sbatch.parameters(slurm, order.behind))
            several = [order.submission] * len(order.parts)
            array = tasks.map_array(order.work, several, order.parts)[0].job_id.partition("_")[0]
        if order.follow is not None:
            before: Sequence[str] = order.behind if array is None else (array,)
            next_one = _executor(order.folder, sbatch.follow_up_parameters(slurm, before))
            follow_up = next_one.submit(order.follow, order.submission).job_id
    except BaseException:
        if array is not None:
            sbatch.cancel(array, os.environ)
        raise
    return Queued(array, follow_up)


def _executor(folder: str, parameters: dict[str, Any]) -> Any:
    """Return what queues jobs with these parameters.

    Tasks use the Python of this process; what lies about in the folder from where it was called is none of its modules.
    """
    import submitit

    made = submitit.SlurmExecutor(folder=folder, python=f"{shlex.quote(sys.executable)} -P")
    made.update_parameters(**parameters)
    return made


def _in_words(error: Exception) -> str:
    """Return what sbatch says when it takes a job not."""
    lines = [line.removeprefix("sbatch:").strip() for line in str(error).splitlines()]
    said = "; ".join(line.removeprefix("error: ") for line in lines if line and not line.startswith("Try "))
    return f"SLURM took no job: {said or type(error).__name__}"
