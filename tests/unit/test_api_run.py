"""The run folder from Python: the four steps as methods, iterators, keys by argument, and the asynchronous twin."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import vlmbatch
from tests.faults import faulty
from tests.pictures import png
from tests.sendable import make_run, row_id
from vlmbatch import (
    AsyncRun,
    BagOptions,
    BuildOptions,
    CollectOptions,
    EstimateOptions,
    InputError,
    IntegrityError,
    Judged,
    Policy,
    ReportOptions,
    Run,
    RunOptions,
    RunResult,
    Status,
    Stop,
)
from vlmbatch.rehearsal.faults import Faults
from vlmbatch.rehearsal.server import serve

KEY = "sk-CANARY-0123456789abcdef"
ROWS = 8


@pytest.fixture
def options(tmp_path: Path) -> BuildOptions:
    """Return what a small run over eight pictures is built from."""
    for number in range(ROWS):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"{number}.png").write_bytes(png(40 + number, 30))
    return BuildOptions(sources=[str(tmp_path / "in")], out=str(tmp_path / "run"), model="m", prompt="What is this?")


@pytest.fixture
def run(options: BuildOptions) -> Run:
    """Return that run, built."""
    return Run.build(options)


def test_four_steps_print_nothing(options: BuildOptions, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """build, estimate, send and collect return everything that they have to say."""
    with serve() as server:
        run = Run.build(options)
        estimate = run.estimate(EstimateOptions(out_tokens=20))
        result = run.send(RunOptions(base_urls=(server.base_url,)), key=KEY)
    collected = run.collect(CollectOptions(write=str(tmp_path / "run" / "merged.jsonl")))
    assert len(run) == ROWS
    assert estimate.load.images == ROWS
    assert result.problem() is None
    assert result.answers == ROWS
    assert collected.summary["counts"]["ok"] == ROWS
    assert capfd.readouterr() == ("", "")


def test_opened_run_is_the_built_one(run: Run) -> None:
    """Whoever opens the folder holds the same run, by fingerprint and by manifest."""
    again = Run.open(run.path)
    assert again.fingerprint == run.fingerprint
    assert list(again.manifest()) == list(run.manifest())
    assert again.info["model"] == "m"
    again.verify()


def test_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    """A path without run.json is no run."""
    with pytest.raises(InputError, match="not a run folder"):
        Run.open(tmp_path)


def test_build_tells_what_it_left_out(options: BuildOptions, tmp_path: Path) -> None:
    """What the folder scan passed over is told by reason; a run that is merely opened has nothing to tell."""
    (tmp_path / "in" / ".hidden.png").write_bytes(b"x")
    run = Run.build(options)
    assert dict(run.left_out) == {"hidden": 1}
    assert dict(Run.open(run.path).left_out) == {}


def test_records_are_what_collect_writes(run: Run, tmp_path: Path) -> None:
    """Iterating gives merged.jsonl's records, before anybody has written it, and leaves nothing behind."""
    with serve() as server:
        run.send(RunOptions(base_urls=(server.base_url,), limit=3), key=KEY)
    before = sorted(path.name for path in Path(run.path).iterdir())
    records = list(run.records())
    assert sorted(path.name for path in Path(run.path).iterdir()) == before
    run.collect(CollectOptions(write=str(tmp_path / "merged.jsonl")))
    assert records == [json.loads(line) for line in (tmp_path / "merged.jsonl").read_text().splitlines()]
    assert [record["custom_id"] for record in records] == [entry.custom_id for entry in run.manifest()]
    assert [record["status"] for record in records].count(Status.MISSING) == ROWS - 3


def test_attempts_come_judged(tmp_path: Path) -> None:
    """Each attempt on record comes with what was read of it and its status; rehearsals stand apart."""
    run = Run(make_run(tmp_path / "run", 3))
    with faulty({"steps": [{"status": 400, "body": {"error": {"message": "no"}}}], "models": None}) as server:
        run.send(RunOptions(base_urls=(server.base_url,)), key=KEY)
    run.send(RunOptions(rehearsal=True))
    judged = list(run.attempts())
    assert {one.outcome.custom_id for one in judged} == {row_id(number) for number in range(3)}
    assert {one.verdict.status for one in judged} == {Status.HTTP_ERROR}
    rehearsed = list(run.attempts(rehearsal=True))
    assert {one.verdict.status for one in rehearsed} == {Status.OK}
    assert all(one.reading.usage["input_tokens"] for one in rehearsed)


def test_attempt_of_another_run_is_refused(tmp_path: Path) -> None:
    """Results that were mixed in from elsewhere are no attempts of this run."""
    run, other = Run(make_run(tmp_path / "a", 1)), Run(make_run(tmp_path / "b", 2))
    with faulty({}) as server:
        other.send(RunOptions(base_urls=(server.base_url,)), key=KEY)
    (Path(run.path) / "results" / "run.jsonl").write_bytes((Path(other.path) / "results" / "run.jsonl").read_bytes())
    with pytest.raises(IntegrityError, match="is not an id of this run"):
        list(run.attempts())


def test_manifest_that_is_gone_is_told(run: Run) -> None:
    """Whatever is asked of a folder that lost it, the error says what is missing."""
    (Path(run.path) / "manifest.jsonl").unlink()
    for read in (run.manifest, run.attempts, run.records, run.verify):
        with pytest.raises(IntegrityError) as caught:
            list(read() or ())
        assert "manifest.jsonl" in str([caught.value, *caught.value.problems])


def test_rejected_inputs_are_told(options: BuildOptions, tmp_path: Path) -> None:
    """What could not become a request is iterated with its reason."""
    (tmp_path / "in" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    built = vlmbatch.Run.build(_with(options, skip_bad=True))
    (rejection,) = built.rejected()
    assert rejection["path"] == "broken.png"
    assert rejection["reason"]["code"]
    assert list(Run.open(built.path).rejected()) == [rejection]


def _with(options: BuildOptions, **changes: Any) -> BuildOptions:
    from dataclasses import replace

    return replace(options, **changes)


# --- report and hand-over --------------------------------------------------------------------------------------------


def test_report_shows_what_was_collected(run: Run, tmp_path: Path) -> None:
    """The page stands in the folder, or where it was asked for; without written records there is nothing to show."""
    run.send(RunOptions(rehearsal=True))
    with pytest.raises(InputError, match="none were written"):
        run.report(run.collect(CollectOptions(rehearsal=True)))
    merged = str(tmp_path / "run" / "merged.jsonl")
    collected = run.collect(CollectOptions(write=merged, rehearsal=True))
    assert run.report(collected) == str(tmp_path / "run" / "report.html")
    elsewhere = str(tmp_path / "page.html")
    assert run.report(collected, ReportOptions(path=elsewhere, sample=2)) == elsewhere
    assert "<title>run " in Path(elsewhere).read_text(encoding="utf-8")


def test_hand_over_is_at_hand(run: Run, tmp_path: Path) -> None:
    """Sealed, packed and redacted from Python, as collect does it; each can be checked by what it brings along."""
    sealed = run.seal()
    assert subprocess.run([sys.executable, "verify.py"], cwd=run.path, capture_output=True, check=False).returncode == 0
    packed = run.bag(str(tmp_path / "bag"), BagOptions(license="CC0-1.0"))
    assert (packed.sealed, packed.fingerprint) == (True, run.fingerprint)
    assert "CC0-1.0" in (tmp_path / "bag" / "data" / "ro-crate-metadata.json").read_text(encoding="utf-8")
    copy = run.redact(str(tmp_path / "copy"), ["images"])
    assert copy.what == ("images",)
    assert Run.open(copy.path).fingerprint != ""
    assert sealed.files > 0


def test_hand_over_can_be_awaited(run: Run, tmp_path: Path) -> None:
    """The asynchronous twin does the same."""

    async def main() -> list[str]:
        twin = AsyncRun(run)
        await twin.verify()
        await twin.send(RunOptions(rehearsal=True))
        options = CollectOptions(write=str(tmp_path / "run" / "merged.jsonl"), rehearsal=True)
        page = await twin.report(await twin.collect(options))
        sealed = await twin.seal()
        packed = await twin.bag(str(tmp_path / "bag"))
        copy = await twin.redact(str(tmp_path / "copy"), ("paths",), keep_fields=("id",))
        return [page, sealed.path, packed.path, copy.path]

    assert all(Path(path).exists() for path in asyncio.run(main()))


# --- while rows are sent ---------------------------------------------------------------------------------------------


def test_attempts_are_told_when_the_disk_has_them(run: Run) -> None:
    """At the time of each call its line stands in the results file; every row is told once."""
    told: list[str] = []
    results = Path(run.path) / "results" / "run.jsonl"

    def on_attempt(judged: Judged) -> None:
        assert judged.outcome.custom_id in results.read_text()
        assert judged.verdict.status is Status.OK
        told.append(judged.outcome.custom_id)

    with serve() as server:
        run.send(RunOptions(base_urls=(server.base_url,)), key=KEY, on_attempt=on_attempt)
    assert sorted(told) == sorted(entry.custom_id for entry in run.manifest())


def test_callback_that_raises_stops_the_sending(tmp_path: Path) -> None:
    """What the caller's own function raises comes back to the caller; what was answered is on record."""
    run = Run(make_run(tmp_path / "run", 200))

    def on_attempt(_: Judged) -> None:
        raise LookupError("my own")

    with faulty({"steps": [{"status": 200, "body": "ok", "delay_s": 0.02}]}) as server:
        with pytest.raises(LookupError, match="my own"):
            run.send(RunOptions(base_urls=(server.base_url,), concurrency=2), key=KEY, on_attempt=on_attempt)
        assert 0 < len(server.seen) < 200
    assert len(list(run.attempts())) == len(server.seen)


def test_stop_from_elsewhere_ends_in_good_order(tmp_path: Path) -> None:
    """A stop that is asked for in another thread lets what is in flight finish; the same call goes on there."""
    run, stop = Run(make_run(tmp_path / "run", 60)), Stop()
    with faulty({"steps": [{"status": 200, "body": "ok", "delay_s": 0.02}]}) as server:
        options = RunOptions(base_urls=(server.base_url,), concurrency=2)
        first = run.send(options, key=KEY, on_attempt=lambda _: stop.ask() if not stop.level else None, stop=stop)
        second = run.send(options, key=KEY)
    assert first.is_interrupted
    assert second.answered_before == first.answers
    assert set(server.tries.values()) == {1}


# --- keys ------------------------------------------------------------------------------------------------------------


def _keys_sent(run: Run, **keys: Any) -> set[str]:
    with faulty({}) as server:
        run.send(RunOptions(base_urls=(server.base_url,)), **keys)
        return {seen.headers.get("authorization", "") for seen in server.seen}


@pytest.mark.parametrize(
    "keys",
    [{"key": KEY}, {"environ": {"MINE": KEY}, "key_env": "MINE"}],
    ids=["given", "named"],
)
def test_key_goes_into_headers_and_nowhere_else(tmp_path: Path, keys: dict[str, Any]) -> None:
    """A key that is given, or looked up in the caller's mapping, is sent, and stands in no file of the run."""
    run = Run(make_run(tmp_path / "run", 2))
    assert _keys_sent(run, **keys) == {f"Bearer {KEY}"}
    assert not any(KEY.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_key_of_the_caller_is_not_sent_to_strangers(tmp_path: Path) -> None:
    """The conventional variable is for the provider's own address; a server elsewhere gets a key only by name."""
    run = Run(make_run(tmp_path / "run", 1))
    assert _keys_sent(run, environ={"OPENAI_API_KEY": KEY}) == {""}


def test_environment_is_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a mapping of the caller's there is no key, whatever the process's own environment holds."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with pytest.raises(InputError, match="no API key"):
        Run(make_run(tmp_path / "run", 1)).send()


# --- the asynchronous twin -------------------------------------------------------------------------------------------


def test_async_run_does_the_same(options: BuildOptions, tmp_path: Path) -> None:
    """All steps can be awaited inside a running loop, two runs at once, and the iterators iterated."""

    async def one(name: str, base_url: str) -> list[str]:
        run = await AsyncRun.build(_with(options, out=str(tmp_path / name)))
        await run.estimate()
        result = await run.send(RunOptions(base_urls=(base_url,)), key=KEY)
        assert result.answers == ROWS
        collected = await run.collect()
        assert collected.summary["counts"]["ok"] == ROWS
        ids = [entry.custom_id async for entry in run.manifest()]
        assert {judged.outcome.custom_id async for judged in run.attempts()} == set(ids)
        assert [rejection async for rejection in run.rejected()] == []
        again = await AsyncRun.open(run.run.path)
        return [record["custom_id"] async for record in again.records()]

    async def main(base_url: str) -> list[list[str]]:
        return await asyncio.gather(one("a", base_url), one("b", base_url))

    with serve() as server:
        first, second = asyncio.run(main(server.base_url))
    assert first == second
    assert len(first) == ROWS


def test_sync_send_works_inside_a_loop(run: Run) -> None:
    """A notebook has a loop already; the plain call works there too."""

    async def main(base_url: str) -> RunResult:
        return run.send(RunOptions(base_urls=(base_url,)), key=KEY)

    with serve() as server:
        assert asyncio.run(main(server.base_url)).answers == ROWS


def test_cancelled_send_keeps_what_was_answered(tmp_path: Path) -> None:
    """Cancelling waits until what is in flight is on disk; the next call asks only for the rest."""
    run = AsyncRun(Run(make_run(tmp_path / "run", 60)))
    begun = threading.Event()

    async def main(options: RunOptions) -> int:
        task = asyncio.create_task(run.send(options, key=KEY, on_attempt=lambda _: begun.set()))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        kept = len([judged async for judged in run.attempts()])
        await run.send(options, key=KEY)
        return kept

    with faulty({"steps": [{"status": 200, "body": "ok", "delay_s": 0.02}]}) as server:
        kept = asyncio.run(main(RunOptions(base_urls=(server.base_url,), concurrency=2)))
    assert 0 < kept < 60
    assert server.tries.total() == 60


def test_cancelled_build_leaves_nothing(options: BuildOptions, tmp_path: Path) -> None:
    """A build that is cancelled ends at its next item and takes its draft with it."""

    async def main() -> None:
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()
        hold = threading.Event()

        def on_event(_: Any) -> None:
            loop.call_soon_threadsafe(begun.set)
            hold.wait()

        task = asyncio.create_task(AsyncRun.build(options, on_event=on_event))
        await begun.wait()
        task.cancel()
        loop.call_soon(hold.set)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


# --- names -----------------------------------------------------------------------------------------------------------


def test_public_names_are_all_there() -> None:
    """Every name of ``__all__`` can be imported, is listed by dir, and has its room in the table."""
    assert set(vlmbatch.__all__) - {"__version__"} == set(vlmbatch._ROOM_OF)
    for name in vlmbatch.__all__:
        assert getattr(vlmbatch, name) is not None
        assert name in dir(vlmbatch)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = vlmbatch.nothing


def test_api_loads_no_network_until_it_sends(run: Run) -> None:
    """Opening and reading a run from Python loads neither a network library nor Pillow."""
    code = f"import sys, vlmbatch; list(vlmbatch.Run.open({run.path!r}).records()); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert set(loaded) & {"httpx", "aiohttp", "PIL", "typer", "rich"} == set()


def test_policy_and_faults_reach_the_sender(run: Run) -> None:
    """Options are the command line's own: tries and deadlines are taken from them."""
    with serve(Faults(rates={"http_503": 1.0})) as server:
        options = RunOptions(base_urls=(server.base_url,), policy=Policy(max_tries=2, base_s=0.01, backoff_cap_s=0.02))
        result = run.send(options, key=KEY)
    assert result.errors == {"503": ROWS}
    assert result.problem() is not None
    assert server.requests == 2 * ROWS
