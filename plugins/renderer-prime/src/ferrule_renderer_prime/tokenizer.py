"""The tokenizer that the package is given: the folder's own, but that text can be cut where a control token would be read."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Any

from ferrule import Encoder, Message, ToolSpec

# Characters for private use. One that no message of a call holds stands where its texts are to be cut.
_MARKS = tuple(chr(0xF5A7 + k) for k in range(64))


class Tokenizer:
    """Encodes as the folder's tokenizer does, save that a text is encoded apart on both sides of each *mark*, which is
    itself no part of it.

    The package puts contents from outside into its texts as they are and encodes those as a whole, control tokens
    included; with a mark inside, a control token's text stays text. Offsets count the characters of the text with its
    marks, as the package does.
    """

    def __init__(self, inner: Any, encoder: Encoder, name: str, marks: bool = True) -> None:
        self._inner, self._encoder, self._marks = inner, encoder, marks
        self._firsts = frozenset(text[0] for text in encoder.control.values())
        self.name_or_path = name
        self.unk_token_id, self.eos_token_id = inner.unk_token_id, inner.eos_token_id
        self.chat_template = getattr(inner, "chat_template", None)
        self.all_special_tokens = list(inner.all_special_tokens)
        self.mark = ""

    def choose(self, messages: Iterable[Message], tools: Iterable[ToolSpec]) -> None:
        """Set the mark to a character that none of these holds; to none where nothing of theirs can be a control
        token.
        """
        self.mark = ""
        if not self._marks:
            return
        texts = [text for m in messages for text in _texts(m)]
        texts += [json.dumps(tool.to_openai(), ensure_ascii=False, default=str) for tool in tools]
        if all(self._firsts.isdisjoint(text) for text in texts):
            return
        self.mark = next((mark for mark in _MARKS if not any(mark in text for text in texts)), "")
        if not self.mark:
            raise ValueError(
                f"the messages hold all of {_MARKS[0]!r} to {_MARKS[-1]!r}, of which the renderer needs one"
            )

    def literal(self, value: Any, allowed: frozenset[int] = frozenset()) -> Any:
        """*value* with the mark inside each control token's text."""
        return self._encoder.literal(value, self.mark, allowed) if self.mark else value

    def _cut(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        # A list of choices in a tool's schema may come through JSON's escapes.
        parts = text.replace(json.dumps(self.mark)[1:-1], self.mark).split(self.mark)
        cuts, at = [], 0
        for part in parts[:-1]:
            at += len(part)
            cuts.append(at)
        tokens = self._encoder.tokenize("".join(parts), cuts, fresh=True)
        offsets = [
            (a + bisect_right(cuts, a), b + bisect_left(cuts, b))
            for a, b in zip(tokens.starts, tokens.ends, strict=True)
        ]
        return tokens.ids, offsets

    def _marked(self, text: str) -> bool:
        return bool(self.mark) and (self.mark in text or json.dumps(self.mark)[1:-1] in text)

    def encode(self, text: str, **_: Any) -> list[int]:
        return self._cut(text)[0] if self._marked(text) else self._encoder.encode(text)

    def __call__(self, text: str, **_: Any) -> dict[str, Any]:
        if self._marked(text):
            ids, offsets = self._cut(text)
            return {"input_ids": ids, "offset_mapping": offsets}
        encoding = self._encoder.backend.encode(text, add_special_tokens=False)
        return {"input_ids": encoding.ids, "offset_mapping": encoding.offsets}

    def decode(self, token_ids: Any, **_: Any) -> str:
        return self._encoder.decode([int(i) for i in token_ids])

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        return self._inner.convert_tokens_to_ids(tokens)

    def apply_chat_template(self, messages: Any, *, tokenize: bool = True, **options: Any) -> Any:
        options.pop("return_dict", None)
        text = self._inner.apply_chat_template(messages, tokenize=False, **options)
        return self.encode(text) if tokenize else text


def _texts(message: Message) -> Iterable[str]:
    yield message.content
    yield from (text for text in (message.reasoning, message.name, message.tool_call_id) if text)
    for call in message.tool_calls:
        yield call.name
        yield json.dumps(dict(call.arguments), ensure_ascii=False, default=str)
        yield call.raw or ""
