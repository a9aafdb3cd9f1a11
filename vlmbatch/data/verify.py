#!/usr/bin/env python3
# ruff: noqa: D102, T201, UP  (a script for bare Python 3.8, which talks to people)
"""Check a vlmbatch run folder with nothing but Python 3.8 or later: every hash, every id, every count.

    python3 verify.py [FOLDER]                    FOLDER is where this file stands, unless another is named
    python3 verify.py --images DIR [FOLDER]       redacted copy: prove rows with the images that were sent
    python3 verify.py --lines FILE [FOLDER]       redacted copy: prove rows with lines of the original shards
    python3 verify.py --openings FILE [FOLDER]    redacted copy: prove rows with lines of the openings

It reads, writes nothing, and asks nobody. Exit status 0: everything agrees; 1: something does not, or cannot be read.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import hmac
import json
import os
import re
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STATUSES = "ok invalid_json truncated empty_at_cap empty refusal http_error network_error missing".split()  # noqa: SIM905
CUSTOM_ID = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
PLACEHOLDER = re.compile(rb"sha256:([0-9a-f]{64})(?=\")")
NEVER_LISTED = {"SEALED.sha256", "ro-crate-metadata.json"}
SHOWN = 20
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What damage raises: files that are not there, or do not hold what they should."""


class Number(str):
    """A number as it is written, so that no digit changes on the way into a hash."""

    __slots__ = ()


def say(line: str) -> None:
    """Print a line; what a terminal would obey, or cannot show, is escaped, for a folder may hold anything."""
    shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)
    encoding = sys.stdout.encoding or "ascii"
    print(shown.encode(encoding, "backslashreplace").decode(encoding))


class Report:
    """Prints what was checked and what is wrong; a subject is one file or one question."""

    def __init__(self) -> None:
        self.failed = False

    def tell(self, subject: str, said: str, problems: list[str]) -> None:
        """Print the verdict on one subject: what was seen, or its problems."""
        if not problems:
            say(f"ok    {subject}: {said}")
            return
        self.failed = True
        say(f"FAIL  {subject}: {len(problems)} problem(s)")
        for problem in problems[:SHOWN]:
            say(f"      - {problem}")
        if len(problems) > SHOWN:
            say(f"      - and {len(problems) - SHOWN} more")

    def note(self, said: str) -> None:
        """Print something that is no verdict."""
        say(f"note  {said}")


class Folder:
    """A run folder: its files by name, each hashed once.

    ``states`` is what a redacted copy says became of each file: ``kept``, ``replaced`` or ``withheld``. ``hashes`` are
    those of files that were hashed already.
    """

    def __init__(self, path: str, report: Report, hashes: dict[str, str] | None = None) -> None:
        self.path = path
        self.report = report
        self._hashes = dict(hashes or {})
        self.run = self.json("run.json")
        self.redacted = self.json("REDACTED.json") if self.has("REDACTED.json") else None
        files = self.redacted["files"] if self.redacted else []
        self.states = {ref["file"]: ref["state"] for ref in files}
        self.fingerprint = self.redacted["fingerprint"] if self.redacted else fingerprint(self.run)

    def file(self, name: str) -> str:
        """Return the path of a file named relative to the folder; a name that leads out of it is refused."""
        if os.path.isabs(name) or ".." in name.split("/") or "\\" in name:
            raise ValueError(f"{name!r} leads out of the folder")
        return os.path.join(self.path, *name.split("/"))

    def has(self, name: str) -> bool:
        return os.path.isfile(self.file(name))

    def is_kept(self, name: str) -> bool:
        """Tell whether a file should be as it was when the run was made."""
        return bool(self.states.get(name, "kept") == "kept")

    def json(self, name: str) -> Any:
        """Return the object that a file holds."""
        try:
            with open(self.file(name), encoding="utf-8") as file:
                value = json.load(file, parse_int=Number, parse_float=Number)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{name} cannot be read as JSON: {error}") from None
        if not isinstance(value, dict):
            raise ValueError(f"{name} holds no JSON object")  # noqa: TRY004  (one kind of error for one kind of damage)
        return value

    def lines(self, name: str) -> Iterator[bytes]:
        with open(self.file(name), "rb") as file:
            for line in file:
                if line.strip():
                    yield line.rstrip(b"\r\n")

    def sha256(self, name: str) -> str:
        if name not in self._hashes:
            with open(self.file(name), "rb") as file:
                self._hashes[name] = sha256_of(file)
        return self._hashes[name]

    def compare(self, name: str, digest: str) -> list[str]:
        """Return what is wrong with a file that should have this hash."""
        try:
            found = self.sha256(name)
        except (OSError, ValueError) as error:
            return [f"{name!r} cannot be read: {error}"]
        return [] if found == digest else [f"{name!r} has SHA-256 {found}, not {digest}"]

    def names(self) -> Iterator[str]:
        """Yield every file of the folder, and links to folders, but for what is no part of the run."""
        for place, folders, files in os.walk(self.path):
            inside = os.path.relpath(place, self.path).replace(os.sep, "/")
            at_work = (".locks", "slurm") if inside == "." else ()
            folders[:] = [name for name in folders if name not in at_work and not is_temporary(name)]
            links = [name for name in folders if os.path.islink(os.path.join(place, name))]
            for name in files + links:
                if not is_temporary(name):
                    yield name if inside == "." else f"{inside}/{name}"


def is_temporary(name: str) -> bool:
    """Tell whether a name is that of something half written."""
    return name.startswith(".") and name.endswith((".tmp", ".building"))


def is_hidden(name: str) -> bool:
    """Tell whether a file is one that systems leave behind unasked (.DS_Store and the like)."""
    return any(part.startswith(".") or part == "__pycache__" for part in name.split("/"))


def sha256_of(file: Any) -> str:
    """Return the SHA-256 of an open file's bytes."""
    digest = hashlib.sha256()
    for chunk in iter(lambda: file.read(1 << 20), b""):
        digest.update(chunk)
    return digest.hexdigest()


def canonical(value: Any) -> str:
    """Return JSON with sorted keys and no spaces, the form that the fingerprint is taken over."""
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{canonical(key)}:{canonical(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def fingerprint(run: dict[str, Any]) -> str:
    """Return the SHA-256 over run.json without the two keys that tell when and where it was made."""
    asked = {key: value for key, value in run.items() if key not in {"created_at", "host"}}
    return hashlib.sha256(canonical(asked).encode()).hexdigest()


def read_sums(data: bytes) -> dict[str, str]:
    """Return {name: SHA-256} of a list as sha256sum writes it."""
    sums = {}
    for line in data.decode("utf-8", "surrogateescape").split("\n"):
        is_escaped = line.startswith("\\")
        digest, _, name = line[is_escaped:].partition("  ")
        if is_escaped:
            name = "\\".join(part.replace("\\n", "\n").replace("\\r", "\r") for part in name.split("\\\\"))
        if name:
            sums[name] = digest
    return sums


# --- the checks, in the order of the folder's life --------------------------------------------------------------


def check(subject: str, make: Callable[..., Any], folder: Folder, *more: Any) -> Any:
    """Make one check; what keeps it from being made is a problem of its subject, and then there is no result."""
    try:
        return make(folder, *more)
    except UNREADABLE as error:
        said = str(error) if isinstance(error, (OSError, ValueError)) else f"{type(error).__name__}: {error}"
        folder.report.tell(subject, "", [said])
        return None


def check_contents(folder: Folder) -> None:
    """Check what the folder says of itself: what was frozen, the records, and the numbers made from them."""
    check("run.json", check_run, folder)
    check("manifest.jsonl", check_manifest, folder)
    if not folder.has("merged.jsonl") or not folder.has("summary.json"):
        folder.report.note("not collected: there are no records to check")
        return
    counts = check("merged.jsonl", check_merged, folder)
    if counts is not None:
        check("summary.json", check_summary, folder, counts)


def check_sums(folder: Folder, name: str) -> set[str]:
    """Check a list of hashes; return the names that it covers."""
    with open(folder.file(name), "rb") as file:
        sums = read_sums(file.read())
    problems = [problem for one in sorted(sums) for problem in folder.compare(one, sums[one])]
    folder.report.tell(name, f"{len(sums)} file(s) have their hashes", problems if sums else ["lists nothing"])
    return set(sums)


def check_complete(folder: Folder, name: str, covered: set[str]) -> None:
    """Check that a list which covers everything leaves nothing out."""
    extra = sorted(set(folder.names()) - covered - NEVER_LISTED - {name})
    problems = [f"{one!r} is not listed" for one in extra if not is_hidden(one)]
    for one in filter(is_hidden, extra):
        folder.report.note(f"{one!r} is hidden, is not listed, and was not checked")
    folder.report.tell("files", f"nothing is there that {name} does not list", problems)


def check_run(folder: Folder) -> None:
    """Check that every file which run.json names has the hash that it gives."""
    run = folder.run
    refs = [ref for ref in [run["manifest"], *run["shards"], *run.get("inputs", []), run.get("rejected")] if ref]
    kept = [ref for ref in refs if folder.is_kept(ref["file"])]
    problems = [problem for ref in kept for problem in folder.compare(ref["file"], ref["sha256"])]
    of = "" if len(kept) == len(refs) else f" of {len(refs)}"
    said = f"{len(kept)}{of} file(s) that it names are here unchanged, with their hashes"
    folder.report.tell("run.json", said, problems)


def check_manifest(folder: Folder) -> None:
    """Check ids and, where a shard is there as it was frozen, the bytes of every line and body."""
    problems: list[str] = []
    ids: set[str] = set()
    per_shard: dict[str, int] = {}
    shards: dict[str, Any] = {}
    proven = 0
    for number, data in enumerate(folder.lines("manifest.jsonl"), start=1):
        try:
            entry = json.loads(data)
            problems += check_id(entry["custom_id"], ids)
            shard = entry["shard"]
            per_shard[shard] = per_shard.get(shard, 0) + 1
            if folder.is_kept(shard):
                if shard not in shards:
                    shards[shard] = open(folder.file(shard), "rb")  # noqa: SIM115
                problems += check_line(shards[shard], entry)
                proven += 1
        except (OSError, ValueError, KeyError, TypeError) as error:
            problems.append(f"line {number}: {type(error).__name__}: {error}")
    for file in shards.values():
        file.close()
    counted = [("manifest", len(ids), folder.run["manifest"]["requests"])]
    counted += [(ref["file"], per_shard.get(ref["file"], 0), ref["requests"]) for ref in folder.run["shards"]]
    problems += [
        f"{name}: {found} requests, run.json says {told}" for name, found, told in counted if found != int(told)
    ]
    lines = f"{proven} lines and bodies have their hashes" if proven else "no line is here as it was sent"
    said = f"{len(ids)} ids, unique and well formed; {lines}"
    folder.report.tell("manifest.jsonl", said, problems)


def check_id(custom_id: str, ids: set[str]) -> list[str]:
    """Note an id; return what is wrong with it."""
    if custom_id in ids:
        return [f"{custom_id} stands there twice"]
    ids.add(custom_id)
    return [] if CUSTOM_ID.match(custom_id) else [f"{custom_id!r} is no id"]


def check_line(file: Any, entry: dict[str, Any]) -> list[str]:
    """Return what is wrong with one frozen line and the body inside it."""
    file.seek(entry["offset"])
    line = file.read(entry["length"])
    body = line[entry["body_offset"] :][: entry["body_length"]]
    where = f"{entry['custom_id']}: in {entry['shard']},"
    wrong = []
    if hashlib.sha256(line).hexdigest() != entry["line_sha256"]:
        wrong.append(f"{where} its line has another hash")
    if hashlib.sha256(body).hexdigest() != entry["inner_sha256"]:
        wrong.append(f"{where} its body has another hash")
    if file.read(1) != b"\n":
        wrong.append(f"{where} its line does not end where it should")
    return wrong


def check_merged(folder: Folder) -> dict[str, int]:
    """Check that there is one record for each request, in order, with its images and row; return the status counts."""
    problems: list[str] = []
    counts = dict.fromkeys(STATUSES, 0)
    records = folder.lines("merged.jsonl")
    number = 0
    for number, data in enumerate(folder.lines("manifest.jsonl"), start=1):
        found = next(records, None)
        if found is None:
            problems.append(f"ends before line {number} of the manifest")
            break
        try:
            entry, record = json.loads(data), json.loads(found)
            counts[record["status"]] += 1
            wrong = [key for key in ("custom_id", "images", "row") if record[key] != entry[key]]
            problems += [f"line {number}: {key} is not that of {entry['custom_id']} in the manifest" for key in wrong]
        except (ValueError, KeyError, TypeError) as error:
            problems.append(f"line {number}: {type(error).__name__}: {error}")
    if next(records, None) is not None:
        problems.append("has more records than the manifest has requests")
    folder.report.tell("merged.jsonl", f"{number} records, one for each request, in order", problems)
    return counts


def check_summary(folder: Folder, counts: dict[str, int]) -> None:
    """Check summary.json against the records, and against the results files that they were made from."""
    summary = folder.json("summary.json")
    pairs = [(status, summary["counts"].get(status, 0), count) for status, count in counts.items()]
    pairs.append(("requests", summary["requests"], sum(counts.values())))
    problems = [f"{name}: says {told}, the records have {found}" for name, told, found in pairs if int(told) != found]
    if (summary.get("run") or {}).get("fingerprint", folder.fingerprint) != folder.fingerprint:
        problems.append(f"is of another run: fingerprint {summary['run']['fingerprint']}")
    merged = summary.get("merged") or {}
    refs = [*summary.get("files", []), *([merged] if merged.get("file") == "merged.jsonl" else [])]
    for ref in refs:
        if folder.is_kept(ref["file"]) and folder.has(ref["file"]):
            problems += folder.compare(ref["file"], ref["sha256"])
        elif not folder.has(ref["file"]):
            folder.report.note(f"{ref['file']!r}, which the records were made from, is not here")
    said = ", ".join(f"{status} {count}" for status, count in counts.items() if count)
    folder.report.tell("summary.json", f"counts agree: {said}", problems)
    if summary.get("rehearsal") is True:
        folder.report.note("this is a REHEARSAL: no model was asked")


# --- redacted copies ---------------------------------------------------------------------------------------------


def check_redacted(folder: Folder, redacted: dict[str, Any]) -> None:
    """Check that a redacted copy holds what it says; tell what is withheld."""
    problems: list[str] = []
    if folder.is_kept("run.json") and fingerprint(folder.run) != folder.fingerprint:
        problems.append(f"states a fingerprint that is not run.json's: {folder.fingerprint}")
    for ref in redacted["files"]:
        if ref["state"] == "kept":
            problems += folder.compare(ref["file"], ref["sha256"])
        elif ref["state"] == "withheld" and folder.has(ref["file"]):
            problems.append(f"{ref['file']!r} is there although it is withheld")
    states = list(folder.states.values())
    kept, replaced, withheld = (states.count(state) for state in ("kept", "replaced", "withheld"))
    said = f"of the run's {len(states)} files {kept} are here unchanged, {replaced} rewritten, {withheld} left out"
    folder.report.tell("REDACTED.json", said, problems)
    folder.report.note("what is not here is named by its hash; those of the original files are in ORIGINALS.sha256")


def check_placeholders(folder: Folder, images: dict[str, str]) -> None:
    """Check that redacted lines name the manifest's images; where these are given, prove the lines with them."""
    names = [ref["file"] for ref in folder.run["shards"] if folder.states.get(ref["file"]) == "replaced"]
    shards = {name: folder.lines(name) for name in names}
    problems: list[str] = []
    lines = proven = 0
    for entry in map(json.loads, folder.lines("manifest.jsonl") if names else ()):
        line = next(shards.get(entry["shard"], iter(())), b"")
        wanted = {(image.get("sent") or image)["sha256"] for image in entry["images"] if "file_id" not in image}
        named = {digest.decode() for digest in PLACEHOLDER.findall(line)}
        lines += 1
        if not line or wanted - named:
            problems.append(f"{entry['custom_id']}: its line is not there, or does not name its images")
        elif wanted <= images.keys():
            whole = PLACEHOLDER.sub(lambda match: put_back(match, wanted, images), line)  # noqa: B023
            proven += 1
            if hashlib.sha256(whole).hexdigest() != entry["line_sha256"]:
                problems.append(f"{entry['custom_id']}: with its images, its line has another hash")
    if names:
        said = f"{lines} lines name the images that were taken out of them, "
        said += f"{proven} are proven with those given" if images else "which prove them (--images DIR)"
        folder.report.tell("shards", said, problems)


def put_back(match: Any, wanted: set[str], images: dict[str, str]) -> bytes:
    """Return the base64 of an image in place of its hash; any other text that looks like one stays."""
    digest = match.group(1).decode()
    if digest not in wanted:
        return bytes(match.group(0))
    with open(images[digest], "rb") as file:
        return base64.b64encode(file.read())


def find_images(path: str) -> dict[str, str]:
    """Return {SHA-256: path} of every file below a folder."""
    found = {}
    for place, _, files in os.walk(path):
        for name in files:
            with open(os.path.join(place, name), "rb") as file:
                found[sha256_of(file)] = os.path.join(place, name)
    return found


def prove_lines(folder: Folder, path: str) -> None:
    """Prove rows with lines of the original shards: each has the hash of a request."""
    entries = map(json.loads, folder.lines("manifest.jsonl"))
    wanted = {entry["line_sha256"]: entry["custom_id"] for entry in entries}
    with open(path, "rb") as file:
        found = [wanted.get(hashlib.sha256(line.rstrip(b"\n")).hexdigest()) for line in file]
    problems = [f"line {number} is no request of this run" for number, one in enumerate(found, start=1) if one is None]
    folder.report.tell("lines", f"{len(set(found))} of {len(wanted)} requests proven", problems)


def prove_openings(folder: Folder, path: str) -> None:
    """Prove withheld values: each opening gives the commitment that stands in the copy."""
    with open(path, "rb") as file:
        opened = {opening["custom_id"]: opening for opening in map(json.loads, file)}
    problems: list[str] = []
    proven = 0
    entries = [{**folder.run, "custom_id": ""}] if "" in opened else []
    entries += [one for one in map(json.loads, folder.lines("manifest.jsonl")) if one["custom_id"] in opened]
    for entry in entries:
        opening = opened.pop(entry["custom_id"])
        for name, value in opening["values"].items():
            stands = commitment_at(entry, name)
            if stands is not None and commit(opening["salt"], name, value) == stands:
                proven += 1
            elif stands is not None:
                problems.append(f"{entry['custom_id'] or 'run.json'}: {name} is not what was withheld")
    problems += [f"{custom_id} is no request of this run" for custom_id in opened]
    folder.report.tell("openings", f"{proven} withheld values proven", problems)


def commit(salt: str, name: str, value: str) -> str:
    """Return the commitment to a value: HMAC-SHA256 under the salt, over the field's name and the value."""
    data = name.encode() + b"\0" + value.encode("utf-8", "surrogatepass")
    return "hmac-sha256:" + hmac.new(bytes.fromhex(salt), data, hashlib.sha256).hexdigest()


def commitment_at(place: Any, name: str) -> Any:
    """Return the commitment that stands for a field, None where the field stands openly."""
    for part in name.split("."):
        place = place[int(part)] if isinstance(place, list) else (place or {}).get(part)
    if isinstance(place, dict):
        place = place.get("vlmbatch_withheld")
    return place if isinstance(place, str) and place.startswith("hmac-sha256:") else None


# --- the door ----------------------------------------------------------------------------------------------------


def verify(folder: Folder, options: argparse.Namespace) -> bool:
    """Check everything; return whether it agrees."""
    copy = f", a redacted copy without {', '.join(folder.redacted['what'])}" if folder.redacted else ""
    say(f"vlmbatch run folder {folder.path!r}{copy}")
    covered = check("SHA256SUMS", check_sums, folder, "SHA256SUMS")
    if folder.redacted:
        check("files", check_complete, folder, "SHA256SUMS", covered or set())
        check("REDACTED.json", check_redacted, folder, folder.redacted)
    elif folder.has("SEALED.sha256"):
        sealed = check("SEALED.sha256", check_sums, folder, "SEALED.sha256")
        check_complete(folder, "SEALED.sha256", sealed or set())
    else:
        folder.report.note("not sealed: what was frozen is checked, and what can be told from it")
    check_contents(folder)
    if folder.redacted:
        check_placeholders(folder, find_images(options.images) if options.images else {})
    if options.openings:
        prove_openings(folder, options.openings)
    if options.lines:
        prove_lines(folder, options.lines)
    stated = "" if folder.is_kept("run.json") else " (as REDACTED.json states it)"
    say(f"{'NOT VERIFIED' if folder.report.failed else 'VERIFIED'}  fingerprint {folder.fingerprint}{stated}")
    return not folder.report.failed


def main() -> None:
    """Read the command line, check, and leave with 0 or 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default=os.path.dirname(os.path.abspath(__file__)))
    for name, metavar in (("--images", "DIR"), ("--lines", "FILE"), ("--openings", "FILE")):
        parser.add_argument(name, metavar=metavar)
    options = parser.parse_args()
    try:
        is_sound = verify(Folder(options.folder, Report()), options)
    except UNREADABLE as error:
        is_sound = False
        say(f"NOT VERIFIED  {type(error).__name__}: {error}")
    sys.exit(0 if is_sound else 1)


if __name__ == "__main__":
    main()
