"""Every command on the pages is run, and every file on them is read by what reads it."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.contract import inline, pages
from tests.contract.furnished import CLUSTER, DATA, QUEUED_ROWS, furnish, make_kit
from tests.contract.inline import Filled
from tests.contract.shell import Shell
from tests.docs import commands
from tests.slurm.finding import cluster
from tests.waiting import wait_until
from vlmbatch.rehearsal.faults import parse_faults
from vlmbatch.rehearsal.server import serve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["cluster"]  # the fixture

NOT_RUN = {
    pages.marked("README.md", "test-command").strip(): "it runs this test too; CI runs it, word for word (.ci/run)",
    'eval "$(bash tests/slurm/cluster.sh up)"': "it starts daemons as root; CI runs it, word for word (.ci/run)",
    "REAL_MODEL=… REAL_SERVE='… {model} … {port}' REAL_RUN_BATCH='… {input} … {output}' python -m pytest -n0 -m real "
    "tests/real": "it needs a real model server",
}
"""Commands that no test can run, and why."""

FILLED = {
    "bagit.py --validate DIR": Filled({"DIR": "runs/r001-bag"}),
    "grep CUSTOM_ID": Filled({"CUSTOM_ID": "salt runs/r001-public.openings.jsonl"}),
    "python -m tests.bench.bench_build": Filled(more="--count 4 --rounds 1"),
    "python -m tests.docs.generate": Filled(),
    "python -m vlmbatch.rehearsal.samples DIR": Filled({"DIR": "drawn"}),
    "python3 verify.py --images DIR": Filled({"DIR": "../../images"}, "runs/r001-public"),
    "python3 verify.py --lines FILE": Filled({"FILE": "../r001/shards/00000.jsonl"}, "runs/r001-public"),
    "python3 verify.py --openings FILE": Filled({"FILE": "../r001-public.openings.jsonl"}, "runs/r001-public"),
    "sha256sum -c SHA256SUMS": Filled(place="runs/r001"),
    "sha256sum -c ORIGINALS.sha256": Filled({"ORIGINALS": "../r001-public/ORIGINALS"}, "runs/r001"),
    "vlmbatch COMMAND --help": Filled({"COMMAND": "run"}),
    "vlmbatch collect RUN --rows answers.jsonl": Filled({"RUN": "runs/r001", "answers": "r001"}),
    "vlmbatch run RUN --channel batch --rehearsal": Filled({"RUN": "runs/try"}),
    "vlmbatch run RUN --rehearsal --faults FILE": Filled({"RUN": "runs/r001", "FILE": "faults.json"}),
}
"""Commands in prose that leave a value to the reader, with values."""

ALONE = {"docs/how-to/cluster.md", "docs/reference/cli.md"}
"""Pages whose blocks, and in the reference whose lines, stand each for itself; elsewhere one follows the other."""

LANGUAGES = {"sh", "python", "yaml", "json", "toml", "text"}
NEEDED = ("jq", "sha256sum")
"""Programs of others that pages call; CI has them all."""

_SBATCH_NAMES = {"gpus": "gpus-per-node", "time_limit": "time"}
"""Options of sbatch that have another name than ours."""


def _ids(found: list[Path]) -> list[object]:
    return [pytest.param(page, id=pages.name(page)) for page in found]


# --- what is there -------------------------------------------------------------------------------------------


def test_every_block_says_what_it_is() -> None:
    """Each fenced block is of a language that is run, read, or shown; what is read has a reader."""
    found = {pages.name(page): {block.language for block in pages.blocks(page)} for page in pages.PAGES}
    assert set().union(*found.values()) == LANGUAGES
    assert {page for page, languages in found.items() if languages & {"yaml", "json", "toml"}} == set(DATA)


def test_exceptions_are_on_the_pages() -> None:
    """What is not run, and what is run with values put in, stands on a page word for word."""
    blocks = {block.code.strip() for page in pages.PAGES for block in pages.blocks(page)}
    spans = {span for page in pages.PAGES for span in pages.spans(page)}
    assert sorted({*NOT_RUN, *FILLED} - blocks - spans) == []


def test_ci_runs_what_no_test_can() -> None:
    """The test command and the start of SLURM are CI's own, word for word."""
    script = pages.text(".ci/run")
    (find,) = re.findall(r"^command=\$\((.*)\)$", script, re.MULTILINE)
    found = subprocess.run(["sh", "-c", find], cwd=pages.ROOT, capture_output=True, text=True, check=True).stdout
    test_command, cluster_up, _ = NOT_RUN
    assert found.strip() == test_command
    assert cluster_up in script


@pytest.mark.parametrize("page", _ids(pages.PAGES))
def test_commands_in_prose_are_understood(page: Path) -> None:
    """Each option is one of the command it stands with, each value fits; ``python -m`` names a module there is."""
    assert inline.faults(page) == []
    modules = [module for span in pages.spans(page) if (module := inline.module(span))]
    assert [module for module in modules if importlib.util.find_spec(module) is None] == []


def test_overview_shows_all_commands() -> None:
    """The reference begins with the commands there are."""
    shown = pages.blocks("docs/reference/cli.md")[0]
    assert shown.language == "text"
    assert tuple(re.findall(r"^vlmbatch (\w+)", shown.code, re.MULTILINE)) == commands.NAMES


def test_servers_are_started_as_their_page_says() -> None:
    """references/servers.md has the very command lines that --serve auto makes."""
    assert set(inline.server_commands()) <= set(pages.spans(pages.ROOT / "references" / "servers.md"))


# --- a reader at work ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def providers() -> Iterator[tuple[str, str]]:
    """Yield the URLs of two providers that answer all."""
    faults = parse_faults({"batch": {"looks": 1}})
    with serve(faults) as first, serve(faults) as second:
        yield first.base_url, second.base_url


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory, providers: tuple[str, str]) -> Path:
    """Return a folder of what pages take for granted."""
    place = tmp_path_factory.mktemp("kit")
    make_kit(place, providers[0])
    return place


class Reader:
    """Sits down before a page with a terminal in a folder that has what the page takes for granted."""

    def __init__(self, page: Path, home: Path, kit: Path, providers: tuple[str, str], *, slurm: bool = False) -> None:
        self.page = pages.name(page)
        self._home, self._kit, self._providers, self._slurm = home, kit, providers, slurm

    def terminals(self) -> list[list[pages.Block]]:
        """Return the commands of the page's blocks, those of one terminal together; the last is the prose's, too."""
        runnable = [block for block in pages.blocks(self.page) if block.language in {"sh", "python"}]
        blocks = [block for block in runnable if block.code.strip() not in NOT_RUN]
        if self.page not in ALONE:
            return [blocks]
        if self.page.startswith("docs/reference/"):
            blocks = [pages.Block(block.language, line) for block in blocks for line in block.code.splitlines()]
        return [*([block] for block in blocks), []]

    def open(self, blocks: list[pages.Block]) -> Shell:
        """Return a terminal for some blocks of the page."""
        code = "\n".join(block.code for block in blocks)
        for program in NEEDED:
            if re.search(rf"\b{program}\b", code) and shutil.which(program) is None:
                pytest.skip(f"no {program} here")
        home = self._home / str(len(list(self._home.iterdir())))
        home.mkdir()
        shell = Shell(home, self._providers, installed="-m venv" not in code, slurm=self._slurm)
        furnish(shell.place, self._kit, self.page, blocks)
        return shell


@pytest.mark.parametrize("page", _ids([one for one in pages.PAGES if pages.blocks(one) or inline.whole(one)]))
def test_commands_of_a_page_run(page: Path, tmp_path: Path, kit: Path, providers: tuple[str, str]) -> None:
    """Every block runs, in order, then every command that stands in the prose; and the page keeps its promises."""
    reader = Reader(page, tmp_path, kit, providers)
    *others, last = reader.terminals()
    for blocks in others:
        _run(reader.open(blocks), blocks)
    shell = reader.open(last)
    said = _run(shell, last)
    if command := DATA.get(reader.page, ("", ""))[1]:
        shell.prompt(command)
    for span in inline.whole(page):
        if span not in NOT_RUN:
            shell.prompt(FILLED.get(span, Filled()).command(span))
    _ENDS.get(reader.page, lambda _, __: None)(shell.place, said)


def _run(shell: Shell, blocks: list[pages.Block]) -> list[str]:
    said = [shell.run(block) for block in blocks]
    for block in blocks:
        if "--slurm" in block.code:
            _check_queued(shell, block.code)
        elif "--serve" in block.code:
            _check_answered(shell, block.code)
    return said


def _readme_ends(place: Path, said: list[str]) -> None:
    assert len((place / "runs" / "first" / "merged.jsonl").read_text().splitlines()) == 12
    summary = json.loads((place / "runs" / "r001" / "summary.json").read_text())
    assert summary["counts"]["ok"] == summary["requests"] == 6
    assert summary["cost"]["total_usd"] is not None


def _tutorial_ends(place: Path, said: list[str]) -> None:
    run = place / "runs" / "tutorial"
    records = [json.loads(line) for line in (run / "merged.jsonl").read_text().splitlines()]
    assert [record["status"] for record in records] == ["ok"] * 12
    assert (run / "report.html").exists()
    assert "SEALED.sha256" in said[-1]
    assert "FAIL" not in said[-1]


def _python_ends(place: Path, said: list[str]) -> None:
    assert "12 requests" in said[0]
    assert "12 had an answer already" in said[3]
    attempts = {line for file in place.glob("**/results/*.jsonl") for line in file.read_text().splitlines()}
    assert len(attempts) == 12 + 12 + 2, "rows are asked once, whoever asks again"


_ENDS = {
    "README.md": _readme_ends,
    "docs/tutorial/first-run.md": _tutorial_ends,
    "docs/how-to/python.md": _python_ends,
}
"""What a page promises that there is at its end."""


# --- clusters ------------------------------------------------------------------------------------------------


def _check_queued(shell: Shell, code: str) -> None:
    """Check what reached the stand-in for sbatch: all settings of the block, or of the pipeline file."""
    (line,) = [line for line in code.replace("\\\n", " ").splitlines() if "--slurm" in line]
    words = shlex.split(line)
    tasks = words[words.index("--slurm") + 1]
    asked = dict(pairwise(words))
    said = yaml.safe_load(CLUSTER)["execution_params"] if tasks == "auto" else {}
    for name in ("partition", "account", "time", "gpus", "cpus-per-task", "job-name"):
        if f"--{name}" in asked:
            said[name] = asked[f"--{name}"]
    wanted = {_SBATCH_NAMES.get(name, name.replace("_", "-")): str(value) for name, value in said.items()}
    is_merged = wanted.pop("merge", "--merge" in words)
    array, *behind = [json.loads(call) for call in shell.calls.read_text().splitlines()]
    assert {**array, **wanted} == array
    assert array["array"] == f"0-{QUEUED_ROWS - 1}%{QUEUED_ROWS}"
    assert [job["dependency"] for job in behind] == (["afterany:1"] if is_merged else [])


def _run_of(code: str) -> str:
    (run,) = {*re.findall(r"vlmbatch run (\S+)", code)}
    return str(run)


def _is_done(shell: Shell, code: str, jobs: list[str]) -> bool:
    if jobs:
        return not shell.sh(f"squeue --noheader --jobs={jobs[0]}")
    return (shell.place / _run_of(code) / "merged.jsonl").exists()


def _check_answered(shell: Shell, code: str) -> None:
    shell.sh(f"vlmbatch collect {_run_of(code)} --require 'ok>=100%'")


_CLUSTER_PAGE = pages.ROOT / "docs" / "how-to" / "cluster.md"


def test_cluster_page_on_a_real_slurm(cluster: None, tmp_path: Path, kit: Path, providers: tuple[str, str]) -> None:
    """What the page queues is sent by its tasks, with servers of their own, and merged."""
    reader = Reader(_CLUSTER_PAGE, tmp_path, kit, providers, slurm=True)
    for blocks in reader.terminals():
        code = "".join(block.code for block in blocks)
        if "--slurm" in code or "#SBATCH" in code:
            shell = reader.open(blocks)
            jobs = re.findall(r"Submitted batch job (\d+)", shell.run(blocks[0]))
            wait_until(lambda: _is_done(shell, code, jobs), "SLURM takes too long")  # noqa: B023  (called at once)
            _check_answered(shell, code)
