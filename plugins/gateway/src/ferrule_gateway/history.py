"""What a session's client sends again: messages read once, and replies known again in whatever form they come back.

Clients send the whole conversation each time, and change what they were sent: content null, "" or in parts, reasoning
left out, arguments' JSON written anew, other fields added. A reply that was sampled here is recognised by what its
content and calls say, and the very Message that the session holds stands in for it; else every turn would look like a
rewritten history.
"""

from __future__ import annotations

import hashlib
from typing import Any

import attrs
import orjson

from ferrule import Message, ToolSpec

from .checks import too_deep
from .errors import bad
from .messages import calls_of, content_of, plain, read_message, read_tools

LIVE_LINES = 8
"""Conversations of one session that a request is compared with, the last used ones."""


@attrs.define(eq=False)
class Line:
    """A conversation as it was last sent: each message as it came and as it was read, and the reply once there is one."""

    wire: list[Any]
    messages: list[Message]
    tools_wire: list[Any] | None
    tools: tuple[ToolSpec, ...]
    reply: Message | None = None
    mark: bytes = b""
    before: Line | None = None


class History:
    """The conversations of one session, as its client knows them."""

    def __init__(self) -> None:
        self._lines: list[Line] = []
        self._sent: dict[bytes, list[Message]] = {}

    def read(self, wire: list[Any], tools_wire: list[Any] | None) -> Line:
        """Read a request. What it repeats of the last ones is neither checked nor converted again."""
        best, common = None, -1
        for line in reversed(self._lines):
            size = _common(line.wire, wire)
            if size > common:
                best, common = line, size
        if best is None:
            messages = [self._read(each, i, None) for i, each in enumerate(wire)]
            return Line(wire, messages, tools_wire, read_tools(tools_wire))
        held = best.messages if best.reply is None else [*best.messages, best.reply]
        messages = best.messages[:common]
        for i in range(common, len(wire)):
            messages.append(self._read(wire[i], i, held[i] if i < len(held) else None, best))
        tools = best.tools if best.tools_wire == tools_wire else read_tools(tools_wire)
        return Line(wire, messages, tools_wire, tools, before=best if common == len(best.wire) else None)

    def answered(self, line: Line, reply: Message, sent: dict[str, Any]) -> None:
        """*line* was answered with *reply*, which the client was shown as *sent*."""
        line.reply, line.mark = reply, mark_of(sent)
        same = self._sent.setdefault(line.mark, [])
        if not any(each is reply for each in same):
            same.append(reply)
        lines = [each for each in self._lines if each is not line.before]
        line.before = None
        self._lines = [*lines, line][-LIVE_LINES:]

    def _read(self, wire: Any, index: int, held: Message | None, line: Line | None = None) -> Message:
        if not isinstance(wire, dict):
            raise bad(f"messages[{index}]", f"messages[{index}] must be an object", "invalid_type")
        if wire.get("role") != "assistant":
            message = read_message(wire, f"messages[{index}].")
            return held if held is not None and held == message else message
        mark = mark_of(wire, f"messages[{index}].")
        if line is not None and held is line.reply and held is not None and mark == line.mark:
            return held
        same = self._sent.get(mark)
        if same:
            if held is not None and any(each is held for each in same):
                return held
            reasoning = wire.get("reasoning_content") or wire.get("reasoning")
            if isinstance(reasoning, str):
                return next((each for each in reversed(same) if each.reasoning == reasoning), same[-1])
            return same[-1]
        message = read_message(wire, f"messages[{index}].")
        return held if held is not None and held == message else message


def mark_of(wire: dict[str, Any], where: str = "") -> bytes:
    """sha256 of what an assistant message says, whatever its form: content without surrounding blanks, and each call's
    id, name and arguments.
    """
    calls = [(id_, name, _settled(arguments)) for id_, name, arguments in calls_of(wire, where)]
    text = content_of(wire.get("content"), where + "content").strip()
    return hashlib.sha256(orjson.dumps([text, calls], option=orjson.OPT_SORT_KEYS)).digest()


def _settled(arguments: str) -> Any:
    """Arguments of a call, the same for every way of writing the same JSON."""
    try:
        value = orjson.loads(arguments) if arguments else {}
    except orjson.JSONDecodeError:
        return arguments.strip()
    return arguments.strip() if too_deep(value, arguments) else plain(value)


def _common(one: list[Any], other: list[Any]) -> int:
    """How many messages the two begin with alike."""
    size = min(len(one), len(other))
    if one[:size] == other[:size]:  # in C
        return size
    return next(i for i in range(size) if one[i] != other[i])
