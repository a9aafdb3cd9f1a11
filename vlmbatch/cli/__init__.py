"""The command line: one module per command, declarations and printing only.

``main`` is the console script; ``python -m vlmbatch`` behaves alike. Heavy modules are imported by the command that
needs them, when it runs.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from vlmbatch import __version__
from vlmbatch.cli import build, collect, estimate, run
from vlmbatch.cli.base import run_app
from vlmbatch.console import has_colour, is_terminal

_CONTEXT = {"help_option_names": ["-h", "--help"]}
_COMMANDS = {"build": build.build, "estimate": estimate.estimate, "run": run.run, "collect": collect.collect}


def make_app(*, is_rich: bool) -> typer.Typer:
    """Return the application; rich help is for a terminal, plain help for pipes, programs and CI."""
    app = typer.Typer(
        name="vlmbatch",
        help=_HELP,
        epilog="Exit status: 0 done, 1 a check failed, 2 bad input, 3 integrity, 4 refused by the provider.",
        no_args_is_help=True,
        context_settings=_CONTEXT,
        rich_markup_mode="rich" if is_rich else None,
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    for name, command in _COMMANDS.items():
        app.command(name, context_settings=_CONTEXT, no_args_is_help=True)(command)
    return app


_HELP = """Send bulk vision-language requests from one folder that proves what was sent.

\b
  vlmbatch build images/ --out runs/r001 --model M --prompt "What is this?"
  vlmbatch estimate runs/r001
  vlmbatch run runs/r001 --api-key-env OPENAI_API_KEY
  vlmbatch collect runs/r001 --write runs/r001/merged.jsonl
"""


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
    is_rich = is_terminal(sys.stdout) and has_colour(sys.stdout)
    sys.exit(run_app(make_app(is_rich=is_rich), sys.argv[1:] if argv is None else argv, prog_name))
