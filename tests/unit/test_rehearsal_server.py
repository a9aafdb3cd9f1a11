"""The rehearsal provider over HTTP: its routes, its counters, how it breaks, and that it stops by itself."""

from __future__ import annotations

import gc
import json
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.unit import rehearsal_bodies as bodies
from tests.waiting import wait_until
from vlmbatch import providers
from vlmbatch.rehearsal.faults import parse_faults
from vlmbatch.rehearsal.server import Server, serve

if TYPE_CHECKING:
    from pathlib import Path


def _post(server: Server, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    return httpx.post(server.base_url + path, json=body, headers=headers, timeout=30, trust_env=False)


def _get(server: Server, path: str, **headers: str) -> httpx.Response:
    return httpx.get(server.base_url + path, headers=headers, timeout=30, trust_env=False)


ROUTES = [
    ("/v1/chat/completions", bodies.chat),
    ("/v1/responses", bodies.responses),
    ("/v1/messages", bodies.messages),
    (f"/v1beta/models/{bodies.MODEL}:generateContent", bodies.generate_content),
    (f"/v1/models/{bodies.MODEL}:generateContent", bodies.generate_content),
]


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_route_answers_its_format(path: str, body: Any) -> None:
    """Every endpoint answers a request in its own format, and counts it."""
    with serve() as server:
        answer = _post(server, path, body([bodies.picture()]))
        assert answer.status_code == 200
        assert "640 x 480" in answer.text
        assert (server.requests, server.statuses) == (1, Counter({200: 1}))
        assert list(server.bodies.values()) == [1]


def test_server_that_ends_while_it_is_asked_leaves_no_task(caplog: pytest.LogCaptureFixture) -> None:
    """Ctrl-C in a rehearsal says what became of the run, and nothing of the rehearsal's own requests."""
    with serve(parse_faults({"latency_s": 60})) as server:
        address = httpx.URL(server.base_url)
        body = json.dumps(bodies.chat([bodies.picture()])).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        client = socket.create_connection((address.host, address.port or 0))
        client.sendall(head + body)
        wait_until(lambda: server.requests)
        client.close()
        assert _get(server, "/health").status_code == 200  # by now it knows that the client has gone
    gc.collect()
    assert [record.getMessage() for record in caplog.records] == []


def test_health_and_models_are_told() -> None:
    """The lists that run asks for before it starts."""
    with serve(models=["a", "b"]) as server:
        assert _get(server, "/health").status_code == 200
        assert [one["id"] for one in _get(server, "/v1/models").json()["data"]] == ["a", "b"]
        assert [one["name"] for one in _get(server, "/v1beta/models").json()["models"]] == ["models/a", "models/b"]


def test_models_are_not_told_where_none_are_named() -> None:
    """Without names every model is served, so there is no list."""
    with serve() as server:
        assert _get(server, "/v1/models").status_code == 404
        assert _get(server, "/v1/models", **{"x-api-key": "k"}).json()["type"] == "error"


def test_reset_breaks_the_connection_in_the_middle() -> None:
    """A broken connection is no answer."""
    with serve(parse_faults({"rates": {"reset": 1}})) as server:
        with pytest.raises(httpx.HTTPError):
            _post(server, "/v1/chat/completions", bodies.chat([bodies.picture()]))
        assert server.statuses == {0: 1}


def test_html_under_status_200_is_sent_as_html() -> None:
    """A proxy's page in place of an answer."""
    with serve(parse_faults({"rates": {"html_200": 1}})) as server:
        answer = _post(server, "/v1/chat/completions", bodies.chat([bodies.picture()]))
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/html")


def test_quota_used_up_is_told_for_good() -> None:
    """After so many requests every answer is about money."""
    with serve(parse_faults({"quota_after": 2})) as server:
        answers = [_post(server, "/v1/chat/completions", bodies.chat([], f"{n}")) for n in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
    assert answers[-1].json()["error"]["code"] == "insufficient_quota"
    assert "retry-after" not in answers[-1].headers


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/chat/completions", bodies.chat, "openai"),
        ("/v1/messages", bodies.messages, "anthropic"),
        (f"/v1beta/models/{bodies.MODEL}:generateContent", bodies.generate_content, "gemini"),
    ],
)
def test_quota_used_up_ends_a_run_of_every_provider(path: str, body: Any, name: str) -> None:
    """Each wire says it so that its adapter knows: nothing else will fare better."""
    with serve(parse_faults({"quota_after": 0})) as server:
        answer = _post(server, path, body([]))
    assert answer.status_code == 429
    assert providers.get(name).ends_run(429, answer.json())


def test_requests_over_the_open_limit_get_429() -> None:
    """What comes while too many are open is turned away, and the limit is never passed."""
    faults = parse_faults({"max_in_flight": 2, "latency_s": 1})
    with serve(faults) as server, ThreadPoolExecutor(8) as pool:
        barrier = threading.Barrier(8)

        def send(number: int) -> int:
            barrier.wait()
            return _post(server, "/v1/chat/completions", bodies.chat([], f"{number}")).status_code

        statuses = Counter(pool.map(send, range(8)))
    assert statuses[200] >= 2
    assert statuses[429] >= 1
    assert statuses.total() == 8


def test_same_run_meets_the_same_faults() -> None:
    """Two servers with one file answer the same requests alike, try for try."""
    faults = parse_faults({"seed": 5, "rates": {"http_429": 0.3, "http_500": 0.3, "refusal": 0.3}})

    def seen() -> list[tuple[int, bytes]]:
        with serve(faults) as server:
            answers = [
                _post(server, "/v1/chat/completions", bodies.chat([], f"{n % 5}", max_tokens=50)) for n in range(20)
            ]
            return [(answer.status_code, answer.content) for answer in answers]

    first = seen()
    assert first == seen()
    assert len({status for status, _ in first}) > 1


def test_server_stops_while_a_request_is_open() -> None:
    """An answer that would take a minute does not keep the server up."""
    with ThreadPoolExecutor(1) as pool, serve(parse_faults({"latency_s": 60})) as server:
        waiting = pool.submit(_post, server, "/v1/chat/completions", bodies.chat([]))
        wait_until(lambda: server.requests)
    with pytest.raises(httpx.HTTPError):
        waiting.result(timeout=20)


def test_process_prints_its_url_serves_and_ends_on_sigterm(tmp_path: Path) -> None:
    """The provider runs as a process of its own, for tests that kill the other side."""
    faults = tmp_path / "faults.json"
    faults.write_text(json.dumps({"rates": {"http_503": 1}}))
    command = [sys.executable, "-m", "vlmbatch.rehearsal", "--port", "0", "--faults", str(faults)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            answer = httpx.post(f"{url}/v1/chat/completions", json=bodies.chat([]), trust_env=False, timeout=30)
            assert answer.status_code == 503
            assert httpx.get(f"{url}/rehearsal", trust_env=False, timeout=30).json()["requests"] == 1
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0


def test_process_on_a_port_that_is_taken_says_so() -> None:
    """A port of somebody else's ends the process with status 2 and a word on it."""
    with serve() as server:
        port = server.base_url.rpartition(":")[2]
        command = [sys.executable, "-m", "vlmbatch.rehearsal", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: port {port}: ")


def test_process_with_a_bad_faults_file_says_so(tmp_path: Path) -> None:
    """A mistake in the file ends the process with status 2 and names the key."""
    faults = tmp_path / "faults.json"
    faults.write_text('{"rats": {}}')
    done = subprocess.run(
        [sys.executable, "-m", "vlmbatch.rehearsal", "--faults", str(faults)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "did you mean rates" in done.stderr
