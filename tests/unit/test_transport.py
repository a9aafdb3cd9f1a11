"""The wire against real sockets: one request out, one whole answer or the name of what went wrong."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults import FaultServer, faulty
from tests.tls import CERTIFICATE, untrusted_server
from vlmbatch.errors import InputError
from vlmbatch.transport import Answer, Transport, addresses, check_base_url, client, faults, without_query

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

KEY = "sk-CANARY-0123456789"
HEADERS = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}


def send(url: str, *, body: bytes = b"row 0000000", timeout_s: float = 5.0, **options: Any) -> Answer:
    """Send one request over a transport of its own."""
    sent = {"headers": HEADERS, "body": body, "timeout_s": timeout_s, "sink": options.pop("sink", None)}

    async def main() -> Answer:
        async with Transport(**options) as wire:
            return await wire.send(options.get("method", "POST"), url, **sent)

    return asyncio.run(main())


def ask(server: FaultServer, **options: Any) -> Answer:
    """Post to a fault server."""
    return send(f"{server.base_url}/chat/completions", **options)


def test_body_and_headers_arrive_as_they_are() -> None:
    """The bytes that go in come out, whatever their length, and the headers too."""
    for size in (0, 1, 65_536, 3_000_000):
        with faulty() as server:
            answer = ask(server, body=b"row 0000007" + b"x" * size)
            [seen] = server.seen
        assert answer.status_code == 200
        assert (seen.row, seen.bytes) == (7, 11 + size)
        assert seen.headers["authorization"] == HEADERS["authorization"]
        assert seen.headers["content-length"] == str(11 + size)
        assert seen.headers["user-agent"].startswith("vlmbatch/")


def test_answer_headers_are_in_lower_case() -> None:
    """Whoever looks one up need not guess how the server writes it."""
    with faulty({"steps": [{"headers": {"X-Request-ID": "r1", "Retry-After": "3"}, "body": "ok"}]}) as server:
        answer = ask(server)
    assert answer.headers["x-request-id"] == "r1"
    assert answer.headers["retry-after"] == "3"


@pytest.mark.parametrize(
    ("step", "code"),
    [
        ({"fault": "short_body", "declared": 1000, "sent": 300}, "short_body"),
        ({"fault": "chunked_no_end"}, "short_body"),
        ({"fault": "reset", "after_bytes": 50}, "short_body"),
        ({"fault": "close"}, "closed"),
        ({"fault": "not_http"}, "bad_http"),
    ],
)
def test_broken_answer_is_named(step: dict[str, Any], code: str) -> None:
    """Every way of breaking off has a name, and the request counts as sent."""
    with faulty({"steps": [step]}) as server:
        answer = ask(server)
    assert (answer.status_code, answer.code, answer.sent) == (None, code, True)
    assert answer.body == b""
    assert str(server.port) in answer.message
    assert KEY not in answer.message


def test_deadline_covers_all_of_it() -> None:
    """A drip that never pauses ends by the total deadline."""
    with faulty({"steps": [{"fault": "drip", "bytes_per_s": 50}]}) as server:
        answer = ask(server, timeout_s=0.3)
    assert (answer.code, answer.sent) == ("timeout", True)


def test_nothing_listening_is_refused_and_not_sent() -> None:
    """A refused connection has billed nothing."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    answer = send(f"http://127.0.0.1:{port}/v1")
    assert (answer.code, answer.sent) == ("refused", False)


def test_unknown_host_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that does not resolve says so."""

    def not_found(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", not_found)
    answer = send("http://no-such-host.invalid/v1")
    assert (answer.code, answer.sent) == ("dns", False)
    assert "no-such-host.invalid" in answer.message
    assert "not known" in answer.message


def test_name_that_no_host_can_have_is_named() -> None:
    """What cannot even be looked up does not resolve."""
    answer = send("http://a..b/v1")
    assert (answer.code, answer.sent) == ("dns", False)


def test_plain_http_behind_https_is_a_tls_error() -> None:
    """No silent fall-back."""
    with faulty() as server:
        answer = send(f"https://127.0.0.1:{server.port}/v1")
    assert (answer.code, answer.sent) == ("tls", False)
    assert server.seen == []


def test_untrusted_certificate_is_a_tls_error(self_signed: int) -> None:
    """A certificate that nobody vouches for is refused, and the reason told."""
    answer = send(f"https://127.0.0.1:{self_signed}/v1")
    assert (answer.code, answer.sent) == ("tls", False)
    assert "self" in answer.message


def test_certificate_file_of_the_environment_is_trusted(self_signed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """SSL_CERT_FILE is honoured, as behind a company's proxy."""
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    assert send(f"https://localhost:{self_signed}/v1").status_code == 200


def test_redirect_comes_back_as_an_answer() -> None:
    """The transport never goes where the user did not send it."""
    with faulty() as other, faulty({"steps": [{"status": 307, "headers": {"location": "@OTHER@"}}]}) as server:
        server.fill("@OTHER@", other.base_url)
        answer = ask(server)
    assert (answer.status_code, answer.headers["location"]) == (307, other.base_url)
    assert other.seen == []


def test_proxy_of_the_environment_is_used_unless_excepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP_PROXY and NO_PROXY are heard; this machine itself is never asked through a proxy."""
    monkeypatch.setenv("no_proxy", "inside.example")
    with faulty() as proxy, faulty() as server:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        assert send("http://outside.example/v1").status_code == 200
        assert [seen.path for seen in proxy.seen] == ["http://outside.example/v1"]
        assert ask(server).status_code == 200
        assert len(proxy.seen) == 1
        assert addresses.proxy_by_environment(httpx.URL("http://inside.example/v1")) is None
        assert send("http://127.example/v1", trust_env=True).status_code == 200
    assert len(proxy.seen) == 2


def test_proxy_exception_may_name_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """As curl and Python's own urllib read NO_PROXY."""
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "inside.example:8000")
    assert addresses.proxy_by_environment(httpx.URL("http://inside.example:8000/v1")) is None
    assert addresses.proxy_by_environment(httpx.URL("http://inside.example:8001/v1")) is not None


def test_proxy_of_another_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A SOCKS proxy is not spoken: said at once, not as a network error per row."""
    monkeypatch.setenv("all_proxy", "socks5://127.0.0.1:1080")
    with pytest.raises(InputError, match="neither http nor https"):
        send("http://outside.example/v1")


def test_answer_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hostile answer cannot fill the memory."""
    monkeypatch.setattr(faults, "MAX_ANSWER_BYTES", 1000)
    with faulty({"steps": [{"body_text": "x" * 5000}]}) as server:
        assert ask(server).code == "too_large"


def test_key_echoed_by_a_server_is_taken_out() -> None:
    """A server that repeats the key does not get it into our files; a short placeholder is no key."""
    with faulty({"steps": [{"body_text": f'{{"you sent": "{KEY}", "mode": "none"}}'}]}) as server:
        assert KEY.encode() not in ask(server, secret=KEY).body
        assert b'"mode": "none"' in ask(server, secret="none").body


def test_key_echoed_in_a_header_is_taken_out() -> None:
    """Headers go on record too: a request id, the address of a redirect."""
    with faulty({"steps": [{"body": "ok", "headers": {"x-request-id": f"r-{KEY}", "x-other": "kept"}}]}) as server:
        headers = ask(server, secret=KEY).headers
    assert KEY not in headers["x-request-id"]
    assert (headers["x-other"], headers["content-type"]) == ("kept", "application/json")


@pytest.mark.parametrize("place", ["127.0.0.1:nonsense", "127.0.0.1:99999", "", "a..b:3128"])
def test_proxy_that_is_no_place_is_refused(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that cannot be one is wrong usage, not a network that fails; its password is not repeated."""
    monkeypatch.setenv("http_proxy", f"http://user:hidden@{place}")
    with pytest.raises(InputError) as caught:
        send("http://outside.example/v1")
    assert "hidden" not in str(caught.value)


@given(parts=st.lists(st.sampled_from([KEY.encode(), KEY[:7].encode(), KEY[3:].encode(), b"x", b"-0"]), max_size=12))
def test_key_echoed_in_a_download_is_taken_out(parts: list[bytes]) -> None:
    """Results of a batch job go to the disk piece by piece; the key does not, wherever the pieces divide it."""
    whole = b"".join(parts)
    cleaned = whole.replace(KEY.encode(), b"[key removed]")

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(whole), 5):
            yield whole[start : start + 5]

    async def main() -> bytes:
        return b"".join([piece async for piece in client._cleaned(pieces(), KEY.encode())])

    assert asyncio.run(main()) == cleaned
    kept: list[bytes] = []
    with faulty({"steps": [{"body_text": whole.decode()}]}) as server:
        ask(server, sink=kept.append, secret=KEY)
    assert b"".join(kept) == cleaned


def test_sink_takes_good_answers_alone() -> None:
    """A download goes to the sink piece by piece; an error stays an answer."""
    pieces: list[bytes] = []
    with faulty({"steps": [{"body_text": "x" * 3_000_000}, {"status": 404, "body_text": "gone"}]}) as server:
        assert ask(server, sink=pieces.append).body == b""
        assert ask(server, sink=pieces.append).body == b"gone"
    assert b"".join(pieces) == b"x" * 3_000_000


def test_many_requests_share_few_connections() -> None:
    """Connections are kept: a thousand requests of eight workers need eight of them."""

    async def main(server: FaultServer) -> int:
        left = iter(range(400))
        ports = set()
        async with Transport() as wire:

            async def worker() -> None:
                for _ in left:
                    answer = await wire.send(
                        "POST", f"{server.base_url}/chat/completions", headers=HEADERS, body=b"row 0000001", timeout_s=5
                    )
                    ports.add(answer.status_code)

            await asyncio.gather(*(worker() for _ in range(8)))
            kept = sum(map(len, wire._network._kept.values()))
        assert ports == {200}
        return kept

    with faulty() as server:
        assert asyncio.run(main(server)) <= 8


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://h/v1", "h/v1", "http://", "http://user:pw@h/v1", "http://[::1", "javascript:alert(1)", ""),
        *(f"http://{'a' * 64}.example/v1", "http://a..b/v1", "http://h:99999/v1", "http://h h/v1"),
        *("ftp://h/v1?key=pw", "http://user:pw@h:x/v1", "http://[::1?pw"),
    ],
)
def test_base_url_that_is_none_is_refused(url: str) -> None:
    """Bad addresses are told before anything starts, without repeating a password."""
    with pytest.raises(InputError) as caught:
        check_base_url(url)
    assert "pw" not in caught.value.message


def test_base_url_loses_its_last_slash_and_its_query_on_record() -> None:
    """What is written down holds nothing that may be secret."""
    assert check_base_url("http://h:8000/v1/") == "http://h:8000/v1"
    assert without_query("https://h/v1?api-version=1&code=secret") == "https://h/v1"


@pytest.fixture
def self_signed() -> Iterator[int]:
    """Run a TLS server for one connection; return its port."""
    with untrusted_server() as port:
        yield port
