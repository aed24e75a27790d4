"""How a request meets the ledger: which live conversation it extends, repeats or leaves."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Literal

import attrs
import numpy as np

from ..data import Message, TokenKind, ToolSpec
from ..kinds import Rendered

LIVE_THREADS = 8
"""Conversations of one agent that a request is matched with, the last used ones: agents interleave a few, never many.
"""

ResetReason = Literal["prefix_changed", "empty_delta", "no_bridge", "tools_changed"]


@attrs.define(eq=False)
class Thread:
    """A live conversation: the messages behind one segment, the last of them the model's own reply.

    ``generation`` is where the last generation prompt starts in the segment, ``prompt_length`` where the last
    completion does. ``opened`` are the blocks that the generation prompt left open, ``left_open`` those of them still
    open after the completion. ``strippable`` is whether a reply before the last came with reasoning.
    """

    segment: int
    messages: list[Message]
    tools: tuple[ToolSpec, ...]
    generation: int
    prompt_length: int
    opened: tuple[str, ...] = ()
    left_open: tuple[str, ...] = ()
    stop: int | Literal["length"] = "length"
    strippable: bool = False
    counts: Counter[Hashable] = attrs.field(factory=Counter)


@attrs.define(eq=False)
class Stream:
    """A live segment of an agent that keeps tokens itself: where its last completion begins."""

    segment: int
    prompt_length: int


@attrs.frozen(eq=False)
class Start:
    """The agent's first request: a segment opens."""


@attrs.frozen(eq=False)
class Extend:
    """The request goes on from a live conversation: *delta* is all that it adds."""

    thread: Thread
    new: list[Message]
    delta: Rendered


@attrs.frozen(eq=False)
class Repeat:
    """The same request again: the unacknowledged reply is cut off and sampled anew."""

    thread: Thread


@attrs.frozen(eq=False)
class Reset:
    """A new segment must start. ``index`` is the first message that differs from the nearest conversation *thread*,
    ``detail`` a sentence.
    """

    reason: ResetReason
    thread: Thread
    index: int
    detail: str


@attrs.frozen(eq=False)
class Match:
    """*thread* is wholly a prefix of the request; *new* is what comes after."""

    thread: Thread
    new: list[Message]


def match(
    threads: Sequence[Thread], messages: list[Message], tools: tuple[ToolSpec, ...]
) -> Start | Match | Repeat | Reset:
    """Find the live conversation with the longest common prefix.

    List comparison runs in C and looks at identity first, so that a harness which keeps its message objects pays
    nanoseconds a message.
    """
    if not threads:
        return Start()
    # The same request again goes before a shorter conversation that it would also go on from.
    changed: Reset | None = None
    for thread in reversed(threads):
        size = len(thread.messages) - 1
        if size == len(messages) and messages == thread.messages[:size]:
            if thread.tools == tools:
                return Repeat(thread)
            changed = changed or Reset("tools_changed", thread, size, _tools_differ(thread.tools, tools))
    best: Thread | None = None
    for thread in reversed(threads):
        size = len(thread.messages)
        # Of equals (the same words were said with other tools, or none) the one with these tools can be gone on from.
        nearer = best is None or (size, thread.tools == tools) > (len(best.messages), best.tools == tools)
        if nearer and messages[:size] == thread.messages:
            best = thread
    if best is not None:
        size = len(best.messages)
        new = messages[size:]
        if all(message.role == "assistant" for message in new):
            return Reset("empty_delta", best, size, "the request adds nothing that the model could answer")
        if best.tools != tools:
            return Reset("tools_changed", best, size, _tools_differ(best.tools, tools))
        if any(message.role == "assistant" for message in new):
            return Reset("no_bridge", best, size, "the request adds a reply that was not sampled here")
        return Match(best, new)
    if changed is not None:
        return changed
    lengths = [_common_prefix(thread.messages, messages) for thread in threads]
    nearest = max(range(len(threads)), key=lambda i: (lengths[i], i))
    return Reset("prefix_changed", threads[nearest], lengths[nearest], "the history is not what the model was shown")


def _common_prefix(one: list[Message], other: list[Message]) -> int:
    for i, (a, b) in enumerate(zip(one, other, strict=False)):
        if a is not b and a != b:
            return i
    return min(len(one), len(other))


def _tools_differ(before: tuple[ToolSpec, ...], now: tuple[ToolSpec, ...]) -> str:
    old, new = {tool.name: tool for tool in before}, {tool.name: tool for tool in now}
    gone, added = sorted(old.keys() - new.keys()), sorted(new.keys() - old.keys())
    changed = sorted(name for name in old.keys() & new.keys() if old[name] != new[name])
    parts = [
        f"{word} {', '.join(name[:40] for name in names[:8])}{', …' if len(names) > 8 else ''}"
        for word, names in (("gone:", gone), ("added:", added), ("changed:", changed))
        if names
    ]
    return f"other tools are offered ({'; '.join(parts) or 'in another order'})"


def key(message: Message) -> Hashable:
    """What makes two messages the same, hashable."""
    calls = tuple(
        (call.id, call.name, json.dumps(dict(call.arguments), sort_keys=True, default=repr), call.raw)
        for call in message.tool_calls
    )
    return (message.role, message.content, message.reasoning, message.tool_call_id, message.name, calls)


def kinds_after_reset(rendered: Rendered, messages: Sequence[Message], held: Counter[Hashable]) -> np.ndarray:
    """uint8[T]: the kinds of a history rendered anew.

    PROMPT for what an earlier row already holds (*held* counts each message's most occurrences in one segment) and for
    replies that were not sampled here. Messages first seen keep OBSERVATION and SCAFFOLD. What stands between two
    messages, and the generation prompt, belongs to the message before it; what stands before the first is PROMPT.
    """
    kinds = rendered.kinds.astype(np.uint8, copy=True)
    seen: Counter[Hashable] = Counter()
    at, hold = 0, True
    for message, (start, _) in zip(messages, rendered.spans, strict=True):
        if hold:
            kinds[at:start] = TokenKind.PROMPT
        at = start
        name = key(message)
        seen[name] += 1
        hold = seen[name] <= held[name]
    if hold:
        kinds[at:] = TokenKind.PROMPT
    kinds[kinds == TokenKind.ACTION] = TokenKind.PROMPT
    return kinds
