"""What a run is made of, for its manifest."""

from __future__ import annotations

import platform
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
