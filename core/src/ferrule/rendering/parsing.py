"""Completions read from their tokens: reasoning, content, and tool calls in Hermes JSON or in XML, typed by the
tools' schemas.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_left
from collections.abc import Sequence
from math import isfinite
from typing import Any, Literal

from ..data import Message, ToolCall, ToolSpec
from ..kinds import Parsed, ParseProblem
from .encoding import CALL, CALL_END, MARKUP, THINK, THINK_END, Encoder, clean_text
from .schema import Unreadable, from_text, schema_of, typed, typed_arguments, types

Piece = tuple[str, str, int, int]
"""(tag or '' for text, the text, first token, last token + 1)"""

_FUNCTION = re.compile(r"<function=([^>\n]*)>(.*)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]*)>")
_REST = re.compile(r"\s*\Z")
_ENDS = re.compile(r"</parameter>(?=\s*(?:<parameter=|\Z))")
_DEEPEST = 100
"""Levels of lists and objects that a call's arguments may have: what Python's json can write wherever it is called from."""
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


class ReplyParser:
    """Reads completions; keeps nothing of them."""

    def __init__(self, encoder: Encoder, stop_ids: frozenset[int]) -> None:
        self.encoder, self.stop_ids = encoder, stop_ids
        self._tags = {encoder.ids_of[t]: t for t in MARKUP if t in encoder.ids_of}
        spelled = [t for t in MARKUP if t not in encoder.ids_of]
        # A tag that is a token of its own counts only as that token: its spelled-out text is text.
        self._spelled = re.compile("(" + "|".join(map(re.escape, spelled)) + ")") if spelled else None

    def parse(self, ids: Sequence[int], tools: Sequence[ToolSpec], opened: Sequence[str]) -> Parsed:
        stopped = bool(ids) and ids[-1] in self.stop_ids
        body = ids[:-1] if stopped else ids
        reading = _Reading(tools, CallIds(ids), "think" in opened)
        for piece in self._pieces(body):
            reading.take(*piece)
        return reading.finish(len(body), stopped)

    def _pieces(self, ids: Sequence[int]) -> list[Piece]:
        tags, out, last = self._tags, list[Piece](), 0
        for n, i in enumerate(ids):
            if i in tags:
                if n > last:
                    self._text(ids, last, n, out)
                out.append((tags[i], tags[i], n, n + 1))
                last = n + 1
        if last < len(ids):
            self._text(ids, last, len(ids), out)
        return out

    def _text(self, ids: Sequence[int], start: int, stop: int, out: list[Piece]) -> None:
        text = self.encoder.decode(ids[start:stop])
        parts = self._spelled.split(text) if self._spelled else [text]
        if len(parts) == 1:
            out.append(("", text, start, stop))
            return
        ends = self._ends(ids[start:stop], len(text))
        done, low, high = 0, start, stop
        for n, part in enumerate(parts):
            if not part:
                continue
            done += len(part)
            if ends is not None:
                # The token at which this part's last character is complete; it may hold the start of the next part too.
                high = start + bisect_left(ends, done) + 1
            out.append((part if n % 2 else "", part, low, high))
            if ends is not None:
                low = high - (ends[high - 1 - start] > done)

    def _ends(self, ids: Sequence[int], length: int) -> list[int] | None:
        """How many characters of the text of *ids*, *length* in all, are complete after each token; None where this
        tokenizer's texts do not add up.

        Tokens are decoded one by one, but for those that hold pieces of characters: a run of these is decoded as one.
        """
        texts = {i: self.encoder.decode([i]) for i in set(ids)}
        ends: list[int] = []
        total = at = 0
        while at < len(ids):
            stop = at + 1
            if "\ufffd" in texts[ids[at]]:
                while stop < len(ids) and "\ufffd" in texts[ids[stop]]:
                    stop += 1
            ends += [total] * (stop - at - 1)
            total += len(texts[ids[at]]) if stop == at + 1 else len(self.encoder.decode(ids[at:stop]))
            ends.append(total)
            at = stop
        return ends if total == length else None


class CallIds:
    """Ids for calls, made of the completion's tokens and the call's place in it: the same for the same completion."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids, self._seed, self._used = ids, b"", set[str]()

    def next(self) -> str:
        if not self._seed:
            self._seed = hashlib.blake2b(",".join(map(str, self._ids)).encode(), digest_size=16).digest()
        salt = len(self._used)
        while True:
            number = int.from_bytes(
                hashlib.blake2b(self._seed + salt.to_bytes(4, "big"), digest_size=8).digest(), "big"
            )
            # Nine letters and digits: the only length that the templates that check it take.
            name = "c"
            for _ in range(8):
                number, digit = divmod(number, 36)
                name += _DIGITS[digit]
            if name not in self._used:
                self._used.add(name)
                return name
            salt += 1 << 16


class _Reading:
    """One completion being read, piece by piece."""

    def __init__(self, tools: Sequence[ToolSpec], ids: CallIds, thinking: bool) -> None:
        self.tools, self.ids = tools, ids
        self.thinking = thinking
        self.thoughts: list[str] = [""] if thinking else []
        self.texts: list[str] = [""]
        self.calls: list[ToolCall] = []
        self.problems: list[ParseProblem] = []
        self.inside: list[str] | None = None
        self.began = 0
        self.reasoned = thinking

    def take(self, tag: str, text: str, start: int, stop: int) -> None:
        if self.thinking:
            if tag == THINK_END:
                self.thinking = False
            else:
                self.thoughts[-1] += text
        elif self.inside is not None:
            if tag == CALL_END:
                self._close(stop)
            elif tag == CALL:
                self._broken(start, "another call begins before this one closes")
                self.inside, self.began = [], start
            else:
                self.inside.append(text)
        elif tag == CALL:
            self.inside, self.began = [], start
            self.texts.append("")
        elif tag == THINK:
            self.thinking = self.reasoned = True
            self.thoughts.append("")
        elif tag == THINK_END and not self.reasoned and not self.calls and not self.problems:
            # The prompt may have opened the block without our being told.
            self.reasoned = True
            self.thoughts.append("".join(self.texts))
            self.texts = [""]
        else:
            if tag:
                self.problems.append(ParseProblem((start, stop), text, f"{text} closes nothing"))
            self.texts[-1] += text

    def _close(self, stop: int) -> None:
        inner = "".join(self.inside or ())
        self.inside = None
        call, problem = read_call(inner, self.tools, self.ids.next(), f"{CALL}{inner}{CALL_END}")
        self.calls.append(call)
        if problem:
            self.problems.append(ParseProblem((self.began, stop), call.raw or inner, problem))

    def _broken(self, stop: int, why: str) -> None:
        inner = "".join(self.inside or ())
        self.inside = None
        raw = clean_text(CALL + inner)
        self.calls.append(ToolCall(self.ids.next(), _name_in(inner), {}, why, raw))
        self.problems.append(ParseProblem((self.began, stop), raw, why))

    def finish(self, length: int, stopped: bool) -> Parsed:
        closed = not self.thinking and self.inside is None
        if self.inside is not None:
            inner = "".join(self.inside)
            call, problem = read_call(inner, self.tools, self.ids.next(), CALL + inner)
            if problem or not stopped:
                call = ToolCall(
                    call.id, call.name, {}, f"the call never closes with {CALL_END}", clean_text(CALL + inner)
                )
            self.calls.append(call)
            self.problems.append(
                ParseProblem((self.began, length), CALL + inner, f"the call never closes with {CALL_END}")
            )
        if self.thinking and stopped:
            text = self.thoughts[-1]
            # The stop token itself stands for a block that it ended at once.
            self.problems.append(
                ParseProblem((0, max(length, 1)), text, f"the reasoning never closes with {THINK_END}")
            )
        reasoning = "\n".join(t for t in (text.strip("\n") for text in self.thoughts) if t) if self.reasoned else None
        message = Message("assistant", self._content(), reasoning, tool_calls=tuple(self.calls))
        status: Literal["ok", "malformed", "truncated"] = (
            "truncated" if not stopped else "malformed" if self.problems else "ok"
        )
        return Parsed(message, status, closed, tuple(self.problems))

    def _content(self) -> str:
        texts = self.texts
        if self.reasoned:
            texts = [texts[0].lstrip("\n"), *texts[1:]]
        if len(texts) == 1:
            return texts[0]
        first = texts[0].rstrip("\n")
        return "\n".join(t for t in (first, *(text.strip("\n") for text in texts[1:])) if t and not t.isspace())


def read_call(inner: str, tools: Sequence[ToolSpec], call_id: str, raw: str) -> tuple[ToolCall, str | None]:
    """The call that stands in *inner*, the text between the tags, and what is wrong with it, or None."""
    text = inner.strip()
    try:
        if text.startswith("<function="):
            name, arguments = _xml(text, tools)
        else:
            name, arguments = _json(text, tools)
        _sound(arguments)
        return ToolCall(call_id, name, arguments), None
    except (ValueError, RecursionError, OverflowError) as error:
        why = str(error) if isinstance(error, Unreadable) else f"the call is not valid JSON: {error}"
        if isinstance(error, RecursionError):
            why = "the call is nested too deeply"
        return ToolCall(call_id, _name_in(inner), {}, why, clean_text(raw)), why


def _sound(arguments: dict[str, Any]) -> None:
    """Unreadable where arguments are nested so deeply that others fail on them, or hold what JSON cannot write."""
    level: list[Any] = [arguments]
    for _ in range(_DEEPEST):
        deeper: list[Any] = []
        for value in level:
            inner = value.values() if isinstance(value, dict) else value
            for each in inner:
                if isinstance(each, (dict, list)):
                    deeper.append(each)
                elif isinstance(each, float) and not isfinite(each):
                    raise Unreadable("a number in the call is too large")
        if not deeper:
            return
        level = deeper
    raise Unreadable("the call is nested too deeply")


def _xml(text: str, tools: Sequence[ToolSpec]) -> tuple[str, dict[str, Any]]:
    match = _FUNCTION.fullmatch(text)
    if match is None:
        raise Unreadable("the call does not end with </function>")
    name, body = match[1].strip(), match[2]
    if not name:
        raise Unreadable("the call names no function")
    known, root = schema_of(name, tools)
    arguments: dict[str, Any] = {}
    at = 0
    while not _REST.match(body, at):
        head = _PARAMETER.match(body, at)
        if head is None:
            raise Unreadable(f"expected <parameter=...>, found {body[at:].strip()[:40]!r}")
        key = head[1].strip()
        if not key or key in arguments:
            raise Unreadable(f"parameter {key!r} is given twice" if key else "a parameter has no name")
        if known and key not in known and not root.get("additionalProperties"):
            # Or a value that quotes such markup: either way nothing may be cut or merged in silence.
            raise Unreadable(f"{name} has no parameter {key!r}")
        end = _ENDS.search(body, head.end())
        if end is None:
            raise Unreadable(f"parameter {key!r} does not end with </parameter>")
        value = body[head.end() : end.start()]
        value = value[value.startswith("\n") :]
        value = value[: -1 if value.endswith("\n") else None]
        arguments[key] = typed(key, from_text, clean_text(value), types(known.get(key), root))
        at = end.end()
    return name, arguments


def _json(text: str, tools: Sequence[ToolSpec]) -> tuple[str, dict[str, Any]]:
    call = json.loads(text, parse_constant=_constant)
    if not isinstance(call, dict):
        raise Unreadable("the call is not a JSON object")
    if isinstance(call.get("function"), dict) and "name" not in call:
        call = call["function"]
    name = call.get("name")
    if not isinstance(name, str) or not name.strip():
        raise Unreadable('the call has no "name"')
    key = next((k for k in ("arguments", "parameters") if k in call), None)
    arguments = call[key] if key else {}
    if isinstance(arguments, str):
        arguments = json.loads(arguments, parse_constant=_constant) if arguments.strip() else {}
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise Unreadable('"arguments" is not an object')
    out = typed_arguments(name, arguments, tools, lambda: _raw_members(text))
    if "\\u" in text:
        # An escaped half of a surrogate pair is valid JSON and no valid text.
        name, out = clean_text(name), json.loads(clean_text(json.dumps(out, ensure_ascii=False)))
    return name, out


def _constant(word: str) -> Any:
    raise Unreadable(f"{word} is not valid JSON")


_DECODER = json.JSONDecoder()
_BLANK = re.compile(r"[\s,:]*")


def _raw_members(text: str) -> dict[str, str]:
    """The members of the call's arguments object, as they stand in *text* (valid JSON): a number's own digits, say."""
    match = re.search(r'"(?:arguments|parameters)"\s*:\s*\{', text)
    out: dict[str, str] = {}
    if match is None:
        return out
    at = match.end()
    try:
        while text[(at := _BLANK.match(text, at).end())] != "}":  # type: ignore[union-attr]
            key, at = _DECODER.raw_decode(text, at)
            at = _BLANK.match(text, at).end()  # type: ignore[union-attr]
            _, stop = _DECODER.raw_decode(text, at)
            out[key], at = text[at:stop], stop
    except (ValueError, IndexError):
        return out
    return out


def _name_in(text: str) -> str:
    """The function's name in a call that does not parse, as far as it can be told; else ''."""
    match = re.search(r'<function=([^>\s]+)|"name"\s*:\s*"([^"\\]*)"', text)
    return clean_text((match[1] or match[2]) if match else "")
