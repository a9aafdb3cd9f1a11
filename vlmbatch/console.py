"""What people see: messages and progress on stderr, tables as plain text; the only room that knows rich.

Stdout belongs to results and is written by :func:`out` alone. Text that comes from elsewhere (file names, model
answers, provider errors) is data: it passes :func:`safe` and never rich's markup.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
import unicodedata
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from vlmbatch.errors import VlmbatchError
    from vlmbatch.records import Event

_SHOWN_PROBLEMS = 20
_PLAIN_EVERY_S = 60.0
_TTY_EVERY_S = 0.1
_SHORTEST_BAR, _LONGEST_BAR = 8, 28
_LONGEST_TIME = "99:59:59"


def safe(text: str) -> str:
    """Return text with every control, format and surrogate character escaped, so that a terminal only shows it."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if unicodedata.category(c)[0] != "C" else _escape(c) for c in text)


def _escape(char: str) -> str:
    code = ord(char)
    if code < 0x100:
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(char, f"\\x{code:02x}")
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class ReaderLeft(Exception):  # noqa: N818  (nobody's fault)
    """Whoever read our stdout has closed it: there is nobody to tell anything to."""


class OutputLost(Exception):  # noqa: N818  (like ReaderLeft)
    """Stdout takes no more: the disk is full, say. Its message is the system's word for it."""


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Tell what goes wrong with stdout from what goes wrong with files.

    Raises:
        ReaderLeft: Nobody reads it any more.
        OutputLost: It cannot be written.
    """
    try:
        yield
    except BrokenPipeError:
        raise ReaderLeft from None
    except OSError as error:
        raise OutputLost(error.strerror or str(error)) from None


def out(text: str = "") -> None:
    """Write one line of a result to stdout; what its encoding lacks becomes ``-`` (rules) or ``?``.

    Raises:
        ReaderLeft: Nobody reads it any more.
        OutputLost: It cannot be written.
    """
    try:
        with writing():
            sys.stdout.write(text + "\n")
    except UnicodeEncodeError as error:
        out(text.replace("─", "-").encode(error.encoding, "replace").decode(error.encoding))


def say(text: str) -> None:
    """Write a sentence of a result to stdout; on a terminal lines break between words. Not for tables and commands.

    Raises:
        ReaderLeft: Nobody reads it any more.
        OutputLost: It cannot be written.
    """
    out(wrapped(text, sys.stdout))


def out_bytes(data: bytes) -> None:
    """Write JSON bytes to stdout, with a final newline.

    Raises:
        ReaderLeft: Nobody reads it any more.
        OutputLost: It cannot be written.
    """
    with writing():
        sys.stdout.flush()
        sys.stdout.buffer.write(data if data.endswith(b"\n") else data + b"\n")
        sys.stdout.buffer.flush()


def let_go() -> None:
    """Drop what stdout and stderr could not get rid of, or the interpreter complains of it at its end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except ValueError:
            continue  # closed
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def wrapped(text: str, stream: Any) -> str:
    """Return a paragraph broken between words at the width of a terminal, as it is where the stream is none."""
    if not is_terminal(stream):
        return text
    room = _columns(stream)
    lines = [""]
    for number, word in enumerate(text.split(" ")):
        longer = f"{lines[-1]} {word}" if number else word
        if _width(longer) <= room or not lines[-1].strip():
            lines[-1] = longer
        else:
            lines.append(f"  {word}")
    return "\n".join(lines)


def _columns(stream: Any) -> int:
    """Return how many columns a terminal has; the variable COLUMNS is heard."""
    if not os.environ.get("COLUMNS", "").isdigit():
        with contextlib.suppress(OSError, ValueError):
            return os.get_terminal_size(stream.fileno()).columns or 80
    return shutil.get_terminal_size().columns


@dataclass(slots=True)
class Console:
    """Messages for people, all on stderr.

    Attributes:
        quiet: 1 = no progress and no notes, 2 = errors only.
        verbose: 1 = what happens to single requests, 2 = more.
    """

    quiet: int = 0
    verbose: int = 0

    def line(self, text: str) -> None:
        """Write one line to stderr; a terminal that was closed stops no work."""
        with contextlib.suppress(OSError):
            sys.stderr.write(text + "\n")
            sys.stderr.flush()

    def note(self, text: str) -> None:
        """Say something that one may want to know."""
        if self.quiet < 1:
            self.line(wrapped(safe(text), sys.stderr))

    def warning(self, text: str) -> None:
        """Say something that one should know."""
        if self.quiet < 2:
            self._headed("warning:", "33", text)

    def error(self, error: VlmbatchError) -> None:
        """Say what is wrong: the problems (20 at most, then how to see more), what and where, what to do next."""
        for problem in error.problems[:_SHOWN_PROBLEMS]:
            self.line(wrapped(f"  {safe(str(problem))}", sys.stderr))
        if len(error.problems) > _SHOWN_PROBLEMS:
            self.line(f"  … and more: --json lists {len(error.problems):,} of them")
        self.plain_error(error.message, error.hint)

    def plain_error(self, message: str, hint: str = "") -> None:
        """Say what is wrong and what to do next."""
        self._headed("error:", "1;31", message)
        if hint:
            self._headed("hint:", "36", hint)

    def _headed(self, head: str, colour: str, text: str) -> None:
        """Write a paragraph that begins with a coloured word."""
        self.line(_paint(head, colour) + wrapped(f"{head} {safe(text)}", sys.stderr).removeprefix(head))


def _paint(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if has_colour(sys.stderr) else text


def has_colour(stream: Any) -> bool:
    """Return whether a stream takes colour: NO_COLOR, FORCE_COLOR and TERM=dumb are heard."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return is_terminal(stream) and os.environ.get("TERM") != "dumb"


def is_terminal(stream: Any) -> bool:
    """Return whether a stream is a terminal (a closed one is none)."""
    try:
        return bool(stream.isatty())
    except ValueError:
        return False


def number_bytes(size: float) -> str:
    """Return a size for people in decimal units: ``1.2 GB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def duration(seconds: float) -> str:
    """Return a duration for people: ``42 s``, ``3 min 20 s``, ``2 h 05 min``."""
    whole = round(seconds)
    if whole < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 6000:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "", right: str = "") -> str:
    """Return a table as plain text that survives a mail: no colour, no box but two rules.

    Args:
        columns: Headings.
        rows: Cells; each is shown as text, made safe.
        title: A line above.
        right: One character per column, ``r`` = flush right; shorter = the rest is flush left.
    """
    cells = [[safe(str(cell)) for cell in row] for row in rows]
    widths = [max([_width(name), *(_width(row[i]) for row in cells)]) for i, name in enumerate(columns)]

    def show(row: Sequence[str]) -> str:
        parts = []
        for i, cell in enumerate(row):
            gap = " " * (widths[i] - _width(cell))
            parts.append(gap + cell if right[i : i + 1] == "r" else cell + gap)
        return "  ".join(parts).rstrip()

    rule = "  ".join("─" * width for width in widths)
    lines = ([title] if title else []) + [show(columns), rule, *(show(row) for row in cells)]
    return "\n".join(lines)


def _width(text: str) -> int:
    """Return how many columns a text takes in a terminal."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


@dataclass(slots=True)
class Watch:
    """Shows a stage's events: a live line on a terminal, a plain line now and then elsewhere.

    Use as a context manager and hand :meth:`on_event` to the stage.

    Attributes:
        console: Where warnings go.
        label: What is being done, such as ``building``.
        unit: What is counted, such as ``requests``.
        tail: Turns an event's data into the rest of the line.
    """

    console: Console
    label: str
    unit: str = "requests"
    tail: Callable[[Event], str] | None = None
    _started: float = field(default_factory=time.monotonic)
    _shown: float = 0.0
    _bar: Any = None
    _rule: Any = None
    _task: Any = None

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            with contextlib.suppress(OSError):
                self._bar.stop()
            self._bar = None

    def on_event(self, event: Event) -> None:
        """Show one event, or drop it where it comes too soon after the last."""
        if event.kind == "warning":
            self.console.warning(event.message)
        elif event.kind == "note":
            self.console.note(event.message)
        elif event.kind == "progress" and self.console.quiet == 0:
            self._progress(event)

    def _progress(self, event: Event) -> None:
        now = time.monotonic()
        on_terminal = is_terminal(sys.stderr)
        if now - (self._shown or self._started) < (_TTY_EVERY_S if on_terminal else _PLAIN_EVERY_S):
            return
        self._shown = now
        rest = self.tail(event) if self.tail else ""
        if on_terminal:
            with contextlib.suppress(OSError):
                self._draw(event, rest)
        else:
            self.console.line(f"{self.label}: {self._count(event)}{', ' + rest if rest else ''}")

    def _count(self, event: Event) -> str:
        if event.data.get("unit") == "bytes":
            return f"{number_bytes(event.done)} of {number_bytes(event.total or 0)}"
        of = f" of {event.total:,}" if event.total is not None else ""
        return f"{event.done:,}{of} {self.unit}"

    def _draw(self, event: Event, rest: str) -> None:
        if self._bar is None:
            from rich.console import Console as RichConsole
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self._rule = BarColumn(bar_width=_LONGEST_BAR)
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                self._rule,
                TextColumn("{task.fields[count]}", markup=False),
                TimeRemainingColumn(),
                TextColumn("{task.fields[rest]}", markup=False),
                console=RichConsole(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task(self.label, total=event.total, count="", rest="")
            self._bar.start()
        count = self._count(event)
        room = self._bar.console.width - len(f"{self.label}  {count} {_LONGEST_TIME}  ")
        self._rule.bar_width, rest = fitted(rest, room)
        self._bar.update(
            self._task, description=self.label, completed=event.done, total=event.total, count=count, rest=rest
        )


def fitted(rest: str, room: int) -> tuple[int, str]:
    """Return how long the bar may be, and which of the figures behind it fit: the first ones, none cut.

    Args:
        rest: The figures, with commas between them.
        room: Columns for both.
    """
    parts = rest.split(", ")
    while parts and len(", ".join(parts)) > room - _SHORTEST_BAR:
        parts.pop()
    kept = ", ".join(parts)
    return max(1, min(_LONGEST_BAR, room - len(kept))), kept
