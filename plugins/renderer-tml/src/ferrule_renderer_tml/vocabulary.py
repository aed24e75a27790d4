"""The vocabularies that tml-renderers carries: bytes of tokens, control tokens, and whether a tokenizer's folder agrees."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from ferrule import PluginError, get_logger

log = get_logger("ferrule.renderer.tml")

_SAMPLE = (
    "The quick brown fox's 12345 numbers, don't they?",
    "  indented\n\n\tdef f(x):  # comment\r\n    return {'k': [1, 2.50]}\n",
    "Größe, naïve, 東京タワー, Привет, مرحبا",
    "👩‍👩‍👧‍👦 🏳️‍🌈 e\u0301 <|im_end|",
    'user\n{"name": "f", "arguments": {"s": "1e5"}}',
)


@attrs.frozen
class _Added:
    content: str
    special: bool = True


@attrs.frozen(eq=False)
class _Encoding:
    ids: list[int]
    offsets: list[tuple[int, int]]


class Vocabulary:
    """One of the package's tokenizers. It also speaks as the Rust backend that :class:`ferrule.Encoder` reads with.

    ``control`` maps ids of control tokens to their text, ``ids_of`` is the inverse; ids at or beyond ``size`` are none.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        ids = {tokenizer.encode_special(name) for name in tokenizer.special_tokens()}
        self.control: dict[int, str] = {i: tokenizer.decode([i]) for i in sorted(ids)}
        self.ids_of = {text: i for i, text in self.control.items()}
        self.size = self._size(max(ids) + 1)
        self._bytes: dict[int, bytes] = {}
        self._split = re.compile("(" + "|".join(map(re.escape, sorted(self.ids_of, key=len, reverse=True))) + ")")

    def _size(self, low: int) -> int:
        def known(number: int) -> bool:
            try:
                return bool(self.tokenizer.decode_bytes([number]))
            except Exception:  # each tokenizer has an error of its own for an id beyond its last
                return False

        if not known(low):
            return low
        high = low
        while known(high):
            low, high = high, high * 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if known(middle) else (low, middle)
        return high

    def bytes_of(self, number: int) -> bytes:
        """The bytes that a token stands for; U+FFFD's for an id that is none."""
        found = self._bytes.get(number)
        if found is None:
            known = 0 <= number < self.size
            try:
                found = self.tokenizer.decode_bytes([number]) if known else "\ufffd".encode()
            except Exception:  # a hole in the vocabulary
                found = "\ufffd".encode()
            self._bytes[number] = found
        return found

    def text(self, ids: Iterable[int]) -> str:
        return b"".join(map(self.bytes_of, ids)).decode("utf-8", "replace")

    # -- what ferrule.Encoder asks of a backend ------------------------------------------------------------------------

    def no_truncation(self) -> None:
        """There is none."""

    def no_padding(self) -> None:
        """There is none."""

    post_processor: Any = None

    def get_added_tokens_decoder(self) -> dict[int, _Added]:
        return {i: _Added(text) for i, text in self.control.items()}

    def get_vocab_size(self, with_added_tokens: bool = True) -> int:
        return self.size

    def encode(self, text: str, add_special_tokens: bool = False) -> _Encoding:
        """*text* with control tokens read as such; offsets in characters."""
        ids: list[int] = []
        for piece in self._split.split(text):
            if piece in self.ids_of:
                ids.append(self.ids_of[piece])
            elif piece:
                ids += self.tokenizer.encode_ordinary(piece)
        edges = np.cumsum([0, *(len(self.bytes_of(i)) for i in ids)])
        # Characters by byte: the number of characters that begin before it.
        data = np.frombuffer(text.encode("utf-8", "replace"), np.uint8)
        begins = np.concatenate([[0], np.cumsum((data & 0xC0) != 0x80)])
        places = begins[np.minimum(edges, len(data))].tolist()
        return _Encoding(ids, list(itertools.pairwise(places)))

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return self.text(ids)


def check(vocabulary: Vocabulary, folder: str, needed: Iterable[str], family: str) -> None:
    """PluginError where the tokenizer in *folder* gives other ids than the package for the control tokens *needed* or
    for a few texts.
    """
    file = Path(folder) / "tokenizer.json"
    if not file.is_file():
        log.warning("vocabulary_unchecked", renderer="tml", family=family, folder=folder, missing="tokenizer.json")
        return
    from tokenizers import Tokenizer

    try:
        other = Tokenizer.from_file(str(file))
    except Exception as error:
        raise PluginError(f"renderer 'tml' cannot read {str(file)!r}: {error}") from error
    for text in needed:
        ours, theirs = vocabulary.ids_of.get(text), other.token_to_id(text)
        if ours is not None and ours != theirs:
            raise PluginError(
                f"renderer 'tml' (family {family!r}) writes {text!r} as token {ours}, but the tokenizer in {folder!r} "
                f"{'has no such token' if theirs is None else f'as {theirs}'}: choose another renderer.family or renderer"
            )
    for text in _SAMPLE:
        ours_ids = vocabulary.tokenizer.encode_ordinary(text)
        theirs_ids = other.encode(text, add_special_tokens=False).ids
        if ours_ids != theirs_ids:
            raise PluginError(
                f"renderer 'tml' (family {family!r}) does not share a vocabulary with the tokenizer in {folder!r}: "
                f"{text!r} is {ours_ids[:6]}... here and {theirs_ids[:6]}... there; choose another renderer.family or "
                f"renderer"
            )
