"""The help screens: one screen of everyday options, all of them by --help-all, on a terminal and through a pipe."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shlex
import subprocess
import sys
import termios
from importlib import import_module

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.doors import call
from tests.docs import commands
from vlmbatch import providers
from vlmbatch.cli import help as screens
from vlmbatch.cli import make_app
from vlmbatch.cli.page import shell_lines
from vlmbatch.images import ImagePolicy
from vlmbatch.inputs.base import DEFAULT_IMAGE_FIELD
from vlmbatch.stages.building.plan import DEFAULT_MAX_TOKENS

SCREENS = [(name, "--help") for name in commands.NAMES] + [("--help",)]
ALL = [(name, "--help-all") for name in commands.NAMES]
COLUMNS = [50, 60, 80, 100, 200]
LINES = 40
"""A screen: what a window half as high as a laptop's display shows; the 24 of old terminals hold no such command."""
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_FLAG = re.compile(r"--[a-z][a-z-]*[a-z]")


def _piped(*words: str, columns: int = 80) -> str:
    """Return what a command prints into a pipe."""
    done = call(*words, env={"COLUMNS": str(columns)})
    assert (done.status, done.err) == (0, "")
    return done.out


def _on_terminal(*words: str, columns: int = 80, **environ: str) -> str:
    """Return what a command prints on a terminal of one screen, escape sequences included."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (LINES, columns))
    inherited = {k: v for k, v in os.environ.items() if k not in {"NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"}}
    env = inherited | {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"} | environ
    with subprocess.Popen([sys.executable, "-m", "vlmbatch", *words], stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        printed = b""
        with contextlib.suppress(OSError):  # how Linux tells that the other end is closed
            while block := os.read(ours, 65536):
                printed += block
    os.close(ours)
    assert process.returncode == 0, printed
    return printed.decode().replace("\r\n", "\n")


def _bare(text: str) -> str:
    """Return the words of a screen: no colours, no frame, one space between any two."""
    return " ".join(re.sub(r"[╭╮╰╯├┤│─]", " ", _ESCAPE.sub("", text)).split())


def _examples(text: str) -> list[str]:
    """Return the examples of a screen as a shell reads them."""
    block = re.split(r"\n\n|\n╭", text.split("Examples:\n")[1])[0]
    return [" ".join(example.split()) for example in block.replace("\\\n", " ").splitlines()]


# --- one screen ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", SCREENS)
def test_help_through_a_pipe_fits_a_screen(words: tuple[str, ...]) -> None:
    """At 80 columns it is no more than one screen, and plain."""
    lines = _piped(*words).splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize("words", SCREENS)
def test_help_on_a_terminal_fits_a_screen_with_the_prompt(words: tuple[str, ...]) -> None:
    """At 80 columns nothing has scrolled away when the prompt is back; groups are framed."""
    lines = _ESCAPE.sub("", _on_terminal(*words)).splitlines()
    assert len(lines) < LINES
    assert max(map(len, lines)) <= 80
    framed = [line for line in lines if line[0:1] in set("╭├│╰")]
    assert len(framed) > 10
    assert {len(line) for line in framed} == {80}


@pytest.mark.parametrize("name", commands.NAMES)
def test_everyday_option_has_one_line_with_its_first_sentence(name: str) -> None:
    """What a command calls everyday is declared by that name, and told on a line of its own."""
    told = {tuple(line.split("  ", 1)) for line in map(str.strip, _piped(name, "--help").splitlines()) if "  " in line}
    by_name = {screens.short_label(option).split(", ")[-1].split()[0]: option for option in commands.options(name)}
    for flag in import_module(f"vlmbatch.cli.{name}").EVERYDAY:
        option = by_name[flag]
        (words,) = [said.strip() for label, said in told if label == screens.short_label(option)]
        assert words.startswith(option.help.split(". ")[0].removesuffix(".") + "."), flag


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("name", commands.NAMES)
def test_help_names_every_option_at_every_width(name: str, columns: int) -> None:
    """A reader finds each long option by looking or by grep; lines are as wide as the terminal, 100 at most."""
    text = _piped(name, "--help", columns=columns)
    declared = {flag for flag in commands.flags(name) if flag.startswith("--")}
    assert declared - set(_FLAG.findall(text)) == {"--help"}
    assert max(map(len, text.splitlines())) <= min(columns, 100)


@pytest.mark.parametrize("name", commands.NAMES)
def test_help_names_other_options_by_their_group(name: str) -> None:
    """Behind each group's title stand its options that are no everyday ones, and nothing else."""
    more = re.sub(r"\n    +", " ", _piped(name, "--help").split("all told by --help-all:\n")[1])
    said = {title.strip(): set(flags.split()) for title, flags in (line.split(": ") for line in more.splitlines())}
    everyday = set(import_module(f"vlmbatch.cli.{name}").EVERYDAY)
    others: dict[str, set[str]] = {}
    for option in commands.options(name):
        if left := {flag for flag in option.opts if flag.startswith("--")} - everyday - {"--help-all"}:
            others[option.rich_help_panel] = others.get(option.rich_help_panel, set()) | left
    assert said == others


@pytest.mark.parametrize("words", SCREENS + ALL)
def test_help_has_description_usage_and_examples_before_options(words: tuple[str, ...]) -> None:
    """First what it is for, then how it is called, then examples, then the groups."""
    text = _piped(*words)
    first_option = re.search(r"^  -", text, re.MULTILINE)
    assert first_option
    assert text.splitlines()[0].endswith(".")
    assert 0 < text.index("\n\nUsage: vlmbatch ") < text.index("\n\nExamples:\n") < first_option.start()


# --- all of it -------------------------------------------------------------------------------------------------------


def _all_told(name: str, text: str) -> None:
    """Check that a screen says all of every option, and the arguments."""
    bare = _bare(text)
    for option in commands.options(name):
        said = [screens.label(option), option.help]
        said += [f"default: {screens.default(option)}"] if screens.default(option) else []
        said += [f"env: {option.envvar}"] if option.envvar else []
        assert re.search(r".{0,3}".join(re.escape(" ".join(part.split())) for part in said), bare), option.opts
    for argument in screens.arguments(commands.command(name)):
        assert f"{argument.metavar} {argument.help}" in bare
    panels = {option.rich_help_panel for option in commands.options(name)} - {None}
    assert {panel for panel in panels if f" {panel}" not in bare} == set()


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("name", commands.NAMES)
def test_help_all_says_everything_of_every_option(name: str, columns: int) -> None:
    """Names, what it takes, the whole sentence, default and variable, at every width."""
    text = _piped(name, "--help-all", columns=columns)
    _all_told(name, text)
    assert max(map(len, text.splitlines())) <= min(columns, 100)


@pytest.mark.parametrize("columns", [60, 80])
def test_help_all_on_a_terminal_says_the_same(columns: int) -> None:
    """The frame cuts nothing, and no line is wider than the terminal."""
    text = _on_terminal("run", "--help-all", columns=columns)
    _all_told("run", text)
    assert max(map(len, _ESCAPE.sub("", text).splitlines())) == columns


@pytest.mark.parametrize("flag", ["--help", "-h", "--help-all"])
@pytest.mark.parametrize("name", commands.NAMES)
def test_help_needs_nothing_else(name: str, flag: str) -> None:
    """No RUN, no --out; and what else is on the line is not looked at."""
    assert call(name, flag).status == 0
    assert call(name, "no-such-folder", flag, "--json").out == call(name, flag).out


def test_help_of_the_program_tells_commands_and_exit_statuses() -> None:
    """Each command has its line; the statuses stand below."""
    bare = _bare(_piped("--help"))
    assert all(f" {name} " in bare for name in commands.NAMES)
    assert "Exit status: 0 done, 1 a check failed, 2 bad input, 3 integrity, 4 refused by the provider." in bare


@pytest.mark.parametrize(
    "environ", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {"PYTHONIOENCODING": "ascii"}], ids=lambda said: next(iter(said))
)
def test_help_on_a_terminal_without_colour_or_frames_is_plain(environ: dict[str, str]) -> None:
    """NO_COLOR, a dumb terminal, and one that has no such characters get what a pipe gets."""
    assert _on_terminal("estimate", "--help", **environ).isascii()
    assert "\x1b" not in _on_terminal("estimate", "--help", **environ)


# --- examples --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("words", SCREENS + ALL)
def test_example_on_the_screen_is_the_one_that_is_declared(words: tuple[str, ...], columns: int) -> None:
    """Broken by backslashes or not, what a shell makes of it is the same."""
    group = typer.main.get_command(make_app())
    command = commands.command(words[0]) if len(words) > 1 else group
    assert _examples(_piped(*words, columns=columns)) == screens.examples(command)


@pytest.mark.parametrize("words", SCREENS)
def test_example_is_understood_by_the_parser(words: tuple[str, ...]) -> None:
    """Every example names a command, with options and arguments that it takes."""
    for example in _examples(_ESCAPE.sub("", _on_terminal(*words))):
        program, name, *rest = shlex.split(example)
        assert program == "vlmbatch"
        context = commands.command(name).make_context(name, rest)
        assert len([value for value in context.params.values() if value]) > (len(rest) > 1)


_WORDS = st.lists(
    st.sampled_from(["-o", "--out", "--a-long-option", "runs/r001", "'a --b c'", '"x y"', "k='v w'", "{m}", "a=--b"]),
    min_size=1,
)


@given(words=_WORDS, width=st.integers(10, 60))
def test_shell_lines_are_the_same_command(words: list[str], width: int) -> None:
    """A shell reads the words that were there, and no line but one of a single option is too wide."""
    command = " ".join(["vlmbatch", *words])
    lines = shell_lines(command, width)
    assert shlex.split(" ".join(line.removesuffix(" \\") for line in lines)) == shlex.split(command)
    assert all(line.endswith(" \\") for line in lines[:-1])
    assert not lines[-1].endswith("\\")
    for line in lines:
        assert len(line) <= width or " -" not in line.strip().removesuffix(" \\").split("'")[0].split('"')[0]


# --- declarations, completion, cost ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", commands.NAMES)
def test_declaration_says_what_stands_behind_the_option(name: str) -> None:
    """A value has a name; words fit one line of 80, where zsh's completion would break them."""
    for option in commands.options(name):
        assert bool(option.metavar) != (option.is_flag or option.count), option.opts
        assert len(option.help) <= 80, option.opts


def test_default_in_words_is_the_one_that_holds() -> None:
    """Where a default is decided behind the command line, its words and the decision agree, and so do the names."""
    said = {option.name: screens.default(option) for option in commands.options("build")}
    assert said["provider"] == f"{providers.DEFAULT}, or {providers.LOCAL_DEFAULT} with --config"
    assert said["max_tokens"] == str(DEFAULT_MAX_TOKENS)
    assert said["image_field"] == DEFAULT_IMAGE_FIELD
    assert said["quality"] == str(ImagePolicy().quality)
    (option,) = [option for option in commands.options("build") if option.name == "provider"]
    assert set(option.help.removesuffix(".").split(", ")) == set(providers.names())


def _completed(words: str) -> list[str]:
    """Return what bash would offer for the last of some words."""
    env = {"_VLMBATCH_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    code = "from vlmbatch.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | env, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_completion_offers_both_helps() -> None:
    """--he is the beginning of two options."""
    assert set(_completed("vlmbatch build --he")) == {"--help", "--help-all"}


def test_completion_behind_help_all_shows_no_help() -> None:
    """A shell that asks what may follow gets options, not a screen."""
    assert _completed("vlmbatch run --help-all --slu") == ["--slurm"]


def test_command_that_runs_loads_no_help() -> None:
    """Only who asks for help pays for it."""
    code = "from vlmbatch.cli import main\ntry: main(['run', 'none'])\nexcept SystemExit: pass"
    code += "\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "vlmbatch.cli.run" in loaded
    assert loaded & {"vlmbatch.cli.help", "vlmbatch.cli.page", "rich"} == set()
