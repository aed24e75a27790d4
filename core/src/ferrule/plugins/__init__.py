"""Plugins: found by metadata, chosen by reference, imported when named.

Names are resolved on first access, so that listing what is installed imports neither pluggy nor a contract.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .discovery import Candidate as Candidate
    from .discovery import Dist as Dist
    from .discovery import Finding as Finding
    from .observers import Observers as Observers
    from .references import Ref as Ref
    from .registry import Registry as Registry
    from .registry import default_registry as default_registry

_HOMES = {
    "Candidate": "discovery",
    "Dist": "discovery",
    "Finding": "discovery",
    "Observers": "observers",
    "Ref": "references",
    "Registry": "registry",
    "default_registry": "registry",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module 'ferrule.plugins' has no attribute {name!r}") from None
    return getattr(import_module(f".{home}", __name__), name)
