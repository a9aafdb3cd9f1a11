"""A provider's batch API as descriptions of requests: what to send to make, find, watch, end and read a batch job.

These hooks hold no policy: nothing here retries, waits, or decides whether a job is sent. That is vlmbatch/batch.
Facts and their sources: references/providers.md, the sections on batch.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

from vlmbatch.errors import InputError
from vlmbatch.providers.common import as_dict, as_list

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vlmbatch.errors import Problem
    from vlmbatch.providers.base import Call, Provider

T = TypeVar("T")
LIST_SIZE = 100
"""Jobs asked for per page of a list: what all providers take."""


class Reply(NamedTuple):
    """The good answer to a call: its headers (lower-case names), and its body as parsed JSON (None where none came)."""

    headers: Mapping[str, str]
    body: Any


Steps = Generator["Call", Reply, T]
"""Calls that follow from one another: each is sent in turn, its answer goes back in, the end gives the result."""


class Tag(NamedTuple):
    """What a job of ours is known by at the provider.

    Attributes:
        run: The run's fingerprint.
        job: SHA-256 of the job's lines as they were frozen.
        turn: How often this very job was meant to be submitted, from 1 (a full queue makes it another turn).
    """

    run: str
    job: str
    turn: int

    @property
    def name(self) -> str:
        """One word that fits into a file name and a display name."""
        return f"vlmbatch-{self.run[:16]}-{self.job[:16]}-{self.turn}"

    @staticmethod
    def read(name: str, run: str) -> tuple[str, int] | None:
        """Return how the job's hash begins, and its turn, by the name of its tag; None where it is not this run's."""
        found = re.fullmatch(rf"vlmbatch-{run[:16]}-([0-9a-f]{{16}})-([0-9]{{1,9}})", name)
        return (found[1], int(found[2])) if found else None


class Phase(StrEnum):
    """Where a job stands, as far as it matters to us."""

    OPEN = "open"
    """It may still answer rows."""
    ENDED = "ended"
    """It will not; what it did is in its results."""
    FAILED = "failed"
    """Nothing of it ran."""


class ResultFile(NamedTuple):
    """A file of results that an ended job has: which one, and how to fetch it."""

    kind: Literal["output", "error"]
    call: Call


class Batch(NamedTuple):
    """One batch job as the provider tells of it.

    Attributes:
        id: The provider's id.
        phase: Where it stands.
        state: The same in the provider's word.
        tag: The name of our tag, empty where the provider tells of none.
        input_file: Id of the input file, empty where none is told.
        created_at: When it was made, None where that is not told.
        requests: How many requests it holds, None where that is not told (yet).
        done: How many of them are through, None where that is not told (yet).
        flaws: Why it failed: the provider's code and words, and the 1-based line at fault.
        is_queue_full: Whether it failed for want of room alone: the same may be sent again later.
        results: What can be fetched.
        lacks_results: Whether it ended with rows done, and the files that must hold them are not there (yet).
    """

    id: str
    phase: Phase
    state: str
    tag: str = ""
    input_file: str = ""
    created_at: datetime | None = None
    requests: int | None = None
    done: int | None = None
    flaws: tuple[Problem, ...] = ()
    is_queue_full: bool = False
    results: tuple[ResultFile, ...] = ()
    lacks_results: bool = False


class Page(NamedTuple):
    """A page of a list, newest first; ``after`` asks for the next one, empty where this is the last."""

    batches: list[Batch]
    after: str


class Upload(NamedTuple):
    """A file in the provider's store: its id, and until when it is kept (RFC 3339; None = not told)."""

    file_id: str
    expires_at: str | None


def as_time(value: Any) -> datetime | None:
    """Read a time as it is told: RFC 3339 text (UTC where it names no zone) or seconds since 1970; None = no time."""
    try:
        at = datetime.fromtimestamp(value, UTC) if isinstance(value, int) else datetime.fromisoformat(value)
    except (TypeError, ValueError, OverflowError, OSError):
        return None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def as_stamp(value: Any) -> str | None:
    """Return a time, told likewise or read already, as RFC 3339 text in UTC."""
    at = value if isinstance(value, datetime) else as_time(value)
    return None if at is None else at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def in_path(word: str) -> str:
    """Return an id as it may stand in a URL: what the provider named must not lead elsewhere."""
    return quote(word, safe="")


def multipart(
    sha256: str, name: str, media_type: str, data: memoryview, fields: Mapping[str, str]
) -> tuple[dict[str, str], bytearray]:
    """Return headers and body of a multipart form with one file; the boundary is its hash, so that no data holds it."""
    boundary = f"vlmbatch-{sha256[:48]}"  # at most 70 characters (RFC 2046)
    head = "".join(
        f'--{boundary}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'
        for key, value in fields.items()
    )
    head += (
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
        f"Content-Type: {media_type}\r\n\r\n"
    )
    body = bytearray(head.encode())
    body += data
    body += f"\r\n--{boundary}--\r\n".encode()
    return {"content-type": f"multipart/form-data; boundary={boundary}"}, body


@dataclass(frozen=True, slots=True)
class BatchApi(ABC):
    """One provider's batch API.

    Attributes:
        provider: The adapter of the wire format that the lines are in.
        path: The frozen path of the realtime endpoint.
        model: The run's model.
    """

    provider: Provider
    path: str
    model: str

    has_tags: ClassVar[bool] = True
    """Whether a job can be found by a tag of ours; if not, only its time, its size and its results tell it."""
    has_upload: ClassVar[bool] = True
    """Whether the lines are uploaded as a file before the job is made."""

    def url(self, path: str, base_url: str) -> str:
        """Return the whole URL of a call. One that the provider named keeps to the host that the user named."""
        if "://" in path:
            named = urlsplit(path)
            path = f"{named.path}?{named.query}" if named.query else named.path
        return self.provider.endpoint(path, base_url)

    def upload(self, tag: Tag, lines: memoryview) -> Steps[Upload]:  # noqa: ARG002  (the interface)
        """Describe how the lines are uploaded; called only where ``has_upload`` holds."""
        raise AssertionError("unreachable")

    def store_image(self, sha256: str, media_type: str, data: memoryview) -> Steps[Upload]:  # noqa: ARG002
        """Describe how one image is put into the provider's file store; the id is what a body names it by.

        Raises:
            InputError: This wire format has no place for such an id.
        """
        raise InputError(
            f"{self.provider.name}: this wire format has no file store for images",
            hint="leave --carrier away: the images go inline",
        )

    @abstractmethod
    def create(self, tag: Tag, shard: str, file_id: str, lines: memoryview) -> Call:
        """Describe how a job is made of an uploaded file, or of the lines where there is no upload.

        Args:
            tag: What it is to be known by.
            shard: The shard that the lines are, empty where they are a choice of rows.
            file_id: The uploaded file.
            lines: The frozen lines, each with its newline.
        """

    @abstractmethod
    def look(self, batch_id: str) -> Call:
        """Describe how to ask for a job."""

    @abstractmethod
    def read(self, body: Any) -> Batch:
        """Read a job as create and look answer with it."""

    @abstractmethod
    def list(self, after: str) -> Call:
        """Describe how to ask for a page of jobs, newest first."""

    def read_page(self, body: Any) -> Page:
        """Read such a page: ``data`` and ``has_more``, in the words that most providers have for it."""
        value = as_dict(body)
        batches = [self.read(one) for one in as_list(value.get("data"))]
        return Page(batches, batches[-1].id if batches and value.get("has_more") is True else "")

    @abstractmethod
    def cancel(self, batch_id: str) -> Call:
        """Describe how to end a job."""

    def list_files(self, after: str) -> Call | None:  # noqa: ARG002  (the interface)
        """Describe how to ask for the names of uploaded files, None where jobs are not known by their files."""
        return None

    def read_files(self, body: Any) -> tuple[dict[str, str], str]:  # noqa: ARG002  (the interface)
        """Read such a page: names by file id, and where the next page starts."""
        return {}, ""
