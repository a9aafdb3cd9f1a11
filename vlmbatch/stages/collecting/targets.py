"""Which files collect reads and which it may write: never over anything that is not its own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from vlmbatch import rundir
from vlmbatch.errors import InputError, Problem
from vlmbatch.stages.folders import why_not

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from vlmbatch.rundir import RunDir

_RECORDS: Final = frozenset({rundir.MERGED, rundir.SUMMARY})
_NOT_OURS: Final = (rundir.FILES | rundir.FOLDERS) - _RECORDS


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


def check_targets(run: RunDir, outputs: Mapping[str, str], inputs: Sequence[str]) -> None:
    """Refuse to write over what is not collect's own: frozen files, results, another output, whatever run has them.

    Args:
        run: The run.
        outputs: What is to be written, by flag.
        inputs: Files that are read (results, reviews, a schema).

    Raises:
        InputError: At least one may not be written; all are listed.
    """
    read = {os.path.realpath(path) for path in inputs}
    problems = []
    write = outputs.get("--write")
    seen = {os.path.realpath(summary_path(write)): "the summary"} if write else {}
    for flag, path in outputs.items():
        real = os.path.realpath(path)
        if real in seen:
            problems.append(Problem("target", f"{flag} and {seen[real]} name the same file", path))
        elif why := _why_not(run, flag, real, read):
            problems.append(Problem("target", f"{flag} {why}", path))
        seen[real] = flag
    if problems:
        raise InputError(
            f"{len(problems)} output(s) cannot be written there; nothing was written",
            hint="choose another place, such as merged.jsonl in the run folder",
            problems=problems,
        )


def _why_not(run: RunDir, flag: str, real: str, read: set[str]) -> str | None:
    """Return why a file may not be written, None where it may."""
    if real in read:
        return "may not write over this file, which is read"
    if _is_not_ours(run, flag, real):
        return "may not write over this file of a run"
    if flag == "--hf":
        return why_not(real)
    if os.path.isdir(real):
        return "is a file, and this is a folder"
    if os.path.exists(real) and not os.path.isfile(real):
        return "may not take the place of a device or pipe"
    return None if os.path.isdir(os.path.dirname(real)) else "would stand in a folder that does not exist"


def _is_not_ours(run: RunDir, flag: str, real: str) -> bool:
    """Tell whether a path is one of the files of a run that others write, or lies in one of its folders.

    The records are only for ``--write``, and only those of the run itself.
    """
    folder = _run_around(real)
    if folder is None:
        return False
    first, _, rest = real[len(os.path.join(folder, "")) :].partition(os.sep)
    if not rest and first in _RECORDS:
        return flag != "--write" or first != rundir.MERGED or folder != os.path.realpath(run.path)
    return first in _NOT_OURS


def breaks_seal(run: RunDir, written: Iterable[str]) -> bool:
    """Tell whether the run's folder is sealed and something was written into it, which the seal does not know."""
    home = os.path.realpath(run.path)
    return run.is_sealed and any(_run_around(os.path.realpath(path)) == home for path in written)


def _run_around(real: str) -> str | None:
    """Return the run folder that a path lies in, None where it lies in none."""
    folder = os.path.dirname(real)
    while not os.path.isfile(os.path.join(folder, rundir.RUN_JSON)):
        if folder == os.path.dirname(folder):
            return None
        folder = os.path.dirname(folder)
    return folder
