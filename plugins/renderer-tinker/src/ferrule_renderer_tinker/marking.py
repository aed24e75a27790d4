"""A tokenizer for the cookbook's renderers to encode with: it tells of each token which content it belongs to, and
reads the text of control tokens in contents as text.

Contents enter the cookbook between private-use characters ("marks"). The tokenizer takes the marks out again and gives
ids that carry, in their high bits, the content they cover: whatever a renderer does to the ids (it joins, cuts and
compares them), that stays with them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ferrule import Encoder, Guard, Tokens

ID_BITS = 24
SLOT_BITS = 18
PART_BITS = 2
_SLOT = ID_BITS
_PART = _SLOT + SLOT_BITS
_OWNER = _PART + PART_BITS

HEADER, OUTPUT, OVERLAP = 1, 2, 3
"""The parts of a rendered message: what introduces it, what is generated, and a stop that overlaps the next message."""

CONTENT, SPOKEN, REASONING, ARGUMENT = range(4)
"""What a slot holds: a content from outside, an assistant's content, its reasoning, an argument of one of its calls."""
KINDS = 4

_ESCAPE = re.compile(r"\\u(d[ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})", re.IGNORECASE)


class Marks:
    """The private-use characters of one plane: two for each slot, one that asks for a cut. A renderer may write them
    into JSON, where they stand as escapes.
    """

    def __init__(self, base: int) -> None:
        self.base = base
        self.cut = chr(base + 0xFFFD)
        self.slots = 0xFFFC // 2
        high = [0xD800 + ((base - 0x10000 + n) >> 10) for n in (0, 0xFFFF)]
        escaped = rf"\\u(?:{'|'.join(f'{h:x}' for h in range(high[0], high[1] + 1))})\\ud[c-f][0-9a-f]{{2}}"
        self.any = re.compile(f"[{chr(base)}-{self.cut}]|{escaped}", re.IGNORECASE)

    def around(self, text: str, slot: int, inner: bool) -> str:
        """*text* between its slot's marks; *inner*: around what is not blank, where a renderer trims contents."""
        if not text or (inner and text.isspace()):
            return text
        head = text[: len(text) - len(text.lstrip())] if inner else ""
        tail = text[len(text.rstrip()) :] if inner else ""
        core = text[len(head) : len(text) - len(tail)]
        return f"{head}{chr(self.base + 2 * slot)}{core}{chr(self.base + 2 * slot + 1)}{tail}"

    def strip(self, marked: str) -> tuple[str, list[tuple[int, int, int]], list[int]]:
        """*marked* without marks, the spans of slots (start, stop, slot), ascending, and the places of cuts."""
        parts, spans, cuts, last, at = [], list[tuple[int, int, int]](), list[int](), 0, 0
        begun: dict[int, int] = {}
        for match in self.any.finditer(marked):
            parts.append(marked[last : match.start()])
            at += match.start() - last
            last = match.end()
            number = _number(match.group()) - self.base
            if number >= 0xFFFC:
                cuts.append(at)
            elif number % 2 == 0:
                begun[number // 2] = at
            elif (slot := number // 2) in begun:
                spans.append((begun.pop(slot), at, slot))
        parts.append(marked[last:])
        return "".join(parts), sorted(spans), cuts


PLANES = (Marks(0x100000), Marks(0xF0000))


def _number(mark: str) -> int:
    if len(mark) == 1:
        return ord(mark)
    match = _ESCAPE.fullmatch(mark)
    assert match is not None
    return 0x10000 + ((int(match[1], 16) - 0xD800) << 10) + int(match[2], 16) - 0xDC00


def owned(tokens: Sequence[int], owner: int, part: int) -> list[int]:
    """*tokens* that say of which message (by number, from 0) they are which part."""
    extra = ((owner + 1) << _OWNER) | (part << _PART)
    low = (1 << _PART) - 1
    return [(t & low) | extra for t in tokens]


def bare(tokens: Sequence[int]) -> list[int]:
    """The ids alone."""
    low = (1 << ID_BITS) - 1
    return [t & low for t in tokens]


class Laid:
    """A rendered conversation: per token its id (int32), the message and part it is of, and the slot that it covers;
    -1 where there is none.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        packed = np.array(tokens, np.int64)
        self.ids: NDArray[np.int32] = (packed & ((1 << ID_BITS) - 1)).astype(np.int32)
        self.slots: NDArray[np.int64] = ((packed >> _SLOT) & ((1 << SLOT_BITS) - 1)) - 1
        self.parts: NDArray[np.int64] = (packed >> _PART) & ((1 << PART_BITS) - 1)
        self.owners: NDArray[np.int64] = (packed >> _OWNER) - 1
        self.weights: list[float] = []


class MarkedTokenizer:
    """A Hugging Face tokenizer as the cookbook's renderers use one, reading ``marks``. Whatever else is asked of it,
    the tokenizer behind answers.
    """

    def __init__(self, tokenizer: Any, encoder: Encoder) -> None:
        self._tokenizer, self._encoder = tokenizer, encoder
        self.marks = PLANES[0]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._tokenizer, name)

    def __len__(self) -> int:
        return len(self._tokenizer)

    @property
    def backend_tokenizer(self) -> _Backend:
        return _Backend(self)

    def encode(self, text: str, **_: Any) -> list[int]:
        """Ids of *text*, nothing added to them; those that cover a slot say so."""
        if self.marks.any.search(text) is None:
            return self._encoder.encode(text)
        plain, spans, cuts = self.marks.strip(text)
        markup = self._encoder.markup
        guards: list[Guard] = [
            (start, stop, frozenset() if slot % KINDS == CONTENT else markup) for start, stop, slot in spans
        ]
        tokens = self._encoder.tokenize(plain, cuts, guards, fresh=True)
        ids = list(tokens.ids)
        for start, stop, slot in spans:
            first, last = _covered(plain, tokens, start, stop)
            for n in range(first, last):
                ids[n] = tokens.ids[n] | (slot + 1) << _SLOT
        return ids

    def decode(self, ids: Any, **_: Any) -> str:
        return self._encoder.decode(bare([ids] if isinstance(ids, int) else ids))


class _Backend:
    """In place of the Rust tokenizer, of which some renderers keep a copy for contents."""

    encode_special_tokens = False

    def __init__(self, tokenizer: MarkedTokenizer) -> None:
        self._tokenizer = tokenizer

    def __deepcopy__(self, memo: Any) -> _Backend:
        return _Backend(self._tokenizer)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._tokenizer._tokenizer.backend_tokenizer, name)

    def encode(self, text: str, **_: Any) -> _Encoding:
        return _Encoding(self._tokenizer.encode(text))

    def decode(self, ids: Any, **_: Any) -> str:
        return self._tokenizer.decode(ids)


class _Encoding:
    def __init__(self, ids: list[int]) -> None:
        self.ids = ids


def _covered(text: str, tokens: Tokens, start: int, stop: int) -> tuple[int, int]:
    """The tokens of ``text[start:stop]``, save those at its edges that share only blanks of it with what is around."""
    first, last = tokens.overlapping(start, stop)
    while first < last and tokens.starts[first] < start and text[start : min(tokens.ends[first], stop)].isspace():
        first += 1
    while first < last and tokens.ends[last - 1] > stop and text[max(tokens.starts[last - 1], start) : stop].isspace():
        last -= 1
    return first, last
