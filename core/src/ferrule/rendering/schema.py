"""Arguments of tool calls by the tool's JSON schema, so that text stays text and a wrong type is told to the model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..data import ToolSpec

_INTEGER = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_NAMES = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
    "array": "a JSON array",
    "object": "a JSON object",
}
_OF = {
    str: "string",
    bool: "boolean",
    type(None): "null",
    list: "array",
    dict: "object",
    int: "integer",
    float: "number",
}


class Unreadable(ValueError):
    """An argument that does not fit its schema; the text is fit to be shown to the model."""


def typed_arguments(
    name: str,
    arguments: Mapping[str, Any],
    tools: Sequence[ToolSpec],
    raws: Callable[[], Mapping[str, str]] = dict,
) -> dict[str, Any]:
    """JSON *arguments* of a call of *name*, each as that tool's schema types it: ``7.0`` for an integer is 7, a number
    for a string is the text as it stood (*raws* gives, when asked, the members' own text). Unreadable names the
    argument that does not fit.
    """
    known, root = schema_of(name, tools)
    found: Mapping[str, str] | None = None
    out = {}
    for field, value in arguments.items():
        allowed = types(known.get(field), root)
        if allowed and "string" in allowed and not isinstance(value, str) and found is None:
            found = raws()
        out[field] = typed(field, from_json, value, (found or {}).get(field), allowed)
    return out


def typed(name: str, read: Callable[..., Any], *args: Any) -> Any:
    """What *read* makes of an argument called *name*; its error names it."""
    try:
        return read(*args)
    except Unreadable as error:
        raise Unreadable(f"argument {name!r} {error}") from None


def schema_of(name: str, tools: Sequence[ToolSpec]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """(properties, the whole schema) of the tool called *name*; both empty where it is unknown."""
    for tool in tools:
        if tool.name == name:
            return properties(tool.parameters), tool.parameters
    return {}, {}


def properties(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """The properties of a tool's parameters; empty where there are none."""
    found = _resolved(parameters, parameters).get("properties")
    return found if isinstance(found, Mapping) else {}


def types(schema: Any, root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """The JSON types that *schema* allows; empty where it says nothing, or names a type that JSON schema does not know.
    ``nullable`` (OpenAPI's) adds null.
    """
    if not isinstance(schema, Mapping) or depth > 8:
        return frozenset()
    schema = _resolved(schema, root)
    found = _types(schema, root, depth)
    if not found <= _NAMES.keys():
        return frozenset()
    return found | {"null"} if found and schema.get("nullable") is True else found


def _types(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> frozenset[str]:
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset({kind})
    if isinstance(kind, (list, tuple)):
        return frozenset(k for k in kind if isinstance(k, str))
    for word in ("anyOf", "oneOf"):
        if branches := _several(schema.get(word)):
            parts = [types(branch, root, depth + 1) for branch in branches]
            return frozenset[str]().union(*parts) if all(parts) else frozenset()
    for branch in _several(schema.get("allOf")):
        if found := types(branch, root, depth + 1):
            return found
    values = _several(schema.get("enum")) or ([schema["const"]] if "const" in schema else ())
    return frozenset(_OF.get(type(value), "object") for value in values)


def _several(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    for _ in range(8):
        ref = schema.get("$ref")
        if not isinstance(ref, str) or not ref.startswith("#/"):
            break
        node: Any = root
        for key in ref[2:].split("/"):
            node = node.get(key.replace("~1", "/").replace("~0", "~")) if isinstance(node, Mapping) else None
        if not isinstance(node, Mapping):
            break
        schema = node
    return schema


def from_text(text: str, allowed: frozenset[str]) -> Any:
    """Read bare *text* as one of the *allowed* types; text itself where a string is all that is allowed, or nothing
    is said.

    Where a string is one type among others, the others come first (``null`` is null, ``true`` is true), and what is
    none of them is text.
    """
    if not allowed or allowed == {"string"}:
        return text
    bare = text.strip()
    if "null" in allowed and bare == "null":
        return None
    if "boolean" in allowed and (bare in ("true", "false") or ("string" not in allowed and bare in ("True", "False"))):
        return bare.lower() == "true"
    if ("integer" in allowed or "number" in allowed) and (number := _number(bare, allowed)) is not None:
        return number
    if "array" in allowed or "object" in allowed:
        try:
            value = json.loads(bare)
        except (ValueError, RecursionError):
            value = None
        if (isinstance(value, list) and "array" in allowed) or (isinstance(value, dict) and "object" in allowed):
            return value
    if "string" in allowed:
        return text
    raise Unreadable(f"must be {_wanted(allowed)}, got {_short(text)}")


def from_json(value: Any, raw: str | None, allowed: frozenset[str]) -> Any:
    """Read a JSON *value*, which stood as *raw*, as one of the *allowed* types."""
    kind = _OF.get(type(value), "object")
    if kind in allowed or not allowed or (kind == "integer" and "number" in allowed):
        return value
    if kind == "number" and "integer" in allowed and value.is_integer():
        return int(value)
    if kind == "string":
        return from_text(value, allowed)
    if "string" in allowed and kind in ("integer", "number", "boolean"):
        return raw if raw is not None else json.dumps(value)
    raise Unreadable(f"must be {_wanted(allowed)}, got {_short(json.dumps(value))}")


def _number(bare: str, allowed: frozenset[str]) -> int | float | None:
    if not _NUMBER.fullmatch(bare) or len(bare) > 4000:
        return None
    if _INTEGER.fullmatch(bare):
        return int(bare)
    value = float(bare)
    if value in (float("inf"), float("-inf")):
        return None
    if "number" in allowed:
        return value
    return int(value) if value.is_integer() else None


def _wanted(allowed: frozenset[str]) -> str:
    return " or ".join(_NAMES.get(kind, kind) for kind in sorted(allowed))


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
