"""A measured sample: what results files say was used, row by row. Answers are reduced to a digest as they are read."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from vlmbatch import attempts, jsonl
from vlmbatch.errors import InputError, cannot_read
from vlmbatch.records import MODEL_ANSWERS, Status

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from vlmbatch.attempts import Outcome
    from vlmbatch.errors import Problem
    from vlmbatch.providers.base import Provider
    from vlmbatch.records import Asked, FileRef, Reading, Usage, Verdict
    from vlmbatch.rundir import RunDir
    from vlmbatch.stages.estimating.workload import Row

_DIGEST_BYTES = 16
_REFUSALS = range(400, 500)
_NOT_THE_SHAPE = frozenset({401, 402, 403, 404, 408, 409, 429})
"""4xx that say nothing against the request's shape: key, money, model, haste."""


class Measured(NamedTuple):
    """One row of the sample.

    Attributes:
        status: What became of it.
        usage: Tokens as the provider billed them.
        image_tokens: Input tokens of the images alone, where the provider tells them apart.
        limit: The output limit that was asked for, None where none was.
        json_asked: Whether JSON was asked for.
        digest: Hash of the answer, white space and letter case aside; empty where there is none.
        length: Characters of the answer.
        shape_refused: Whether the provider refused the request as such.
    """

    status: Status
    usage: Usage
    image_tokens: int | None
    limit: int | None
    json_asked: bool
    digest: bytes
    length: int
    shape_refused: bool

    @property
    def is_billed(self) -> bool:
        """Whether its usage can be calibrated on: the model answered, and the provider said what that took."""
        used, made = self.usage["input_tokens"], self.usage["output_tokens"]
        return self.status in MODEL_ANSWERS and bool(used) and made is not None


@dataclass(slots=True)
class Sample:
    """The sample.

    Attributes:
        rows: What was measured, by custom_id; of several attempts at a row, an answer, and the later one.
        files: The results files.
        torn: Lines that could not be read.
        rows_per_s: Throughput seen on the realtime channel, None where the files do not tell.
    """

    rows: dict[str, Measured] = field(default_factory=dict)
    files: list[FileRef] = field(default_factory=list)
    torn: int = 0
    rows_per_s: float | None = None


class _Span:
    """From when to when a file's requests were under way, and how many came to an end."""

    def __init__(self) -> None:
        self.start = self.end = 0.0
        self.count = 0

    def add(self, outcome: Outcome) -> None:
        started = attempts.parse_time(outcome.started_at)
        if outcome.channel != "realtime" or started is None or outcome.latency_s is None:
            return
        at = started.timestamp()
        self.start = min(self.start, at) if self.count else at
        self.end = max(self.end, at + outcome.latency_s)
        self.count += 1


def read_ids(run: RunDir, paths: Sequence[str], provider: Provider, *, rehearsal: bool) -> set[str]:
    """Return the custom_ids that results files name.

    Raises:
        InputError: A file cannot be read, or rehearsals and real answers are mixed up.
    """
    ids = set()
    for reader, outcomes in _files(run, paths, provider):
        for outcome in outcomes:
            if outcome.rehearsal and not rehearsal:
                raise InputError(
                    f"{reader.name}: a rehearsal, which bills nothing",
                    hint="calibrate on results of the real provider; --rehearsal takes rehearsals, for practice",
                )
            if rehearsal and not outcome.rehearsal:
                raise InputError(
                    f"{reader.name}: not a rehearsal", hint="leave out --rehearsal: it takes rehearsals alone"
                )
            ids.add(outcome.custom_id)
    return ids


def _files(run: RunDir, paths: Sequence[str], provider: Provider) -> Iterator[tuple[attempts.Reader, attempts.Reader]]:
    origins = attempts.Origins.load(run)
    for path in attempts.order_files(_readable(paths), origins):
        reader = attempts.Reader(path, run, provider, origins.job(path))
        yield reader, reader


def _readable(paths: Sequence[str]) -> Sequence[str]:
    for path in paths:
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            raise cannot_read(f"--calibrate {path}", error) from None
    return paths


def measure(run: RunDir, paths: Sequence[str], provider: Provider, rows: Mapping[str, Row]) -> Sample:
    """Read the sample.

    Args:
        run: The run.
        paths: Results files.
        provider: The run's adapter.
        rows: The manifest's rows of the ids in these files.

    Raises:
        IntegrityError: Results of another run are among them; the first few are named.
    """
    sample = Sample()
    asked: dict[str, Asked] = {}
    strangers: list[Problem] = []
    spans = []
    for reader, outcomes in _files(run, paths, provider):
        span = _Span()
        for outcome in outcomes:
            row = rows.get(outcome.custom_id)
            if row is None or outcome.line_sha256 not in {None, row.line_sha256}:
                strangers.append(attempts.foreign(outcome, is_known=row is not None))
                continue
            wanted = asked.get(row.output) or asked.setdefault(row.output, attempts.asked(run, provider, row.output))
            _keep(sample.rows, outcome.custom_id, _measured(outcome, wanted, provider))
            span.add(outcome)
        spans.append(span)
        sample.torn += reader.torn
        digest, size = jsonl.sha256_file(reader.path)
        sample.files.append({"file": reader.name, "sha256": digest, "bytes": size})
    attempts.refuse_foreign(len(strangers), strangers)
    seconds = sum(span.end - span.start for span in spans if span.count > 1)
    count = sum(span.count for span in spans if span.count > 1)
    sample.rows_per_s = count / seconds if seconds > 0 else None
    return sample


def _keep(rows: dict[str, Measured], custom_id: str, measured: Measured) -> None:
    """Keep the later attempt, but never a failure over an answer."""
    known = rows.get(custom_id)
    if known is None or measured.status in MODEL_ANSWERS or known.status not in MODEL_ANSWERS:
        rows[custom_id] = measured


def _measured(outcome: Outcome, asked: Asked, provider: Provider) -> Measured:
    reading, verdict = attempts.judge(outcome, provider, asked)
    text = reading.text or ""
    code = outcome.status_code
    return Measured(
        verdict.status,
        reading.usage,
        reading.image_tokens,
        asked.max_tokens,
        asked.json,
        digest_of(reading, verdict),
        len(text),
        verdict.status is Status.HTTP_ERROR and code in _REFUSALS and code not in _NOT_THE_SHAPE,
    )


def digest_of(reading: Reading, verdict: Verdict) -> bytes:
    """Return what two equal answers have in common."""
    return digest(reading.text, verdict.json)


def digest(text: str | None, value: Any) -> bytes:
    """Return the hash of an answer: of its JSON value where it has one, else of its words; empty where it has none."""
    if value is not None:
        plain = jsonl.dumps(value, sort_keys=True)
    elif text and text.strip():
        plain = " ".join(text.casefold().split()).encode("utf-8", "surrogatepass")
    else:
        return b""
    return hashlib.blake2b(plain, digest_size=_DIGEST_BYTES).digest()
