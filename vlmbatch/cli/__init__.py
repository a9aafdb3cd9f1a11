"""The command line: one module per command, declarations and printing only.

``main`` is the console script; ``python -m vlmbatch`` behaves alike. Heavy modules are imported by the command that
needs them, when it runs.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
from typing import Annotated

import typer

from vlmbatch import __version__
from vlmbatch.cli.base import Command, Program, run_app
from vlmbatch.console import Console
from vlmbatch.errors import Exit, InputError

_CONTEXT = {"help_option_names": ["-h", "--help"]}
COMMANDS = {
    "build": "Freeze every request's exact bytes, images inlined.",
    "estimate": "Count tokens by formula; price the run from a sample.",
    "run": "Send the frozen requests and keep every answer.",
    "collect": "Join answers into one record per request.",
}
"""Each command with its line in the help; its module of the same name is loaded when it is called."""


def make_app(*, only: str | None = None) -> typer.Typer:
    """Return the application.

    Args:
        only: The one command that will be called: the others are known by name and line alone, since declaring
            four commands costs more than the help of all of them. None = all are declared whole.
    """
    app = typer.Typer(
        name="vlmbatch",
        cls=Program,
        help=_HELP,
        epilog=_EPILOG,
        no_args_is_help=True,
        context_settings=_CONTEXT,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    for name, line in COMMANDS.items():
        whole = only is None or name == only
        command = getattr(import_module(f"vlmbatch.cli.{name}"), name) if whole else _not_called
        app.command(name, cls=Command, short_help=line, context_settings=_CONTEXT)(command)
    return app


def _not_called() -> None:
    raise AssertionError("unreachable")


_HELP = """Send bulk vision-language requests from one folder that proves what was sent.

\b
  vlmbatch build images/ --out runs/r001 --model M --prompt "What is this?"
  vlmbatch estimate runs/r001
  vlmbatch run runs/r001 --rehearsal
  vlmbatch run runs/r001 --api-key-env OPENAI_API_KEY
  vlmbatch collect runs/r001 --write runs/r001/merged.jsonl
"""

_EPILOG = (
    "vlmbatch COMMAND --help shows its everyday options, --help-all every one.\n"
    "Exit status: 0 done, 1 a check failed, 2 bad input, 3 integrity, 4 refused by the provider."
)


def _show_version(value: bool) -> None:
    if value:
        sys.stdout.write(f"vlmbatch {__version__}\n")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main(argv: list[str] | None = None, *, prog_name: str = "vlmbatch") -> None:
    """Run the command line and leave with its exit status (docs/reference/exit-codes.md)."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  (lives as long as we do)
    if os.name != "posix":  # no flock, no SIGHUP, no poll
        Console().error(InputError("vlmbatch runs on Linux and macOS alone", hint="on Windows, use it in WSL"))
        sys.exit(Exit.BAD_INPUT)
    # Loading makes some hundred thousand objects that stay, and rows leave next to no cycles: looking for garbage at
    # every 700th object, as Python does unasked, is a tenth of the start and of each row.
    gc.set_threshold(20_000, 20, 20)
    words = sys.argv[1:] if argv is None else argv
    is_completion = "_VLMBATCH_COMPLETE" in os.environ
    if any(word in {"--show-completion", "--install-completion"} for word in words):
        prog_name = "vlmbatch"  # a shell completes a command's name, which "python -m vlmbatch" is not
    called = next((word for word in words if not word.startswith("-")), "")
    sys.exit(run_app(make_app(only=None if is_completion else called), words, prog_name))
