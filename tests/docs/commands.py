"""Tables of the commands and their options, from what the command line itself declares."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import typer

from tests.docs.shapes import cell
from vlmbatch.cli import make_app

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NAMES = ("build", "estimate", "run", "collect")
_PLAIN = "Options"


@cache
def command(name: str) -> Any:
    """Return one command as the command line has it."""
    return typer.main.get_command(make_app()).commands[name]  # type: ignore[attr-defined]


def options(name: str) -> list[Any]:
    """Return a command's options."""
    return [param for param in command(name).params if param.param_type_name == "option"]


def arguments(name: str) -> list[Any]:
    """Return a command's arguments."""
    return [param for param in command(name).params if param.param_type_name == "argument"]


def flags(name: str) -> set[str]:
    """Return every way to write the options of a command."""
    return {flag for option in options(name) for flag in (*option.opts, *option.secondary_opts)} | {"--help", "-h"}


def _common() -> set[str]:
    """Return the options that all commands have."""
    return set.intersection(*({option.name for option in options(name)} for name in NAMES)) - {"rehearsal"}


def takes(option: Any) -> str:
    """Return what stands behind an option, empty for a switch."""
    if option.is_flag or option.count:
        return ""
    kinds = str(option.type_descriptor.annotation)
    return option.metavar or ("N" if "int" in kinds or "float" in kinds else "TEXT")


def _row(option: Any) -> str:
    first, *others = sorted(option.opts, key=lambda flag: not flag.startswith("--"))
    written = ", ".join(f"`{flag}`" for flag in (f"{first} {takes(option)}".strip(), *others))
    return f"| {cell(written)} | {cell(option.help or '')} | {cell(_default(option))} |"


def _default(option: Any) -> str:
    said = []
    if option.required:
        said.append("required")
    elif not (option.is_flag or option.count or option.default in {None, ""}):
        said.append(f"{option.default:g}" if isinstance(option.default, float) else str(option.default))
    if option.envvar:
        said.append(f"or from `{option.envvar}`")
    return ", ".join(said)


def _tables(name: str) -> Iterator[str]:
    common = _common()
    panels: dict[str, list[Any]] = {}
    for option in options(name):
        if option.name not in common:
            panels.setdefault(option.rich_help_panel or _PLAIN, []).append(option)
    for panel, inside in panels.items():
        yield "\n".join([f"**{panel}**\n", _HEAD, *map(_row, inside)])


_HEAD = "| option | what it does | default |\n| --- | --- | --- |"


def of_command(name: str) -> Callable[[], str]:
    """Return what makes the part of one command: what it does, its usage, examples, arguments and options."""

    def made() -> str:
        one = command(name)
        words, _, examples = one.help.partition("\b")
        usage = " ".join(["vlmbatch", name, "[OPTIONS]", *(_usage(argument) for argument in arguments(name))])
        shown = "\n".join(line.strip() for line in examples.strip().splitlines())
        told = [f"- `{argument.metavar}`: {argument.help}" for argument in arguments(name)]
        return "\n\n".join(
            [" ".join(words.split()), f"```text\n{usage}\n```", f"```sh\n{shown}\n```", "\n".join(told), *_tables(name)]
        )

    return made


def _usage(argument: Any) -> str:
    said: str = argument.metavar
    return said if argument.required else f"[{said}]"


def of_all() -> str:
    """Return the table of the options that all commands have."""
    rows = [_row(option) for option in options("build") if option.name in _common()]
    return "\n".join([_HEAD, *rows, "| `--help`, `-h` | Show the help and exit. |  |"])


BLOCKS: dict[str, Callable[[], str]] = {
    "options of all commands": of_all,
    **{f"command {name}": of_command(name) for name in NAMES},
}
