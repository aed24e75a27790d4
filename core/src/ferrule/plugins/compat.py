"""Whether a plugin fits this core: its requirement, before anything of it is imported, and its class, after."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, get_args

from .. import __version__
from ..errors import PluginError
from .discovery import Dist, norm

if TYPE_CHECKING:
    from ..kinds import Kind


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint to end a message with: the nearest of *known*, or all of them where none is near."""
    names = sorted(set(known))
    near = difflib.get_close_matches(name, names, 5)
    if near:
        return f"; did you mean {min(near, key=lambda known: _slips(name, known))!r}?"
    return f"; known: {', '.join(names)}" if names else ""


def _slips(written: str, meant: str) -> int:
    """How many slips of the hand lie between the two: a letter too many, too few or wrong, or two swapped (optimal
    string alignment).
    """
    before, last = [0] * (len(meant) + 1), list(range(len(meant) + 1))
    for i, a in enumerate(written, 1):
        row = [i]
        for j, b in enumerate(meant, 1):
            row.append(min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (a != b)))
            if i > 1 and j > 1 and a == meant[j - 2] and written[i - 2] == b:
                row[j] = min(row[j], before[j - 2] + 1)
        before, last = last, row
    return last[-1]


def core_mismatch(dist: Dist, core: str = __version__) -> str | None:
    """Why *dist* does not go with this core, by its own requirements (markers included); None where it does."""
    from packaging.requirements import InvalidRequirement, Requirement

    for text in dist.requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if norm(requirement.name) != "ferrule":
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        if not requirement.specifier.contains(core, prereleases=True):
            return f"{dist} needs ferrule{requirement.specifier}, and this is ferrule {core}"
    return None


def check_class(kind: Kind, found: Any, origin: str) -> type:
    """*found*, if it is a whole class of *kind* with a contract version that this core supports; else PluginError."""
    if not isinstance(found, type):
        raise PluginError(f"{origin} is not a class but {type(found).__name__}: {found!r:.80}")
    if not issubclass(found, kind.base):
        raise PluginError(f"{origin} is not one: it does not extend ferrule.{kind.base.__name__}{_what(found)}")
    api = found.api
    oldest = max(1, kind.api - 1)
    if type(api) is not int or not oldest <= api <= kind.api:
        supported = str(kind.api) if oldest == kind.api else f"{oldest} and {kind.api}"
        raise PluginError(
            f"{origin} is written for version {api!r} of the {kind.name} contract; this core supports {supported}"
        )
    if inspect.isabstract(found):
        missing = ", ".join(sorted(getattr(found, "__abstractmethods__", ())))
        raise PluginError(f"{origin} is not finished: it does not define {missing}")
    if kind.name == "loss":
        _check_loss(found, origin)
    return found


def _check_loss(found: Any, origin: str) -> None:
    """What a loss class declares is read when the first step is made, hours after the configuration was checked."""
    from ..data import Mask
    from ..kinds.loss import Reduction

    reductions = get_args(Reduction)
    mask, reduction, needs = found.mask, found.reduction, found.needs
    if not isinstance(mask, Mask | property):  # a property chooses by the loss's options
        raise PluginError(f"{origin}: its mask must be one of {', '.join(map(str, Mask))}, not {mask!r:.80}")
    if not isinstance(reduction, property) and reduction not in reductions:
        raise PluginError(
            f"{origin}: its reduction must be one of {', '.join(map(repr, reductions))}, not {reduction!r:.80}"
        )
    if not isinstance(needs, set | frozenset | tuple | list) or not all(isinstance(need, str) for need in needs):
        raise PluginError(
            f"{origin}: its needs must be a set of names, as frozenset({{'logprobs'}}), not {needs!r:.80}"
        )


def _what(found: type) -> str:
    from ..kinds import KINDS

    other = next((kind for kind in KINDS.values() if issubclass(found, kind.base)), None)
    return f"; it is of the kind {other.name!r}" if other else ""
