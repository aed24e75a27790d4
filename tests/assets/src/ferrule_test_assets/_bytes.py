"""A tokenizer of single bytes for quick tests: nothing to build, every text fits, ids are easy to read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ._bpe import LETTERS, add_tokens, assemble, save
from ._cache import cached
from ._templates import text_of

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PLAIN = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]


def byte_tokenizer(
    extra_specials: Sequence[str] = (),
    *,
    template: str | None = "qwen3",
    bos: str | None = None,
    eos: str = "<|im_end|>",
) -> Path:
    """A byte-level tokenizer without merges: ids 0 to 255 are the bytes, then come ``<|endoftext|>``,
    ``<|im_start|>``, ``<|im_end|>``, the tags of tool calls, tool responses and thinking, and *extra_specials*.

    *template* is a name in :func:`templates`, a template's own text, or None. *bos* and *eos* become special tokens
    where they are none yet.
    """
    text = text_of(template) if template is not None else None
    special = [*extra_specials, *(end for end in (bos, eos) if end)]
    added = list(dict.fromkeys([*SPECIAL, *PLAIN, *special]))

    def build(out: Path) -> None:
        tokenizer = assemble({letter: number for number, letter in enumerate(LETTERS)}, [], [])
        add_tokens(tokenizer, {256 + i: (token, token not in PLAIN) for i, token in enumerate(added)})
        save(out, tokenizer, text, bos=bos, eos=eos, pad="<|endoftext|>", length=131_072)

    return cached("bytes", (), build, *added, f"bos {bos} eos {eos}", text or "")
