"""A chat template, compiled: messages to text, and where in the text the content of each message stands."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import attrs

from ferrule import Encoder, Message, ToolCall, ToolSpec, clean_text, get_logger

log = get_logger("ferrule.renderer.chat_template")

Span = tuple[int, int]


class Refused(Exception):
    """The template raised on these messages, or would lose a part of them; the text says which."""


@attrs.frozen
class Located:
    """Rendered text and where things stand in it.

    ``contents`` and ``reasonings`` hold the character span of each message's content and reasoning, None where it is
    blank or, for reasoning, not shown. ``cuts`` are places where a control token's text, being literal, must be cut.
    """

    text: str
    contents: tuple[Span | None, ...]
    reasonings: tuple[Span | None, ...]
    cuts: tuple[int, ...] = ()


class Marks:
    """Private-use characters that stand around contents while they pass through a template: four per message."""

    def __init__(self, base: int) -> None:
        self.base = base
        self.cut = chr(base + 0xFFFD)
        self.any = re.compile(f"[{chr(base)}-{self.cut}]")

    def around(self, text: str, index: int, inner: bool) -> str:
        if not text or text.isspace():
            return text
        head = text[: len(text) - len(text.lstrip())] if inner else ""
        tail = text[len(text.rstrip()) :] if inner else ""
        core = text[len(head) : len(text) - len(tail)]
        return f"{head}{chr(self.base + 2 * index)}{core}{chr(self.base + 2 * index + 1)}{tail}"

    def strip(self, marked: str) -> tuple[str, dict[int, int], list[int]]:
        """*marked* without marks, the first place of each mark by number, and the places of cuts."""
        parts, places, cuts, last, at = [], dict[int, int](), list[int](), 0, 0
        for match in self.any.finditer(marked):
            parts.append(marked[last : match.start()])
            at += match.start() - last
            last = match.end()
            if match.group() == self.cut:
                cuts.append(at)
            else:
                places.setdefault(ord(match.group()) - self.base, at)
        parts.append(marked[last:])
        return "".join(parts), places, cuts


_MARKS = (Marks(0x100000), Marks(0xF0000))
_MOST = 0xFFFD // 4


class Template:
    """A compiled chat template and the ways in which it wants its messages.

    content_parts    contents are lists of text parts
    arguments_text   a call's arguments are JSON text; else an object
    reasoning_field  reasoning is read from its own field, called reasoning_key; else it is written into the content,
                     between think tags
    one_call         of several calls in one message only the first is shown
    """

    def __init__(self, source: str, specials: Mapping[str, Any], args: Mapping[str, Any], encoder: Encoder) -> None:
        from transformers.utils.chat_template_utils import render_jinja_template

        self._render, self.source, self.encoder = render_jinja_template, source, encoder
        self.variables = {**specials, **args}
        self.content_parts = False
        self.arguments_text = False
        self.reasoning_field = True
        self.reasoning_key = "reasoning_content"
        self.one_call = False
        self._warned = False

    def text(
        self,
        wires: Sequence[dict[str, Any]],
        tools: Sequence[ToolSpec] = (),
        generation: bool = False,
        marks: Marks | None = None,
    ) -> str:
        """The text of messages in the template's own form; Refused where it raises."""
        declared: Any = offered(tools) or None
        if marks is not None and declared:
            declared = self.encoder.literal(declared, marks.cut)
        try:
            rendered = self._render(
                conversations=[list(wires)],
                tools=declared,
                chat_template=self.source,
                add_generation_prompt=generation,
                **self.variables,
            )[0]
        except Exception as error:  # a template is a program of its own: whatever it raises, it refused
            raise Refused(f"the template raised {type(error).__name__}: {error}") from error
        return str(rendered[0])

    def wire(self, message: Message) -> dict[str, Any]:
        """*message* as the template takes it."""
        return self._filled(
            self._frame(message, "", {}), clean_text(message.content), clean_text(message.reasoning or "")
        )

    def _frame(self, message: Message, cut: str, names: Mapping[str, str]) -> dict[str, Any]:
        """All of *message* but its content and reasoning; malformed calls as they were written, under ``raws``."""
        out: dict[str, Any] = {"role": message.role, "raws": ()}
        if message.role == "assistant":
            raws = [clean_text(c.raw) for c in message.tool_calls if c.error is not None and c.raw]
            out["raws"] = [self.encoder.literal(raw, cut, self.encoder.markup) for raw in raws] if cut else raws
            calls = [c for c in message.tool_calls if c.error is None or not c.raw]
            if calls:
                out["tool_calls"] = [self._call(c, cut) for c in calls]
        if message.tool_call_id is not None:
            out["tool_call_id"] = message.tool_call_id
        name = message.name or names.get(message.tool_call_id or "")
        if name:
            out["name"] = name
        return out

    def _filled(self, frame: Mapping[str, Any], content: str, reasoning: str) -> dict[str, Any]:
        out = dict(frame)
        raws = out.pop("raws")
        if out["role"] == "assistant" and reasoning:
            if self.reasoning_field:
                out[self.reasoning_key] = reasoning
            else:
                content = f"<think>\n{reasoning}\n</think>\n\n{content}"
        if raws:
            content = "\n".join([content, *raws] if content else raws)
        out["content"] = [{"type": "text", "text": content}] if self.content_parts else content
        return out

    def _call(self, call: ToolCall, cut: str) -> dict[str, Any]:
        name, written = call.name, json.dumps(dict(call.arguments), ensure_ascii=False)
        arguments = json.loads(clean_text(written))
        if cut:
            name, arguments = self.encoder.literal(name, cut), self.encoder.literal(arguments, cut)
        if self.arguments_text:
            arguments = json.dumps(arguments, ensure_ascii=False)
        return {"id": call.id, "type": "function", "function": {"name": name, "arguments": arguments}}

    def locate(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, generation: bool) -> Located:
        """Render *messages* and find the content of each. Refused where the template raises, or drops or moves a
        content.
        """
        contents = [clean_text(m.content) for m in messages]
        reasonings = [clean_text(m.reasoning or "") if m.role == "assistant" else "" for m in messages]
        names = {c.id: c.name for m in messages for c in m.tool_calls}
        if len(messages) > _MOST:
            raise Refused(f"there are {len(messages)} messages; the renderer can tell {_MOST} apart")
        everything = "".join(
            (*contents, *reasonings, *_called(messages), json.dumps(offered(tools), ensure_ascii=False))
        )
        marks = next((m for m in _MARKS if not m.any.search(everything)), None)
        if marks is None:
            raise Refused(
                "the messages use both private-use planes of Unicode, which the renderer needs to find contents"
            )

        frames = [self._frame(m, marks.cut, names) for m in messages]

        def wires(mark: Callable[[str, int, bool], str]) -> list[dict[str, Any]]:
            return [
                self._filled(frame, mark(content, 2 * i, said), mark(reasoning, 2 * i + 1, said))
                for i, (frame, content, reasoning) in enumerate(zip(frames, contents, reasonings, strict=True))
                for said in (frame["role"] == "assistant",)
            ]

        plain, _, cuts = marks.strip(self.text(wires(lambda text, *_: text), tools, generation, marks))
        places: dict[int, int] = {}
        for trims in ((False, False), (False, True), (True, True)):
            # Marks around the whole content first; where the template trims it (some trim what the assistant said
            # alone), around what is not blank.
            try:
                marked = self.text(wires(partial(_around, marks, trims)), tools, generation, marks)
            except Refused:
                continue
            text, places, _ = marks.strip(marked)
            if text != plain:
                continue
            lost = [i for i, c in enumerate(contents) if c.strip() and _span(places, 4 * i) is None]
            gone = next((i for i in lost if 4 * i not in places and 4 * i + 1 not in places), None)
            if gone is not None:
                raise Refused(f"the template drops the content of message {gone} ({messages[gone].role})")
            if not lost:
                break
        else:
            places = self._search(plain, messages, contents)
        found = [_span(places, 4 * i) for i in range(len(messages))]
        _in_order(messages, found)
        self._calls_shown(plain, messages, found)
        self._tools_shown(plain, tools)
        return Located(plain, tuple(found), tuple(_span(places, 4 * i + 2) for i in range(len(messages))), tuple(cuts))

    def _search(self, text: str, messages: Sequence[Message], contents: Sequence[str]) -> dict[int, int]:
        """Where contents stand in *text*, by looking for them in order: for templates that do not let marks through."""
        places: dict[int, int] = {}
        at = 0
        for i, (message, content) in enumerate(zip(messages, contents, strict=True)):
            if not content.strip():
                continue
            forms = (content, content.strip(), json.dumps(content, ensure_ascii=False)[1:-1])
            start, form = next(((p, f) for f in forms if (p := text.find(f, at)) >= 0), (-1, ""))
            if start < 0:
                what = "moves or rewrites" if any(f in text for f in forms) else "drops"
                raise Refused(f"the template {what} the content of message {i} ({message.role})")
            places[4 * i], places[4 * i + 1] = start, start + len(form)
            if not (i == 0 and message.role == "system"):
                at = start + len(form)
        return places

    def _calls_shown(self, text: str, messages: Sequence[Message], found: Sequence[Span | None]) -> None:
        """Refused where a call is not in the text: a history without it would be false."""
        at = 0
        for i, message in enumerate(messages):
            span = found[i]
            if message.role != "assistant":
                at = span[1] if span and not (i == 0 and message.role == "system") else at
                continue
            if self.one_call and sum(call.error is None for call in message.tool_calls) > 1:
                raise Refused(f"the template shows only the first of the calls in message {i} (assistant)")
            for call in message.tool_calls:
                if call.error is None and text.find(call.name, at) < 0:
                    raise Refused(f"the template drops the call of {call.name!r} in message {i} (assistant)")

    def _tools_shown(self, text: str, tools: Sequence[ToolSpec]) -> None:
        """Warn, once, where the model is not told of the tools: no refusal, for a model may know its tools by heart."""
        hidden = [tool.name for tool in tools if tool.name not in text]
        if hidden and not self._warned:
            self._warned = True
            log.warning("tools_not_shown", tools=hidden, detail="the chat template leaves out the tools it is given")


def _around(marks: Marks, trims: tuple[bool, bool], text: str, number: int, said: bool) -> str:
    """*text* with its marks; *trims*: whether the template trims what others said, and what the assistant said."""
    return marks.around(text, number, trims[said])


def offered(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """The declarations as templates take them."""
    return [tool.to_openai() for tool in tools]


def _called(messages: Sequence[Message]) -> Iterator[str]:
    """All text of the messages' calls."""
    for message in messages:
        for call in message.tool_calls:
            yield from (call.name, call.raw or "", json.dumps(dict(call.arguments), ensure_ascii=False))


def _span(places: Mapping[int, int], number: int) -> Span | None:
    return (places[number], places[number + 1]) if number in places and number + 1 in places else None


def _in_order(messages: Sequence[Message], found: Sequence[Span | None]) -> None:
    """Refused where contents do not stand in the order of their messages. A system message at the very start may
    stand elsewhere.
    """
    last = 0
    for i, (message, span) in enumerate(zip(messages, found, strict=True)):
        if span is None or (i == 0 and message.role == "system"):
            continue
        if span[0] < last:
            raise Refused(
                f"the template moves the content of message {i} ({message.role}) before that of an earlier one"
            )
        last = span[1]
