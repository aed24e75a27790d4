"""What every delta begins with: whether messages can be added at all, and answers to tool calls paired by id (many
templates pair them with the calls by order alone).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..data import Message, ToolSpec
from ..kinds import NoBridge, Tail


def answer_order(messages: Sequence[Message]) -> list[int]:
    """Indexes of *messages*, the answers to one message's calls put in the order of the calls."""
    order = list(range(len(messages)))
    calls: dict[str, int] = {}
    i = 0
    while i < len(messages):
        if messages[i].role != "tool":
            calls = {c.id: n for n, c in enumerate(messages[i].tool_calls)}
            i += 1
            continue
        stop = i
        while stop < len(messages) and messages[stop].role == "tool":
            stop += 1
        order[i:stop] = sort_answers(order[i:stop], messages, calls)
        i = stop
    return order


def sort_answers(block: list[int], messages: Sequence[Message], calls: Mapping[str, int]) -> list[int]:
    """*block*, indexes of tool messages, by the position of the call that each answers (*calls*: by id); as it is
    where any answers none.
    """
    if len(block) < 2 or any(messages[i].tool_call_id not in calls for i in block):
        return block
    return sorted(block, key=lambda i: calls[messages[i].tool_call_id or ""])


def refused_delta(tail: Tail, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> NoBridge | None:
    """Why no format whatever can extend a conversation that ends in *tail* by *messages*; None where one may."""
    said = sum(m.role == "assistant" for m in messages)
    if said == len(messages):
        return NoBridge("empty_delta", "nothing but what the model itself said was added")
    if said:
        return NoBridge("no_bridge", "an assistant message that was not sampled here is among the new ones")
    if tuple(tools) != tuple(tail.tools):
        return NoBridge("tools_changed", "the tools offered are not those of the message before")
    return None


def delta_order(tail: Tail, messages: Sequence[Message]) -> list[int]:
    """Indexes of *messages*, new after *tail*: the answers that they begin with in the order of the tail's calls."""
    answers = next((n for n, m in enumerate(messages) if m.role != "tool"), len(messages))
    calls = {c.id: n for n, c in enumerate(tail.message.tool_calls)}
    return [*sort_answers(list(range(answers)), messages, calls), *range(answers, len(messages))]
