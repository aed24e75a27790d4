"""Messages, tool calls and tool declarations, to and from the OpenAI wire form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

import attrs

Role = Literal["system", "user", "assistant", "tool"]


@attrs.frozen
class ToolCall:
    """One call of a tool by the model.

    ``arguments`` are as the tool's schema types them. ``error`` is set where the call was malformed; it is then
    answered to the model and never run, and ``raw`` holds the text as it stood.
    """

    id: str
    name: str
    arguments: Mapping[str, Any] = attrs.field(factory=dict)
    error: str | None = None
    raw: str | None = None


@attrs.frozen
class ToolSpec:
    """A tool as the model is shown it; ``parameters`` is a JSON schema of type object."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = attrs.field(factory=lambda: {"type": "object", "properties": {}})

    def to_openai(self) -> dict[str, Any]:
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}

    @classmethod
    def from_openai(cls, wire: Mapping[str, Any]) -> ToolSpec:
        function = wire.get("function", wire)
        return cls(function["name"], function.get("description") or "", function.get("parameters") or {})


@attrs.frozen
class Message:
    """One message. ``content`` is text; ``reasoning`` the model's thinking where it was told apart."""

    role: Role
    content: str = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = attrs.field(default=(), converter=tuple)
    tool_call_id: str | None = None
    name: str | None = None

    def to_openai(self) -> dict[str, Any]:
        """The OpenAI chat form, with call arguments as objects' JSON text."""
        out: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.reasoning is not None:
            out["reasoning_content"] = self.reasoning
        if self.tool_calls:
            out["tool_calls"] = [
                {
                    "id": c.id,
                    "type": "function",
                    "function": {"name": c.name, "arguments": json.dumps(dict(c.arguments))},
                }
                for c in self.tool_calls
            ]
        if self.tool_call_id is not None:
            out["tool_call_id"] = self.tool_call_id
        if self.name is not None:
            out["name"] = self.name
        return out

    @classmethod
    def from_openai(cls, wire: Mapping[str, Any]) -> Message:
        """Raises ValueError where the content is not text, or arguments are not a JSON object."""
        content = wire.get("content")
        if isinstance(content, list):
            if any(part.get("type") != "text" for part in content):
                kinds = sorted({str(part.get("type")) for part in content} - {"text"})
                raise ValueError(f"content parts of type {', '.join(kinds)} are not supported; rows hold token ids")
            content = "".join(part["text"] for part in content)
        calls = []
        for i, call in enumerate(wire.get("tool_calls") or ()):
            function = call["function"]
            arguments = function.get("arguments") or {}
            if isinstance(arguments, str):
                arguments = json.loads(arguments)
            if not isinstance(arguments, dict):
                raise ValueError(f"arguments of the call of {function.get('name')!r} are not an object")
            calls.append(ToolCall(call.get("id") or f"call_{i}", function["name"], arguments))
        return cls(
            wire["role"],
            content or "",
            wire.get("reasoning_content"),
            tuple(calls),  # type: ignore[arg-type]  # the converter's
            wire.get("tool_call_id"),
            wire.get("name"),
        )
