"""The ``[model]`` section: folders beside the configuration, and the model's public id."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from .structure import Place, Structurer


def beside(model: Any, structurer: Structurer) -> Any:
    """Model folders that lie beside the configuration, made absolute; any other name is the trainer's service's to
    know.
    """
    changes = {}
    for name in ("path", "tokenizer"):
        value = getattr(model, name)
        if value is not None:
            folder = _folder(value, structurer.folder(("model", name)))
            if folder is not None:
                changes[name] = structurer.absolute["model", name] = str(folder.resolve())
    return attrs.evolve(model, **changes)


def model_id(model: Any, base: Callable[[Place], Path]) -> str | None:
    """The public id of the model that the section *model*, as given, is about: ``id``; else ``path`` or ``tokenizer``
    where that is a name and no folder; else what the folder's own configuration names. None where nothing tells.
    """
    if not isinstance(model, Mapping):
        return None
    if isinstance(model.get("id"), str):
        return str(model["id"])
    for name in ("path", "tokenizer"):
        value = model.get(name)
        if not isinstance(value, str) or not value:
            continue
        folder = _folder(value, base(("model", name)))
        if folder is None:
            return value
        for file, key in (("config.json", "_name_or_path"), ("tokenizer_config.json", "name_or_path")):
            try:
                named = json.loads((folder / file).read_text(encoding="utf-8")).get(key)
            except (OSError, ValueError, AttributeError):
                continue
            if isinstance(named, str) and named.count("/") == 1 and not named.startswith((".", "/", "~")):
                return named
    return None


def _folder(value: str, base: Path) -> Path | None:
    folder = base / Path(value).expanduser()
    try:
        return folder if folder.is_dir() else None
    except OSError:  # a name that no folder can have
        return None
