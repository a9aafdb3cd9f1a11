"""The shapes of every file in a run folder, and of the values that travel between the floors.

This page *is* the format (docs/reference/files.md is generated from the schemas that mirror it). What is read
from disk is a TypedDict, for it is JSON; what the program hands from room to room is a frozen dataclass.
No module of ours is imported here, and nothing heavy.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Literal, NamedTuple, NotRequired, TypedDict

# --- schema ids: type and major version in one string; only the major counts -----------------------------

RUN_SCHEMA: Final = "vlmbatch.run/1"
MANIFEST_SCHEMA: Final = "vlmbatch.manifest/1"
REJECTED_SCHEMA: Final = "vlmbatch.rejected/1"
ESTIMATE_SCHEMA: Final = "vlmbatch.estimate/1"
ATTEMPT_SCHEMA: Final = "vlmbatch.attempt/1"
BATCH_SCHEMA: Final = "vlmbatch.batch/1"
PROGRESS_SCHEMA: Final = "vlmbatch.progress/1"
RECORD_SCHEMA: Final = "vlmbatch.record/1"
SUMMARY_SCHEMA: Final = "vlmbatch.summary/1"
RESULT_SCHEMA: Final = "vlmbatch.result/1"

CUSTOM_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
INDEX_DIGITS: Final = 6
"""To how many digits the index in a custom_id is padded with zeros."""

Channel = Literal["realtime", "batch"]


class Status(StrEnum):
    """What became of one request. The list is closed: the counts of all nine add up to the manifest."""

    OK = "ok"
    INVALID_JSON = "invalid_json"
    TRUNCATED = "truncated"
    EMPTY_AT_CAP = "empty_at_cap"
    EMPTY = "empty"
    REFUSAL = "refusal"
    HTTP_ERROR = "http_error"
    NETWORK_ERROR = "network_error"
    MISSING = "missing"


MODEL_ANSWERS: Final = frozenset(
    {Status.OK, Status.INVALID_JSON, Status.TRUNCATED, Status.EMPTY_AT_CAP, Status.EMPTY, Status.REFUSAL}
)
"""Statuses in which the model spoke (or declined to): a failure never displaces one of these."""


class ErrorType(StrEnum):
    """Where a failure comes from; the values are those of ``InferenceErrorType``. Readers take it as an open list."""

    API_STATUS = "api_status"
    CONFIG = "config"
    CONNECTION = "connection"
    ENGINE_FAILURE = "engine_failure"
    PARSE_ERROR = "parse_error"
    RUNTIME = "runtime"
    UNKNOWN = "unknown"


# --- images ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What the bytes of one image say about it; the file's name has no part in it.

    Attributes:
        media_type: From the magic bytes, such as ``image/jpeg``.
        width: Stored columns in pixels, before any EXIF orientation is applied.
        height: Stored rows in pixels, before any EXIF orientation is applied.
        bytes: Length of the file.
        sha256: Lower-case hex digest of the file.
        orientation: EXIF orientation as stored, 1 to 8 (other values as they are), or None where there is none.
        frames: Frames or pages; 1 for a still picture (a second picture behind an MPO's first does not count).
        mode: Colour model as Pillow names it (``RGB``, ``CMYK``, ``I;16``), or empty where nothing decoded it.
        has_gps: Whether the metadata holds a position.
        notes: Codes of what is odd but not wrong (an open list: ``tiny``, ``slim``, ``broken_exif`` ...).
    """

    media_type: str
    width: int
    height: int
    bytes: int
    sha256: str
    orientation: int | None = None
    frames: int = 1
    mode: str = ""
    has_gps: bool = False
    notes: tuple[str, ...] = ()


class SentImage(TypedDict):
    """The image as it was sent, where that is not the file's own bytes."""

    sha256: str
    bytes: int
    width: int
    height: int
    media_type: str


class ImageRecord(TypedDict):
    """One image of a request, in the manifest and in the record."""

    path: str
    path_bytes: NotRequired[str]
    sha256: str
    bytes: int
    width: int
    height: int
    media_type: str
    orientation: NotRequired[int]
    sent: NotRequired[SentImage]
    file_id: NotRequired[str]


# --- frozen files ----------------------------------------------------------------------------------------


class FileRef(TypedDict):
    """A file named by another file: the path relative to the run folder, its digest, its length."""

    file: str
    sha256: str
    bytes: NotRequired[int]


class ShardRef(TypedDict):
    """One shard as run.json names it."""

    file: str
    sha256: str
    bytes: int
    requests: int
    images: int


class ManifestRef(TypedDict):
    """The manifest as run.json names it."""

    file: str
    sha256: str
    bytes: int
    requests: int


class RequestInfo(TypedDict):
    """What is asked of the provider, apart from prompt and images."""

    method: str
    url: str
    params: dict[str, Any]
    headers: NotRequired[dict[str, str]]
    outputs: NotRequired[dict[str, dict[str, Any]]]


class RunInfo(TypedDict):
    """run.json. ``created_at`` and ``host`` are the only keys in which two machines may differ."""

    schema: str
    tool: dict[str, str]
    libraries: dict[str, str]
    created_at: str
    host: str
    provider: str
    model: str
    request: RequestInfo
    prompt: FileRef | None
    system: FileRef | None
    inputs: list[FileRef]
    source: dict[str, Any]
    image_policy: dict[str, Any]
    answer: dict[str, Any]
    settings: dict[str, Any]
    carrier: NotRequired[dict[str, Any]]
    id_stem: str
    counts: dict[str, int]
    shards: list[ShardRef]
    manifest: ManifestRef
    rejected: FileRef | None
    extensions: dict[str, Any]


class ManifestHead(TypedDict):
    """One line of manifest.jsonl without ``row``, which stands last and is carried as bytes."""

    custom_id: str
    shard: str
    offset: int
    length: int
    body_offset: int
    body_length: int
    inner_sha256: str
    line_sha256: str
    images: list[ImageRecord]
    source_line: NotRequired[int]
    output: NotRequired[str]


class Entry(NamedTuple):
    """One manifest line as the program carries it: where the frozen bytes stand and what they hash to.

    ``row`` is the input row's own JSON, byte for byte; ``output`` the name of a pipeline output, else empty;
    ``images`` the parsed image records; ``position`` the 0-based line number in the manifest.
    """

    position: int
    custom_id: str
    shard: str
    offset: int
    length: int
    body_offset: int
    body_length: int
    inner_sha256: str
    line_sha256: str
    images: list[ImageRecord]
    row: bytes
    source_line: int | None
    output: str


# --- attempts --------------------------------------------------------------------------------------------


class ErrorInfo(TypedDict):
    """Why there is no answer. ``code`` is the provider's own code, or ours for the network (``timeout``, ``tls``)."""

    type: str
    code: NotRequired[str | None]
    message: str
    status_code: int | None
    is_retryable: bool


class Try(TypedDict):
    """One sending inside an attempt. ``sent`` tells whether the request had gone out whole (it may be billed)."""

    status_code: int | None
    error: str | None
    waited_s: float
    sent: NotRequired[bool]


class Attempt(TypedDict):
    """One line of results/*.jsonl that we wrote: a request answered or given up."""

    schema: str
    custom_id: str
    line_sha256: str
    channel: Channel
    endpoint: str
    started_at: str
    latency_s: float
    tries: list[Try]
    status_code: int | None
    response: NotRequired[Any]
    response_text: NotRequired[str]
    response_base64: NotRequired[str]
    request_id: str | None
    error: ErrorInfo | None
    rehearsal: NotRequired[bool]
    final: NotRequired[bool]
    direct: NotRequired[bool]
    session: NotRequired[dict[str, Any]]
    answered: NotRequired[bool]


class Usage(TypedDict):
    """Tokens in one vocabulary: input includes cached, output includes reasoning; None = the provider did not say."""

    input_tokens: int | None
    output_tokens: int | None
    reasoning_tokens: int | None
    cached_tokens: int | None
    total_tokens: int | None


def no_usage() -> Usage:
    """Return a usage in which nothing is known."""
    return {
        "input_tokens": None,
        "output_tokens": None,
        "reasoning_tokens": None,
        "cached_tokens": None,
        "total_tokens": None,
    }


class Ended(StrEnum):
    """Why the model stopped, in the few words that the rules of classify.py tell apart."""

    STOP = "stop"
    """It finished, or said nothing that means otherwise (unknown reasons too: they are kept as they came)."""
    CAP = "cap"
    """The output limit, the context window, or a paused turn ended it."""
    FILTER = "filter"
    """A content filter, a blocked prompt or a refusal ended it."""
    TOOL = "tool"
    """It asked for a tool instead of answering."""
    ERROR = "error"
    """The server gave up on the answer; sending again may help."""


class Reading(NamedTuple):
    """One answer as a provider's adapter reads it: facts only, no verdict.

    Attributes:
        text: The answer alone, None where there is none. Reasoning is never part of it.
        reasoning: Thinking text that came beside the answer, None where none came.
        refusal: The model's or the filter's own words for declining, None where it did not decline.
        ended: Why it stopped, in our words.
        finish_reason: Why it stopped, as the provider says it.
        usage: Tokens in our vocabulary.
        image_tokens: Input tokens of the images alone, where the provider tells them apart.
        model: The model's name as the provider reports it.
        system_fingerprint: The provider's own word for what answered, where told.
        error: Why there is no answer; then all else may be empty.
        notes: Codes of what is odd (``two_choices``, ``usage_zero``, ``think_block`` ...), an open list.
    """

    text: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    ended: Ended = Ended.STOP
    finish_reason: str | None = None
    usage: Usage = no_usage()
    image_tokens: int | None = None
    model: str | None = None
    system_fingerprint: str | None = None
    error: ErrorInfo | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Asked:
    """What the frozen request asked for, as far as the verdict depends on it.

    Attributes:
        max_tokens: The output limit as it stands in the frozen body (reasoning included), None where none stands.
        json: Whether the answer is to be JSON.
        schema: The JSON Schema that it is to fit, None where there is none.
    """

    max_tokens: int | None = None
    json: bool = False
    schema: dict[str, Any] | None = None


class Verdict(NamedTuple):
    """A status with its cause, and the parsed answer where JSON was asked for and came."""

    status: Status
    reason: str | None = None
    json: Any = None
    notes: tuple[str, ...] = ()


# --- records ---------------------------------------------------------------------------------------------


class Superseded(TypedDict):
    """An attempt that another one beat; its tokens may have been billed all the same."""

    source_file: str
    source_line: int
    status: str
    channel: str
    usage: Usage


class Review(TypedDict):
    """What a reviewer said of a record, from reviews.jsonl."""

    verdict: Literal["accept", "reject"]
    comment: str


class Record(TypedDict):
    """One line of merged.jsonl: every key is always there, None = looked for, not there.

    ``authoritative`` names which of ``text`` and ``json`` is the answer that counts: ``json`` where JSON was asked
    for and the whole answer is it, else ``text``; None where there is no answer. ``text`` is as it came either way.
    ``notes`` are the codes of what is odd (``code_fence``, ``two_choices``, ``usage_zero`` ...), an open list.
    """

    custom_id: str
    status: str
    reason: str | None
    text: str | None
    json: Any
    reasoning: str | None
    usage: Usage
    finish_reason: str | None
    model: str | None
    images: list[ImageRecord]
    row: Any
    source_file: str | None
    source_line: int | None
    superseded: list[Superseded]
    error: ErrorInfo | None
    authoritative: Literal["json", "text"] | None
    notes: list[str]
    channel: str | None
    latency_s: float | None
    system_fingerprint: str | None
    rehearsal: bool
    review: Review | None


# --- progress --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a stage has to say while it works; the door decides how it looks, if at all.

    Attributes:
        kind: ``start``, ``progress``, ``warning``, ``note`` or ``done``.
        stage: ``build``, ``verify``, ``run``, ``collect`` ...
        message: A sentence for people (warnings and notes), without markup.
        done: Units finished so far.
        total: Units in all, None where nobody knows yet.
        data: Figures of the stage's own, for a richer display.
    """

    kind: Literal["start", "progress", "warning", "note", "done"]
    stage: str
    message: str = ""
    done: int = 0
    total: int | None = None
    data: dict[str, Any] = field(default_factory=dict)
