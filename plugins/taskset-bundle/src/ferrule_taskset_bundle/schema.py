"""Types of Python parameters as JSON schemas, and the check of a model's arguments against them."""

from __future__ import annotations

import difflib
import enum
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean"}
SUPPORTED = "str, int, float, bool, list[...], dict, Literal, Enum, Optional and unions of these"


class Unsupported(Exception):
    """A type that has no schema here; the text says which."""


def schema_of(kind: Any) -> dict[str, Any]:
    """The JSON schema of a parameter's type. Raises Unsupported."""
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return {}
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    if kind is None or kind is type(None):
        return {"type": "null"}
    if origin is Annotated:
        inner = schema_of(args[0])
        text = next((a for a in args[1:] if isinstance(a, str)), None)
        return {**inner, "description": text} if text else inner
    if origin is Literal:
        return _enumeration(args)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _enumeration(tuple(member.value for member in kind))
    if kind is list or origin is list:
        return {"type": "array", "items": schema_of(args[0])} if args else {"type": "array"}
    if kind is dict or origin is dict:
        if args and args[0] is not str:
            raise Unsupported(f"{_show(kind)}: the keys of a JSON object are str")
        return {"type": "object", "additionalProperties": schema_of(args[1])} if args else {"type": "object"}
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(a) for a in args]}
    raise Unsupported(f"{_show(kind)} is not among {SUPPORTED}")


def _enumeration(values: tuple[Any, ...]) -> dict[str, Any]:
    kinds = {type(value) for value in values}
    if not kinds <= set(_PLAIN):
        raise Unsupported(f"the values {values!r} are not all str, int, float or bool")
    out: dict[str, Any] = {"enum": list(values)}
    if len(kinds) == 1:
        out["type"] = _PLAIN[kinds.pop()]
    return out


def _show(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)


class Mismatch(Exception):
    """An argument that its schema refuses; the text is for the model."""


def arguments_of(schema: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """*given* as *schema*, of type object, types it. Raises Mismatch naming every argument that is missing, unknown
    or wrong.
    """
    known, wrong, out = schema["properties"], [], {}
    for name, value in given.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            names = ", ".join(known) or "none"
            wrong.append(
                f"unknown argument {name!r}" + (f", did you mean {near[0]!r}?" if near else f"; known: {names}")
            )
            continue
        try:
            out[name] = fit(value, known[name])
        except Mismatch as problem:
            wrong.append(f"argument {name!r} {problem}")
    wrong += [f"argument {name!r} is missing" for name in schema.get("required", ()) if name not in given]
    if wrong:
        raise Mismatch("; ".join(wrong))
    return out


def fit(value: Any, schema: Mapping[str, Any]) -> Any:
    """*value* where *schema* takes it, 7.0 being an integer and 7 a number. Raises Mismatch saying what it must be."""
    if "anyOf" in schema:
        for option in schema["anyOf"]:
            try:
                return fit(value, option)
            except Mismatch:
                continue
        raise Mismatch(f"must be {' or '.join(_named(option) for option in schema['anyOf'])}, not {value!r}")
    if "enum" in schema:
        # True == 1 in Python, but not in JSON
        if not any(
            value == member and isinstance(value, bool) == isinstance(member, bool) for member in schema["enum"]
        ):
            raise Mismatch(f"must be {_named(schema)}, not {value!r}")
        return value
    kind = schema.get("type")
    if kind is None:
        return value
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "integer" and number and value == value and float(value).is_integer():
        return int(value)
    if kind == "number" and number:
        return float(value)
    if kind == "array" and isinstance(value, list):
        return [_inside(item, schema.get("items", {}), f"item {i}") for i, item in enumerate(value)]
    if kind == "object" and isinstance(value, Mapping):
        rest = schema.get("additionalProperties", {})
        return {name: _inside(item, rest, f"key {name!r}") for name, item in value.items()}
    if (
        (kind == "string" and isinstance(value, str))
        or (kind == "boolean" and isinstance(value, bool))
        or (kind == "null" and value is None)
    ):
        return value
    raise Mismatch(f"must be {_named(schema)}, not {value!r}")


def _inside(value: Any, schema: Mapping[str, Any], place: str) -> Any:
    try:
        return fit(value, schema)
    except Mismatch as problem:
        raise Mismatch(f"{place} {problem}") from None


def _named(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_named(option) for option in schema["anyOf"])
    if "enum" in schema:
        return "one of " + ", ".join(repr(member) for member in schema["enum"])
    kind = schema.get("type", "anything")
    return {"null": "null", "anything": "anything"}.get(kind, f"{'an' if kind[0] in 'aio' else 'a'} {kind}")


def converter(kind: Any) -> typing.Callable[[Any], Any] | None:
    """What turns a checked JSON value into the parameter's own type, where JSON's will not do: members of enums."""
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind
    if get_origin(kind) is Annotated:
        return converter(get_args(kind)[0])
    if get_origin(kind) in (Union, types.UnionType):
        inner = [converter(option) for option in get_args(kind) if option is not type(None)]
        if len(inner) == 1 and inner[0] is not None:
            make = inner[0]
            return lambda value: None if value is None else make(value)
    if get_origin(kind) is list and (make_item := converter(get_args(kind)[0])) is not None:
        return lambda value: [make_item(item) for item in value]
    return None
