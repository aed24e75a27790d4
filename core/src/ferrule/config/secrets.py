"""Secrets: told by the name of their key, and left out of everything that is shown or filed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

HIDDEN = "***"
_WORDS = frozenset(
    {
        "apikey",
        "authorization",
        "credential",
        "credentials",
        "key",
        "keys",
        "passphrase",
        "passwd",
        "password",
        "passwords",
        "secret",
        "secrets",
        "token",
    }
)


def is_secret(key: object) -> bool:
    """Whether a key's name has ``key``, ``token``, ``secret``, ``password``, ``credentials`` or ``authorization``
    among its words: ``api_key`` does, ``max_tokens`` does not.
    """
    if not isinstance(key, str):
        return False
    words = re.split(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])", key)
    return any(word.lower() in _WORDS for word in words)


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
