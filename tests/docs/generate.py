"""Fill the generated parts of the reference pages: ``python -m tests.docs.generate``.

A page of docs/reference is written by hand but for what stands between ``<!-- generated: NAME -->`` and
``<!-- end -->``. That is made here, from the schemas, from the command line's own declarations and from the provider
adapters; a test fails when a page is not what this would make of it. Schemas are brought into line and copied to docs.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.docs import commands, copies, shapes, tongues

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "reference"
SCHEMAS = ROOT / "vlmbatch" / "data" / "schemas"
BLOCKS = {**shapes.BLOCKS, **commands.BLOCKS, **tongues.BLOCKS}
_BLOCK = re.compile(r"(<!-- generated: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str) -> str:
    """Return a page with its generated parts made anew."""
    return _BLOCK.sub(lambda found: f"{found[1]}\n{BLOCKS[found[2]]()}\n\n{found[3]}", text)


def names(text: str) -> list[str]:
    """Return the names of a page's generated parts."""
    return [found[2] for found in _BLOCK.finditer(text)]


def main() -> int:
    """Write every page and copy that is not current, and say which; return the exit status."""
    for name, text in copies.current(SCHEMAS):
        _write(SCHEMAS / name, text)
    for schema in sorted(SCHEMAS.glob("*.json")):
        _write(ROOT / "docs" / "schemas" / schema.name, schema.read_text(encoding="utf-8"))
    for page in sorted(PAGES.glob("*.md")):
        _write(page, filled(page.read_text(encoding="utf-8")))
    return 0


def _write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    sys.exit(main())
