"""Observers at work: checked against the hooks that there are, called in the configuration's order, and never fatal."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pluggy

from ..errors import FerruleError, PluginError
from ..kinds import Observer, ObserverSpecs
from ..logs import get_logger
from .compat import nearest

log = get_logger("ferrule.observers")

_SPECS = {
    name: inspect.signature(getattr(ObserverSpecs, name)) for name in dir(ObserverSpecs) if name.startswith("ferrule_")
}


def _implementations(cls: type) -> dict[str, dict[str, Any]]:
    """Attribute → its hookimpl options, of every hook that *cls* implements."""
    found = {}
    for attribute in dir(cls):
        options = getattr(inspect.getattr_static(cls, attribute), "ferrule_impl", None)
        if isinstance(options, dict):
            found[attribute] = options
    return found


def check_observer(cls: type, origin: str) -> None:
    """Every hook of *cls* against :class:`ferrule.kinds.ObserverSpecs`, all mistakes in one PluginError."""
    wrong = []
    marked = _implementations(cls)
    for attribute in dir(cls):
        if attribute.startswith("ferrule_") and attribute not in marked and callable(getattr(cls, attribute)):
            hint = "" if attribute in _SPECS else nearest(attribute, _SPECS)
            wrong.append(f"{attribute} is never called: put @ferrule.hookimpl on it{hint}")
    for attribute, options in marked.items():
        hook = options.get("specname") or attribute
        if hook not in _SPECS:
            wrong.append(f"there is no hook {hook!r}{nearest(hook, _SPECS)}")
            continue
        function = getattr(cls, attribute)
        if options.get("wrapper") or options.get("hookwrapper"):
            wrong.append(f"{attribute} may not be a wrapper: an observer is told of what happens and changes nothing")
        if inspect.iscoroutinefunction(function):
            wrong.append(f"{attribute} is async: a hook runs between the steps of the run and is not awaited")
        unknown = [p for p in list(inspect.signature(function).parameters)[1:] if p not in _SPECS[hook].parameters]
        if unknown:
            has = [p for p in _SPECS[hook].parameters if p != "self"]
            wrong.append(f"{attribute} takes {', '.join(map(repr, unknown))}; the hook has {', '.join(map(repr, has))}")
    if wrong:
        raise PluginError(f"{origin}: {'; '.join(wrong)}")


class _Guard:
    """What pluggy is given in an observer's place: its hooks, each of which logs what it raises instead of passing it
    on.
    """

    def __init__(self, observer: Observer, label: str) -> None:
        self._hooks = {
            attribute: _guarded(getattr(observer, attribute), label, options.get("specname") or attribute)
            for attribute, options in _implementations(type(observer)).items()
        }
        self.__dict__.update(self._hooks)

    def __dir__(self) -> list[str]:
        return list(self._hooks)


def _guarded(hook: Callable[..., Any], label: str, name: str) -> Callable[..., Any]:
    @functools.wraps(hook)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return hook(*args, **kwargs)
        except (Exception, SystemExit) as error:
            log.error(
                "observer_failed", observer=label, hook=name, error=f"{type(error).__name__}: {error}", exc_info=error
            )
            return None

    return call


class Observers:
    """The active observers of a run, in the configuration's order."""

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self.observers: Sequence[Observer] = tuple(observers)
        self._manager = pluggy.PluginManager("ferrule")
        self._manager.add_hookspecs(ObserverSpecs)
        # pluggy calls what was registered last first.
        for i, observer in reversed(list(enumerate(self.observers))):
            label = type(observer).name or type(observer).__name__
            check_observer(type(observer), f"observer {label!r}")
            self._manager.register(_Guard(observer, label), f"{i}:{label}")

    @classmethod
    def make(cls, uses: Iterable[Any]) -> Observers:
        """Construct the observers of a configuration (``RunConfig.observers``). PluginError naming the one that cannot
        be.
        """
        made = []
        for use in uses:
            try:
                made.append(use.make())
            except FerruleError:
                raise
            except (Exception, SystemExit) as error:
                raise PluginError(
                    f"observer {use.ref!r} could not be started: {type(error).__name__}: {error}"
                ) from error
        return cls(made)

    def call(self, hook: str, **kwargs: Any) -> None:
        """Tell every observer; *hook* with or without ``ferrule_`` before it. An exception in one is logged with its
        name, and the others are told.
        """
        name = hook if hook.startswith("ferrule_") else f"ferrule_{hook}"
        if name not in _SPECS:
            raise ValueError(f"there is no hook {name!r}{nearest(name, _SPECS)}")
        getattr(self._manager.hook, name)(**kwargs)
