"""The names in a run folder: each file and each folder that the contract knows, and whose a path is by them.

Whoever asks what belongs to a run, or what of it travels, asks here: there is no other list.
"""

from __future__ import annotations

import os
import re
from typing import Final

RUN_JSON = "run.json"
MANIFEST = "manifest.jsonl"
REJECTED = "rejected.jsonl"
INPUTS = "inputs"
SHARDS = "shards"
SHA256SUMS = "SHA256SUMS"
ESTIMATES = "estimates.jsonl"
RESULTS = "results"
BATCHES = "batches.jsonl"
PROGRESS = "progress.json"
MERGED = "merged.jsonl"
SUMMARY = "summary.json"
REPORT = "report.html"
REVIEWS = "reviews.jsonl"
SEALED = "SEALED.sha256"
SEAL_BROKEN = f"the folder was sealed before this: {SEALED} no longer holds; seal it again with collect --seal"
"""What whoever writes into a sealed folder has to say."""
REDACTED = "REDACTED.json"
ORIGINALS = "ORIGINALS.sha256"
VERIFY = "verify.py"
LOGS = "logs"
"""What servers said that were started for the run."""
SLURM = "slurm"
"""What a cluster works with: scripts, pickles, and what tasks said."""
LOCKS = ".locks"
REHEARSAL_PREFIX = "rehearsal-"
"""How the names of a rehearsal's results files begin."""

RECORD_FILES: Final = frozenset(
    {RUN_JSON, MANIFEST, REJECTED, SHA256SUMS, ESTIMATES, BATCHES, PROGRESS, MERGED, SUMMARY, REVIEWS}
)
"""The files that tell what was asked and what came of it."""

RECORD_FOLDERS: Final = frozenset({INPUTS, SHARDS, RESULTS})
"""The folders that do."""

FILES: Final = RECORD_FILES | {REPORT, SEALED, REDACTED, ORIGINALS, VERIFY}
"""All files that stand in a run folder by their own names (parts of a run have ``progress-task-….json`` besides)."""

AT_WORK: Final = frozenset({LOCKS, SLURM})
"""Folders that serve the work on this machine or cluster alone: no part of what is sealed, packed or handed on."""

FOLDERS: Final = RECORD_FOLDERS | AT_WORK | {LOGS}
"""All folders in it."""

_PART_PROGRESS: Final = re.compile(r"progress-task-[0-9]+\.json")


def progress_of(part: int | None) -> str:
    """Return the name of the progress file of a part, None = of the whole run; parts run at the same time."""
    return PROGRESS if part is None else f"progress-task-{part:04d}.json"


def run_around(path: str) -> str | None:
    """Return the run folder that a path lies in, links resolved; None where it lies in none."""
    folder = os.path.dirname(os.path.realpath(path))
    while not os.path.isfile(os.path.join(folder, RUN_JSON)):
        if folder == os.path.dirname(folder):
            return None
        folder = os.path.dirname(folder)
    return folder


def belongs_to_run(path: str) -> bool:
    """Say whether a path is a place in a run folder that the contract names, or the folder: no user's file goes there.

    Whatever lies in one of its folders belongs to it, too, and it is all the same which run the folder is of.
    """
    if os.path.isfile(os.path.join(path, RUN_JSON)):
        return True
    folder = run_around(path)
    if folder is None:
        return False
    first = os.path.relpath(os.path.realpath(path), folder).split(os.sep)[0]
    return first in FILES | FOLDERS or _PART_PROGRESS.fullmatch(first) is not None
