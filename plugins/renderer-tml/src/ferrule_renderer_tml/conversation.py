"""Messages in the form that tml-renderers takes, and what it cannot take."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ferrule import Message, ToolCall, ToolSpec, answer_order, clean_text

from .families import Family

_INTEGERS = range(-(2**63), 2**64)


class Refused(Exception):
    """The package cannot write these messages whole; the text says which and why."""


class Conversation:
    """Turns messages into the package's; keeps nothing of them."""

    def __init__(self, family: Family, thinking: str) -> None:
        from tml_renderers import chat

        self._chat, self.family, self.thinking = chat, family, thinking
        kinds = chat.AuthorKind
        self._kinds = {"system": kinds.System, "user": kinds.User, "assistant": kinds.Model, "tool": kinds.Tool}

    def check(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> None:
        """Refused where something would be lost or run together."""
        if not self.family.style and (tools or any(m.tool_calls or m.role == "tool" for m in messages)):
            raise Refused(
                f"the package's {self.family.renderer} cannot declare tools, so neither tools nor calls are served"
            )
        for i, (one, two) in enumerate(itertools.pairwise(messages)):
            if one.role == two.role != "tool":
                raise Refused(f"the package joins messages {i} and {i + 1} (both {one.role}) into one")
            # A user's text after an answer, in the DSML families, joins the answer's own turn.

    def shown(self, messages: Sequence[Message]) -> list[str]:
        """The reasoning of each message as far as it is to be shown; '' for none."""
        out = [clean_text(m.reasoning or "") if m.role == "assistant" else "" for m in messages]
        if self.thinking == "strip":  # what is said last is not said again: a demonstration teaches its thinking
            out[:-1] = [""] * len(out[:-1])
        if self.thinking == "template" and self.family.since:
            user = self.family.since == "user"
            ends = [i for i, m in enumerate(messages) if (m.role == "user" if user else _answered(messages, i))]
            last = max(ends, default=-1)
            out[: last + 1] = [""] * (last + 1)
        return [text if text.strip() else "" for text in out]

    def build(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], mark: Callable[[str, int], str]
    ) -> tuple[list[Any], list[int]]:
        """The package's messages, answers in the order of their calls, and the order taken. *mark* is given each
        content (number 2i) and each reasoning (2i + 1).
        """
        chat = self._chat
        order = answer_order(messages)
        messages = [messages[i] for i in order]
        reasonings = self.shown(messages)
        out: list[Any] = []
        declared = [self._declaration(tools)] if tools else []
        if declared and (not messages or messages[0].role != "system"):
            out.append(chat.OpenAIMessage(author=chat.Author(self._kinds["system"]), content=declared))
        known: dict[str, tuple[str, str]] = {}
        count = 0
        for i, message in enumerate(messages):
            parts: list[Any] = []
            text = clean_text(message.content)
            if reasonings[i]:
                parts.append(chat.Thinking(mark(reasonings[i].strip("\n"), 2 * i + 1)))
            raws = [clean_text(c.raw) for c in message.tool_calls if c.error is not None and c.raw]
            calls = [c for c in message.tool_calls if c.error is None or not c.raw]
            written = mark(text, 2 * i)
            if raws:
                written = "\n".join([written, *raws] if written else raws)
            if written or not calls:
                parts.append(chat.Text(written))
            if message.role == "assistant":
                known = {}
            for call in calls:
                name = self._id(call, count)
                known[call.id] = (name, call.name)
                parts.append(self._call(call, name, i))
                count += 1
            for call in message.tool_calls:
                known.setdefault(call.id, (call.id, call.name))
            if i == 0 and message.role == "system":
                parts += declared
            author, options = chat.Author(self._kinds[message.role]), {}
            if message.role == "tool":
                sent, name = known.get(message.tool_call_id or "", (message.tool_call_id or "call", "tool"))
                options = {"tool_call_id": sent, "tool_name": message.name or name or "tool"}
            out.append(chat.OpenAIMessage(author=author, content=parts, **options))
        return out, order

    def _id(self, call: ToolCall, count: int) -> str:
        """The id that is written: Kimi's name their function, and are all that names it."""
        if self.family.style != "kimi" or call.id.startswith(f"functions.{call.name}:"):
            return call.id
        return f"functions.{call.name}:{count}"

    def _call(self, call: ToolCall, name: str, index: int) -> Any:
        chat = self._chat
        args = []
        for key, value in call.arguments.items():
            _representable(value, f"argument {key!r} of the call of {call.name!r} in message {index}")
            args.append(chat.ToolArg(clean_text(key), json.dumps(_clean(value), ensure_ascii=False)))
        return chat.InvokeTool(chat.StructuredToolCall(clean_text(call.name), args, [], name))

    def _declaration(self, tools: Sequence[ToolSpec]) -> Any:
        chat = self._chat
        for tool in tools:
            _representable(tool.parameters, f"the schema of tool {tool.name!r}")
        specs = [
            chat.ToolSpecJson("function", clean_text(t.name), clean_text(t.description), _clean(_plain(t.parameters)))
            for t in tools
        ]
        return chat.ToolDeclareJson(specs)


def _answered(messages: Sequence[Message], i: int) -> bool:
    """Whether message *i* is a reply that calls nothing, with more after it."""
    return messages[i].role == "assistant" and not messages[i].tool_calls and i + 1 < len(messages)


def _representable(value: Any, where: str) -> None:
    """Refused for integers that the package would turn into floats."""
    if isinstance(value, bool):
        return
    if isinstance(value, int) and value not in _INTEGERS:
        raise Refused(f"{where} holds an integer of more than 64 bits, which the package cannot write")
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            _representable(item, where)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def _clean(value: Any) -> Any:
    """*value* without lone surrogates."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(k): _clean(v) for k, v in value.items()}
    return [_clean(v) for v in value] if isinstance(value, (list, tuple)) else value
