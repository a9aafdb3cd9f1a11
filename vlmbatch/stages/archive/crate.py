"""ro-crate-metadata.json: the run told as a Process Run Crate, one action for each step that left files.

It states what the run knows and nothing else: no author, no licence, no time that is not on record. Sources: RO-Crate
1.1, and Process Run Crate 0.5, which builds on it and which a published validator checks.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from vlmbatch import __version__, jsonl
from vlmbatch.attempts import as_seconds, parse_time
from vlmbatch.rundir import (
    BATCHES,
    ESTIMATES,
    INPUTS,
    MANIFEST,
    MERGED,
    PROGRESS,
    REJECTED,
    REPORT,
    RESULTS,
    RUN_JSON,
    SEALED,
    SHA256SUMS,
    SHARDS,
    SUMMARY,
    VERIFY,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import date, datetime

    from vlmbatch.rundir import RunDir
    from vlmbatch.stages.archive.base import Hashed

METADATA = "ro-crate-metadata.json"

_CRATE = "https://w3id.org/ro/crate/1.1"
_PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
_CONTEXT = [f"{_CRATE}/context", {"sha256": "https://w3id.org/ro/terms/workflow-run#sha256"}]
_TOOL = "#vlmbatch"
_MODEL = "#model"
_NO_LICENCE = "No licence is stated here; ask whoever handed this on before you use it."

_WHAT = {
    RUN_JSON: "What was asked, of whom, with what; names the hashes of all frozen files",
    MANIFEST: "One line per request: its id, its images, where its bytes stand and what they hash to",
    REJECTED: "Inputs that could not become a request, each with its reason",
    SHA256SUMS: "Hashes of the frozen files, for sha256sum -c",
    ESTIMATES: "Cost estimates with their prices, source and date",
    BATCHES: "Journal of the provider's batch jobs",
    PROGRESS: "Last snapshot of the run's progress",
    MERGED: "Exactly one record per request, in manifest order",
    SUMMARY: "Counts by status, tokens, cost and checks",
    REPORT: "The run as one page to read in a browser, offline",
    SEALED: "Hashes of everything in the folder, for sha256sum -c",
    VERIFY: "Checks every hash, id and count of the folder with bare Python",
}
_WHAT_IN = {
    SHARDS: "Frozen request lines, byte for byte as they are sent",
    RESULTS: "Answers as they came, one attempt a line",
    INPUTS: "Verbatim copy of an input of build",
}
_FORMATS = {
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".html": "text/html",
    ".py": "text/x-python",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
    ".csv": "text/csv",
}


def describe(run: RunDir, hashed: Mapping[str, Hashed], *, license_: str, day: date) -> dict[str, Any]:
    """Return the crate's description of a run folder with these files.

    Args:
        run: The run.
        hashed: Its files with their hashes.
        license_: Address or words of the licence; empty = none is stated.
        day: Day of publication.
    """
    parts = [_file(name, facts) for name, facts in hashed.items()]
    actions = [action for action in (_built(run, hashed), *_ran(run, hashed), _collected(hashed)) if action]
    return {
        "@context": _CONTEXT,
        "@graph": [
            {
                "@id": METADATA,
                "@type": "CreativeWork",
                "conformsTo": {"@id": _CRATE},
                "about": {"@id": "./"},
            },
            _root(run, license_, day, parts, actions),
            {"@id": _PROFILE, "@type": "CreativeWork", "name": "Process Run Crate", "version": "0.5"},
            *([{"@id": license_, "@type": "CreativeWork", "name": license_}] if _is_address(license_) else []),
            {
                "@id": _TOOL,
                "@type": "SoftwareApplication",
                "name": "vlmbatch",
                "description": "Staged run folders for bulk vision-language-model requests",
                "softwareVersion": run.info.get("tool", {}).get("version", __version__),
            },
            {
                "@id": _MODEL,
                "@type": "SoftwareApplication",
                "name": run.info["model"],
                "description": f"The model as it was asked for, through {run.info['provider']}",
            },
            *actions,
            *parts,
        ],
    }


def _is_address(text: str) -> bool:
    return text.startswith(("https://", "http://"))


def _root(
    run: RunDir, license_: str, day: date, parts: list[dict[str, Any]], actions: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "@id": "./",
        "@type": "Dataset",
        "conformsTo": {"@id": _PROFILE},
        "name": run.name,
        "description": f"A vlmbatch run: {run.requests:,} requests to {run.info['model']}, with frozen requests, "
        "raw answers and one record per request",
        "identifier": f"vlmbatch-fingerprint:{run.fingerprint}",
        "datePublished": day.isoformat(),
        "license": {"@id": license_} if _is_address(license_) else license_ or _NO_LICENCE,
        "hasPart": _ids(part["@id"] for part in parts),
        "mentions": _ids(action["@id"] for action in actions),
    }


def _file(name: str, facts: Hashed) -> dict[str, Any]:
    what = _WHAT.get(name) or _WHAT_IN.get(name.partition("/")[0])
    return {
        "@id": _address(name),
        "@type": "File",
        "name": name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"),
        **({"description": what} if what else {}),
        "contentSize": str(facts.bytes),
        "encodingFormat": _FORMATS.get(os.path.splitext(name)[1], "text/plain"),
        "sha256": facts.sha256,
    }


def _address(name: str) -> str:
    return quote(os.fsencode(name), safe="/")


def _ids(addresses: Iterable[str]) -> Any:
    """Return references; a single one stands alone, as the specification recommends."""
    references = [{"@id": address} for address in addresses]
    return references[0] if len(references) == 1 else references


# --- what happened -------------------------------------------------------------------------------------------


def _action(
    number: str, name: str, description: str, hashed: Mapping[str, Hashed], taken: list[str], made: list[str]
) -> dict[str, Any]:
    return {
        "@id": f"#{number}",
        "@type": "CreateAction",
        "name": name,
        "description": description,
        "instrument": {"@id": _TOOL},
        "object": _ids(_address(one) for one in taken if one in hashed),
        "result": _ids(_address(one) for one in made if one in hashed),
    }


def _within(folder: str, hashed: Mapping[str, Hashed]) -> list[str]:
    return [name for name in hashed if name.startswith(f"{folder}/")]


def _built(run: RunDir, hashed: Mapping[str, Hashed]) -> dict[str, Any]:
    source = run.info.get("source") or {}
    described = f"{source.get('count', run.requests):,} inputs ({source.get('kind', 'unknown')}) became frozen requests"
    made = [RUN_JSON, MANIFEST, REJECTED, SHA256SUMS, *_within(SHARDS, hashed)]
    action = _action("build", "Build the requests", described, hashed, _within(INPUTS, hashed), made)
    created = parse_time(run.info.get("created_at"))
    if created:
        action["endTime"] = _written(created)
    return action


def _ran(run: RunDir, hashed: Mapping[str, Hashed]) -> list[dict[str, Any]]:
    """Return one action for each results file: who answered, from when to when as far as the file tells."""
    actions = []
    for number, name in enumerate(_within(RESULTS, hashed)):
        shards = _within(SHARDS, hashed)
        action = _action(
            f"run-{number}", f"Ask the model ({name})", "Frozen lines sent, answers kept", hashed, shards, [name]
        )
        action["instrument"] = _ids([_TOOL, _MODEL])
        first, last = _span(run.file(name))
        if first and last:
            action |= {"startTime": _written(first), "endTime": _written(last)}
        actions.append(action)
    return actions


def _span(path: str) -> tuple[datetime | None, datetime | None]:
    """Return when the first attempt of a file began and the last one ended; None, None where it does not tell."""
    values = (jsonl.parse_object(line.data) for line in jsonl.iter_lines(path))
    first = last = None
    for value in values:
        time = parse_time(value.get("started_at")) if value else None
        if value and time:
            try:
                end = time + timedelta(seconds=as_seconds(value.get("latency_s")) or 0)
            except OverflowError:  # past the year 9999
                end = time
            first, last = min(first or time, time), max(last or end, end)
    return first, last


def _written(time: datetime) -> str:
    """Return a time with its offset in digits, the form that the profile's shapes take."""
    return time.isoformat(timespec="seconds")


def _collected(hashed: Mapping[str, Hashed]) -> dict[str, Any] | None:
    if MERGED not in hashed:
        return None
    taken = [MANIFEST, *_within(RESULTS, hashed)]
    return _action("collect", "Collect the records", "One record per request", hashed, taken, [MERGED, SUMMARY, REPORT])
