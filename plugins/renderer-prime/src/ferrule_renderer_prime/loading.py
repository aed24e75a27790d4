"""From the options and the model to one of the package's renderers. Imports the package, so the class itself need not."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import attrs
from pydantic import ValidationError
from renderers import create_renderer  # type: ignore[import-untyped]
from renderers.base import MODEL_RENDERER_MAP  # type: ignore[import-untyped]
from renderers.configs import config_from_name  # type: ignore[import-untyped]
from transformers import AutoTokenizer

from ferrule import Encoder, ModelSpec, PluginError

from .families import FAMILIES, Family
from .parsing import Parser
from .rendering import Rendering
from .tokenizer import Tokenizer


@attrs.frozen(eq=False)
class Parts:
    """What a renderer is made of."""

    family: str
    encoder: Encoder
    rendering: Rendering
    parser: Parser
    extends: bool
    vocab_size: int


def load(config: Any, model: ModelSpec) -> Parts:
    """Find the family, load the tokenizer, make the package's renderer. PluginError says which of it failed, and what
    to set.
    """
    name = _family(config.family, model)
    folder = model.tokenizer_path
    if folder is None:
        raise PluginError("renderer 'prime' needs a tokenizer: set model.tokenizer (or model.path) to its folder")
    try:
        inner = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        raise PluginError(f"renderer 'prime' cannot load a tokenizer from {folder!r}: {error}") from error
    backend = getattr(inner, "backend_tokenizer", None)
    if backend is None:
        raise PluginError(
            f"renderer 'prime' needs a fast tokenizer; {folder!r} holds a {type(inner).__name__}, which has no Rust backend"
        )
    encoder = Encoder(backend)
    family = FAMILIES.get(name, Family())
    # The package tells some variants of a family apart by the model's public id.
    tokenizer = Tokenizer(inner, encoder, model.id or model.path or folder, not family.literal)
    engine = _engine(name, family, config, tokenizer, folder)
    keeps = _kept(name, engine, tokenizer)
    rendering = Rendering(engine, keeps, name, family, tokenizer, encoder)
    # Nemotron's hint about effort moves with the last user message, so the package never extends with it.
    hinted = bool(getattr(engine, "_effort_hint", None))
    extends = name != "default" and engine.effective_thinking_retention != "template" and not hinted
    return Parts(name, encoder, rendering, Parser(engine, family, encoder, rendering.stop_ids), extends, encoder.size)


def _family(family: str | None, model: ModelSpec) -> str:
    """The name of the family: as set, else by the model's id in the package's own registry."""
    if family is not None:
        if family in FAMILIES:
            return family
        near = difflib.get_close_matches(family, FAMILIES, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise PluginError(
            f"renderer.family = {family!r} is none of the renderers package's{hint} They are {_listed()}."
        )
    known = next((MODEL_RENDERER_MAP[i] for i in (model.id, model.path) if i in MODEL_RENDERER_MAP), None)
    if known is not None:
        return str(known)
    who = f"the model {model.id or model.path!r}" if model.id or model.path else "a model without model.id"
    raise PluginError(
        f"the renderers package has no family for {who}: set renderer.family to the one whose template it has. "
        f"The families are {_listed()}. Its own fallback would be 'default', which cannot extend a conversation."
    )


def _listed() -> str:
    return ", ".join(sorted(FAMILIES))


def _engine(name: str, family: Family, config: Any, tokenizer: Tokenizer, folder: str) -> Any:
    typed: Any = config_from_name(name)
    options = dict(config.options)
    if "name" in options:
        raise PluginError("renderer.options names no family: set renderer.family")
    if config.thinking == "keep":
        if "thinking_retention" in options:
            raise PluginError(
                "renderer.options.thinking_retention and renderer.thinking = 'keep' say the same: set one"
            )
        options = {"thinking_retention": "all", **family.keep, **options}
    _known(name, type(typed), options)
    try:
        typed = type(typed).model_validate(options)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'options'}: {e['msg']}" for e in error.errors())
        raise PluginError(f"renderer.options do not suit the family {name!r}: {wrong}") from error
    try:
        return create_renderer(tokenizer, typed)
    except Exception as error:
        raise PluginError(_unmade(name, folder, error)) from error


def _known(name: str, typed: Any, options: Mapping[str, Any]) -> None:
    """One error for all options that the family does not have."""
    if name == "default":
        # Its options go to the chat template, which may read any name.
        return
    fields = sorted(set(typed.model_fields) - {"name"})
    unknown = [key for key in options if key not in fields]
    if unknown:
        near = difflib.get_close_matches(unknown[0], fields, 1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise PluginError(
            f"the family {name!r} has no option {', '.join(map(repr, unknown))}{hint}; "
            f"renderer.options may set {', '.join(fields)}"
        )


def _unmade(name: str, folder: str, error: Exception) -> str:
    said = " ".join(str(error).split()) or type(error).__name__
    if name == "gpt-oss" and "harmony" in f"{type(error).__module__}{said}".lower():
        return (
            f"renderer 'prime' cannot make 'gpt-oss': openai-harmony could not load its vocabulary ({said}). Without a "
            f"network, set TIKTOKEN_ENCODINGS_BASE to a folder that holds o200k_base.tiktoken"
        )
    return (
        f"renderer 'prime' cannot make {name!r} over the tokenizer in {folder!r}: {said}. Is renderer.family that of "
        f"this model?"
    )


def _kept(name: str, engine: Any, tokenizer: Tokenizer) -> Any:
    """The same renderer, extending whatever the template would strip; *engine* itself where it already does or cannot."""
    if name == "default" or engine.effective_thinking_retention != "tool_cycle":
        return engine
    if engine.config.thinking_retention is not None:
        return engine
    try:
        set_ones = {key: getattr(engine.config, key) for key in engine.config.model_fields_set}
        return type(engine)(tokenizer, type(engine.config).model_validate({**set_ones, "thinking_retention": "all"}))
    except ValidationError:
        # An option says expressly that thinking goes.
        return engine
