"""From a tokenizer's folder to the parts of a renderer. Imports transformers, so the class itself need not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs

from ferrule import Encoder, ModelSpec, PluginError, ReplyParser, Unencodable

from .bridging import Bridging
from .grammar import Grammar, learn
from .rendering import Rendering
from .template import Refused, Template

REFUSALS = (Refused, Unencodable)


@attrs.frozen(eq=False)
class Parts:
    """What a renderer is made of."""

    encoder: Encoder
    grammar: Grammar
    rendering: Rendering
    bridging: Bridging
    parser: ReplyParser
    vocab_size: int


def load(config: Any, model: ModelSpec) -> Parts:
    """Load the tokenizer that *model* names and learn its template. PluginError with the path where that cannot be."""
    folder = model.tokenizer_path
    if folder is None:
        raise PluginError(
            "renderer 'chat_template' needs a tokenizer: set model.tokenizer (or model.path) to its folder"
        )
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        raise PluginError(f"renderer 'chat_template' cannot load a tokenizer from {folder!r}: {error}") from error
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise PluginError(
            f"renderer 'chat_template' needs a fast tokenizer; {folder!r} holds a {type(tokenizer).__name__}, which has no Rust backend"
        )
    source = _source(config, tokenizer, folder)
    encoder = Encoder(backend)
    specials = {k: v for k, v in tokenizer.special_tokens_map.items() if isinstance(v, str)}
    template = Template(source, specials, config.template_args, encoder)
    try:
        grammar = learn(template, encoder, _ends(tokenizer, folder))
    except Refused as refusal:
        raise PluginError(
            f"renderer 'chat_template' cannot use the chat template of {folder!r}: {refusal}"
        ) from refusal
    return Parts(
        encoder,
        grammar,
        Rendering(template, grammar, encoder),
        Bridging(template, grammar, encoder, config.thinking == "keep"),
        ReplyParser(encoder, grammar.stop_ids),
        len(tokenizer),
    )


def _source(config: Any, tokenizer: Any, folder: str) -> str:
    if config.template is not None:
        try:
            return Path(config.template).read_text(encoding="utf-8")
        except OSError as error:
            raise PluginError(f"renderer 'chat_template' cannot read its template: {error}") from error
    source = tokenizer.chat_template
    if isinstance(source, dict):
        source = source.get("tool_use") or source.get("default")
    if not source:
        raise PluginError(f"the tokenizer in {folder!r} has no chat template: set renderer.template to a Jinja file")
    return str(source)


def _ends(tokenizer: Any, folder: str) -> list[int]:
    """The ids that end a sequence: the tokenizer's own, and those that the folder's generation settings name."""
    ends = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
    try:
        named = json.loads((Path(folder) / "generation_config.json").read_text(encoding="utf-8")).get("eos_token_id")
    except (OSError, ValueError, AttributeError):
        named = None
    ends += named if isinstance(named, list) else [named] if isinstance(named, int) else []
    return [i for i in dict.fromkeys(ends) if isinstance(i, int)]
