"""What the four commands share: options, the JSON envelope, and how every ending becomes an exit status."""

from __future__ import annotations

import os
import sys
import traceback
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from vlmbatch.console import Console, ReaderLeft, out, out_bytes
from vlmbatch.errors import Exit, InputError, Interrupted, VlmbatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

OUTPUT = "Output"
"""Help panel of the options that every command has."""


def option(panel: str, words: str, *flags: str, **more: Any) -> Any:
    """Return the declaration of an option.

    Args:
        panel: The group under which the help has it.
        words: What it does. The one-screen help shows the first sentence; in 80 columns all of it should fit on one
            line, for a shell that lists completions breaks it otherwise.
        flags: How it is written; empty = ``--`` and the parameter's name.
        more: Whatever else typer takes. ``metavar`` names what stands behind it, a ``show_default`` in words what
            holds without it.
    """
    return typer.Option(*flags, help=words, rich_help_panel=panel, **more)


JsonOption = Annotated[bool, option(OUTPUT, "Print the result as one JSON object.", "--json")]
QuietOption = Annotated[int, option(OUTPUT, "No progress, no notes. Twice: errors only.", "--quiet", "-q", count=True)]
VerboseOption = Annotated[int, option(OUTPUT, "Tell what happens to single requests.", "--verbose", "-v", count=True)]


def _show_all(ctx: typer.Context, is_asked: bool) -> None:
    if is_asked and not ctx.resilient_parsing:
        from vlmbatch.cli.help import whole

        out(whole(ctx))
        raise typer.Exit


HelpAllOption = Annotated[
    bool, typer.Option("--help-all", help="Show every option and exit.", callback=_show_all, is_eager=True)
]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Run folder, made by build.")]


class Command(TyperCommand):
    """A command whose help fits on a screen."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of everyday options; --help-all has all of them."""
        from vlmbatch.cli.help import short

        formatter.write(short(ctx))


class Program(TyperGroup):
    """All commands under one name."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the program."""
        from vlmbatch.cli.help import front

        formatter.write(front(ctx))


def finish(
    command: str, data: Any, *, as_json: bool, text: Callable[[], None], failed: VlmbatchError | None = None
) -> None:
    """End a command: print its result (JSON or text) and leave with the right status.

    Args:
        command: The command's name.
        data: The result as JSON.
        as_json: Whether --json was given.
        text: Prints the result for people.
        failed: A check that does not hold, or rows that ended without an answer; the result is printed all the same.

    Raises:
        VlmbatchError: ``failed``, after the result was printed (main turns it into the exit status).
    """
    if as_json:
        out_json(envelope(command, data, failed))
    else:
        text()
    if failed is not None:
        raise Told(failed) if as_json else failed


class Told(Exception):  # noqa: N818  (a message, not a fault)
    """An error that stands on stdout as JSON already: only its exit status is left to give."""

    def __init__(self, error: VlmbatchError) -> None:
        super().__init__(error.message)
        self.error = error


def out_json(value: Any) -> None:
    """Print a result as JSON on stdout."""
    from vlmbatch import jsonl

    out_bytes(jsonl.dumps_pretty(value))


def envelope(command: str, data: Any, error: VlmbatchError | None) -> dict[str, Any]:
    """Return the JSON that a command prints: one shape for success and failure."""
    from vlmbatch.records import RESULT_SCHEMA

    exit_code = error.exit_code if error else Exit.DONE
    return {
        "schema": RESULT_SCHEMA,
        "command": command,
        "status": "success" if not error else "partial" if data is not None else "error",
        "exit_code": int(exit_code),
        "data": data,
        "errors": _errors(error) if error else [],
    }


def _errors(error: VlmbatchError) -> list[dict[str, Any]]:
    head = {"code": error.code, "message": error.message, "hint": error.hint}
    rest = [
        {"code": p.code, "message": p.sentence, "hint": "", "path": p.where or None, "line": p.line}
        for p in error.problems
    ]
    return [head, *rest]


def run_app(app: typer.Typer, argv: Sequence[str], prog_name: str) -> int:
    """Run the command line and return its exit status; every ending passes here.

    Args:
        app: The application.
        argv: Arguments without the program's name.
        prog_name: How the program was called.
    """
    console = Console()
    command = next((word for word in argv if not word.startswith("-")), "")
    as_json = "--json" in argv
    try:
        code = app(args=list(argv), prog_name=prog_name, standalone_mode=False)
        sys.stdout.flush()
        if code == Exit.INTERRUPTED:  # typer makes a status of Ctrl-C, and says nothing
            return _fail(Interrupted("interrupted"), command, as_json=as_json, console=console)
        return code if isinstance(code, int) else Exit.DONE
    except Told as told:
        return told.error.exit_code
    except VlmbatchError as error:
        return _fail(error, command, as_json=as_json, console=console)
    except typer.TyperException as error:
        return _usage(error, command, as_json=as_json, console=console)
    except (KeyboardInterrupt, typer.Abort):
        return _fail(Interrupted("interrupted"), command, as_json=as_json, console=console)
    except (ReaderLeft, BrokenPipeError):
        # Whoever read our output has left; say nothing more, to nobody.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.BROKEN_PIPE
    except OSError as error:
        failure = InputError(
            f"{error.filename or 'input or output'}: {error.strerror or error}",
            hint="check path, permissions and space",
        )
        return _fail(failure, command, as_json=as_json, console=console)
    except Exception as error:  # noqa: BLE001  (the last door: a fault of ours)
        return _fault(error, command, as_json=as_json, console=console)


def _fail(error: VlmbatchError, command: str, *, as_json: bool, console: Console) -> int:
    if as_json:
        out_json(envelope(command, None, error))
    console.error(error)
    return error.exit_code


def _usage(error: typer.TyperException, command: str, *, as_json: bool, console: Console) -> int:
    """Tell a usage error in one or two lines; a call without arguments shows the help instead."""
    context = getattr(error, "ctx", None)
    if context is not None and type(error).__name__ == "NoArgsIsHelpError":
        sys.stdout.write(context.get_help() + "\n")
        return Exit.BAD_INPUT
    where = context.command_path if context else "vlmbatch"
    failure = InputError(error.format_message().rstrip("."), hint=f"{where} --help lists the options")
    return _fail(failure, command, as_json=as_json, console=console)


def _fault(error: Exception, command: str, *, as_json: bool, console: Console) -> int:
    """Tell a fault of ours without a traceback, unless it was asked for."""
    if os.environ.get("VLMBATCH_DEBUG"):
        console.line("".join(traceback.format_exception(error)))
    frame = traceback.extract_tb(error.__traceback__)[-1]
    console.plain_error(
        f"a fault of vlmbatch: {type(error).__name__}: {error} ({os.path.basename(frame.filename)}:{frame.lineno})",
        "please report it with the command that you gave; VLMBATCH_DEBUG=1 shows the traceback",
    )
    if as_json:
        told = VlmbatchError(f"{type(error).__name__}: {error}", hint="please report it")
        out_json(envelope(command, None, told))
    return Exit.FAULT
