"""The house's shape: who may import whom, and what must not be loaded before it is needed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "vlmbatch"

FLOORS = [
    {"errors", "records", "jsonl", "replacing", "interrupt"},
    {"images", "inputs", "tokens", "classify", "retry", "pace", "progress", "prices", "stop", "keys", "descriptors"},
    {"providers", "rundir"},
    {"journal"},
    {"freeze", "transport", "attempts"},
    {"resume", "realtime", "batch", "rehearsal", "serve"},
    {"stages"},
    {"console"},
    {"slurm"},
    {"api"},
    {"cli", "inference_runner"},
]
"""A room imports from floors below its own; a family (a folder) may use its own rooms, without circles."""

ONLY_IN = {
    "httpx": {"transport"},
    "httptools": {"transport"},
    "aiohttp": {"rehearsal"},
    "PIL": {"images", "rehearsal"},
    "typer": {"cli"},
    "rich": {"console"},
    "pyarrow": {"inputs", "stages"},
}


def _modules() -> dict[str, Path]:
    names = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        relative = path.relative_to(PACKAGE.parent).with_suffix("")
        if "data" in relative.parts:
            continue
        parts = relative.parts[:-1] if relative.name == "__init__" else relative.parts
        names[".".join(parts)] = path
    return names


def _imports(name: str, path: Path) -> set[str]:
    """Return what a module imports, inside functions too; TYPE_CHECKING blocks load nothing and are let be."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    guarded = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in guarded:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def _room(module: str) -> str:
    """Return the room or family of one of our modules: ``vlmbatch.stages.build`` → ``stages``."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def _floor(room: str) -> int:
    for number, rooms in enumerate(FLOORS):
        if room in rooms:
            return number
    raise AssertionError(f"{room} stands on no floor: give it one in FLOORS")


def test_imports_go_down_never_up_or_sideways() -> None:
    """Every import of ours leads to a floor below, or stays in its own family."""
    wrong = []
    modules = _modules()
    for name, path in modules.items():
        room = _room(name)
        if room in {"", "__main__"}:
            continue
        for target in _imports(name, path):
            if not target.startswith("vlmbatch."):
                continue
            other = _room(target)
            if f"vlmbatch.{other}" not in modules or other == room:
                continue
            if _floor(other) >= _floor(room) > 0:
                wrong.append(f"{name} → {target}")
    assert wrong == []


def test_heavy_libraries_are_imported_in_their_rooms_alone() -> None:
    """The libraries that cost or that matter are imported where they belong and nowhere else."""
    wrong = [
        f"{name} imports {target}"
        for name, path in _modules().items()
        for target in _imports(name, path)
        for library, rooms in ONLY_IN.items()
        if target.split(".")[0] == library and _room(name) not in rooms
    ]
    assert wrong == []


def test_families_have_no_circles() -> None:
    """Inside a family too, no two modules import each other in a loop."""
    modules = _modules()
    graph = {
        name: {t for t in _imports(name, path) if t in modules and t != name} - {".".join(name.split(".")[:-1])}
        for name, path in modules.items()
    }
    state: dict[str, int] = {}

    def visit(node: str, trail: tuple[str, ...]) -> None:
        assert state.get(node) != 1, " → ".join((*trail, node))
        if node in state:
            return
        state[node] = 1
        for other in graph[node]:
            visit(other, (*trail, node))
        state[node] = 2

    for name in graph:
        visit(name, ())


def _loaded(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sorted(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("code", "forbidden"),
    [
        ("import vlmbatch.stages.collect", {"httpx", "aiohttp", "PIL", "typer", "rich", "pyarrow", "jinja2", "yaml"}),
        ("import vlmbatch", {"httpx", "aiohttp", "PIL", "typer", "rich", "pyarrow"}),
        (
            "from vlmbatch.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass",
            {
                "httpx",
                "aiohttp",
                "PIL",
                "rich",
                "pyarrow",
                "jinja2",
                "yaml",
                "jmespath",
                "asyncio",
                "vlmbatch.stages.run",
            },
        ),
    ],
    ids=["collect", "package", "help"],
)
def test_import_leaves_heavy_modules_unloaded(code: str, forbidden: set[str]) -> None:
    """A reviewer's command and the help load nothing that they do not use."""
    assert _loaded(code) & forbidden == set()


def test_provider_names_stand_in_providers_alone() -> None:
    """Elsewhere no text is a provider's name or a list of them; the rehearsal plays them, the door has its own."""
    from vlmbatch import providers

    names = set(providers.names())
    wrong = []
    for name, path in _modules().items():
        if _room(name) in {"providers", "rehearsal", "inference_runner"}:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                said = names & set(re.findall(r"[\w-]+", node.value))
                if node.value in names or len(said) > 1:
                    wrong.append(f"{name}:{node.lineno} {node.value}")
    assert wrong == []
