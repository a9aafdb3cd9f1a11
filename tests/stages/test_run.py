"""run, the stage: resuming, samples, parts, several endpoints, budgets, what goes on record, and what never does."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.faults import FaultServer, completion, faulty, silent_port
from tests.pictures import png
from tests.sendable import attempts_of, make_run, row_id
from tests.waiting import wait_until
from vlmbatch import jsonl
from vlmbatch.errors import CheckFailed, Exit, InputError, IntegrityError, RefusedError
from vlmbatch.records import Event, Status
from vlmbatch.retry import Policy
from vlmbatch.rundir import RunDir
from vlmbatch.stages.build import BuildOptions, build
from vlmbatch.stages.run import RunOptions, RunResult, run
from vlmbatch.stop import Stop

KEY = "sk-CANARY-0123456789"
QUICK = Policy(base_s=0.05, backoff_cap_s=0.2, patience_s=0.5)


def send(run_dir: RunDir, *servers: FaultServer, **options: Any) -> RunResult:
    """Run against servers."""
    on_event, stop = options.pop("on_event", None), options.pop("stop", None)
    given = {"policy": QUICK, "base_urls": tuple(server.base_url for server in servers), **options}
    return run(run_dir, RunOptions(**given), key=KEY, on_event=on_event, stop=stop)


def answered(run_dir: RunDir, **options: Any) -> Counter[str]:
    """Return how often each row was answered on record."""
    return Counter(one["custom_id"] for one in attempts_of(run_dir, **options) if one["error"] is None)


def with_prices(run_dir: RunDir) -> None:
    """Put prices on record, as estimate does: 10 USD a million in, 100 out."""
    line = {"schema": "vlmbatch.estimate/1", "price_in_usd_per_mtok": "10", "price_out_usd_per_mtok": "100"}
    Path(run_dir.file("estimates.jsonl")).write_bytes(jsonl.dumps(line) + b"\n")


# --- the plain case ------------------------------------------------------------------------------------------


def test_every_row_is_answered_once_and_kept_as_it_came(tmp_path: Path) -> None:
    """The attempt holds what the contract names, and the provider's JSON byte for byte."""
    run_dir = make_run(tmp_path / "run", 50, per_shard=20)
    choice = b'{"message":{"content":"\\ud800 \\u2028"},"finish_reason":"stop"}'
    odd = b'{"id" : "x",\n "choices":[%s], "big":12345678901234567890123}' % choice
    with faulty({"steps": [{"headers": {"x-request-id": "r-1"}, "body_text": odd.decode()}]}) as server:
        result = send(run_dir, server)
    assert result.problem() is None
    assert result.statuses == {"ok": 50}
    assert answered(run_dir) == {row_id(index): 1 for index in range(50)}
    assert [seen.path for seen in server.seen] == ["/v1/chat/completions"] * 50
    [line] = list(jsonl.iter_lines(run_dir.results()[0]))[:1]
    assert odd.replace(b"\n", b" ") in line.data
    attempt = attempts_of(run_dir)[0]
    assert attempt["schema"] == "vlmbatch.attempt/1"
    assert attempt["channel"] == "realtime"
    assert attempt["endpoint"] == server.base_url
    assert attempt["direct"] is False
    assert attempt["request_id"] == "r-1"
    assert attempt["tries"] == [{"status_code": 200, "error": None, "waited_s": 0.0}]
    assert attempt["session"]["tool"]["name"] == "vlmbatch"
    assert sum("session" in one for one in attempts_of(run_dir)) == 1


@pytest.mark.parametrize("options", [{}, {"max_tokens_total": 100_000}], ids=["by their word", "judged"])
def test_answers_to_other_lines_under_the_same_ids_stop_the_run(tmp_path: Path, options: dict[str, Any]) -> None:
    """An id is not enough: results of a build that froze other bytes are no answers to this run's requests."""
    run_dir, other = make_run(tmp_path / "run", 3), make_run(tmp_path / "other", 3, max_tokens=65)
    with faulty() as server:
        send(other, server)
        Path(run_dir.file("results")).mkdir(exist_ok=True)
        Path(run_dir.file("results/a.jsonl")).write_bytes(Path(other.results()[0]).read_bytes())
        with pytest.raises(IntegrityError, match="of another line"):
            send(run_dir, server, **options)
    assert len(server.seen) == 3


def test_same_command_again_sends_nothing(tmp_path: Path) -> None:
    """Resume reads any file of results/, a smoke's too; --no-resume pays again."""
    run_dir = make_run(tmp_path / "run", 30)
    with faulty() as server:
        send(run_dir, server, limit=10, out="smoke.jsonl")
        assert len(server.seen) == 10
        again = send(run_dir, server, limit=10, out="smoke.jsonl")
        assert (len(server.seen), again.answered_before, again.results) == (10, 10, None)
        rest = send(run_dir, server)
        assert (len(server.seen), rest.answered_before) == (30, 10)
        send(run_dir, server, resume=False)
        assert len(server.seen) == 60
    assert sorted(Path(path).name for path in run_dir.results()) == ["run.jsonl", "smoke.jsonl"]


def test_half_written_line_is_kept_and_its_row_sent_again(tmp_path: Path) -> None:
    """A torn last line never merges with a new one, and does not count."""
    run_dir = make_run(tmp_path / "run", 5)
    with faulty() as server:
        send(run_dir, server, concurrency=1)
        path = Path(run_dir.results()[0])
        path.write_bytes(path.read_bytes()[:-200])
        torn = path.read_bytes().splitlines()[-1]
        send(run_dir, server)
        assert len(server.seen) == 6
    lines = path.read_bytes().splitlines()
    assert lines[4] == torn
    assert len(lines) == 6
    assert answered(run_dir) == {row_id(index): 1 for index in range(5)}


def test_lines_are_checked_as_they_are_sent(tmp_path: Path) -> None:
    """With --verify lines a changed line stops the run when its turn comes; what was answered before is kept."""
    run_dir = make_run(tmp_path / "run", 20)
    shard = tmp_path / "run" / "shards" / "00000.jsonl"
    lines = shard.read_bytes().split(b"\n")
    lines[15] = lines[15].replace(b"row 0000015", b"row 0000016")
    shard.chmod(0o644)
    shard.write_bytes(b"\n".join(lines))
    with faulty() as server:
        with pytest.raises(IntegrityError, match=row_id(15)):
            send(run_dir, server, verify="lines", concurrency=1)
        assert [seen.row for seen in server.seen] == list(range(15))
    assert len(answered(run_dir)) == 15


# --- which rows ----------------------------------------------------------------------------------------------


def test_sample_touches_every_shard(tmp_path: Path) -> None:
    """A smoke is spread over the run."""
    run_dir = make_run(tmp_path / "run", 95, per_shard=10)
    with faulty() as server:
        send(run_dir, server, limit=20)
    assert {seen.row // 10 for seen in server.seen} == set(range(10))


def test_named_ids_are_sent_whatever_they_have(tmp_path: Path) -> None:
    """--ids sends those rows alone, and again."""
    run_dir = make_run(tmp_path / "run", 10)
    ids = tmp_path / "ids.txt"
    ids.write_text(f"{row_id(3)}\n{row_id(7)}\n", encoding="utf-8")
    with faulty() as server:
        send(run_dir, server)
        result = send(run_dir, server, ids=str(ids))
    assert sorted(seen.row for seen in server.seen[10:]) == [3, 7]
    assert result.asked == 2


def test_parts_send_every_row_once(tmp_path: Path) -> None:
    """Three parts at a time: their own files, no row twice, none forgotten; the whole run is refused meanwhile."""
    run_dir = make_run(tmp_path / "run", 60)
    with faulty() as server, ThreadPoolExecutor(3) as pool:
        server.is_held = True
        parts = [pool.submit(send, run_dir, server, num_shards=3, shard_id=part, concurrency=4) for part in range(3)]
        wait_until(lambda: len(server.seen) == 12)
        with pytest.raises(InputError, match="another process"):
            send(run_dir, server)
        server.is_held = False
        assert [part.result().problem() for part in parts] == [None] * 3
    assert answered(run_dir) == {row_id(index): 1 for index in range(60)}
    assert [Path(path).name for path in run_dir.results()] == ["task-0000.jsonl", "task-0001.jsonl", "task-0002.jsonl"]


@pytest.mark.parametrize("other", [{"num_shards": 4}, {"num_shards": 3, "limit": 50}])
def test_parts_dealt_otherwise_refuse_each_other(tmp_path: Path, other: dict[str, int]) -> None:
    """A row may be in part 1 of 3 and in part 0 of 4: only one of such two is at work at a time."""
    run_dir = make_run(tmp_path / "run", 60)
    with faulty() as server, ThreadPoolExecutor(1) as pool:
        server.is_held = True
        first = pool.submit(send, run_dir, server, num_shards=3, shard_id=1, concurrency=4)
        wait_until(lambda: server.seen)
        with pytest.raises(InputError, match="another process"):
            send(run_dir, server, shard_id=0, **other)
        server.is_held = False
        assert first.result().problem() is None
        assert send(run_dir, server, shard_id=0, **other).problem() is None
    assert set(answered(run_dir).values()) == {1}


def test_two_runs_on_one_part_refuse_each_other(tmp_path: Path) -> None:
    """The second one is turned away before it sends anything."""
    run_dir = make_run(tmp_path / "run", 100)
    with faulty() as server, ThreadPoolExecutor(1) as pool:
        server.is_held = True
        first = pool.submit(send, run_dir, server, concurrency=8)
        wait_until(lambda: server.seen)
        with pytest.raises(InputError, match="another process is working on this run"):
            send(run_dir, server, out="other.jsonl")
        server.is_held = False
        assert first.result().problem() is None
    assert len(server.seen) == 100


def test_pending_file_holds_the_frozen_lines_left(tmp_path: Path) -> None:
    """--pending copies whole lines byte for byte and sends nothing."""
    run_dir = make_run(tmp_path / "run", 10, per_shard=4)
    path = tmp_path / "left.jsonl"
    with faulty() as server:
        send(run_dir, server, limit=5)
        result = send(run_dir, server, pending=str(path))
        assert len(server.seen) == 5
    frozen = b"".join(Path(run_dir.file(shard["file"])).read_bytes() for shard in run_dir.info["shards"]).splitlines()
    left = [line for index, line in enumerate(frozen) if row_id(index) not in answered(run_dir)]
    assert path.read_bytes().splitlines() == left
    assert (result.pending, result.to_send, result.problem()) == (str(path), 5, None)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["left.jsonl", "run"]


def test_pending_through_a_link_writes_what_it_leads_to(tmp_path: Path) -> None:
    """A link stays a link: its target has the lines."""
    run_dir = make_run(tmp_path / "run", 3)
    (tmp_path / "real.jsonl").write_text("")
    (tmp_path / "link.jsonl").symlink_to("real.jsonl")
    with faulty() as server:
        send(run_dir, server, pending=str(tmp_path / "link.jsonl"))
    assert (tmp_path / "link.jsonl").is_symlink()
    assert len((tmp_path / "real.jsonl").read_bytes().splitlines()) == 3


@pytest.mark.parametrize("name", ["run.json", "shards/00000.jsonl", "results/run.jsonl", "estimates.jsonl", "results"])
def test_files_of_the_run_are_not_replaced_by_the_users(tmp_path: Path, name: str) -> None:
    """--pending is refused where the run folder has a use for the place; --progress-path goes unwritten there."""
    run_dir = make_run(tmp_path / "run", 3)
    path = tmp_path / "run" / name
    before = path.read_bytes() if path.is_file() else b""
    (tmp_path / "link").symlink_to(tmp_path / "run")
    told: list[Event] = []
    with faulty() as server:
        with pytest.raises(InputError, match="its own use"):
            send(run_dir, server, pending=str(tmp_path / "link" / name))
        send(run_dir, server, limit=1, out="one.jsonl", progress_path=str(path), on_event=told.append)
        send(run_dir, server, pending=str(tmp_path / "run" / "left.jsonl"))
    assert "its own use" in " ".join(event.message for event in told if event.kind == "warning")
    assert (path.read_bytes() if path.is_file() else b"") == before


def test_refusals_are_sent_again_so_often_and_no_more(tmp_path: Path) -> None:
    """--retry-status: two more times over all runs, every answer on record."""
    run_dir = make_run(tmp_path / "run", 3)
    no = {"body": completion(0, text="", refusal="I decline.")}
    with faulty({"steps": [no]}) as server:
        first = send(run_dir, server)
        assert first.statuses == {"refusal": 3}
        assert len(server.seen) == 3
        again = send(run_dir, server, retry_status=frozenset({Status.REFUSAL}), retry_times=2)
        assert len(server.seen) == 9
        assert again.statuses == {"refusal": 3}
        send(run_dir, server, retry_status=frozenset({Status.REFUSAL}), retry_times=2)
        assert len(server.seen) == 9
    assert set(answered(run_dir).values()) == {3}
    with faulty() as server:
        send(run_dir, server, retry_status=frozenset({Status.REFUSAL}), retry_times=3)
        assert len(server.seen) == 3
        send(run_dir, server, retry_status=frozenset({Status.REFUSAL}), retry_times=9)
        assert len(server.seen) == 3


# --- several endpoints ---------------------------------------------------------------------------------------


def test_requests_spread_over_endpoints_and_leave_the_dead_one(tmp_path: Path) -> None:
    """An endpoint that dies half-way is set aside; its rows go to the others and all are answered."""
    run_dir = make_run(tmp_path / "run", 200)
    slow = {"steps": [{"delay_s": 0.01, "body": "ok"}]}
    with faulty({**slow, "die_after_rows": 20}) as first, faulty(slow) as second, faulty(slow) as third:
        result = send(run_dir, first, second, third, concurrency=4)
    assert result.problem() is None
    assert answered(run_dir) == {row_id(index): 1 for index in range(200)}
    assert min(len(second.seen), len(third.seen)) > 50
    assert {one["endpoint"] for one in attempts_of(run_dir)} == {server.base_url for server in (first, second, third)}


def test_endpoint_that_is_down_at_the_start_is_left_out_with_a_warning(tmp_path: Path) -> None:
    """The run goes on with those that answer."""
    run_dir = make_run(tmp_path / "run", 20)
    events: list[Event] = []
    with silent_port() as port, faulty() as server:
        base_urls = (f"http://127.0.0.1:{port}/v1", server.base_url)
        result = send(run_dir, base_urls=base_urls, on_event=events.append, concurrency=2)
    assert result.problem() is None
    said = [event.message for event in events if event.kind == "warning"]
    warnings = [message for message in said if "does not answer" in message]
    assert len(warnings) == 1
    assert "does not answer" in warnings[0]


def test_no_endpoint_at_all_is_said_clearly(tmp_path: Path) -> None:
    """Nothing listens: the run says so once, ends by itself, names each address, and leaves no mark on any row."""
    run_dir = make_run(tmp_path / "run", 500)
    with silent_port() as one, silent_port() as two:
        base_urls = tuple(f"http://127.0.0.1:{port}/v1" for port in (one, two))
        policy = Policy(base_s=0.01, backoff_cap_s=0.02, patience_s=0.1)
        told: list[Event] = []
        with pytest.raises(CheckFailed, match="no endpoint answers") as caught:
            send(run_dir, base_urls=base_urls, policy=policy, on_event=told.append)
    assert f":{one}" in caught.value.message
    assert f":{two}" in caught.value.message
    assert [event.kind for event in told if event.kind == "warning"] == ["warning"]
    assert run_dir.results() == []


def test_endpoint_that_comes_up_while_it_is_looked_for_is_used(tmp_path: Path) -> None:
    """A server that is still starting is waited for, a while."""
    run_dir = make_run(tmp_path / "run", 5)
    policy = Policy(base_s=0.01, backoff_cap_s=0.02, patience_s=20)
    told: list[Event] = []
    with ThreadPoolExecutor(1) as pool:
        with silent_port() as port:
            base_urls = (f"http://127.0.0.1:{port}/v1",)
            running = pool.submit(send, run_dir, base_urls=base_urls, policy=policy, on_event=told.append)
            wait_until(lambda: any(event.kind == "warning" for event in told))
        with faulty(port=port):
            assert running.result().problem() is None
    assert len(answered(run_dir)) == 5


def test_model_that_is_not_listed_is_tried_by_one_request(tmp_path: Path) -> None:
    """Lists can be wrong: one request goes first; refused, it ends the run; answered, the rest follow."""
    run_dir = make_run(tmp_path / "run", 50)
    gone = {"status": 404, "body": {"error": {"message": "no such model (invented)", "code": "model_not_found"}}}
    with faulty({"steps": [gone]}, models=["a", "b"]) as server:
        with pytest.raises(RefusedError, match="no such model"):
            send(run_dir, server)
        assert len(server.seen) == 1
    with faulty({}, models=["a", "b"]) as server:
        assert send(run_dir, server).problem() is None


def test_endpoint_without_the_model_gets_nothing_where_another_has_it(tmp_path: Path) -> None:
    """One server with the right model does all the work."""
    run_dir = make_run(tmp_path / "run", 20)
    with faulty({}, models=["another"]) as wrong, faulty({}, models=["test-vlm-1"]) as right:
        assert send(run_dir, wrong, right).problem() is None
    assert (len(wrong.seen), len(right.seen)) == (0, 20)


def test_what_the_server_says_of_itself_goes_on_record(tmp_path: Path) -> None:
    """Version and models of a local server stand in its first attempt."""
    run_dir = make_run(tmp_path / "run", 5)
    with faulty({"version": "0.33.0"}, models=["test-vlm-1"]) as server:
        send(run_dir, server)
    [session] = [one["session"] for one in attempts_of(run_dir) if "session" in one]
    assert session["server_version"] == "0.33.0"
    assert session["server_models"] == ["test-vlm-1"]


# --- stopping early ------------------------------------------------------------------------------------------


def test_identical_400s_from_the_start_stop_the_run(tmp_path: Path) -> None:
    """A wrong shape shows at the first rows, not at the ten-thousandth; the rows stay open."""
    run_dir = make_run(tmp_path / "run", 1000)
    bad = {"status": 400, "body": {"error": {"message": "unknown field 'detail' (invented)", "code": "invalid"}}}
    with faulty({"steps": [bad]}) as server:
        with pytest.raises(RefusedError, match="unknown field 'detail'"):
            send(run_dir, server, concurrency=8)
        assert len(server.seen) <= 24
    assert all(one["final"] is False for one in attempts_of(run_dir))
    with faulty() as server:
        assert send(run_dir, server).problem() is None
        assert len(server.seen) == 1000


def test_few_identical_400s_are_the_rows_own(tmp_path: Path) -> None:
    """A run of a few rows ends as it ends: its errors are final."""
    run_dir = make_run(tmp_path / "run", 3)
    bad = {"status": 400, "body": {"error": {"message": "bad image (invented)", "code": "invalid"}}}
    with faulty({"steps": [bad]}) as server:
        result = send(run_dir, server)
        assert result.errors == {"400": 3}
        send(run_dir, server)
        assert len(server.seen) == 3


@pytest.mark.parametrize("at_once", [1, 8])
def test_token_budget_is_not_passed_over_all_runs(tmp_path: Path, at_once: int) -> None:
    """The same command repeated spends nothing more; a higher limit goes on."""
    run_dir = make_run(tmp_path / "run", 50, max_tokens=20)
    with faulty() as server:
        result = send(run_dir, server, max_tokens_total=1000, concurrency=at_once)
        used = result.input_tokens + result.output_tokens
        assert 1000 - 130 < used <= 1000
        assert "--max-tokens-total" in result.stopped
        assert result.problem() is not None
        before = len(server.seen)
        send(run_dir, server, max_tokens_total=1000, concurrency=at_once)
        assert len(server.seen) == before
        assert send(run_dir, server, max_tokens_total=100_000).problem() is None
    assert len(server.seen) == 50


def test_budget_is_looked_at_again_once_a_place_is_free(tmp_path: Path) -> None:
    """A row that waited for a place is not sent where the answer before it took what was left."""
    run_dir = make_run(tmp_path / "run", 6, max_tokens=20)
    large = {**completion(1), "usage": {"prompt_tokens": 290, "completion_tokens": 10, "total_tokens": 300}}
    with faulty({"steps": [{"body": "ok"}], "only_row": 0, "others": {"body": large, "delay_s": 0.02}}) as server:
        result = send(run_dir, server, max_tokens_total=400, concurrency=1)
    # 110, then 300 where 120 was the most that one could know of: now 410 are spent, and no third row may go
    assert len(server.seen) == 2
    assert (result.input_tokens + result.output_tokens, result.without_answer) == (410, 4)


@pytest.mark.parametrize("model", ["gpt-5.4-mini", "a-model-of-nobody"])
def test_budget_stops_before_a_row_that_is_larger_than_all_before(tmp_path: Path, model: str) -> None:
    """An image of fifty times the pixels is not sent on the word of small ones."""
    (tmp_path / "images").mkdir()
    for name in ("a", "b", "c"):
        (tmp_path / f"images/{name}.png").write_bytes(png(64, 64))
    (tmp_path / "images/d.png").write_bytes(png(2000, 1500))
    sources, out = [str(tmp_path / "images")], str(tmp_path / "run")
    build(BuildOptions(sources=sources, out=out, model=model, prompt="row 0000001", max_tokens=20))
    with faulty() as server:
        # a small row takes 110 here; one more of that size would fit
        result = send(RunDir.open(out), server, max_tokens_total=500)
    assert (len(server.seen), result.without_answer) == (3, 1)
    assert "--max-tokens-total" in result.stopped


def test_limit_that_was_passed_all_the_same_is_said(tmp_path: Path) -> None:
    """Where the last answer took more than anybody could know, the run says that the limit was passed."""
    run_dir = make_run(tmp_path / "run", 1, max_tokens=20)
    large = {**completion(0), "usage": {"prompt_tokens": 900, "completion_tokens": 10, "total_tokens": 910}}
    told: list[Event] = []
    with faulty({"steps": [{"body": large}]}) as server:
        assert send(run_dir, server, max_tokens_total=400, on_event=told.append).problem() is None
    assert any(event.kind == "warning" and "limit on spending was passed" in event.message for event in told)


def test_money_budget_needs_prices_and_is_kept(tmp_path: Path) -> None:
    """Prices come from the run's own record; without them the limit is refused rather than guessed."""
    run_dir = make_run(tmp_path / "run", 50, max_tokens=20)
    with faulty() as server:
        with pytest.raises(InputError, match="needs prices"):
            send(run_dir, server, max_usd=Decimal("0.01"))
        with_prices(run_dir)
        result = send(run_dir, server, max_usd=Decimal("0.0205"))
    # a row costs 100 x 10 + 10 x 100 = 2,000 millionths; at worst 3,000
    assert result.spent_usd == Decimal("0.018")
    assert sum(result.statuses.values()) == 9


def test_stop_asked_once_finishes_what_is_in_flight(tmp_path: Path) -> None:
    """Every answer that was on its way is kept, nothing new is sent, and the exit status says interrupted."""
    run_dir = make_run(tmp_path / "run", 200)
    stop = Stop()
    with faulty({"steps": [{"delay_s": 0.1, "body": "ok"}]}) as server, ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: (wait_until(lambda: len(server.seen) > 8), stop.ask()))
        result = send(run_dir, server, concurrency=8, stop=stop)
    problem = result.problem()
    assert result.is_interrupted
    assert problem is not None
    assert problem.exit_code == Exit.INTERRUPTED
    assert len(server.seen) < 200
    assert len(answered(run_dir)) == len(server.seen)


def test_stop_asked_twice_gives_up_what_is_in_flight_and_says_so(tmp_path: Path) -> None:
    """What had gone out may be billed: it is on record as such."""
    run_dir = make_run(tmp_path / "run", 50)
    stop = Stop()
    with faulty({"steps": [{"fault": "hang"}]}) as server, ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: (wait_until(lambda: len(server.seen) == 8), stop.ask(), stop.ask()))
        result = send(run_dir, server, concurrency=8, stop=stop)
    assert result.is_interrupted
    assert result.errors == {"interrupted": 8}
    assert [one["tries"][0]["sent"] for one in attempts_of(run_dir)] == [True] * 8
    with faulty() as server:
        assert send(run_dir, server).problem() is None


def test_what_waits_for_its_next_try_is_on_record_when_a_run_stops(tmp_path: Path) -> None:
    """Tries that were made may have been billed: none is forgotten."""
    run_dir = make_run(tmp_path / "run", 3)
    stop = Stop()
    waiting: list[Event] = []

    def hear(event: Event) -> None:
        waiting.extend([event] if "again in" in event.message else [])
        if len(waiting) == 3 and not stop.level:
            stop.ask()

    with faulty({"steps": [{"status": 500, "body": {"error": {"message": "invented"}}}]}) as server:
        send(run_dir, server, stop=stop, policy=Policy(base_s=60), on_event=hear)
    assert len(attempts_of(run_dir)) == len(server.seen) == 3
    assert all(one["error"]["is_retryable"] for one in attempts_of(run_dir))


# --- rehearsal -----------------------------------------------------------------------------------------------


def test_rehearsal_takes_the_same_path_and_counts_nowhere(tmp_path: Path) -> None:
    """Its results are marked, in files of their own, and a real run after it sends every row."""
    run_dir = make_run(tmp_path / "run", 20)
    result = run(run_dir, RunOptions(rehearsal=True), key=None)
    assert result.problem() is None
    assert result.results == "results/rehearsal-0001.jsonl"
    assert all(one["rehearsal"] is True for one in attempts_of(run_dir, rehearsal=True))
    assert run(run_dir, RunOptions(rehearsal=True), key=None).answered_before == 20
    again = run(run_dir, RunOptions(rehearsal=True, resume=False), key=None)
    assert again.results == "results/rehearsal-0002.jsonl"
    with faulty() as server:
        assert send(run_dir, server).answered_before == 0
        assert len(server.seen) == 20


def test_rehearsal_with_faults_recovers(tmp_path: Path) -> None:
    """What its faults file asks for is met and mended."""
    run_dir = make_run(tmp_path / "run", 60)
    faults = tmp_path / "faults.json"
    faults.write_text('{"seed": 3, "rates": {"http_500": 0.1, "http_429": 0.1, "reset": 0.05}, "retry_after_s": 0.05}')
    result = run(run_dir, RunOptions(rehearsal=True, faults=str(faults), policy=QUICK), key=None)
    assert result.problem() is None
    assert result.tries > 60


# --- what is written, and what never is ----------------------------------------------------------------------


def test_progress_file_follows_the_rows(tmp_path: Path) -> None:
    """Rows settled before count from the start; a further path gets the same."""
    run_dir = make_run(tmp_path / "run", 20)
    with faulty({"steps": [{"body": "ok"}], "only_row": -2, "others": {"body": "ok"}}) as server:
        send(run_dir, server, limit=5)
        send(run_dir, server, progress_path=str(tmp_path / "p.json"))
    for path in (Path(run_dir.file("progress.json")), tmp_path / "p.json"):
        state = jsonl.loads(path.read_bytes())
        assert (state["total"], state["completed"], state["failed"]) == (20, 20, 0)


def test_progress_file_is_brought_up_to_date_where_nothing_is_left_to_send(tmp_path: Path) -> None:
    """A command that was killed after its last answer leaves an older state; whoever waits for the end sees it now."""
    run_dir = make_run(tmp_path / "run", 4)
    with faulty() as server:
        send(run_dir, server)
        Path(run_dir.file("progress.json")).write_text('{"total": 4, "completed": 1, "failed": 0}', encoding="utf-8")
        send(run_dir, server, progress_path=str(tmp_path / "p.json"))
        assert len(server.seen) == 4
    for path in (Path(run_dir.file("progress.json")), tmp_path / "p.json"):
        state = jsonl.loads(path.read_bytes())
        assert (state["total"], state["completed"], state["failed"]) == (4, 4, 0)


def test_broken_progress_path_stops_nothing(tmp_path: Path) -> None:
    """A wrong path is no reason to lose a run."""
    run_dir = make_run(tmp_path / "run", 3)
    with faulty() as server:
        assert send(run_dir, server, progress_path=str(tmp_path / "no" / "p.json")).problem() is None


def test_key_is_written_nowhere(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Not in the folder, not on the streams, not in an error; not even where a server echoes it."""
    run_dir = make_run(tmp_path / "run", 30)
    echo = {"status": 400, "body": {"error": {"message": f"bad key {KEY}", "code": "x"}}}
    with faulty({"steps": [echo], "only_row": 3, "others": {"body_text": f'{{"echo": "{KEY}"}}'}}) as server:
        send(run_dir, server, policy=Policy(max_tries=2, base_s=0.01, patience_s=0.1))
        assert server.seen[0].headers["authorization"] == f"Bearer {KEY}"
    refusal = {"status": 401, "body": {"error": {"message": f"bad key {KEY}", "code": "invalid_api_key"}}}
    with faulty({"steps": [refusal]}) as server, pytest.raises(RefusedError) as caught:
        send(run_dir, server, resume=False)
    written = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert KEY.encode() not in written
    assert KEY not in repr(caught.value) + "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"channel": "pigeon"}, "--channel"),
        ({"concurrency": 0}, "--concurrency"),
        ({"limit": 0}, "--limit"),
        ({"num_shards": 2, "shard_id": 2}, "--shard-id"),
        ({"faults": "f.json"}, "--faults"),
        ({"out": "../x.jsonl"}, "--out"),
        ({"out": "x.txt"}, "--out"),
        ({"out": "rehearsal-1.jsonl"}, "--out"),
        ({"out": "batch-1.output.jsonl"}, "--out"),
        ({"out": "x.jsonl", "rehearsal": True}, "--out"),
        ({"rpm": 0.0}, "--rpm"),
        ({"rate_limit_delay_s": -1.0}, "--rate-limit-delay"),
        ({"rate_limit_delay_s": float("inf")}, "--rate-limit-delay"),
        ({"rpm": float("nan")}, "--rpm"),
        ({"tpm": float("inf")}, "--tpm"),
        ({"policy": Policy(timeout_s=float("nan"))}, "--timeout"),
        ({"max_tokens_total": 0}, "--max-tokens-total"),
        ({"retry_times": -1}, "--retry-times"),
        ({"base_urls": (f"http://{'a' * 64}.example",)}, "http"),
        ({"base_urls": ("ftp://h",)}, "http"),
        ({"retry_status": frozenset({Status.MISSING})}, "missing"),
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    """Wrong usage is told before anything happens."""
    run_dir = make_run(tmp_path / "run", 1)
    with pytest.raises(InputError, match=words):
        run(run_dir, RunOptions(**options), key=KEY)
    assert attempts_of(run_dir) == []


def test_folder_that_takes_no_results_is_told_before_sending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is paid for that could not be kept; a results folder that is gone is made again."""
    run_dir = make_run(tmp_path / "run", 2)
    Path(run_dir.file("results")).rmdir()
    with faulty() as server:
        assert send(run_dir, server, limit=1).problem() is None
        monkeypatch.setattr("os.access", lambda *_: False)
        with pytest.raises(InputError, match="cannot be written to"):
            send(run_dir, server)
        assert len(server.seen) == 1


def test_page_instead_of_answers_stops_the_run(tmp_path: Path) -> None:
    """A wrong address that answers every request with a web page is noticed, not paid tribute to ten thousand times."""
    run_dir = make_run(tmp_path / "run", 500)
    page = {"headers": {"content-type": "text/html"}, "body_text": "<html><body>Welcome</body></html>"}
    with faulty({"steps": [page]}) as server:
        result = send(run_dir, server, concurrency=8)
        assert len(server.seen) < 100
    assert "Welcome" in result.stopped
    assert set(attempts_of(run_dir)[0]) >= {"response_text", "error"}


def test_provider_without_key_is_told_before_sending(tmp_path: Path) -> None:
    """The provider's own address needs a key; its variable is named."""
    run_dir = make_run(tmp_path / "run", 1)
    with pytest.raises(InputError, match="OPENAI_API_KEY"):
        run(run_dir, RunOptions(), key=None)


def test_memory_follows_what_is_in_flight(tmp_path: Path) -> None:
    """Rows are an open stream: no more of them are taken from it than have places."""
    run_dir = make_run(tmp_path / "run", 400)
    with faulty({"steps": [{"delay_s": 0.02, "body": "ok"}]}) as server:
        result = send(run_dir, server, concurrency=4)
    assert server.peak <= 4
    assert result.concurrency["peak"] == 4
    assert 1 < result.concurrency["mean"] <= 4
