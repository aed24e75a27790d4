"""Whole conversations as tokens, each with its kind."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ferrule import Message, Rendered, TokenKind, ToolSpec, answer_order

from .cookbook import Cookbook, Refused
from .learning import Learned
from .marking import CONTENT, HEADER, KINDS, SPOKEN, Laid

Spans = list[tuple[int, int]]
_THINK_TAGS = re.compile(r"(?:\s*</?think>\s*)+")


class Rendering:
    """Renders whole conversations; pure but for what it was made of."""

    def __init__(self, cookbook: Cookbook, learned: Learned, train_on: str) -> None:
        self.cookbook, self.learned, self.train_on = cookbook, learned, train_on

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec], generation: bool) -> Rendered:
        order = answer_order(messages)
        shown = [messages[i] for i in order]
        self.check(shown)
        laid = self.cookbook.prompt(shown, tools) if generation else self.cookbook.example(shown, tools)
        self.check_shown(shown, laid)
        spans, kinds = self.layout(shown, laid)
        opened = self.learned.opened(laid.ids[self.end(laid) :].tolist()) if generation else ()
        return Rendered(laid.ids, kinds, _by_message(spans, order), opened)

    def supervised(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Rendered:
        """As the cookbook builds a demonstration: ACTION is what it gives a weight, and nothing else is."""
        order = answer_order(messages)
        shown = [messages[i] for i in order]
        self.check(shown)
        laid = self.cookbook.example(shown, tools, self.train_on)
        self.check_shown(shown, laid)
        spans, kinds = self.layout(shown, laid)
        kinds[kinds == TokenKind.ACTION] = TokenKind.SCAFFOLD
        kinds[np.array(laid.weights) > 0] = TokenKind.ACTION
        return Rendered(laid.ids, kinds, _by_message(spans, order))

    def check(self, messages: Sequence[Message]) -> None:
        """Refused where the renderer would drop a call or stumble over reasoning."""
        name = self.cookbook.name
        for i, message in enumerate(messages):
            if not self.learned.writes_calls and any(c.error is None for c in message.tool_calls):
                raise Refused(f"{name!r} has no way to write the tool calls of message {i} (assistant)")
            if not self.learned.writes_reasoning and message.reasoning:
                raise Refused(f"{name!r} has no way to write the reasoning of message {i} (assistant)")

    def check_shown(self, messages: Sequence[Message], laid: Laid) -> None:
        """Refused where a content is not among the tokens."""
        there = set(np.unique(laid.slots).tolist())
        for i, message in enumerate(messages):
            kind = SPOKEN if message.role == "assistant" else CONTENT
            if message.content.strip() and i * KINDS + kind not in there:
                raise Refused(f"{self.cookbook.name!r} drops the content of message {i} ({message.role})")

    @staticmethod
    def end(laid: Laid) -> int:
        """Where the last message ends and the generation prompt begins."""
        owned = np.flatnonzero(laid.owners >= 0)
        return int(owned[-1]) + 1 if len(owned) else 0

    def layout(self, messages: Sequence[Message], laid: Laid) -> tuple[Spans, NDArray[np.uint8]]:
        """The span of each message, and the kind of each token."""
        spans = _spans(laid, len(messages))
        kinds = np.full(len(laid.ids), TokenKind.SCAFFOLD, np.uint8)
        kinds[(laid.slots >= 0) & (laid.slots % KINDS == CONTENT)] = TokenKind.OBSERVATION
        for i, message in enumerate(messages):
            if message.role == "assistant":
                start, stop = spans[i]
                before = messages[i - 1].role if i else "user"
                kinds[start + self._prompted(laid, start, stop, before) : stop] = TokenKind.ACTION
        return spans, kinds

    def _prompted(self, laid: Laid, start: int, stop: int, before: str) -> int:
        """How many tokens of the assistant's message a generation prompt after a message of role *before* would have
        written: its header, and what of a prefill stands in its output. An empty think block of the header that such a
        prompt would only have opened is no part of them.
        """
        header = int((laid.parts[start:stop] == HEADER).sum())
        prompt = self.learned.prompts.get(before, self.learned.prompts["user"])
        common = 0
        for a, b in zip(laid.ids[start:stop].tolist(), prompt, strict=False):
            if a != b:
                break
            common += 1
        if common < header:
            rest = self.cookbook.encoder.decode(laid.ids[start + common : start + header].tolist())
            if not _THINK_TAGS.fullmatch(rest):
                return header
        return common


def _by_message(spans: Spans, order: Sequence[int]) -> tuple[tuple[int, int], ...]:
    out: list[Any] = [(0, 0)] * len(spans)
    for k, i in enumerate(order):
        out[i] = spans[k]
    return tuple(out)


def _spans(laid: Laid, count: int) -> Spans:
    """Where each message stands. A renderer may write several messages as one: then each begins where its content does,
    but for the first.
    """
    owners = laid.owners
    within = np.where((laid.slots >= 0) & (owners >= 0), laid.slots // KINDS, owners)
    if not np.array_equal(within, owners):
        owners = within.copy()
        current = whole = -1
        for n in range(len(owners)):
            if laid.owners[n] != whole:
                current = whole = int(laid.owners[n])
            if laid.slots[n] >= 0:
                current = int(within[n])
            owners[n] = current
    spans: Spans = []
    at = 0
    for i in range(count):
        places = np.flatnonzero(owners == i)
        span = (int(places[0]), int(places[-1]) + 1) if len(places) else (at, at)
        at = span[1]
        spans.append(span)
    return spans
