"""Conversations and deltas as the package writes them, each token with its kind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ferrule import (
    Encoder,
    Message,
    NoBridge,
    Rendered,
    Tail,
    TokenKind,
    ToolCall,
    ToolSpec,
    answer_order,
    clean_text,
    delta_order,
    get_logger,
    refused_delta,
    token_kinds,
)

from .families import Family
from .tokenizer import Tokenizer
from .wire import Wire

log = get_logger("ferrule.renderer.prime")


class Refused(Exception):
    """The package raised on these messages, or would lose a part of them; the text says which."""


class Rendering:
    """Renders with one of the package's renderers, *engine*. *keeps* is the same one with earlier thinking kept, for
    conversations in which there is none to strip.
    """

    def __init__(
        self, engine: Any, keeps: Any, name: str, family: Family, tokenizer: Tokenizer, encoder: Encoder
    ) -> None:
        self.engine, self.keeps, self.name, self.family = engine, keeps, name, family
        self.tokenizer, self.encoder = tokenizer, encoder
        self.wire = Wire(family, tokenizer, encoder)
        self.stop_ids = frozenset(int(i) for i in engine.get_stop_token_ids())
        self._prompts: dict[str, list[int]] = {}
        self._looked = False

    # -- whole conversations -------------------------------------------------------------------------------------------

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec], generation: bool) -> Rendered:
        order = answer_order(messages)
        shown = [messages[i] for i in order]
        try:
            self.tokenizer.choose(shown, tools)
            wires = self.wire.messages(shown)
            out = self.engine.render(wires, tools=self.wire.tools(tools), add_generation_prompt=generation)
        except Exception as error:  # the package's renderers refuse with errors of many kinds
            raise Refused(f"{self.name!r} of the renderers package raised {type(error).__name__}: {error}") from error
        ids = [int(i) for i in out.token_ids]
        indices = np.array(out.message_indices, np.int64)
        if len(indices) != len(ids):
            raise Refused(
                f"{self.name!r} of the renderers package told the message of {len(indices)} of {len(ids)} tokens"
            )
        kinds = np.full(len(ids), TokenKind.SCAFFOLD, np.uint8)
        sampled, content = self._masks(out, ids, indices, shown)
        bounds = _bounds(indices, len(shown))
        for i, message in enumerate(shown):
            start, stop = bounds[i]
            own = indices[start:stop] == i
            if message.role == "assistant":
                spoken = np.flatnonzero(own & sampled[start:stop])
                if len(spoken):
                    first, last = start + int(spoken[0]), start + int(spoken[-1]) + 1
                    prompt = self._prompt(shown[i - 1].role if i else "")
                    if prompt and ids[start : start + len(prompt)] == prompt:
                        # The package counts a block that the prompt opens as the model's, and a newline not as its.
                        first = min(start + len(prompt), last)
                    # It leaves out the headers between one reply's parts, which the model writes.
                    kinds[first:last][indices[first:last] == i] = TokenKind.ACTION
                    self._whole(ids[start:stop], message, i)
                elif message.content.strip() or message.tool_calls:
                    raise Refused(f"{self.name!r} of the renderers package drops message {i} (assistant)")
            else:
                self._observe(kinds, ids, start, stop, own & content[start:stop], message, i)
        self._shown(ids, tools)
        end = max((b for _, b in bounds), default=0)
        opened = self._opened(ids[end:]) if generation else ()
        return Rendered(np.array(ids, np.int32), kinds, _spans(bounds, order), opened)

    def _whole(self, ids: list[int], message: Message, index: int) -> None:
        """Refused where a template has either a text or calls, and drops the text."""
        if (
            message.tool_calls
            and message.content.strip()
            and clean_text(message.content).strip() not in self.encoder.decode(ids)
        ):
            raise Refused(f"{self.name!r} of the renderers package drops the text beside the calls of message {index}")

    def _shown(self, ids: list[int], tools: Sequence[ToolSpec]) -> None:
        """Warn, at the first tools, where the model is not told of the tools: no refusal, for a model may know its tools by heart."""
        if not tools or self._looked:
            return
        self._looked, text = True, self.encoder.decode(ids)
        hidden = [tool.name for tool in tools if tool.name not in text]
        if hidden:
            log.warning(
                "tools_not_shown", tools=hidden, detail=f"{self.name!r} of the renderers package leaves out tools"
            )

    def supervised(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Rendered:
        """As :meth:`render`, with a stop token after the last reply where the template has none, as the package's own
        ``build_training_sample(ensure_final_stop=True)``.
        """
        out = self.render(messages, tools, False)
        if messages[-1].role != "assistant" or not len(out) or int(out.ids[-1]) in self.stop_ids:
            return out
        start, stop = out.spans[-1]
        if stop != len(out) or any(
            int(i) in self.stop_ids for i in out.ids[start:][out.kinds[start:] == TokenKind.ACTION]
        ):
            return out
        end = int(self.engine.get_stop_token_ids()[0])
        ids, kinds = np.append(out.ids, np.int32(end)), np.append(out.kinds, np.uint8(TokenKind.ACTION))
        return Rendered(ids, kinds, (*out.spans[:-1], (start, stop + 1)), out.opened)

    def _masks(
        self, out: Any, ids: list[int], indices: NDArray[np.int64], shown: Sequence[Message]
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """(sampled, content), bool[T] each, as the package tells them; found here where it does not."""
        if len(out.sampled_mask) == len(ids) and len(out.is_content) == len(ids):
            return np.array(out.sampled_mask, bool), np.array(out.is_content, bool)
        sampled, content = np.zeros(len(ids), bool), np.zeros(len(ids), bool)
        header = self._prompt("user")
        for i, message in enumerate(shown):
            own = np.flatnonzero(indices == i)
            if not len(own):
                continue
            start, stop = int(own[0]), int(own[-1]) + 1
            if message.role != "assistant":
                content[start:stop] = True
                continue
            if ids[start : start + len(header)] == header:
                start += len(header)
            ends = [k for k in range(start, stop) if ids[k] in self.stop_ids]
            sampled[start : ends[-1] + 1 if ends else stop] = True
        return sampled, content

    def _prompt(self, role: str) -> list[int]:
        """The generation prompt after a message of *role*."""
        known = self._prompts.get(role)
        if known is None:
            user, tool = Message("user", "x"), Message("tool", "x", tool_call_id="functions.f:0", name="f")
            call = Message("assistant", tool_calls=(ToolCall("functions.f:0", "f"),))  # type: ignore[arg-type]
            probe = [user, call, tool] if role == "tool" else [user]
            wires = self.wire.messages(probe)
            try:
                without, known = (self.engine.render_ids(wires, add_generation_prompt=ask) for ask in (False, True))
                known = known[len(without) :] if known[: len(without)] == without else []
            except Exception:  # no calls in this family, say: then there is no such prompt
                known = []
            self._prompts[role] = known
        return known

    def _observe(
        self,
        kinds: NDArray[np.uint8],
        ids: list[int],
        start: int,
        stop: int,
        content: NDArray[np.bool_],
        message: Message,
        index: int,
    ) -> None:
        """Mark the content of *message*, which stands in ``ids[start:stop]``; *content* is where the package saw it."""
        text = clean_text(message.content)
        if not text.strip():
            return
        found = np.flatnonzero(content)
        if not len(found):
            raise Refused(
                f"{self.name!r} of the renderers package drops the content of message {index} ({message.role})"
            )
        first, last = start + int(found[0]), start + int(found[-1]) + 1
        forms = (text, text.strip(), json.dumps(text, ensure_ascii=False)[1:-1])
        body = self.encoder.decode(ids[first:last])
        if body not in forms:
            # Shared tokens, or more than the content: look where exactly it stands.
            whole = self.encoder.decode(ids[start:stop])
            at, form = next(((p, f) for f in forms if (p := whole.find(f)) >= 0), (-1, ""))
            tokens = self.encoder.tokenize(whole, (), [(at, at + len(form), frozenset())] if at >= 0 else ())
            if at >= 0 and tokens.ids == ids[start:stop]:
                kinds[start:stop] = token_kinds(whole, tokens, [(at, at + len(form))])
                return
        kinds[start:stop][content] = TokenKind.OBSERVATION

    def _opened(self, ids: Sequence[int]) -> tuple[str, ...]:
        """The blocks that a generation prompt leaves open."""
        text = self.encoder.decode(list(ids))
        start, end = self.family.think
        return ("think",) if text.rfind(start) > text.rfind(end) else ()

    # -- deltas --------------------------------------------------------------------------------------------------------

    def bridge(self, tail: Tail, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Rendered | NoBridge:
        refusal = refused_delta(tail, messages, tools)
        if refusal is not None:
            return refusal
        order = delta_order(tail, messages)
        new = [messages[i] for i in order]

        try:
            self.tokenizer.choose(new, tools)
            before, given, known = self._history(tail, new)
            engine = self.engine if self._strips(tail) else self.keeps
            wires = self.wire.messages(new, [tail.message])
            out = engine.bridge_to_next_turn(before, given, wires, tools=self.wire.tools(tools))
        except Exception as error:  # as above
            return NoBridge(
                "no_bridge", f"{self.name!r} of the renderers package raised {type(error).__name__}: {error}"
            )
        if out is None:
            return NoBridge("no_bridge", self._why(tail, new))
        whole = [int(i) for i in out.token_ids]
        if whole[: len(before) + len(given)] != [*before, *given]:
            return NoBridge(
                "no_bridge", f"{self.name!r} of the renderers package rewrote what the model had been shown"
            )
        delta, gap = whole[known:], []
        if self.family.gap and tail.stop != "length":
            gap = self.encoder.encode(self.family.gap)
            delta = [*gap, *delta]
        indices = np.array([-1] * len(gap) + out.message_indices[known:], np.int64)
        content = np.array([False] * len(gap) + out.is_content[known:], bool)
        kinds = np.full(len(delta), TokenKind.SCAFFOLD, np.uint8)
        bounds = _bounds(indices, len(new))
        try:
            for i, message in enumerate(new):
                start, stop = bounds[i]
                own = (indices[start:stop] == i) & content[start:stop]
                self._observe(kinds, delta, start, stop, own, message, i)
        except Refused as refusal:
            return NoBridge("no_bridge", str(refusal))
        end = max(b for _, b in bounds)
        return Rendered(np.array(delta, np.int32), kinds, _spans(bounds, order), self._opened(delta[end:]))

    def _history(self, tail: Tail, new: Sequence[Message]) -> tuple[list[int], list[int], int]:
        """(prompt, completion) to give to the package in place of the whole history, and how many of their tokens come
        before the delta.

        The package looks back no further than to the stop token before the reply's generation prompt, for a block that
        the prompt opened. What is put in here stands for what it would have found there, and is cut off again.
        """
        ids = [int(i) for i in tail.ids]
        before, completion = ids[: tail.prompt_length], ids[tail.prompt_length :]
        if not before:
            # Some templates go on without a prompt after a tool's answer, and the package wants some history.
            before = [min(self.stop_ids)]
        lead: list[int] = []
        if self.family.lead and not self._opened(before):
            lead = [self.encoder.ids_of[self.family.think[1]]]
        closers = self._closers(tail, completion, new) if tail.stop == "length" else []
        if not completion and self.family.filled:
            ends = [self.encoder.ids_of[self.family.think[1]]] if self._opened(before) else []
            closers = [*ends, min(self.stop_ids)]
        return before, [*lead, *completion, *closers], len(before) + len(lead) + len(completion)

    def _closers(self, tail: Tail, completion: list[int], new: Sequence[Message]) -> list[int]:
        """The ends of the blocks of a call in which the completion was cut."""
        text = self.encoder.decode(completion)
        start, end = self.family.think
        if (tail.opened or text.rfind(start) > text.rfind(end)) and not tail.message.tool_calls:
            return []
        gap = "\n" if self.family.grammar in ("tags", "dsml") else ""
        close = "".join(gap + mark for mark in self.family.open_blocks(text))
        if new[0].role == "tool" and tail.message.tool_calls:
            close += self.family.awaits
        return self.encoder.encode(close)

    def _strips(self, tail: Tail) -> bool:
        """Whether there is earlier thinking that a template could strip."""
        return tail.strippable or bool(tail.message.reasoning and tail.message.reasoning.strip())

    def _why(self, tail: Tail, new: Sequence[Message]) -> str:
        """The package says no without a reason."""
        policy = getattr(self.engine, "effective_thinking_retention", "all")
        if self.name == "default":
            return "'default' of the renderers package cannot extend a conversation: set renderer.family"
        if policy == "template":
            return f"{self.name!r} strips earlier thinking at each turn; thinking = 'keep' would extend"
        if tail.opened and tail.stop != "length":
            return f"the reply stopped inside its reasoning, after which {self.name!r} does not go on"
        if policy == "tool_cycle" and any(m.role == "user" for m in new):
            return f"{self.name!r} strips earlier thinking when a user speaks; thinking = 'keep' would extend"
        return f"{self.name!r} of the renderers package does not extend this reply by {', '.join(m.role for m in new)}"


def _bounds(indices: NDArray[np.int64], count: int) -> list[tuple[int, int]]:
    """(start, stop) of each message's tokens; an empty span after the one before where it has none."""
    first, last = [-1] * count, [0] * count
    edges = [0, *(np.flatnonzero(np.diff(indices)) + 1).tolist(), len(indices)]
    for start, stop in pairwise(edges):
        i = int(indices[start]) if start < stop else -1
        if 0 <= i < count:
            first[i] = start if first[i] < 0 else first[i]
            last[i] = stop
    out: list[tuple[int, int]] = []
    for i in range(count):
        end = out[-1][1] if out else 0
        out.append((first[i], last[i]) if first[i] >= 0 else (end, end))
    return out


def _spans(bounds: Sequence[tuple[int, int]], order: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """The bounds of messages shown in *order*, in the messages' own order."""
    spans = [(0, 0)] * len(order)
    for bound, i in zip(bounds, order, strict=True):
        spans[i] = bound
    return tuple(spans)
