"""What is refused before anything is queued: whatever each task would refuse hours later, and a little more."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from vlmbatch import keys
from vlmbatch.errors import InputError
from vlmbatch.slurm.sbatch import TIME, minutes
from vlmbatch.stages.run import check as check_run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vlmbatch.providers.base import Provider
    from vlmbatch.rundir import RunDir
    from vlmbatch.slurm.options import SlurmOptions, Submission

_SHORTEST_MINUTES: Final = 3
"""A task stops sending 90 seconds before its limit, and SLURM may say so a minute early."""

_ARRAYS_OWN: Final = frozenset({"array", "wrap"})
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_FILLED_IN: Final = re.compile(r"%\w|%%|\\")
"""What SLURM makes something else of in the path of a log."""


def check(run: RunDir, provider: Provider, submission: Submission, environ: Mapping[str, str]) -> None:
    """Refuse what makes no sense on a cluster, or at all.

    Raises:
        InputError: As it says.
    """
    wrong = [sentence for sentence, holds in _rules(submission).items() if holds]
    if wrong:
        raise InputError("; ".join(wrong), hint="docs/how-to/cluster.md shows what goes with --slurm")
    check_run(run, submission.send)
    if submission.send.serve is not None:
        submission.send.serve.words(model=run.info["model"], port=0)
    _check_place(os.path.abspath(submission.run))
    _check_sending(run, provider, submission, environ)


def _rules(submission: Submission) -> dict[str, bool]:
    slurm, options = submission.slurm, submission.send
    is_time = slurm.time is None or TIME.fullmatch(slurm.time) is not None
    return {
        "--slurm must be positive": slurm.tasks < 1,
        "--time takes minutes, hours:minutes:seconds or days-hours:minutes:seconds": not is_time,
        f"--time below {_SHORTEST_MINUTES} minutes leaves none to send in: a task stops shortly before its limit": (
            is_time and 0 < minutes(slurm.time) < _SHORTEST_MINUTES
        ),
        "--gpus and --max-retries must not be negative": min(slurm.gpus or 0, slurm.max_retries) < 0,
        "--cpus-per-task must be positive": slurm.cpus_per_task is not None and slurm.cpus_per_task < 1,
        "--sbatch takes neither array nor wrap: those are what --slurm makes": not _ARRAYS_OWN.isdisjoint(slurm.sbatch),
        "names and values for SLURM must not hold line breaks": any(map(_CONTROL.search, _texts(slurm))),
        "--slurm deals the rows out itself: it goes without --num-shards, --shard-id, --out and --progress-path": (
            (options.num_shards, options.shard_id) != (1, 0)
            or options.out is not None
            or options.progress_path is not None
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


def _texts(slurm: SlurmOptions) -> list[str]:
    further = [text for pair in (*slurm.sbatch.items(), *slurm.environ.items()) for text in pair]
    return [str(text) for text in (slurm.job_name, slurm.partition, slurm.account, *further)]


def _check_place(path: str) -> None:
    if _CONTROL.search(path) or _FILLED_IN.search(path):
        raise InputError(
            f"{path}: SLURM cannot keep logs in a folder whose path has %, a backslash or a line break in it",
            hint="rename the folder; the run does not mind",
        )


def _check_sending(run: RunDir, provider: Provider, submission: Submission, environ: Mapping[str, str]) -> None:
    """Check that the tasks have somewhere to send to, and the key that this takes."""
    from vlmbatch.stages.running.sending import need_key
    from vlmbatch.transport import check_base_url

    given = tuple(map(_plain, map(check_base_url, submission.send.base_urls)))
    is_served = submission.send.serve is not None
    urls = given if given or is_served else (provider.default_base_url(),)
    for url in urls:
        provider.endpoint(run.info["request"]["url"], url)
    if submission.key_file is not None or not _hands_on(submission.slurm.sbatch, environ):
        if submission.key_env is not None:  # what is no name must not travel
            keys.read_key({}, (submission.key_env,), is_required=False, tell=_say_nothing)
        return
    key = keys.key_for_run(provider, urls, environ, name=submission.key_env, is_served=is_served, tell=_say_nothing)
    if not is_served:
        need_key(provider, urls, key)


def _plain(url: str) -> str:
    """Return a base URL that may be written down, as what travels to the cluster is."""
    shown = re.split(r"[?#]", url)[0]
    if shown != url:
        raise InputError(
            f"the base URL {shown} has something behind it that can be secret, and would be kept in the run folder",
            hint="leave it out: a key belongs into an environment variable, named by --api-key-env",
        )
    return url


def _hands_on(sbatch: Mapping[str, str | bool], environ: Mapping[str, str]) -> bool:
    """Say whether the tasks' environment is this one, as it is unless somebody says otherwise."""
    return "export" not in sbatch and "SBATCH_EXPORT" not in environ


def _say_nothing(_: str) -> None:
    """Leave it to the tasks, which say the same."""
