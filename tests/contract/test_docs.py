"""The pages tell the truth: links lead somewhere, generated parts are current, flags exist, commands run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.cli.doors import call
from tests.contract import pages
from tests.docs import commands, generate
from tests.pictures import png
from tests.unit.test_floors import FLOORS
from vlmbatch.rehearsal.faults import parse_faults
from vlmbatch.rehearsal.server import serve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROSE = [pytest.param(page, id=pages.name(page)) for page in pages.PAGES]
HOW_TO = [page for page in pages.PAGES if page.parent.name == "how-to" and pages.blocks(page)]
FOREIGN = {
    "docs/contributing.md": {"--fix"},
    "docs/how-to/cluster.md": {
        "--array",
        "--enable-prompt-tokens-details",
        "--gpus-per-node",
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
_SHIM = """#!/bin/sh
case " $* " in
  *" --rehearsal "* | *" --base-url "* | *" --pending "*) ;;
  " run "*) set -- "$@" --base-url "$PROVIDER" ;;
esac
exec "{python}" -m vlmbatch "$@"
"""
"""``vlmbatch`` as the blocks call it; what would go to a provider goes to a rehearsal's server on this machine."""


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
    told = re.findall(r"^\| (\d) [^|]* \| ([^|]*) \|", pages.text("docs/explanation/architecture.md"), re.MULTILINE)
    rooms = {int(floor): set(re.findall(r"`(\w+)`", names)) for floor, names in told}
    package = pages.ROOT / "vlmbatch"
    there = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert rooms == {floor: names & there for floor, names in enumerate(FLOORS)}


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


# --- commands on the pages -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def provider() -> Iterator[str]:
    """Yield the URL of a provider that answers all."""
    with serve(parse_faults({"batch": {"looks": 1}})) as server:
        yield server.base_url


class Shell:
    """Runs shell blocks in a folder, with ``vlmbatch`` and ``python`` on the path and nothing to reach but loopback."""

    def __init__(self, place: Path, provider: str) -> None:
        self.place = place / "work"
        self.place.mkdir()
        self._provider = provider
        programs = place / "bin"
        programs.mkdir()
        (programs / "vlmbatch").write_text(_SHIM.format(python=sys.executable))
        for name in ("python", "python3"):
            (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        for program in programs.iterdir():
            program.chmod(0o755)
        self._env = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(pages.ROOT),
            "HOME": str(place),
            "NO_COLOR": "1",
            "PROVIDER": provider,
            "OPENAI_API_KEY": "sk-test-0123456789abcdef",
            "HTTPS_PROXY": "http://127.0.0.1:9",
        }

    def run(self, block: pages.Block) -> str:
        """Run one block; fail where a command of it does. Return what it printed."""
        code = re.sub(r"http://(127\.0\.0\.1|localhost):8000", self._provider, block.code)
        done = subprocess.run(
            ["sh", "-e", "-c", code],
            check=False,
            cwd=self.place / block.folder,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, f"{block.code}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr


@pytest.fixture
def shell(tmp_path: Path, provider: str) -> Shell:
    """Return a shell in an empty folder."""
    return Shell(tmp_path, provider)


def _furnish(shell: Shell, blocks: list[pages.Block]) -> None:
    """Put into the folder what the how-to pages take for granted: images, a table, a prompt, and runs with answers."""
    place = shell.place
    (place / "images").mkdir()
    rows = []
    for number in range(6):
        (place / "images" / f"{number}.png").write_bytes(png(300 + 40 * number, 200))
        row = {"image_path": f"images/{number}.png", "question_string": f"What is {number}?", "triplet_id": number}
        rows.append(json.dumps({**row, "condition": "plain"}) + "\n")
    for name in ("table.jsonl", "rows.jsonl"):
        (place / name).write_text("".join(rows))
    (place / "prompt.txt").write_text("What does this picture show?\n")
    (place / "faults.json").write_text('{"rates": {"http_429": 0.2}, "retry_after_s": 0.01}')
    run, code = "runs/r001", "".join(block.code for block in blocks)
    if f"--out {run} " not in code:
        shell.run(pages.Block(".", f"vlmbatch build images --out {run} --model gpt-5.4-mini --prompt-file prompt.txt"))
        if f"vlmbatch run {run}" not in code:
            shell.run(pages.Block(".", f"vlmbatch run {run}"))
        for name in ("teacher-a", "teacher-b", "teacher-c"):
            shutil.copytree(place / run, place / "runs" / name)


@pytest.mark.parametrize("page", HOW_TO, ids=pages.name)
def test_marked_blocks_of_how_to_pages_run(page: Path, shell: Shell) -> None:
    """Every block of a page that is marked ``<!-- run -->`` runs, one after the other, in one folder."""
    blocks = pages.blocks(page)
    _furnish(shell, blocks)
    for block in blocks:
        shell.run(block)


def test_tutorial_ends_with_a_checked_archive(shell: Shell) -> None:
    """What the tutorial promises is there at its end: twelve ok records, a report, a seal that holds."""
    page = pages.ROOT / "docs" / "tutorial" / "first-run.md"
    said = [shell.run(block) for block in pages.blocks(page)]
    run = shell.place / "runs" / "first"
    records = [json.loads(line) for line in (run / "merged.jsonl").read_text().splitlines()]
    assert [record["status"] for record in records] == ["ok"] * 12
    assert (run / "report.html").exists()
    assert "SEALED.sha256" in said[-1]
    assert "FAIL" not in said[-1]


def test_readme_command_runs_from_install_on(shell: Shell) -> None:
    """The first command of the README, without its installation, ends with records."""
    whole = pages.marked("README.md", "try-command")
    install, _, rest = whole.partition('export PATH="$PWD/.venv/bin:$PATH" && ')
    assert "pip install" in install
    shell.run(pages.Block(".", rest))
    assert len((shell.place / "runs" / "first" / "merged.jsonl").read_text().splitlines()) == 12


def test_readme_steps_run_in_order(shell: Shell) -> None:
    """The README's four steps are commands that follow one another."""
    (steps,) = re.findall(r"## The four steps\n\n```sh\n(.*?)```", pages.text("README.md"), re.DOTALL)
    block = pages.Block(".", steps)
    _furnish(shell, [block])
    shell.run(block)
    summary = json.loads((shell.place / "runs" / "r001" / "summary.json").read_text())
    assert summary["counts"]["ok"] == summary["requests"] == 6
    assert summary["cost"]["total_usd"] is not None


def test_readme_and_contributing_name_the_same_check() -> None:
    """What CI runs is the README's command, and contributors are told the same."""
    command = pages.marked("README.md", "test-command").strip()
    assert command in pages.text("docs/contributing.md")
    assert "tests/check.py" in command
