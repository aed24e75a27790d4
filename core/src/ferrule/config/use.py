"""``use = <reference>`` in a configuration: which plugin, and its own options beside it."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import attrs

from ..errors import FerruleError, PluginError

P = TypeVar("P")


@attrs.frozen
class Use(Generic[P]):
    """A chosen plugin: the reference as written, the class it resolved to, and its structured ``Config``.

    Where the reference was ``auto``, ``why`` says what was chosen and why, and ``guess`` is True where nothing better
    than a guess was to be had.
    """

    ref: str
    cls: type[P]
    config: Any
    why: str = ""
    guess: bool = False

    @property
    def label(self) -> str:
        """The plugin's public name, for metrics and messages."""
        return getattr(self.cls, "name", "") or self.cls.__name__

    def make(self, *args: Any) -> P:
        """Construct the plugin. PluginError naming it where its constructor breaks, ``SystemExit`` included; a
        FerruleError of its own is passed on.
        """
        try:
            return self.cls(self.config, *args)  # type: ignore[call-arg]
        except FerruleError:
            raise
        except (Exception, SystemExit) as error:
            raise PluginError(f"{self.ref!r} cannot be constructed: {type(error).__name__}: {error}") from error
