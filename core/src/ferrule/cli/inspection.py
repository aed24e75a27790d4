"""Run as a process by ``ferrule plugins show``: imports one plugin and prints what it is, as one line of JSON."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import attrs

from ..config import hints
from ..config.explaining import plain
from ..config.secrets import HIDDEN, is_secret
from ..errors import FerruleError
from ..plugins import Registry


def describe(registry: Registry, kind: str, reference: str) -> dict[str, Any]:
    """What *reference* is. Raises PluginError where it cannot be used."""
    cls: Any = registry.resolve(kind, reference, Path.cwd())
    (line,) = registry.manifest()
    doc = inspect.cleandoc(cls.__doc__ or "")
    out = {**line, "doc": doc, "api": cls.api, "options": [_option(field) for field in hints.option(cls)]}
    for name in ("needs", "provides", "policy_losses", "optimizers"):
        value = getattr(cls, name, None)
        if isinstance(value, frozenset | set):
            out[name] = sorted(map(str, value))
    return out


def _option(field: attrs.Attribute[Any]) -> dict[str, Any]:
    value = hints.default(field)
    if value is attrs.NOTHING:
        default = "required" if field.default is attrs.NOTHING else "computed"
    else:
        default = HIDDEN if is_secret(field.name) and value else _shown(value)
    types = " or ".join(hints.shown(arm) for arm in hints.arms(field.type) if arm is not type(None))
    return {"name": field.alias or field.name, "type": types, "default": default}


def _shown(value: Any) -> str:
    if attrs.has(type(value)):
        return "{" + ", ".join(f"{f.name} = {_shown(getattr(value, f.name))}" for f in attrs.fields(type(value))) + "}"
    return "none" if value is None else json.dumps(plain(value), ensure_ascii=False)


def main(reference: str, *kinds: str) -> None:
    """Try each kind in turn; print the first that fits, or why it is none."""
    registry = Registry.discover()
    errors: list[str] = []
    for kind in kinds:
        try:
            answer = describe(registry, kind, reference)
        except FerruleError as wrong:
            # Where several kinds are tried, none of them is what the reader asked for.
            errors.append(str(wrong) if len(kinds) == 1 else str(wrong).removeprefix(f"{kind} "))
            continue
        print("\nFERRULE " + json.dumps(answer, default=str))
        return
    telling = [text for text in errors if "it does not extend" not in text or len(kinds) == 1]
    error = telling[0] if telling else f"{reference!r} is no plugin: it extends no base class of a kind"
    print("\nFERRULE " + json.dumps({"error": error}))


if __name__ == "__main__":
    main(*sys.argv[1:])
