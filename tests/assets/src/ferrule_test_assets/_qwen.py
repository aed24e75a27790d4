"""Qwen's tokenizers, from the ranks in dashscope."""

from __future__ import annotations

import base64
from pathlib import Path

from . import _sources
from ._bpe import add_tokens, byte_level, save
from ._cache import cached
from ._templates import template

# How Qwen cuts text before it merges, until Qwen3.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# In the order of their ids, which follow the vocabulary's.
SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
# Tokens that `skip_special_tokens` leaves in a text.
PLAIN = [
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
]
SINCE_QWEN3 = ["<tool_response>", "</tool_response>", "<think>", "</think>"]


def qwen_ranks() -> dict[bytes, int]:
    """Qwen's 151,643 pieces and their ranks."""
    lines = _sources.file("dashscope", "dashscope/resources/qwen.tiktoken").read_bytes().splitlines()
    return {base64.b64decode(piece): int(rank) for piece, rank in (line.split() for line in lines if line)}


def _build(folder: Path, plain: list[str], name: str) -> None:
    ranks = qwen_ranks()
    tokenizer = byte_level(ranks, [PATTERN], nfc=True)
    tokens = [*((text, True) for text in SPECIAL), *((text, False) for text in plain)]
    add_tokens(tokenizer, dict(enumerate(tokens, len(ranks))))
    stops = ["<|im_end|>", "<|endoftext|>"]
    save(folder, tokenizer, template(name), eos=stops[0], pad=stops[1], stops=stops, length=131_072)


def qwen3() -> Path:
    """Qwen3's tokenizer of 151,669 ids, with its template."""
    return cached("qwen3", ("dashscope", "trl"), lambda out: _build(out, PLAIN + SINCE_QWEN3, "qwen3"))


def qwen25() -> Path:
    """Qwen2.5's tokenizer of 151,665 ids: the tags of a tool call are tokens, those of thinking and of a tool's
    response are not.
    """
    return cached("qwen25", ("dashscope", "trl"), lambda out: _build(out, PLAIN, "qwen2_5"))
