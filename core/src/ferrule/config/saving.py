"""Saving: changes merged into an existing file, whose comments and unknown keys survive."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import ConfigError, Problem
from .secrets import holds_secret


def save(path: Path | str, changes: Mapping[str, Any]) -> None:
    """Merge *changes* (nested plain data; None removes a key) into the TOML file *path*, making it where there is none.

    Tables are merged, anything else is replaced. Written in one step; readable by its owner alone (0600) where any
    key looks like a secret. ConfigError where the file is not TOML: it is left as it is.
    """
    import tomlkit
    from tomlkit.exceptions import ParseError

    path = Path(os.path.realpath(path))
    try:
        document = tomlkit.parse(path.read_text(encoding="utf-8-sig")) if path.exists() else tomlkit.document()
    except ParseError as error:
        raise ConfigError([Problem((), f"is not TOML: {error}", error.line, str(path))]) from error
    _merge(document, changes)
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
    if holds_secret(document.unwrap()):
        mode = 0o600
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mkstemp makes it 0600 from the start
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(tomlkit.dumps(document))
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _merge(table: Any, changes: Mapping[str, Any]) -> None:
    for key, value in changes.items():
        if value is None:
            if key in table:
                del table[key]
        elif isinstance(value, Mapping) and isinstance(table.get(key), Mapping):
            _merge(table[key], value)
        elif table.get(key) != value or key not in table:
            table[key] = _without_none(value)


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    if isinstance(value, list | tuple):
        return [_without_none(each) for each in value]
    return str(value) if isinstance(value, Path) else value
