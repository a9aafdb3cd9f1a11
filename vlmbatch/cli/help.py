"""What the help screens say: a command's everyday options on one screen, or every option of it.

Loaded where help is asked for and nowhere else. Which options are everyday ones stands beside each command, in its
``EVERYDAY``; what an option is called, takes and does is said by its declaration alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vlmbatch.cli.page import Part, Screen, draw, room

if TYPE_CHECKING:
    from collections.abc import Iterable


def front(ctx: Any) -> str:
    """Return the help of the whole program: its commands and its few options.

    Args:
        ctx: The context that typer hands to a command's help.
    """
    commands = [(name, command.get_short_help_str()) for name, command in ctx.command.commands.items()]
    options = [(label(option), words(option)) for option in _options(ctx)]
    return draw(
        _screen(ctx, [Part("Commands", commands), Part("Options", options), Part("More", text=ctx.command.epilog)])
    )


def short(ctx: Any) -> str:
    """Return the help of a command on one screen: its everyday options, and the names of all others by group."""
    by_flag = {flag: option for option in _options(ctx) for flag in option.opts}
    everyday = [by_flag[flag] for flag in import_module(f"vlmbatch.cli.{ctx.command.name}").EVERYDAY]
    width = room(short_label(option) for option in everyday)
    parts = _grouped((option, short_label(option), short_words(option, width)) for option in everyday)
    shown = {flag for option in everyday for flag in _names(option)[:1]}
    others: dict[str, list[str]] = {}
    for option in _options(ctx):
        if option.rich_help_panel:  # only the helps have none
            left = [flag for flag in _names(option) if flag not in shown]
            others.setdefault(option.rich_help_panel, []).extend(left)
    more = "\n".join(f"{panel}: {' '.join(flags)}" for panel, flags in others.items() if flags)
    return draw(_screen(ctx, [*parts, Part("More options, all told by --help-all", text=more)]))


def whole(ctx: Any) -> str:
    """Return the help of a command with every option of it."""
    parts = _grouped((option, label(option), words(option)) for option in _options(ctx))
    return draw(_screen(ctx, parts), is_airy=True)


def _screen(ctx: Any, parts: list[Part]) -> Screen:
    command = ctx.command
    said = [(argument.metavar, argument.help) for argument in arguments(command)]
    return Screen(description(command), usage(command, ctx.command_path), said, examples(command), parts)


def _grouped(rows: Iterable[tuple[Any, str, str]]) -> list[Part]:
    """Return the parts that the options' panels make, in the order in which they first come."""
    panels: dict[str, list[tuple[str, str]]] = {}
    for option, written, said in rows:
        panels.setdefault(option.rich_help_panel or "Help", []).append((written, said))
    return [Part(title, inside) for title, inside in panels.items()]


# --- what a declaration says -----------------------------------------------------------------------------------------


def _options(ctx: Any) -> list[Any]:
    return [param for param in ctx.command.get_params(ctx) if param.param_type_name == "option"]


def arguments(command: Any) -> list[Any]:
    """Return a command's arguments."""
    return [param for param in command.params if param.param_type_name == "argument"]


def description(command: Any) -> str:
    """Return what a command is for, in one line."""
    return " ".join(command.help.partition("\b")[0].split())


def examples(command: Any) -> list[str]:
    """Return the examples of a command, each one line for a shell."""
    return [line.strip() for line in command.help.partition("\b")[2].strip().splitlines()]


def usage(command: Any, path: str) -> str:
    """Return how a command, or the group of all commands, is called.

    Args:
        command: Which one.
        path: What is typed before its options, such as ``vlmbatch build``.
    """
    pieces = [path, "[OPTIONS]"]
    pieces += [_label(param, _names(param)[:1]) for param in command.params if param.required and _names(param)]
    for argument in arguments(command):
        word = argument.metavar if argument.required else f"[{argument.metavar}]"
        pieces.append(word if argument.nargs == 1 else f"{word}...")
    return " ".join([*pieces, getattr(command, "subcommand_metavar", "")]).rstrip()


def label(option: Any) -> str:
    """Return all ways to write an option, with what it takes: ``--model, --model-id NAME``."""
    return _label(option, [*_letters(option), *_names(option)])


def short_label(option: Any) -> str:
    """Return how an option is written: by its letter if it has one, and by the first of its names."""
    return _label(option, [*_letters(option), *_names(option)[:1]])


def _label(option: Any, flags: list[str]) -> str:
    return f"{', '.join(flags)} {option.metavar or ''}".rstrip()


def _letters(option: Any) -> list[str]:
    return [flag for flag in option.opts if not flag.startswith("--")]


def _names(option: Any) -> list[str]:
    return [flag for flag in option.opts if flag.startswith("--")]


def words(option: Any) -> str:
    """Return all that is said of an option: what it does, and in brackets what it is without being given."""
    facts = [*_default(option), *([f"env: {option.envvar}"] if option.envvar else [])]
    return _with_facts(option.help, facts)


def short_words(option: Any, width: int) -> str:
    """Return the first sentence about an option, with its default where that leaves it on one line."""
    first = option.help.split(". ")[0].removesuffix(".") + "."
    said = _with_facts(first, _default(option))
    return said if len(said) <= width else first


def default(option: Any) -> str:
    """Return what an option is without being given, as a person reads it; empty where that is nothing to speak of."""
    if isinstance(option.show_default, str):
        return option.show_default
    value = option.default
    if option.is_flag or option.count or not option.show_default or value is None or value == "":
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _default(option: Any) -> list[str]:
    if option.required:
        return ["required"]
    return [f"default: {default(option)}"] if default(option) else []


def _with_facts(said: str, facts: list[str]) -> str:
    return f"{said} [{'; '.join(facts)}]" if facts else said
