"""Shapes that several schemas have are written in one of them and copied to the others.

Each schema can be used by itself, so what it shares with others stands in its own ``$defs``. The first file that has a
shape, in the order in which a run meets them, is its home; ``estimate --json`` has the fields of estimates.jsonl.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.docs.shapes import FILES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_TOLD_ELSEWHERE = ("schema", "tool")
"""Fields of a line of estimates.jsonl that the envelope of --json stands for."""


def current(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the name of each schema's file with its text, copies made anew from their homes."""
    homes: dict[str, Any] = {}
    for name in (*FILES, "result"):
        file = f"{name}.v1.json"
        schema = json.loads((folder / file).read_text(encoding="utf-8"))
        if name == "result":
            _take_over(
                schema["$defs"]["estimate"], json.loads((folder / "estimate.v1.json").read_text(encoding="utf-8"))
            )
        for key in schema.get("$defs", {}):
            schema["$defs"][key] = homes.setdefault(key, schema["$defs"][key])
        yield f"{name}.v1.json", json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _take_over(told: dict[str, Any], line: dict[str, Any]) -> None:
    """Give what --json tells the fields of the line."""
    fields = {key: shape for key, shape in line["properties"].items() if key not in _TOLD_ELSEWHERE}
    told["properties"] |= fields
    told["required"] = [key for key in told["properties"] if key not in fields or key in line["required"]]
