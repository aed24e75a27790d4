"""What new messages add to a conversation: the end of a short one like it, rendered with them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from ferrule import Message, NoBridge, Rendered, Tail, TokenKind, ToolCall, ToolSpec, probe_history, refused_delta

from .conversation import Refused
from .rendering import Located, Rendering

_REPLY, _REASON, _ARGUMENT = "Fq7replyz", "Fq7reasonz", "Fq7argumentz"
_EMPTY_THINK = re.compile(r"<think>\s*</think>\s*|(?<=Assistant\xef\xbd\x9c>)</think>")
"""Some templates write it for the last reply only. Text is bytes as Latin-1: the bar of DeepSeek's header is three."""


class Bridging:
    """Finds deltas; keeps nothing."""

    def __init__(self, rendering: Rendering, stop_ids: frozenset[int], thinking: str) -> None:
        self.rendering, self.stop_ids, self.thinking = rendering, stop_ids, thinking
        self.family, self.vocabulary = rendering.family, rendering.vocabulary

    def bridge(self, tail: Tail, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Rendered | NoBridge:
        refusal = refused_delta(tail, messages, tools)
        if refusal is not None:
            return refusal
        if self.thinking == "strip" and tail.message.reasoning and tail.message.reasoning.strip():
            return NoBridge("no_bridge", "thinking = 'strip' shows no earlier thinking again")
        try:
            return self._delta(tail, messages, tools)
        except Refused as refusal:
            return NoBridge("no_bridge", str(refusal))

    def _delta(self, tail: Tail, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Rendered:
        rendering = self.rendering
        base, said = (
            probe_history(tail, _REASON if tail.strippable and self.thinking != "keep" else None),
            self._said(tail.message),
        )
        located = rendering.locate([*base, said, *messages], tools)
        layout = rendering.layout(located)
        at = len(base)
        action = layout.actions[at]
        if action is None or any(i < at for i in located.order[at:]):
            raise Refused("the package does not put the new messages after the assistant's")
        end = action[1]
        if not action[0] < end or located.ids[end - 1] not in rendering.closes:
            raise Refused("no token that ends the assistant's turn was found")
        self._keeps(located, [*base, said], tools, end)
        close = located.ids[end - 1]
        opener = self.family.shared
        closed = tail.stop != "length" and len(tail.ids) > 0 and int(tail.ids[-1]) == tail.stop
        closed = closed and (tail.stop == close or (tail.stop in self.stop_ids and not opener))
        lead: list[int] = []
        if not closed:
            cut = tail.stop == "length"
            lead = [*(self._blocks(tail) if cut else ()), *([] if cut and self._ends(tail) else [close])]
        kinds = rendering.kinds(located, layout)[end:]
        ids = np.array([*lead, *located.ids[end:]], np.int32)
        kinds = np.concatenate([np.full(len(lead), TokenKind.SCAFFOLD, np.uint8), kinds])
        starts = [max(0, s - end) + len(lead) for s in layout.starts[at + 1 :]]
        spans = [(0, 0)] * len(messages)
        for k in range(len(messages)):
            spans[located.order[at + 1 + k] - at - 1] = (starts[k], max(starts[k], starts[k + 1]))
        return Rendered(ids, kinds, tuple(spans), rendering.opened)

    def _said(self, message: Message) -> Message:
        """The assistant's message with words of ours in its place: its structure is what counts."""
        calls: Any = tuple(
            ToolCall(c.id, c.name or "fq7unnamed", {"value": f"{_ARGUMENT}{n}"})
            for n, c in enumerate(message.tool_calls)
        )
        content = _REPLY if message.content.strip() or not calls else ""
        # Where it is kept, nothing can be stripped, whatever a rendering of the whole would do.
        thought = message.reasoning and message.reasoning.strip() and self.thinking != "keep"
        reasoning = _REASON if thought else None
        return Message("assistant", content, reasoning, tool_calls=calls)

    def _keeps(self, located: Located, before: Sequence[Message], tools: Sequence[ToolSpec], end: int) -> None:
        """Refused where the new messages make the package rewrite what came before the end of the assistant's."""
        earlier = self.rendering.locate(before, tools)
        action = self.rendering.layout(earlier).actions[len(before) - 1]
        shown, showed = located.reasonings, earlier.reasonings
        lost = before[-1].reasoning is not None and shown[len(before) - 1] is None
        lost |= any(now is None and then is not None for now, then in zip(shown, showed, strict=False))
        if lost:
            raise Refused("earlier thinking is stripped")
        stop = earlier.ends[action[1] - 1] if action and action[1] else len(earlier.text)
        then, now = earlier.text[:stop], located.text[: located.ends[end - 1]]
        then, now = _EMPTY_THINK.sub("", then), _EMPTY_THINK.sub("", now)
        for text in (self.vocabulary.control[i] for i in self.rendering.closes):
            # Which of the closes ends the reply may depend on what comes after it.
            then, now = then.removesuffix(_bytes(text)), now.removesuffix(_bytes(text))
        if then.rstrip() != now.rstrip():
            at = next((k for k, (a, b) in enumerate(zip(then, now, strict=False)) if a != b), 0)
            raise Refused(f"the package rewrites what came before: {then[at : at + 40]!r} became {now[at : at + 40]!r}")

    # -- a completion that was cut -------------------------------------------------------------------------------------

    def _ends(self, tail: Tail) -> bool:
        """Whether the blocks' own close already ends the turn (Harmony's messages)."""
        return self.family.style == "harmony"

    def _blocks(self, tail: Tail) -> list[int]:
        """Tokens that close what a completion cut by length left open."""
        ids = [int(i) for i in tail.ids[tail.prompt_length :]]
        if self.family.style == "harmony":
            return self._harmony(ids)
        controls = [self.vocabulary.control.get(i, "") for i in ids]
        text = self.vocabulary.text(ids)

        def last(*tags: str) -> int:
            found = [k for k, c in enumerate(controls) if c in tags]
            return found[-1] if found else -1

        thinking = last("<think>") > last("</think>") or ("think" in tail.opened and last("</think>") < 0)
        if thinking:
            return self._encode(self.family.think_end)
        style = self.family.style
        if style == "hermes" and last("<tool_call>") > last("</tool_call>"):
            return self._encode("\n</tool_call>")
        if style == "glm" and last("<tool_call>") > last("</tool_call>"):
            return self._encode("</tool_call>")
        if style == "kimi" and last("<|tool_calls_section_begin|>") > last("<|tool_calls_section_end|>"):
            inner = last("<|tool_call_begin|>") > last("<|tool_call_end|>")
            return self._encode(("<|tool_call_end|>" if inner else "") + "<|tool_calls_section_end|>")
        if style == "dsml":
            return self._encode(dsml_close(text))
        return []

    def _harmony(self, ids: list[int]) -> list[int]:
        known = self.vocabulary.ids_of
        end, body, channel = known["<|end|>"], known["<|message|>"], known["<|channel|>"]
        last = max((k for k, i in enumerate(ids) if i == known["<|start|>"]), default=0)
        if body in ids[last:]:
            return [end]
        return [body, end] if channel in ids[last:] else [*self._encode("<|channel|>final<|message|>"), end]

    def _encode(self, text: str) -> list[int]:
        return self.vocabulary.encode(text).ids


def dsml_close(text: str) -> str:
    """What closes a DSML block of calls that *text* leaves open; '' where none is."""
    begun = list(re.finditer(r"<｜DSML｜ ?(tool_calls|calls)>", text))
    if not begun or re.search(r"</｜DSML｜ ?(?:tool_calls|calls)>", text[begun[-1].end() :]):
        return ""
    rest, word = text[begun[-1].end() :], begun[-1][0].replace("<", "</", 1)
    space = " " if "｜ " in word else ""
    parameter = rest.rfind(f"<｜DSML｜{space}parameter") > rest.rfind(f"</｜DSML｜{space}parameter>")
    invoke = rest.rfind(f"<｜DSML｜{space}invoke") > rest.rfind(f"</｜DSML｜{space}invoke>")
    closes = f"</｜DSML｜{space}parameter>\n" if parameter else ""
    return f"{closes}</｜DSML｜{space}invoke>\n{word}" if invoke else f"{closes}\n{word}"


def _bytes(text: str) -> str:
    return text.encode().decode("latin-1")
