"""Images carried by the provider's own file store, for those too large to go inline: each is uploaded once.

Every upload stands in a journal beside the run folder that is being built (hash → file id, until when), so that neither
a crash nor a second build repeats one. A body then names the id; the manifest keeps the image's hash beside it.
"""

from __future__ import annotations

import asyncio
import os
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from vlmbatch import jsonl
from vlmbatch.batch.calls import Caller, CallError, as_ending, patient
from vlmbatch.errors import InputError, RefusedError
from vlmbatch.journal import now
from vlmbatch.providers.base_batch import as_stamp, as_time
from vlmbatch.providers.pick_batch import batch_api
from vlmbatch.transport import Transport, without_query

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

    from vlmbatch.providers.base import Provider

UPLOAD_SCHEMA = "vlmbatch.upload/1"
JOURNAL_SUFFIX = ".uploads.jsonl"

_LEFT = timedelta(hours=24)
"""A stored file with less time than this is uploaded again: a batch job may take that long."""
_AT_ONCE = 8
_TIMEOUT_S = 600.0


class Stored(NamedTuple):
    """An image in the provider's file store: its id, and until when it is kept (RFC 3339; None = not told)."""

    file_id: str
    expires_at: str | None


class FileStore:
    """Uploads images and remembers them. Use as a context manager; ``put`` is safe to call from many threads.

    Args:
        provider: The run's adapter.
        path: The frozen path of the endpoint.
        model: The run's model.
        out: The run folder that is being built; the journal stands beside it.
        base_url: Where to.
        key: The key's value.
        headers: ``request.headers`` of run.json, where the run has any.

    Attributes:
        uploaded: Images uploaded by this command.
        reused: Images that were there already.

    Raises:
        InputError: The provider has no file store for images; entering, the journal cannot be written.
    """

    def __init__(
        self,
        provider: Provider,
        path: str,
        model: str,
        *,
        out: str,
        base_url: str,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._api = batch_api(provider, path, model)
        self._base_url = base_url
        self._headers = provider.headers(key, headers or {})
        self._key = key
        self._journal = out.rstrip("/") + JOURNAL_SUFFIX
        self._kept = read_journal(self._journal, without_query(self._base_url))
        self._appender: jsonl.Appender | None = None
        self._waiting: dict[str, Future[Stored]] = {}
        self._lock = threading.Lock()
        self._used: dict[str, Stored] = {}
        self.uploaded = self.reused = 0

    def __enter__(self) -> FileStore:
        self._check_journal()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="file-store", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _check_journal(self) -> None:
        """Refuse to upload what could not be remembered; the file itself comes to be with its first line."""
        target = os.path.realpath(self._journal)
        if not os.access(target if os.path.exists(target) else os.path.dirname(target), os.W_OK):
            raise InputError(
                f"{self._journal}: cannot be written", hint="uploads are remembered there; nothing was uploaded"
            )

    async def _open(self) -> None:
        self._transport = await Transport(secret=self._key).__aenter__()
        self._caller = Caller(self._transport, self._api, self._base_url, self._headers, patient(_TIMEOUT_S))
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def _close(self) -> None:
        if self._appender is not None:
            self._appender.close()
        await self._transport.__aexit__()

    def put(self, sha256: str, media_type: str, data: bytes) -> Stored:
        """Return an image's place in the file store; it is uploaded where it is not there.

        Args:
            sha256: Digest of the bytes.
            media_type: What they are.
            data: The bytes as they are to be seen by the model.

        Raises:
            RefusedError: The provider does not take it.
            InputError: The wire format has no place for file ids.
            OSError: The journal could not be written.
        """
        with self._lock:
            kept = self._used.get(sha256) or self._fresh(sha256)
            if kept is not None:
                self.reused += sha256 not in self._used
                self._used[sha256] = kept
                return kept
            waiting = self._waiting.get(sha256)
            if waiting is None:
                work = self._upload(sha256, media_type, data)
                waiting = self._waiting[sha256] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            stored = waiting.result()
        except CallError as error:
            raise as_ending(
                error,
                f"the provider's file store did not take an image ({media_type}, {len(data):,} bytes)",
                "what was uploaded is kept; the same command goes on with the rest",
            ) from None
        with self._lock:
            self._used[sha256] = stored
        return stored

    def _fresh(self, sha256: str) -> Stored | None:
        """Return what an earlier command uploaded, where the provider keeps it long enough."""
        kept = self._kept.get(sha256)
        until = as_time(kept.expires_at) if kept else None
        return None if until and until < datetime.now(UTC) + _LEFT else kept

    async def _upload(self, sha256: str, media_type: str, data: bytes) -> Stored:
        async with self._places:
            upload = await self._caller.follow(lambda: self._api.store_image(sha256, media_type, memoryview(data)))
        if not upload.file_id:
            raise RefusedError("the upload of an image was answered without an id", hint="is this a file store?")
        line = {
            "schema": UPLOAD_SCHEMA,
            "at": now(),
            "sha256": sha256,
            "bytes": len(data),
            "media_type": media_type,
            "file_id": upload.file_id,
            "expires_at": upload.expires_at,
            "endpoint": without_query(self._base_url),
        }
        if self._appender is None:
            self._appender = jsonl.Appender(self._journal)
        self._appender.append(jsonl.dumps(line))
        self._appender.sync()
        self.uploaded += 1
        return Stored(upload.file_id, upload.expires_at)

    def describe(self) -> dict[str, Any]:
        """Return what run.json keeps of it: where the ids hold, and until when the first of them is kept."""
        times = [at for stored in self._used.values() if (at := as_time(stored.expires_at))]
        return {
            "kind": "provider-file",
            "endpoint": without_query(self._base_url),
            "expires_at": as_stamp(min(times)) if times else None,
        }


def read_journal(path: str, endpoint: str) -> dict[str, Stored]:
    """Return the images that a journal says are stored at an address, the latest upload of each, by hash.

    Torn lines are passed over: such an image is uploaded again.
    """
    if not os.path.exists(path):
        return {}
    found: dict[str, Stored] = {}
    for line in jsonl.iter_lines(path):
        value = jsonl.parse_object(line.data)
        if value is not None and value.get("endpoint") == endpoint and value.get("schema") == UPLOAD_SCHEMA:
            found[str(value.get("sha256"))] = Stored(str(value.get("file_id")), value.get("expires_at"))
    return found


def expiry_warning(carrier: Mapping[str, Any] | None, at: datetime) -> str | None:
    """Return what run should say of a run whose bodies name file ids: that they end soon, or have ended.

    Args:
        carrier: What :meth:`FileStore.describe` gave, as run.json keeps it; None = everything is inline.
        at: The time, with its zone.
    """
    until = as_time((carrier or {}).get("expires_at"))
    if until is None:
        return None
    left = until - at
    if left <= timedelta():
        return f"the provider kept this run's image files until {as_stamp(until)}: requests will fail; build again"
    if left < _LEFT:
        hours = left.total_seconds() / 3600
        return f"the provider keeps this run's image files for {hours:.0f} h more (until {as_stamp(until)})"
    return None
