"""``use = <reference>`` in a configuration: which plugin, and its own options beside it."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import attrs

P = TypeVar("P")


@attrs.frozen
class Use(Generic[P]):
    """A chosen plugin: the reference as written, the class it resolved to, and its structured ``Config``."""

    ref: str
    cls: type[P]
    config: Any

    @property
    def label(self) -> str:
        """The plugin's public name, for metrics and messages."""
        return getattr(self.cls, "name", "") or self.cls.__name__

    def make(self, *args: Any) -> P:
        """Construct the plugin."""
        return self.cls(self.config, *args)  # type: ignore[call-arg]
