"""A real headless Chromium, driven over its debugging port. It is given nothing but file:// addresses."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine

PATH = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--proxy-server=127.0.0.1:9",  # whatever it might ask the network for goes nowhere
    "--remote-debugging-port=0",
    "--window-size=1400,900",
)
_SECONDS = 60
_DRAWN = "document.documentElement?.dataset.ready === 'yes'"
"""What the page says of itself when nothing is under way; to look any sooner is to race with it."""
_WATCH = """
window.violations = [];
addEventListener("securitypolicyviolation",
  (event) => violations.push(`${event.violatedDirective} ${event.blockedURI}`));
"""


class Browser:
    """One process with a new, empty profile; use it as a context manager."""

    def __enter__(self) -> Browser:
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        assert PATH is not None
        self._process = subprocess.Popen(
            [PATH, *_FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        self._loop = asyncio.new_event_loop()
        self._wire: Any = None
        self._session: Any = None
        self._count = 0
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._events: dict[str, asyncio.Queue[Any]] = {}
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if b"DevTools listening on " in line:
                # What it goes on to say is read too: a full pipe would hold it up.
                self._drain = threading.Thread(target=self._process.stderr.read, daemon=True)
                self._drain.start()
                self._run(self._connect(line.rsplit(b" ", 1)[1].decode().strip()))
                return self
        raise AssertionError("chromium ended before it listened")

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Exception):
            self._run(self._send("Browser.close"))
        self._reader.cancel()
        self._run(self._session.close())
        self._process.wait(_SECONDS)
        self._drain.join(_SECONDS)
        assert self._process.stderr is not None
        self._process.stderr.close()
        self._loop.close()
        self._profile.cleanup()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(work, _SECONDS))

    async def _connect(self, address: str) -> None:
        import aiohttp

        self._session = aiohttp.ClientSession()
        self._wire = await self._session.ws_connect(address, max_msg_size=0)
        self._reader = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        async for message in self._wire:
            said = message.json()
            if "id" in said:
                self._replies.pop(said["id"]).set_result(said)
            elif said.get("sessionId") in self._events:
                self._events[said["sessionId"]].put_nowait(said)

    async def _send(self, method: str, session: str | None = None, **params: Any) -> Any:
        self._count += 1
        self._replies[self._count] = self._loop.create_future()
        said = {"id": self._count, "method": method, "params": params, **({"sessionId": session} if session else {})}
        reply = self._replies[self._count]
        await self._wire.send_json(said)
        answer = await reply
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, path: str | Path, state: str = "", *, size: tuple[int, int] = (1400, 900)) -> Page:
        """Open a file in a new tab, wait until the page says that it is drawn, and return the tab."""
        return Page(self, Path(path).resolve().as_uri() + (f"#{state}" if state else ""), size)


class Page:
    """One tab. ``requests`` are all addresses that it asked for, ``said`` what its console was told."""

    def __init__(self, browser: Browser, url: str, size: tuple[int, int]) -> None:
        self._browser = browser
        target = browser._run(browser._send("Target.createTarget", url="about:blank"))["targetId"]
        attached = browser._run(browser._send("Target.attachToTarget", targetId=target, flatten=True))
        self._session = attached["sessionId"]
        self._target = target
        browser._events[self._session] = asyncio.Queue()
        for domain in ("Page", "Runtime", "Network"):
            self.do(f"{domain}.enable")
        self.do("Page.addScriptToEvaluateOnNewDocument", source=_WATCH)
        self.do("Emulation.setDeviceMetricsOverride", width=size[0], height=size[1], deviceScaleFactor=1, mobile=False)
        self.requests: list[str] = []
        self.said: list[str] = []
        self.do("Page.navigate", url=url)
        self.wait(_DRAWN)

    def do(self, method: str, **params: Any) -> Any:
        """Send one command of the protocol."""
        return self._browser._run(self._browser._send(method, self._session, **params))

    def run(self, script: str) -> Any:
        """Evaluate an expression on the page as it stands when all is drawn; a promise is awaited. Return its value."""
        self.wait(_DRAWN)
        done = self.do("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until an expression is true; a navigation in between is no harm."""
        self._browser._run(self._wait(condition))

    async def _wait(self, condition: str) -> None:
        expression = f"Boolean({condition})"
        while True:
            done = await self._browser._send(
                "Runtime.evaluate", self._session, expression=expression, returnByValue=True
            )
            if done["result"].get("value"):
                return
            await asyncio.sleep(0.01)

    def reload(self) -> None:
        """Load the page again and wait until it is drawn."""
        self.run("window.isOld = true")
        self.do("Page.reload")
        self.wait(f"!window.isOld && {_DRAWN}")

    def press(self, *keys: str) -> None:
        """Press keys, one after the other, each on the page as it stands when all is drawn."""
        for key in keys:
            self.wait(_DRAWN)
            text = key if len(key) == 1 else ""
            self.do("Input.dispatchKeyEvent", type="keyDown", key=key, text=text)
            self.do("Input.dispatchKeyEvent", type="keyUp", key=key)

    def type(self, text: str) -> None:
        """Type text into the field that has the focus."""
        self.do("Input.insertText", text=text)

    def screenshot(self, path: Path) -> bytes:
        """Take a picture of the window and keep it."""
        data = base64.b64decode(self.do("Page.captureScreenshot", format="png")["data"])
        path.write_bytes(data)
        return data

    def pdf(self, path: Path) -> bytes:
        """Print the page and keep it."""
        data = base64.b64decode(self.do("Page.printToPDF", printBackground=True)["data"])
        path.write_bytes(data)
        return data

    def look(self) -> None:
        """Take in what the tab has reported so far."""
        queue = self._browser._events[self._session]
        while not queue.empty():
            event = queue.get_nowait()
            params = event["params"]
            if event["method"] == "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            elif event["method"] == "Runtime.consoleAPICalled":
                self.said.append(" ".join(str(arg.get("value")) for arg in params["args"]))
            elif event["method"] == "Runtime.exceptionThrown":
                self.said.append(params["exceptionDetails"].get("exception", {}).get("description", "exception"))

    def close(self) -> None:
        """Close the tab."""
        self._browser._run(self._browser._send("Target.closeTarget", targetId=self._target))
