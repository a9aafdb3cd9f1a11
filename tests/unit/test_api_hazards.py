"""What notebooks and services do to a library: loops, threads, forks, Ctrl-C, other folders; and what it must not."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults import faulty
from tests.pictures import png
from tests.sendable import attempts_of, make_run
from vlmbatch import (
    AsyncRun,
    BuildOptions,
    CheckFailed,
    Engine,
    Event,
    InputError,
    Judged,
    Policy,
    Problem,
    Run,
    RunOptions,
)
from vlmbatch.rehearsal.server import Server, serve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KEY = "sk-CANARY-0123456789abcdef"
SLOW = {"steps": [{"status": 200, "body": "ok", "delay_s": 0.02}]}
ROWS = 60
Row = dict[str, Any]


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Let Ctrl-C be what it is in a program of one's own."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def server() -> Iterator[Server]:
    """Return a provider that answers all."""
    with serve() as running:
        yield running


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with a picture."""
    (tmp_path / "a.png").write_bytes(png(50, 40))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(name: str, count: int = 10) -> list[Row]:
    """Return rows with ids of their own."""
    return [{"id": f"{name}-{n}", "image_path": "a.png", "question": f"What is {name}-{n}?"} for n in range(count)]


def engine(server: Server, **more: Any) -> Engine:
    """Return an engine whose image paths start in the working folder."""
    given = {name: more.pop(name) for name in ("runs", "on_event") if name in more}
    options = BuildOptions(model="m", provider="vllm", question_field="question", id_fields=("id",), **more)
    return Engine(options, RunOptions(base_urls=(server.base_url,), policy=Policy(max_tries=1)), key=KEY, **given)


# --- loops -----------------------------------------------------------------------------------------------------------


def _press_once() -> Callable[[Judged], None]:
    """Return a listener that presses Ctrl-C when the first attempt comes."""
    pressed: list[Judged] = []

    def press(judged: Judged) -> None:
        if not pressed:
            pressed.append(judged)
            os.kill(os.getpid(), signal.SIGINT)

    return press


def test_ctrl_c_in_a_notebook_stops_in_good_order(tmp_path: Path, ctrl_c: None) -> None:
    """Inside a running loop Ctrl-C ends the plain call too: what is in flight is kept, the rest is not sent."""
    run = Run(make_run(tmp_path / "run", ROWS))

    async def cell() -> None:
        run.send(RunOptions(base_urls=(provider.base_url,), concurrency=2), key=KEY, on_attempt=_press_once())

    loop = asyncio.new_event_loop()
    with faulty(SLOW) as provider:
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(cell())
        assert 0 < len(attempts_of(run.folder)) == len(provider.seen) < ROWS
        run.send(RunOptions(base_urls=(provider.base_url,)), key=KEY)
    loop.close()
    assert provider.tries.total() == ROWS


def test_ctrl_c_in_a_script_keeps_what_is_in_flight(tmp_path: Path, ctrl_c: None) -> None:
    """Without a loop it is the same: every request that went out has its line."""
    run = Run(make_run(tmp_path / "run", ROWS))
    with faulty(SLOW) as provider:
        with pytest.raises(KeyboardInterrupt):
            run.send(RunOptions(base_urls=(provider.base_url,), concurrency=2), key=KEY, on_attempt=_press_once())
        assert 0 < len(attempts_of(run.folder)) == len(provider.seen) < ROWS
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_loop_that_ends_stops_what_it_leaves_behind(tmp_path: Path) -> None:
    """A task that nobody awaits is cancelled with its loop; whatever the order of that, the sending stops."""

    async def main(run: Run, base_url: str) -> None:
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()
        sending = AsyncRun(run).send(
            RunOptions(base_urls=(base_url,), concurrency=2),
            key=KEY,
            on_attempt=lambda _: loop.call_soon_threadsafe(begun.set),
        )
        tasks = [asyncio.create_task(sending), *(asyncio.create_task(asyncio.sleep(60)) for _ in range(10))]
        await begun.wait()
        assert not tasks[0].done()

    for number in range(6):  # which task a loop cancels first is the chance of a set
        run = Run(make_run(tmp_path / f"run{number}", ROWS))
        with faulty(SLOW) as provider:
            asyncio.run(main(run, provider.base_url))
        assert 0 < len(attempts_of(run.folder)) == len(provider.seen) < ROWS


def test_many_runs_at_once_leave_the_loop_its_threads(tmp_path: Path) -> None:
    """As many sendings as there are, each goes on, and other work in threads does too."""
    count = (os.cpu_count() or 1) + 8
    runs = [AsyncRun(Run(make_run(tmp_path / f"run{number}", 1))) for number in range(count)]
    met = threading.Barrier(count)

    async def main(base_url: str) -> list[int]:
        options = RunOptions(base_urls=(base_url,))
        sent = [run.send(options, key=KEY, on_attempt=lambda _: met.wait(60) and None) for run in runs]
        return [result.answers for result in await asyncio.gather(*sent)]

    with faulty({}) as provider:
        assert asyncio.run(main(provider.base_url)) == [1] * count


def test_asynchronous_twin_has_every_method() -> None:
    """What a run does, its twin does with the same words, and returns what can be awaited or iterated."""
    public = {name: value for name, value in vars(Run).items() if not name.startswith("_") and callable(value)}
    public |= {name: getattr(Run, name) for name in ("build", "open")}
    for name, method in public.items():
        twin = getattr(AsyncRun, name)
        here, there = inspect.signature(method), inspect.signature(twin)
        assert list(here.parameters) == list(there.parameters), name
        assert [one.default for one in here.parameters.values()] == [one.default for one in there.parameters.values()]


# --- callbacks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [LookupError("mine"), SystemExit(3), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("which", ["on_event", "on_attempt"])
def test_what_a_callback_raises_comes_back(tmp_path: Path, which: str, error: BaseException) -> None:
    """Whatever it is: the sending stops in good order, every answer is kept, and the same object is raised."""
    run = Run(make_run(tmp_path / "run", 200))
    heard: list[Any] = []

    def tell(what: Any) -> None:
        if isinstance(what, Judged) or (what.stage == "run" and what.kind == "progress"):
            heard.append(what)
            raise error

    with faulty(SLOW) as provider:
        with pytest.raises(type(error)) as caught:
            run.send(RunOptions(base_urls=(provider.base_url,), concurrency=2), key=KEY, **{which: tell})
        assert caught.value is error
        assert len(heard) == 1
        assert len(attempts_of(run.folder)) == len(provider.seen) < 200


def test_callback_that_raises_before_anything_is_sent(tmp_path: Path) -> None:
    """While the folder is checked nothing is in flight: the call ends there."""
    run = Run(make_run(tmp_path / "run", 3))

    def tell(event: Event) -> None:
        if event.stage == "verify":
            raise LookupError("mine")

    with faulty({}) as provider, pytest.raises(LookupError, match="mine"):
        run.send(RunOptions(base_urls=(provider.base_url,)), key=KEY, on_event=tell)
    assert provider.seen == []
    assert not Path(run.path, "progress.json").exists()


# --- threads and processes -------------------------------------------------------------------------------------------


def test_threads_share_an_engine(place: Path, server: Server) -> None:
    """Each thread gets the answers to its own rows."""
    with engine(server) as one, ThreadPoolExecutor(6) as pool:
        for name, records in pool.map(lambda name: (name, one.infer(rows(name))), "abcdef"):
            assert [record["row"]["id"] for record in records] == [row["id"] for row in rows(name)]


def _environ() -> dict[str, str]:
    """Return an environment in which a program finds vlmbatch wherever it is started."""
    return {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}


def test_program_of_its_own_is_left_in_peace(place: Path) -> None:
    """Nothing is printed and no warning raised; a child that ends takes nothing of its parent's with it."""
    code = """
import os, sys, vlmbatch
engine = vlmbatch.Engine(
    vlmbatch.BuildOptions(model="m", question_field="question"), vlmbatch.RunOptions(rehearsal=True))
engine.infer_partial([{"image_path": "a.png", "question": "What?"}], progress_path="none/progress.json")
child = os.fork()
if not child:
    sys.exit()
os.waitpid(child, 0)
print(len(list(engine.run.records(rehearsal=True))))
engine.close()
print(os.path.exists(engine.run.path))
"""
    words = [sys.executable, "-W", "error", "-X", "dev", "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=_environ())
    assert (done.stdout.split(), done.stderr) == (["1", "False"], "")


def test_values_travel_between_processes(place: Path, server: Server) -> None:
    """Runs, results and errors can be pickled; an engine, which holds a key, cannot."""
    with engine(server) as one:
        one.infer(rows("a"))
        assert one.run is not None
        again = pickle.loads(pickle.dumps(one.run))  # noqa: S301
        assert again.fingerprint == one.run.fingerprint
        assert len(list(again.records())) == 10
        with pytest.raises(TypeError, match="pickle"):
            pickle.dumps(one)
    error = CheckFailed("what", hint="do", problems=[Problem("code", "why", "where", 3)])
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (copy.message, copy.hint, copy.problems) == (error.message, error.hint, error.problems)


# --- folders ---------------------------------------------------------------------------------------------------------


def test_run_keeps_its_temporary_folder(place: Path, server: Server) -> None:
    """The folder goes with the last object that stands for it, or when the engine is closed."""
    one = engine(server)
    one.infer(rows("a"))
    run = one.run
    assert run is not None
    del one
    gc.collect()
    assert len(list(run.records())) == 10
    folder = Path(run.path).parent
    del run
    gc.collect()
    assert not folder.exists()


def test_temporary_folder_that_was_cleaned_away_is_made_anew(place: Path, server: Server) -> None:
    """Systems clean up temporary files under long programs, and a closed engine may be used again."""
    with engine(server) as one:
        one.infer(rows("a"))
        assert one.run is not None
        subprocess.run(["rm", "-rf", str(Path(one.run.path).parent)], check=True)
        assert len(one.infer(rows("a"))) == 10
        one.close()
        assert len(one.infer(rows("a"))) == 10


@pytest.mark.parametrize("where", [{"runs": "runs"}, {"out": "r001"}, {}], ids=["runs", "out", "temporary"])
def test_engine_stays_where_it_was_made(
    place: Path, server: Server, monkeypatch: pytest.MonkeyPatch, where: dict[str, str]
) -> None:
    """A change of the working folder moves neither images nor runs: nothing is asked twice."""
    with engine(server, **where) as one:
        first = one.infer(rows("a"))
        (place / "else").mkdir()
        monkeypatch.chdir(place / "else")
        assert one.infer(rows("a")) == first
        assert server.requests == 10
        assert list((place / "else").iterdir()) == []


def test_paths_of_sending_stay_where_the_engine_was_made(
    place: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every option of sending that is a path means the file that it meant then, wherever the program goes."""
    (place / "faults.json").write_text("{}")
    names = {"progress_path": "progress.json", "faults": "faults.json", "rehearsal": True}
    options = BuildOptions(model="m", provider="vllm", prompt="p")
    one = Engine(options, RunOptions(**names), runs="runs")  # type: ignore[arg-type]
    looks = Engine(options, RunOptions(pending="pending.jsonl", ids="ids.txt"), runs="runs")
    (place / "else").mkdir()
    monkeypatch.chdir(place / "else")
    run = (one.infer(rows("a")), one.run)[1]
    assert run is not None
    (place / "ids.txt").write_text(next(run.manifest()).custom_id)
    looks.infer_partial(rows("a"))
    assert list((place / "else").iterdir()) == []
    assert (place / "progress.json").is_file()
    assert len((place / "pending.jsonl").read_text().splitlines()) == 1


VICTIM = """
import os, signal
from vlmbatch import BuildOptions, Engine
options = BuildOptions(model="m", provider="vllm", prompt="p")
die = lambda event: os.kill(os.getpid(), signal.SIGKILL)
Engine(options, runs="runs", on_event=die).infer([{"image_path": "a.png"}] * 3)
"""


def test_what_a_killed_engine_left_goes_with_the_next_one(place: Path, server: Server) -> None:
    """A run that was being built when its program was killed is swept from the folder of runs."""
    victim = subprocess.run([sys.executable, "-c", VICTIM], check=False, env=_environ())
    assert victim.returncode == -signal.SIGKILL
    (left,) = (place / "runs").iterdir()
    assert left.name.startswith(".")
    one = engine(server, runs="runs")
    one.infer(rows("a"))
    assert one.run is not None
    assert list((place / "runs").iterdir()) == [Path(one.run.path)]


def test_rows_that_differ_in_bad_ones_alone_are_runs_of_their_own(place: Path, server: Server) -> None:
    """A bad row that is dropped or changed is no reason to refuse the good ones."""
    bad, worse = [{**rows("b", 1)[0], "image_path": name} for name in ("gone.png", "lost.png")]
    for asked in (rows("a"), [*rows("a"), bad], [*rows("a"), worse], rows("a")):
        assert len(engine(server, runs="runs").infer_partial(asked).successful) == 10
    assert len(list((place / "runs").iterdir())) == 3


def test_each_row_fails_where_all_are_bad(place: Path, server: Server) -> None:
    """However many there are, each has its own failure, in order."""
    asked = [{**row, "image_path": f"gone{n}.png" if n % 3 else "gone.png"} for n, row in enumerate(rows("a", 1800))]
    with engine(server) as one:
        failures = one.infer_partial(asked).failures
    assert list(failures) == list(range(1800))
    assert all(asked[index]["image_path"] in detail.error_message for index, detail in failures.items())


def test_folder_that_cannot_be_is_refused(place: Path, server: Server) -> None:
    """A place that is a file, or that takes no folders, is told as what it is."""
    for runs in ("a.png", "a.png/runs", "/proc"):
        with pytest.raises(InputError, match="cannot be written"):
            engine(server, runs=runs).infer(rows("a"))


# --- what must not be ------------------------------------------------------------------------------------------------


def test_process_is_left_as_it_was(place: Path, server: Server, capfd: pytest.CaptureFixture[str]) -> None:
    """No file, thread, handler, variable, working folder or logger is left behind or changed; nothing is printed."""

    def state() -> list[Any]:
        gc.collect()
        handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)]
        threads = {one.name for one in threading.enumerate() if not one.name.startswith("rehearsal")}
        return [os.getcwd(), dict(os.environ), handlers, threads, logging.getLogger().handlers, _files()]

    def work() -> None:
        with engine(server) as one:
            one.infer(
                rows("a"),
            )
            one.infer_partial(rows("b"), progress_path=place / "none" / "progress.json")
            assert one.run is not None
            assert next(one.run.records())["status"] == "ok"
            assert next(one.run.attempts()).verdict.status == "ok"

    work()
    before = state()
    work()
    assert state() == before
    assert capfd.readouterr() == ("", "")


def _files() -> list[str]:
    """Return what the process has open, apart from sockets of the server in it."""
    folder = "/proc/self/fd"
    if not os.path.isdir(folder):
        return []
    names = [os.path.join(folder, name) for name in os.listdir(folder)]
    return sorted(os.readlink(name) for name in names if os.path.lexists(name) and "socket" not in os.readlink(name))


def test_unwritable_progress_file_is_told(place: Path, server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """It stops nothing and prints nothing: whoever listens, to events or to the log, hears of it."""
    heard: list[Event] = []
    with engine(server, on_event=heard.append) as one:
        assert not one.infer_partial(rows("a"), progress_path="none/progress.json").has_failures
    told = [
        event.message for event in heard if event.kind == "warning" and "progress cannot be written" in event.message
    ]
    assert len(told) == 1
    assert "none/progress.json: progress cannot be written" in caplog.text
