"""Task sets written as a folder: ``bundle.toml``, a Python file of tools and verifiers, and tasks as tables, files
or a generator.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs

from ferrule import Demonstration, FerruleError, Task, Taskset, existing

from .bundle import Bundle, read_bundle
from .demos import demonstrations
from .reader import BundleError
from .tasks import BundleTask

__all__ = ["BundleError", "BundleTask", "BundleTaskset"]


class BundleTaskset(Taskset, name="bundle"):
    """The tasks of a bundle folder. Reading it runs its Python; all its mistakes arrive in one :class:`BundleError`."""

    @attrs.frozen
    class Config(Taskset.Config):
        """``path`` is the bundle's folder."""

        path: Path = attrs.field(validator=existing)

    def __init__(self, config: BundleTaskset.Config) -> None:
        super().__init__(config)
        self.bundle: Bundle = read_bundle(Path(config.path))

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.bundle.splits)

    def tasks(self, split: str) -> Sequence[Task]:
        return self._tasks(split)

    def _tasks(self, split: str) -> tuple[BundleTask, ...]:
        if split == "all":
            return self.bundle.tasks
        try:
            return self.bundle.splits[split]
        except KeyError:
            have = ", ".join([*self.bundle.splits, "all"])
            raise FerruleError(f"bundle {self.bundle.name!r} has no split {split!r}; it has: {have}") from None

    def demonstrations(self, split: str, count: int, seed: int) -> Sequence[Demonstration]:
        return demonstrations(self.bundle, split, self._tasks(split), count, seed)
