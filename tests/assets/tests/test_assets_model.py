"""The real model answers a question, and its pins are the same wherever they are written."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import ferrule_test_assets as assets
import pytest

ROOT = Path(__file__).parents[3]


def test_the_model_answers() -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("gguf")
    folder = assets.smollm2_model()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    assert model.dtype == torch.float32
    assert model.config.vocab_size == len(tokenizer)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")
    out = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    said = tokenizer.decode(out[0, prompt["input_ids"].shape[1] :])
    assert said == "The capital of France is Paris.<|im_end|>"


def test_the_makefile_and_nox_install_the_same() -> None:
    made = re.search(r"^ASSETS = (.*)$", (ROOT / "Makefile").read_text(), re.M)
    noxed = re.search(r"^ASSETS = (\[.*?\])$", (ROOT / "noxfile.py").read_text(), re.M | re.S)
    assert made is not None
    assert noxed is not None
    assert made[1].split() == ast.literal_eval(noxed[1])
