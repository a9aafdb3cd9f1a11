"""Which files collect reads and which it may write: never over anything that is not its own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from vlmbatch import replacing, rundir
from vlmbatch.errors import InputError, Problem
from vlmbatch.stages.folders import why_not

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from vlmbatch.rundir import RunDir
    from vlmbatch.stages.collecting.facts import FileFacts

_KINDS: Final = {
    "--write": replacing.RECORDS,
    "--rows": replacing.ROWS,
    "--csv": replacing.CSV,
    "--parquet": replacing.PARQUET,
    "--retry-ids": replacing.IDS,
    "--cap-ids": replacing.IDS,
}
"""What stands in a file that collect wrote before, by flag."""

_RECORDS: Final = frozenset({rundir.MERGED, rundir.SUMMARY})


def choose_files(run: RunDir, named: Sequence[str], *, rehearsal: bool) -> list[str]:
    """Return the results files to read, each once.

    Rehearsals stand apart: a pattern such as ``results/*.jsonl`` names them too, and they are left out all the same
    (or the other files of results/, where the rehearsals are wanted), unless nothing else is named.

    Raises:
        InputError: A file is not there, or none of those that were named is wanted.
    """
    problems = [Problem("missing_file", "no such file", path) for path in named if not os.path.isfile(path)]
    if problems:
        raise InputError(
            f"{len(problems)} results file(s) cannot be read",
            hint="without names, collect takes every file of results/",
            problems=problems,
        )
    wanted = [path for path in named if _is_wanted(run, path, rehearsal=rehearsal)]
    if named and not wanted:
        raise _nothing_of_the_kind([Problem("other_kind", _OTHER_KIND[rehearsal], path) for path in named])
    once: dict[str, str] = {}
    for path in wanted if named else run.results(rehearsal=rehearsal):
        once.setdefault(os.path.realpath(path), path)
    return list(once.values())


def _is_wanted(run: RunDir, path: str, *, rehearsal: bool) -> bool:
    """Tell by its name whether a named file is read: outside of results/ a rehearsal may be called anything."""
    if os.path.basename(path).startswith(rundir.REHEARSAL_PREFIX):
        return rehearsal
    return not rehearsal or not _is_in_results(run, path)


def _is_in_results(run: RunDir, path: str) -> bool:
    return os.path.dirname(os.path.realpath(path)) == os.path.realpath(run.file(rundir.RESULTS))


_OTHER_KIND: Final = {
    False: "holds a rehearsal, which counts for nothing unless --rehearsal asks for it",
    True: "holds real answers; --rehearsal reads rehearsals alone",
}
"""What is wrong with a file of the other kind, by whether rehearsals are wanted."""


def check_named(run: RunDir, named: Sequence[str], read: Sequence[FileFacts], *, rehearsal: bool) -> list[str]:
    """See that what the user named had something to say; return what to say of the empty files.

    A file of results/ may have come in with a pattern, and a crash at its first answer leaves nothing whole in it: it
    is let be as long as another one has results.

    Args:
        run: The run.
        named: The files that were named.
        read: Files as they were read.
        rehearsal: Whether rehearsals were wanted.

    Raises:
        InputError: A file holds no attempt, or none of the kind that is wanted; all such files are listed.
    """
    wanted = {os.path.realpath(path) for path in named}
    silent = [file for file in read if file.records == file.left_out and os.path.realpath(file.path) in wanted]
    is_all = len(silent) == len(read)
    problems = [
        Problem("other_kind", _OTHER_KIND[rehearsal], file.path)
        if file.left_out
        else Problem("no_results", "holds no line that is an attempt, or that a provider's batch API wrote", file.path)
        for file in silent
        if (file.left_out or file.torn_lines) and (is_all or not _is_in_results(run, file.path))
    ]
    if problems:
        raise _nothing_of_the_kind(problems)
    return [f"{file.name} is empty" for file in silent if not file.left_out and not file.torn_lines]


def _nothing_of_the_kind(problems: Sequence[Problem]) -> InputError:
    return InputError(
        f"{len(problems)} results file(s) that were named hold no results to collect",
        hint="name files of results/, or none: then collect takes all of them but rehearsals",
        problems=problems,
    )


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
    if write and (why := replacing.why_not(summary_path(write), replacing.SUMMARY)):
        problems.append(Problem("target", f"the place of the summary: {why}", summary_path(write)))
    if problems:
        raise InputError(
            f"{len(problems)} output(s) cannot be written there; nothing was written",
            hint="choose another place, or move away what stands there",
            problems=problems,
        )


def _row_fields(run: RunDir) -> set[str]:
    """Return the fields of ours that every line of ``--rows`` has."""
    schema = (run.info.get("answer") or {}).get("output_schema")
    return {"error", *schema["fields"]} if schema else {"model", "raw_response", "parsed_answer", "error"}


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
    if not os.path.isdir(os.path.dirname(real)):
        return "would stand in a folder that does not exist"
    why = replacing.why_not(real, _KINDS[flag], _row_fields(run))
    return why and f"may not replace this file, which {why}"


def _is_not_ours(run: RunDir, flag: str, real: str) -> bool:
    """Tell whether a path is one of the files of a run that others write, or lies in one of its folders.

    The records are only for ``--write``, and only those of the run itself.
    """
    folder, name = os.path.split(real)
    if name in _RECORDS and folder == rundir.run_around(real):
        return flag != "--write" or name != rundir.MERGED or folder != os.path.realpath(run.path)
    return rundir.run_around(real) is not None and rundir.belongs_to_run(real)


def breaks_seal(run: RunDir, written: Iterable[str]) -> bool:
    """Tell whether the run's folder is sealed and something was written into it, which the seal does not know."""
    home = os.path.realpath(run.path)
    return run.is_sealed and any(rundir.run_around(path) == home for path in written)
