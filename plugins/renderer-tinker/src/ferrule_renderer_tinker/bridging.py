"""What new messages add to a conversation: a short one like it is rendered with them at its end, and what follows the
close of the assistant's message is the delta. Bounded work, however long the history.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence

import attrs
import numpy as np

from ferrule import (
    MARKUP,
    Message,
    NoBridge,
    Rendered,
    Tail,
    TokenKind,
    ToolSpec,
    delta_order,
    probe_history,
    refused_delta,
)

from .learning import REASON, REPLY
from .marking import KINDS, OUTPUT, REASONING, Laid
from .rendering import Rendering

_MOST = 4096
_EMPTY_THINK = re.compile(r"(?:<think>\s*)?</think>\s*")
_THOUGHT = re.compile(rf"<think>\s*{REASON}\d*\s*(?=</think>)")
_ANY_TOOL = (ToolSpec("fq7tool", "A tool."),)
"""In place of the tools offered: that there are some may matter to what follows, which they are does not."""


class Bridging:
    """Finds deltas. Remembers which shapes of conversations cannot be extended, at most 4096 of them, and nothing of any
    conversation.
    """

    def __init__(self, rendering: Rendering, keep_thinking: bool) -> None:
        self.keep_thinking = keep_thinking
        self.rendering, self.cookbook, self.learned = rendering, rendering.cookbook, rendering.learned
        self.encoder = self.cookbook.encoder
        blocks = [tag for block in self.learned.blocks for tag in block[:2]]
        ids_of = self.encoder.ids_of
        self._inner = frozenset(ids_of[tag] for tag in (*MARKUP, *blocks) if tag in ids_of)
        self._tags = {ids_of[tag]: tag for tag in blocks if tag in ids_of}
        spelled = [tag for tag in blocks if tag not in ids_of]
        self._spelled = re.compile("|".join(map(re.escape, spelled))) if spelled else None
        self._verdicts: dict[Hashable, NoBridge | None] = {}

    def bridge(self, tail: Tail, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Rendered | NoBridge:
        refusal = refused_delta(tail, messages, tools)
        if refusal is not None:
            return refusal
        order = delta_order(tail, messages)
        new = [messages[i] for i in order]
        base, said = probe_history(tail, REASON if tail.strippable else None), _said(tail.message)
        shown = [*base, said, *new]
        offered = _ANY_TOOL if tools else ()
        self.rendering.check(shown)
        laid = self.cookbook.prompt(shown, offered, arguments=True)
        self.rendering.check_shown(shown, laid)
        refusal = self._verdict(tail, base, said, new, laid, offered)
        return refusal or self._delta(tail, laid, shown, len(base), order)

    def _verdict(
        self,
        tail: Tail,
        base: list[Message],
        said: Message,
        new: Sequence[Message],
        laid: Laid,
        offered: tuple[ToolSpec, ...],
    ) -> NoBridge | None:
        """Whether the new messages make the renderer rewrite what came before them; found once per shape."""
        key = (
            tail.roles,
            tail.index > len(tail.roles),
            bool(said.content),
            bool(said.reasoning),
            tail.strippable,
            len(said.tool_calls),
            tuple((m.role, bool(m.content.strip())) for m in new),
            bool(offered),
        )
        if key not in self._verdicts:
            if len(self._verdicts) >= _MOST:
                self._verdicts.pop(next(iter(self._verdicts)))
            before = self.cookbook.example([*base, said], offered)
            self._verdicts[key] = self._rewritten(before, laid, len(base))
        return self._verdicts[key]

    def _rewritten(self, before: Laid, laid: Laid, index: int) -> NoBridge | None:
        shown = laid.slots[laid.owners <= index]
        for slot in np.unique(before.slots).tolist():
            if slot >= 0 and slot % KINDS == REASONING and slot not in shown and not self.keep_thinking:
                return NoBridge("no_bridge", f"{self.cookbook.name!r} strips earlier thinking")
        said = np.flatnonzero((laid.owners == index) & (laid.slots >= 0))
        if not len(said):
            return NoBridge("no_bridge", f"{self.cookbook.name!r} shows neither the assistant's content nor its calls")
        now = self.encoder.decode(laid.ids[: said[-1] + 1].tolist())
        then = self.encoder.decode(before.ids.tolist())
        if self.keep_thinking:
            now, then = _THOUGHT.sub("", now), _THOUGHT.sub("", then)
        now, then = _EMPTY_THINK.sub("", now), _EMPTY_THINK.sub("", then)
        if then.startswith(now):
            return None
        at = next(n for n, (a, b) in enumerate(zip(now, then + "\0", strict=False)) if a != b)
        return NoBridge(
            "no_bridge",
            f"{self.cookbook.name!r} rewrites what came before: {then[at : at + 40]!r} became {now[at : at + 40]!r}",
        )

    def _delta(
        self, tail: Tail, laid: Laid, shown: Sequence[Message], index: int, order: Sequence[int]
    ) -> Rendered | NoBridge:
        own = np.flatnonzero((laid.owners == index) & (laid.parts == OUTPUT))
        if not len(own):
            return NoBridge("no_bridge", f"{self.cookbook.name!r} writes nothing of the assistant's message")
        stop = int(own[-1]) + 1
        rest = int(own[laid.slots[own] >= 0][-1]) + 1
        control, inner = self.encoder.control, self._inner
        closes = [n for n in range(rest, stop) if int(laid.ids[n]) in control and int(laid.ids[n]) not in inner]
        stopped = tail.stop != "length" and len(tail.ids) > 0 and int(tail.ids[-1]) == tail.stop
        if closes:
            start, close = closes[-1] + 1, [int(laid.ids[closes[-1]])]
            ended = tail.stop == close[0] or (close[0] not in self.learned.stops and tail.stop in self.learned.stops)
            lead = [] if stopped and ended else close
        else:
            start, lead = stop, laid.ids[rest:stop].tolist() if self.learned.text_stops else []
            refusal = self._unclosed(tail, stopped, lead)
            if refusal is not None:
                return refusal
        if not stopped:
            lead = [*self.encoder.encode(self._blocks(tail)), *lead]
        spans, kinds = self.rendering.layout(shown, laid)
        moved = len(lead) - start
        ids = np.concatenate([np.array(lead, np.int32), laid.ids[start:]])
        kinds = np.concatenate([np.full(len(lead), TokenKind.SCAFFOLD, np.uint8), kinds[start:]])
        out = [(0, 0)] * len(order)
        for k, i in enumerate(order):
            first, last = spans[index + 1 + k]
            out[i] = (max(0, first + moved), max(0, last + moved))
        end = self.rendering.end(laid)
        return Rendered(ids, kinds, tuple(out), self.learned.opened(laid.ids[end:].tolist()))

    def _unclosed(self, tail: Tail, stopped: bool, lead: list[int]) -> NoBridge | None:
        """Why a turn that no token closes cannot be gone on from, if so. Takes from *lead* (the text that closes it)
        what the model wrote of it.
        """
        if not self.learned.text_stops:
            if stopped:
                name = self.encoder.control.get(int(tail.ids[-1]), "its stop token")
                return NoBridge(
                    "no_bridge", f"the reply ended with {name!r}, which does not stand before such a message"
                )
            return None
        text = self.encoder.decode(tail.ids[tail.prompt_length : len(tail.ids) - stopped].tolist())
        if any(stop in text for stop in self.learned.text_stops):
            return NoBridge("no_bridge", "the reply goes on after the text that ends it")
        if text.endswith(self.encoder.decode(lead)):
            lead.clear()
        return None

    def _blocks(self, tail: Tail) -> str:
        """Text that closes the blocks that a cut completion left open, innermost first."""
        closing = {begin: close for begin, _, close in self.learned.blocks}
        begins = {end: begin for begin, end, _ in self.learned.blocks}
        open_ = ["<think>"] if "think" in tail.opened else []
        for tag in self._found(tail.ids.tolist()):
            if tag in closing:
                if tag not in open_:
                    open_.append(tag)
            elif begins[tag] in open_:
                del open_[open_.index(begins[tag]) :]
        return "".join(closing[begin] for begin in reversed(open_))

    def _found(self, ids: list[int]) -> list[str]:
        """The tags in *ids*, in order."""
        out: list[str] = []
        run: list[int] = []
        for i in [*ids, -1]:
            if i in self._tags or i < 0:
                out += self._spelled.findall(self.encoder.decode(run)) if self._spelled and run else []
                run = []
                out += [self._tags[i]] if i in self._tags else []
            else:
                run.append(i)
        return out


def _said(message: Message) -> Message:
    """The assistant's message with words of ours in its place: its structure is what counts."""
    calls = tuple(
        attrs.evolve(c, name=c.name or "fq7unnamed", arguments={"value": f"Fq7argument{n}"}, error=None, raw=None)
        for n, c in enumerate(message.tool_calls)
    )
    content = REPLY if message.content.strip() or not calls else ""
    reasoning = REASON if message.reasoning and message.reasoning.strip() else None
    return Message("assistant", content, reasoning, calls)  # type: ignore[arg-type]  # the converter's
