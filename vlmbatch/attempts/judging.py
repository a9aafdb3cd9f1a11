"""What became of an attempt: what was asked, what the answer says, and whether the row is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vlmbatch import classify, jsonl
from vlmbatch.attempts.reading import Reader
from vlmbatch.attempts.shape import Outcome, Settled
from vlmbatch.records import ATTEMPT_SCHEMA, MODEL_ANSWERS, Asked, Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vlmbatch.journal import Job
    from vlmbatch.providers.base import Provider
    from vlmbatch.records import Verdict
    from vlmbatch.rundir import RunDir

_OK_FIRST, _OK_LAST = 200, 299
_OURS = b'{"schema":"%s","custom_id":"' % ATTEMPT_SCHEMA.encode()
_HASH_KEY = b'","line_sha256":"'
_ID_AND_HASH = 256
"""Within so many bytes behind the key of the id stand both."""
_ANSWERED = b',"answered":true}\n'


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
    params = (request.get("outputs") or {}).get(output)
    params = request.get("params") if params is None else params
    return Asked(
        max_tokens=provider.max_tokens(params or {}),
        json=bool(wanted.get("json")),
        schema=wanted.get("schema"),
    )


def asked_by_output(run: RunDir, provider: Provider) -> dict[str, Asked]:
    """Return :func:`asked` for every pipeline output of a run, and under the empty name for a run that has none."""
    return {name: asked(run, provider, name) for name in ("", *(run.info["request"].get("outputs") or {}))}


def judge(outcome: Outcome, provider: Provider, asked: Asked) -> tuple[Reading, Verdict]:
    """Read an outcome's answer and say what became of the request."""
    if outcome.body is None and outcome.error is not None:
        reading = Reading(error=outcome.error)  # nothing came: the sender's own word for why stands
    else:
        reading = provider.read(outcome.status_code, outcome.body)
    return reading, classify.classify(reading, asked)


def is_settled(verdict: Verdict, reading: Reading, outcome: Outcome) -> bool:
    """Tell whether a row needs no sending any more: the model answered, or the error is final."""
    if verdict.status in MODEL_ANSWERS:
        return True
    error = outcome.error or reading.error
    return outcome.is_final and error is not None and not error["is_retryable"]


def iter_settled(
    path: str,
    run: RunDir,
    provider: Provider,
    job: Job | None = None,
    *,
    rehearsal: bool = False,
    take: Callable[[bytes, int], bool] | None = None,
) -> Iterator[Settled]:
    """Yield what resume needs of each line of a results file, reading no answer that its line already judges.

    A line that we wrote has ``error`` null exactly where the adapter read an answer at the time, and an error that
    says whether it is final. Every other line (an older or foreign writer, a provider's raw file) is judged anew.

    Args:
        path: The file.
        run: The run.
        provider: Its adapter.
        job: The batch job that it came from, None where the journal knows none.
        rehearsal: Whether rehearsals count (and they alone).
        take: Called with a line of ours that says it is an answer, and where its id begins; where it says that it has
            taken it, nothing is yielded (a long run has a million of these).

    Raises:
        OSError: The file cannot be read.
        SchemaVersionError: A newer vlmbatch wrote a line in a shape that this one cannot read.
    """
    reader = Reader(path, run, provider, job)
    with open(path, "rb", buffering=1 << 20) as file:
        for number, raw in enumerate(file, start=1):
            if not rehearsal and _says_answered(raw):
                if take is not None and take(raw, len(_OURS)):
                    continue
                answered = _answered(raw)
                if answered is not None:
                    yield answered
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
    outcome = reader.read(value, number)
    if outcome is None or outcome.rehearsal != rehearsal:
        return None
    reading, verdict = judge(outcome, provider, Asked())
    is_answer = verdict.status in MODEL_ANSWERS
    return Settled(outcome.custom_id, outcome.line_sha256, is_settled(verdict, reading, outcome), is_answer)


def _says_answered(raw: bytes) -> bool:
    """Tell whether a line of ours says that it is an answer.

    ``answered`` is the last key that we write: so what begins as a line of ours and ends in it is whole, unless it is
    two lines in one (a torn one that another program wrote on).
    """
    return raw.endswith(_ANSWERED) and raw.startswith(_OURS) and raw.find(_OURS, 1) < 0


def _answered(raw: bytes) -> Settled | None:
    """Take a line that says that it is an answer at its word, unparsed; None where its id is not where we write it."""
    start = len(_OURS)
    custom_id, key, rest = raw[start : start + _ID_AND_HASH].partition(_HASH_KEY)
    if not key or b'"' in custom_id:
        return None
    digest = rest[:64].decode("ascii", "replace")
    return Settled(custom_id.decode("ascii", "replace"), digest, is_settled=True, is_answer=True)


def _settled_by_word(value: dict[str, Any]) -> Settled | None:
    """Take a line of ours at its word, None where it has to be judged."""
    if value.get("schema") != ATTEMPT_SCHEMA or "rehearsal" in value:
        return None
    custom_id, digest = value.get("custom_id"), value.get("line_sha256")
    if not isinstance(custom_id, str) or not isinstance(digest, str):
        return None
    try:
        error = value["error"]
        if error is None:
            answered = _OK_FIRST <= value["status_code"] <= _OK_LAST
            return Settled(custom_id, digest, is_settled=True, is_answer=True) if answered else None
        settled = not error["is_retryable"] and value.get("final") is not False
        return Settled(custom_id, digest, is_settled=True, is_answer=False) if settled else None
    except (KeyError, TypeError):
        return None
