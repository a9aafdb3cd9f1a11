"""``pip install`` without an index: what is asked for must be this package, with extras that it has.

``python -m tests.contract.standins.pip BIN install …`` puts ``vlmbatch`` from ``$PROGRAMS`` into the folder of the
``pip`` that was called. The README's first command is really installed by a step of ``tests/check.py``.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tomllib
from pathlib import Path

from tests.contract.pages import ROOT


def main() -> int:
    """Check what is to be installed, and put the command where it would be."""
    parser = argparse.ArgumentParser(prog="pip")
    parser.add_argument("bin", type=Path)
    parser.add_argument("command", choices=["install"])
    parser.add_argument("-q", action="store_true")
    parser.add_argument("what", type=_ours)
    options = parser.parse_args()
    command = options.bin / "vlmbatch"
    if not command.exists():
        command.symlink_to(Path(os.environ["PROGRAMS"], "vlmbatch"))
    return 0


def _ours(requirement: str) -> str:
    named, extras = re.fullmatch(r"([\w./-]+)(?:\[([\w,]+)\])?", requirement, re.ASCII).groups()  # type: ignore[union-attr]
    file = Path("pyproject.toml") if named == "." else ROOT / "pyproject.toml"
    project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
    known = set(project["optional-dependencies"])
    if named not in {".", project["name"]} or not set((extras or "").split(",")) - {""} <= known:
        raise argparse.ArgumentTypeError(f"{requirement} is not {project['name']} with extras of {sorted(known)}")
    return requirement


if __name__ == "__main__":
    sys.exit(main())
