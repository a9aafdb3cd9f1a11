"""Everything that must hold before a change lands: lint, format, types, tests, and an installation from nothing.

``python tests/check.py`` runs all of it; names on the command line (``lint``, ``types``, ``tests``, ``wheel``) choose.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
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
    """Build the distributions, and give the README's first command in the source's, with nothing but Python."""
    with tempfile.TemporaryDirectory() as folder:
        _run(PYTHON, "-m", "build", "--outdir", folder)
        (source,) = Path(folder).glob("*.tar.gz")
        shutil.unpack_archive(source, folder)
        place = Path(folder, source.name.removesuffix(".tar.gz"))
        (command,) = re.findall(r"<!-- try-command -->\n```sh\n(.*?)```", (place / "README.md").read_text(), re.DOTALL)
        os.environ["PATH"] = f"{Path(PYTHON).parent}:{os.environ['PATH']}"  # this Python is its python3
        _run("sh", "-c", command, cwd=place)


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
