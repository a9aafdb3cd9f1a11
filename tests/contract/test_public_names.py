"""Names that others hold on to, statuses, codes, variables, files: each is on its page, and each page's names exist."""

from __future__ import annotations

import ast
import inspect
import re

import pytest

import vlmbatch
from tests.contract import pages, schemas
from tests.docs import commands
from vlmbatch import errors, providers, records, rundir
from vlmbatch.errors import Exit
from vlmbatch.providers.failures import RETRYABLE
from vlmbatch.realtime.exchange import INTERRUPTED
from vlmbatch.transport.faults import WORDS

PACKAGE = pages.ROOT / "vlmbatch"
_PLACES = {"RUN_JSON", "MANIFEST", "REJECTED", "INPUTS", "SHARDS", "SHA256SUMS", "ESTIMATES", "RESULTS", "BATCHES"}
_PLACES |= {"PROGRESS", "MERGED", "SUMMARY", "REPORT", "REVIEWS", "SEALED", "REDACTED", "VERIFY", "LOCKS"}


def _first_cells(page: str) -> list[str]:
    """Return the code words that begin the rows of a page's tables, also where a cell has several."""
    rows = re.findall(r"^\| ([^|]*) \|", pages.text(page), re.MULTILINE)
    return [word for row in rows for word in re.findall(r"`([^`]+)`", row)]


# --- statuses, notes, errors -----------------------------------------------------------------------------------------


def test_each_status_has_its_row() -> None:
    """The nine statuses head the first table, and nothing else does."""
    table = pages.text("docs/reference/statuses.md").partition("## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == [status.value for status in records.Status]


def _notes() -> set[str]:
    """Return the codes that are noted of answers: what is appended to a list called notes, or stands in one."""
    found: set[str] = set()
    for path in [PACKAGE / "classify.py", *sorted((PACKAGE / "providers").glob("*.py"))]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "notes.append":
                found |= _texts(*node.args)
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "notes":
                found |= _texts(node.value)
    return found


def _texts(*nodes: ast.expr) -> set[str]:
    constants = [one.value for node in nodes for one in ast.walk(node) if isinstance(one, ast.Constant)]
    return {value for value in constants if isinstance(value, str)}


def test_each_note_has_its_row() -> None:
    """The codes that are noted where answers are read, by the adapters and by the rules, are those of the page."""
    section = pages.text("docs/reference/statuses.md").partition("## Notes")[2].partition("## ")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == sorted(_notes())


def test_each_network_code_and_error_type_is_told() -> None:
    """Our own codes for what went wrong on the network, and the types of errors, stand on the page."""
    page = pages.text("docs/reference/statuses.md")
    assert [code for code in (*WORDS, INTERRUPTED) if f"`{code}`" not in page] == []
    assert [kind for kind in records.ErrorType if f"`{kind}`" not in page] == []


@pytest.mark.parametrize("page", ["docs/reference/statuses.md", "docs/how-to/collect.md", "docs/how-to/resume.md"])
def test_pages_name_the_statuses_that_may_pass(page: str) -> None:
    """Where a page lists the HTTP statuses that are worth another try, the list is the program's."""
    lists = re.findall(r"((?:\d{3}, )+)5xx", pages.text(page))
    assert lists
    assert {tuple(map(int, one.strip(", ").split(", "))) for one in lists} == {tuple(sorted(RETRYABLE))}


# --- exit statuses, codes of --json, environment ---------------------------------------------------------------------


def test_each_exit_status_has_its_row() -> None:
    """The table of exit statuses is the program's own list."""
    rows = re.findall(r"^\| (\d+) \|", pages.text("docs/reference/exit-codes.md"), re.MULTILINE)
    assert [int(row) for row in rows] == sorted(Exit)


def test_each_error_class_has_its_code_and_status() -> None:
    """The first code of a failed --json call, with its exit status, for every kind of error that there is."""
    page = pages.text("docs/reference/json-output.md")
    told = {code: int(status) for code, status in re.findall(r"^\| `(\w+)` \| (\d+) \|", page, re.MULTILINE)}
    kinds = [one for _, one in inspect.getmembers(errors, inspect.isclass) if issubclass(one, errors.VlmbatchError)]
    assert told == {kind.code: int(kind.exit_code) for kind in kinds}


def test_each_environment_variable_is_told() -> None:
    """Variables of our own, those of options, and the providers' keys stand on the page."""
    source = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    own = set(re.findall(r"(?<![_A-Z])VLMBATCH_[A-Z_]+", source))
    of_options = {option.envvar for name in commands.NAMES for option in commands.options(name) if option.envvar}
    keys = {key for name in providers.names() for key in providers.get(name).default_key_envs()}
    page = pages.text("docs/reference/environment.md")
    assert sorted(name for name in own | of_options | keys if f"`{name}`" not in page) == []


# --- files, schemas, commands, providers -----------------------------------------------------------------------------


def test_each_file_of_a_run_is_told() -> None:
    """Every name that the program gives to a place in the run folder stands in the first table."""
    names = [getattr(rundir, constant).strip("/") for constant in sorted(_PLACES)]
    told = " ".join(_first_cells("docs/reference/files.md"))
    assert [name for name in names if name not in told] == []


def test_history_of_the_formats_names_every_schema() -> None:
    """The history knows each schema in its present version."""
    page = pages.text("docs/explanation/format-history.md")
    ids = [schemas.load(name)["$id"] for name in schemas.NAMES]
    assert [one for one in ids if f"{one.split(':')[2]}/{one.split(':')[3]}" not in page] == []


def test_each_provider_has_its_row() -> None:
    """The names that --provider takes are those of the page."""
    told = re.findall(r"^\| `(\w+)` \|", pages.text("docs/reference/providers.md"), re.MULTILINE)
    assert sorted(told) == sorted(providers.names())


# --- Python ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in vlmbatch.__all__ if not name.startswith("_")])
def test_public_name_is_there_described_and_documented(name: str) -> None:
    """What ``from vlmbatch import`` gives has a docstring of its own and stands on the API's page."""
    value = getattr(vlmbatch, name)
    assert inspect.getdoc(value)
    assert f"`{name}" in pages.text("docs/reference/python-api.md")
