"""The families: what each one's own chat template does, and how a model's family is told."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

import attrs

from ferrule import ModelSpec, PluginError


@attrs.frozen
class Family:
    """What a chat template does, in facts.

    system          the system prompt where a conversation brings none
    tool_format     how tools are declared and called: Hermes JSON, or XML tags
    thinks          the template knows reasoning: it writes a think block after the last query and none before it
    always_block    after the last query there is a think block even where there is no reasoning; else only in the
                    very last message
    trims           contents lose the blanks around them
    prompt_thinking what the generation prompt does by default: leaves a think block open (True), writes an empty one
                    (False), or says nothing (None)
    strict          system messages only at the start, and a query is needed
    tool_role       answers are turns of a role ``tool``; else they stand in a user's turn, between tags
    """

    name: str
    system: str | None = None
    tool_format: Literal["hermes", "xml"] = "hermes"
    thinks: bool = False
    always_block: bool = False
    trims: bool = False
    prompt_thinking: bool | None = None
    strict: bool = False
    tool_role: bool = False


QWEN25 = Family("qwen2.5", system="You are Qwen, created by Alibaba Cloud. You are a helpful assistant.")
QWEN3 = Family("qwen3", thinks=True)
QWEN3_INSTRUCT = Family("qwen3-instruct")
QWEN35 = Family(
    "qwen3.5", tool_format="xml", thinks=True, always_block=True, trims=True, prompt_thinking=True, strict=True
)
QWEN35_SMALL = attrs.evolve(QWEN35, prompt_thinking=False)
SMOLLM2 = Family(
    "smollm2", system="You are a helpful AI assistant named SmolLM, trained by Hugging Face", tool_role=True
)

FAMILIES = {f.name: f for f in (QWEN25, QWEN3, QWEN3_INSTRUCT, QWEN35, SMOLLM2)}

MODELS = {
    **{f"Qwen/Qwen2.5-{size}-Instruct*": QWEN25 for size in ("0.5B", "1.5B", "3B", "7B", "14B", "32B", "72B")},
    **{f"Qwen/Qwen3-{size}*": QWEN3 for size in ("0.6B", "1.7B", "8B", "14B", "32B")},
    **{f"Qwen/Qwen3-{size}": QWEN3 for size in ("4B", "4B-Base", "30B-A3B", "30B-A3B-Base", "235B-A22B")},
    **{f"Qwen/Qwen3-{size}-Instruct-2507*": QWEN3_INSTRUCT for size in ("4B", "30B-A3B", "235B-A22B")},
    **{f"Qwen/Qwen3.5-{size}": QWEN35_SMALL for size in ("0.8B", "2B")},
    **{f"Qwen/Qwen3.5-{size}": QWEN35 for size in ("4B", "9B", "35B-A3B", "122B-A10B", "397B-A17B")},
    **{f"HuggingFaceTB/SmolLM2-{size}-Instruct": SMOLLM2 for size in ("135M", "360M", "1.7B")},
}
"""Public model ids, prefixes where they end in ``*``."""


def family_of(option: str, model: ModelSpec, folder: Path, tokens: Collection[str]) -> Family:
    """The family that *option* names; for ``auto``, told by the model's public id, else by the chat template in
    *folder*, else (there is no template) by the *tokens* of the vocabulary. PluginError where that does not decide.
    """
    by_id = _by_id(model.id)
    template = _template_in(folder)
    told = by_id or (_by_template(template) if template else _by_tokens(tokens))
    if option != "auto":
        # Models of one family differ in whether they think by default: the model itself knows best.
        return told if told is not None and told.name == option else FAMILIES[option]
    if told is None:
        why = "its chat template is none that it knows" if template else "it has no chat template, and its tokens are"
        why += "" if template else " not those of one family"
        raise PluginError(
            f"renderer 'chatml' cannot tell the family of the model in {str(folder)!r}: {why}. Set renderer.family to "
            f"one of {', '.join(map(repr, FAMILIES))} if the model was trained on that family's format, or use another "
            "renderer ('chat_template' serves any template)"
        )
    return told


def _by_id(name: str | None) -> Family | None:
    if not name:
        return None
    if name in MODELS:
        return MODELS[name]
    return next((f for key, f in MODELS.items() if key[-1] == "*" and name.startswith(key[:-1])), None)


def _by_template(text: str) -> Family | None:
    """Told by sentences and variables that stand in one family's template alone."""
    if "<|im_start|>" not in text or "endgeneration" in text:
        # The second are templates that a training library patched: they frame turns in ways of their own.
        return None
    if "named SmolLM, trained by Hugging Face" in text:
        return SMOLLM2 if "tool" not in text else None
    if "No user query found in messages." in text:
        if "preserve_thinking" in text or "reasoning_effort" in text or "<function=example_function_name>" not in text:
            return None
        return QWEN35_SMALL if "enable_thinking is true" in text else QWEN35
    if "You may call one or more functions to assist with the user query" not in text or "<|vision_start|>" in text:
        return None
    if QWEN25.system and QWEN25.system in text:
        return QWEN25
    if "You are a" in text:
        return None
    if "last_query_index" in text:
        # The models that think without being asked open the block in the generation prompt.
        return QWEN3 if "enable_thinking" in text and "reasoning_content" in text else None
    return QWEN3_INSTRUCT if "think" not in text else None


def _by_tokens(tokens: Collection[str]) -> Family | None:
    def has(*names: str) -> bool:
        return all(name in tokens for name in names)

    if has("<|im_start|>", "<think>", "<tool_call>", "<tool_response>", "<|fim_pad|>"):
        return QWEN35 if has("<tts_pad>") else QWEN3
    if has("<|im_start|>", "<tool_call>", "<|fim_pad|>"):
        return QWEN25
    return SMOLLM2 if has("<|im_start|>", "<jupyter_start>", "<gh_stars>") else None


def _template_in(folder: Path) -> str | None:
    """The chat template in a tokenizer's folder, if there is one."""
    try:
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    except OSError:
        pass
    try:
        found: Any = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8")).get("chat_template")
    except (OSError, ValueError, AttributeError):
        return None
    if isinstance(found, list):
        named = {t.get("name"): t.get("template") for t in found if isinstance(t, dict)}
        found = named.get("tool_use") or named.get("default")
    return found if isinstance(found, str) else None
