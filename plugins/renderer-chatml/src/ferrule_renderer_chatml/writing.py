"""Text to tokens, piece by piece between control tokens: what never changes is encoded once.

Added tokens cut a text before anything else looks at it, so what stands between two of them is encoded the same
whatever stands around. That makes it exact to encode each such piece apart, and to keep the ids of the pieces that are
always the same. Within a piece nothing is spliced: a content's first newline may merge with the template's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from ferrule import Encoder, PluginError, TokenKind, token_kinds

ACTION, OBSERVATION, SCAFFOLD = int(TokenKind.ACTION), int(TokenKind.OBSERVATION), int(TokenKind.SCAFFOLD)
NONE: frozenset[int] = frozenset()


@attrs.frozen(eq=False)
class Frame:
    """Fixed text, cut at its control tokens: ``lead``, then ``ids`` (the first control token to the last), then
    ``trail``. Without a control token all of it is ``lead``.
    """

    lead: str
    ids: tuple[int, ...]
    trail: str


class Pieces:
    """Fixed pieces of text with their ids, kept for the renderer's life: there are some dozens."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder, self.backend = encoder, encoder.backend
        self.control = frozenset(encoder.control)
        self.firsts = tuple({text[0] for text in encoder.control.values()})
        self._frames: dict[str, Frame] = {}
        self._fixed: dict[str, list[int]] = {}
        self._flags = self.backend.get_added_tokens_decoder()

    def frame(self, text: str) -> Frame:
        found = self._frames.get(text)
        if found is None:
            found = self._frames[text] = self._compiled(text)
        return found

    def fixed(self, text: str) -> list[int]:
        found = self._fixed.get(text)
        if found is None:
            found = self._fixed[text] = self.encoder.encode(text)
        return found

    def _compiled(self, text: str) -> Frame:
        encoding = self.backend.encode(text, add_special_tokens=False)
        ids, offsets = encoding.ids, encoding.offsets
        at = [n for n, i in enumerate(ids) if i in self.control]
        if not at:
            return Frame(text, (), "")
        for n in at:
            token = self._flags[ids[n]]
            if token.normalized or token.lstrip or token.rstrip or token.single_word:
                raise PluginError(
                    f"renderer 'chatml' cannot use this tokenizer: its token {token.content!r} is normalized, or takes "
                    "the blanks beside it with it, so that text around it is not cut cleanly"
                )
        first, last = at[0], at[-1]
        return Frame(text[: offsets[first][0]], tuple(ids[first : last + 1]), text[offsets[last][1] :])


class Writer:
    """Collects text and encodes it up to each control token.

    ``ids`` and ``kinds`` are what was written; ``edges`` the tokens at which the marks stand.
    """

    __slots__ = ("_kind", "_length", "_marks", "_parts", "_spans", "edges", "ids", "kinds", "pieces")

    def __init__(self, pieces: Pieces) -> None:
        self.pieces = pieces
        self.ids: list[int] = []
        self.kinds = bytearray()
        self.edges: list[int] = []
        self._parts: list[str] = []
        self._length = 0
        self._spans: list[tuple[int, int, int, frozenset[int]]] = []
        self._marks: list[tuple[int, int]] = []
        self._kind = SCAFFOLD

    def fixed(self, text: str) -> None:
        """Text of the format itself, its control tokens read as such."""
        frame = self.pieces.frame(text)
        if frame.lead:
            self._parts.append(frame.lead)
            self._length += len(frame.lead)
        if frame.ids:
            self.flush()
            self.ids += frame.ids
            self.kinds += bytes((self._kind,)) * len(frame.ids)
            if frame.trail:
                self._parts.append(frame.trail)
                self._length = len(frame.trail)

    def content(self, text: str, kind: int = SCAFFOLD, allowed: frozenset[int] = NONE) -> None:
        """Text from elsewhere, in which only the *allowed* control tokens are read as such."""
        if text:
            self._spans.append((self._length, self._length + len(text), kind, allowed))
            self._parts.append(text)
            self._length += len(text)

    def mark(self) -> None:
        """Remember this place in ``edges``: the first token that starts here or later."""
        self._marks.append((self._length, len(self.edges)))
        self.edges.append(0)

    def switch(self, kind: int) -> None:
        """Cut the text here; from here on what is fixed is of *kind*."""
        self.flush()
        self._kind = kind

    def flush(self) -> None:
        """Encode what was collected; text that follows is encoded apart from it."""
        base, length, marks = len(self.ids), self._length, self._marks
        inner = False
        for place, edge in marks:
            self.edges[edge] = base
            inner |= place > 0
        if length:
            text = "".join(self._parts)
            if not self._spans and not any(0 < place < length for place, _ in marks):
                ids = self.pieces.fixed(text)
                self.ids += ids
                self.kinds += bytes((self._kind,)) * len(ids)
            else:
                self._encode(text, base, inner)
            if inner:
                for place, edge in marks:
                    if place == length:
                        self.edges[edge] = len(self.ids)
            self._parts.clear()
            self._spans.clear()
            self._length = 0
        marks.clear()

    def _encode(self, text: str, base: int, inner: bool) -> None:
        spans, pieces = self._spans, self.pieces
        if len(spans) == 1 and not (inner and any(0 < place < len(text) for place, _ in self._marks)):
            start, stop, kind, allowed = spans[0]
            encoding = pieces.backend.encode(text, add_special_tokens=False)
            ids = encoding.ids
            if self._clean(text, ids, allowed):
                kinds = bytearray((self._kind,)) * len(ids)
                if kind == OBSERVATION and self._kind != ACTION:
                    first, last = _covered(encoding, len(ids), text, start, stop)
                    kinds[first:last] = bytes((OBSERVATION,)) * (last - first)
                self.ids += ids
                self.kinds += kinds
                return
        guards = [(start, stop, allowed) for start, stop, _, allowed in spans]
        tokens = pieces.encoder.tokenize(text, (), guards)
        self.ids += tokens.ids
        if self._kind == ACTION:
            self.kinds += bytes((ACTION,)) * len(tokens.ids)
        else:
            seen = [(start, stop) for start, stop, kind, _ in spans if kind == OBSERVATION]
            self.kinds += token_kinds(text, tokens, seen).tobytes()
        for place, edge in self._marks:
            self.edges[edge] = base + tokens.index(place)

    def _clean(self, text: str, ids: Iterable[int], allowed: frozenset[int]) -> bool:
        """Whether *ids* hold no control token but the *allowed*. Fixed text between control tokens holds none."""
        pieces = self.pieces
        for first in pieces.firsts:
            if first in text:
                break
        else:
            return True
        return pieces.control.isdisjoint(ids) or not any(i in pieces.control and i not in allowed for i in ids)


def _covered(encoding: Any, count: int, text: str, start: int, stop: int) -> tuple[int, int]:
    """The tokens of the content ``text[start:stop]``, save those that share only blanks of it with the format; the
    same as :func:`ferrule.token_kinds` finds, but looks at the edges alone.
    """
    where = encoding.token_to_chars
    first, last = 0, count
    if start:
        while first < last and where(first)[1] <= start:
            first += 1
    if stop < len(text):
        while last > first and where(last - 1)[0] >= stop:
            last -= 1
    if start:
        while first < last:
            a, b = where(first)
            if a >= start or not text[start : min(b, stop)].isspace():
                break
            first += 1
    if stop < len(text):
        while last > first:
            a, b = where(last - 1)
            if b <= stop or not text[max(a, start) : stop].isspace():
                break
            last -= 1
    return first, last
