"""From a tokenizer's folder and a renderer's name to the parts of a renderer. Imports the cookbook, and torch with it,
so the class itself need not.
"""

from __future__ import annotations

import difflib
import re
from importlib import import_module
from typing import Any

import attrs

from ferrule import Encoder, ModelSpec, PluginError, Unencodable

from .bridging import Bridging
from .cookbook import Cookbook, Refused
from .learning import Learned, learn
from .marking import MarkedTokenizer
from .parsing import Parser
from .rendering import Rendering

REFUSALS = (Refused, Unencodable)

_WHOLE = re.compile(r"tml_v0|kimi_k31_pro\w*")
"""Renderers that hand whole conversations to tml-renderers, with a tokenizer of its own."""


@attrs.frozen(eq=False)
class Parts:
    """What a renderer is made of."""

    encoder: Encoder
    learned: Learned
    rendering: Rendering
    bridging: Bridging
    parser: Parser
    stop_ids: frozenset[int]
    vocab_size: int


def load(config: Any, model: ModelSpec) -> Parts:
    """Make the cookbook's renderer and learn what it does. PluginError, saying what to do, where that cannot be."""
    folder = model.tokenizer_path
    if folder is None:
        raise PluginError("renderer 'tinker' needs a tokenizer: set model.tokenizer (or model.path) to its folder")
    try:
        from tinker_cookbook import renderers
    except ImportError as error:
        raise PluginError(
            f"renderer 'tinker' needs tinker-cookbook with all that its renderers import: {error}"
        ) from error
    for module in config.imports:
        try:
            import_module(module)
        except Exception as error:  # a module may raise anything
            raise PluginError(f"renderer 'tinker' cannot import {module!r} (renderer.imports): {error}") from error
    name = config.name or _recommended(model, renderers)
    tokenizer = _tokenizer(folder)
    encoder = Encoder(tokenizer.backend_tokenizer)
    marked = MarkedTokenizer(tokenizer, encoder)
    renderer = _make(name, marked, model, folder, renderers)
    _set(config, name, renderer)
    cookbook = Cookbook(name, renderer, marked, encoder, renderers.ToolCall)
    try:
        learned = learn(cookbook)
    except REFUSALS as refusal:
        raise PluginError(f"renderer 'tinker' cannot use {name!r} with {folder!r}: {refusal}") from refusal
    stop_ids = {*learned.stops}
    if tokenizer.eos_token_id is not None:
        stop_ids.add(int(tokenizer.eos_token_id))
    if not stop_ids:
        stops = ", ".join(map(repr, learned.text_stops))
        raise PluginError(
            f"{name!r} ends a reply with the text {stops}, and the tokenizer in {folder!r} has no EOS token"
        )
    rendering = Rendering(cookbook, learned, config.train_on)
    return Parts(
        encoder,
        learned,
        rendering,
        Bridging(rendering, config.thinking == "keep"),
        Parser(cookbook, learned, frozenset(stop_ids)),
        frozenset(stop_ids),
        max(len(tokenizer), encoder.size),
    )


def known_names(renderers: Any) -> list[str]:
    """Every name that can be chosen: those that the cookbook documents, and those registered with it."""
    documented = re.findall(r'``"(\w+)"``', renderers.get_renderer.__doc__ or "")
    names = {*documented, *renderers.get_registered_renderer_names()}
    return sorted(n for n in names if not _WHOLE.fullmatch(n))


def _recommended(model: ModelSpec, renderers: Any) -> str:
    """The renderer that the cookbook recommends for ``model.id``."""
    from tinker_cookbook.model_info import get_recommended_renderer_name

    choices = ", ".join(known_names(renderers))
    if model.id is None:
        raise PluginError(
            f"renderer 'tinker' does not know which of the cookbook's renderers to use: set renderer.name, or model.id "
            f"to the model's public name. Known names: {choices}"
        )
    try:
        return str(get_recommended_renderer_name(model.id))
    except Exception as error:  # an unknown organization and an unknown model raise errors of different kinds
        raise PluginError(
            f"tinker-cookbook recommends no renderer for model.id = {model.id!r}: set renderer.name. "
            f"Known names: {choices}"
        ) from error


def _tokenizer(folder: str) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # whatever is wrong with the folder
        raise PluginError(f"renderer 'tinker' cannot load a tokenizer from {folder!r}: {error}") from error
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise PluginError(
            f"renderer 'tinker' needs a fast tokenizer (tokenizer.json); {folder!r} holds a {type(tokenizer).__name__}, "
            "which has no Rust backend"
        )
    return tokenizer


def _make(name: str, tokenizer: MarkedTokenizer, model: ModelSpec, folder: str, renderers: Any) -> Any:
    if _WHOLE.fullmatch(name):
        raise PluginError(
            f"{name!r} of tinker-cookbook hands whole conversations to tml-renderers: use the renderer 'tml' for it"
        )
    if name not in (known := known_names(renderers)):
        near = difflib.get_close_matches(name, known, 1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        try:
            return renderers.get_renderer(name, tokenizer, None, model.id or folder)
        except Exception as error:
            raise PluginError(
                f"tinker-cookbook has no renderer {name!r}{hint}; it has {', '.join(known)}. One of another package needs "
                "the module that registers it in renderer.imports"
            ) from error
    try:
        return renderers.get_renderer(name, tokenizer, None, model.id or folder)
    except Exception as error:  # an assertion, most often: a control token that the vocabulary lacks
        raise PluginError(
            f"renderer {name!r} of tinker-cookbook does not fit the tokenizer in {folder!r}: {error}"
        ) from error


def _set(config: Any, name: str, renderer: Any) -> None:
    """What the configuration changes in the cookbook's renderer, which reads its options from its attributes."""
    if config.thinking == "keep" and hasattr(renderer, "strip_thinking_from_history"):
        renderer.strip_thinking_from_history = False
    for key, value in config.args.items():
        if key.startswith("_") or callable(getattr(renderer, key, None)) or not hasattr(renderer, key):
            options = [k for k in {**vars(type(renderer)), **vars(renderer)} if not k.startswith("_")]
            options = sorted(k for k in options if not callable(getattr(renderer, k, None)) and k != "tokenizer")
            raise PluginError(f"renderer {name!r} has no option {key!r} (renderer.args); it has {', '.join(options)}")
        setattr(renderer, key, value)
