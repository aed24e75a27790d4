"""The tokenizers whose vocabularies tml-renderers has compiled in: Qwen3.5, GLM, Kimi K2, gpt-oss and Nemotron 3."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ._bpe import add_tokens, assemble, merges_of, save, spell
from ._cache import cached
from ._native import ask
from ._templates import template

_SOURCES = ("tml-renderers", "trl")

# How each cuts text before it merges.
_QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GLM = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_HEAD = r"[^\r\n\p{L}\p{N}]?"
_TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_O200K = (
    rf"{_HEAD}[{_UPPER}]*[{_LOWER}]+{_SHORT}|{_HEAD}[{_UPPER}]+[{_LOWER}]*{_SHORT}|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_TAIL}"
)
_NEMOTRON = (
    rf"{_HEAD}[{_UPPER}]*[{_LOWER}]+|{_HEAD}[{_UPPER}]+[{_LOWER}]*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_TAIL}"
)
_NOT_HAN = r"&&[^\p{Han}]"
_KIMI = (
    rf"[\p{{Han}}]+|{_HEAD}[{_UPPER}{_NOT_HAN}]*[{_LOWER}{_NOT_HAN}]+{_SHORT}"
    rf"|{_HEAD}[{_UPPER}{_NOT_HAN}]+[{_LOWER}{_NOT_HAN}]*{_SHORT}|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*{_TAIL}"
)

# Tokens that `skip_special_tokens` leaves in a text: what a model says in them is part of its message.
_PLAIN = {
    f"<{slash}{tag}>" for tag in ("think", "tool_call", "tool_response", "arg_key", "arg_value") for slash in ("", "/")
} | {f"<|{name}|>" for name in ("fim_prefix", "fim_middle", "fim_suffix", "fim_pad", "repo_name", "file_sep")}


def _spelling(name: str) -> str:
    """A special token as text; tml-renderers leaves off ``<|`` and ``|>``."""
    return name if name[0] in "<[/" else f"<|{name}|>"


def _builder(name: str, pattern: str, chat: str | None, *, nfc: bool = False, **ends: Any) -> Callable[[Path], None]:
    def build(folder: Path) -> None:
        found = ask(name)
        ranks = {base64.b64decode(piece): number for piece, number in found["pieces"]}
        special = {number: _spelling(text) for text, number in found["special"]}
        vocab = {spell(piece): rank for piece, rank in ranks.items()}
        if min(special) < len(special):
            # Special tokens that come first have to be in the vocabulary itself.
            vocab |= {text: number for number, text in special.items()}
        tokenizer = assemble(vocab, merges_of(ranks), [pattern], nfc=nfc, ignore_merges=True)
        add_tokens(tokenizer, {number: (text, text not in _PLAIN) for number, text in special.items()})
        save(folder, tokenizer, template(chat) if chat else None, **ends)

    return build


def qwen35() -> Path:
    """Qwen3.5's tokenizer of 248,077 ids, with the template of the models that think unless told not to."""
    ends = {"eos": "<|im_end|>", "pad": "<|endoftext|>", "stops": ["<|im_end|>", "<|endoftext|>"], "length": 262_144}
    return cached("qwen35", _SOURCES, _builder("Qwen35Tokenizer", _QWEN35, "qwen3_5_think", nfc=True, **ends))


def glm() -> Path:
    """GLM's tokenizer of 154,856 ids, with the template of GLM-4.5, all of whose tokens it has.

    Encoding is that of tiktoken. tml-renderers' own differs on rare strings (7 of 20,000 random ones): it uses a few
    hundred pieces that no merge reaches, where they are less than a whole word.
    """
    stops = ["<|endoftext|>", "<|user|>", "<|observation|>"]
    ends = {"eos": "<|endoftext|>", "pad": "<|endoftext|>", "stops": stops, "length": 131_072}
    return cached("glm", _SOURCES, _builder("GlmTokenizer", _GLM, "glm4moe", **ends))


def kimi() -> Path:
    """The tokenizer of Kimi K2 Thinking, of 163,840 ids, without a template: trl has none."""
    ends = {"bos": "[BOS]", "eos": "<|im_end|>", "pad": "[PAD]", "unk": "[UNK]", "length": 262_144}
    return cached("kimi", _SOURCES, _builder("KimiK2ThinkingTokenizer", _KIMI, None, stops=["<|im_end|>"], **ends))


def gpt_oss() -> Path:
    """gpt-oss' tokenizer of 200,019 ids, with its template (the Harmony format)."""
    stops = ["<|return|>", "<|endoftext|>", "<|call|>"]
    ends = {"bos": "<|startoftext|>", "eos": "<|return|>", "pad": "<|endoftext|>", "stops": stops, "length": 131_072}
    return cached("gpt-oss", _SOURCES, _builder("HarmonyTokenizer", _O200K, "gptoss", **ends))


def nemotron() -> Path:
    """Nemotron 3's tokenizer of 131,072 ids, with the template of its Nano models."""
    stops = ["</s>", "<|im_end|>"]
    ends = {"bos": "<s>", "eos": "<|im_end|>", "pad": "<|im_end|>", "unk": "<unk>", "stops": stops, "length": 262_144}
    return cached("nemotron", _SOURCES, _builder("Nemotron3Tokenizer", _NEMOTRON, "nemotron_3_nano", **ends))
