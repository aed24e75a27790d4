"""Secrets: told by the name of their key, and left out of everything that is shown or filed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..masking import HIDDEN, is_secret

__all__ = ["HIDDEN", "holds_secret", "is_secret", "on_secret_path", "redacted"]


def on_secret_path(path: Iterable[object]) -> bool:
    """Whether the value at *path* is a secret, or lies below one."""
    return any(map(is_secret, path))


def redacted(data: Any) -> Any:
    """A copy of plain data in which every text under a secret key is ``***``."""
    return _redact(data, hide=False)


def _redact(data: Any, hide: bool) -> Any:
    if isinstance(data, Mapping):
        return {key: _redact(value, hide or is_secret(key)) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_redact(value, hide) for value in data]
    return HIDDEN if hide and isinstance(data, str) and data else data


def holds_secret(data: Any) -> bool:
    """Whether any key in plain data is that of a secret."""
    if isinstance(data, Mapping):
        return any(is_secret(key) or holds_secret(value) for key, value in data.items())
    return isinstance(data, list | tuple) and any(map(holds_secret, data))
