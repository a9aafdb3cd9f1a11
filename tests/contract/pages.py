"""The documentation as data: pages, headings, links, flags, fenced blocks and code in the prose."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from tests.docs.shapes import anchor

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "references/*.md")
    for path in ROOT.glob(pattern)
    if ".venv" not in path.parts
)
_FENCED = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`[^`\n]+`")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
_FLAG = re.compile(r"(?<![-\w])--[a-z][a-z0-9-]*")
_BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
_GENERATED = re.compile(r"<!-- generated: .*?<!-- end -->", re.DOTALL)
_SPAN = re.compile(r"`([^`]+)`")


class Block(NamedTuple):
    """A fenced block: its language, and its text."""

    language: str
    code: str


def name(page: Path) -> str:
    """Return a page's path as the repository has it."""
    return page.relative_to(ROOT).as_posix()


def text(page: Path | str) -> str:
    """Return a page's text."""
    return (ROOT / page).read_text(encoding="utf-8")


def links(page: Path) -> list[str]:
    """Return where the links of a page lead, code left aside."""
    prose = _CODE.sub("", _FENCED.sub("", text(page)))
    return _LINK.findall(prose)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings; a heading that stands twice gets a number."""
    found: dict[str, int] = {}
    named = set()
    for heading in _HEADING.findall(_FENCED.sub("", text(page))):
        plain = anchor(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading))
        count = found.get(plain, 0)
        found[plain] = count + 1
        named.add(f"{plain}-{count}" if count else plain)
    return named


def broken_links(page: Path) -> list[str]:
    """Return the links of a page that lead to no file of ours, or to no heading of one."""
    wrong = []
    for link in links(page):
        target, _, place = link.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or ROOT not in (path, *path.parents):
            wrong.append(f"{link}: no such file")
        elif place and path.suffix == ".md" and place not in anchors(path):
            wrong.append(f"{link}: no such heading")
    return wrong


def flags(page: Path) -> set[str]:
    """Return every long option that a page speaks of."""
    return set(_FLAG.findall(text(page)))


def blocks(page: Path | str) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    return [Block(*found) for found in _BLOCK.findall(text(page))]


def spans(page: Path) -> list[str]:
    """Return the code in a page's prose, each span once and on one line; what is generated is left aside."""
    prose = _FENCED.sub("", _GENERATED.sub("", text(page)))
    return list(dict.fromkeys(" ".join(span.split()).replace("\\|", "|") for span in _SPAN.findall(prose)))


def marked(page: str, mark: str) -> str:
    """Return the one block of a page that follows a mark (an HTML comment)."""
    (code,) = re.findall(rf"<!-- {mark} -->\n```sh\n(.*?)```", text(page), re.DOTALL)
    return str(code)
