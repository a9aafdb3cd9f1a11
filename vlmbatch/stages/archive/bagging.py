"""bag: the run folder as the payload of a BagIt 1.0 bag (RFC 8493), described by an RO-Crate.

Source: RFC 8493: structure in section 2, percent-encoding of names in 2.1.3, Payload-Oxum in 2.2.2.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

from vlmbatch import __version__, jsonl
from vlmbatch.errors import IntegrityError, Problem
from vlmbatch.records import Event
from vlmbatch.rundir import SEALED, parse_sums
from vlmbatch.stages.archive.base import Hashed, check_frozen, check_new, copy_hashed, list_files, write_new
from vlmbatch.stages.archive.crate import METADATA, describe
from vlmbatch.stages.folders import new_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vlmbatch.rundir import RunDir

_PAYLOAD = "data/"
_ENCODED = {"%": "%25", "\n": "%0A", "\r": "%0D"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BagOptions:
    """What a bag says of itself beyond what the run knows.

    Attributes:
        license: Address (or words) of the licence of the whole; empty = the crate says that none is stated.
        date: Day of bagging; None = today, UTC.
    """

    license: str = ""
    date: date | None = None


@dataclass(frozen=True, slots=True)
class BagResult:
    """What was packed.

    Attributes:
        fingerprint: The run's fingerprint.
        path: The bag.
        files: Payload files, the crate's description included.
        bytes: Their bytes.
        sealed: Whether the folder was sealed when it was packed.
    """

    fingerprint: str
    path: str
    files: int
    bytes: int
    sealed: bool


def bag(
    run: RunDir, dest: str, options: BagOptions | None = None, *, on_event: Callable[[Event], None] | None = None
) -> BagResult:
    """Copy the run folder into a new bag and describe it.

    Raises:
        InputError: The destination exists, or the folder holds links; or somebody is working on the run.
        IntegrityError: A frozen file, or a file under the seal, is not what it was; no bag is left.
        OSError: A file cannot be read or written.
    """
    check_new(run, dest)
    options = options or BagOptions()
    day = options.date or datetime.now(UTC).date()
    with run.lock(), run.lock("rehearsal"), new_folder(dest) as folder:
        names = list_files(run.path)
        payload: dict[str, Hashed] = {}
        for name in names:
            payload[name] = copy_hashed(run.file(name), folder, _PAYLOAD + name)
            if on_event:
                on_event(Event("progress", "bag", done=len(payload), total=len(names), data={"unit": "files"}))
        check_frozen(run, payload)
        _check_seal(run, payload)
        crate = describe(run, payload, license_=options.license, day=day)
        payload[METADATA] = write_new(folder, _PAYLOAD + METADATA, jsonl.dumps_pretty(crate))
        _write_tags(run, folder, payload, day)
    size = sum(facts.bytes for facts in payload.values())
    return BagResult(run.fingerprint, os.path.abspath(dest), len(payload), size, SEALED in payload)


def _check_seal(run: RunDir, payload: Mapping[str, Hashed]) -> None:
    """Check the copies against the seal, where there is one.

    Raises:
        IntegrityError: The folder has changed since it was sealed.
    """
    if SEALED not in payload:
        return
    with open(run.file(SEALED), "rb") as file:
        sealed = parse_sums(file.read())
    changed = {name for name, digest in sealed.items() if name not in payload or payload[name].sha256 != digest}
    changed |= payload.keys() - sealed.keys() - {SEALED}
    if changed:
        raise IntegrityError(
            f"{run.path}: {len(changed)} file(s) changed since the folder was sealed",
            hint="seal it again if that was meant",
            problems=[
                Problem("not_as_sealed", "differs from the seal, or is not in it", name) for name in sorted(changed)
            ],
        )


def _write_tags(run: RunDir, folder: str, payload: Mapping[str, Hashed], day: date) -> None:
    size = sum(facts.bytes for facts in payload.values())
    info = {
        "Bag-Software-Agent": f"vlmbatch {__version__}",
        "Bagging-Date": day.isoformat(),
        "External-Description": f"vlmbatch run folder: {run.requests} requests to {run.info['model']}",
        "External-Identifier": f"vlmbatch-fingerprint:{run.fingerprint}",
        "Internal-Sender-Identifier": run.name,
        "Payload-Oxum": f"{size}.{len(payload)}",
    }
    tags = {
        "bagit.txt": "BagIt-Version: 1.0\nTag-File-Character-Encoding: UTF-8\n",
        "bag-info.txt": "".join(f"{name}: {_one_line(value)}\n" for name, value in info.items()),
        "manifest-sha256.txt": _sums({_PAYLOAD + name: facts for name, facts in payload.items()}),
    }
    written = {name: write_new(folder, name, text.encode("utf-8", "surrogateescape")) for name, text in tags.items()}
    write_new(folder, "tagmanifest-sha256.txt", _sums(written).encode())


def _one_line(value: str) -> str:
    return " ".join(value.split())


def _sums(hashed: Mapping[str, Hashed]) -> str:
    """Return hashes in the form of a BagIt manifest."""
    return "".join(f"{hashed[name].sha256}  {_encoded(name)}\n" for name in sorted(hashed))


def _encoded(name: str) -> str:
    return "".join(_ENCODED.get(character, character) for character in name)
