"""From a tokenizer's folder to the parts of a renderer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ferrule import Encoder, ModelSpec, PluginError, ReplyParser, Unencodable

from .families import Family, family_of
from .rendering import Choices, Refused, Rendering
from .wording import END, START

REFUSALS = (Refused, Unencodable)


def load(config: Any, model: ModelSpec) -> tuple[Family, Encoder, Rendering, ReplyParser]:
    """Read tokenizer.json of the folder that *model* names and settle the family. PluginError where that cannot be."""
    if model.tokenizer_path is None:
        raise PluginError("renderer 'chatml' needs a tokenizer: set model.tokenizer (or model.path) to its folder")
    folder = Path(model.tokenizer_path)
    file = folder / "tokenizer.json"
    from tokenizers import Tokenizer  # type: ignore[import-untyped, unused-ignore]

    try:
        backend = Tokenizer.from_file(str(file))
    except Exception as error:  # whatever the Rust side says: it raises Exception itself
        raise PluginError(
            f"renderer 'chatml' cannot load {str(file)!r}: {error}. Set model.tokenizer (or model.path) to a folder "
            "that holds a tokenizer.json"
        ) from error
    encoder = Encoder(backend)
    missing = [token for token in (START, END) if token not in encoder.ids_of]
    if missing:
        raise PluginError(
            f"renderer 'chatml' cannot use the tokenizer in {str(folder)!r}: it has no token "
            f"{' and no '.join(missing)}; use another renderer ('chat_template' serves any template)"
        )
    family = family_of(config.family, model, folder, encoder.ids_of)
    choices = Choices(
        config.thinking,
        (config.tool_format or family.tool_format) == "xml",
        config.system if config.system is not None else family.system,
        _prompt_thinking(config, family),
    )
    rendering = Rendering(family, choices, encoder)
    # Refuses a tokenizer that does not cut cleanly at the format's own tokens, before anything runs.
    rendering.pieces.frame(f"{START}user\n{END}")
    ends = {encoder.ids_of[END], encoder.ids_of.get("<|endoftext|>", -1), *_ends(folder)}
    stop_ids = frozenset(i for i in ends if 0 <= i < encoder.size)
    return family, encoder, rendering, ReplyParser(encoder, stop_ids)


def _prompt_thinking(config: Any, family: Family) -> bool | None:
    asked = config.enable_thinking
    if asked is None:
        return family.prompt_thinking
    if not family.thinks:
        raise PluginError(
            f"renderer 'chatml': enable_thinking is for families whose template knows thinking; {family.name!r} does "
            "not. Leave it out"
        )
    # Qwen3 opens its block itself: its prompt says something only where thinking is off.
    return False if not asked else True if family.prompt_thinking is not None else None


def _ends(folder: Path) -> list[int]:
    """The ids that end a completion by the folder's generation settings."""
    try:
        named = json.loads((folder / "generation_config.json").read_text(encoding="utf-8")).get("eos_token_id")
    except (OSError, ValueError, AttributeError):
        return []
    return [i for i in (named if isinstance(named, list) else [named]) if isinstance(i, int)]
