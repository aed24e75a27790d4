"""Whole conversations: the package's tokens, where in them each message stands, and what each token is.

The package gives one flat list of tokens. Where a content came to stand is found by rendering once more with
private-use characters around the contents: without them the bytes must be the same.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import attrs
import numpy as np

from ferrule import Message, Rendered, TokenKind, Tokens, ToolSpec, clean_text, token_kinds

from .conversation import Conversation, Refused
from .families import Family
from .vocabulary import Vocabulary

Span = tuple[int, int]
_THINK, _THINK_END = "<think>", "</think>"


class _Marks:
    """Private-use characters that stand around contents: two for each number."""

    def __init__(self, base: int, pattern: str) -> None:
        self.base, self.any = base, re.compile(pattern)
        self.characters = re.compile(f"[{chr(base)}-{chr(base + 0xFFFD)}]")

    def around(self, blank: Callable[[int], bool], inner: bool, text: str, number: int) -> str:
        if not text or text.isspace():
            return f"{chr(self.base + 2 * number)}{text}{chr(self.base + 2 * number + 1)}" if blank(number) else text
        head = text[: len(text) - len(text.lstrip())] if inner else ""
        tail = text[len(text.rstrip()) :] if inner else ""
        core = text[len(head) : len(text) - len(tail)]
        return f"{head}{chr(self.base + 2 * number)}{core}{chr(self.base + 2 * number + 1)}{tail}"

    def strip(self, marked: str) -> tuple[str, dict[int, int]]:
        """*marked* (bytes as Latin-1) without marks, and the first place of each."""
        parts, places, last, at = [], dict[int, int](), 0, 0
        for match in self.any.finditer(marked):
            parts.append(marked[last : match.start()])
            at += match.start() - last
            last = match.end()
            places.setdefault(ord(match.group().encode("latin-1").decode()) - self.base, at)
        parts.append(marked[last:])
        return "".join(parts), places


_MARKS = (
    _Marks(0x100000, "\xf4[\x80-\x8f][\x80-\xbf][\x80-\xbf]"),
    _Marks(0xF0000, "\xf3[\xb0-\xbf][\x80-\xbf][\x80-\xbf]"),
)
_MOST = 0xFFF0 // 4


@attrs.frozen(eq=False)
class Located:
    """Tokens, the text that they stand for (its bytes as Latin-1, one character each), and the place of each message's
    content and reasoning in it, None where there is none. Messages are in the *order* in which they were written.
    """

    ids: list[int]
    text: str
    starts: list[int]
    ends: list[int]
    messages: tuple[Message, ...]
    contents: tuple[Span | None, ...]
    reasonings: tuple[Span | None, ...]
    order: tuple[int, ...]


@attrs.frozen(eq=False)
class Layout:
    """By message, in the order written: the token at which it starts (and, last, where the last one ends), and what of
    an assistant's was sampled.
    """

    starts: list[int]
    actions: list[Span | None]


class Rendering:
    """Renders with one renderer of the package."""

    def __init__(self, family: Family, native: Any, vocabulary: Vocabulary, conversation: Conversation) -> None:
        self.family, self.native, self.vocabulary, self.conversation = family, native, vocabulary, conversation
        known = vocabulary.ids_of
        self.headers = frozenset(known[t] for t in family.headers if t in known)
        self.closes = frozenset(known[t] for t in family.closes if t in known)
        self.parts = tuple(family.parts)
        ids = self._ids([Message("user", "x")], (), lambda text, _: text)[0]
        self.generation = tuple(ids[max(k for k, i in enumerate(ids) if i in self.headers) :])
        thinks = [k for k, i in enumerate(self.generation) if vocabulary.text([i]) in (_THINK, _THINK_END)]
        self.header = self.generation[: min(thinks, default=len(self.generation))]
        text = vocabulary.text(self.generation)
        self.opened = ("think",) if text.rfind(_THINK) > text.rfind(_THINK_END) else ()

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec], generation: bool) -> Rendered:
        taught = not generation and not self.family.shows_last and messages[-1].role == "assistant"
        located = self.locate(messages, tools, taught)
        layout = self.layout(located)
        kinds = self.kinds(located, layout)
        ids, end = located.ids, layout.starts[-1]
        if not generation:
            ids, kinds = ids[:end], kinds[:end]
        elif end == len(ids):
            # After an assistant's message some of the package's renderers write no generation prompt.
            ids = [*ids, *self.generation]
            kinds = np.concatenate([kinds, np.full(len(self.generation), TokenKind.SCAFFOLD, np.uint8)])
        return self._rendered(located, layout, ids, kinds, self.opened if generation else ())

    def supervised(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Rendered:
        """The package's last training example, in which the last reply ends as the model itself would end it."""
        if messages[-1].role != "assistant":
            return self.render(messages, tools, False)
        located = self.locate(messages, tools, True)
        layout = self.layout(located)
        return self._rendered(located, layout, located.ids, self.kinds(located, layout), ())

    @staticmethod
    def _rendered(
        located: Located, layout: Layout, ids: list[int], kinds: np.ndarray, opened: tuple[str, ...]
    ) -> Rendered:
        spans = [(0, 0)] * len(located.messages)
        for k, i in enumerate(located.order):
            spans[i] = (layout.starts[k], max(layout.starts[k], layout.starts[k + 1]))
        return Rendered(np.array(ids, np.int32), kinds, tuple(spans), opened)

    def _ids(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        mark: Callable[[str, int], str],
        taught: bool = False,
    ) -> tuple[list[int], list[int]]:
        built, order = self.conversation.build(messages, tools, mark)
        try:
            if taught:
                spans = self.native.render_for_sft(built)[-1].input_token_spans
            else:
                spans, _ = self.native.render_for_completion(built)
            ids = [int(i) for s in spans for i in s.span.tokens]
        except Exception as error:  # whatever the package raises, it refused
            raise Refused(f"{type(error).__name__}: {error}") from error
        return (self._lined(ids) if self.family.bare else ids), order

    def _lined(self, ids: list[int]) -> list[int]:
        """*ids* with the line's ends that belong around thinking, where the package has none."""
        known, encode = self.vocabulary.ids_of, self.vocabulary.tokenizer.encode_ordinary
        opens = [k for k, i in enumerate(ids) if i == known[_THINK]]
        closes = [k for k, i in enumerate(ids) if i == known[_THINK_END]]
        out, at = list[int](), 0
        for start in opens:
            stop = next((k for k in closes if k > start), None)
            inner = self.vocabulary.text(ids[start + 1 : stop])
            if stop is None or not inner.strip() or inner.startswith("\n"):
                continue
            out += [*ids[at : start + 1], *encode(f"\n{inner}\n"), known[_THINK_END], *encode("\n\n")]
            at = stop + 1
            # Before a call the package has one line's end of its own.
            at += at < len(ids) and self.vocabulary.text([ids[at]]) == "\n"
        return out + ids[at:]

    def locate(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), taught: bool = False) -> Located:
        """Render *messages*, a generation prompt after them; *taught*: as a training example. Refused where the package refuses them, drops a content or
        moves it.
        """
        self.conversation.check(messages, tools)
        ids, order = self._ids(messages, tools, lambda text, _: text, taught)
        ordered = tuple(messages[i] for i in order)
        ids = self._split(ids)
        edges = list(accumulate((len(self.vocabulary.bytes_of(i)) for i in ids), initial=0))
        text = b"".join(map(self.vocabulary.bytes_of, ids)).decode("latin-1")
        everything = "".join(m.content + (m.reasoning or "") for m in ordered)
        marks = next((m for m in _MARKS if not m.characters.search(everything)), None)
        if marks is None or len(ordered) > _MOST:
            raise Refused(
                "the messages use both private-use planes of Unicode, which the renderer needs to find contents"
                if marks is None
                else f"more than {_MOST} messages"
            )
        places = self._places(messages, ordered, tools, marks, text, taught)
        return Located(
            ids,
            text,
            edges[:-1],
            edges[1:],
            ordered,
            tuple(_span(places, 4 * i) for i in range(len(ordered))),
            tuple(_span(places, 4 * i + 2) for i in range(len(ordered))),
            tuple(order),
        )

    def _split(self, ids: list[int]) -> list[int]:
        """*ids* with each reply beginning where sampling does: a token that holds the end of the generation prompt and
        the start of what follows (blank lines, in an empty block of thinking) is split there.
        """
        lead, tail = list(self.header), self.generation[len(self.header) :]
        if not tail:
            return ids
        whole = b"".join(map(self.vocabulary.bytes_of, tail))
        out, k, size = list[int](), 0, len(lead)
        while k < len(ids):
            if ids[k : k + size] != lead or tuple(ids[k + size : k + size + len(tail)]) == tail:
                out.append(ids[k])
                k += 1
                continue
            out += lead
            k += size
            at, held = k, b""
            while at < len(ids) and len(held) < len(whole):
                held += self.vocabulary.bytes_of(ids[at])
                at += 1
            if held.startswith(whole) and held != whole:
                out += [
                    *tail,
                    *self.vocabulary.tokenizer.encode_ordinary(held[len(whole) :].decode("utf-8", "replace")),
                ]
                k = at
        return out

    def _places(
        self,
        messages: Sequence[Message],
        ordered: Sequence[Message],
        tools: Sequence[ToolSpec],
        marks: _Marks,
        text: str,
        taught: bool,
    ) -> Mapping[int, int]:
        def outside(number: int) -> bool:
            return number % 2 == 0 and ordered[number // 2].role != "assistant"

        def never(number: int) -> bool:
            return False

        # Marks around whole contents first; where the template trims them, or treats blank ones apart, around less.
        for blank, inner in ((outside, False), (never, False), (outside, True), (never, True)):
            marked, _ = self._ids(messages, tools, partial(marks.around, blank, inner), taught)
            plain, places = marks.strip(b"".join(map(self.vocabulary.bytes_of, marked)).decode("latin-1"))
            if plain == text:
                break
        else:
            raise Refused("the package rewrites the messages, so that their contents cannot be found in its text")
        last = 0
        for i, message in enumerate(ordered):
            if not clean_text(message.content).strip():
                continue
            span = _span(places, 4 * i)
            if span is None:
                raise Refused(f"the package drops the content of message {i} ({message.role})")
            if span[0] < last:
                raise Refused(
                    f"the package moves the content of message {i} ({message.role}) before that of an earlier one"
                )
            last = span[1] if i or message.role != "system" else last
        return places

    def layout(self, located: Located) -> Layout:
        ids = located.ids
        size = len(self.generation)
        end = len(ids) - size if tuple(ids[-size:]) == self.generation else len(ids)
        heads = [k for k, i in enumerate(ids[:end]) if i in self.headers]
        starts: list[int] = []
        actions: list[Span | None] = []
        low = 0
        for i, message in enumerate(located.messages):
            span = located.contents[i]
            first = bisect_right(located.ends, span[0]) if span else None
            begin = 0 if i == 0 else self._begin(located, heads, low, first, message.role, end)
            starts.append(begin)
            if message.role == "assistant":
                action = self._action(located, heads, i, begin, end)
                actions.append(action)
                low = action[1]
            else:
                actions.append(None)
                low = max(low, begin + 1, bisect_left(located.starts, span[1]) if span else 0)
        starts.append(end)
        for k in range(len(starts) - 2, -1, -1):
            starts[k] = min(starts[k], starts[k + 1])
        return Layout(starts, actions)

    def _begin(self, located: Located, heads: list[int], low: int, first: int | None, role: str, end: int) -> int:
        """The token at which a message begins: its header, or the opening of a further part of the turn before it."""
        at = bisect_left(heads, low)
        if self.family.shared and low and located.ids[low - 1] in self.headers:
            # The header ended the reply before it, and is its action.
            return low
        if role == "assistant" or first is None:
            return heads[at] if at < len(heads) else min(low, end)
        last = bisect_right(heads, first) - 1
        if last >= at:
            return heads[last]
        text = located.text[located.starts[low] : located.starts[first]] if low < first else ""
        for part in self.parts:
            if (found := text.find(part)) >= 0:
                return bisect_right(located.ends, located.starts[low] + found)
        return min(low, first)

    def _action(self, located: Located, heads: list[int], i: int, begin: int, end: int) -> Span:
        """What was sampled of message *i*, which begins at token *begin*: from its generation prompt to its close."""
        ids = located.ids
        start = begin
        if tuple(ids[begin : begin + len(self.header)]) == self.header:
            start += next((k for k, i in enumerate(self.generation) if ids[begin + k] != i), len(self.generation))
        own = located.contents[i]
        low = max(start, bisect_left(located.starts, own[1]) if own else start)
        following = located.contents[i + 1] if i + 1 < len(located.messages) else None
        if following:
            high = bisect_right(located.ends, following[0])
        elif i + 1 < len(located.messages):
            at = bisect_left(heads, low)
            high = min(heads[at] + self.family.shared, end) if at < len(heads) else end
        else:
            high = end
        stop = next((k + 1 for k in range(high - 1, low - 1, -1) if ids[k] in self.closes), None)
        if stop is None:
            at = bisect_left(heads, low)
            stop = min(heads[at], high) if at < len(heads) else high
        return start, max(start, stop)

    def kinds(self, located: Located, layout: Layout) -> np.ndarray:
        tokens = Tokens(located.ids, located.starts, located.ends)
        outside = [s for m, s in zip(located.messages, located.contents, strict=True) if s and m.role != "assistant"]
        kinds = token_kinds(located.text, tokens, outside)
        for action in layout.actions:
            if action:
                kinds[action[0] : action[1]] = TokenKind.ACTION
        return kinds


def _span(places: Mapping[int, int], number: int) -> Span | None:
    return (places[number], places[number + 1]) if number in places and number + 1 in places else None
