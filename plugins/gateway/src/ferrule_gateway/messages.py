"""Messages and tools in OpenAI's shape, to Message and ToolSpec and back.

A call that is malformed goes out as a call, its name as far as it was read and, as its arguments, ``malformed call
(what is wrong): raw text``, which never parses as JSON: a program that reads its calls' arguments answers such a call
with an error, as the model must see one, and never runs it.
"""

from __future__ import annotations

import json
from typing import Any

import orjson

from ferrule import Message, ToolCall, ToolSpec

from .checks import required_text, shown, text, too_deep, wrong
from .errors import bad

ROLES = ("system", "user", "assistant", "tool")
UNNAMED = "malformed_call"
"""The name that a call without one goes out under."""


def content_of(content: Any, where: str) -> str:
    """The text of a content: text, null or a list of text parts."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if not isinstance(content, list):
        raise wrong(where, "text or a list of text parts", content)
    out = []
    for i, part in enumerate(content):
        place = f"{where}[{i}]"
        if not isinstance(part, dict):
            raise wrong(place, "an object", part)
        kind = part.get("type")
        if kind != "text":
            raise bad(f"{place}.type", f"{place} is of type {shown(kind)}: only text is supported", "unsupported_value")
        if not isinstance(part.get("text"), str):
            raise wrong(f"{place}.text", "text", part.get("text"))
        out.append(part["text"])
    return "".join(out)


def calls_of(wire: dict[str, Any], where: str) -> list[tuple[str, str, str]]:
    """Id, name and arguments' text of each call of an assistant message."""
    calls = wire.get("tool_calls")
    if calls is None:
        return []
    if not isinstance(calls, list):
        raise wrong(f"{where}tool_calls", "a list", calls)
    out = []
    for i, call in enumerate(calls):
        place = f"{where}tool_calls[{i}]"
        if not isinstance(call, dict):
            raise wrong(place, "an object", call)
        function = call.get("function")
        if not isinstance(function, dict):
            raise wrong(f"{place}.function", "an object", function)
        name = required_text(function, "name", f"{place}.function.")
        arguments = function.get("arguments")
        if isinstance(arguments, dict):  # some clients forget that it is text
            arguments = json.dumps(arguments)
        elif arguments is not None and not isinstance(arguments, str):
            raise wrong(f"{place}.function.arguments", "JSON as text", arguments)
        out.append((text(call, "id", f"{place}.") or f"call_{i}", name, arguments or ""))
    return out


def read_message(wire: dict[str, Any], where: str) -> Message:
    """The Message that *wire* is; *where* names it in errors: ``messages[0].``."""
    role = wire.get("role")
    if role == "developer":
        role = "system"
    if role not in ROLES:
        if role is None:
            raise bad(f"{where}role", f"{where}role is required", "missing_required_parameter")
        raise bad(f"{where}role", f"{where}role must be one of {', '.join(ROLES)}, not {shown(role)}")
    content = wire.get("content")
    if content is None and role != "assistant":
        raise bad(f"{where}content", f"{where}content is required", "missing_required_parameter")
    name = text(wire, "name", where)
    answers = required_text(wire, "tool_call_id", where) if role == "tool" else None
    if role != "assistant":
        return Message(role, content_of(content, f"{where}content"), None, (), answers, name)
    reasoning = text(wire, "reasoning_content", where)
    if reasoning is None:
        reasoning = text(wire, "reasoning", where)
    calls = tuple(read_call(*call) for call in calls_of(wire, where))
    return Message(role, content_of(content, f"{where}content"), reasoning or None, calls, None, name)  # type: ignore[arg-type]  # the converter's


def read_call(id_: str, name: str, arguments: str) -> ToolCall:
    """The call whose arguments are the text *arguments*; one with an error where they are none."""
    value, error = _read_arguments(arguments)
    return ToolCall(id_, name, value) if error is None else ToolCall(id_, name, {}, error, arguments)


def _read_arguments(text: str) -> tuple[dict[str, Any], str | None]:
    """The arguments that *text* says; where it says none, what is wrong with it."""
    try:
        value = json.loads(text) if text.strip() else {}
    except ValueError as error:
        return {}, f"the arguments are not JSON: {error}"
    except RecursionError:
        return {}, "the arguments are nested too deep"
    if not isinstance(value, dict):
        return {}, "the arguments are not an object"
    return ({}, "the arguments are nested too deep") if too_deep(value, text) else (value, None)


def read_tools(wire: list[Any] | None) -> tuple[ToolSpec, ...]:
    """The tools of a request."""
    out: dict[str, ToolSpec] = {}
    for i, tool in enumerate(wire or ()):
        where = f"tools[{i}]"
        if not isinstance(tool, dict):
            raise wrong(where, "an object", tool)
        if tool.get("type", "function") != "function":
            raise bad(
                f"{where}.type", f"{where}.type must be 'function', not {shown(tool['type'])}", "unsupported_value"
            )
        function = tool.get("function")
        if not isinstance(function, dict):
            raise wrong(f"{where}.function", "an object", function)
        name = required_text(function, "name", f"{where}.function.")
        if name in out:
            raise bad(f"{where}.function.name", f"two tools are called {shown(name)}")
        parameters = function.get("parameters")
        if parameters is not None and not isinstance(parameters, dict):
            raise wrong(f"{where}.function.parameters", "a JSON schema", parameters)
        description = text(function, "description", f"{where}.function.") or ""
        out[name] = ToolSpec(name, description, parameters or {"type": "object", "properties": {}})
    return tuple(out.values())


def plain(value: Any) -> Any:
    """*value* with whole floats as integers, which is how a client in another language writes them."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


def write_message(message: Message) -> dict[str, Any]:
    """The assistant *message* as a client is shown it."""
    out: dict[str, Any] = {"role": "assistant", "content": message.content}
    if message.reasoning:
        out["reasoning_content"] = message.reasoning
    if message.tool_calls:
        out["content"] = message.content or None
        out["tool_calls"] = [
            {
                "id": c.id,
                "type": "function",
                "function": {"name": _sound(c.name) or UNNAMED, "arguments": _arguments(c)},
            }
            for c in message.tool_calls
        ]
    return out


def _arguments(call: ToolCall) -> str:
    if call.error is not None:
        return _sound(f"malformed call ({call.error}): {call.raw or ''}")
    try:
        return orjson.dumps(dict(call.arguments)).decode()
    except TypeError:  # integers beyond 64 bits, half of a surrogate pair, deep nesting
        return json.dumps(dict(call.arguments))


def _sound(text: str) -> str:
    """*text* without halves of surrogate pairs: JSON that a model wrote may hold them, and no UTF-8 can say them."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
