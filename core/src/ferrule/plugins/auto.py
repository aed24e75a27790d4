"""``renderer.use = "auto"``: the renderer that is written for a model, found by the model's public id from metadata alone.

A distribution says for which models its renderer may be chosen in the entry-point group ``ferrule.auto_renderers``:
each key is a model id (``Qwen/Qwen3-8B``) or the beginning of several with a ``*`` at its end (``Qwen/Qwen3-*``), its
value the renderer's class as in ``ferrule.renderers``.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from ..errors import PluginError
from .discovery import Candidate

GROUP = "ferrule.auto_renderers"
FALLBACK = "chat_template"


@attrs.frozen
class Choice:
    """What ``auto`` came to: a reference that resolves to one class, ``why`` for people, and whether it is a guess."""

    reference: str
    why: str
    guess: bool = False


def choose(model: str | None, patterns: Sequence[Candidate], renderers: Sequence[Candidate]) -> Choice:
    """The renderer for the public id *model*: an exact pattern goes before the longest beginning of one, and that
    before the tokenizer's own chat template, which is a guess.

    *patterns* are the entry points of :data:`GROUP`, *renderers* the candidates that they name by class. PluginError
    where two distributions claim the model alike, or no renderer is left.
    """
    best: list[tuple[str, Candidate]] = []
    rank = -1
    for pattern in patterns:
        size = _fits(pattern.name, model)
        target = next((r for r in renderers if r.dist.key == pattern.dist.key and r.value == pattern.value), None)
        if target is None or size < rank or size < 0:
            continue
        best = [*best, (pattern.name, target)] if size == rank else [(pattern.name, target)]
        rank = size
    if len(best) > 1:
        claims = " and ".join(f"{target.dist}" for _, target in best)
        names = " or ".join(repr(target.spelling) for _, target in best)
        raise PluginError(f"more than one renderer is written for {model!r} ({claims}): name one, use = {names}")
    if best:
        pattern_name, target = best[0]
        how = "by its id" if _fits(pattern_name, model) == len(model or "") + 1 else f"as one of {pattern_name}"
        return Choice(target.spelling, f"{target.dist.name} is written for {model} ({how})")
    fallback = [r for r in renderers if r.name == FALLBACK]
    known = (
        "model.id is not set, nor does the model's folder name it" if model is None else f"none is written for {model}"
    )
    if not fallback:
        raise PluginError(f"no renderer can be chosen: {known}, and renderer {FALLBACK!r} is not installed; name one")
    return Choice(
        fallback[0].spelling,
        f"{known}, so the tokenizer's own chat template is followed: a guess; name a renderer, or set model.id",
        guess=True,
    )


def _fits(pattern: str, model: str | None) -> int:
    """How much of *model* a pattern names: all of it and one more for the id itself, the length of a beginning, or -1."""
    if model is None:
        return -1
    pattern, model = pattern.casefold(), model.casefold()
    if pattern.endswith("*"):
        return len(pattern) - 1 if model.startswith(pattern[:-1]) else -1
    return len(model) + 1 if pattern == model else -1
