"""Everything that must hold before a change lands: lint, format, types, tests, and a wheel that runs on its own.

``python tests/check.py`` runs all of it; names on the command line (``lint``, ``types``, ``tests``, ``wheel``) choose.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON = sys.executable


def _run(*command: str, cwd: Path = ROOT) -> None:
    print("+", *command, flush=True)  # noqa: T201
    subprocess.run(command, cwd=cwd, check=True)


def lint() -> None:
    """Check style and format."""
    _run(PYTHON, "-m", "ruff", "check", ".")
    _run(PYTHON, "-m", "ruff", "format", "--check", ".")


def types() -> None:
    """Check the package's types strictly, and what users will write against them."""
    _run(PYTHON, "-m", "mypy")


def wheel() -> None:
    """Build a wheel, install it without the dev tools, and carry sample images through all four commands."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        _run(PYTHON, "-m", "build", "--wheel", "--outdir", folder)
        (built,) = place.glob("*.whl")
        venv.create(place / "venv", with_pip=True)
        _run(str(place / "venv/bin/python"), "-m", "pip", "install", "-q", str(built))
        python, command = str(place / "venv/bin/python"), str(place / "venv/bin/vlmbatch")
        _run(python, "-m", "vlmbatch.rehearsal.samples", "samples", cwd=place)
        _run(command, "build", "samples", "--out", "run", "--model", "m", "--prompt", "What is this?", cwd=place)
        _run(command, "estimate", "run", "--scheme", "fixed", cwd=place)
        _run(command, "run", "run", "--rehearsal", cwd=place)
        _run(command, "collect", "run", "--rehearsal", "--write", "run/merged.jsonl", cwd=place)


def tests() -> None:
    """Run the tests."""
    _run(PYTHON, "-m", "pytest")


STEPS = {"lint": lint, "types": types, "wheel": wheel, "tests": tests}

if __name__ == "__main__":
    try:
        for name in sys.argv[1:] or STEPS:
            STEPS[name]()
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
