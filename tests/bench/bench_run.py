"""How fast run sends, beside a plain loop over AsyncOpenAI and beside aiohttp alone, in the same minutes.

    python tests/bench/bench_run.py [--rows 600] [--body 294000] [--rounds 3] [--base-url URL] [--latency 0.2]

Without --base-url a server of its own answers (asyncio in another process: slower than nginx, so it may be the limit;
its share is printed). Ratios are what counts: the machine may be shared. Nothing here is asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

ANSWER = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "test-vlm-1",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "A smooth field."}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 900, "completion_tokens": 20, "total_tokens": 920},
    }
).encode()


class Server(asyncio.BufferedProtocol):
    """Reads whole bodies into one buffer and answers from memory, after a while."""

    latency_s = 0.0

    def __init__(self) -> None:
        self._buffer = bytearray(1 << 18)
        self._head = b""
        self._left: int | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(self._buffer[:nbytes]) if self._left is None else memoryview(self._buffer)[:nbytes]
        if self._left is None:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            head, data = self._head[:end].lower(), self._head[end + 4 :]
            self._head = b""
            if not head.startswith(b"post"):
                self._answer(b"404 Not Found", b"{}")
                return
            self._left = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
        self._left -= len(data)
        if self._left <= 0:
            self._left = None
            if self.latency_s:
                asyncio.get_running_loop().call_later(self.latency_s, self._answer, b"200 OK", ANSWER)
            else:
                self._answer(b"200 OK", ANSWER)

    def _answer(self, status: bytes, body: bytes) -> None:
        head = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
        self._transport.write(head + body)


def _run_server(latency_s: float) -> None:
    """Serve, with uvloop where it is installed: the server shares the machine with what is measured."""
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        asyncio.run(_serve(latency_s))
    else:
        asyncio.Runner(loop_factory=uvloop.new_event_loop).run(_serve(latency_s))


async def _serve(latency_s: float) -> None:
    Server.latency_s = latency_s
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.sleep(1800)


# --- the contenders: each in a process of its own ------------------------------------------------------------


def run_ours(run_dir: str, base_url: str, concurrency: int) -> int:
    from vlmbatch.rundir import RunDir
    from vlmbatch.stages.run import RunOptions, run

    result = run(
        RunDir.open(run_dir), RunOptions(base_urls=(base_url,), concurrency=concurrency, resume=False), key="sk-x"
    )
    assert result.problem() is None, result
    return result.tries


def _bodies(run_dir: str) -> Any:
    from vlmbatch.rundir import LineReader, RunDir

    run = RunDir.open(run_dir)
    with LineReader(run) as lines:
        for entry in run.iter_entries():
            yield lines.body(entry)


def run_openai(run_dir: str, base_url: str, concurrency: int) -> int:
    """What people write: AsyncOpenAI and a semaphore, the message made by a dictionary."""
    from openai import AsyncOpenAI

    async def main(out: TextIO) -> int:
        client = AsyncOpenAI(base_url=base_url, api_key="sk-x")
        free = asyncio.Semaphore(concurrency)

        async def one(body: dict[str, Any]) -> None:
            answer = await client.chat.completions.create(**body)
            out.write(json.dumps({"text": answer.choices[0].message.content}) + "\n")
            free.release()

        tasks = []
        for body in _bodies(run_dir):
            await free.acquire()
            tasks.append(asyncio.create_task(one(json.loads(body))))
        await asyncio.gather(*tasks)
        return len(tasks)

    with open(os.path.join(run_dir, "results", "plain.txt"), "w", encoding="utf-8") as out:
        return asyncio.run(main(out))


def run_aiohttp(run_dir: str, base_url: str, concurrency: int) -> int:
    """The floor: aiohttp alone, one body again and again, nothing checked and nothing kept."""
    import aiohttp

    count = Path(run_dir, "manifest.jsonl").read_bytes().count(b"\n")
    body = next(_bodies(run_dir))

    async def main() -> int:
        left = iter(range(count))
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

            async def worker() -> None:
                for _ in left:
                    async with session.post(
                        f"{base_url}/chat/completions",
                        data=aiohttp.BytesPayload(body) if len(body) < 1 << 20 else body,
                        headers={"content-type": "application/json"},
                    ) as answer:
                        await answer.read()

            await asyncio.gather(*(worker() for _ in range(concurrency)))
        return count

    return asyncio.run(main())


def run_command(run_dir: str, base_url: str, concurrency: int) -> int:
    """The same by the command line, as a user starts it."""
    from vlmbatch.cli import main

    os.environ["OPENAI_API_KEY"] = "sk-x"
    words = ["run", run_dir, "--base-url", base_url, "--concurrency", str(concurrency), "--no-resume", "-qq"]
    with contextlib.suppress(SystemExit):
        main(words)
    return Path(run_dir, "manifest.jsonl").read_bytes().count(b"\n")


CONTENDERS = {"vlmbatch run": run_ours, "AsyncOpenAI loop": run_openai, "aiohttp alone": run_aiohttp}


def _measure(name: str, run_dir: str, base_url: str, concurrency: int) -> dict[str, float]:
    words = [sys.executable, __file__, "--as", name, "--run", run_dir, "--base-url", base_url, "-c", str(concurrency)]
    started = time.perf_counter()
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    wall = time.perf_counter() - started
    told = json.loads(done.stdout.splitlines()[-1])
    return {
        "per_s": told["rows"] / wall,
        "cpu_s_per_1k": told["cpu_s"] * 1000 / told["rows"],
        "rss_mb": told["rss_mb"],
    }


def _one(options: argparse.Namespace) -> None:
    rows = {**CONTENDERS, "command": run_command}[getattr(options, "as")](
        options.run, options.base_url, options.concurrency
    )
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"rows": rows, "cpu_s": used.ru_utime + used.ru_stime, "rss_mb": used.ru_maxrss / 1024}))


def _table(name: str, run_dir: str, base_url: str, options: argparse.Namespace) -> None:
    """Run the contenders in turn and print medians, with ratios to the plain loop."""
    found: dict[str, list[dict[str, float]]] = {each: [] for each in CONTENDERS}
    for _ in range(options.rounds):
        for each in CONTENDERS:
            found[each].append(_measure(each, run_dir, base_url, options.concurrency))
    middle = {
        each: {key: statistics.median(round_[key] for round_ in rounds) for key in rounds[0]}
        for each, rounds in found.items()
    }
    base = middle["AsyncOpenAI loop"]
    print(f"\n{name}\n{'':18} requests/s   x loop   CPU s/1k   x loop   peak MB")
    for each, row in middle.items():
        speed, cost = row["per_s"] / base["per_s"], row["cpu_s_per_1k"] / base["cpu_s_per_1k"]
        print(
            f"{each:18} {row['per_s']:10.0f} {speed:8.2f} {row['cpu_s_per_1k']:10.2f} {cost:8.2f} {row['rss_mb']:9.0f}"
        )


def _slots(folder: Path, options: argparse.Namespace) -> None:
    """Print how much of concurrency / latency is reached, 20 requests a slot, start-up included."""
    from tests.sendable import make_run

    latency = options.latency
    print(f"\nserver that answers after {latency:g} s, 14 kB bodies, 20 requests a slot")
    names = {"vlmbatch run": "from Python", "command": "by command", "aiohttp alone": "aiohttp alone"}
    print("   c" + "".join(f"{title:>16}" for title in names.values()))
    with _server(latency) as base_url:
        for concurrency in (32, 128, 512):
            run_dir = make_run(folder / f"slots-{concurrency}", 20 * concurrency, body_bytes=13_800)
            rates: dict[str, list[float]] = {name: [] for name in names}
            for _ in range(options.rounds):
                for name in names:
                    rates[name].append(_measure(name, run_dir.path, base_url, concurrency)["per_s"])
            shares = [statistics.median(rate) * latency / concurrency for rate in rates.values()]
            print(f"{concurrency:4}" + "".join(f"{share:16.1%}" for share in shares))


class _server:  # noqa: N801  (a context manager)
    def __init__(self, latency_s: float) -> None:
        self._words = [sys.executable, __file__, "--serve", str(latency_s)]

    def __enter__(self) -> str:
        self._process = subprocess.Popen(self._words, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        return f"http://127.0.0.1:{int(self._process.stdout.readline())}/v1"

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=600)
    parser.add_argument("--body", type=int, default=294_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-c", "--concurrency", type=int, default=32)
    parser.add_argument("--base-url", default="")
    parser.add_argument("--latency", type=float, default=0.2)
    parser.add_argument("--serve", type=float, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--as", default="", help=argparse.SUPPRESS)
    parser.add_argument("--run", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        _run_server(options.serve)
    elif options.run:
        _one(options)
    else:
        _compare(options)


def _compare(options: argparse.Namespace) -> None:
    from tests.sendable import make_run

    folder = Path(tempfile.mkdtemp(prefix="bench-run-"))
    try:
        run_dir = make_run(folder / "run", options.rows, body_bytes=options.body)
        title = f"{options.rows} bodies of {options.body / 1000:.0f} kB, concurrency {options.concurrency}"
        if options.base_url:
            _table(f"{title}, {options.base_url}", run_dir.path, options.base_url, options)
        else:
            with _server(0) as base_url:
                _table(f"{title}, asyncio server of this file", run_dir.path, base_url, options)
        _slots(folder, options)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
