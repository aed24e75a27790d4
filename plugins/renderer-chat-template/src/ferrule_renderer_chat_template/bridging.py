"""What new messages add to a conversation: found once per shape by rendering a short probe, then put together from
its framing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

import attrs
import numpy as np

from ferrule import (
    MARKUP,
    Encoder,
    Message,
    NoBridge,
    Rendered,
    Tail,
    ToolCall,
    ToolSpec,
    clean_text,
    delta_order,
    probe_history,
    refused_delta,
    token_kinds,
)

from .grammar import ARGUMENT, REASON, REPLY, Grammar, common, opened
from .template import Located, Refused, Span, Template

THINK, THINK_END, CALL, CALL_END = MARKUP
_EMPTY_THINK = re.compile(r"<think>\s*</think>\s*")
_TRIAL = '\n Fq7trial "\\\\\\"é<b>\n\t'
"""A content that shows what a template does to contents: trims, escapes, or nothing."""
_MOST = 4096
_FORMS: tuple[Callable[[str], str], ...] = (
    lambda text: text,
    str.strip,
    str.lstrip,
    str.rstrip,
    lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    lambda text: json.dumps(text)[1:-1],
)


@attrs.frozen(eq=False)
class Shape:
    """The framing of a delta: ``pieces[k]`` is the text before the k-th slot, the last one what follows them all.

    close      the token that ends the assistant's turn here; the pieces begin right after it
    opener     True where that token is the next message's opener rather than a close of its own
    slots      which of the new messages (in answer order) fill a slot; the others are blank
    forms      what the template does to each slot's content
    fixed      False where contents change the framing: then every delta is found by a probe of its own
    """

    close: int
    opener: bool
    pieces: tuple[str, ...]
    slots: tuple[int, ...]
    forms: tuple[Callable[[str], str], ...]
    opened: tuple[str, ...]
    fixed: bool = True


class Bridging:
    """Finds deltas. Keeps what it learned of shapes, at most 4096 of them, and nothing of any conversation."""

    def __init__(self, template: Template, grammar: Grammar, encoder: Encoder, keep_thinking: bool) -> None:
        self.template, self.grammar, self.encoder, self.keep_thinking = template, grammar, encoder, keep_thinking
        closes = sorted((encoder.control[i] for i in grammar.closes), key=len, reverse=True)
        self._close = re.compile("|".join(map(re.escape, closes))) if closes else None
        self._shapes: dict[object, Shape | NoBridge] = {}
        self._prints: dict[int, tuple[ToolSpec, str]] = {}

    def bridge(self, tail: Tail, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Rendered | NoBridge:
        refusal = refused_delta(tail, messages, tools)
        if refusal is not None:
            return refusal
        order = delta_order(tail, messages)
        new = [messages[i] for i in order]
        key = self._key(tail, new, tools)
        shape = self._shapes.get(key)
        if shape is None:
            if len(self._shapes) >= _MOST:
                self._shapes.pop(next(iter(self._shapes)))
            try:
                shape = self._learn(tail, new, tools)
            except Refused as refusal:
                # Not remembered: what was refused may be these contents, not this shape.
                return NoBridge("no_bridge", str(refusal))
            self._shapes[key] = shape
        if isinstance(shape, NoBridge):
            return shape
        if shape.fixed:
            contents = [form(clean_text(new[i].content)) for i, form in zip(shape.slots, shape.forms, strict=True)]
        else:
            try:
                shape, contents = self._probe(tail, new, tools)
            except Refused as refusal:
                return NoBridge("no_bridge", str(refusal))
        return self._assemble(tail, shape, contents, new, order)

    def _key(self, tail: Tail, new: Sequence[Message], tools: Sequence[ToolSpec]) -> object:
        message = tail.message
        calls = {c.id: n for n, c in enumerate(message.tool_calls)}
        return (
            tail.roles,
            tail.index > len(tail.roles),
            bool(message.content.strip()),
            bool(message.reasoning and message.reasoning.strip()),
            tail.strippable,
            tuple(c.name for c in message.tool_calls),
            tuple(
                (m.role, m.name, calls.get(m.tool_call_id or "", -1), None if m.content.strip() else m.content)
                for m in new
            ),
            tuple(self._print(tool) for tool in tools),
        )

    def _print(self, tool: ToolSpec) -> str:
        known = self._prints.get(id(tool))
        if known is None:
            if len(self._prints) >= _MOST:
                self._prints.clear()
            known = self._prints[id(tool)] = (tool, json.dumps(tool.to_openai(), sort_keys=True, default=str))
        return known[1]

    def _learn(self, tail: Tail, new: Sequence[Message], tools: Sequence[ToolSpec]) -> Shape | NoBridge:
        """The shape of this delta, checked against other contents; not fixed where those change the framing."""
        shape, filled = self._probe(tail, new, tools)
        slots = shape.slots
        trial = [attrs.evolve(m, content=_TRIAL) if i in slots else m for i, m in enumerate(new)]
        forms = []
        try:
            other, trials = self._probe(tail, trial, tools)
            for k, i in enumerate(slots):
                content = clean_text(new[i].content)
                forms.append(next(f for f in _FORMS if f(content) == filled[k] and f(_TRIAL) == trials[k]))
        except (Refused, StopIteration, IndexError):
            return attrs.evolve(shape, fixed=False)
        framing = "".join(shape.pieces)
        named = any(m.tool_call_id and m.tool_call_id in framing for m in new)
        fixed = not named and other.pieces == shape.pieces and other.close == shape.close
        return attrs.evolve(shape, forms=tuple(forms), fixed=fixed)

    def _probe(self, tail: Tail, new: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[Shape, list[str]]:
        """Render a short conversation like this one with *new* at its end: its framing, and the contents as they came
        out.
        """
        base = probe_history(tail, REASON if tail.strippable else None)
        said = self._said(tail.message)
        located = self.template.locate([*base, said, *new], tools, generation=True)
        text = located.text
        spans = located.contents[len(base) + 1 :]
        limit = min((s[0] for s in spans if s), default=len(text))
        low = max((s[1] for s in located.contents[: len(base)] if s), default=0)
        sentinel = self._sentinel(text, said, low, limit)
        self._keeps(located, base, said, tools, sentinel)
        match = self._close.search(text, sentinel, limit) if self._close else None
        if match is None:
            raise Refused("no token that closes the assistant's turn was found in the template")
        close = self.encoder.ids_of[match.group()]
        slots = tuple(i for i, span in enumerate(spans) if span)
        edges = [match.end(), *(p for span in spans if span for p in span), len(text)]
        if edges != sorted(edges):
            raise Refused("the template does not put the new messages after the assistant's")
        pieces = tuple(text[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True))
        opener = close not in self.grammar.ends and self._opens(text, match.start(), new[0].role)
        shape = Shape(close, opener, pieces, slots, (), opened(pieces[-1]))
        return shape, [text[span[0] : span[1]] for span in spans if span]

    def _opens(self, text: str, at: int, role: str) -> bool:
        """Whether the close found at *at* begins the header of the next message, of *role*."""
        opener = self.grammar.openers.get(role, "")
        return bool(opener) and text.startswith(opener, at)

    @staticmethod
    def _said(message: Message) -> Message:
        """The assistant's message with words of ours in its place: its structure is what counts."""
        calls = tuple(
            ToolCall(c.id, c.name or "fq7unnamed", {"value": f"{ARGUMENT}{n}"})
            for n, c in enumerate(message.tool_calls)
        )
        content = REPLY if message.content.strip() or not calls else ""
        reasoning = REASON if message.reasoning and message.reasoning.strip() else None
        return Message("assistant", content, reasoning, tool_calls=calls)

    @staticmethod
    def _sentinel(text: str, said: Message, low: int, limit: int) -> int:
        """Where the last of our words in the assistant's message ends, which begins somewhere after *low*."""
        words = [said.content, *(c.arguments["value"] for c in said.tool_calls)]
        ends = [at + len(word) for word in words if word and (at := text.rfind(word, low, limit)) >= 0]
        if not ends:
            # A template that shows no arguments: names may come again in the framing of the answers, so the first place
            # counts.
            ends = [at + len(c.name) for c in said.tool_calls if (at := text.find(c.name, low, limit)) >= 0]
        if not ends:
            raise Refused("the template shows neither the assistant's content nor its calls")
        return max(ends)

    def _keeps(
        self, located: Located, base: Sequence[Message], said: Message, tools: Sequence[ToolSpec], sentinel: int
    ) -> None:
        """Refused where the new messages make the template rewrite what came before the end of the assistant's."""
        before = self.template.text([self.template.wire(m) for m in [*base, said]], tools)
        shown = located.reasonings
        lost = said.reasoning is not None and shown[len(base)] is None
        lost |= any(
            m.reasoning and span is None and m.reasoning in before for m, span in zip(base, shown, strict=False)
        )
        if lost and not self.keep_thinking:
            raise Refused("the template strips earlier thinking")
        now = located.text[:sentinel]
        if before.startswith(now):
            return
        then, now = _EMPTY_THINK.sub("", before), _EMPTY_THINK.sub("", now)
        if self.keep_thinking:
            thought = re.compile(rf"<think>\s*{REASON}\d*\s*</think>\s*")
            then, now = thought.sub("", then), thought.sub("", now)
        if not then.startswith(now):
            at = common(then, now)
            raise Refused(
                f"the template rewrites what came before: {then[at : at + 40]!r} became {now[at : at + 40]!r}"
            )

    def _assemble(
        self, tail: Tail, shape: Shape, contents: Sequence[str], new: Sequence[Message], order: Sequence[int]
    ) -> Rendered:
        close = self.encoder.control[shape.close]
        closed = self._closed(tail, shape)
        lead = close if closed else self._blocks(tail) + close
        parts = [lead, shape.pieces[0]]
        at = len(lead) + len(shape.pieces[0])
        spans: list[Span] = []
        for content, piece in zip(contents, shape.pieces[1:], strict=True):
            spans.append((at, at + len(content)))
            parts += (content, piece)
            at += len(content) + len(piece)
        text = "".join(parts)
        guards = [(a, b, frozenset[int]()) for a, b in spans]
        # The close stands before what it closes off, so that what follows is encoded as it is after a close.
        tokens = self.encoder.tokenize(text, (), guards)
        if closed:
            tokens = tokens.drop_first()
        kinds = token_kinds(text, tokens, spans)
        edges = self._edges(text, shape, spans, new, len(lead))
        marks = [tokens.index(p) for p in edges]
        out = [(0, 0)] * len(new)
        for k, i in enumerate(order):
            out[i] = (marks[k], marks[k + 1])
        return Rendered(np.array(tokens.ids, np.int32), kinds, tuple(out), shape.opened)

    def _closed(self, tail: Tail, shape: Shape) -> bool:
        """Whether what was sampled already ends with the close (or with another that this template knows)."""
        if tail.stop == "length" or not len(tail.ids) or tail.ids[-1] != tail.stop:
            return False
        return tail.stop == shape.close or (tail.stop in self.grammar.ends and not shape.opener)

    def _blocks(self, tail: Tail) -> str:
        """Text that closes the blocks that a cut completion left open."""
        inside = self.encoder.open_block(tail.ids.tolist(), tail.opened)
        return self.grammar.think_end if inside == THINK else f"\n{CALL_END}" if inside == CALL else ""

    def _edges(self, text: str, shape: Shape, spans: Sequence[Span], new: Sequence[Message], low: int) -> list[int]:
        """Where each new message begins, and where the last one ends."""
        generation = self.grammar.generation
        end = len(text) - len(generation) if generation and text.endswith(generation) else len(text)
        filled = dict(zip(shape.slots, spans, strict=True))
        edges = []
        for i, message in enumerate(new):
            span = filled.get(i)
            edges.append(self.grammar.boundary(text, low, span[0], message.role) if span else low)
            low = span[1] if span else low
        return [*edges, max(end, low)]
