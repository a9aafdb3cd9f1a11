"""run against a server that misbehaves: every realtime behaviour of tests/data/behaviours is a test here."""

from __future__ import annotations

import socket
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults import FaultServer, behaviour, behaviours, faulty
from tests.sendable import attempts_of, make_run, row_id
from vlmbatch.attempts import Reader, asked, judge
from vlmbatch.errors import CheckFailed, IntegrityError, RefusedError
from vlmbatch.providers import get
from vlmbatch.retry import Policy
from vlmbatch.stages.run import RunOptions, RunResult, run

if TYPE_CHECKING:
    from vlmbatch.rundir import RunDir

QUICK = Policy(base_s=0.05, backoff_cap_s=0.2, patience_s=0.5)
"""Own backoffs of a few milliseconds: what servers ask for is waited for in full."""

ELSEWHERE = {
    "disk-full": "tests/stages/test_run_crash.py",
    "disk-full-build": "tests/stages/test_build.py",
    "file-byte-flip": "tests/stages/test_run.py",
    "file-half-line": "tests/stages/test_run.py",
    "file-two-runs": "tests/stages/test_run.py",
    "key-newline": "tests/cli/test_run_command.py",
    "key-odd": "tests/cli/test_run_command.py",
    "load-memory": "tests/stages/test_run_crash.py",
    "proc-sigint": "tests/stages/test_run_crash.py",
    "proc-sigkill": "tests/stages/test_run_crash.py",
    "proc-sigterm": "tests/stages/test_run_crash.py",
}
"""Behaviours that need a process, a disk or the command line, and where they are tested."""


def send(run_dir: RunDir, server: FaultServer, **options: Any) -> RunResult:
    """Run against a server, with a policy that does not dawdle."""
    given = {"policy": QUICK, "base_urls": (server.base_url,), **options}
    return run(run_dir, RunOptions(**given), key="sk-CANARY-0123456789")


def statuses(run_dir: RunDir) -> dict[str, str]:
    """Return the last status of every row that is on record."""
    provider = get(run_dir.info["provider"])
    found = {}
    for path in run_dir.results():
        for outcome in Reader(path, run_dir, provider):
            found[outcome.custom_id] = judge(outcome, provider, asked(run_dir, provider))[1].status.value
    return found


def test_every_realtime_behaviour_is_tested_somewhere() -> None:
    """No behaviour of the file is forgotten; batch behaviours are the batch channel's."""
    source = Path(__file__).read_text(encoding="utf-8")
    forgotten = [
        entry["id"]
        for entry in behaviours()
        if entry["kind"] != "batch" and entry["id"] not in ELSEWHERE and source.count(f'"{entry["id"]}"') < 1
    ]
    assert forgotten == []


@pytest.mark.parametrize("name", ["http-429-seconds", "http-429-date", "http-429-ms", "http-429-negative"])
def test_wait_that_the_server_names_is_waited(name: str, tmp_path: Path) -> None:
    """A Retry-After in any of its forms is honoured; one that makes no sense is taken as absent."""
    spec = behaviour(name)
    run_dir = make_run(tmp_path / "run", 1)
    with faulty(spec["script"]) as server:
        result = send(run_dir, server)
    [attempt] = attempts_of(run_dir)
    assert result.problem() is None
    assert statuses(run_dir) == {row_id(0): "ok"}
    assert [one["status_code"] for one in attempt["tries"]] == [429, 200]
    assert attempt["tries"][1]["waited_s"] >= spec["check"].get("min_wait_s", 0)
    assert attempt["tries"][1]["waited_s"] <= spec["check"]["max_wait_s"]


def test_wait_beyond_the_cap_stops_the_run(tmp_path: Path) -> None:
    """http-429-day: nobody sleeps for a day; the run stops at once and says when to come back."""
    run_dir = make_run(tmp_path / "run", 50)
    with faulty(behaviour("http-429-day")["script"]) as server:
        result = send(run_dir, server, concurrency=4)
    assert len(server.seen) <= 8
    assert result.problem() is not None
    assert "86" in result.stopped
    assert set(statuses(run_dir).values()) == {"http_error"}
    attempt = attempts_of(run_dir)[0]
    assert attempt["error"]["is_retryable"]
    assert "come back after 20" in attempt["error"]["message"]


@pytest.mark.parametrize("name", ["http-503-ok", "http-408", "http-409"])
def test_passing_error_is_retried(name: str, tmp_path: Path) -> None:
    """An error that passes costs one more try, and both are on record."""
    run_dir = make_run(tmp_path / "run", 1)
    spec = behaviour(name)
    with faulty(spec["script"]) as server:
        result = send(run_dir, server)
    [attempt] = attempts_of(run_dir)
    assert result.problem() is None
    assert len(attempt["tries"]) == spec["check"]["tries"]
    assert attempt["tries"][0]["error"]


def test_lasting_500_of_one_row_holds_nobody_up(tmp_path: Path) -> None:
    """http-500-always: the row ends after bounded tries, worth another run; the others are answered."""
    run_dir = make_run(tmp_path / "run", 30)
    spec = behaviour("http-500-always")
    with faulty(spec["script"]) as server:
        result = send(run_dir, server, concurrency=4)
    assert Counter(statuses(run_dir).values()) == {"ok": 29, "http_error": 1}
    assert statuses(run_dir)[row_id(0)] == "http_error"
    assert server.tries[0] == QUICK.max_tries <= spec["check"]["max_tries"]
    assert result.without_answer == 1
    [failed] = [one for one in attempts_of(run_dir) if one["error"]]
    assert failed["error"]["is_retryable"]
    assert len(failed["tries"]) == QUICK.max_tries


@pytest.mark.parametrize("name", ["http-413", "http-425-ok"])
def test_other_4xx_is_final(name: str, tmp_path: Path) -> None:
    """What the user has to mend is tried once; a body that is too large is named with its bytes."""
    run_dir = make_run(tmp_path / "run", 1, body_bytes=1000)
    with faulty(behaviour(name)["script"]) as server:
        result = send(run_dir, server)
    [attempt] = attempts_of(run_dir)
    assert statuses(run_dir) == {row_id(0): "http_error"}
    assert len(attempt["tries"]) == len(server.seen) == 1
    assert attempt["error"]["is_retryable"] is False
    assert result.errors == {name.split("-")[1]: 1}
    if name == "http-413":
        assert f"{server.seen[0].bytes:,} bytes" in attempt["error"]["message"]


def test_400_of_one_row_is_its_own(tmp_path: Path) -> None:
    """http-400: one try, final, the run goes on; a second run leaves the row alone and still says 1."""
    run_dir = make_run(tmp_path / "run", 20)
    with faulty(behaviour("http-400")["script"]) as server:
        result = send(run_dir, server, concurrency=4)
        assert Counter(statuses(run_dir).values()) == {"ok": 19, "http_error": 1}
        assert server.tries[0] == 1
        again = send(run_dir, server)
    assert len(server.seen) == 20
    assert result.without_answer == again.without_answer == again.failed_before == 1


@pytest.mark.parametrize(
    "name", ["http-401", "http-401-midway", "http-403", "http-402", "http-quota", "http-404-model"]
)
def test_refusal_of_the_whole_run_stops_it_early(name: str, tmp_path: Path) -> None:
    """Key, credit, region, model: a handful of requests, exit 4, one message; a good key finishes every row."""
    spec = behaviour(name)
    run_dir = make_run(tmp_path / "run", spec["rows"])
    with faulty(spec["script"]) as server:
        with pytest.raises(RefusedError) as caught:
            send(run_dir, server, concurrency=8)
        assert len(server.seen) <= spec["check"]["max_requests"]
        assert sum(server.answered.values()) == spec["check"].get("ok", 0)
    assert "invented" in caught.value.message
    ended = [one for one in attempts_of(run_dir) if one["error"]]
    assert ended
    assert all(one["final"] is False for one in ended)
    with faulty() as server:
        result = send(run_dir, server)
    assert result.problem() is None
    assert result.answered_before == spec["check"].get("ok", 0)
    assert set(statuses(run_dir).values()) == {"ok"}
    assert len(statuses(run_dir)) == spec["rows"]


@pytest.mark.parametrize("name", ["net-reset-midbody", "net-content-length", "net-chunked-cut"])
def test_answer_cut_short_is_retried(name: str, tmp_path: Path) -> None:
    """Half an answer is none, even where the half happens to be whole JSON."""
    run_dir = make_run(tmp_path / "run", 1)
    with faulty(behaviour(name)["script"]) as server:
        result = send(run_dir, server)
    [attempt] = attempts_of(run_dir)
    assert result.problem() is None
    assert len(attempt["tries"]) == 2
    assert attempt["tries"][0] == {
        "status_code": None,
        "error": "short_body",
        "waited_s": 0.0,
        "sent": True,
    }
    assert attempt["response"]["choices"][0]["message"]["content"] == "answer 0"


@pytest.mark.parametrize("name", ["net-slow-drip", "net-read-timeout"])
def test_endless_answer_ends_by_its_deadline(name: str, tmp_path: Path) -> None:
    """A total deadline ends a try that idle timeouts never would; the record says that it may have been billed."""
    run_dir = make_run(tmp_path / "run", 1)
    policy = Policy(timeout_s=0.5, base_s=0.02, max_timeouts=3)
    with faulty(behaviour(name)["script"]) as server:
        result = send(run_dir, server, policy=policy)
    [attempt] = attempts_of(run_dir)
    assert statuses(run_dir) == {row_id(0): "network_error"}
    assert [one["error"] for one in attempt["tries"]] == ["timeout"] * 3
    assert all(one["sent"] for one in attempt["tries"])
    assert attempt["error"]["is_retryable"]
    assert "--timeout" in attempt["error"]["message"]
    assert result.errors == {"timeout": 1}


@pytest.mark.parametrize("name", ["net-slow-answer", "same-timeout"])
def test_same_wait_is_not_repeated_in_vain(name: str, tmp_path: Path) -> None:
    """An answer that takes longer than the deadline comes in once the deadline has grown."""
    run_dir = make_run(tmp_path / "run", 1)
    spec = behaviour(name)
    script = {"steps": [{"delay_s": 0.5, "status": 200, "body": "ok"}]}
    with faulty(script) as server:
        send(run_dir, server, policy=Policy(timeout_s=0.2, base_s=0.02))
    assert statuses(run_dir) == {row_id(0): "ok"}
    assert len(server.seen) <= spec["check"]["max_requests_for_row"]


def test_gzip_answer_is_read(tmp_path: Path) -> None:
    """net-gzip: a compressed answer is kept as the JSON that it is."""
    run_dir = make_run(tmp_path / "run", 1)
    with faulty(behaviour("net-gzip")["script"]) as server:
        send(run_dir, server)
    assert attempts_of(run_dir)[0]["response"]["choices"][0]["message"]["content"] == "answer 0"


@pytest.mark.parametrize("name", ["net-redirect", "net-redirect-same"])
def test_redirect_is_never_followed(name: str, tmp_path: Path) -> None:
    """Neither another host nor another path: the key goes only where the user said."""
    run_dir = make_run(tmp_path / "run", 1)
    with faulty() as other, faulty(behaviour(name)["script"]) as server:
        server.fill("@PORT2@", str(other.port))
        send(run_dir, server)
    [attempt] = attempts_of(run_dir)
    assert statuses(run_dir) == {row_id(0): "http_error"}
    assert other.seen == other.looked == []
    assert [seen.path for seen in server.seen] == ["/v1/chat/completions"]
    assert "base URL" in attempt["error"]["message"]
    assert "/v" in attempt["error"]["message"]


def test_name_that_does_not_resolve_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """net-dns: the run ends by itself, with the name of the trouble, long before 2,000 rows were tried."""
    spec = behaviour("net-dns")

    def not_found(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", not_found)
    run_dir = make_run(tmp_path / "run", spec["rows"])
    with pytest.raises(CheckFailed, match="does not resolve"):
        run(run_dir, RunOptions(policy=QUICK, base_urls=(spec["script"]["base_url"],)), key="sk-x")
    assert statuses(run_dir) == {}


def test_https_to_a_plain_port_names_tls(tmp_path: Path) -> None:
    """net-tls: no fall-back to plain HTTP, no key in the clear."""
    run_dir = make_run(tmp_path / "run", 5)
    with faulty() as server:
        base_url = behaviour("net-tls")["script"]["base_url"].replace("@PORT@", str(server.port))
        options = RunOptions(policy=QUICK, base_urls=(base_url,))
        with pytest.raises(CheckFailed, match="TLS"):
            run(run_dir, options, key="sk-x")
    assert server.seen == server.looked == []


def test_server_that_dies_is_resumed_without_a_second_answer(tmp_path: Path) -> None:
    """net-dies-halfway: the first run keeps what it got, the second sends only the rest."""
    spec = behaviour("net-dies-halfway")
    run_dir = make_run(tmp_path / "run", spec["rows"])
    with faulty(spec["script"]) as server:
        first = send(run_dir, server, concurrency=8)
    assert first.problem() is not None
    got = sum(server.answered.values())
    with faulty() as second:
        result = send(run_dir, second)
    assert result.problem() is None
    assert result.answered_before + sum(second.answered.values()) == spec["check"]["second_run_ok"]
    assert set(statuses(run_dir).values()) == {"ok"}
    assert len(statuses(run_dir)) == 100
    assert got - 8 <= result.answered_before <= got


def test_storm_of_429_finds_its_level(tmp_path: Path) -> None:
    """load-429-storm: concurrency falls by itself, all rows are answered, at less than three requests each."""
    spec = behaviour("load-429-storm")
    run_dir = make_run(tmp_path / "run", spec["rows"])
    script = {**spec["script"], "over": {**spec["script"]["over"], "headers": {"retry-after-ms": "200"}}}
    script["under"] = {**script["under"], "delay_s": 0.01}
    with faulty(script) as server:
        result = send(run_dir, server, concurrency=32)
    assert result.problem() is None
    assert len(server.seen) < 3 * spec["rows"]
    assert result.concurrency["peak"] <= 32
    assert result.concurrency["mean"] < 8


def test_byte_flip_sends_nothing(tmp_path: Path) -> None:
    """A changed shard stops the run before the first request."""
    run_dir = make_run(tmp_path / "run", 10)
    shard = tmp_path / "run" / "shards" / "00000.jsonl"
    shard.chmod(0o644)
    data = bytearray(shard.read_bytes())
    data[200] ^= 1
    shard.write_bytes(data)
    with faulty() as server, pytest.raises(IntegrityError):
        send(run_dir, server)
    assert server.seen == server.looked == []
    assert attempts_of(run_dir) == []
