"""Messages and tools in the form that the package takes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from ferrule import Encoder, Message, ToolSpec, clean_text

from .families import Family
from .tokenizer import Tokenizer


class Wire:
    """Writes messages for the package, what comes from outside with a mark inside each control token's text."""

    def __init__(self, family: Family, tokenizer: Tokenizer, encoder: Encoder) -> None:
        self.family, self.tokenizer, self.encoder = family, tokenizer, encoder

    def messages(self, messages: Sequence[Message], before: Sequence[Message] = ()) -> list[dict[str, Any]]:
        """*messages*, whose answers may be to calls in those *before*, which are not written."""
        names = names_of([*before, *messages])
        if self.family.grammar == "kimi":
            messages = _kimi_ids([*before, *messages])[len(before) :]
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


_KIMI_ID = re.compile(r"(?:functions\.)?(.+):\d+", re.DOTALL)


def _kimi_ids(messages: Sequence[Message]) -> list[Message]:
    """The messages with ids as Kimi's template wants them: a call is told by its id alone, ``functions.name:0``, calls
    being counted over the conversation. An id that is not one is exchanged, in the call and in its answer.
    """
    out, new, count = list[Message](), dict[str, str](), 0
    for message in messages:
        if message.tool_calls:
            new, calls = {}, []
            for call in message.tool_calls:
                match = _KIMI_ID.fullmatch(call.id)
                if match is None or match[1] != call.name:
                    new[call.id] = f"functions.{call.name}:{count}"
                calls.append(attrs.evolve(call, id=new.get(call.id, call.id)))
                count += 1
            message = attrs.evolve(message, tool_calls=calls)  # type: ignore[arg-type]  # the converter's
        elif message.tool_call_id in new:
            message = attrs.evolve(message, tool_call_id=new[message.tool_call_id])
        out.append(message)
    return out


def names_of(messages: Sequence[Message]) -> dict[str, str]:
    return {c.id: c.name for m in messages for c in m.tool_calls}
