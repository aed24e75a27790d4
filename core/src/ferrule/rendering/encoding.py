"""Text to tokens with their offsets, over the Rust tokenizer itself; text from outside never becomes a control token."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data import TokenKind

THINK, THINK_END, CALL, CALL_END = MARKUP = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""The tags that an assistant writes itself: in its own messages they are control tokens where the vocabulary has them."""

Guard = tuple[int, int, frozenset[int]]
"""A stretch of text (start, stop) in which control tokens are read as plain text, but for the ids in the set."""


class Unencodable(Exception):
    """A control token's text that this tokenizer cannot be made to read as plain text."""


class Tokens:
    """Token ids with the characters that each covers: ``text[starts[i]:ends[i]]``, both never falling."""

    __slots__ = ("ends", "ids", "starts")

    def __init__(self, ids: list[int], starts: list[int], ends: list[int]) -> None:
        self.ids, self.starts, self.ends = ids, starts, ends

    def drop_first(self) -> Tokens:
        return Tokens(self.ids[1:], self.starts[1:], self.ends[1:])

    def index(self, position: int) -> int:
        """The first token that starts at or after character *position*."""
        return bisect_left(self.starts, position)

    def overlapping(self, start: int, stop: int) -> tuple[int, int]:
        """The tokens that cover any character of ``text[start:stop]``, as (first, last + 1)."""
        first = bisect_right(self.ends, start)
        return first, max(first, bisect_left(self.starts, stop))


class Encoder:
    """The tokenizer's Rust backend, with what the renderer needs to know of it.

    ``control`` maps the ids of added tokens (but for blanks and single characters, which are ordinary text in some
    vocabularies) to their text; ``ids_of`` is the inverse.
    """

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        backend.no_truncation()
        backend.no_padding()
        # It adds nothing that is asked for here, and may trim blanks off the offsets.
        backend.post_processor = None
        added = backend.get_added_tokens_decoder()
        self.control = {i: t.content for i, t in added.items() if len(t.content) > 1 and not t.content.isspace()}
        self.ids_of = {text: i for i, text in self.control.items()}
        self.markup = frozenset(self.ids_of[t] for t in MARKUP if t in self.ids_of)
        self.special = frozenset(i for i, t in added.items() if t.special and i in self.control)
        self.size = max([backend.get_vocab_size(with_added_tokens=True), *(i + 1 for i in added)])
        self._firsts = frozenset(text[0] for text in self.control.values())
        self._lead = self._needed_lead()

    def _needed_lead(self) -> str:
        """A control token to put before a piece where this tokenizer would otherwise set a blank at its start; else ''."""
        for i in sorted(self.special):
            text = self.control[i]
            alone = self.backend.encode("a", add_special_tokens=False).ids
            after = self.backend.encode(text + "a", add_special_tokens=False).ids
            if after[:1] == [i] and self.backend.decode(after, skip_special_tokens=False).startswith(text):
                return "" if after[1:] == alone else text
        return ""

    def encode(self, text: str) -> list[int]:
        """The ids of *text*, control tokens read as such."""
        return self.backend.encode(text, add_special_tokens=False).ids  # type: ignore[no-any-return]

    def first_control(self, text: str) -> int | None:
        """The id of the first control token in *text*, with nothing but it asked."""
        return next((i for i in self.encode(text) if i in self.control), None)

    def _pieces(self, text: str, cuts: Sequence[int], fresh: bool) -> Tokens:
        ids: list[int] = []
        starts: list[int] = []
        ends: list[int] = []
        for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True):
            if start == stop:
                continue
            lead = self._lead if start or not fresh else ""
            encoding = self.backend.encode(lead + text[start:stop], add_special_tokens=False)
            skip, shift = (1, start - len(lead)) if lead else (0, start)
            offsets = encoding.offsets[skip:] if skip else encoding.offsets
            ids += encoding.ids[skip:] if skip else encoding.ids
            if shift:
                starts += [a + shift for a, _ in offsets]
                ends += [b + shift for _, b in offsets]
            else:
                starts += [a for a, _ in offsets]
                ends += [b for _, b in offsets]
        return Tokens(ids, starts, ends)

    def tokenize(
        self, text: str, cuts: Iterable[int] = (), guards: Sequence[Guard] = (), fresh: bool = False
    ) -> Tokens:
        """Encode *text*, anew from each position in *cuts*; *fresh* where it begins a sequence.

        A control token inside a guard is split after its first character and both sides are encoded apart. *guards*
        ascend.
        """
        places = sorted({c for c in cuts if 0 < c < len(text)})
        while True:
            tokens = self._pieces(text, places, fresh)
            more = self._breaches(text, tokens, guards) if guards else ()
            if not more:
                return tokens
            known = set(places)
            if not known.isdisjoint(more):
                raise Unencodable(
                    f"the tokenizer reads a control token in {text[more[0] - 1 : more[0] + 20]!r} even when it is cut"
                )
            places = sorted(known.union(more))

    def _breaches(self, text: str, tokens: Tokens, guards: Sequence[Guard]) -> list[int]:
        """Where to cut, so that no control token is left within a guard."""
        control = self.control
        found = [n for n, i in enumerate(tokens.ids) if i in control]
        if not found:
            return []
        lows = [g[0] for g in guards]
        cuts = []
        for n in found:
            token = control[tokens.ids[n]]
            # A token that eats the blanks beside it has wider offsets than its own text.
            at = text.find(token, tokens.starts[n], tokens.ends[n])
            start, stop = (at, at + len(token)) if at >= 0 else (tokens.starts[n], tokens.ends[n])
            k = bisect_left(lows, stop) - 1
            if k >= 0 and guards[k][1] > start and tokens.ids[n] not in guards[k][2]:
                cuts.append(max(start + 1, guards[k][0]))
        return cuts

    def literal(self, value: Any, mark: str, allowed: frozenset[int] = frozenset()) -> Any:
        """*value* (strings in lists and dicts) with *mark* after the first character of each control token's text,
        *allowed* ones aside.
        """
        if isinstance(value, str):
            if self._firsts.isdisjoint(value):
                return value
            while hits := {i for i in self.encode(value) if i in self.control} - allowed:
                for i in hits:
                    token = self.control[i]
                    if token not in value:
                        return value
                    value = value.replace(token, token[0] + mark + token[1:])
            return value
        if isinstance(value, dict):
            return {self.literal(k, mark, allowed): self.literal(v, mark, allowed) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.literal(v, mark, allowed) for v in value]
        return value

    def decode(self, ids: Sequence[int]) -> str:
        """Text of *ids*, control tokens shown; ids that are no token become U+FFFD."""
        size = self.size
        if ids and (min(ids) < 0 or max(ids) >= size):
            return "".join(self.decode(list(run)) if ok else "\ufffd" for ok, run in _runs(ids, size))
        if not self._lead:
            return self.backend.decode(ids, skip_special_tokens=False)  # type: ignore[no-any-return]
        # Decoders of such tokenizers drop the blank at the very start: give them something else to start from.
        text: str = self.backend.decode([self.ids_of[self._lead], *ids], skip_special_tokens=False)
        return text.removeprefix(self._lead)

    def open_block(self, ids: Sequence[int], opened: Sequence[str] = ()) -> str:
        """The tag of the block, thinking or a call, that *ids*, a generation prompt and a completion, leave open; else
        ''. *opened*: what was open before them, where they do not show it.

        A tag that is a token of the vocabulary counts only as that token, and within a block only its own end counts.
        """
        tags = self._tags(ids)
        inside = THINK if "think" in opened and THINK not in tags and THINK_END not in tags else ""
        for tag in tags:
            if inside:
                inside = "" if tag == (THINK_END if inside == THINK else CALL_END) else inside
            elif tag in (THINK, CALL):
                inside = tag
        return inside

    def _tags(self, ids: Sequence[int]) -> list[str]:
        """The tags in *ids*, in order."""
        spelled = [t for t in MARKUP if t not in self.ids_of]
        out: list[str] = []
        start = 0
        for n, i in enumerate([*ids, -1]):
            if n < len(ids) and i not in self.markup:
                continue
            if spelled and n > start:
                text = self.decode(ids[start:n])
                out += re.findall("|".join(map(re.escape, spelled)), text)
            if n < len(ids):
                out.append(self.control[i])
            start = n + 1
        return out


def _runs(ids: Sequence[int], size: int) -> list[tuple[bool, list[int]]]:
    out: list[tuple[bool, list[int]]] = []
    for i in ids:
        ok = 0 <= i < size
        if ok and out and out[-1][0]:
            out[-1][1].append(i)
        else:
            out.append((ok, [i]))
    return out


def clean_text(text: str) -> str:
    """*text* with lone surrogates, which no tokenizer encodes, replaced by ``?``."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def token_kinds(text: str, tokens: Tokens, observations: Iterable[tuple[int, int]]) -> NDArray[np.uint8]:
    """uint8[T]: OBSERVATION where a token covers any of the spans, save where it shares only blanks of it with the
    template.
    """
    kinds = np.full(len(tokens.ids), TokenKind.SCAFFOLD, np.uint8)
    starts, ends = tokens.starts, tokens.ends
    for start, stop in observations:
        first, last = tokens.overlapping(start, stop)
        while first < last and starts[first] < start and text[start : min(ends[first], stop)].isspace():
            first += 1
        while first < last and ends[last - 1] > stop and text[max(starts[last - 1], start) : stop].isspace():
            last -= 1
        kinds[first:last] = TokenKind.OBSERVATION
    return kinds
