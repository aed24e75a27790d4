"""Plain data to attrs classes, field by field, keeping every mistake with its path.

cattrs dispatches on types; the hooks here are strict (``"1.5"`` is no number, ``1`` is no truth value, ``inf`` is
refused) and never stop at the first mistake. One :class:`Structurer` serves one load: it knows where it is in the
data, and so where each value came from.
"""

from __future__ import annotations

import contextlib
import enum
import math
import os
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import cattrs

from ..errors import Problem
from ..plugins.compat import nearest
from ..plugins.registry import Registry
from . import hints
from .lines import line_of
from .model import model_id
from .secrets import HIDDEN, on_secret_path
from .use import Use

Place = tuple[str | int, ...]


class Mistakes(Exception):
    """Carries the problems of a value up to the table it stands in."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(*problems)
        self.problems = list(problems)


@attrs.frozen(eq=False)
class Chosen:
    """A ``use`` that resolved; ``config`` is None where the plugin's options have mistakes."""

    ref: str
    cls: type
    config: Any


class Structurer:
    """*base* is the folder that relative paths of the file are below, *cwd* that of ``--set``; *sets* says which
    paths came from which ``--set``.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        base: Path,
        cwd: Path,
        source: str,
        lines: Mapping[Place, int],
        sets: Mapping[Place, str],
    ) -> None:
        self.registry, self.base, self.cwd = registry, base, cwd
        self.source, self.lines, self.sets = source, lines, sets
        self.chosen: dict[Place, Chosen] = {}
        self.absolute: dict[Place, str] = {}
        self.model: Any = None
        """The model's section as it was given, by which ``renderer.use = "auto"`` chooses."""

        self._at: list[str | int] = []
        self._converter = self._hooks()

    # -- places ----------------------------------------------------------------------------------------------------

    @property
    def place(self) -> Place:
        return tuple(self._at)

    def set_by(self, place: Place) -> str | None:
        """The ``--set`` that *place* came from, or None."""
        return next((self.sets[place[:n]] for n in range(len(place), 0, -1) if place[:n] in self.sets), None)

    def folder(self, place: Place) -> Path:
        """The folder that a relative path at *place* is below."""
        return self.base if self.set_by(place) is None else self.cwd

    def problem(self, message: str, place: Place) -> Problem:
        """A problem that knows its line, or its ``--set``."""
        by = self.set_by(place)
        if by is not None:
            return Problem(place, message, source=by)
        return Problem(place, message, line_of(self.lines, place), self.source)

    @contextlib.contextmanager
    def _into(self, *parts: str | int) -> Iterator[None]:
        self._at.extend(parts)
        try:
            yield
        finally:
            del self._at[len(self._at) - len(parts) :]

    def _wrong(self, message: str, *below: str | int) -> Mistakes:
        return Mistakes([self.problem(message, (*self.place, *below))])

    def _got(self, value: Any) -> str:
        if on_secret_path(self.place):
            return HIDDEN
        if isinstance(value, Mapping):
            return "a table"
        if isinstance(value, list | tuple):
            return "a list"
        word = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}.get(type(value))
        text = repr(value) if not isinstance(value, bool) else str(value).lower()
        return f"{text:.80}" + (f" ({word})" if word and not isinstance(value, bool) else "")

    def _collect(self, error: BaseException) -> list[Problem]:
        if isinstance(error, Mistakes):
            return error.problems
        if isinstance(error, BaseExceptionGroup):
            return [problem for each in error.exceptions for problem in self._collect(each)]
        if on_secret_path(self.place):
            return [self.problem(f"this value is refused ({type(error).__name__})", self.place)]
        text = error.args[0] if error.args and isinstance(error.args[0], str) else str(error)
        return [self.problem(text or type(error).__name__, self.place)]

    # -- structuring -----------------------------------------------------------------------------------------------

    def structure(self, value: Any, annotation: Any) -> Any:
        """*value* as *annotation*; :class:`Mistakes` with all of them."""
        if annotation is None or annotation is Any or annotation is object:
            return value
        if typing.get_origin(annotation) is typing.Annotated:
            annotation = typing.get_args(annotation)[0]
        return self._converter.structure(value, annotation)

    def fields(self, cls: type, value: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
        """The fields of *cls* that are right, ready for its constructor, and all that is wrong."""
        hints.resolve(cls)
        known = {field.alias or field.name: field for field in attrs.fields(cls) if field.init}
        bad = [
            self.problem(f"unknown key{nearest(str(key), known)}", (*self.place, key))
            for key in value
            if key not in known
        ]
        raw: dict[str, Any] = {}
        converted: dict[str, Any] = {}
        for key, field in known.items():
            with self._into(key):
                if key not in value:
                    if field.default is attrs.NOTHING:
                        bad.append(self.problem("required, and missing", self.place))
                    elif isinstance(field.default, Path) and not field.default.is_absolute():
                        raw[key] = converted[key] = self.base / field.default
                    continue
                try:
                    raw[key] = self._field(key, field, value[key])
                    converted[key] = (
                        field.converter(raw[key])
                        if callable(field.converter) and not isinstance(field.converter, attrs.Converter)
                        else raw[key]
                    )
                except Exception as error:
                    raw.pop(key, None)
                    bad += self._collect(error)
        bad += self._validate(known, converted, raw)
        return raw, bad

    def _field(self, key: str, field: attrs.Attribute[Any], value: Any) -> Any:
        for arm in hints.arms(field.type):
            if hints.holds_tables(arm) and isinstance(value, Mapping):
                raise self._wrong(f"this is a list of tables: write [[{key}]] for each, not [{key}]")
            if (
                (hints.is_use(arm) or hints.is_attrs(arm))
                and isinstance(value, list)
                and all(isinstance(v, Mapping) for v in value)
                and value
            ):
                raise self._wrong(f"this is one table: write [{key}], not [[{key}]]")
        return self.structure(value, field.type)

    def _validate(
        self, known: Mapping[str, attrs.Attribute[Any]], converted: dict[str, Any], raw: dict[str, Any]
    ) -> list[Problem]:
        """Run each field's validator on its own, so that one failure hides no other; *raw* loses what fails."""
        stand = types.SimpleNamespace()
        for key, field in known.items():
            if key in converted:
                setattr(stand, field.name, converted[key])
            else:
                default = hints.default(field)
                if default is not attrs.NOTHING:
                    setattr(stand, field.name, default)
        bad: list[Problem] = []
        for key, value in converted.items():
            validator = known[key].validator
            if validator is None:
                continue
            with self._into(key):
                try:
                    validator(stand, known[key], value)
                except AttributeError:
                    continue  # it looks at a field that is itself wrong; the constructor runs it again
                except Exception as error:
                    raw.pop(key, None)
                    bad += self._collect(error)
        return bad

    def build(self, cls: type, value: Any) -> Any:
        """An instance of the attrs class *cls*."""
        if not isinstance(value, Mapping):
            raise self._wrong(f"expected a table, got {self._got(value)}")
        good, bad = self.fields(cls, value)
        if bad:
            raise Mistakes(bad)
        try:
            return cls(**good)
        except Exception as error:
            raise Mistakes(self._collect(error)) from error

    # -- hooks -----------------------------------------------------------------------------------------------------

    def _hooks(self) -> cattrs.Converter:
        converter = cattrs.Converter(detailed_validation=True)
        for cls, right in _PRIMITIVES.items():  # predicate hooks would lose to the built-in ones in silence
            converter.register_structure_hook(cls, self._primitive(cls, right))
        converter.register_structure_hook(Path, lambda value, _: self._path(value))
        converter.register_structure_hook(types.NoneType, self._primitive(types.NoneType, lambda value: value is None))
        hooks: list[tuple[Callable[[Any], bool], Callable[[Any], Callable[[Any, Any], Any]]]] = [
            (hints.is_mapping, self._mapping),
            (hints.is_sequence, self._sequence),
            (lambda t: isinstance(t, type) and issubclass(t, enum.Enum), self._enum),
            (lambda t: typing.get_origin(t) is typing.Literal, self._literal),
            (lambda t: typing.get_origin(t) in (typing.Union, types.UnionType), self._union),
            (hints.is_attrs, lambda cls: lambda value, _: self.build(cls, value)),
            (hints.is_use, self._use),
        ]
        for predicate, make in hooks:
            converter.register_structure_hook_factory(predicate, make)
        return converter

    def _primitive(self, cls: type, right: Callable[[Any], bool]) -> Callable[[Any, Any], Any]:
        def hook(value: Any, _: Any) -> Any:
            if not right(value):
                what = "a finite number" if cls is float and isinstance(value, float) else hints.shown(cls)
                raise self._wrong(f"expected {what}, got {self._got(value)}")
            return float(value) if cls is float else value

        return hook

    def _path(self, value: Any) -> Path:
        if not isinstance(value, str) or not value:
            raise self._wrong(f"expected a path, got {self._got(value)}")
        path = Path(os.path.normpath(self.folder(self.place) / Path(value).expanduser()))
        self.absolute[self.place] = str(path)
        return path

    def _elements(self, items: Iterator[tuple[Any, Any, Any]]) -> list[tuple[Any, Any]]:
        good, bad = [], []
        for key, value, annotation in items:
            with self._into(key):
                try:
                    good.append((key, self.structure(value, annotation)))
                except Exception as error:
                    bad += self._collect(error)
        if bad:
            raise Mistakes(bad)
        return good

    def _sequence(self, annotation: Any) -> Callable[[Any, Any], Any]:
        origin = typing.get_origin(annotation) or annotation
        args = typing.get_args(annotation)
        fixed = origin is tuple and args and args[-1] is not Ellipsis
        make: Callable[[Any], Any] = origin if origin in (list, tuple, set, frozenset) else tuple

        def hook(value: Any, _: Any) -> Any:
            if not isinstance(value, list | tuple):
                raise self._wrong(f"expected a list, got {self._got(value)}")
            if fixed and len(value) != len(args):
                raise self._wrong(f"expected {len(args)} elements, got {len(value)}")
            each = args if fixed else (args[0] if args else Any,) * len(value)
            return make(item for _, item in self._elements(zip(range(len(value)), value, each, strict=True)))

        return hook

    def _mapping(self, annotation: Any) -> Callable[[Any, Any], Any]:
        element = (typing.get_args(annotation) or (str, Any))[1]

        def hook(value: Any, _: Any) -> Any:
            if not isinstance(value, Mapping):
                raise self._wrong(f"expected a table, got {self._got(value)}")
            return dict(self._elements((key, each, element) for key, each in value.items()))

        return hook

    def _enum(self, cls: Any) -> Callable[[Any, Any], Any]:
        return self._among({member.value: member for member in cls})

    def _literal(self, annotation: Any) -> Callable[[Any, Any], Any]:
        return self._among({value: value for value in typing.get_args(annotation)})

    def _among(self, options: Mapping[Any, Any]) -> Callable[[Any, Any], Any]:
        def hook(value: Any, _: Any) -> Any:
            for option, meant in options.items():
                if type(option) is type(value) and option == value:
                    return meant
            names = [option for option in options if isinstance(option, str)]
            near = nearest(value, names) if isinstance(value, str) else ""
            raise self._wrong(
                f"expected one of {', '.join(map(repr, options))}, got {self._got(value)}{near if near.startswith('; did') else ''}"
            )

        return hook

    def _union(self, annotation: Any) -> Callable[[Any, Any], Any]:
        arms = [arm for arm in typing.get_args(annotation) if arm is not types.NoneType]
        optional = len(arms) < len(typing.get_args(annotation))
        tables = [arm for arm in arms if hints.is_attrs(arm) or hints.is_use(arm) or hints.is_mapping(arm)]

        def hook(value: Any, _: Any) -> Any:
            if value is None and optional:
                return None
            if len(arms) == 1:
                return self.structure(value, arms[0])
            if isinstance(value, Mapping) and len(tables) == 1:
                return self.structure(value, tables[0])
            for arm in sorted(arms, key=lambda arm: arm is not type(value)):
                with contextlib.suppress(Mistakes):
                    return self.structure(value, arm)
            raise self._wrong(f"expected {' or '.join(map(hints.shown, arms))}, got {self._got(value)}")

        return hook

    def _use(self, annotation: Any) -> Callable[[Any, Any], Any]:
        kind = hints.kind_of(annotation)

        def hook(value: Any, _: Any) -> Any:
            inner = () if isinstance(value, str) else ("use",)
            table = {"use": value} if isinstance(value, str) else value
            if not isinstance(table, Mapping):
                raise self._wrong(f"expected the name of a {kind} or a table with 'use', got {self._got(value)}")
            if "use" not in table:
                raise self._wrong(f"required, and missing: it names the {kind}", "use")
            ref = table["use"]
            where = (*self.place, *inner)
            if not isinstance(ref, str):
                raise self._wrong(f"expected the name of a {kind}, got {self._got(ref)}", *inner)
            why, guess = "", False
            try:
                folder = self.folder(where)
                reference = ref
                if kind == "renderer" and ref == "auto":
                    choice = self.registry.renderer_for(model_id(self.model, self.folder))
                    reference, why, guess = choice.reference, choice.why, choice.guess
                cls = self.registry.resolve(kind, reference, folder)
                hints.resolve(cls.Config, cls)  # type: ignore[attr-defined]
            except Exception as error:
                raise Mistakes([self.problem(str(error), where)]) from error
            if self.set_by(where) is not None and ".py:" in ref:
                self.absolute[where] = str(folder / ref)
            place = self.place
            self.chosen[place] = Chosen(ref, cls, None)
            config = self.build(cls.Config, {key: each for key, each in table.items() if key != "use"})  # type: ignore[attr-defined]
            self.chosen[place] = Chosen(ref, cls, config)
            return Use(ref, cls, config, why, guess)

        return hook


_PRIMITIVES: dict[type, Callable[[Any], bool]] = {
    bool: lambda value: type(value) is bool,
    int: lambda value: type(value) is int,
    str: lambda value: isinstance(value, str),
    float: lambda value: type(value) in (int, float) and math.isfinite(value),
}
