"""Loading: a TOML file and its overrides to a :class:`RunConfig`, or one report of everything that is wrong."""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import attrs

from ..data import ModelSpec
from ..errors import ConfigError, Problem
from ..masking import remember
from ..plugins.registry import Registry, default_registry
from . import hints
from . import overrides as set_
from .checks import cross_checks, renderer_checks
from .explaining import provenance
from .lines import scan
from .model import beside
from .schema import RunConfig
from .structure import Place, Structurer

S = TypeVar("S")


@attrs.frozen(eq=False)
class Loaded:
    """A configuration that passed every check.

    path        the file; dir: its folder, which relative paths are below
    raw         the file and its overrides, merged, as plain data; relative paths of overrides made absolute, so that
                :func:`load_data` loads it again
    provenance  by path, where each value came from: ``file:line``, ``--set`` or ``default``
    registry    what resolved its references; ``registry.manifest()`` says what was loaded
    """

    config: RunConfig
    path: Path
    dir: Path
    raw: dict[str, Any]
    provenance: Mapping[Place, str]
    registry: Registry


def load(path: Path | str, overrides: Sequence[str] = (), registry: Registry | None = None) -> Loaded:
    """Load *path* with the ``--set`` *overrides*. ConfigError holds every mistake, each with its path and line."""
    data, lines = _read(Path(path))
    return load_data(data, path, overrides, registry, lines=lines)


def load_config(
    schema: type[S], path: Path | str, overrides: Sequence[str] = (), registry: Registry | None = None
) -> S:
    """Load *path* as *schema*, an attrs class of one's own whose fields may be :class:`ferrule.Use` of a kind,
    :class:`ferrule.ModelSpec` and other attrs classes: for a program that is configured as a run is.

    ConfigError holds every mistake, each with its path and line.
    """
    raw, lines = _read(Path(path))
    structurer, good, problems = _structure(schema, raw, Path(path), overrides, registry, lines)
    problems += renderer_checks(structurer)
    return _build(schema, good, problems, str(path))


def _read(path: Path) -> tuple[dict[str, Any], dict[Place, int]]:
    """The data of a TOML file, and the line of each key."""
    source = str(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            [Problem((), f"is not UTF-8 ({error.reason} at byte {error.start})", source=source)]
        ) from error
    except OSError as error:
        raise ConfigError(
            [Problem((), "no such file" if not path.exists() else f"cannot be read: {error.strerror}", source=source)]
        ) from error
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"line (\d+)", str(error))
        line = int(at[1]) if at else text.count("\n") + 1
        raise ConfigError([Problem((), f"is not TOML: {error}", line, source)]) from error
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits, lists thousands deep
        raise ConfigError([Problem((), f"cannot be read: {' '.join(str(error).split())}", source=source)]) from error
    return data, scan(text)


def load_data(
    data: Mapping[str, Any],
    path: Path | str,
    overrides: Sequence[str] = (),
    registry: Registry | None = None,
    *,
    lines: Mapping[Place, int] | None = None,
) -> Loaded:
    """Load plain data as if it stood in the file *path*, which need not exist (``Loaded.raw`` of an earlier load, to
    go on with a run).
    """
    path = Path(path)
    registry = default_registry() if registry is None else registry
    try:
        raw: dict[str, Any] = copy.deepcopy(dict(data))
    except RecursionError as error:
        raise ConfigError([Problem((), "cannot be read: its tables are nested too deep", source=str(path))]) from error
    structurer, good, problems = _structure(RunConfig, raw, path, overrides, registry, lines or {})
    problems += cross_checks(good, raw, structurer, registry)
    config = _build(RunConfig, good, problems, str(path))
    for place, absolute in structurer.absolute.items():
        if structurer.set_by(place) is not None:
            _put(raw, place, absolute)
    return Loaded(config, path, structurer.base, raw, provenance(config, raw, structurer), registry)


def _structure(
    schema: type,
    raw: dict[str, Any],
    path: Path,
    overrides: Sequence[str],
    registry: Registry | None,
    lines: Mapping[Place, int],
) -> tuple[Structurer, dict[str, Any], list[Problem]]:
    """Apply *overrides* to *raw*; the fields of *schema* that are right, and all that is wrong."""
    set_at, problems = _override(schema, raw, overrides)
    remember(raw)
    structurer = Structurer(
        default_registry() if registry is None else registry,
        base=path.absolute().parent,
        cwd=Path.cwd(),
        source=str(path),
        lines=lines,
        sets=set_at,
    )
    structurer.model = raw.get("model")
    good, bad = structurer.fields(schema, raw)
    if isinstance(good.get("model"), ModelSpec):
        good["model"] = beside(good["model"], structurer)
    return structurer, good, problems + bad


def _build(schema: type[S], good: Mapping[str, Any], problems: Sequence[Problem], source: str) -> S:
    if problems:
        raise ConfigError(sorted(problems, key=_order))
    try:
        return schema(**good)
    except Exception as error:  # a class-level rule that no field's validator holds
        raise ConfigError([Problem((), str(error), source=source)]) from error


def _override(schema: type, raw: dict[str, Any], texts: Sequence[str]) -> tuple[dict[Place, str], list[Problem]]:
    hints.resolve(schema)
    fields = {field.name: hints.arms(field.type) for field in attrs.fields(schema)}

    def is_list(key: str) -> bool:
        return any(map(hints.is_sequence, fields.get(key, ())))

    def is_use(key: str) -> bool:
        return any(
            hints.is_use(arm) or (hints.holds_tables(arm) and hints.is_use(arm.__args__[0]))
            for arm in fields.get(key, ())
        )

    at: dict[Place, str] = {}
    problems = []
    for text in texts:
        parsed = set_.parse(text)
        placed = parsed if isinstance(parsed, Problem) else set_.apply(raw, parsed, is_list, is_use)
        if isinstance(placed, Problem):
            problems.append(placed)
        elif isinstance(parsed, set_.Override):
            leaf, made = placed
            at = {place: by for place, by in at.items() if place[: len(leaf)] != leaf}
            at[leaf] = at[made] = parsed.source
    return at, problems


def _put(raw: Any, place: Place, value: str) -> None:
    for part in place[:-1]:
        raw = raw[part]
    raw[place[-1]] = value


def _order(problem: Problem) -> tuple[bool, int]:
    return problem.line is None, problem.line or 0
