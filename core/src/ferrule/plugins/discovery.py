"""Discovery: which plugins are installed, from metadata alone. Nothing of a plugin is imported here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import attrs

COMMANDS = "ferrule.commands"
HOOKS = "ferrule.hooks"


def norm(name: str) -> str:
    """*name* as names are compared: case, ``-``, ``_`` and ``.`` make no difference."""
    return re.sub(r"[-_.]+", "-", name).lower()


@attrs.define(eq=False, slots=False)
class Dist:
    """An installed distribution. Name, version, summary and requirements are read once, when first asked for."""

    key: str
    source: Any = attrs.field(repr=False)
    location: str = ""

    @cached_property
    def name(self) -> str:
        return self._header("Name") or self.key

    @cached_property
    def version(self) -> str:
        return self._header("Version") or "unknown"

    @cached_property
    def summary(self) -> str:
        """Its author's one line on what it is; '' for none."""
        return self._header("Summary") or ""

    @cached_property
    def requires(self) -> tuple[str, ...]:
        return tuple(self.source.requires or ())

    @cached_property
    def complete(self) -> bool:
        """False for what a broken uninstall leaves: a folder without metadata."""
        return bool(self.source.read_text("METADATA") or self.source.read_text("PKG-INFO"))

    def _header(self, name: str) -> str | None:
        if not self.complete:
            return None
        value = self.source.metadata.get(name)
        return str(value) if value else None

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@attrs.frozen(eq=False)
class Candidate:
    """One entry point: a plugin that can be named, not yet imported. ``value`` is ``package.module:Class``."""

    kind: str
    name: str
    value: str
    dist: Dist

    @property
    def spelling(self) -> str:
        """The reference that no other distribution can answer to."""
        return f"{self.name}@{self.dist.name}"


@attrs.frozen
class Finding:
    """Something odd among the installed metadata, and what was made of it."""

    distribution: str
    location: str
    message: str


def discover(groups: Mapping[str, str], path: Sequence[str] | None = None) -> tuple[list[Candidate], list[Finding]]:
    """Every entry point in *groups* (entry-point group → kind), of the distributions on *path* (default: ``sys.path``).

    A distribution found more than once counts once: metadata of an installer goes before a build's ``egg-info``, then
    the order of the path decides, as it does for imports, and in one folder the newest version; an empty folder never
    counts. Each such choice is a :class:`Finding`.
    """
    import importlib_metadata

    found = importlib_metadata.distributions() if path is None else importlib_metadata.distributions(path=list(path))
    copies: dict[str, list[Dist]] = {}
    offering: set[str] = set()
    seen: set[str] = set()
    for source in found:
        location = _location(source)
        if location in seen:
            continue
        seen.add(location)
        key = norm(getattr(source, "_normalized_name", None) or source.metadata["Name"] or "")
        copies.setdefault(key, []).append(Dist(key, source, location))
        text = source.read_text("entry_points.txt")
        if text and "ferrule." in text:
            offering.add(key)
    candidates, findings = [], []
    for key in offering:
        dist, odd = _choose(copies[key])
        findings += odd
        if dist is None:
            continue
        for point in dist.source.entry_points:
            kind = groups.get(point.group)
            if kind is not None:
                candidates.append(Candidate(kind, point.name, point.value, dist))
    candidates.sort(key=lambda c: (c.kind, norm(c.name), c.dist.key))
    return candidates, findings


def _location(source: Any) -> str:
    path = getattr(source, "_path", None)
    return os.path.realpath(str(path)) if path is not None else f"{source.locate_file('')}/{source.metadata['Name']}"


def _choose(copies: Sequence[Dist]) -> tuple[Dist | None, list[Finding]]:
    if len(copies) == 1 and copies[0].complete:
        return copies[0], []
    whole = [dist for dist in copies if dist.complete]
    empty = [
        Finding(d.key, d.location, "a folder without metadata, left by a broken uninstall; it was passed over")
        for d in copies
        if not d.complete
    ]
    if not whole:
        return None, empty
    folders: dict[str, int] = {}
    for dist in whole:
        folders.setdefault(os.path.dirname(dist.location), len(folders))

    def rank(dist: Dist) -> tuple[bool, int]:
        return dist.location.endswith(".egg-info"), folders[os.path.dirname(dist.location)]

    best = min(map(rank, whole))
    chosen = max((dist for dist in whole if rank(dist) == best), key=lambda dist: _version(dist.version))
    others = [
        Finding(d.name, d.location, f"another copy, {d.version}; {chosen.version} at {chosen.location} was taken")
        for d in whole
        if d is not chosen
    ]
    return chosen, empty + others


def _version(text: str) -> Any:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(text)
    except InvalidVersion:
        return Version("0.dev0")


def switched_off(candidate: Candidate, environ: Mapping[str, str]) -> str | None:
    """The environment variable that switches *candidate* off, or None.

    ``FERRULE_PLUGINS`` keeps only what it lists (``none``: nothing), ``FERRULE_DISABLE`` leaves out what it lists; a
    list holds names of plugins, of distributions, or ``name@distribution``, between commas.
    """
    names = {norm(candidate.name), norm(candidate.dist.key), f"{norm(candidate.name)}@{norm(candidate.dist.key)}"}
    only = environ.get("FERRULE_PLUGINS")
    if only is not None and only.strip() and not names & _listed(only):
        return "FERRULE_PLUGINS"
    if names & _listed(environ.get("FERRULE_DISABLE", "")):
        return "FERRULE_DISABLE"
    return None


def _listed(text: str) -> set[str]:
    items: Iterable[str] = (item.strip() for item in text.split(","))
    return {"@".join(map(norm, item.split("@"))) for item in items if item and item.lower() != "none"}
