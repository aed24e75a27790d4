"""Each tokenizer loads by path, has its own ends, and encodes as another implementation of it does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import ferrule_test_assets as assets
import pytest
import tiktoken
from ferrule_test_assets._native import ask
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
    library = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[::10]
    return TEXTS + [path.read_text(encoding="utf-8", errors="ignore")[:10_000] for path in library]


@cache
def load(name: str) -> Any:
    return AutoTokenizer.from_pretrained(getattr(assets, name)(), local_files_only=True)


def ids(tokenizer: Any, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


MODELS = [
    # Its function, how many ids, the first token, the end, padding, and where sampling stops.
    ("qwen3", 151_669, None, "<|im_end|>", "<|endoftext|>", ["<|im_end|>", "<|endoftext|>"]),
    ("qwen25", 151_665, None, "<|im_end|>", "<|endoftext|>", ["<|im_end|>", "<|endoftext|>"]),
    ("qwen35", 248_077, None, "<|im_end|>", "<|endoftext|>", ["<|im_end|>", "<|endoftext|>"]),
    ("deepseek", 129_280, "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜end▁of▁sentence｜>", None),
    ("glm", 154_856, None, "<|endoftext|>", "<|endoftext|>", ["<|endoftext|>", "<|user|>", "<|observation|>"]),
    ("kimi", 163_840, "[BOS]", "<|im_end|>", "[PAD]", None),
    ("gpt_oss", 200_019, "<|startoftext|>", "<|return|>", "<|endoftext|>", ["<|return|>", "<|endoftext|>", "<|call|>"]),
    ("nemotron", 131_072, "<s>", "<|im_end|>", "<|im_end|>", ["</s>", "<|im_end|>"]),
    ("smollm2", 49_152, "<|im_start|>", "<|im_end|>", "<|im_end|>", None),
    ("byte_tokenizer", 265, None, "<|im_end|>", "<|endoftext|>", None),
]


@pytest.mark.parametrize(("name", "size", "bos", "eos", "pad", "stops"), MODELS, ids=[m[0] for m in MODELS])
def test_it_loads_as_a_fast_tokenizer(
    name: str, size: int, bos: str | None, eos: str, pad: str, stops: list[str] | None
) -> None:
    tokenizer = load(name)
    assert tokenizer.is_fast
    assert len(tokenizer) == size
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == (bos, eos, pad)
    # Nothing is set before or after a text unasked.
    assert tokenizer.encode("Hello", add_special_tokens=True) == ids(tokenizer, "Hello")
    settings = json.loads((getattr(assets, name)() / "generation_config.json").read_text())
    assert settings["eos_token_id"] == tokenizer.convert_tokens_to_ids(stops or [eos])
    assert tokenizer.decode(ids(tokenizer, f"a{eos}b"), skip_special_tokens=True) == "ab"


@pytest.mark.parametrize("name", [m[0] for m in MODELS if m[0] != "kimi"])
def test_its_template_writes_its_own_tokens(name: str) -> None:
    tokenizer = load(name)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hello"}], tokenize=False, add_generation_prompt=True
    )
    assert "Hello" in prompt
    found = ids(tokenizer, prompt)
    assert tokenizer.decode(found) == prompt
    # What the template frames a message with are tokens, not letters.
    for tag in re.findall(r"<[|｜][^<>]*[|｜]>", prompt):
        assert tokenizer.convert_tokens_to_ids(tag) in found


@pytest.mark.parametrize("name", [m[0] for m in MODELS])
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


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("qwen3", "Qwen3Tokenizer"),
        ("qwen35", "Qwen35Tokenizer"),
        ("deepseek", "DeepSeekV4Tokenizer"),
        ("glm", "GlmTokenizer"),
        ("kimi", "KimiK2ThinkingTokenizer"),
        ("gpt_oss", "HarmonyTokenizer"),
        ("nemotron", "Nemotron3Tokenizer"),
    ],
)
def test_it_is_tml_renderers_own(name: str, other: str) -> None:
    texts = sample_texts()
    composed = [unicodedata.normalize("NFC", text) if name.startswith("qwen") else text for text in texts]
    for text, expected in zip(texts, ask(other, composed), strict=True):
        assert ids(load(name), text) == expected


LLAMA_CPP = """
import json, sys, xllamacpp
from urllib.request import Request, urlopen
import ferrule_test_assets as assets
settings = xllamacpp.CommonParams()
settings.model.path = str(assets.smollm2_gguf())
settings.n_ctx, settings.n_parallel, settings.cpuparams.n_threads = 64, 1, 1
server = xllamacpp.Server(settings)
found = []
for text in json.load(sys.stdin):
    body = json.dumps({"content": text, "add_special": False}).encode()
    request = Request(server.listening_address + "/tokenize", body, {"Content-Type": "application/json"})
    found.append(json.load(urlopen(request, timeout=60))["tokens"])
print(json.dumps(found))
"""


def test_smollm2_is_llama_cpps() -> None:
    # In a process of its own: llama.cpp's library does not get on with every other.
    texts = sample_texts()
    shown = subprocess.run(
        [sys.executable, "-c", LLAMA_CPP], input=json.dumps(texts), capture_output=True, text=True, check=True
    )
    for text, expected in zip(texts, json.loads(shown.stdout.splitlines()[-1]), strict=True):
        assert ids(load("smollm2"), text) == expected


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


def test_a_byte_tokenizer_with_other_tokens() -> None:
    folder = assets.byte_tokenizer(
        ["<|eot_id|>", "<|start_header_id|>"], template="llama3", bos="<s>", eos="<|eot_id|>"
    )
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    assert ids(tokenizer, "é<s><|eot_id|>") == [0xC3, 0xA9, 267, 265]
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "<|eot_id|>")
    assert "<|start_header_id|>user" in tokenizer.apply_chat_template(
        [{"role": "user", "content": "a"}], tokenize=False
    )
    bare = AutoTokenizer.from_pretrained(assets.byte_tokenizer(template=None), local_files_only=True)
    assert bare.chat_template is None
