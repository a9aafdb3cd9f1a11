"""Commands in the prose of the pages: which there are, and whether ours would be understood as they are written."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any, NamedTuple

from typer.exceptions import TyperException

from tests.contract import pages
from tests.docs import commands
from vlmbatch.errors import VlmbatchError
from vlmbatch.providers.servers import serve_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

_PROGRAMS = (
    *("vlmbatch", "python", "python3", "pip", "vllm", "sbatch", "squeue", "sha256sum", "bagit.py", "jq", "grep", "git"),
    *("ruff", "bash", "sh", "eval", "curl", "cd", "export"),
)
_LEFT_OPEN = re.compile(r"[A-Z][A-Z0-9]*([,=][A-Z0-9]+)*|.*….*")
"""What stands for a value that the reader has to put in."""
_REQUIRED = {"build": ["images", "--out", "run"], "estimate": [], "run": ["run"], "collect": ["run"]}


class Filled(NamedTuple):
    """How a command that leaves values to the reader is run.

    Attributes:
        values: What is put in, by what stands for it.
        place: The folder in which it is run.
        more: Further arguments, which make a long command short.
    """

    values: Mapping[str, str] = {}
    place: str = "."
    more: str = ""

    def command(self, span: str) -> str:
        """Return the command with its values."""
        for left_open, value in self.values.items():
            assert left_open in span, f"there is no {left_open}"
            span = span.replace(left_open, value)
        return f"cd {self.place}; {span} {self.more}"


def whole(page: Path) -> list[str]:
    """Return the commands in a page's prose that can be given as they are, once open values are put in."""
    return [span for span in pages.spans(page) if _is_whole(span)]


def _is_whole(span: str) -> bool:
    program, _, rest = span.partition(" ")
    if not rest or not (program in _PROGRAMS or re.fullmatch(r"[A-Z_]+=.*", program)):
        return False
    words = _words(rest)
    if program == "vlmbatch" and words[0] in commands.NAMES:
        return "…" not in span and not _error(words[0], words[1:])
    is_name = program == "vllm" and len(words) == 1  # of one of its commands
    return not is_name and span not in server_commands() and not module(span)


def module(span: str) -> str:
    """Return the module that ``python -m MODULE`` names, empty where the span is anything else."""
    found = re.fullmatch(r"python3? -m ([\w.]+)", span)
    return found[1] if found else ""


def server_commands() -> list[str]:
    """Return how --serve starts servers, as references/servers.md writes it: a test compares the two."""
    filled = {"{model}": "MODEL", "127.0.0.1": "H", "{port}": "P"}
    found = []
    for name in ("vllm", "sglang"):
        words = shlex.split(serve_command(name, {}))
        found.append(" ".join(filled.get(word, word) for word in words))
    return found


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _error(name: str, words: Sequence[str]) -> str:
    """Return what the command's own parser says against some words, empty where it takes them."""
    command = commands.command(name)
    try:
        with command.make_context(name, list(words)):
            return ""
    except TyperException as error:
        return error.format_message() or type(error).__name__
    except VlmbatchError as error:
        return error.message


def faults(page: Path) -> list[str]:
    """Return what is wrong with the commands and options in a page's prose."""
    found = []
    for span in pages.spans(page):
        words = _words(span.removeprefix("vlmbatch ").removeprefix("python -m vlmbatch "))
        if words and words[0] in commands.NAMES and " " in span and "(" not in span:
            found += [f"{span}: {fault}" for fault in _misuse(words[0], words[1:])]
        elif words and words[0].startswith("--") and " " in span:
            found += _bare(span, words)
    return found


def _bare(span: str, words: Sequence[str]) -> list[str]:
    """Return what is wrong with options that stand alone; one command that takes them so is enough."""
    takers = [name for name in commands.NAMES if words[0] in commands.flags(name)]
    wrong = [list(_misuse(name, words)) for name in takers]
    return [] if not takers or [] in wrong else [f"{span}: {wrong[0][0]}"]


def _misuse(name: str, words: Sequence[str]) -> Iterator[str]:
    options = {flag: option for option in commands.options(name) for flag in option.opts}
    rest = [word for word in words if word != "…"]
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word in {"--help", "-h"}:
            continue
        option = options.get(word)
        if option is None:
            yield f"{name} has no {word}"
        elif commands.takes(option) and rest and not rest[0].startswith("--"):
            yield from _bad_value(name, option, rest.pop(0))


def _bad_value(name: str, option: Any, value: str) -> Iterator[str]:
    allowed = option.metavar.split("|") if option.metavar and "|" in option.metavar else []
    if _LEFT_OPEN.fullmatch(value):
        return
    if allowed and not set(value.split("|")) <= set(allowed):
        yield f"{option.opts[0]} takes {option.metavar}"
    if error := _error(name, [*_REQUIRED[name], option.opts[0], value]):
        yield error
