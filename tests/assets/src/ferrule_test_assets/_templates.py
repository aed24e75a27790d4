"""Real chat templates: those that trl keeps for many models, read from its files without importing it."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from . import _sources
from ._cache import cached

FOLDER = "trl/chat_templates"


def templates() -> list[str]:
    """The names of all chat templates."""
    return [path.stem for path in _sources.files("trl", FOLDER, ".jinja")]


def template(name: str) -> str:
    """The text of the chat template called *name*, one of :func:`templates`."""
    for path in _sources.files("trl", FOLDER, ".jinja"):
        if path.stem == name:
            return path.read_text(encoding="utf-8")
    raise LookupError(f"trl has no chat template {name!r}, only {', '.join(templates())}")


def text_of(name: str) -> str:
    """*name* itself where it is a template's text, else the template of that name."""
    return name if "{" in name else template(name)


def with_template(folder: Path, name: str) -> Path:
    """The tokenizer in *folder* with another chat template: one of :func:`templates`, or a template's own text."""
    text = text_of(name)
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.iterdir() if p.suffix == ".json"):
        digest.update(path.read_bytes())

    def build(out: Path) -> None:
        for path in folder.glob("*.json"):
            shutil.copyfile(path, out / path.name)
        (out / "chat_template.jinja").write_text(text, encoding="utf-8")

    return cached(f"{folder.name.rpartition('-')[0] or folder.name}-with", (), build, digest.hexdigest(), text)
