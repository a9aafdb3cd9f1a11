"""Images in the provider's file store: each uploaded once, whoever asks and whatever crashes, and seen by the model."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.pictures import png
from vlmbatch import jsonl, providers
from vlmbatch.batch.carrier import FileStore, expiry_warning
from vlmbatch.errors import InputError, RefusedError
from vlmbatch.providers.base import Ask, ImagePart
from vlmbatch.rehearsal.faults import parse_faults
from vlmbatch.rehearsal.server import Server, serve

if TYPE_CHECKING:
    from pathlib import Path

WIRES = {
    "responses": ("openai", "/v1/responses", "/v1"),
    "messages": ("anthropic", "/v1/messages", ""),
    "gemini": ("gemini", "/v1beta/models/m-1:generateContent", ""),
}
EVERY_WIRE = pytest.mark.parametrize("wire", WIRES)


def _store(server: Server, wire: str, out: Path) -> FileStore:
    name, path, base = WIRES[wire]
    return FileStore(providers.get(name, path), path, "m-1", out=str(out), base_url=server.base_url + base, key="k")


def _put(store: FileStore, data: bytes) -> Any:
    return store.put(jsonl.sha256(data), "image/png", data)


@EVERY_WIRE
def test_stored_image_is_seen_by_the_model(tmp_path: Path, wire: str) -> None:
    """A body that names the id is answered from the uploaded bytes."""
    name, path, base = WIRES[wire]
    provider = providers.get(name, path)
    with serve() as server:
        with _store(server, wire, tmp_path / "run") as store:
            stored = _put(store, png(33, 21))
        body = provider.body(Ask(model="m-1"), ["What?", ImagePart("image/png", file_id=stored.file_id)])
        url = provider.endpoint(path, server.base_url + base)
        answer = httpx.post(url, json=body, headers=provider.headers("k", {}), trust_env=False)
    assert answer.status_code == 200, answer.text
    assert "33 x 21" in answer.text


@EVERY_WIRE
def test_same_image_is_uploaded_once_however_many_threads_ask(tmp_path: Path, wire: str) -> None:
    """Workers that meet one picture wait for one upload."""
    with serve() as server, _store(server, wire, tmp_path / "run") as store, ThreadPoolExecutor(8) as pool:
        stored = set(pool.map(lambda number: _put(store, png(10 + number % 2, 9)), range(40)))
        assert len(stored) == 2
        assert len(server.store.files) == 2
    assert store.uploaded == 2


@EVERY_WIRE
def test_second_build_repeats_no_upload(tmp_path: Path, wire: str) -> None:
    """The journal beside --out remembers, also after a torn line."""
    with serve() as server:
        with _store(server, wire, tmp_path / "run") as store:
            first = _put(store, png(10, 9))
        journal = tmp_path / "run.uploads.jsonl"
        journal.write_bytes(journal.read_bytes() + b'{"schema":"vlmbatch.upl')
        with _store(server, wire, tmp_path / "run") as store:
            assert _put(store, png(10, 9)) == first
            _put(store, png(11, 9))
            assert (store.uploaded, store.reused) == (1, 1)
        assert len(server.store.files) == 2
    lines = [jsonl.parse_object(line) for line in journal.read_bytes().splitlines()]
    assert [line["file_id"] if line else None for line in lines] == [first.file_id, None, lines[2]["file_id"]]  # type: ignore[index]


def test_other_address_has_other_ids(tmp_path: Path) -> None:
    """An id of one place means nothing at another."""
    for _ in range(2):
        with serve() as server:
            with _store(server, "messages", tmp_path / "run") as store:
                _put(store, png(10, 9))
            assert len(server.store.files) == 1


def test_file_that_is_about_to_expire_is_uploaded_again(tmp_path: Path) -> None:
    """A batch may take a day; a file with less time than that is of no use."""
    with serve() as server:
        with _store(server, "gemini", tmp_path / "run") as store:
            old = _put(store, png(10, 9))
        journal = tmp_path / "run.uploads.jsonl"
        line = json.loads(journal.read_bytes())
        line["expires_at"] = (datetime.now(UTC) + timedelta(hours=3)).isoformat()
        journal.write_text(json.dumps(line) + "\n")
        with _store(server, "gemini", tmp_path / "run") as store:
            assert _put(store, png(10, 9)) != old


def test_description_names_the_first_to_expire(tmp_path: Path) -> None:
    """run.json keeps what run has to warn of."""
    with serve() as server, _store(server, "gemini", tmp_path / "run") as store:
        _put(store, png(10, 9))
        told = store.describe()
    assert (told["kind"], told["endpoint"]) == ("provider-file", server.base_url)
    left = datetime.fromisoformat(told["expires_at"]) - datetime.now(UTC)
    assert timedelta(hours=47) < left < timedelta(hours=49)


def test_lost_upload_is_sent_again(tmp_path: Path) -> None:
    """A broken connection costs a second upload and no more."""
    with serve(parse_faults({"batch": {"lost_uploads": 1}})) as server:
        with _store(server, "messages", tmp_path / "run") as store:
            _put(store, png(10, 9))
        assert len(server.store.files) == 2
    assert store.uploaded == 1


def test_refused_upload_is_told(tmp_path: Path) -> None:
    """The provider's words, no id out of thin air, and no journal of nothing."""
    faults = parse_faults({"batch": {"upload_status": 413}})
    with (
        serve(faults) as server,
        _store(server, "responses", tmp_path / "run") as store,
        pytest.raises(RefusedError, match="413"),
    ):
        _put(store, png(10, 9))
    assert not (tmp_path / "run.uploads.jsonl").exists()


def test_wire_without_file_ids_is_refused(tmp_path: Path) -> None:
    """Chat completions has no place for an id."""
    provider = providers.get("openai", "/v1/chat/completions")
    with serve() as server:
        store = FileStore(provider, "/v1/chat/completions", "m", out=str(tmp_path / "r"), base_url=server.base_url)
        with store, pytest.raises(InputError, match="no file store"):
            _put(store, png(10, 9))


def test_key_is_not_in_the_journal(tmp_path: Path) -> None:
    """It holds hashes and ids alone."""
    with serve() as server, _store(server, "messages", tmp_path / "run") as store:
        _put(store, png(10, 9))
    assert b'"k"' not in (tmp_path / "run.uploads.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("hours", "said"),
    [(48, None), (5, "5 h more"), (-1, "build again"), (None, None)],
    ids=["long", "soon", "over", "never"],
)
def test_run_is_warned_of_ids_that_end(hours: float | None, said: str | None) -> None:
    """Near the end a sentence, after it another."""
    at = datetime(2026, 11, 30, 12, tzinfo=UTC)
    until = None if hours is None else (at + timedelta(hours=hours)).isoformat()
    sentence = expiry_warning({"kind": "provider-file", "expires_at": until}, at)
    assert sentence is None if said is None else said in str(sentence)
    assert expiry_warning(None, at) is None
