"""Checks JSON against the schemas of ``tests/cli/schemas``: the part of JSON Schema that these use.

Debian's Python has no jsonschema. A keyword that is not known here is an error, so no schema promises more than is
checked.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SCHEMAS = Path(__file__).parents[1] / "cli" / "schemas"
_TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "integer": int,
    "number": (int, float),
}
_KEYWORDS = {
    "$schema", "type", "const", "enum", "properties", "required", "additionalProperties", "items", "minimum", "oneOf",
}  # fmt: skip


def require_valid(name: str, value: Any) -> None:
    """Raise AssertionError unless a value is what the schema of that name says."""
    found = faults(json.loads((SCHEMAS / f"{name}.json").read_text()), value)
    assert not found, found[:5]


def faults(schema: dict[str, Any], value: Any, where: str = "$") -> list[str]:
    """Return what a value has that its schema does not allow."""
    assert schema.keys() <= _KEYWORDS, schema.keys() - _KEYWORDS
    if "oneOf" in schema:
        tried = [faults(each, value, where) for each in schema["oneOf"]]
        return [] if sum(not found for found in tried) == 1 else [f"{where}: not one of {tried}"]
    types = schema.get("type", list(_TYPES))
    if not any(_is(value, each) for each in ([types] if isinstance(types, str) else types)):
        return [f"{where}: {value!r} is not {types}"]
    found = []
    if "const" in schema and value != schema["const"]:
        found.append(f"{where}: {value!r} is not {schema['const']!r}")
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{where}: {value!r} is not in {schema['enum']}")
    if "minimum" in schema and _is(value, "number") and value < schema["minimum"]:
        found.append(f"{where}: {value} is too small")
    if isinstance(value, dict):
        known, rest = schema.get("properties", {}), schema.get("additionalProperties", True)
        found += [f"{where}: {name} is missing" for name in schema.get("required", ()) if name not in value]
        for name, item in value.items():
            if name in known:
                found += faults(known[name], item, f"{where}.{name}")
            elif rest is not True:
                found += faults(rest, item, f"{where}.{name}") if rest else [f"{where}: {name} is unknown"]
    if isinstance(value, list) and "items" in schema:
        found += [
            fault for i, item in enumerate(value) for fault in faults(schema["items"], item, f"{where}[{i}]")
        ]
    return found


def _is(value: Any, name: str) -> bool:
    return isinstance(value, _TYPES[name]) and (name == "boolean" or not isinstance(value, bool))
