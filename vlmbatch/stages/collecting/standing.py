"""What stands in the folder already, held against what comes of the results now, and against the folder's seal."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vlmbatch import jsonl, rundir
from vlmbatch.errors import IntegrityError, Problem
from vlmbatch.stages.collecting.gate import Check
from vlmbatch.stages.collecting.outputs import MergedFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from vlmbatch.records import Review
    from vlmbatch.rundir import RunDir
    from vlmbatch.stages.collecting.compare import Side
    from vlmbatch.stages.collecting.facts import FileFacts

_BY_THE_WAY: Final = ("tool", "checks")
"""Members of a summary that follow from the program and its flags, not from the results."""
_NAMED: Final = 5
_SHORT: Final = 60


# --- the seal --------------------------------------------------------------------------------------------------------


class SealState(NamedTuple):
    """Whether the folder is what it was when it was sealed: files under the seal, and what is wrong with them."""

    files: int
    problems: tuple[Problem, ...]

    @property
    def said(self) -> str:
        """What is wrong, in one line: the first few files by name."""
        shown = "; ".join(map(str, self.problems[:_NAMED]))
        more = len(self.problems) - _NAMED
        return f"{shown}{f'; and {more:,} more' if more > 0 else ''}"

    def as_check(self) -> Check:
        """Return the gate's line."""
        return Check("seal", rundir.SEALED, not self.problems, self.said or f"{self.files:,} files have their hashes")


def check_seal(run: RunDir, read: Sequence[FileFacts]) -> SealState | None:
    """Hold the folder against its seal; None where it has none.

    What was checked or hashed before is not hashed again: frozen files stand for what run.json says of them.

    Args:
        run: The run, its frozen files checked.
        read: The results files, as they were read.
    """
    try:
        with open(run.file(rundir.SEALED), "rb") as file:
            sums = rundir.parse_sums(file.read())
    except FileNotFoundError:
        return None
    known = {name: digest for name, (digest, _) in run.frozen_files().items()}
    known[rundir.RUN_JSON] = jsonl.sha256(run.run_json)
    known |= {file.name: file.sha256 for file in read if file.name.startswith(f"{rundir.RESULTS}/")}

    def problem(name: str) -> Problem | None:
        try:
            found = known.get(name) or jsonl.sha256_file(run.file(name))[0]
        except OSError as error:
            return Problem("missing_file", f"cannot be read ({error.strerror})", name)
        return None if found == sums[name] else Problem("hash_mismatch", "is not what was sealed", name)

    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        problems = [one for one in pool.map(problem, sums) if one]
    problems += [Problem("unsealed", "came after the seal", name) for name in _present(run) if name not in sums]
    return SealState(len(sums), tuple(problems))


def _present(run: RunDir) -> Iterator[str]:
    """Yield the run's own files that may come after a seal."""
    yield from (one for one in sorted(rundir.FILES - {rundir.SEALED}) if os.path.isfile(run.file(one)))
    for path in (*run.results(), *run.results(rehearsal=True)):
        yield f"{rundir.RESULTS}/{os.path.basename(path)}"


# --- the records -----------------------------------------------------------------------------------------------------


def check_written(side: Side, reviews: Mapping[int, Review]) -> None:
    """Check that merged.jsonl and summary.json of the folder are what comes of the results; without either: nothing.

    Args:
        side: The run, read.
        reviews: What reviewers said, by manifest line.

    Raises:
        IntegrityError: One of them is not.
    """
    run = side.run
    if not any(os.path.exists(run.file(name)) for name in (rundir.MERGED, rundir.SUMMARY)):
        return
    with open(os.devnull, "wb") as nowhere:
        merged = MergedFile(nowhere)
        for line in side.lines(reviews):
            merged.put(line)
        made = merged.close()
    problems = [*_compare_merged(run, made), *_compare_summary(run, side.summary, made)]
    if problems:
        raise IntegrityError(
            f"{run.path}: what stands there is not what comes of the results; nothing was sealed",
            hint="collect with the options that it was written with, or write it anew: --write RUN/merged.jsonl --seal",
            problems=problems,
        )


def _compare_merged(run: RunDir, made: Mapping[str, Any]) -> Iterator[Problem]:
    try:
        found, _ = jsonl.sha256_file(run.file(rundir.MERGED))
    except OSError as error:
        yield Problem("missing_file", f"cannot be read ({error.strerror})", rundir.MERGED)
        return
    if found != made["sha256"]:
        yield Problem("hash_mismatch", f"SHA-256 {found}, the results give {made['sha256']}", rundir.MERGED)


def _compare_summary(run: RunDir, summary: Mapping[str, Any], made: Mapping[str, Any]) -> Iterator[Problem]:
    try:
        with open(run.file(rundir.SUMMARY), "rb") as file:
            stands = jsonl.parse_object(file.read())
    except OSError as error:
        yield Problem("missing_file", f"cannot be read ({error.strerror})", rundir.SUMMARY)
        return
    if stands is None:
        yield Problem("damaged", "is no JSON object", rundir.SUMMARY)
        return
    ours = jsonl.loads(jsonl.dumps(dict(summary) | {"merged": {"file": rundir.MERGED, **made}}))
    for name in _BY_THE_WAY:
        stands.pop(name, None)
        ours.pop(name, None)
    yield from (Problem("other_number", said, rundir.SUMMARY) for said in _differences(stands, ours, ""))


def _differences(stands: Any, ours: Any, place: str) -> Iterator[str]:
    """Yield where two JSON values differ, by the path of keys."""
    if isinstance(stands, dict) and isinstance(ours, dict):
        for key in (*ours, *(key for key in stands if key not in ours)):
            yield from _differences(stands.get(key), ours.get(key), f"{place}.{key}" if place else key)
    elif stands != ours:
        yield f"{place} is {_short(stands)}, the results give {_short(ours)}"


def _short(value: Any) -> str:
    text = jsonl.dumps(value).decode()
    return text if len(text) <= _SHORT else "something else"
