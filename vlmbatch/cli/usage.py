"""What is said of a command line that cannot be read: what is wrong with it in our words, and what would be right.

Loaded where something is wrong and nowhere else.
"""

from __future__ import annotations

import difflib
import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from vlmbatch.cli.help import arguments, examples
from vlmbatch.errors import InputError, VlmbatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import typer

_DOES = {
    "bag": "collect RUN --bag DIR",
    "batch": "run RUN --channel batch",
    "cancel": "run RUN --channel batch --cancel",
    "compare": "collect RUN --compare RUN2",
    "cost": "estimate RUN",
    "download": "run RUN --channel batch",
    "export": "collect RUN --csv FILE",
    "fetch": "run RUN --channel batch",
    "gate": "collect RUN --gate",
    "init": "build SOURCE --out RUN --model NAME --prompt TEXT",
    "merge": "collect RUN --write RUN/merged.jsonl",
    "price": "estimate RUN",
    "redact": "collect RUN --redact DIR --leave-out WHAT",
    "rehearsal": "run RUN --rehearsal",
    "rehearse": "run RUN --rehearsal",
    "report": "collect RUN --write RUN/merged.jsonl --report",
    "resume": "run RUN",
    "retry": "run RUN",
    "seal": "collect RUN --seal",
    "send": "run RUN",
    "serve": "run RUN --serve CMD",
    "slurm": "run RUN --slurm N",
    "status": "run RUN --channel batch --status",
    "submit": "run RUN --channel batch",
    "validate": "collect RUN --gate",
}
"""What people look for under a name of its own, and how it is called here."""

_VERIFY = "python RUN/verify.py checks a run that vlmbatch collect RUN --seal has sealed"

_NOT_A = {"int": "not a whole number", "float": "not a number", "bool": "neither yes nor no"}
"""What a value is not, by how the kind of fault begins that the reader of values names."""


def told(error: typer.TyperException, argv: Sequence[str], prog_name: str) -> VlmbatchError:
    """Return a usage error in our words.

    Args:
        error: What the reader of the command line said.
        argv: Arguments without the program's name.
        prog_name: How the program was called.
    """
    from vlmbatch.cli import COMMANDS

    words = [word for word in argv if not word.startswith("-")]
    called = words[0] if words else ""
    if called and called not in COMMANDS:
        return _no_command(words, list(COMMANDS), prog_name)
    path = f"{prog_name} {called}".rstrip()
    return InputError(_sentence(error), hint=f"{path} --help lists the options")


def _no_command(words: Sequence[str], commands: list[str], prog_name: str) -> InputError:
    """Return what is said of a command that there is not: what does it here, or which name is near."""
    called, behind = words[0], words[1] if len(words) > 1 else ""
    if called == "help":
        return InputError("help is an option: --help", hint=_help_of(behind if behind in commands else "", prog_name))
    message = f"there is no command {called!r}"
    if called == "verify":
        return InputError(message, hint=_VERIFY)
    if called in _DOES:
        return InputError(message, hint=f"{prog_name} {_DOES[called]}")
    near = difflib.get_close_matches(called, commands, n=1)
    if near:
        message += f"; did you mean {near[0]!r}?"
    return InputError(message, hint=f"the commands are {', '.join(commands)}; {prog_name} --help tells what they do")


def _help_of(command: str, prog_name: str) -> str:
    return f"{prog_name} {command} --help" if command else f"{prog_name} --help, or {prog_name} COMMAND --help"


def _sentence(error: Any) -> str:
    """Return what is wrong, in one line."""
    kind, param = type(error).__name__, getattr(error, "param", None)
    if kind == "NoSuchOption":
        near = difflib.get_close_matches(error.option_name, _flags(error.ctx), n=1)
        return f"there is no option {error.option_name}" + (f"; did you mean {near[0]}?" if near else "")
    if kind == "MissingParameter" and param is not None:
        return f"{_name(param)} is missing"
    if kind == "BadOptionUsage" and "requires" in error.message:
        return f"{error.option_name} needs a value behind it"
    if kind == "BadParameter" and param is not None and hasattr(error.__cause__, "errors"):
        fault = error.__cause__.errors()[0]
        what = next((words for start, words in _NOT_A.items() if fault["type"].startswith(start)), fault["msg"])
        return f"{_name(param)} {fault['input']}: {what}"
    return str(error.format_message()).rstrip(".")


def _flags(ctx: Any) -> list[str]:
    return [flag for param in ctx.command.get_params(ctx) for flag in (*param.opts, *param.secondary_opts)]


def _name(param: Any) -> str:
    """Return how a parameter is written: by its longest flag, or an argument as the help names it."""
    if param.param_type_name == "argument":
        return str(param.metavar or param.name)
    name = next((flag for flag in param.opts if flag.startswith("--")), param.opts[0])
    return f"{name} (or {param.envvar})" if param.envvar else str(name)


def refuse_guess(command: Any, ctx: Any, args: Sequence[str]) -> None:
    """Refuse a command without anything behind it, or with ``help`` there, with what there has to be.

    Args:
        command: The command that was called.
        ctx: Its context.
        args: What stands behind it.

    Raises:
        InputError: It is so called.
    """
    help_line = f"{ctx.command_path} --help lists the options"
    if list(args) == ["help"] and not os.path.exists("help"):
        raise InputError("help is an option: --help", hint=help_line)
    if args:
        return
    needs = getattr(import_module(f"vlmbatch.cli.{command.name}"), "NEEDS", ())
    named = needs or [_name(argument) for argument in arguments(command)[:1]]
    is_one = len(named) == 1
    listed = named[0] if is_one else f"{', '.join(named[:-1])} and {named[-1]}"
    raise InputError(
        f"{listed} {'is' if is_one else 'are'} missing", hint=f"for example: {examples(command)[0]}; {help_line}"
    )
