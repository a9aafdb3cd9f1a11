"""Which files collect reads and which it may write: never over anything that is not its own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from vlmbatch import rundir
from vlmbatch.errors import InputError, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vlmbatch.rundir import RunDir

_NOT_OURS: Final = frozenset(
    {
        rundir.RUN_JSON,
        rundir.MANIFEST,
        rundir.REJECTED,
        rundir.SHA256SUMS,
        rundir.ESTIMATES,
        rundir.BATCHES,
        rundir.PROGRESS,
        rundir.SUMMARY,
        rundir.REVIEWS,
    }
)
_NOT_OUR_FOLDERS: Final = frozenset({rundir.INPUTS, rundir.SHARDS, rundir.RESULTS, rundir.LOCKS})


def choose_files(run: RunDir, named: Sequence[str], *, rehearsal: bool) -> list[str]:
    """Return the results files to read, each once.

    Rehearsals stand apart: a pattern such as ``results/*.jsonl`` names them too, and they are left out all the same
    (or everything else, where the rehearsals are wanted).

    Raises:
        InputError: A file is not there.
    """
    problems = [Problem("missing_file", "no such file", path) for path in named if not os.path.isfile(path)]
    if problems:
        raise InputError(
            f"{len(problems)} results file(s) cannot be read",
            hint="without names, collect takes every file of results/",
            problems=problems,
        )
    wanted = [path for path in named if os.path.basename(path).startswith(rundir.REHEARSAL_PREFIX) is rehearsal]
    once: dict[str, str] = {}
    for path in wanted if named else run.results(rehearsal=rehearsal):
        once.setdefault(os.path.realpath(path), path)
    return list(once.values())


def summary_path(write: str) -> str:
    """Return where the summary goes: beside the records, ``summary.json`` for merged.jsonl, else by their name."""
    folder, name = os.path.split(write)
    stem = name.removesuffix(".jsonl")
    merged = rundir.MERGED.removesuffix(".jsonl")
    return os.path.join(folder, rundir.SUMMARY if stem == merged else f"{stem}.{rundir.SUMMARY}")


def check_targets(run: RunDir, outputs: Mapping[str, str], results: Sequence[str]) -> None:
    """Refuse to write over what is not collect's own: frozen files, results, another output.

    Args:
        run: The run.
        outputs: What is to be written, by flag.
        results: The results files that are read.

    Raises:
        InputError: At least one may not be written; all are listed.
    """
    read = {os.path.realpath(path) for path in results}
    problems = []
    write = outputs.get("--write")
    seen = {os.path.realpath(summary_path(write)): "the summary"} if write else {}
    for flag, path in outputs.items():
        real = os.path.realpath(path)
        if real in seen:
            problems.append(Problem("target", f"{flag} and {seen[real]} name the same file", path))
        elif real in read or _is_not_ours(run, real):
            problems.append(Problem("target", f"{flag} may not write over this file of the run", path))
        elif os.path.isdir(real):
            problems.append(Problem("target", f"{flag}: this is a folder", path))
        elif not os.path.isdir(os.path.dirname(real)):
            problems.append(Problem("target", f"{flag}: its folder does not exist", path))
        seen[real] = flag
    if problems:
        raise InputError(
            f"{len(problems)} output(s) would write over something; nothing was written",
            hint="choose another place, such as merged.jsonl in the run folder",
            problems=problems,
        )


def _is_not_ours(run: RunDir, real: str) -> bool:
    """Tell whether a path is one of the run's files that others write, or lies in one of its folders."""
    folder = os.path.join(os.path.realpath(run.path), "")
    if not real.startswith(folder):
        return False
    first, _, rest = real[len(folder) :].partition(os.sep)
    return first in _NOT_OURS or first in _NOT_OUR_FOLDERS or (not rest and not first)
