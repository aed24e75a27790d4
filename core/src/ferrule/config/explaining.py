"""Where each value of a configuration came from, in rows for printing."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from .secrets import HIDDEN, on_secret_path
from .use import Use

if TYPE_CHECKING:
    from .loader import Loaded
    from .structure import Place, Structurer


@attrs.frozen
class Explained:
    """One value: its ``path`` as written (``losses[0].coef``), the plain ``value``, and ``where`` it came from."""

    path: str
    value: Any
    where: str


def explain(loaded: Loaded) -> list[Explained]:
    """Every value in force, defaults and the plugins' own options included; secrets are hidden."""
    from ..errors import Problem

    rows = []
    for place, value in leaves(loaded.config):
        shown = HIDDEN if on_secret_path(place) and isinstance(value, str) and value else value
        rows.append(Explained(Problem(place, "").where, shown, loaded.provenance.get(place, "default")))
    return rows


def leaves(value: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """The plain values of a configuration, by path. A plugin's reference stands under ``use``."""
    if isinstance(value, Use):
        yield (*place, "use"), value.ref
        yield from leaves(value.config, place)
    elif attrs.has(type(value)):
        for field in attrs.fields(type(value)):
            if field.init:
                yield from leaves(getattr(value, field.name), (*place, field.alias or field.name))
    elif isinstance(value, Mapping) and value:
        for key, each in value.items():
            yield from leaves(each, (*place, key))
    elif isinstance(value, list | tuple) and any(
        isinstance(each, Use | Mapping) or attrs.has(type(each)) for each in value
    ):
        for i, each in enumerate(value):
            yield from leaves(each, (*place, i))
    else:
        yield place, plain(value)


def plain(value: Any) -> Any:
    """*value* as JSON has it."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, set | frozenset):
        return sorted(map(plain, value), key=str)
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def provenance(config: Any, raw: Mapping[str, Any], structurer: Structurer) -> dict[Place, str]:
    """``file:line``, ``--set`` or ``default`` for each of the :func:`leaves`."""
    out = {}
    for place, _ in leaves(config):
        given = _given(raw, place)
        if given is None:
            out[place] = "default"
        elif structurer.set_by(given) is not None:
            out[place] = "--set"
        else:
            line = structurer.problem("", given).line
            out[place] = f"{structurer.source}:{line}" if line else structurer.source
    return out


def _given(raw: Any, place: Place) -> Place | None:
    """Where *place* stands in the data as given; None where it does not. ``renderer = "x"`` gives ``renderer.use``."""
    for n, part in enumerate(place):
        if isinstance(raw, str) and place[n:] == ("use",):
            return place[:n]
        try:
            raw = raw[part] if isinstance(raw, Mapping | list | tuple) else None  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            return None
        if raw is None:
            return None
    return place
