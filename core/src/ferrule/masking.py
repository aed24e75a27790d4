"""Secrets that are known by value, kept out of every text that is shown or filed.

What a configuration holds under a secret key, and what the environment holds under one, may come back in the text of
somebody else's exception. The texts of Ferrule's errors, logs and episodes pass through :func:`masked`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

HIDDEN = "***"
LEAST = 8
"""Shorter values are not masked: they would blot out ordinary words."""

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
_known: set[str] = set()


def is_secret(key: object) -> bool:
    """Whether a key's name has ``key``, ``token``, ``secret``, ``password``, ``credentials`` or ``authorization``
    among its words: ``api_key`` does, ``max_tokens`` does not.
    """
    if not isinstance(key, str):
        return False
    words = re.split(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])", key)
    return any(word.lower() in _WORDS for word in words)


def remember(data: Any, *, secret: bool = False) -> None:
    """Know every text under a secret key of plain *data* from now on."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            remember(value, secret=secret or is_secret(key))
    elif isinstance(data, list | tuple):
        for value in data:
            remember(value, secret=secret)
    elif secret and isinstance(data, str) and len(data) >= LEAST:
        _known.add(data)


def keep_secret(value: str) -> None:
    """Mask *value* (a token that was made for this run, say) from now on. Values shorter than 8 characters are not."""
    remember(value, secret=True)


def _values() -> Iterable[str]:
    yield from _known
    for key, value in os.environ.items():
        # A path or a number under such a name (SSH_KEY, KEY_TIMEOUT) is no secret, and stands in honest errors.
        if len(value) >= LEAST and "/" not in value[:1] and not value.isdigit() and is_secret(key):
            yield value


def forget_secret(value: str) -> None:
    """Mask *value* no more: it opens nothing any longer. Else what each episode is given would be searched for for ever."""
    _known.discard(value)


def masked(text: str) -> str:
    """*text* with every known secret as ``***``, the longest first."""
    for value in sorted(_values(), key=len, reverse=True):
        if value in text:
            text = text.replace(value, HIDDEN)
    return text
