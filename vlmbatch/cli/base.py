"""What the four commands share: options, the JSON envelope, and how every ending becomes an exit status."""

from __future__ import annotations

import os
import sys
import traceback
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from vlmbatch import interrupt
from vlmbatch.console import Console, OutputLost, ReaderLeft, let_go, out, out_bytes, writing
from vlmbatch.errors import Exit, InputError, Interrupted, VlmbatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

OUTPUT = "Output"
"""Help panel of the options that every command has."""


def option(panel: str, words: str, *flags: str, values: Callable[[], Iterable[str]] | None = None, **more: Any) -> Any:
    """Return the declaration of an option.

    Args:
        panel: The group under which the help has it.
        words: What it does. The one-screen help shows the first sentence; in 80 columns all of it should fit on one
            line, for a shell that lists completions breaks it otherwise.
        flags: How it is written; empty = ``--`` and the parameter's name.
        values: What a shell offers behind it, asked when it does; None = the words of a ``metavar`` such as ``a|b``.
        more: Whatever else typer takes. ``metavar`` names what stands behind it, a ``show_default`` in words what
            holds without it.
    """
    listed = more.get("metavar", "").split("|")
    if values is not None or len(listed) > 1:
        more["autocompletion"] = lambda: list(values() if values else listed)  # typer drops what does not begin so
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

    def make_context(self, *args: Any, **more: Any) -> Any:
        """Read the command line; help is printed on the way."""
        with writing():
            return super().make_context(*args, **more)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words behind the command, and keep them as they were typed (in ``ctx.meta``)."""
        ctx.meta[_TYPED] = list(args)
        if not ctx.resilient_parsing and (not args or args == ["help"]):
            from vlmbatch.cli.usage import refuse_guess

            refuse_guess(self, ctx, args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Do what the command is for; from its end on, Ctrl-C has nothing left to put in order."""
        try:
            return super().invoke(ctx)
        finally:
            interrupt.is_over()

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of everyday options; --help-all has all of them."""
        from vlmbatch.cli.help import short

        formatter.write(short(ctx))


_TYPED = "vlmbatch.typed"


def typed(ctx: typer.Context) -> list[str]:
    """Return the words that were typed behind the command's name."""
    return list(ctx.meta[_TYPED])


def started(quiet: int, verbose: int) -> Console:
    """Return the console of a command whose modules are loaded: from here on, Ctrl-C is an exception to clean up at."""
    interrupt.raises()
    return Console(quiet, verbose)


class Program(TyperGroup):
    """All commands under one name."""

    def make_context(self, *args: Any, **more: Any) -> Any:
        """Read the command line up to the command; help and version are printed on the way."""
        with writing():
            return super().make_context(*args, **more)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the program."""
        from vlmbatch.cli.help import front

        formatter.write(front(ctx))


def finish(
    command: str,
    data: Any,
    *,
    as_json: bool,
    text: Callable[[], None],
    quiet: int = 0,
    failed: VlmbatchError | None = None,
) -> None:
    """End a command: print its result (JSON or text) and leave with the right status.

    Args:
        command: The command's name.
        data: The result as JSON.
        as_json: Whether --json was given.
        text: Prints the result for people.
        quiet: How often --quiet was given; twice = the result is not printed for people.
        failed: A check that does not hold, or rows that ended without an answer; the result is printed all the same.

    Raises:
        VlmbatchError: ``failed``, after the result was printed (main turns it into the exit status).
    """
    if as_json:
        out_json(envelope(command, data, failed))
    elif quiet < 2:
        text()
        with writing():
            sys.stdout.flush()  # what is said of it on stderr comes behind it, in a file for both too
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
    try:
        code = _run(app, argv, prog_name, console)
        with writing():
            sys.stdout.flush()
    except ReaderLeft:
        code = Exit.BROKEN_PIPE  # say no more, to nobody
    except OutputLost as error:
        console.plain_error(f"the output cannot be written: {error}", "make room, or send it elsewhere")
        code = Exit.BAD_INPUT
    let_go()
    return code


def _run(app: typer.Typer, argv: Sequence[str], prog_name: str, console: Console) -> int:
    command = next((word for word in argv if not word.startswith("-")), "")
    as_json = "--json" in argv
    try:
        code = app(args=list(argv), prog_name=prog_name, standalone_mode=False)
        if code == Exit.INTERRUPTED:  # typer makes a status of Ctrl-C, and says nothing
            return _fail(Interrupted("interrupted"), command, as_json=as_json, console=console)
        return code if isinstance(code, int) else Exit.DONE
    except Told as told:
        return told.error.exit_code
    except VlmbatchError as error:
        return _fail(error, command, as_json=as_json, console=console)
    except typer.TyperException as error:
        return _usage(error, argv, prog_name, as_json=as_json, console=console)
    except (KeyboardInterrupt, typer.Abort):
        return _fail(Interrupted("interrupted"), command, as_json=as_json, console=console)
    except (ReaderLeft, OutputLost):
        raise
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


def _usage(error: typer.TyperException, argv: Sequence[str], prog_name: str, *, as_json: bool, console: Console) -> int:
    """Tell a usage error in one or two lines; the program alone, without a command, shows its help instead."""
    from vlmbatch.cli import usage

    context = getattr(error, "ctx", None)
    if context is not None and type(error).__name__ == "NoArgsIsHelpError":
        out(context.get_help())
        return Exit.BAD_INPUT
    command = next((word for word in argv if not word.startswith("-")), "")
    return _fail(usage.told(error, argv, prog_name), command, as_json=as_json, console=console)


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
