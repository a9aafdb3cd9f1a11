"""A results file, line by line: attempts of ours and a provider's own lines become outcomes."""

from __future__ import annotations

import base64
import binascii
import os
from typing import TYPE_CHECKING, Any, cast

from vlmbatch import jsonl, rundir
from vlmbatch.attempts.shape import Outcome
from vlmbatch.errors import InputError, SchemaVersionError
from vlmbatch.records import ATTEMPT_SCHEMA, ErrorType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vlmbatch.journal import Job
    from vlmbatch.providers.base import Provider
    from vlmbatch.records import ErrorInfo, Try
    from vlmbatch.rundir import RunDir

_REALTIME, _BATCH = "realtime", "batch"
_LONGEST_S = 1e9
_OUTCOMES = frozenset({"status_code", "error", "response", "response_text", "response_base64", "result", "latency_s"})
"""What a line has that tells what became of a request; a line of the manifest or of a shard has none of them."""


class Reader:
    """One results file, read in order; iterate once, then ``torn`` and ``lines`` are complete.

    Args:
        path: The file.
        run: The run.
        provider: Its adapter.
        job: The batch job that the file came from, None where the journal knows none.
        span: Start and end of the part that is read, in bytes; its lines are counted from 1.

    Attributes:
        torn: Lines that could not be read (half written, not an object, without an id): they are counted, never
            repaired.
        lines: Lines that could be read.
        path: The file.
        name: The file as records name it.
    """

    def __init__(
        self,
        path: str,
        run: RunDir,
        provider: Provider,
        job: Job | None = None,
        *,
        span: tuple[int, int | None] = (0, None),
    ) -> None:
        self.name = relative_name(path, run)
        self.torn = 0
        self.lines = 0
        self.path = path
        self._span = span
        self._provider = provider
        self._submitted_at = job.submitted_at if job else None
        is_rehearsed = job is not None and job.rehearsal  # whatever the file is called now
        self._rehearsal = is_rehearsed or os.path.basename(path).startswith(rundir.REHEARSAL_PREFIX)

    def __iter__(self) -> Iterator[Outcome]:
        for line in jsonl.iter_lines(self.path, *self._span):
            value = jsonl.parse_object(line.data)
            outcome = None if value is None else self.read(value, line.number)
            if outcome is None:
                self.torn += 1
            else:
                self.lines += 1
                yield outcome

    def read(self, value: dict[str, Any], number: int) -> Outcome | None:
        """Read one parsed line, None where it names no request.

        Raises:
            SchemaVersionError: A newer vlmbatch wrote it in a shape that this one cannot read.
            InputError: It is a line of another kind of file.
        """
        if "line_sha256" in value or "schema" in value:
            return self._attempt(value, number)
        return self._raw(value, number)

    def _attempt(self, value: dict[str, Any], number: int) -> Outcome | None:
        get = value.get
        custom_id, digest = get("custom_id"), get("line_sha256")
        if get("schema") != ATTEMPT_SCHEMA:
            _check_kind(value, f"{self.name}:{number}")
        if not isinstance(custom_id, str) or not isinstance(digest, str) or _OUTCOMES.isdisjoint(value):
            return None
        error, status_code = get("error"), get("status_code")
        status_code = status_code if type(status_code) is int else None
        return Outcome(
            custom_id,
            digest,
            status_code,
            get("response") if "response" in value else _other_body(value),
            None if error is None else _error(error, status_code),
            _text(get("started_at")),
            as_seconds(get("latency_s")),
            _BATCH if get("channel") == _BATCH else _REALTIME,
            _text(get("endpoint")) or "",
            _text(get("request_id")),
            _tries(get("tries")),
            get("rehearsal") is True or self._rehearsal,
            get("final") is not False,
            is_direct if type(is_direct := get("direct")) is bool else None,
            self.name,
            number,
        )

    def _raw(self, value: dict[str, Any], number: int) -> Outcome | None:
        if "superseded" in value and "status" in value:
            raise InputError(
                f"{self.name}: holds records, not results",
                hint="name the files of results/; what collect wrote is not read back",
            )
        line = self._provider.read_batch_line(value)
        if line.custom_id is None or _OUTCOMES.isdisjoint(value):
            return None
        return Outcome(
            line.custom_id,
            status_code=line.status_code,
            body=line.body,
            error=line.error,
            started_at=self._submitted_at,
            latency_s=as_seconds(value.get("latency_s")),
            channel=_BATCH,
            request_id=line.request_id,
            rehearsal=self._rehearsal,
            file=self.name,
            line=number,
        )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _tries(value: Any) -> list[Try]:
    return [cast("Try", one) for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def as_seconds(value: Any) -> float | None:
    """Return a duration that is one, else None."""
    return float(value) if type(value) in {int, float} and 0 <= value < _LONGEST_S else None


def relative_name(path: str, run: RunDir) -> str:
    """Return how records name a results file: relative to the run folder, else its base name."""
    folder = os.path.join(os.path.realpath(run.path), "")
    whole = os.path.realpath(path)
    return whole[len(folder) :].replace(os.sep, "/") if whole.startswith(folder) else os.path.basename(path)


def _check_kind(value: dict[str, Any], where: str) -> None:
    """Check a line whose schema is not ours of today.

    A line says for itself which frozen line it answers; so one of a newer schema is read as long as everything
    that is read of it stands where it stood, and refused otherwise.
    """
    schema = value.get("schema")
    if schema is None:
        return
    try:
        rundir.check_schema(schema, ATTEMPT_SCHEMA, where)
    except SchemaVersionError:
        status_code = value.get("status_code", "absent")
        if not isinstance(value.get("line_sha256"), str) or not (status_code is None or isinstance(status_code, int)):
            raise


def _other_body(value: dict[str, Any]) -> str | bytes | None:
    """Return an answer that was no JSON: its text, or its bytes where it was not even text."""
    text = value.get("response_text")
    if text is not None:
        return str(text)
    encoded = value.get("response_base64")
    if encoded is None:
        return None
    try:
        return base64.b64decode(encoded)
    except (binascii.Error, TypeError, ValueError):
        return b""


def _error(value: Any, status_code: int | None) -> ErrorInfo:
    """Complete an error as the file has it; its type is kept even where it is none of ours (an open list)."""
    if not isinstance(value, dict):
        value = {"message": str(value)}
    error: ErrorInfo = {
        "type": str(value.get("type") or ErrorType.UNKNOWN.value),
        "message": str(value.get("message") or ""),
        "status_code": value.get("status_code", status_code),
        "is_retryable": value.get("is_retryable") is True,
    }
    if value.get("code") is not None:
        error["code"] = str(value["code"])
    return error
