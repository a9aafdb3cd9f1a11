"""Tables of the commands and their options, from what the command line itself declares."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import typer

from tests.docs.shapes import cell
from vlmbatch.cli import help as screens
from vlmbatch.cli import make_app

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NAMES = ("build", "estimate", "run", "collect")


@cache
def command(name: str) -> Any:
    """Return one command as the command line has it."""
    return typer.main.get_command(make_app()).commands[name]  # type: ignore[attr-defined]


def options(name: str) -> list[Any]:
    """Return a command's options."""
    return [param for param in command(name).params if param.param_type_name == "option"]


def flags(name: str) -> set[str]:
    """Return every way to write the options of a command."""
    return {flag for option in options(name) for flag in (*option.opts, *option.secondary_opts)} | {"--help", "-h"}


def _common() -> set[str]:
    """Return the options that all commands have."""
    return set.intersection(*({option.name for option in options(name)} for name in NAMES)) - {"rehearsal"}


def takes(option: Any) -> str:
    """Return what stands behind an option, empty for a switch."""
    return option.metavar or ""


def _row(option: Any) -> str:
    first, *others = sorted(option.opts, key=lambda flag: not flag.startswith("--"))
    written = ", ".join(f"`{flag}`" for flag in (f"{first} {takes(option)}".strip(), *others))
    return f"| {cell(written)} | {cell(option.help or '')} | {cell(_default(option))} |"


def _default(option: Any) -> str:
    said = ["required" if option.required else screens.default(option)]
    said += [f"or from `{option.envvar}`"] if option.envvar else []
    return ", ".join(filter(None, said))


def _tables(name: str) -> Iterator[str]:
    common = _common()
    panels: dict[str, list[Any]] = {}
    for option in options(name):
        if option.name not in common:
            panels.setdefault(option.rich_help_panel, []).append(option)
    for panel, inside in panels.items():
        yield "\n".join([f"**{panel}**\n", _HEAD, *map(_row, inside)])


_HEAD = "| option | what it does | default |\n| --- | --- | --- |"


def of_command(name: str) -> Callable[[], str]:
    """Return what makes the part of one command: what it does, its usage, examples, arguments and options."""

    def made() -> str:
        one = command(name)
        usage = screens.usage(one, f"vlmbatch {name}")
        shown = "\n".join(screens.examples(one))
        told = [f"- `{argument.metavar}`: {argument.help}" for argument in screens.arguments(one)]
        return "\n\n".join(
            [
                screens.description(one),
                f"```text\n{usage}\n```",
                f"```sh\n{shown}\n```",
                "\n".join(told),
                *_tables(name),
            ]
        )

    return made


def of_all() -> str:
    """Return the table of the options that all commands have."""
    rows = [_row(option) for option in options("build") if option.name in _common()]
    return "\n".join([_HEAD, *rows, "| `--help`, `-h` | Show the everyday options and exit. |  |"])


BLOCKS: dict[str, Callable[[], str]] = {
    "options of all commands": of_all,
    **{f"command {name}": of_command(name) for name in NAMES},
}
