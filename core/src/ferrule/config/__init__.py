"""Configuration: TOML to attrs, every mistake in one report.

Names are resolved on first access: a plugin that asks for ``ferrule.existing`` does not import the loader.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .use import Use
from .validators import existing

if TYPE_CHECKING:
    from .explaining import explain as explain
    from .loader import Loaded as Loaded
    from .loader import load as load
    from .loader import load_config as load_config
    from .loader import load_data as load_data
    from .saving import save as save
    from .schema import RunConfig as RunConfig
    from .secrets import redacted as redacted

_HOMES = {
    "Loaded": "loader",
    "RunConfig": "schema",
    "explain": "explaining",
    "load": "loader",
    "load_config": "loader",
    "load_data": "loader",
    "redacted": "secrets",
    "save": "saving",
}

__all__ = ["Loaded", "RunConfig", "Use", "existing", "explain", "load", "load_config", "load_data", "redacted", "save"]


def __getattr__(name: str) -> Any:
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module 'ferrule.config' has no attribute {name!r}") from None
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value
