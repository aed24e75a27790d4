"""Messages and tools in the form that the package takes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ferrule import Encoder, Message, ToolSpec, clean_text

from .families import Family
from .tokenizer import Tokenizer


class Wire:
    """Writes messages for the package, what comes from outside with a mark inside each control token's text."""

    def __init__(self, family: Family, tokenizer: Tokenizer, encoder: Encoder) -> None:
        self.family, self.tokenizer, self.encoder = family, tokenizer, encoder

    def messages(self, messages: Sequence[Message], names: Mapping[str, str]) -> list[dict[str, Any]]:
        """*names*: of the functions called, by the calls' ids."""
        return [self._message(m, names) for m in messages]

    def tools(self, tools: Sequence[ToolSpec]) -> list[dict[str, Any]] | None:
        return self.tokenizer.literal([t.to_openai() for t in tools]) if tools else None

    def _message(self, message: Message, names: Mapping[str, str]) -> dict[str, Any]:
        literal = self.tokenizer.literal
        # An assistant's own markup is markup; all else in a content is text.
        allowed = self.encoder.markup if message.role == "assistant" else frozenset[int]()
        content = literal(clean_text(message.content), allowed)
        out: dict[str, Any] = {"role": message.role, "content": content}
        if message.tool_call_id is not None:
            out["tool_call_id"] = literal(message.tool_call_id)
        name = message.name or (names.get(message.tool_call_id or "") if self.family.named else None)
        if name:
            out["name"] = literal(name)
        if message.role != "assistant":
            return out
        if message.reasoning is not None:
            out["reasoning_content"] = literal(clean_text(message.reasoning), allowed)
        raws = [clean_text(c.raw) for c in message.tool_calls if c.error is not None and c.raw]
        if raws:
            out["content"] = "\n".join([content, *raws] if content else raws)
        calls = [c for c in message.tool_calls if c.error is None or not c.raw]
        if calls:
            out["tool_calls"] = [
                {
                    "id": literal(c.id),
                    "type": "function",
                    "function": {
                        "name": literal(c.name),
                        "arguments": literal(json.loads(clean_text(json.dumps(dict(c.arguments), ensure_ascii=False)))),
                    },
                }
                for c in calls
            ]
        return out


def names_of(messages: Sequence[Message]) -> dict[str, str]:
    return {c.id: c.name for m in messages for c in m.tool_calls}
