"""Reading fields of a JSON body: each check says which field is wrong and what it must be."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from .errors import WireError, bad

INTEGERS = 2**31

DEEPEST = 200
"""Levels of nesting that JSON of a client may have where it is written out again or walked through."""


def shown(value: Any) -> str:
    """*value* as an error quotes it, bounded."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"


def wrong(param: str, what: str, value: Any) -> WireError:
    return bad(param, f"{param} must be {what}, not {shown(value)}", "invalid_type")


def too_deep(value: Any, text: str = "") -> bool:
    """Whether the JSON *value* is nested deeper than DEEPEST levels; *text*, which says it, spares most the search."""
    if text and text.count("{") + text.count("[") <= DEEPEST:
        return False
    level = [value]
    for _ in range(DEEPEST + 1):
        inner = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        level = [each for values in inner for each in values]
        if not level:
            return False
    return True


def boolean(body: Mapping[str, Any], name: str, where: str = "") -> bool:
    value = body.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise wrong(where + name, "true or false", value)
    return value


def integer(body: Mapping[str, Any], name: str, low: int, high: int = INTEGERS - 1, where: str = "") -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong(where + name, "an integer", value)
    if not low <= value <= high:
        raise bad(where + name, f"{where + name} must be from {low} to {high}, not {shown(value)}")
    return value


def number(
    body: Mapping[str, Any], name: str, low: float, high: float, *, above: bool = False, where: str = ""
) -> float | None:
    """A finite number from *low* to *high*; with *above*, above *low*."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not isfinite(value):
        raise wrong(where + name, "a number", value)
    if not low <= value <= high or (above and value == low):
        raise bad(
            where + name,
            f"{where + name} must be {'above' if above else 'at least'} {low:g} and at most {high:g}, not {shown(value)}",
        )
    return float(value)


def text(body: Mapping[str, Any], name: str, where: str = "") -> str | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise wrong(where + name, "text", value)
    return value


def required_text(body: Mapping[str, Any], name: str, where: str = "") -> str:
    value = text(body, name, where)
    if not value:
        raise bad(where + name, f"{where + name} is required", "missing_required_parameter")
    return value


def ids(value: Any, param: str) -> list[int]:
    """A list of token ids."""
    if not isinstance(value, list):
        raise wrong(param, "a list of token ids", value)
    for i, each in enumerate(value):
        if type(each) is not int:
            raise wrong(f"{param}[{i}]", "a token id", each)
        if not 0 <= each < INTEGERS:
            raise bad(f"{param}[{i}]", f"{param}[{i}] is no token id: {shown(each)}", "invalid_token")
    return value
