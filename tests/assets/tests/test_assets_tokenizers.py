"""Each tokenizer loads by path, has its own ends, and encodes as the implementation it was taken from."""

from __future__ import annotations

import sysconfig
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import ferrule_test_assets as assets
import pytest
import tiktoken
from ferrule_test_assets._qwen import PATTERN, qwen_ranks
from transformers import AutoTokenizer

TEXTS = [
    "",
    " ",
    "\n\n\n  \t x \r\n\r\n",
    "I'll say: it's 12,345.678 o'clock — don't  WE'RE\n",
    "naïve café Ångström e\u0301 ﬁ ½ ①",
    "今天天气很好,我们去公园吧。東京タワー 한국어 ไทย العربية हिन्दी",
    "🙂👩‍👩‍👧‍👦🇩🇪 \u200b\u00a0\u3000",
    '{"name": "get_weather", "arguments": {"city": "Zürich", "days": [1, 22, 333, 4444]}}',
    "def f(x):\n\treturn {**x, 'a': 0x1F}  # ok\n\n\n",
    "a" * 300 + " " * 50 + "=" * 77,
]


def sample_texts() -> list[str]:
    """Short awkward strings, and the start of some files of Python's own library."""
    library = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[::6]
    return TEXTS + [path.read_text(encoding="utf-8", errors="ignore")[:15_000] for path in library]


@cache
def load(name: str) -> Any:
    return AutoTokenizer.from_pretrained(getattr(assets, name)(), local_files_only=True)


def ids(tokenizer: Any, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize(
    ("name", "size", "bos", "eos", "pad"),
    [
        ("qwen3", 151_669, None, "<|im_end|>", "<|endoftext|>"),
        ("qwen25", 151_665, None, "<|im_end|>", "<|endoftext|>"),
        ("deepseek", 129_280, "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
        ("smollm2", 49_152, "<|im_start|>", "<|im_end|>", "<|im_end|>"),
    ],
)
def test_it_loads_as_a_fast_tokenizer(name: str, size: int, bos: str | None, eos: str, pad: str) -> None:
    tokenizer = load(name)
    assert tokenizer.is_fast
    assert len(tokenizer) == size
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == (bos, eos, pad)
    # Nothing is set before or after a text unasked.
    assert tokenizer.encode("Hello", add_special_tokens=True) == ids(tokenizer, "Hello")
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hello"}], tokenize=False, add_generation_prompt=True
    )
    assert "Hello" in prompt
    assert tokenizer.decode(ids(tokenizer, prompt)) == prompt


@pytest.mark.parametrize("name", ["qwen3", "qwen25", "deepseek", "smollm2"])
def test_it_writes_back_what_it_read(name: str) -> None:
    tokenizer = load(name)
    for text in sample_texts():
        # Qwen composes characters first.
        expected = unicodedata.normalize("NFC", text) if name.startswith("qwen") else text
        assert tokenizer.decode(ids(tokenizer, text)) == expected


def test_qwen_is_tiktokens() -> None:
    reference = tiktoken.Encoding("qwen", pat_str=PATTERN, mergeable_ranks=qwen_ranks(), special_tokens={})
    for text in sample_texts():
        expected = reference.encode(unicodedata.normalize("NFC", text), disallowed_special=())
        assert ids(load("qwen25"), text) == expected
        assert ids(load("qwen3"), text) == expected


def test_qwens_tags() -> None:
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]
    numbers = [151_643, 151_644, 151_645, 151_657, 151_658]
    assert load("qwen3").convert_tokens_to_ids(tokens) == numbers
    assert load("qwen25").convert_tokens_to_ids(tokens) == numbers
    later = ["<tool_response>", "</tool_response>", "<think>", "</think>"]
    assert load("qwen3").convert_tokens_to_ids(later) == [151_665, 151_666, 151_667, 151_668]
    assert all(len(ids(load("qwen25"), tag)) > 1 for tag in later)
    # The tags of calls and thinking are part of what the model says.
    written = ids(load("qwen3"), "<think>a</think><tool_call>b</tool_call><|im_end|>")
    assert load("qwen3").decode(written, skip_special_tokens=True) == "<think>a</think><tool_call>b</tool_call>"
