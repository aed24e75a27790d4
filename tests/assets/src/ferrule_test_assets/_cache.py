"""The cache: each asset is built once, in a folder of its own that appears whole or not at all."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from importlib import metadata
from pathlib import Path

from filelock import FileLock

from . import _sources


def cache_folder() -> Path:
    """``FERRULE_TEST_CACHE``, else a folder of this version under the user's cache."""
    given = os.environ.get("FERRULE_TEST_CACHE")
    if given:
        return Path(given)
    return Path.home() / ".cache" / "ferrule-test-assets" / metadata.version("ferrule-test-assets")


@cache
def _code() -> str:
    """This package's own sources: an asset built by other code is another asset."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def cached(name: str, sources: tuple[str, ...], build: Callable[[Path], None], *facts: str) -> Path:
    """The folder of the asset *name*, filled by *build* unless it is there already.

    It is made anew when a distribution of *sources*, one of *facts* or this package's code is another.
    """
    key = "\n".join([_code(), *(f"{s} {_sources.version(s)}" for s in sources), *facts])
    root = cache_folder()
    folder = root / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    root.mkdir(parents=True, exist_ok=True)
    with FileLock(root / f".{folder.name}.lock"):
        # Another process may have built it while this one waited.
        if not folder.is_dir():
            partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=root))
            try:
                build(partial)
                # Temporary folders and some writers' files are their owner's alone; a cache may be shared.
                partial.chmod(0o755)
                for path in partial.iterdir():
                    path.chmod(0o644)
                partial.rename(folder)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
    return folder
