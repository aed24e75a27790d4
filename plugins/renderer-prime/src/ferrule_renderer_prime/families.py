"""What is to be known of each of the package's families beyond what the package tells: how calls are written, how thinking
is marked, and which option of its own keeps earlier thinking.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import attrs

Grammar = Literal["tags", "pairs", "fenced", "kimi", "harmony", "bare", "inkling", "minimax", "dsml", "gemma"]
"""How a family writes its calls.

tags     ``<tool_call>`` around Hermes JSON or ``<function=...>``: read by ferrule's own parser
pairs    a name, then ``<arg_key>`` and ``<arg_value>`` pairs
fenced   a name, then JSON in a code fence
kimi     ``functions.name:0``, then JSON
harmony  the recipient in a message's header, JSON as its body
bare     a JSON object that is the whole reply
inkling  JSON with ``name`` and ``args``
minimax  ``<invoke name=...>`` and ``<parameter name=...>``
dsml     the same with DeepSeek's own marks, and a flag that tells strings
gemma    ``call:name{key:value}``
"""

_SPELLED = tuple(f"<{slash}{word}>" for word in ("arg_key", "arg_value") for slash in ("", "/"))
_HY = ":opensource"


@attrs.frozen
class Family:
    """Traits of one family.

    think    the marks around reasoning
    blocks   (open, close) of what a call is made of, outermost first: a cut call is closed with them
    pairs    the marks of ``pairs``: key, its end, value, its end; then the mark after the name, where there is one
    named    answers to calls show the function's name
    keep     options with which the package shows all earlier reasoning again
    lead     the package takes a reply for reasoning unless its end is seen, whatever the prompt was
    literal  the package itself encodes contents as text, control tokens' text included
    filled   the package extends no empty reply
    gap      what its template writes after a turn's close and its bridge forgets
    awaits   the token with which a reply that calls ends, and without which the package takes no answer
    prompt   text of the only generation prompt there is, where replies cannot be read without it
    """

    grammar: Grammar = "tags"
    think: tuple[str, str] = ("<think>", "</think>")
    blocks: tuple[tuple[str, str], ...] = (("<tool_call>", "</tool_call>"),)
    pairs: tuple[str, ...] = ()
    named: bool = False
    keep: Mapping[str, Any] = attrs.field(factory=dict)
    lead: bool = False
    literal: bool = False
    filled: bool = False
    gap: str = ""
    awaits: str = ""
    prompt: str = ""

    def open_blocks(self, text: str) -> list[str]:
        """The ends of the blocks of calls that *text* leaves open, innermost first."""
        return [end for start, end in reversed(self.blocks) if text.rfind(start) > text.rfind(end)]


def _ds(name: str) -> str:
    return f"<｜{name.replace(' ', '▁')}｜>"


_PRESERVE = {"preserve_thinking": True}
_CLEAR = {"clear_thinking": False}
_TRUNCATE = {"truncate_history_thinking": False}
_GLM = Family("pairs", pairs=_SPELLED, lead=True, keep=_CLEAR)
_DEEPSEEK = Family(
    "fenced",
    blocks=((_ds("tool calls begin"), _ds("tool calls end")), (_ds("tool call begin"), _ds("tool call end"))),
)
_KIMI = Family(
    "kimi",
    blocks=(
        ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        ("<|tool_call_begin|>", "<|tool_call_end|>"),
    ),
)
_LAGUNA = Family("pairs", pairs=_SPELLED)

FAMILIES: dict[str, Family] = {
    "qwen3": Family(),
    "prime-qwen3": Family(),
    "qwen3-vl": Family(),
    "qwen3.5": Family(),
    "qwen3.6": Family(keep=_PRESERVE),
    "qwen3.8": Family(keep=_PRESERVE),
    "nemotron-3": Family(keep=_TRUNCATE),
    "nemotron-3-ultra": Family(keep=_TRUNCATE),
    "nemotron-3.5": Family(keep=_TRUNCATE),
    "default": Family(),
    "glm-4.5": attrs.evolve(_GLM, keep={}),
    "glm-5": _GLM,
    "glm-5.1": _GLM,
    "glm-5.3": _GLM,
    "laguna-xs.2": attrs.evolve(_LAGUNA, gap="\n"),
    "laguna-m.1": attrs.evolve(_LAGUNA, gap="\n"),
    "laguna-xs-2.1": _LAGUNA,
    "laguna-s-2.1": attrs.evolve(_LAGUNA, keep=_PRESERVE),
    "hy3": Family(
        "pairs",
        think=(f"<think{_HY}>", f"</think{_HY}>"),
        blocks=((f"<tool_calls{_HY}>", f"</tool_calls{_HY}>"), (f"<tool_call{_HY}>", f"</tool_call{_HY}>")),
        pairs=(*(mark.replace(">", f"{_HY}>") for mark in _SPELLED), f"<tool_sep{_HY}>"),
        filled=True,
        keep={"preserved_thinking": True},
    ),
    "deepseek-v3": _DEEPSEEK,
    "deepseek-r1": _DEEPSEEK,
    "deepseek-v4": Family(
        "dsml",
        blocks=(("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"), ("<｜DSML｜invoke", "</｜DSML｜invoke>")),
        keep={"drop_thinking": False},
    ),
    "kimi-k2": _KIMI,
    "kimi-k2.5": _KIMI,
    "gpt-oss": Family(
        "harmony",
        think=("<|channel|>analysis<|message|>", "<|end|>"),
        blocks=(),
        named=True,
        literal=True,
        keep={"auto_drop_analysis": False},
        prompt="<|start|>assistant<|channel|>analysis<|message|>",
    ),
    "llama-3": Family("bare", blocks=()),
    "inkling": Family(
        "inkling",
        think=("<|content_thinking|>", "<|end_message|>"),
        blocks=(("<|content_invoke_tool_json|>", "<|end_message|>"),),
        named=True,
    ),
    "minimax-m2": Family("minimax", blocks=(("<minimax:tool_call>", "</minimax:tool_call>"),)),
    "gemma4": Family(
        "gemma",
        think=("<|channel>", "<channel|>"),
        blocks=(("<|tool_call>", "<tool_call|>"),),
        named=True,
        awaits="<|tool_response>",
        keep=_PRESERVE,
    ),
}
