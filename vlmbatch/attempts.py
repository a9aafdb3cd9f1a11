"""Attempts: results files of either kind, read back into one shape.

A file of results/ holds attempts that we wrote, or it is a provider's own batch output, kept raw. Both become
:class:`Outcome` here; nobody above this room needs to know which it was. Files are read line by line, a damaged
line is counted and passed over, and nothing is ever written.
"""

from __future__ import annotations

import base64
import binascii
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from vlmbatch import classify, jsonl, rundir
from vlmbatch.errors import InputError, SchemaVersionError
from vlmbatch.records import ATTEMPT_SCHEMA, MODEL_ANSWERS, Asked, ErrorType, Reading

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from vlmbatch.providers.base import Provider
    from vlmbatch.records import ErrorInfo, Try, Verdict
    from vlmbatch.rundir import RunDir

_OK_FIRST, _OK_LAST = 200, 299
_REALTIME, _BATCH = "realtime", "batch"
_LONGEST_S = 1e9
_OURS = b'{"schema":"%s","custom_id":"' % ATTEMPT_SCHEMA.encode()
_ANSWERED = b',"answered":true}\n'


class Outcome(NamedTuple):
    """One line of a results file: what came of sending one request, by whoever wrote it down.

    Attributes:
        custom_id: The request's id, as the file says it.
        line_sha256: Hash of the line that was sent, None where the file does not tell (a provider's own file).
        status_code: HTTP status of the answer, None where there was none.
        body: The answer: parsed JSON, or text or bytes where it was none, or None where nothing came.
        error: Why there is no answer, as the sender saw it; None where one came.
        started_at: RFC 3339 time at which sending began, None where the file does not tell.
        latency_s: Seconds from then to the end of the answer, None where the file does not tell.
        channel: ``realtime`` or ``batch``.
        endpoint: Where it was sent, empty where the file does not tell.
        request_id: The provider's id of the call.
        tries: The sendings inside the attempt, empty where the file does not tell.
        rehearsal: Whether a rehearsal's provider answered.
        is_final: False where the attempt ended the whole run, so that the row itself is still open.
        is_direct: Whether it went to the provider's own address (False: through a relay), None = not told.
        file: The file, relative to the run folder, or its base name where it lies elsewhere.
        line: 1-based line of the file.
        offset: Byte at which the line starts.
        length: Bytes of the line, without its newline.
    """

    custom_id: str
    line_sha256: str | None
    status_code: int | None
    body: Any
    error: ErrorInfo | None
    started_at: str | None
    latency_s: float | None
    channel: str
    endpoint: str
    request_id: str | None
    tries: list[Try]
    rehearsal: bool
    is_final: bool
    is_direct: bool | None
    file: str
    line: int
    offset: int
    length: int


class Settled(NamedTuple):
    """What resume needs of one line: whose it is, whether the row needs no sending any more, whether a model spoke."""

    custom_id: str
    line_sha256: str | None
    is_settled: bool
    is_answer: bool


# --- the journal of batch jobs, as far as reading results needs it -------------------------------------------


class Job(NamedTuple):
    """One provider batch job, as far as the journal tells.

    Attributes:
        batch_id: The provider's id.
        shard: The shard that it was, empty where it was a choice of rows.
        started_at: When it was submitted.
        sha256: Digest of its lines, empty = not told.
        requests: Number of its lines, 0 = not told.
    """

    batch_id: str = ""
    shard: str = ""
    started_at: str | None = None
    sha256: str = ""
    requests: int = 0


class Journal:
    """What batches.jsonl tells of the raw provider files: which job each is from, and when that began.

    A raw file is known by its name, or, where it was renamed, by its length and hash.
    """

    def __init__(self, events: Iterable[Mapping[str, Any]] = ()) -> None:
        self._jobs: dict[str, Job] = {}
        self._by_name: dict[str, str] = {}
        self._by_hash: dict[tuple[int, str], str] = {}
        for event in events:
            key = event.get("job") or event.get("batch_id")
            if key:  # a rehearsal's job over the same lines has the same key
                self._fold(f"{event.get('rehearsal') is True} {key}", event)

    @classmethod
    def load(cls, run: RunDir) -> Journal:
        """Read the run's journal; a run without one gives an empty journal, a damaged line is passed over."""
        path = run.file(rundir.BATCHES)
        if not os.path.exists(path):
            return cls()
        events = (jsonl.parse_object(line.data) for line in jsonl.iter_lines(path))
        return cls(event for event in events if event is not None)

    def _fold(self, key: str, event: Mapping[str, Any]) -> None:
        """Take one event into account; what it does not tell stays as it was told before."""
        name, at, known = event.get("event"), event.get("at"), self._jobs.get(key, Job())
        is_start = name == "submitted" or known.started_at is None
        self._jobs[key] = Job(
            str(event.get("batch_id") or known.batch_id),
            str(event.get("shard") or known.shard),
            at if is_start and isinstance(at, str) else known.started_at,
            str(event.get("sha256") or known.sha256),
            event["requests"] if isinstance(event.get("requests"), int) else known.requests,
        )
        for ref in event.get("files") or () if name == "downloaded" else ():
            self._by_name[os.path.basename(str(ref.get("file")))] = key
            if "sha256" in ref and "bytes" in ref:
                self._by_hash[ref["bytes"], ref["sha256"]] = key

    def job(self, path: str) -> Job | None:
        """Return the job that a raw file came from, None where the journal does not know it."""
        key = self._by_name.get(os.path.basename(path))
        if key is None and self._by_hash:
            size = os.path.getsize(path)
            if any(size == known for known, _ in self._by_hash):
                key = self._by_hash.get((size, jsonl.sha256_file(path)[0]))
        return None if key is None else self._jobs[key]


# --- reading -------------------------------------------------------------------------------------------------


class Reader:
    """One results file, read in order; iterate once, then ``torn`` and ``lines`` are complete.

    Attributes:
        torn: Lines that could not be read (half written, not an object, without an id): they are counted, never
            repaired.
        lines: Lines that could be read.
        name: The file as records name it.
        job: The batch job that it came from, None where the journal knows none.
        span: Start and end of the part that is read, in bytes; its lines are counted from 1.
    """

    def __init__(
        self,
        path: str,
        run: RunDir,
        provider: Provider,
        journal: Journal | None = None,
        *,
        span: tuple[int, int | None] = (0, None),
        job: Job | None = None,
    ) -> None:
        self.path = path
        self.span = span
        self.name = relative_name(path, run)
        self.torn = 0
        self.lines = 0
        self._provider = provider
        self.job = journal.job(path) if journal else job
        self._rehearsal = os.path.basename(path).startswith(rundir.REHEARSAL_PREFIX)

    def __iter__(self) -> Iterator[Outcome]:
        for line in jsonl.iter_lines(self.path, *self.span):
            value = jsonl.parse_object(line.data)
            outcome = None if value is None else self.read(value, line.number, line.offset, len(line.data))
            if outcome is None:
                self.torn += 1
            else:
                self.lines += 1
                yield outcome

    def read(self, value: dict[str, Any], number: int, offset: int, length: int) -> Outcome | None:
        """Read one parsed line, None where it names no request.

        Raises:
            SchemaVersionError: A newer vlmbatch wrote it in a shape that this one cannot read.
            InputError: It is a line of another kind of file.
        """
        if "line_sha256" in value or "schema" in value:
            return self._attempt(value, number, offset, length)
        return self._raw(value, number, offset, length)

    def read_at(self, number: int, offset: int, length: int) -> Outcome:
        """Read again one line that iterating gave before.

        Raises:
            InputError: The file changed in between.
        """
        with open(self.path, "rb", buffering=0) as file:
            file.seek(offset)
            value = jsonl.parse_object(file.read(length))
        outcome = None if value is None else self.read(value, number, offset, length)
        if outcome is None:
            raise InputError(f"{self.name}: changed while it was being read", hint="run collect again")
        return outcome

    def _attempt(self, value: dict[str, Any], number: int, offset: int, length: int) -> Outcome | None:
        custom_id, digest = value.get("custom_id"), value.get("line_sha256")
        if value.get("schema") != ATTEMPT_SCHEMA:
            _check_kind(value, f"{self.name}:{number}")
        if not isinstance(custom_id, str) or not isinstance(digest, str):
            return None
        get = value.get
        error, status_code, latency_s, tries = get("error"), get("status_code"), get("latency_s"), get("tries")
        status_code = status_code if type(status_code) is int else None
        return Outcome(
            custom_id,
            digest,
            status_code,
            get("response") if "response" in value else _other_body(value),
            None if error is None else _error(error, status_code),
            _text(get("started_at")),
            _number(latency_s),
            _BATCH if get("channel") == _BATCH else _REALTIME,
            _text(get("endpoint")) or "",
            _text(get("request_id")),
            _tries(tries),
            get("rehearsal") is True or self._rehearsal,
            get("final") is not False,
            is_direct if type(is_direct := get("direct")) is bool else None,
            self.name,
            number,
            offset,
            length,
        )

    def _raw(self, value: dict[str, Any], number: int, offset: int, length: int) -> Outcome | None:
        if "superseded" in value and "status" in value:
            raise InputError(
                f"{self.name}: holds records, not results",
                hint="name the files of results/; what collect wrote is not read back",
            )
        line = self._provider.read_batch_line(value)
        if line.custom_id is None:
            return None
        latency_s = value.get("latency_s")
        return Outcome(
            line.custom_id,
            None,
            line.status_code,
            line.body,
            line.error,
            self.job.started_at if self.job else None,
            _number(latency_s),
            _BATCH,
            "",
            line.request_id,
            [],
            self._rehearsal,
            True,
            None,
            self.name,
            number,
            offset,
            length,
        )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _tries(value: Any) -> list[Try]:
    return [cast("Try", one) for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _number(value: Any) -> float | None:
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


# --- judging -------------------------------------------------------------------------------------------------


def asked(run: RunDir, provider: Provider, output: str = "") -> Asked:
    """Return what the run's frozen requests asked for.

    Args:
        run: The run.
        provider: Its adapter.
        output: Name of the pipeline output, empty where the run has none.
    """
    answer = run.info.get("answer") or {}
    wanted = (answer.get("outputs") or {}).get(output) if output else None
    wanted = answer if wanted is None else wanted
    request = run.info["request"]
    params = (request.get("outputs") or {}).get(output) or request.get("params") or {}
    return Asked(
        max_tokens=provider.max_tokens(params),
        json=bool(wanted.get("json")),
        schema=wanted.get("schema"),
    )


def judge(outcome: Outcome, provider: Provider, asked: Asked) -> tuple[Reading, Verdict]:
    """Read an outcome's answer and say what became of the request."""
    reading = read_answer(outcome, provider)
    return reading, classify.classify(reading, asked)


def read_answer(outcome: Outcome, provider: Provider) -> Reading:
    """Read an outcome's answer; where none came, the sender's own word for why stands."""
    if outcome.body is None and outcome.error is not None:
        return Reading(error=outcome.error)
    return provider.read(outcome.status_code, outcome.body)


def is_settled(verdict: Verdict, reading: Reading, outcome: Outcome) -> bool:
    """Tell whether a row needs no sending any more: the model answered, or the error is final."""
    if verdict.status in MODEL_ANSWERS:
        return True
    error = outcome.error or reading.error
    return outcome.is_final and error is not None and not error["is_retryable"]


def iter_settled(path: str, run: RunDir, provider: Provider, *, rehearsal: bool = False) -> Iterator[Settled]:
    """Yield what resume needs of each line of a results file, reading no answer that its line already judges.

    A line that we wrote has ``error`` null exactly where the adapter read an answer at the time, and an error that
    says whether it is final. Every other line (an older or foreign writer, a provider's raw file) is judged anew.
    Rehearsals count alone (``rehearsal``) or not at all.

    Raises:
        OSError: The file cannot be read.
        SchemaVersionError: A newer vlmbatch wrote a line in a shape that this one cannot read.
    """
    reader = Reader(path, run, provider)
    with open(path, "rb", buffering=1 << 20) as file:
        for number, raw in enumerate(file, start=1):
            custom_id = _answered_id(raw)
            if custom_id is not None and not rehearsal:
                yield Settled(custom_id, None, True, True)
                continue
            value = jsonl.parse_object(raw.removeprefix(jsonl.BOM) if number == 1 else raw)
            settled = None if value is None else _settle(value, number, reader, provider, rehearsal=rehearsal)
            if settled is not None:
                yield settled


def _settle(
    value: dict[str, Any], number: int, reader: Reader, provider: Provider, *, rehearsal: bool
) -> Settled | None:
    """Return what resume needs of one parsed line, None where it does not count."""
    settled = _settled_by_word(value)
    if settled is not None:
        return None if rehearsal else settled
    outcome = reader.read(value, number, 0, 0)
    if outcome is None or outcome.rehearsal != rehearsal:
        return None
    reading, verdict = judge(outcome, provider, Asked())
    is_answer = verdict.status in MODEL_ANSWERS
    return Settled(outcome.custom_id, outcome.line_sha256, is_settled(verdict, reading, outcome), is_answer)


def _answered_id(raw: bytes) -> str | None:
    """Return whose answer a line of ours says that it is, without parsing it; None where it does not say so.

    ``answered`` is the last key that we write: so what begins as a line of ours and ends in it is whole, unless it is
    two lines in one (a torn one that another program wrote on).
    """
    if not raw.endswith(_ANSWERED) or not raw.startswith(_OURS) or raw.find(_OURS, 1) >= 0:
        return None
    start = len(_OURS)
    return raw[start : raw.index(b'"', start)].decode("ascii", "replace")


def _settled_by_word(value: dict[str, Any]) -> Settled | None:
    """Take a line of ours at its word, None where it has to be judged."""
    if value.get("schema") != ATTEMPT_SCHEMA or "rehearsal" in value:
        return None
    try:
        error = value["error"]
        if error is None:
            answered = _OK_FIRST <= value["status_code"] <= _OK_LAST
            return Settled(value["custom_id"], value["line_sha256"], True, True) if answered else None
        settled = not error["is_retryable"] and value.get("final") is not False
        return Settled(value["custom_id"], value["line_sha256"], True, False) if settled else None
    except (KeyError, TypeError):
        return None


# --- the order of files --------------------------------------------------------------------------------------


def order_files(paths: Iterable[str], journal: Journal | None = None) -> list[str]:
    """Put results files into the order in which their attempts were begun.

    The first ``started_at`` of a file decides, for a raw provider file the journal's time; files without times keep
    the order in which they are given and stand last. Names do not matter.

    Raises:
        OSError: A file cannot be read.
    """
    keyed = [(_first_time(path, journal or Journal()), path) for path in paths]
    timed = sorted(((time, path) for time, path in keyed if time is not None), key=lambda pair: pair[0])
    return [path for _, path in timed] + [path for time, path in keyed if time is None]


def _first_time(path: str, journal: Journal) -> datetime | None:
    """Return when a file's attempts began, None where neither it nor the journal tells."""
    for line in jsonl.iter_lines(path):
        value = jsonl.parse_object(line.data)
        if value is None:
            continue
        if "line_sha256" not in value:
            job = journal.job(path)
            return parse_time(job.started_at) if job else None
        time = parse_time(value.get("started_at"))
        if time is not None:
            return time
    return None


def parse_time(text: Any) -> datetime | None:
    """Parse an RFC 3339 time (UTC where it names no zone), None where it is none."""
    if not isinstance(text, str):
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
