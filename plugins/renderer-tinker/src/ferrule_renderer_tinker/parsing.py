"""Completions read back by the tools' schemas: from the tokens where the form of calls is known, else by the cookbook's
own parser, whose answers are set right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Literal, cast

import attrs

from ferrule import (
    MARKUP,
    CallIds,
    Encoder,
    Message,
    Parsed,
    ParseProblem,
    ReplyParser,
    ToolCall,
    ToolSpec,
    clean_text,
    read_call,
)

from .cookbook import Cookbook
from .learning import CallForm, Learned

THINK, THINK_END, CALL, CALL_END = MARKUP
_GLM_NAME = re.compile(r"\s*([\w.-]+)\s*")
_GLM_PAIR = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)
_KIMI_ID = re.compile(r"(?:functions\.)?([^\s:<]+):\d+")


class Parser:
    """Reads completions; keeps nothing of them."""

    def __init__(self, cookbook: Cookbook, learned: Learned, stop_ids: frozenset[int]) -> None:
        self.cookbook, self.learned, self.stop_ids = cookbook, learned, stop_ids
        self.encoder, self.form = cookbook.encoder, learned.form
        self._reader = ReplyParser(_view(self.encoder, self.form), stop_ids) if self.form is not None else None

    def parse(self, ids: Sequence[int], tools: Sequence[ToolSpec], opened: Sequence[str]) -> Parsed:
        if self._reader is None or self.form is None:
            return Foreign(self, ids, tools, opened).parsed()
        parsed = self._reader.parse(ids, tools, opened)
        if self.form.name == "tags":
            return parsed
        return self._wrapped(_reread(parsed, self.form, tools), ids, self.form)

    def _wrapped(self, parsed: Parsed, ids: Sequence[int], form: CallForm) -> Parsed:
        """*parsed*, not closed where what stands around all calls is not."""
        if form.wrappers is None:
            return parsed
        begin, end = (self.encoder.ids_of.get(w, -1) for w in form.wrappers)
        places = {i: n for n, i in enumerate(ids) if i in (begin, end)}
        if places.get(begin, -1) <= places.get(end, -1):
            return parsed
        if parsed.status == "truncated":
            return attrs.evolve(parsed, closed=False)
        why = f"the calls never close with {form.wrappers[1]}"
        problem = ParseProblem((places[begin], len(ids) - 1), form.wrappers[0], why)
        return Parsed(parsed.message, "malformed", False, (*parsed.problems, problem))


class _View:
    """An encoder in whose eyes the tags of another form of calls are those of the usual one."""

    def __init__(self, encoder: Encoder, form: CallForm) -> None:
        own = {THINK: THINK, THINK_END: THINK_END, CALL: form.begin, CALL_END: form.end}
        self.ids_of = {tag: encoder.ids_of[text] for tag, text in own.items() if text in encoder.ids_of}
        self._encoder = encoder
        self._wrappers = frozenset(encoder.ids_of[w] for w in form.wrappers or () if w in encoder.ids_of)

    def decode(self, ids: Sequence[int]) -> str:
        return self._encoder.decode([i for i in ids if i not in self._wrappers])


def _view(encoder: Encoder, form: CallForm) -> Encoder:
    return encoder if form.begin == CALL else cast("Encoder", _View(encoder, form))


def _reread(parsed: Parsed, form: CallForm, tools: Sequence[ToolSpec]) -> Parsed:
    """*parsed*, whose calls were read in the usual form and failed in it, with the calls as *form* has them."""
    problems = list(parsed.problems)
    calls = []
    taken: set[str] = set()
    for call in parsed.message.tool_calls:
        raw = call.raw or ""
        inner = raw.removeprefix(CALL).removesuffix(CALL_END)
        whole = raw.endswith(CALL_END) and call.error != f"the call never closes with {CALL_END}"
        own = f"{form.begin}{inner}{form.end if whole else ''}"
        place = next((n for n, p in enumerate(problems) if p.text == raw or p.text == CALL + inner), None)
        name, text, call_id = _split(inner, form, call.id)
        if call_id in taken:
            call_id = call.id
        taken.add(call_id)
        error: str | None
        if not whole:
            error = (call.error or "").replace(CALL_END, form.end)
            calls.append(ToolCall(call_id, name, {}, error, own))
        else:
            read, error = _typed(name, text, call_id, form, tools, own)
            calls.append(read)
        if place is not None:
            if error:
                problems[place] = attrs.evolve(problems[place], text=own, message=error)
            else:
                del problems[place]
    message = attrs.evolve(parsed.message, tool_calls=tuple(calls))  # type: ignore[arg-type]  # the converter's
    status = "ok" if parsed.status == "malformed" and not problems else parsed.status
    return Parsed(message, cast("Any", status), parsed.closed, tuple(problems))


def _split(inner: str, form: CallForm, call_id: str) -> tuple[str, str, str]:
    """(name, the text of the arguments, id) of a call; the name '' where it cannot be told."""
    if form.name == "glm":
        match = _GLM_NAME.match(inner)
        return (match[1], inner[match.end() :], call_id) if match else ("", inner, call_id)
    head, separator, text = inner.partition(form.separator)
    head = head.strip()
    if form.name == "kimi":
        match = _KIMI_ID.fullmatch(head)
        return (match[1], text, head) if match else ("", inner, call_id)
    return (head, text if separator else inner, call_id)


def _typed(
    name: str, text: str, call_id: str, form: CallForm, tools: Sequence[ToolSpec], raw: str
) -> tuple[ToolCall, str | None]:
    """The call of *name* with the arguments in *text*, by the tool's schema, and what is wrong with it, or None."""
    if not name:
        why = "the call names no function"
        return ToolCall(call_id, "", {}, why, clean_text(raw)), why
    if form.name == "glm":
        pairs, at = [], 0
        while match := _GLM_PAIR.match(text, at):
            pairs.append(f"<parameter={match[1].strip()}>\n{match[2]}\n</parameter>")
            at = match.end()
        if text[at:].strip():
            why = f"expected <arg_key>...</arg_key><arg_value>...</arg_value>, found {text[at:].strip()[:40]!r}"
            return ToolCall(call_id, name, {}, why, clean_text(raw)), why
        return read_call(f"<function={name}>\n{''.join(pairs)}\n</function>", tools, call_id, raw)
    return typed_json(name, text, call_id, tools, raw)


def typed_json(name: str, text: str, call_id: str, tools: Sequence[ToolSpec], raw: str) -> tuple[ToolCall, str | None]:
    """The call of *name* with *text*, a JSON object, as its arguments."""
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        why = f"the call's arguments are not valid JSON: {error}"
        return ToolCall(call_id, clean_text(name), {}, why, clean_text(raw)), why
    return read_call(f'{{"name": {json.dumps(name)}, "arguments": {text}}}', tools, call_id, raw)


class Foreign:
    """One completion, read by the cookbook's own parser."""

    def __init__(self, parser: Parser, ids: Sequence[int], tools: Sequence[ToolSpec], opened: Sequence[str]) -> None:
        self.encoder, self.learned, self.renderer = parser.encoder, parser.learned, parser.cookbook.renderer
        self.ids, self.tools, self.opened = ids, tools, opened
        self.stopped = bool(ids) and ids[-1] in parser.stop_ids
        self.body = list(ids[:-1] if self.stopped else ids)
        self.text = self.encoder.decode(self.body)
        self.problems: list[ParseProblem] = []

    def parsed(self) -> Parsed:
        content, reasoning, found, unread = self._read()
        numbers = CallIds(self.ids)
        closed = self.stopped or not self._open()
        calls = []
        for call in found:
            raw = call.function.arguments
            if closed:
                read, why = typed_json(call.function.name, raw, numbers.next(), self.tools, raw)
            else:
                why = "the completion was cut before the call was closed"
                read = ToolCall(numbers.next(), call.function.name, {}, why, clean_text(raw))
            calls.append(read)
            if why:
                self._problem(raw, why)
        for call in unread:
            self._problem(call.raw_text, call.error)
            if "<" not in call.raw_text:
                # Text after the calls, which the cookbook tells as a call.
                content = f"{content}\n{call.raw_text.strip()}" if content else call.raw_text.strip()
                continue
            calls.append(ToolCall(numbers.next(), "", {}, call.error, clean_text(call.raw_text)))
            content = content.replace(call.raw_text, "", 1).rstrip("\n")
        if "think" in self.opened and reasoning is None and THINK_END not in self.text:
            reasoning, content = content, ""
            if self.stopped:
                closed = False
                self._problem(self.text, f"the reasoning never closes with {THINK_END}")
        for stop in self.learned.text_stops:
            if stop in self.text:
                self._problem(self.text[self.text.index(stop) :], f"the reply goes on after {stop!r}, which ends it")
        message = Message("assistant", content, reasoning, tuple(calls))  # type: ignore[arg-type]  # the converter's
        status: Literal["ok", "malformed", "truncated"] = (
            "truncated" if not self.stopped else "malformed" if self.problems else "ok"
        )
        return Parsed(message, status, closed, tuple(self.problems))

    def _read(self) -> tuple[str, str | None, list[Any], list[Any]]:
        """(content, reasoning, calls, calls that do not parse), as the cookbook tells them."""
        # A cut completion is read as if it had ended there: else the cookbook reads nothing of its structure.
        last = [self.ids[-1]] if self.stopped and self.ids[-1] in self.learned.stops else list(self.learned.stops[:1])
        try:
            message, _ = self.renderer.parse_response([*self.body, *last])
        except Exception as error:  # several stop tokens in a completion, say
            self._problem(self.text, f"the completion cannot be read: {error}")
            return clean_text(self.text), None, [], []
        content = message["content"]
        reasoning = None
        if not isinstance(content, str):
            thoughts = [p["thinking"] for p in content if p["type"] == "thinking"]
            reasoning = "\n".join(thoughts) if thoughts else None
            content = "".join(p["text"] for p in content if p["type"] == "text")
        found, unread = message.get("tool_calls") or [], message.get("unparsed_tool_calls") or []
        if content == self.text and (found or unread):
            # Calls alone, which the cookbook tells as content too.
            content = ""
        return content, reasoning, found, unread

    def _open(self) -> bool:
        """Whether a block that is no part of the answer's text stands open at the end of a cut completion."""
        if "<|channel|>" in self.encoder.ids_of:
            header = self.text.rpartition("<|start|>")[2]
            return "<|channel|>final" not in header
        text = self.text
        if text.rfind(THINK) > text.rfind(THINK_END) or ("think" in self.opened and THINK_END not in text):
            return True
        return any(text.rfind(begin) > text.rfind(end) for begin, end, _ in self.learned.blocks)

    def _problem(self, raw: str, why: str) -> None:
        at = self.text.find(raw) if raw else -1
        span = (self._token(at, False), self._token(at + len(raw), True)) if at >= 0 else (0, len(self.body))
        self.problems.append(ParseProblem(span, raw, why))

    def _token(self, position: int, end: bool) -> int:
        """How many tokens it takes to write *position* characters: all of them (*end*), or none beyond."""
        low, high = 0, len(self.body)
        while low < high:
            middle = (low + high + (not end)) // 2
            length = len(self.encoder.decode(self.body[:middle]))
            if end:
                low, high = (middle + 1, high) if length < position else (low, middle)
            else:
                low, high = (middle, high) if length <= position else (low, middle - 1)
        return low
