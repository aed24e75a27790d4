"""What every delta begins with: whether messages can be added at all, answers to tool calls paired by id (many templates
pair them with the calls by order alone), and a short history to probe a template with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ..data import Message, ToolCall, ToolSpec
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


def probe_history(tail: Tail, reasoning: str | None) -> list[Message]:
    """Messages of the roles that came before *tail*, as far back as it tells, beginning where a conversation can begin:
    what a template does with them it does with those that they stand for. Replies carry *reasoning* and their number.
    """
    roles = list(tail.roles)
    if tail.index > len(roles) or not roles:
        # Nobody asked among them: they are a long stretch of calls, which somebody asked for before.
        first = "user" if "user" in roles else "assistant"
        while roles and roles[0] != first:
            roles.pop(0)
        roles = roles if first == "user" else ["user", *roles]
    history: list[Message] = []
    for n, role in enumerate(roles):
        if role == "assistant":
            count = 0
            while n + 1 + count < len(roles) and roles[n + 1 + count] == "tool":
                count += 1
            calls: Any = tuple(ToolCall(f"fq7id{n:02d}{k:02d}", "fq7earlier", {"value": "x"}) for k in range(count))
            thought = f"{reasoning}{n}" if reasoning is not None else None
            history.append(Message("assistant", "" if calls else f"x{n}", thought, tool_calls=calls))
        elif role == "tool":
            caller = max((k for k in range(n) if roles[k] == "assistant"), default=0)
            name = f"fq7id{caller:02d}{n - caller - 1:02d}"
            history.append(Message("tool", f"x{n}", tool_call_id=name, name="fq7earlier"))
        else:
            history.append(Message(cast(Any, role), f"x{n}"))
    return history
