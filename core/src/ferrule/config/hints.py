"""What a configuration class's annotations mean, string annotations of a plugin's ``Config`` included."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from ..errors import PluginError
from ..kinds import KINDS, Observer, Plugin
from .use import Use


def resolve(cls: type, owner: type | None = None) -> None:
    """Turn the string annotations of *cls* into types; names are looked up in its module, then in *owner*, the
    plugin class around it.
    """
    if not any(isinstance(field.type, str) for field in attrs.fields(cls)):
        return
    local: dict[str, Any] = {}
    for base in reversed(owner.__mro__ if owner is not None else ()):
        local |= {
            name: value for name, value in vars(base).items() if isinstance(value, type) or typing.get_origin(value)
        }
        local[base.__name__] = base
    local[cls.__name__] = cls
    try:
        attrs.resolve_types(cls, localns=local, include_extras=True)
    except Exception as error:
        hint = "; import the name at run time, not under TYPE_CHECKING" if isinstance(error, NameError) else ""
        raise PluginError(f"the annotations of {cls.__qualname__} cannot be read: {error}{hint}") from error


def is_attrs(annotation: Any) -> bool:
    return isinstance(annotation, type) and attrs.has(annotation)


def is_use(annotation: Any) -> bool:
    return typing.get_origin(annotation) is Use


def is_sequence(annotation: Any) -> bool:
    origin = typing.get_origin(annotation) or annotation
    return (
        isinstance(origin, type)
        and issubclass(origin, list | tuple | set | frozenset | Sequence)
        and origin not in (str, bytes)
    )


def is_mapping(annotation: Any) -> bool:
    origin = typing.get_origin(annotation) or annotation
    return isinstance(origin, type) and issubclass(origin, Mapping)


def arms(annotation: Any) -> tuple[Any, ...]:
    """The members of a union; of anything else, itself alone."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def holds_tables(annotation: Any) -> bool:
    """Whether it is a sequence of tables."""
    return is_sequence(annotation) and any(is_attrs(e) or is_use(e) for e in typing.get_args(annotation))


def kind_of(annotation: Any) -> str:
    """The kind that ``Use[Base]`` names."""
    (base,) = typing.get_args(annotation)
    if base is Observer:
        return "observer"
    return next(kind.name for kind in KINDS.values() if kind.base is base)


def shown(annotation: Any) -> str:
    """A type as messages name it, in TOML's words."""
    words = {
        str: "text",
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        type(None): "nothing",
        dict: "a table",
    }
    if annotation in words:
        return words[annotation]
    if is_use(annotation):
        return f"a {kind_of(annotation)}"
    if typing.get_origin(annotation) is typing.Literal:
        return "one of " + ", ".join(map(repr, typing.get_args(annotation)))
    if is_sequence(annotation):
        return "a list"
    if is_mapping(annotation) or is_attrs(annotation):
        return "a table"
    if isinstance(annotation, type) and annotation.__module__ == "pathlib":
        return "a path"
    return getattr(annotation, "__name__", str(annotation).replace("typing.", ""))


def default(field: attrs.Attribute[Any]) -> Any:
    """A field's default value, made by its factory where it has one; NOTHING where there is none that stands alone."""
    value: Any = field.default
    if isinstance(value, attrs.Factory):  # type: ignore[arg-type]
        return attrs.NOTHING if value.takes_self else value.factory()
    return value


def option(owner: type[Plugin]) -> tuple[attrs.Attribute[Any], ...]:
    """The options of a plugin class, types resolved."""
    resolve(owner.Config, owner)
    return tuple(field for field in attrs.fields(owner.Config) if field.init)
