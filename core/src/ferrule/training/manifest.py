"""What a run is made of, for its manifest."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .. import __version__

if TYPE_CHECKING:
    from ..config import Loaded


def manifest(loaded: Loaded) -> dict[str, Any]:
    """Versions, platform, seed, and each plugin that was loaded with its distribution, version and hash."""
    return {
        "ferrule": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "seed": loaded.config.seed,
        "config_file": str(loaded.path.absolute()),
        "config_dir": str(loaded.dir.absolute()),
        "plugins": loaded.registry.manifest(),
    }


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What is no longer as it was when the run began: Ferrule, Python, and each plugin, by its version or else its
    hash.
    """
    out = [
        f"{name} is {now[key]}, and was {before[key]} when the run began"
        for key, name in (("ferrule", "Ferrule"), ("python", "Python"))
        if before.get(key) != now[key]
    ]
    then = {(p["kind"], p["reference"]): p for p in before.get("plugins", ())}
    for plugin in now["plugins"]:
        old = then.get((plugin["kind"], plugin["reference"]))
        name = f"{plugin['kind']} {plugin['reference']}"
        if old is None:
            continue
        if old["version"] != plugin["version"]:
            out.append(
                f"{name} is of {plugin['distribution']} {plugin['version']}, "
                f"and was of {old['version']} when the run began"
            )
        elif old["sha256"] != plugin["sha256"]:
            out.append(f"{name} has changed since the run began; what it measures from here on may differ")
    return out
