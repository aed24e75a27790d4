"""What the renderers of tml-renderers are: whom each serves, how its turns open and close, what it can write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from ferrule import PluginError

_STRIPS = {"strip_thinking_from_history": False}
_CLEARS = {"clear_thinking": False}


@attrs.frozen
class Family:
    """One renderer class.

    renderer   its name in ``tml_renderers.renderers``
    style      how calls are written: ``hermes`` (JSON or XML between tags), ``glm``, ``dsml``, ``kimi``, ``harmony``;
               '' where the package cannot declare tools, so that none are served
    headers    control tokens that open a message; parts: those that open a further answer within a message
    closes     control tokens that end an assistant message; shared: True where the next message's header does
    think_end  what closes an open think block
    keep       arguments with which the renderer keeps earlier thinking
    since      since when the model's template keeps thinking, where the package's own stripping takes more: ``user``,
               the last user message; ``reply``, the last reply that calls nothing. Earlier thinking is left out here
    bare       True where the package writes some replies as ``<think>`` + thinking + ``</think>`` + content, without the
               line's ends between that the model samples; they are put in
    shows_last False where the package leaves even the last reply's thinking out of a prompt, but not out of training
               examples
    """

    renderer: str
    style: str
    headers: tuple[str, ...]
    closes: tuple[str, ...]
    parts: tuple[str, ...] = ()
    shared: bool = False
    think_end: str = "\n</think>\n\n"
    keep: Mapping[str, Any] = attrs.field(factory=dict)
    since: str = ""
    bare: bool = False
    shows_last: bool = True


def _chatml(renderer: str, **options: Any) -> Family:
    return Family(renderer, "hermes", ("<|im_start|>",), ("<|im_end|>",), ("<tool_response>",), **options)


def _deepseek(renderer: str, style: str = "") -> Family:
    headers = ("<｜User｜>", "<｜Assistant｜>", "<｜System｜>")
    parts = ("<tool_result>",) if style else ()
    return Family(renderer, style, headers, ("<｜end▁of▁sentence｜>",), parts, think_end="</think>")


def _glm(renderer: str) -> Family:
    headers = ("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
    ends = ("<|endoftext|>", "<|user|>", "<|observation|>")
    return Family(renderer, "glm", headers, ends, ("<tool_response>",), True, "</think>", _CLEARS)


def _kimi(renderer: str) -> Family:
    headers = ("<|im_system|>", "<|im_user|>", "<|im_assistant|>")
    return Family(renderer, "kimi", headers, ("<|im_end|>",), (), False, "</think>", _STRIPS, "reply")


FAMILIES: dict[str, Family] = {
    "qwen3": _chatml("Qwen3", keep=_STRIPS, since="user", bare=True),
    "qwen3_5": _chatml("Qwen35", keep=_STRIPS, bare=True),
    "qwen3_8": _chatml("Qwen38", keep=_STRIPS),
    "nemotron_3": _chatml("Nemotron3", think_end="\n</think>\n", keep=_STRIPS),
    "glm_5_2": _glm("Glm52"),
    "glm_5_3": _glm("Glm53"),
    "glm_5_3_flash": _glm("Glm53Flash"),
    "deepseek_v3": _deepseek("DeepSeekV3"),
    "deepseek_r1": attrs.evolve(_deepseek("DeepSeekR1"), shows_last=False),
    "deepseek_v3_1": _deepseek("DeepSeekV31"),
    "deepseek_v4": _deepseek("DeepSeekV4", "dsml"),
    "deepseek_v4_1": _deepseek("DeepSeekV41", "dsml"),
    "kimi_k2": _kimi("KimiK2"),
    "kimi_k2_5": _kimi("KimiK25"),
    "gpt_oss": Family(
        "GptOss",
        "harmony",
        ("<|start|>",),
        ("<|return|>", "<|call|>", "<|end|>"),
        think_end="<|end|>",
        shows_last=False,
    ),
}

_QWEN3 = ("0.6B", "1.7B", "4B", "8B", "14B", "32B", "30B-A3B", "235B-A22B")
_INSTRUCT = ("4B", "30B-A3B", "235B-A22B")

MODELS: dict[str, tuple[str, Mapping[str, Any]]] = {
    **{f"Qwen/Qwen3-{size}": ("qwen3", {}) for size in _QWEN3},
    **{f"Qwen/Qwen3-{size}-Instruct-2507": ("qwen3", {"support_thinking": False}) for size in _INSTRUCT},
    "Qwen/Qwen3.5-*": ("qwen3_5", {}),
    "Qwen/Qwen3.8-*": ("qwen3_8", {}),
    "nvidia/NVIDIA-Nemotron-3-Nano-*": ("nemotron_3", {}),
    "nvidia/NVIDIA-Nemotron-3-Super-*": ("nemotron_3", {}),
    "nvidia/NVIDIA-Nemotron-3-Ultra-*": ("nemotron_3", {"ultra": True}),
    "zai-org/GLM-5.2*": ("glm_5_2", {}),
    "zai-org/GLM-5.3*": ("glm_5_3", {}),
    "zai-org/GLM-5.3-Flash*": ("glm_5_3_flash", {}),
    "deepseek-ai/DeepSeek-V3": ("deepseek_v3", {}),
    "deepseek-ai/DeepSeek-V3-0324": ("deepseek_v3", {}),
    "deepseek-ai/DeepSeek-R1": ("deepseek_r1", {}),
    "deepseek-ai/DeepSeek-R1-0528": ("deepseek_r1", {}),
    "deepseek-ai/DeepSeek-V3.1*": ("deepseek_v3_1", {}),
    "deepseek-ai/DeepSeek-V4-*": ("deepseek_v4", {}),
    "deepseek-ai/DeepSeek-V4.1-*": ("deepseek_v4_1", {}),
    "moonshotai/Kimi-K2-Thinking": ("kimi_k2", {}),
    "moonshotai/Kimi-K2.5": ("kimi_k2_5", {}),
    "openai/gpt-oss-*": ("gpt_oss", {}),
}
"""Model ids, or prefixes that end in ``*``: the family and what its renderer is given."""


def choose(family: str | None, model_id: str | None) -> tuple[str, Family, Mapping[str, Any]]:
    """(name, family, arguments) of the *family* named or, where none is, of the model."""
    if family is not None:
        if family not in FAMILIES:
            raise PluginError(f"renderer 'tml' knows no family {family!r}; it has {', '.join(FAMILIES)}")
        return family, FAMILIES[family], _arguments(model_id, family)
    found = _pattern(model_id)
    if found is None:
        told = "model.id is not set" if not model_id else f"it knows no model {model_id!r}"
        raise PluginError(f"renderer 'tml': {told}; set renderer.family to one of {', '.join(FAMILIES)}")
    name, arguments = MODELS[found]
    return name, FAMILIES[name], arguments


def _pattern(model_id: str | None) -> str | None:
    fits = [p for p in MODELS if model_id and (p == model_id or (p.endswith("*") and model_id.startswith(p[:-1])))]
    return max(fits, key=lambda p: (not p.endswith("*"), len(p)), default=None)


def _arguments(model_id: str | None, family: str) -> Mapping[str, Any]:
    found = _pattern(model_id)
    return MODELS[found][1] if found is not None and MODELS[found][0] == family else {}
