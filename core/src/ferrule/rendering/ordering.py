"""Answers to tool calls, paired by id: many templates pair them with the calls by order alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..data import Message


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
