"""The names in a run folder: each file and each folder that the contract knows."""

from __future__ import annotations

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
LOCKS = ".locks"
REHEARSAL_PREFIX = "rehearsal-"
"""How the names of a rehearsal's results files begin."""

FILES: Final = frozenset(
    {
        *(RUN_JSON, MANIFEST, REJECTED, SHA256SUMS, ESTIMATES, BATCHES, PROGRESS),
        *(MERGED, SUMMARY, REPORT, REVIEWS, SEALED, REDACTED, ORIGINALS, VERIFY),
    }
)
"""All files that stand in a run folder by their own names."""

FOLDERS: Final = frozenset({INPUTS, SHARDS, RESULTS, LOCKS})
"""All folders in it."""
