"""The run folder: its names, how it comes to be, how it is opened, checked and read.

A run folder exists whole or not at all: :class:`Draft` is a hidden sibling that is renamed into place at the end.
Nothing here writes into a finished folder but the lock files; results and snapshots go through jsonl.py.
"""

from vlmbatch.rundir.checks import check_schema, fingerprint, parse_sums
from vlmbatch.rundir.draft import Draft
from vlmbatch.rundir.folder import LineReader, RunDir
from vlmbatch.rundir.ids import IdIndex, input_index
from vlmbatch.rundir.lock import Lock
from vlmbatch.rundir.manifest import ID_KEY, ROW_KEY, damaged_line, parse_entry, parse_head
from vlmbatch.rundir.names import (
    BATCHES,
    ESTIMATES,
    FILES,
    FOLDERS,
    INPUTS,
    LOCKS,
    MANIFEST,
    MERGED,
    ORIGINALS,
    PROGRESS,
    REDACTED,
    REHEARSAL_PREFIX,
    REJECTED,
    REPORT,
    RESULTS,
    REVIEWS,
    RUN_JSON,
    SEAL_BROKEN,
    SEALED,
    SHA256SUMS,
    SHARDS,
    SUMMARY,
    VERIFY,
)

__all__ = [
    "BATCHES",
    "ESTIMATES",
    "FILES",
    "FOLDERS",
    "ID_KEY",
    "INPUTS",
    "LOCKS",
    "MANIFEST",
    "MERGED",
    "ORIGINALS",
    "PROGRESS",
    "REDACTED",
    "REHEARSAL_PREFIX",
    "REJECTED",
    "REPORT",
    "RESULTS",
    "REVIEWS",
    "ROW_KEY",
    "RUN_JSON",
    "SEALED",
    "SEAL_BROKEN",
    "SHA256SUMS",
    "SHARDS",
    "SUMMARY",
    "VERIFY",
    "Draft",
    "IdIndex",
    "LineReader",
    "Lock",
    "RunDir",
    "check_schema",
    "damaged_line",
    "fingerprint",
    "input_index",
    "parse_entry",
    "parse_head",
    "parse_sums",
]
