"""What every plugin class shares: a name, a Config, and the integer version of its kind's contract."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
import pluggy

hookspec = pluggy.HookspecMarker("ferrule")
hookimpl = pluggy.HookimplMarker("ferrule")


@attrs.frozen
class Kind:
    """One kind of plugin: its ``name``, entry-point ``group``, ``base`` class and hook specification ``specs``.

    ``api`` is the version of its contract; the core loads classes written for it and for the one before.
    """

    name: str
    group: str
    base: type[Plugin]
    specs: type
    api: int = 1

    @property
    def hook(self) -> str:
        return f"ferrule_{self.name}"


class Plugin:
    """Base of every plugin class.

    ``class Mine(ferrule.AuxLoss, name="mine")`` names it; defining a class registers nothing. ``Config`` is an attrs
    class extending the base's ``Config``; the core structures a configuration section into it and passes it to the
    constructor. Plugin instances compare by identity.
    """

    name: ClassVar[str] = ""
    api: ClassVar[int] = 1

    @attrs.frozen
    class Config:
        """No options."""

    config: Any

    def __init_subclass__(cls, name: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if name is not None:
            cls.name = name
        config = cls.__dict__.get("Config")
        if config is None:
            return
        inherited = next(vars(base)["Config"] for base in cls.__mro__[1:] if "Config" in base.__dict__)
        if not attrs.has(config) or "__attrs_attrs__" not in config.__dict__:
            raise TypeError(f"{cls.__qualname__}.Config must be an attrs class: put @attrs.frozen on it")
        if not issubclass(config, inherited):
            raise TypeError(
                f"{cls.__qualname__}.Config must extend {inherited.__qualname__}, or its options are lost: "
                f"class Config({inherited.__qualname__})"
            )

    def __init__(self, config: Any) -> None:
        self.config = config
