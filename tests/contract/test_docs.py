"""The pages tell the truth: links lead somewhere, generated parts are current, flags exist."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING

import pytest

from tests.cli.doors import call
from tests.contract import pages
from tests.docs import commands, generate
from tests.unit.test_floors import FLOORS

if TYPE_CHECKING:
    from pathlib import Path

PROSE = [pytest.param(page, id=pages.name(page)) for page in pages.PAGES]
FOREIGN = {
    "docs/contributing.md": {"--fix"},
    "docs/how-to/cluster.md": {
        "--array",
        "--enable-prompt-tokens-details",
        "--gpus-per-node",
        "--host",
        "--tensor-parallel-size",
    },
    "docs/how-to/coming-from-an-inference-script.md": {"--input", "--output"},
    "docs/how-to/hand-over.md": {"--validate"},
    "docs/how-to/review.md": {"--arg"},
    "references/image-tokens.md": {"--enable-prompt-tokens-details"},
    "references/providers.md": {"--limit-mm-per-prompt"},
    "references/servers.md": {
        *("--chat-template", "--disable-custom-all-reduce", "--enable-prompt-tokens-details", "--host", "--model-path"),
        *("--port", "--tensor-parallel-size", "--tp-size", "--trust-remote-code"),
    },
}
"""Options of other programs that a page speaks of."""


# --- pages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PROSE)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    """Every link within the repository names a file that there is, and a heading that it has."""
    assert pages.broken_links(page) == []


def test_code_names_pages_that_there_are() -> None:
    """Where a message or a docstring sends the reader to a page, there is one."""
    wrong = []
    for path in (pages.ROOT / "vlmbatch").rglob("*"):
        if path.suffix in {".py", ".toml", ".json", ".html"}:
            named = re.findall(r"(?:docs|references)/[\w/-]+\.md", path.read_text(encoding="utf-8"))
            wrong += [f"{path.name}: {page}" for page in named if not (pages.ROOT / page).exists()]
    assert wrong == []


def test_every_page_is_in_the_index() -> None:
    """docs/README.md names each page of the four folders."""
    index = pages.ROOT / "docs" / "README.md"
    named = {(index.parent / link.partition("#")[0]).resolve() for link in pages.links(index)}
    docs = {page for page in pages.PAGES if page.parent.name in {"tutorial", "how-to", "reference", "explanation"}}
    assert sorted(map(pages.name, docs - named)) == []


@pytest.mark.parametrize("page", [p for p in pages.PAGES if generate.names(pages.text(p))], ids=pages.name)
def test_generated_parts_are_current(page: Path) -> None:
    """Reference pages say what schemas, flags and adapters say; ``python -m tests.docs.generate`` makes them anew."""
    assert generate.filled(pages.text(page)) == pages.text(page), "run: python -m tests.docs.generate"


def test_every_generated_part_stands_on_a_page() -> None:
    """Each command, each file and each command's output has its place in docs/reference."""
    placed = [name for page in generate.PAGES.glob("*.md") for name in generate.names(page.read_text(encoding="utf-8"))]
    assert sorted(placed) == sorted(generate.BLOCKS)


def test_map_of_the_house_is_the_house() -> None:
    """The architecture page has every room on the floor that the import rules give it."""
    told = re.findall(r"^\| (\d+) [^|]* \| ([^|]*) \|", pages.text("docs/explanation/architecture.md"), re.MULTILINE)
    rooms = {int(floor): set(re.findall(r"`(\w+)`", names)) for floor, names in told}
    package = pages.ROOT / "vlmbatch"
    there = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert rooms == {floor: names & there for floor, names in enumerate(FLOORS)}


def test_every_dependency_is_explained() -> None:
    """The page on dependencies has what users install, extras included, and nothing else."""
    project = tomllib.loads(pages.text("pyproject.toml"))["project"]
    extras = [name for extra, names in project["optional-dependencies"].items() if extra != "dev" for name in names]
    needed = {re.split(r"[>=<\[]", name)[0] for name in [*project["dependencies"], *extras]}
    told = re.findall(r"^\| ([\w-]+)(?: \([^|]*\))? \|", pages.text("docs/explanation/dependencies.md"), re.MULTILINE)
    assert set(told) - {"library", "---"} == needed


# --- flags ---------------------------------------------------------------------------------------------------


def _known_flags() -> set[str]:
    found = {"--version", "--install-completion", "--show-completion"}
    for name in commands.NAMES:
        found |= commands.flags(name)
    for module in ("vlmbatch.rehearsal", "vlmbatch.rehearsal.samples", "vlmbatch.inference_runner"):
        found |= _flags_of("-m", module)
    return found | _flags_of(str(pages.ROOT / "vlmbatch" / "data" / "verify.py"))


def _flags_of(*program: str) -> set[str]:
    shown = subprocess.run([sys.executable, *program, "--help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"--[a-z][a-z0-9-]*", shown))


def test_pages_speak_of_no_flag_that_there_is_not() -> None:
    """Each long option in the docs is one of ours, or is listed here as another program's."""
    known = _known_flags()
    wrong = {pages.name(p): sorted(pages.flags(p) - known - FOREIGN.get(pages.name(p), set())) for p in pages.PAGES}
    assert {page: flags for page, flags in wrong.items() if flags} == {}


@pytest.mark.parametrize("name", commands.NAMES)
def test_help_says_what_every_option_does(name: str) -> None:
    """No option of a command is without a sentence."""
    assert [option.name for option in commands.options(name) if not option.help] == []
    assert call(name, "--help").status == 0


def test_readme_and_contributing_name_the_same_check() -> None:
    """What CI runs is the README's command, and contributors are told the same."""
    command = pages.marked("README.md", "test-command").strip()
    assert command in pages.text("docs/contributing.md")
    assert "tests/check.py" in command
