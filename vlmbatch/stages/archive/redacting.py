"""redact: a copy of the run without image bytes, paths or prompts, in which every row can still be proven.

What is left out is of two kinds. *Images* are named by the hash of their bytes, which nobody guesses: where a base64
string stood in a frozen line, its hash stands instead, and whoever has the image puts it back and finds the line's own
hash. *Paths, rows and the like* can be guessed, so a plain hash of one would give it away: they become commitments,
HMAC-SHA256 under a random salt for each row, and the salts go into a file of openings that stays at home. Handing on
one line of the openings proves one row and tells nothing of the others.

A file that is none of the run's own (an export, say) may hold anything, so it never goes into the copy.

Hashes that the folder held before (of the lines, the bodies, the whole files) stay as they are; they are what ties the
copy to the run. docs/how-to/hand-over.md says what they let a reader confirm.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from vlmbatch import __version__, jsonl
from vlmbatch.errors import InputError, IntegrityError
from vlmbatch.records import Event, Status
from vlmbatch.rundir import (
    BATCHES,
    INPUTS,
    MANIFEST,
    MERGED,
    ORIGINALS,
    RECORD_FILES,
    RECORD_FOLDERS,
    REDACTED,
    REJECTED,
    RUN_JSON,
    SHA256SUMS,
    SUMMARY,
    VERIFY,
    LineReader,
)
from vlmbatch.stages.archive.base import (
    Hashed,
    check_frozen,
    check_new,
    copy_hashed,
    hash_files,
    list_files,
    sums_text,
    verify_script,
    write_new,
    write_pieces,
)
from vlmbatch.stages.archive.commitments import Blinds
from vlmbatch.stages.folders import new_folder
from vlmbatch.stages.reporting.inline import iter_images

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from vlmbatch.records import Entry
    from vlmbatch.rundir import RunDir

IMAGES = "images"
PATHS = "paths"
PROMPTS = "prompts"
REDACTED_SCHEMA = "vlmbatch.redacted/1"
OPENINGS = ".openings.jsonl"
_HIDDEN = "withheld"
_ECHOING = frozenset({Status.HTTP_ERROR, Status.NETWORK_ERROR, Status.INVALID_JSON})
"""Their reasons are in the words of servers, which quote prompts, and of the JSON Schema."""
_REWRITTEN = (RUN_JSON, MANIFEST, MERGED)
_WITH_WORDS = (SUMMARY, BATCHES)
_RENEWED = (SHA256SUMS, VERIFY)
_SAFE_SOURCE = frozenset({"kind", "sha256", "count"})
_SAFE_REQUEST = frozenset({"method", "url", "headers"})
_KEPT, _REPLACED, _LEFT_OUT = "kept", "replaced", "withheld"
_STATES = (_KEPT, _REPLACED, _LEFT_OUT)


@dataclass(frozen=True, slots=True)
class RedactResult:
    """What was left out, and where the copy is.

    Attributes:
        fingerprint: The fingerprint of the original run.
        path: The copy.
        what: What was left out; ``prompts`` takes ``images`` with it.
        openings: File that proves rows of the copy, to be kept at home; None where nothing was committed to.
        kept: Files copied as they are.
        replaced: Files rewritten without what was to go.
        withheld: Files left out whole.
    """

    fingerprint: str
    path: str
    what: tuple[str, ...]
    openings: str | None
    kept: tuple[str, ...]
    replaced: tuple[str, ...]
    withheld: tuple[str, ...]


def redact(
    run: RunDir,
    dest: str,
    what: Collection[str],
    *,
    keep_fields: Collection[str] = (),
    on_event: Callable[[Event], None] | None = None,
) -> RedactResult:
    """Write a copy of the run folder without what must not leave the house.

    Args:
        run: The run.
        dest: The copy, a new folder. The openings go beside it, named ``DEST.openings.jsonl``, readable by you alone.
        what: Any of ``images`` (bytes of images), ``paths`` (paths, the rows' own fields, the source's name, the
            configuration) and ``prompts`` (prompts, the rows' own fields, frozen lines whole, raw results).
        keep_fields: Fields of the rows that may stay.
        on_event: Called with progress (files done).

    Raises:
        InputError: Nothing or something unknown is to go, or the copy or the openings exist already.
        IntegrityError: A frozen file is not what build wrote; no copy is left.
        OSError: A file cannot be read or written.
    """
    check_redact(run, dest, what)
    going, openings = _going(what), os.path.abspath(dest) + OPENINGS
    with run.lock(), run.lock("rehearsal"), new_folder(dest) as folder:
        originals = hash_files(run.path, list_files(run.path))
        check_frozen(run, originals)
        blinds = Blinds(run, frozenset(keep_fields))
        copy = _Copy(run, folder, going, originals, blinds)
        for name in originals:
            copy.take(name)
            if on_event:
                on_event(
                    Event("progress", "redact", done=len(copy.states), total=len(originals), data={"unit": "files"})
                )
        copy.finish()
        if blinds.is_used:
            _write_secret(openings, blinds.openings(copy.opened))
    states = {state: tuple(name for name, is_ in copy.states.items() if is_ == state) for state in _STATES}
    return RedactResult(
        run.fingerprint,
        os.path.abspath(dest),
        tuple(sorted(going)),
        openings if blinds.is_used else None,
        states[_KEPT],
        states[_REPLACED],
        states[_LEFT_OUT],
    )


def check_redact(run: RunDir, dest: str, what: Collection[str]) -> None:
    """Check that a copy can be made, before anything is.

    Raises:
        InputError: Nothing or something unknown is to go, or the copy or the openings exist already.
    """
    _going(what)
    check_new(run, dest)
    openings = os.path.abspath(dest) + OPENINGS
    if os.path.lexists(openings):
        raise InputError(f"{openings}: exists already", hint="it proves an earlier copy; choose a new name")


def _going(what: Collection[str]) -> frozenset[str]:
    unknown = set(what) - {IMAGES, PATHS, PROMPTS}
    if unknown or not what:
        raise InputError(
            f"redact: {', '.join(sorted(unknown)) or 'nothing'} cannot be left out",
            hint=f"name any of {IMAGES}, {PATHS}, {PROMPTS}",
        )
    return frozenset(what) | ({IMAGES} if PROMPTS in what else set())


def _write_secret(path: str, lines: Iterator[bytes]) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.writelines(line + b"\n" for line in lines)
        jsonl.finish(file)


# --- the copy ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Copy:
    """The copy in the making: each file is kept, rewritten or left out."""

    run: RunDir
    folder: str
    going: frozenset[str]
    originals: Mapping[str, Hashed]
    blinds: Blinds
    states: dict[str, str] = field(default_factory=dict)
    opened: dict[str, Any] = field(default_factory=dict)
    _written: dict[str, Hashed] = field(default_factory=dict)

    def take(self, name: str) -> None:
        """Do with one file what has to be done."""
        if name in _RENEWED:
            self.states[name] = _REPLACED
        elif self._goes(name):
            self.states[name] = _LEFT_OUT
        elif (pieces := self._rewritten(name)) is not None:
            self.states[name] = _REPLACED
            self._written[name] = write_pieces(self.folder, name, pieces)
        else:
            self.states[name] = _KEPT
            self._written[name] = copy_hashed(self.run.file(name), self.folder, name)

    def _goes(self, name: str) -> bool:
        """Tell whether a file is left out whole: it is not the run's own, it shows all, or it may echo a prompt."""
        folder = name.partition("/")[0]
        if name not in RECORD_FILES and folder not in RECORD_FOLDERS:
            return True
        if PROMPTS in self.going and folder in RECORD_FOLDERS:
            return True
        return PATHS in self.going and (name == REJECTED or (folder == INPUTS and name not in self._prompt_files()))

    def _prompt_files(self) -> set[str]:
        refs: list[Any] = [self.run.info.get("prompt"), self.run.info.get("system")]
        return {ref["file"] for ref in refs if ref}

    def _rewritten(self, name: str) -> Iterator[bytes] | None:
        """Return the new contents of a file in pieces, None where it stays as it is."""
        if name in self._shard_names():
            return self._shard(name) if IMAGES in self.going else None
        if name in _WITH_WORDS and PROMPTS in self.going:
            return {SUMMARY: self._summary, BATCHES: self._batches}[name]()
        if name not in _REWRITTEN or not {PATHS, PROMPTS} & self.going:
            return None
        return {RUN_JSON: self._run_json, MANIFEST: self._manifest, MERGED: self._merged}[name]()

    def _shard_names(self) -> set[str]:
        return {shard["file"] for shard in self.run.info["shards"]}

    def _run_json(self) -> Iterator[bytes]:
        info: dict[str, Any] = dict(self.run.info)
        blind = ["settings", "extensions"]
        if PATHS in self.going:
            info["source"] = self._blind("source", info.get("source") or {}, _SAFE_SOURCE)
        if PROMPTS in self.going:
            blind.append("answer")
            request = info["request"]
            params = {key: self._blind(f"request.{key}", request[key]) for key in request.keys() - _SAFE_REQUEST}
            info["request"] = {**request, **params}
        for part in blind:
            info[part] = self._blind(part, info.get(part) or {})
        yield jsonl.dumps_pretty(info)

    def _blind(self, part: str, values: dict[str, Any], safe: frozenset[str] = frozenset()) -> dict[str, Any]:
        """Return an object of run.json with commitments in place of what may tell something."""
        blind = dict(values)
        for key in values.keys() - safe:
            name = f"{part}.{key}"
            blind[key] = self.blinds.value(name, values[key])
            if blind[key] is not values[key]:
                self.opened[name] = values[key]
        return blind

    def _manifest(self) -> Iterator[bytes]:
        for line, entry in zip(jsonl.iter_lines(self.run.file(MANIFEST)), self.run.iter_entries(), strict=True):
            head = jsonl.loads(line.data)
            yield self._blind_record(head, entry)

    def _merged(self) -> Iterator[bytes]:
        lines = jsonl.iter_lines(self.run.file(MERGED))
        for line, entry in zip_longest(lines, self.run.iter_entries()):
            known = jsonl.parse_object(line.data) if line else None
            if line is None or known is None or entry is None or known.get("custom_id") != entry.custom_id:
                raise _not_ours(self.run.file(MERGED), "holds other records than one for each request, in order")
            record = jsonl.loads_exact(line.data)
            if PROMPTS in self.going:
                _hide_echoes(record)
            yield self._blind_record(record, entry)

    def _summary(self) -> Iterator[bytes]:
        with open(self.run.file(SUMMARY), "rb") as file:
            summary = jsonl.parse_object(file.read())
        if summary is None:
            raise _not_ours(self.run.file(SUMMARY), "is no summary")
        for cause in summary.get("reasons") or ():
            _hide_echoes(cause)
        yield jsonl.dumps_pretty(summary)

    def _batches(self) -> Iterator[bytes]:
        """Yield the journal without the words of providers (a torn line goes whole)."""
        for line in jsonl.iter_lines(self.run.file(BATCHES)):
            event = jsonl.parse_object(line.data)
            if event is not None:
                yield jsonl.dumps({**event, "why": _HIDDEN} if event.get("why") else event) + b"\n"

    def _blind_record(self, value: dict[str, Any], entry: Entry) -> bytes:
        if PATHS in self.going:
            value["images"] = self.blinds.images(entry.custom_id, entry.images)
        value["row"] = self.blinds.row(entry.custom_id, entry.row)
        return jsonl.dumps(value) + b"\n"

    def _shard(self, name: str) -> Iterator[bytes]:
        """Yield a shard's lines with the hash of each image where its base64 stood."""
        with LineReader(self.run) as lines:
            for entry in self.run.iter_entries():
                if entry.shard == name:
                    yield _without_images(lines.line(entry), entry) + b"\n"

    def finish(self) -> None:
        """Write what stands beside the copied files: what was done, the originals' hashes, the check, the copy's."""
        original = {name: self.originals[name]._asdict() for name in self.states}
        note = {
            "schema": REDACTED_SCHEMA,
            "tool": {"name": "vlmbatch", "version": __version__},
            "fingerprint": self.run.fingerprint,
            "what": sorted(self.going),
            "files": [{"file": name, "state": self.states[name], **original[name]} for name in self.states],
        }
        self._written[REDACTED] = write_new(self.folder, REDACTED, jsonl.dumps_pretty(note))
        self._written[ORIGINALS] = write_new(self.folder, ORIGINALS, sums_text(self.originals))
        self._written[VERIFY] = write_new(self.folder, VERIFY, verify_script())
        write_new(self.folder, SHA256SUMS, sums_text(self._written))


def _not_ours(path: str, why: str) -> IntegrityError:
    return IntegrityError(f"{path}: {why}", hint="collect with --write again; no copy was left")


def _hide_echoes(value: dict[str, Any]) -> None:
    """Take out of a record, or a cause of the summary, what may echo the request: words of servers and of a schema."""
    if value.get("status") in _ECHOING and value.get("reason"):
        value["reason"] = _HIDDEN
    if value.get("error"):
        value["error"] = {**value["error"], "message": _HIDDEN}


def _without_images(line: bytes, entry: Entry) -> bytes:
    pieces, at = [], 0
    for image in iter_images(line, entry.images):
        pieces += [line[at : image.start], f"sha256:{image.sha256}".encode()]
        at = image.end
    return b"".join((*pieces, line[at:]))
