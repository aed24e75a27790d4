"""A whole conversation as tokens, each with its kind."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import numpy as np

from ferrule import Encoder, Guard, Message, Rendered, TokenKind, ToolSpec, answer_order, token_kinds

from .grammar import THINK_END, Grammar, opened
from .template import Located, Span, Template


class Rendering:
    """Renders whole conversations; pure but for what it was made of."""

    def __init__(self, template: Template, grammar: Grammar, encoder: Encoder) -> None:
        self.template, self.grammar, self.encoder = template, grammar, encoder
        closes = sorted((encoder.control[i] for i in grammar.closes), key=len, reverse=True)
        self._close = re.compile("|".join(map(re.escape, closes))) if closes else None

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec], generation: bool) -> Rendered:
        order = answer_order(messages)
        shown = [messages[i] for i in order]
        located = self.template.locate(shown, tools, generation=generation)
        text = located.text
        starts, actions = self._layout(shown, located)
        guards = self.guards(shown, located)
        cuts = [p for action in actions if action for p in action]
        tokens = self.encoder.tokenize(text, [*cuts, *located.cuts], guards, fresh=True)
        outside = [s for m, s in zip(shown, located.contents, strict=True) if s and m.role != "assistant"]
        kinds = token_kinds(text, tokens, sorted(outside))
        for action in actions:
            if action:
                first, last = tokens.overlapping(*action)
                kinds[first:last] = TokenKind.ACTION
        edges = [tokens.index(p) for p in starts]
        spans = [(0, 0)] * len(messages)
        for k, i in enumerate(order):
            spans[i] = (edges[k], max(edges[k], edges[k + 1]))
        tail = text[max((s[1] for s in located.contents if s), default=0) :]
        return Rendered(np.array(tokens.ids, np.int32), kinds, tuple(spans), opened(tail) if generation else ())

    def guards(self, messages: Sequence[Message], located: Located) -> list[Guard]:
        """Contents come from outside, and reasoning may hold anything: only an assistant's own markup is read as
        control tokens. Reasoning ends at the first close, so a close within it was text.
        """
        out: list[Guard] = []
        markup = self.encoder.markup
        thought = markup - {self.encoder.ids_of.get(THINK_END, -1)}
        for message, content, reasoning in zip(messages, located.contents, located.reasonings, strict=True):
            if content:
                out.append((*content, markup if message.role == "assistant" else frozenset[int]()))
            if reasoning:
                out.append((*reasoning, thought))
        return sorted(out, key=lambda guard: guard[0])

    def _layout(self, messages: Sequence[Message], located: Located) -> tuple[list[int], list[Span | None]]:
        """Where each message starts (and the last one ends), and what of the assistant's the model would have sampled."""
        text, grammar = located.text, self.grammar
        end = len(text)
        if grammar.generation and text.endswith(grammar.generation):
            end -= len(grammar.generation)
        starts: list[int] = []
        actions: list[Span | None] = []
        low = 0
        # The start of the first content after each message.
        following = [end] * len(messages)
        literal = frozenset(located.cuts)
        for i in range(len(messages) - 2, -1, -1):
            span = located.contents[i + 1]
            following[i] = min(span[0], following[i + 1]) if span else following[i + 1]
        for i, message in enumerate(messages):
            own = [s for s in (located.contents[i], located.reasonings[i]) if s and s[0] >= low]
            limit = min((s[0] for s in own), default=following[i])
            begin = grammar.boundary(text, low, limit, message.role) if i else 0
            starts.append(begin)
            after = max((s[1] for s in own), default=low)
            action = None
            if message.role == "assistant":
                start = self._sampled_from(text, messages[i - 1].role if i else "", low, begin, limit, end)
                then = messages[i + 1].role if i + 1 < len(messages) else ""
                action = start, self._sampled_to(text, max(after, start), max(after, following[i]), then, literal)
                after = action[1]
            actions.append(action)
            low = max(low, after)
        starts.append(max(end, low) if low <= end else len(text))
        for k in range(len(starts) - 2, -1, -1):
            starts[k] = min(starts[k], starts[k + 1])
        return starts, actions

    def _sampled_from(self, text: str, previous: str, low: int, begin: int, limit: int, end: int) -> int:
        """Where sampling of the assistant message that begins at *begin* started: after its generation prompt."""
        grammar = self.grammar
        prompted = grammar.after.get(previous, "")
        if prompted and text.startswith(prompted, low):
            return low + len(prompted)
        if grammar.generation and text.startswith(grammar.generation, begin):
            return begin + len(grammar.generation)
        if grammar.header and text.startswith(grammar.header, begin):
            return begin + len(grammar.header)
        if limit < end:
            return max(low, limit - (len(text[:limit]) - len(text[:limit].rstrip())))
        return begin

    def _sampled_to(self, text: str, low: int, high: int, then: str, literal: Collection[int]) -> int:
        """Where it ended: behind the close, which stands before the next content at *high*, of a message of the role
        *then*. Without one, where that message begins. A close's text that is cut (*literal*) is text of a call.
        """
        found = self._close.finditer(text, low, high) if self._close else ()
        close = next((match for match in found if match.start() + 1 not in literal), None)
        if close:
            return close.end()
        return max(low, self.grammar.boundary(text, low, high, then)) if then else max(low, high)
