"""Completions in the formats that are the families' own (GLM, DeepSeek's DSML, Kimi, Harmony), read from their tokens.

The package's parsers type arguments by how they look (``1e5`` for a string becomes ``100000.0``), and give up a whole
reply for one malformed call; here a tool's schema types them, and the good calls beside a bad one count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

import attrs

from ferrule import (
    CallIds,
    Message,
    Parsed,
    ParseProblem,
    ToolCall,
    ToolSpec,
    clean_text,
)

from .vocabulary import Vocabulary

THINK, THINK_END = "<think>", "</think>"


@attrs.define
class Piece:
    """A control token (its text in *tag* too) or the text between two, with its tokens."""

    tag: str
    text: str
    start: int
    stop: int


@attrs.define
class Draft:
    """A reply while it is read."""

    tools: Sequence[ToolSpec]
    ids: CallIds
    thinking: bool
    thoughts: list[str] = attrs.field(factory=list)
    texts: list[str] = attrs.field(factory=lambda: [""])
    calls: list[ToolCall] = attrs.field(factory=list)
    problems: list[ParseProblem] = attrs.field(factory=list)
    reasoned: bool = False
    open: bool = False

    def call(self, made: tuple[ToolCall, str | None], start: int, stop: int, raw: str) -> None:
        call, problem = made
        if any(c.id == call.id for c in self.calls):
            call = attrs.evolve(call, id=self.ids.next())
        self.calls.append(call)
        if problem:
            self.problems.append(ParseProblem((start, stop), raw, problem))

    def broken(self, name: str, why: str, start: int, stop: int, raw: str) -> None:
        raw = clean_text(raw)
        self.call((ToolCall(self.ids.next(), clean_text(name), {}, why, raw), why), start, stop, raw)

    def finish(self, length: int, stopped: bool) -> Parsed:
        if self.thinking and stopped:
            why = f"the reasoning never closes with {THINK_END}"
            self.problems.append(ParseProblem((0, length), self.thoughts[-1] if self.thoughts else "", why))
        reasoning = "\n".join(t for t in (text.strip("\n") for text in self.thoughts) if t) if self.reasoned else None
        texts = [self.texts[0].lstrip("\n") if self.reasoned else self.texts[0], *self.texts[1:]]
        content = texts[0]
        if len(texts) > 1:
            parts = [texts[0].rstrip("\n"), *(text.strip("\n") for text in texts[1:])]
            content = "\n".join(t for t in parts if t and not t.isspace())
        calls: Any = tuple(self.calls)
        message = Message("assistant", content, reasoning, tool_calls=calls)
        status: Literal["ok", "malformed", "truncated"] = (
            "truncated" if not stopped else "malformed" if self.problems else "ok"
        )
        return Parsed(message, status, not self.thinking and not self.open, tuple(self.problems))


class Reader:
    """Reads completions in one format; keeps nothing of them."""

    def __init__(self, vocabulary: Vocabulary, stop_ids: frozenset[int], read: Callable[..., None]) -> None:
        self.vocabulary, self.stop_ids, self._read = vocabulary, stop_ids, read

    def parse(self, ids: Sequence[int], tools: Sequence[ToolSpec], opened: Sequence[str]) -> Parsed:
        stopped = bool(ids) and ids[-1] in self.stop_ids
        body = ids[:-1] if stopped else ids
        thinking = "think" in opened
        draft = Draft(tools, CallIds(ids), thinking, [""] if thinking else [], reasoned=thinking)
        self._read(draft, self._pieces(body), len(body), stopped)
        return draft.finish(len(body), stopped)

    def _pieces(self, ids: Sequence[int]) -> list[Piece]:
        control, out, last = self.vocabulary.control, list[Piece](), 0
        for n, i in enumerate(ids):
            if i in control:
                if n > last:
                    out.append(Piece("", self.vocabulary.text(ids[last:n]), last, n))
                out.append(Piece(control[i], control[i], n, n + 1))
                last = n + 1
        if last < len(ids):
            out.append(Piece("", self.vocabulary.text(ids[last:]), last, len(ids)))
        return out


def thought(draft: Draft, piece: Piece) -> bool:
    """Whether *piece* belongs to the reasoning, or opens or closes it; it is then taken."""
    if draft.thinking:
        if piece.tag == THINK_END:
            draft.thinking = False
        else:
            draft.thoughts[-1] += piece.text
        return True
    if piece.tag == THINK:
        draft.thinking = draft.reasoned = True
        draft.thoughts.append("")
        return True
    if piece.tag == THINK_END:
        if draft.reasoned or draft.calls:
            draft.problems.append(ParseProblem((piece.start, piece.stop), piece.text, f"{THINK_END} closes nothing"))
            return False
        # The prompt may have opened the block without our being told.
        draft.reasoned = True
        draft.thoughts.append("".join(draft.texts))
        draft.texts = [""]
        return True
    return False


def between(begin: str, end: str, silent: tuple[str, ...], make: Callable[..., Any]) -> Callable[..., None]:
    """A reader of calls that stand between two control tokens; *silent* ones, around them all, are no text."""

    def read(draft: Draft, pieces: list[Piece], length: int, stopped: bool) -> None:
        inside: list[Piece] | None = None
        for piece in pieces:
            if inside is None:
                if thought(draft, piece):
                    continue
                if piece.tag in silent:
                    draft.open = piece.tag == silent[0]
                    continue
                if piece.tag == begin:
                    inside = [piece]
                    draft.texts.append("")
                else:
                    draft.texts[-1] += piece.text
            elif piece.tag == end:
                raw = "".join(p.text for p in [*inside, piece])
                draft.call(make(inside[1:], draft, raw), inside[0].start, piece.stop, raw)
                inside = None
            elif piece.tag == begin:
                _unclosed(draft, inside, piece.start, "another call begins before this one closes")
                inside = [piece]
            else:
                inside.append(piece)
        if inside is not None:
            draft.open = True
            _unclosed(draft, inside, length, f"the call never closes with {end}")

    return read


def _unclosed(draft: Draft, inside: list[Piece], stop: int, why: str) -> None:
    text = next((p.text for p in inside[1:] if not p.tag), "")
    draft.broken(function_name(text), why, inside[0].start, stop, "".join(p.text for p in inside))


def function_name(text: str) -> str:
    """The function's name in ``f``, ``functions.f`` or ``functions.f:0``."""
    return re.sub(r":\d*$", "", text.strip().removeprefix("functions.")) if len(text) < 200 else ""
