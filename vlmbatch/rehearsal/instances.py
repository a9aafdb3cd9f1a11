"""A value that fits a JSON Schema: what the rehearsal provider answers where structured output is asked for.

It covers what the providers' structured-output subsets hold (types, enum, const, properties, items, local $ref, anyOf
and its kin, the simple bounds); keywords beyond that (``pattern``, ``if``) are not looked at.
"""

from __future__ import annotations

from typing import Any

from vlmbatch import jsonl

_DEPTH = 12
_FORMATS = {"date": "2026-01-31", "date-time": "2026-01-31T12:00:00Z", "time": "12:00:00Z", "email": "a@example.com"}


def instance(schema: dict[str, Any], facts: dict[str, Any], seed: str) -> Any:
    """Return a value that fits a schema.

    Args:
        schema: The schema.
        facts: Values used for properties of the same name (``width``, ``colour`` ...).
        seed: Hex digits; choices among several values follow from it, so they differ by image.
    """
    return _Maker(schema, facts, seed).value(schema, "", 0)


class _Maker:
    def __init__(self, root: dict[str, Any], facts: dict[str, Any], seed: str) -> None:
        self._root = root
        self._facts = facts
        self._seed = seed

    def value(self, schema: Any, name: str, depth: int) -> Any:
        schema = self._resolve(schema)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return schema["enum"][self._pick(name, len(schema["enum"]))]
        kind = _kind(schema, depth)
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return self._array(schema, name, depth)
        if kind in {"integer", "number"}:
            return self._number(schema, name, whole=kind == "integer")
        if kind == "boolean":
            return bool(self._pick(name, 2))
        if kind == "null":
            return None
        return self._string(schema, name)

    def _resolve(self, schema: Any) -> dict[str, Any]:
        """Follow local references and take the first way of a choice."""
        for _ in range(_DEPTH):
            if not isinstance(schema, dict):
                return {}
            if "$ref" in schema:
                schema = self._pointer(str(schema["$ref"]))
            elif schema.get("allOf"):
                parts = [self._resolve(part) for part in schema["allOf"]]
                rest = {key: value for key, value in schema.items() if key != "allOf"}
                schema = {key: value for part in [*parts, rest] for key, value in part.items()}
            elif way := schema.get("anyOf") or schema.get("oneOf"):
                schema = way[0]
            else:
                return schema
        return {}

    def _pointer(self, ref: str) -> Any:
        found: Any = self._root
        for key in ref.removeprefix("#").split("/")[1:]:
            found = found.get(key.replace("~1", "/").replace("~0", "~"), {}) if isinstance(found, dict) else {}
        return found

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties") or {}
        required = set(schema.get("required") or ())
        names = [name for name in properties if name in required or depth < _DEPTH // 2]
        made = {name: self.value(properties[name], name, depth + 1) for name in names}
        return made | dict.fromkeys(sorted(required - made.keys()), "")

    def _array(self, schema: dict[str, Any], name: str, depth: int) -> list[Any]:
        count = schema.get("minItems") or (1 if depth < _DEPTH // 2 else 0)
        count = min(count, schema.get("maxItems", count))
        return [self.value(schema.get("items", {}), f"{name}{number}", depth + 1) for number in range(count)]

    def _number(self, schema: dict[str, Any], name: str, *, whole: bool) -> float:
        fact = self._facts.get(name)
        value: float = fact if isinstance(fact, int) else 1 + self._pick(name, 100)
        low, high = schema.get("minimum"), schema.get("maximum")
        low = schema["exclusiveMinimum"] + (1 if whole else 0.5) if "exclusiveMinimum" in schema else low
        high = schema["exclusiveMaximum"] - (1 if whole else 0.5) if "exclusiveMaximum" in schema else high
        value = value if high is None else min(value, high)
        value = value if low is None else max(value, low)
        step = schema.get("multipleOf")
        value = value if not step else -(-value // step) * step
        return int(value) if whole else value

    def _string(self, schema: dict[str, Any], name: str) -> str:
        if schema.get("format") in _FORMATS:
            return _FORMATS[schema["format"]]
        colour = self._facts.get("colour", "nothing")
        text = str(self._facts.get("colour" if name == "color" else name, colour))
        text = text.ljust(schema.get("minLength", 0), ".")
        return text[: schema["maxLength"]] if "maxLength" in schema else text

    def _pick(self, name: str, count: int) -> int:
        """Return a number below ``count`` that depends on the pictures and the place in the schema."""
        return int(jsonl.sha256(f"{self._seed}:{name}".encode())[:8], 16) % count


def _kind(schema: dict[str, Any], depth: int) -> str:
    kind = schema.get("type")
    kinds = [kind] if isinstance(kind, str) else list(kind or [])
    lower = [str(name).lower() for name in kinds]  # Gemini's responseSchema writes the types in capitals
    if depth >= _DEPTH and ("null" in lower or schema.get("nullable")):
        return "null"
    if lower:
        return lower[0]
    return "object" if "properties" in schema else "array" if "items" in schema else "string"
