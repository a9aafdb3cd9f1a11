"""Tables of the files' fields, from the published schemas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.contract.schemas import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FILES = (
    *("run", "manifest", "rejected", "upload", "estimate", "attempt", "batch", "progress"),
    *("record", "summary", "redacted"),
)
"""The schemas of files, in the order in which a run meets them."""

_FILES_PAGE = "files.md"
_HEAD = "| field | what it holds | type | unit |\n| --- | --- | --- | --- |"


def _homes(key: str) -> list[str]:
    """Return the files that have a shape in their $defs."""
    return [name for name in FILES if key in load(name).get("$defs", {})]


def _is_shared(key: str) -> bool:
    return len(_homes(key)) > 1


def cell(text: str) -> str:
    """Return text for a cell of a table."""
    return text.replace("|", "\\|").replace("\n", " ")


def type_words(schema: dict[str, Any], page: str = "") -> str:
    """Return what kind of value a schema takes, in words.

    Args:
        schema: The schema.
        page: Where the shapes of files are described, empty = on the same page.
    """
    if "$ref" in schema:
        return _reference(schema["$ref"], page)
    if "anyOf" in schema:
        return " or ".join(type_words(one, page) for one in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        values = schema.get("enum", [schema.get("const")])
        return ", ".join("null" if value is None else f"`{value}`" for value in values)
    kinds = schema.get("type", "anything")
    words = [_kind_words(kind, schema, page) for kind in ([kinds] if isinstance(kinds, str) else kinds)]
    return " or ".join(words)


def _reference(target: str, page: str) -> str:
    if target.startswith("#/$defs/"):
        name = target.removeprefix("#/$defs/")
        return f"[{name}]({page if _homes(name) else ''}#{name})"
    name = target.split(":")[2]
    return f"[{title(name)}]({page}#{anchor(title(name))})"


def _kind_words(kind: str, schema: dict[str, Any], page: str) -> str:
    if kind == "array":
        return f"list of {type_words(schema['items'], page)}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"map to {type_words(schema['additionalProperties'], page)}"
    return {"integer": "whole number", "string": "text", "boolean": "true or false"}.get(kind, kind)


def anchor(heading: str) -> str:
    """Return the anchor that a heading gets."""
    kept = "".join(c for c in heading.lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")


def title(name: str) -> str:
    """Return a schema's title as a heading."""
    said: str = load(name)["title"]
    return said.removeprefix("One line of ")


def _unit(schema: dict[str, Any]) -> str:
    """Return the unit of a number, or of the numbers that a list or map holds."""
    inner = schema.get("items") or schema.get("additionalProperties") or {}
    found: str = schema.get("x-unit") or (inner.get("x-unit", "") if isinstance(inner, dict) else "")
    return found


def rows(schema: dict[str, Any], page: str, prefix: str = "") -> Iterator[str]:
    """Yield the rows of an object's table; objects inside it follow their key, with dotted names."""
    required = schema.get("required", [])
    for key, inner in schema.get("properties", {}).items():
        may_lack = "" if key in required else "; may be absent"
        kind = type_words(inner, page) + may_lack
        yield f"| `{prefix}{key}` | {cell(inner['description'])} | {cell(kind)} | {_unit(inner)} |"
        yield from rows(inner, page, f"{prefix}{key}.")


def table(schema: dict[str, Any], page: str = "") -> str:
    """Return an object's table."""
    return "\n".join([_HEAD, *rows(schema, page)])


def section(heading: str, schema: dict[str, Any], *, more: str = "", page: str = "") -> str:
    """Return a heading, what the object is, and its table."""
    return f"{heading}\n\n{schema['description']}{more}\n\n{table(schema, page)}"


def of_file(name: str) -> str:
    """Return the section of one file, with the shapes that no other file has."""
    schema = load(name)
    one = " One object a line." if schema["title"].startswith("One line") else ""
    more = f"{one} Schema: [{name}.v1.json](../schemas/{name}.v1.json), `{schema['$id']}`."
    parts = [section(f"## {title(name)}", schema, more=more)]
    own = {key: shape for key, shape in schema.get("$defs", {}).items() if not _is_shared(key)}
    parts += [section(f"### {key}", shape) for key, shape in own.items()]
    return "\n\n".join(parts)


def all_files() -> str:
    """Return the sections of all files."""
    return "\n\n".join(of_file(name) for name in FILES)


def shared() -> str:
    """Return the shapes that several files have."""
    found = {key: shape for name in FILES for key, shape in load(name).get("$defs", {}).items() if _is_shared(key)}
    return "\n\n".join(section(f"### {key}", shape) for key, shape in sorted(found.items()))


def envelope() -> str:
    """Return the table of what --json prints."""
    return table(load("result"), _FILES_PAGE)


def data(*names: str) -> Callable[[], str]:
    """Return what makes the tables of a command's data, and of the shapes that these alone refer to."""

    def made() -> str:
        shapes = load("result")["$defs"]
        return "\n\n".join(section(f"### {name}", shapes[name], page=_FILES_PAGE) for name in names)

    return made


BLOCKS: dict[str, Callable[[], str]] = {
    "files": all_files,
    "shared shapes": shared,
    "envelope": envelope,
    "problem": data("problem"),
    "data of build": data("build"),
    "data of estimate": data("estimate", "image_size", "over", "over_line", "large", "receipt"),
    "data of run": data("run", "queued", "endpoint", "jobs", "job", "flaw"),
    "data of collect": data("collect", "comparison", "column", "change", "field"),
}
