"""Assistant messages as authors write them: a shorthand for calls, or the OpenAI chat form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ferrule import Message

_SHORT = {"call", "arguments", "calls", "content", "reasoning"}


def message_of(item: Any, position: int = 0) -> Message:
    """The assistant message that *item* is: a text, ``{call, arguments, content}``, ``{calls = […]}`` or the OpenAI
    form.

    *position* makes call ids unique in a conversation. Raises ValueError saying what is wrong.
    """
    if isinstance(item, Message):
        return item
    if isinstance(item, str):
        return Message("assistant", item)
    if not isinstance(item, Mapping):
        raise ValueError(f'must be a text or a table such as {{ call = "tool", arguments = {{ }} }}, not {item!r}')
    if "role" in item or "tool_calls" in item:
        try:
            message = Message.from_openai({"role": "assistant", **item})
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"is not an OpenAI chat message: {type(error).__name__}: {error}") from None
        if message.role != "assistant":
            raise ValueError(f"must be an assistant's message, not one of role {message.role!r}")
        return message
    unknown = set(item) - _SHORT
    if unknown:
        raise ValueError(f"unknown key {sorted(unknown)[0]!r}; known: {', '.join(sorted(_SHORT))}")
    calls = list(item.get("calls", ()))
    if "call" in item:
        calls.insert(0, {"call": item["call"], "arguments": item.get("arguments", {})})
    wire = []
    for i, call in enumerate(calls):
        if not isinstance(call, Mapping) or not isinstance(call.get("call"), str):
            raise ValueError(f'call {i} must name a tool: {{ call = "tool", arguments = {{ }} }}, not {call!r}')
        arguments = call.get("arguments", {})
        if not isinstance(arguments, Mapping):
            raise ValueError(f"the arguments of {call['call']!r} must be a table, not {arguments!r}")
        wire.append({"id": f"call_{position}_{i}", "function": {"name": call["call"], "arguments": dict(arguments)}})
    return Message.from_openai(
        {
            "role": "assistant",
            "content": item.get("content", ""),
            "reasoning_content": item.get("reasoning"),
            "tool_calls": wire,
        }
    )


def messages_of(items: Any) -> tuple[Message, ...]:
    """A list of them. Raises ValueError naming the position of the first that is wrong."""
    if not isinstance(items, list | tuple):
        raise ValueError(f"must be a list of assistant messages, not {items!r}")
    out = []
    for i, item in enumerate(items):
        try:
            out.append(message_of(item, i))
        except ValueError as error:
            raise ValueError(f"message {i} {error}") from None
    return tuple(out)
