"""What one line of a results file becomes, whoever wrote it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vlmbatch.records import ErrorInfo, Try


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
    """

    custom_id: str
    line_sha256: str | None = None
    status_code: int | None = None
    body: Any = None
    error: ErrorInfo | None = None
    started_at: str | None = None
    latency_s: float | None = None
    channel: str = ""
    endpoint: str = ""
    request_id: str | None = None
    tries: Sequence[Try] = ()
    rehearsal: bool = False
    is_final: bool = True
    is_direct: bool | None = None
    file: str = ""
    line: int = 0


class Settled(NamedTuple):
    """What resume needs of one line.

    Attributes:
        custom_id: Whose it is.
        line_sha256: Hash of the line that was sent, None where the file does not tell.
        is_settled: Whether the row needs no sending any more.
        is_answer: Whether a model spoke.
    """

    custom_id: str
    line_sha256: str | None
    is_settled: bool
    is_answer: bool
