"""What is checked of a run folder: the schema that it is written in, and every frozen byte."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from vlmbatch import jsonl
from vlmbatch.errors import InputError, IntegrityError, Problem, SchemaVersionError
from vlmbatch.records import Event
from vlmbatch.rundir.names import RUN_JSON, SHA256SUMS

if TYPE_CHECKING:
    from collections.abc import Callable

    from vlmbatch.rundir.folder import RunDir

_HAPPENED = ("created_at", "host")
_HEX64 = re.compile(r"[0-9a-f]{64}")


def parse_sums(data: bytes) -> dict[str, str]:
    r"""Parse a list as ``sha256sum`` writes it into {name: digest}; lines of another shape are left out.

    A line that begins with a backslash has its name escaped: ``\\``, ``\n`` and ``\r``.
    """
    sums = {}
    for line in data.decode("utf-8", "surrogateescape").split("\n"):
        is_escaped = line.startswith("\\")
        digest, _, name = line[is_escaped:].partition("  ")
        if is_escaped:
            name = "\\".join(part.replace("\\n", "\n").replace("\\r", "\r") for part in name.split("\\\\"))
        if _HEX64.fullmatch(digest):
            sums[name] = digest
    return sums


def fingerprint(info: dict[str, Any]) -> str:
    """Return the run's fingerprint: SHA-256 over run.json without the keys that tell when and where."""
    return jsonl.sha256(jsonl.dumps_canonical({k: v for k, v in info.items() if k not in _HAPPENED}))


def check_schema(found: object, known: str, where: str) -> None:
    """Check that a file's schema id is one that this program reads.

    Raises:
        SchemaVersionError: It was written by a newer major version.
        InputError: It is no schema id of that kind.
    """
    name, _, major = known.partition("/")
    found_name, _, found_major = str(found).partition("/")
    if found_name != name or not found_major.isdigit():
        raise InputError(f"{where}: schema is {found!r}, expected {known!r}", hint="this is no file of vlmbatch")
    if int(found_major) > int(major):
        raise SchemaVersionError(
            f"{where}: written in {found}, this program reads up to {known}", hint="install a newer vlmbatch"
        )


def verify(run: RunDir, *, on_event: Callable[[Event], None] | None, depth: str) -> None:
    """Check a run's frozen files, as :meth:`RunDir.verify` says.

    Raises:
        IntegrityError: Something differs; every difference is listed.
    """
    expected = run.frozen_files()
    problems = [] if depth == "quick" else _check_sums(run, expected)
    total = sum(size for _, size in expected.values())
    done = 0
    if on_event:
        on_event(Event("start", "verify", total=total, data={"unit": "bytes"}))
    check = partial(_check_size if depth == "quick" else _check_file, run)
    pool = ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1))
    try:
        for problem, size in pool.map(check, expected, *zip(*expected.values(), strict=True)):
            done += size
            problems += problem
            if on_event:
                on_event(Event("progress", "verify", done=done, total=total, data={"unit": "bytes"}))
    finally:
        pool.shutdown(cancel_futures=True)  # whoever stops the checking waits for the files in hand alone
    if problems:
        raise IntegrityError(
            f"{run.path}: {len(problems)} frozen file(s) differ from what build wrote",
            hint="nothing was sent; fetch the folder again, or build a new run",
            problems=problems,
        )


def _check_sums(run: RunDir, expected: dict[str, tuple[str, int]]) -> list[Problem]:
    """Compare SHA256SUMS with run.json; run.json's own hash stands only there."""
    try:
        with open(run.file(SHA256SUMS), "rb") as file:
            sums = parse_sums(file.read())
    except OSError as error:
        return [Problem("missing_file", f"cannot be read ({error.strerror})", SHA256SUMS)]
    want = {name: digest for name, (digest, _) in expected.items()}
    want[RUN_JSON] = jsonl.sha256(run.run_json)
    return [
        Problem("hash_mismatch", f"SHA256SUMS says {sums.get(name, 'nothing')}, expected {digest}", name)
        for name, digest in want.items()
        if sums.get(name) != digest
    ]


def _check_size(run: RunDir, name: str, _digest: str, size: int) -> tuple[list[Problem], int]:
    try:
        found = os.path.getsize(run.file(name))
    except OSError as error:
        return [Problem("missing_file", f"cannot be read ({error.strerror})", name)], max(size, 0)
    if size not in {-1, found}:
        return [Problem("size_mismatch", f"{found} bytes, expected {size}", name)], found
    return [], found


def _check_file(run: RunDir, name: str, digest: str, size: int) -> tuple[list[Problem], int]:
    try:
        found, length = jsonl.sha256_file(run.file(name))
    except OSError as error:
        return [Problem("missing_file", f"cannot be read ({error.strerror})", name)], max(size, 0)
    if found != digest:
        return [Problem("hash_mismatch", f"SHA-256 {found}, expected {digest}", name)], length
    return [], length
