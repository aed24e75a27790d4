"""``--set a.b=c``: parsed as TOML values, put into the plain data before anything is structured."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from typing import Any

import attrs

from ..errors import Problem
from .secrets import HIDDEN, on_secret_path

Path = tuple[str | int, ...]

_PART = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([A-Za-z0-9_-]+))\s*""")


@attrs.frozen
class Override:
    """One ``--set``: the keys on its left, and its value."""

    keys: tuple[str, ...]
    value: Any

    @property
    def source(self) -> str:
        """How reports name it; its value is shown by the message, or not at all."""
        return f"--set {'.'.join(self.keys)}"


def parse(text: str) -> Override | Problem:
    """An override, or what is wrong with it. A value that is no TOML value is text as it stands
    (``trainer.device=cpu``).
    """
    keys: list[str] = []
    at = 0
    while match := _PART.match(text, at):
        keys.append(next(group for group in match.groups() if group is not None))
        at = match.end()
        if text[at : at + 1] != "." or not _PART.match(text, at + 1):
            break
        at += 1
    source = f"--set {text.partition('=')[0]}"
    if not keys or text[at : at + 1] != "=":
        return Problem((), "write --set path.to.key=value", source=source)
    written = text[at + 1 :].strip()
    try:
        data = tomllib.loads(f"value = {written}\n")
    except tomllib.TOMLDecodeError as error:
        if written[:1] in ("[", "{", '"', "'"):
            shown = HIDDEN if on_secret_path(keys) else written
            return Problem(tuple(keys), f"not a TOML value: {shown} ({error})", source=source)
        data = {"value": written}
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits, lists thousands deep
        return Problem(tuple(keys), f"cannot be read: {' '.join(str(error).split())}", source=source)
    return Override(tuple(keys), data["value"] if data.keys() == {"value"} else written)


def apply(
    data: dict[str, Any], override: Override, is_list: Callable[[str], bool], is_use: Callable[[str], bool]
) -> tuple[Path, Path] | Problem:
    """Put *override* into *data*, making what is missing on the way; or what is wrong with it.

    The answer is the path it was put at, and that of the outermost thing that was made for it (the same where only
    the value is new).

    *is_list* and *is_use* tell, of a top-level key, whether the schema has a list there, and whether a text there is
    short for ``use``.
    """
    node: Any = data
    path: Path = ()
    made: Path | None = None
    for i, key in enumerate(override.keys):
        last = i == len(override.keys) - 1
        if isinstance(node, list):
            if not key.isdigit():
                return Problem(path, f"is a list: write its index, {_dotted((*path, 0, key))}", source=override.source)
            index = int(key)
            if index > len(node):
                return Problem(
                    (*path, index), f"the list has {len(node)} element{'s' * (len(node) != 1)}", source=override.source
                )
            if index == len(node):
                node.append(override.value if last else {})
                made = made or (*path, index)
            elif last:
                node[index] = override.value
            elif isinstance(node[index], str) and is_use(override.keys[0]):
                node[index] = {"use": node[index]}
            path, node = (*path, index), node[index]
            continue
        if not isinstance(node, dict):
            shown = HIDDEN if on_secret_path(path) else repr(node)
            return Problem(path, f"is {shown}, not a table, so {key!r} cannot be set in it", source=override.source)
        if last:
            node[key] = override.value
        elif key not in node:
            node[key] = [] if not path and is_list(key) and override.keys[i + 1].isdigit() else {}
            made = made or (*path, key)
        elif isinstance(node[key], str) and not path and is_use(key):
            node[key] = {"use": node[key]}
        path, node = (*path, key), node[key]
    return path, made or path


def _dotted(path: Path) -> str:
    return ".".join(map(str, path))
