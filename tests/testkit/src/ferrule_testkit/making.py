"""A plugin made from a reference and options, as a run's configuration makes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ferrule import ConfigError, ModelSpec, Plugin, Renderer
from ferrule.config import Use
from ferrule.config.structure import Mistakes, Structurer
from ferrule.plugins import default_registry


def chosen(kind: type[Plugin], reference: Any, options: Mapping[str, Any], base: Path) -> Use[Any]:
    """The plugin that *reference* names, with its options read. ConfigError with every mistake; relative paths lie
    below *base*.
    """
    registry = default_registry()
    table = {**options, "use": reference}
    if isinstance(reference, type):
        table["use"] = "given"
        registry = _Given(reference)  # type: ignore[assignment]
    structurer = Structurer(registry, base=base, cwd=base, source=kind.__name__, lines={}, sets={})
    try:
        use: Use[Any] = structurer.structure(table, Use[kind])  # type: ignore[valid-type]
    except Mistakes as mistakes:
        raise ConfigError(mistakes.problems) from mistakes
    return use


class _Given:
    """Resolves every reference to one class: for a suite that holds the class itself."""

    def __init__(self, cls: type) -> None:
        self.cls = cls

    def resolve(self, kind: str, text: str, base: Path) -> type:
        return self.cls


def model_spec(given: ModelSpec | Path | str | Callable[[], Any] | None) -> ModelSpec:
    """A ModelSpec of whatever names the model."""
    found = given() if callable(given) else given
    if isinstance(found, ModelSpec):
        return found
    return ModelSpec(tokenizer=None if found is None else str(found))


def make_renderer(
    reference: Any, options: Mapping[str, Any], model: ModelSpec | Path | str | Callable[[], Any] | None, base: Path
) -> Renderer:
    """A renderer as a run would make it."""
    return chosen(Renderer, reference, options, base).make(model_spec(model))  # type: ignore[no-any-return]
