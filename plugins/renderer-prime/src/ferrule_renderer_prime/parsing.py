"""Completions read back: the package finds the parts, ferrule reads the calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import attrs

from ferrule import CallIds, Encoder, Message, Parsed, ParseProblem, ReplyParser, ToolCall, ToolSpec, clean_text

from .calls import CallReader
from .families import Family


class Parser:
    """Reads completions of one family; keeps nothing of them."""

    def __init__(self, engine: Any, family: Family, encoder: Encoder, stop_ids: frozenset[int]) -> None:
        self.engine, self.family, self.encoder, self.stop_ids = engine, family, encoder, stop_ids
        tags = family.grammar == "tags" and not getattr(engine.config, "tool_parser", None)
        self._own = ReplyParser(encoder, stop_ids) if tags else None
        self._lead = family.lead and getattr(engine.config, "enable_thinking", True)
        self._calls = CallReader(family, encoder)
        self._open = encoder.encode(family.think[0])
        self._prompt = encoder.encode(family.prompt) if family.prompt else None

    def parse(self, ids: list[int], tools: Sequence[ToolSpec], opened: Sequence[str]) -> Parsed:
        if self._own is not None:
            parsed = self._own.parse(ids, tools, opened)
            # Reasoning that a stop ended before its first token: the stop is what there is to show.
            shown = [p if p.span[0] < p.span[1] else attrs.evolve(p, span=(0, 1)) for p in parsed.problems]
            return attrs.evolve(parsed, problems=tuple(shown))
        text = self.encoder.decode(ids)
        stopped = bool(ids) and ids[-1] in self.stop_ids
        thinking = "think" in opened or self._opened_before(text)
        # To the package such a reply would be reasoning through and through.
        lead = [self.encoder.ids_of[self.family.think[1]]] if self._lead and not thinking else []
        prompt = self._prompt or (self._open if thinking else None)
        try:
            out = self.engine.parse_response([*lead, *ids], prompt_ids=prompt)
        except Exception as error:  # whatever breaks in the package, the tokens are there
            why = f"the renderers package could not read it: {type(error).__name__}: {error}"
            text = self.encoder.decode(ids[:-1]) if stopped else text
            problem = ParseProblem((0, len(ids)), text, why)
            return Parsed(
                Message("assistant", clean_text(text)), "malformed" if stopped else "truncated", True, (problem,)
            )
        parsed = self._read(ids, out, len(lead), tools, stopped, thinking)
        cut = not stopped and out.reasoning_complete is not False and self.family.open_blocks(text)
        return attrs.evolve(parsed, closed=False) if cut else parsed

    def _opened_before(self, text: str) -> bool:
        """Whether the prompt must have opened the think block, though nobody says so."""
        start, end = self.family.think
        at = text.find(end) if end.startswith("</") and not self.family.lead else -1
        return at >= 0 and text.find(start, 0, at) < 0

    def _read(
        self, ids: list[int], out: Any, lead: int, tools: Sequence[ToolSpec], stopped: bool, thinking: bool
    ) -> Parsed:
        length = len(ids) - stopped
        calls: list[ToolCall] = []
        problems: list[ParseProblem] = []
        made = CallIds(ids)
        closed = True
        done: set[tuple[int, int]] = set()
        for known in out.tool_calls:
            start, stop = known.token_span or (lead, lead + length)
            span = (max(0, start - lead), min(max(0, stop - lead), len(ids)))
            if span in done:
                # The package gives each call of one block that block's span.
                continue
            done.add(span)
            if str(known.status) == "unclosed_block":
                closed = False
                raw, why = clean_text(self.encoder.decode(ids[slice(*span)])), "the call never closes"
                read: list[tuple[ToolCall, str | None]] = [
                    (ToolCall(made.next(), clean_text(known.name or ""), {}, why, raw), why)
                ]
            else:
                read = self._calls.read(ids[slice(*span)], known, tools, made.next)
            if known.id and len(read) == 1 and known.id not in {c.id for c in calls}:
                # Kimi's calls carry ids of their own, which the answers must repeat.
                read = [(attrs.evolve(read[0][0], id=clean_text(known.id)), read[0][1])]
            calls += [call for call, _ in read]
            problems += [ParseProblem(span, call.raw or "", why) for call, why in read if why]
        reasoning = out.reasoning_content
        content = clean_text(out.content)
        if out.reasoning_complete is False:
            closed = False
            if stopped:
                problems.append(ParseProblem((0, max(length, 1)), reasoning or "", "the reasoning never closes"))
        elif reasoning is not None or thinking:
            reasoning = reasoning or ""
        if reasoning is not None or self.family.lead:
            content = content.lstrip("\n")
        status: Literal["ok", "malformed", "truncated"] = (
            "truncated" if not stopped else "malformed" if problems else "ok"
        )
        thoughts = clean_text(reasoning) if reasoning is not None else None
        message = Message("assistant", content, thoughts, tuple(calls))  # type: ignore[arg-type]  # the converter's
        return Parsed(message, status, closed, tuple(problems))
