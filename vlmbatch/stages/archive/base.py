"""What sealing, bagging and redacting share: the files of a folder, their hashes, and how a copy is written."""

from __future__ import annotations

import hashlib
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

from vlmbatch import jsonl
from vlmbatch.errors import InputError, IntegrityError, Problem
from vlmbatch.records import Event
from vlmbatch.rundir import AT_WORK, REDACTED, RUN_JSON, SHA256SUMS, parse_sums
from vlmbatch.stages import folders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from vlmbatch.rundir import RunDir

_CHUNK = 1 << 20
_ESCAPED = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}


class Hashed(NamedTuple):
    """SHA-256 (lower-case hex) and length of one file."""

    sha256: str
    bytes: int


def list_files(folder: str) -> list[str]:
    """Return the files of a run folder that travel, relative and sorted.

    What serves the work at hand (locks, what SLURM works with) and half-written temporaries are no part of the run.

    Raises:
        InputError: Something in it would not travel: a link, a special file, a name that is a path elsewhere.
    """
    found: list[str] = []
    odd: list[Problem] = []
    for place, inner, names in os.walk(folder):
        inside = os.path.relpath(place, folder)
        prefix = "" if inside == "." else f"{inside.replace(os.sep, '/')}/"
        left = AT_WORK if inside == "." else frozenset()
        inner[:] = [name for name in inner if name not in left and not _is_temporary(name)]
        for name in (*names, *(one for one in inner if os.path.islink(os.path.join(place, one)))):
            if _is_temporary(name):
                continue
            if not stat.S_ISREG(os.lstat(os.path.join(place, name)).st_mode):
                odd.append(Problem("not_a_file", "a link or special file, which would not travel", prefix + name))
            elif "\\" in name:
                odd.append(Problem("bad_name", "a backslash is a path on other systems", prefix + name))
            found.append(prefix + name)
    if odd:
        raise InputError(
            f"{folder}: {len(odd)} entries would not travel",
            hint="put plain files with plain names there",
            problems=odd,
        )
    return sorted(found)


def _is_temporary(name: str) -> bool:
    """Tell whether a name is that of something half written: ours begin with a dot and end so."""
    return name.startswith(".") and name.endswith((".tmp", ".building"))


def hash_files(
    folder: str, names: Iterable[str], *, on_event: Callable[[Event], None] | None = None
) -> dict[str, Hashed]:
    """Return hash and length of files of a folder, read in threads.

    Raises:
        OSError: A file cannot be read.
    """
    names = list(names)
    paths = [os.path.join(folder, *name.split("/")) for name in names]
    total, done = sum(map(os.path.getsize, paths)), 0
    hashed = {}
    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        for name, facts in zip(names, pool.map(jsonl.sha256_file, paths), strict=True):
            hashed[name] = Hashed(*facts)
            done += facts[1]
            if on_event:
                on_event(Event("progress", "seal", done=done, total=total, data={"unit": "bytes"}))
    return hashed


def check_frozen(run: RunDir, hashed: Mapping[str, Hashed]) -> None:
    """Check that what build froze is still what it was, so that no damage is passed on under a fresh hash.

    Raises:
        InputError: The folder is a redacted copy, which is finished as it is.
        IntegrityError: Frozen files differ or are missing; all of them are listed.
    """
    if REDACTED in hashed:
        raise InputError(
            f"{run.path}: is a redacted copy", hint="it is complete as it is; seal or bag the original before redacting"
        )
    with open(run.file(SHA256SUMS), "rb") as file:
        sums = parse_sums(file.read())
    expected = {name: digest for name, (digest, _) in run.frozen_files().items()}
    expected[RUN_JSON] = jsonl.sha256(run.run_json)
    problems = []
    for name, digest in {**sums, **expected}.items():
        found = hashed[name].sha256 if name in hashed else None
        if found is None:
            problems.append(Problem("missing_file", "is not there", name))
        elif {found, sums.get(name)} != {digest}:
            problems.append(Problem("hash_mismatch", f"SHA-256 {found}, expected {digest}", name))
    if problems:
        raise IntegrityError(
            f"{run.path}: {len(problems)} frozen file(s) differ from what build wrote",
            hint="fetch the folder again; nothing was written",
            problems=problems,
        )


def sums_text(hashed: Mapping[str, Hashed]) -> bytes:
    r"""Return hashes in the form that ``sha256sum -c`` reads; a name with a line break or ``\`` is escaped its way."""
    lines = []
    for name in sorted(hashed):
        escaped = "".join(_ESCAPED.get(character, character) for character in name)
        lines.append(f"{'' if escaped == name else chr(92)}{hashed[name].sha256}  {escaped}\n")
    return "".join(lines).encode("utf-8", "surrogateescape")


def verify_script() -> bytes:
    """Return verify.py, the check that needs nothing but Python."""
    return files("vlmbatch").joinpath("data/verify.py").read_bytes()


def check_new(run: RunDir, target: str) -> None:
    """Check that a new folder can stand in a place, and that it is not the run folder's own.

    Raises:
        InputError: It cannot, or it is.
    """
    folders.check_new(target)
    if os.path.join(os.path.realpath(target), "").startswith(os.path.join(os.path.realpath(run.path), "")):
        raise InputError(f"{target}: lies in the run folder", hint="choose a place outside of it")


def write_new(folder: str, name: str, data: bytes) -> Hashed:
    """Write one whole new file into a folder in the making."""
    return write_pieces(folder, name, (data,))


def copy_hashed(source: str, folder: str, name: str) -> Hashed:
    """Copy one file into a folder in the making; the hash is that of the bytes that were written."""
    with open(source, "rb", buffering=0) as original:
        return write_pieces(folder, name, iter(lambda: original.read(_CHUNK), b""))


def write_pieces(folder: str, name: str, pieces: Iterable[bytes]) -> Hashed:
    """Write one new file piece by piece into a folder in the making."""
    path = os.path.join(folder, *name.split("/"))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    digest, size = hashlib.sha256(), 0
    with jsonl.new_file(path) as file:
        for piece in pieces:
            digest.update(piece)
            size += file.write(piece)
    return Hashed(digest.hexdigest(), size)
