"""Conversations as tokens: whole, and what new messages add to one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import attrs
import numpy as np

from ferrule import (
    MARKUP,
    Encoder,
    Message,
    NoBridge,
    Rendered,
    Tail,
    ToolSpec,
    answer_order,
    clean_text,
    delta_order,
    refused_delta,
)

from .families import Family
from .wording import END, GENERATION, NO_THOUGHT, START, THINK_CLOSE, THINK_OPEN, write_calls, write_tools
from .writing import ACTION, OBSERVATION, SCAFFOLD, Pieces, Writer

THINK, THINK_END, CALL, CALL_END = MARKUP


class Refused(Exception):
    """The family's template would refuse these messages, or lose a part of them; the text says which."""


@attrs.frozen
class Choices:
    """A run's choices: what becomes of earlier thinking, the form of calls, the default system prompt, and whether the
    generation prompt opens a think block (True), writes an empty one (False) or neither (None).
    """

    thinking: str
    xml: bool
    system: str | None
    prompt_thinking: bool | None


class Rendering:
    """Renders and bridges; keeps nothing of a conversation."""

    def __init__(self, family: Family, choices: Choices, encoder: Encoder) -> None:
        self.family, self.choices, self.encoder = family, choices, encoder
        self.pieces = Pieces(encoder)
        self.end = encoder.ids_of[END]
        self.markup = encoder.markup
        # Reasoning ends at the first close, so a close within it was text.
        self.thought_markup = encoder.markup - {encoder.ids_of.get(THINK_END, -1)}
        self.suffix = {None: "", True: THINK_OPEN, False: NO_THOUGHT}[choices.prompt_thinking]
        self.opened = ("think",) if choices.prompt_thinking else ()

    # -- whole conversations -------------------------------------------------------------------------------------------

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec], generation: bool) -> Rendered:
        """All of *messages*; Refused where the template would refuse them."""
        order = answer_order(messages)
        shown = [messages[i] for i in order]
        query = self._last_query(shown)
        if self.family.strict:
            self._strict(shown, query)
        writer = Writer(self.pieces)
        writer.mark()
        self._head(writer, shown, tools)
        last = len(shown) - 1
        for n, message in enumerate(shown):
            if n:
                writer.mark()
            elif message.role == "system":
                continue
            if message.role == "assistant":
                self._assistant(writer, message, n, n > query, n == last)
            else:
                self._other(writer, shown, n, "")
        return self._finished(writer, order, generation)

    def _last_query(self, messages: Sequence[Message]) -> int:
        """Where the last user message stands that is no answer of a tool in disguise; without one, the last message."""
        for n in range(len(messages) - 1, -1, -1):
            if messages[n].role == "user" and self._is_query(messages[n].content):
                return n
        return len(messages) - 1

    def _is_query(self, content: str) -> bool:
        content = content.strip() if self.family.trims else content
        return not (content.startswith("<tool_response>") and content.endswith("</tool_response>"))

    def _strict(self, messages: Sequence[Message], query: int) -> None:
        if messages[query].role != "user" or not self._is_query(messages[query].content):
            raise Refused("the template wants a user's query among the messages")
        if messages[0].role == "tool":
            raise Refused("message 0 (tool) answers nothing")
        for n, message in enumerate(messages):
            if n and message.role == "system":
                raise Refused(f"message {n} (system): the template takes a system message only at the beginning")

    def _head(self, writer: Writer, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> None:
        """The system turn: the conversation's own prompt or the default one, and the tools."""
        first = messages[0]
        own = first.role == "system"
        system = self._text(first) if own else self.choices.system
        if not tools and system is None:
            return
        writer.fixed(f"{START}system\n")
        kind = OBSERVATION if own else SCAFFOLD
        if not tools:
            writer.content(system or "", kind)
        elif self.choices.xml:
            write_tools(writer, tools, True)
            if system:
                writer.fixed("\n\n")
                writer.content(system, kind)
        else:
            if system is not None:
                writer.content(system, kind)
                writer.fixed("\n\n")
            write_tools(writer, tools, False)
        writer.fixed(f"{END}\n")

    def _text(self, message: Message) -> str:
        text = clean_text(message.content)
        return text.strip() if self.family.trims else text

    def _other(self, writer: Writer, messages: Sequence[Message], n: int, before: str) -> None:
        """Message *n*, which is not the assistant's; *before* is the role before the first of *messages*."""
        message = messages[n]
        role = message.role
        if role == "tool" and not self.family.tool_role:
            if (messages[n - 1].role if n else before) != "tool":
                writer.fixed(f"{START}user")
            writer.fixed("\n<tool_response>\n")
            writer.content(self._text(message), OBSERVATION)
            writer.fixed("\n</tool_response>")
            if n + 1 == len(messages) or messages[n + 1].role != "tool":
                writer.fixed(f"{END}\n")
            return
        if role not in ("system", "user", "tool"):
            raise Refused(f"message {n} has the role {role!r}, which the format does not know")
        writer.fixed(f"{START}{role}\n")
        writer.content(self._text(message), OBSERVATION)
        writer.fixed(f"{END}\n")

    def _assistant(self, writer: Writer, message: Message, n: int, current: bool, last: bool) -> None:
        """An assistant message: what the model would have sampled after its generation prompt is encoded apart.

        *current*: it comes after the last query; *last*: nothing comes after it.
        """
        content, reasoning, block = self._said(message, n, current, last)
        writer.fixed(GENERATION)
        if block and self.suffix and (self.suffix == THINK_OPEN or not reasoning):
            writer.fixed(self.suffix)
            writer.switch(ACTION)
            if self.suffix == THINK_OPEN:
                writer.content(reasoning, allowed=self.thought_markup)
                writer.fixed(THINK_CLOSE)
        else:
            writer.switch(ACTION)
            if block:
                writer.fixed(THINK_OPEN)
                writer.content(reasoning, allowed=self.thought_markup)
                writer.fixed(THINK_CLOSE)
        # The template trims newlines after the block, yet counts them when it separates the calls.
        shown = content.lstrip("\n") if block and self.family.thinks else content
        writer.content(shown, allowed=self.markup)
        write_calls(writer, message.tool_calls, content, self.choices.xml, self.markup)
        writer.fixed(END)
        writer.switch(SCAFFOLD)
        writer.fixed("\n")

    def _said(self, message: Message, n: int, current: bool, last: bool) -> tuple[str, str, bool]:
        """(content, reasoning, whether there is a think block) of an assistant message, as it is shown."""
        content, reasoning = self._text(message), clean_text(message.reasoning or "")
        family, thinking = self.family, self.choices.thinking
        if not family.thinks:
            return content, reasoning, bool(reasoning) and (thinking != "strip" or last)
        if not reasoning and "</think>" in content:
            content, reasoning = self._parted(content, n)
        reasoned = bool(reasoning)  # even by newlines alone, which then go
        reasoning = reasoning.strip() if family.trims else reasoning.strip("\n")
        if thinking == "strip":
            if not last:
                return content, "", current and family.always_block
        elif thinking == "keep":
            current = True
        return content, reasoning, current and (last or reasoned or family.always_block)

    @staticmethod
    def _parted(content: str, n: int) -> tuple[str, str]:
        """Content in which the think block is spelled out, as (content, reasoning)."""
        head, _, rest = content.partition("</think>")
        before, _, reasoning = head.rpartition("<think>")
        if before.strip() or "</think>" in rest:
            raise Refused(f"message {n} (assistant): the template drops text around the </think> in the content")
        return rest.lstrip("\n"), reasoning.strip("\n")

    def _finished(self, writer: Writer, order: Sequence[int] | None, generation: bool) -> Rendered:
        """What was written, with a generation prompt; *order* tells which messages stand where, None: as they came."""
        writer.mark()
        if generation:
            writer.fixed(GENERATION)
            writer.fixed(self.suffix)
        writer.flush()
        edges = writer.edges
        if order is None:
            spans = tuple(pairwise(edges))
        else:
            found = dict(zip(order, pairwise(edges), strict=True))
            spans = tuple(found[i] for i in range(len(order)))
        kinds = np.frombuffer(writer.kinds, np.uint8)
        return Rendered(np.array(writer.ids, np.int32), kinds, spans, self.opened if generation else ())

    # -- what new messages add -----------------------------------------------------------------------------------------

    def bridge(self, tail: Tail, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Rendered | NoBridge:
        """What *messages* add after *tail*; its cost is that of the new contents."""
        refusal = refused_delta(tail, messages, tools)
        if refusal is not None:
            return refusal
        if self.family.strict and any(m.role == "system" for m in messages):
            return NoBridge("no_bridge", "the template takes a system message only at the beginning")
        if self._strips(tail, messages):
            return NoBridge("no_bridge", "the template strips earlier thinking")
        order: Sequence[int] | None = None
        new = messages
        if len(messages) > 1 and messages[0].role == "tool":
            order = delta_order(tail, messages)
            new = [messages[i] for i in order]
        writer = Writer(self.pieces)
        if tail.stop == self.end and len(tail.ids) and tail.ids[-1] == self.end:
            writer.fixed("\n")
        else:
            writer.fixed(self._unclosed(tail))
            writer.fixed(f"{END}\n")
        for n in range(len(new)):
            writer.mark()
            self._other(writer, new, n, "assistant")
        return self._finished(writer, order, True)

    def _strips(self, tail: Tail, messages: Sequence[Message]) -> bool:
        """Whether reasoning that was shown before is not shown any more once *messages* are added."""
        thinking = self.choices.thinking
        if thinking == "keep" or not (tail.strippable or (tail.message.reasoning or "").strip()):
            return False
        if thinking == "strip":
            return True
        if not self.family.thinks:
            return False
        queried = tail.index > len(tail.roles) or "user" in tail.roles
        return not queried or any(m.role == "user" and self._is_query(m.content) for m in messages)

    def _unclosed(self, tail: Tail) -> str:
        """Text that closes the block which the completion left open."""
        inside = self.encoder.open_block(tail.ids.tolist(), tail.opened)
        return THINK_CLOSE if inside == THINK else f"\n{CALL_END}" if inside == CALL else ""
