"""The parts of the realtime channel by themselves: endpoints, budget, writer, errors that end a run."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import threading
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmbatch import jsonl
from vlmbatch.pace import Limiter
from vlmbatch.prices import Rates
from vlmbatch.progress import ProgressFileReporter
from vlmbatch.realtime import endpoints as endpoints_module
from vlmbatch.realtime.budget import Budget
from vlmbatch.realtime.endpoints import Endpoint, Endpoints, NoEndpointError
from vlmbatch.realtime.writer import ResultsWriter
from vlmbatch.records import Entry
from vlmbatch.retry import Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from vlmbatch.records import Usage

ROW = Entry(0, "r-0", "shards/00000.jsonl", 0, 100, 10, 80, "0" * 64, "0" * 64, [], b"", None, "")
POLICY = Policy(max_tries=3, base_s=0.01, backoff_cap_s=0.01, max_wait_s=5, patience_s=0.05)


def endpoint(name: str = "a", places: int = 2) -> Endpoint:
    """Return an endpoint with a few places."""
    return Endpoint(f"http://{name}/v1?secret=1", f"http://{name}/v1/x", is_direct=False, limiter=Limiter(places))


def in_loop(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test's coroutine."""
    asyncio.run(main())


async def is_blocked(pool: Endpoints) -> bool:
    """Tell whether a place is not to be had at once."""
    try:
        async with asyncio.timeout(0.05):
            pool.release(await pool.acquire())
    except TimeoutError:
        return True
    return False


# --- endpoints -----------------------------------------------------------------------------------------------


def test_least_loaded_endpoint_is_taken() -> None:
    """Requests spread by free places, not by turns."""

    async def main() -> None:
        pool = Endpoints([endpoint("a", 1), endpoint("b", 4)], POLICY)
        names = [(await pool.acquire()).endpoint.name for _ in range(5)]
        assert names.count("http://a/v1") == 1
        assert await is_blocked(pool)
        assert pool.in_flight == pool.peak == 5

    in_loop(main)


def test_push_back_cools_the_endpoint_for_all() -> None:
    """One cool-down is shared; another endpoint goes on meanwhile."""

    async def main() -> None:
        pool = Endpoints([endpoint("a"), endpoint("b")], POLICY)
        first = await pool.acquire()
        pool.pushed_back(first, 3.0)
        pool.release(first)
        places = [await pool.acquire() for _ in range(2)]
        assert {place.endpoint.name for place in places} == {"http://b/v1"}
        assert await is_blocked(pool)
        assert first.endpoint.limiter.limit == 1

    in_loop(main)


def test_broken_endpoint_is_set_aside_and_tried_by_one_request() -> None:
    """After some failures in a row only a single request goes there, and its answer brings the endpoint back."""

    async def main() -> None:
        only = endpoint("a", 8)
        pool = Endpoints([only], POLICY)
        places = [await pool.acquire() for _ in range(4)]
        for place in places:
            pool.failed(place, "refused", is_broken=True)
            pool.release(place)
        assert only.is_down
        probe = await pool.acquire()
        assert probe.is_probe
        assert await is_blocked(pool)
        pool.answered(probe)
        pool.release(probe)
        assert not only.is_down
        assert not await is_blocked(pool)

    in_loop(main)


def test_endpoint_that_never_comes_back_ends_the_run() -> None:
    """It is tried again for a while, then it is said clearly, with the last error."""

    async def main() -> None:
        pool = Endpoints([endpoint("a", 8)], POLICY)
        tried = 0

        async def go_on() -> None:
            nonlocal tried
            while tried < 50:
                place = await pool.acquire()
                pool.failed(place, "refused by test", is_broken=True)
                pool.release(place)
                tried += 1

        with pytest.raises(NoEndpointError, match="refused by test") as caught:
            await go_on()
        assert 6 <= tried < 20
        assert "secret" not in str(caught.value)

    in_loop(main)


def test_row_refused_for_its_own_sake_says_the_endpoint_is_well() -> None:
    """A 400 between failures is a sign of life."""

    async def main() -> None:
        only = endpoint("a", 8)
        pool = Endpoints([only], POLICY)
        for _ in range(10):
            place = await pool.acquire()
            pool.failed(place, "reset", is_broken=True)
            pool.refused_row(place)
            pool.release(place)
        assert not only.is_down

    in_loop(main)


def test_wait_beyond_the_cap_ends_the_run_where_nobody_else_answers() -> None:
    """One endpoint that rests for an hour is no reason to stop; all of them are."""

    async def main() -> None:
        first, second = endpoint("a"), endpoint("b")
        pool = Endpoints([first, second], POLICY)
        pool.rest(first, 3600)
        pool.release(await pool.acquire())
        pool.rest(second, 3600)
        with pytest.raises(NoEndpointError, match="asks to wait"):
            await pool.acquire()

    in_loop(main)


def test_requests_per_minute_and_delay_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Budgets hold requests apart, whatever places are free."""
    clock = [100.0]
    monkeypatch.setattr(endpoints_module.time, "monotonic", lambda: clock[0])

    async def main() -> None:
        pool = Endpoints([endpoint("a", 99)], POLICY, rpm=60, delay_s=2.0)
        pool.release(await pool.acquire())
        assert pool._budget_wait_s(clock[0], 0) == pytest.approx(2.0)
        clock[0] += 1.9
        assert pool._budget_wait_s(clock[0], 0) == pytest.approx(0.1)
        clock[0] += 0.2
        pool.release(await pool.acquire())

    in_loop(main)


def test_tokens_per_minute_are_corrected_by_what_was_used() -> None:
    """A guess that was too high is given back."""

    async def main() -> None:
        pool = Endpoints([endpoint("a", 99)], POLICY, tpm=60_000)
        place = await pool.acquire(10_000)
        assert pool._budget_wait_s(0, 1) > 8
        pool.release(place, used_tokens=100)
        assert pool._budget_wait_s(0, 1) == 0

    in_loop(main)


def test_tokens_per_minute_let_one_request_go_first() -> None:
    """Before an answer has told what a row takes, a burst could pass the budget many times over."""

    async def main() -> None:
        pool = Endpoints([endpoint("a", 99)], POLICY, tpm=60_000)
        first = await pool.acquire()
        assert await is_blocked(pool)
        pool.release(first)
        pool.pushed_back(first, 0.0)
        second = await pool.acquire()
        assert await is_blocked(pool)
        pool.release(second, used_tokens=100)
        pool.answered(second)
        await pool.acquire(100)
        await pool.acquire(100)

    in_loop(main)


# --- budget --------------------------------------------------------------------------------------------------


def usage(used: int | None, made: int | None) -> Usage:
    """Return a usage."""
    return {
        "input_tokens": used,
        "output_tokens": made,
        "reasoning_tokens": None,
        "cached_tokens": None,
        "total_tokens": None,
    }


@given(
    limit=st.integers(0, 100_000),
    rows=st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 50)), min_size=1, max_size=80),
    factor=st.integers(1, 4),
    at_once=st.integers(1, 8),
)
def test_budget_knows_what_a_large_row_takes_before_it_is_sent(
    limit: int, rows: list[tuple[int, int]], factor: int, at_once: int
) -> None:
    """A row ten times as large as any before is not sent where it would not fit; only the first may surprise."""
    sizes = {number: size for number, (size, _) in enumerate(rows)}
    budget = Budget(max_tokens=limit, output_limit=50, count_tokens=lambda row: sizes[row.position])
    flying: list[Any] = []

    def land() -> None:
        entry, reserve, made = flying.pop(0)
        budget.free(reserve)
        budget.add(usage(factor * sizes[entry.position], made), entry)

    for number, (_, made) in enumerate(rows):
        entry = ROW._replace(position=number)
        while flying and (len(flying) >= at_once or not budget.fits(entry)):
            land()
        if not budget.fits(entry):
            break
        flying.append((entry, budget.hold(entry), made))
    while flying:
        land()
    assert budget.input_tokens + budget.output_tokens <= limit + (factor - 1) * sizes[0]


@given(
    limit=st.integers(0, 5000),
    rows=st.lists(st.tuples(st.integers(1, 100), st.integers(0, 50)), max_size=80),
    at_once=st.integers(1, 8),
)
def test_budget_is_never_passed(limit: int, rows: list[tuple[int, int]], at_once: int) -> None:
    """Whatever is in flight, the sum stays within the limit, but for the very first answer's unknown input."""
    budget = Budget(max_tokens=limit, output_limit=50)
    flying: list[Any] = []
    largest = max((used for used, _ in rows), default=0)
    for _, made in rows:
        while flying and (len(flying) >= at_once or not budget.fits(ROW)):
            reserve, spent = flying.pop(0)
            budget.free(reserve)
            budget.add(usage(*spent))
        if not budget.fits(ROW):
            break
        flying.append((budget.hold(ROW), (largest, made)))
    for reserve, spent in flying:
        budget.free(reserve)
        budget.add(usage(*spent))
    assert budget.input_tokens + budget.output_tokens <= max(limit, 0) + largest


def test_budget_counts_money_at_the_worst_case() -> None:
    """Tries that may have been billed unseen count whole, and so does the output limit of what is in flight."""
    rates = Rates(Decimal(10), Decimal(20), Decimal(10))
    budget = Budget(max_usd=Decimal("0.01"), rates=rates, output_limit=100)
    budget.add(usage(100, 50))
    assert budget.spent_usd == Decimal("0.002")
    assert budget.fits(ROW)
    reserve = budget.hold(ROW)
    assert budget.fits(ROW)
    budget.add_unknown()
    assert not budget.fits(ROW)
    budget.free(reserve)
    assert budget.fits(ROW)


def test_budget_sends_one_row_first_while_nothing_is_known() -> None:
    """What a row takes is learnt from one, not from thirty-two."""
    budget = Budget(max_tokens=10_000, output_limit=10)
    assert budget.fits(ROW)
    budget.hold(ROW)
    assert not budget.fits(ROW)
    assert Budget().fits(ROW)


# --- writer --------------------------------------------------------------------------------------------------


def test_writer_writes_whole_lines_in_order(tmp_path: Path) -> None:
    """Everything handed over is in the file, each line once, and the file is not there before the first."""
    path = tmp_path / "r.jsonl"
    writer = ResultsWriter(str(path), on_failure=lambda: None)
    assert not path.exists()
    for number in range(5000):
        writer.put(b'{"n":%d}' % number, is_answer=True)
    writer.close()
    assert [jsonl.loads(line.data)["n"] for line in jsonl.iter_lines(str(path))] == list(range(5000))
    assert (writer.failure, writer.lost) == (None, 0)


def test_writer_ends_a_torn_line_first(tmp_path: Path) -> None:
    """What a crash left behind is kept, and never merges with a line of ours."""
    path = tmp_path / "r.jsonl"
    path.write_bytes(b'{"whole":1}\n{"torn":')
    writer = ResultsWriter(str(path), on_failure=lambda: None)
    writer.put(b'{"new":1}', is_answer=True)
    writer.close()
    assert path.read_bytes() == b'{"whole":1}\n{"torn":\n{"new":1}\n'


def test_full_disk_is_told_once_and_tried_again_at_the_end(tmp_path: Path) -> None:
    """Lines that did not fit are kept; once there is room they follow, each once, and who waits for them hears it."""
    path = tmp_path / "r.jsonl"
    told = threading.Event()
    calls: list[int] = []
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def failed() -> None:
        calls.append(1)
        told.set()

    heard: list[bytes] = []
    progress = ProgressFileReporter(tmp_path / "progress.json", 100)
    writer = ResultsWriter(str(path), reporters=[progress], on_failure=failed, on_written=heard.extend)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        for number in range(100):
            writer.put(b'{"n":%03d,"x":"%s"}' % (number, b"x" * 30), is_answer=True)
        assert told.wait(10)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    writer.close()
    assert writer.failure is not None
    assert writer.failure.errno == errno.EFBIG
    assert writer.lost == 0
    assert len(calls) == 1
    lines = path.read_bytes().splitlines()
    whole = [line for line in lines if line.endswith(b"}")]
    assert [int(line[5:8]) for line in whole] == list(range(100))
    assert heard == whole
    progress.finalize()
    assert jsonl.loads((tmp_path / "progress.json").read_bytes())["completed"] == 100
    assert len(lines) - len(whole) <= 1


def test_folder_that_is_gone_loses_lines_and_says_how_many(tmp_path: Path) -> None:
    """Where nothing can be written at all, nothing is pretended."""
    writer = ResultsWriter(str(tmp_path / "none" / "r.jsonl"), on_failure=lambda: None)
    writer.put(b"{}", is_answer=True)
    writer.close()
    assert isinstance(writer.failure, FileNotFoundError)
    assert writer.lost == 1
    assert os.listdir(tmp_path) == []
