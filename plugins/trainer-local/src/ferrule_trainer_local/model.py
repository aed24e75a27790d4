"""Making and loading models, LoRA, and the weights as others see them."""

from __future__ import annotations

import copy
import hashlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ferrule import ModelSpec, TrainerError, derive_seed, get_logger

from . import packing
from .cache import KVBatch
from .decoder import Decoder, FastDecoder, ModelDecoder

if TYPE_CHECKING:
    from . import Lora, Tiny

log = get_logger(__name__)
AGREE = 1e-5
"""How far a hand-written decoder may be from the model, in nats, to be used."""
BROKEN = 1e-2
"""How far decoding with a cache may be from the model at all."""
TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
)


def make(spec: ModelSpec, tiny: Tiny, seed: int) -> Any:
    """The model of *spec*, float32, on the CPU: its folder's weights, or a fresh one of the shape of *tiny*."""
    if spec.path is not None:
        return _load(spec.path)
    if spec.tokenizer_path is None:
        raise TrainerError(
            "a model made from [trainer.tiny] takes its vocabulary from a tokenizer: give model.tokenizer"
        )
    return _tiny(tiny, spec.tokenizer_path, seed)


def _load(path: str) -> Any:
    from transformers import AutoModelForCausalLM

    folder = Path(path)
    if not (folder / "config.json").is_file():
        what = "has no config.json" if folder.is_dir() else "is not a folder"
        raise TrainerError(f"model.path {path} {what}: the local trainer loads Hugging Face folders")
    try:
        return AutoModelForCausalLM.from_pretrained(path, local_files_only=True, dtype=torch.float32)
    except (OSError, ValueError, KeyError) as error:
        raise TrainerError(f"the model in {path} cannot be loaded: {error}") from error


def _tiny(tiny: Tiny, tokenizer_path: str, seed: int) -> Any:
    """A Llama-shaped model. Matrices start at the scale that their fan-in asks for, what adds to the stream at half of
    it:
    at the usual deviation of 0.02 a model this small does not learn to copy.
    """
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    try:
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_path, local_files_only=True)
    except (OSError, ValueError) as error:
        raise TrainerError(f"the tokenizer in {tokenizer_path} cannot be loaded: {error}") from error
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=tiny.hidden_size,
        num_hidden_layers=tiny.layers,
        num_attention_heads=tiny.heads,
        num_key_value_heads=tiny.kv_heads or tiny.heads,
        intermediate_size=tiny.intermediate_size,
        max_position_embeddings=tiny.max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": tiny.rope_theta},
        tie_word_embeddings=tiny.tied,
        rms_norm_eps=1e-6,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(derive_seed(seed, "model"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                std = 0.05 if "embed" in name else parameter.shape[1] ** -0.5
                scale = 0.5 if "o_proj" in name or "down_proj" in name else 1.0
                parameter.normal_(0.0, std * scale, generator=generator)
    return model


def add_lora(model: Any, lora: Lora, seed: int) -> Any:
    """Put low-rank adapters into *model*, in place, and freeze all else."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise TrainerError("[trainer.lora] needs peft: pip install 'ferrule-trainer-local[lora]'") from error
    target: Any = list(lora.target_modules) if lora.target_modules else "all-linear"
    alpha: Any = lora.alpha  # declared whole by peft, which only divides it
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=alpha,
        lora_dropout=lora.dropout,
        target_modules=target,
        bias="none",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "lora"))
        try:
            return get_peft_model(model, config).get_base_model()
        except ValueError as error:
            raise TrainerError(f"[trainer.lora] does not fit this model: {error}") from error


@torch.no_grad()
def published(model: Any) -> dict[str, Tensor]:
    """The model's weights by their names in a plain transformers model, adapters merged in. Not copies where not
    merged.
    """
    deltas = {
        name: module.get_delta_weight("default")
        for name, module in model.named_modules()
        if hasattr(module, "get_delta_weight") and hasattr(module, "base_layer")
    }
    weights = {}
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            continue
        owner = name.removesuffix(".weight").removesuffix(".base_layer")
        value = parameter.detach()
        weights[name.replace(".base_layer.", ".")] = (
            value + deltas[owner] if owner in deltas and name.endswith(".weight") else value
        )
    return weights


def trainable(model: Any) -> dict[str, Tensor]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def fingerprint(model: Any) -> str:
    """What a checkpoint must find again: every parameter's name and shape, and, where frozen, its first numbers."""
    digest = hashlib.blake2b(digest_size=16)
    for name, p in sorted(model.named_parameters()):
        digest.update(f"{name} {tuple(p.shape)} {p.requires_grad}\n".encode())
        if not p.requires_grad:
            digest.update(p.detach().flatten()[:256].float().cpu().numpy().tobytes())
    return digest.hexdigest()


def splits(model: Any) -> bool:
    """Whether the model's logits are nothing but its head applied to the hidden states of ``model.model``."""
    body, head = getattr(model, "model", None), model.get_output_embeddings()
    if body is None or head is None or not isinstance(body, torch.nn.Module):
        return False
    ids = _probe(model.config.get_text_config().vocab_size).to(model.device)
    try:
        with torch.inference_mode():
            apart = head(body(input_ids=ids, use_cache=False).last_hidden_state)
            whole = model(input_ids=ids, use_cache=False).logits
    except (TypeError, AttributeError):
        return False
    return apart.shape == whole.shape and bool(torch.equal(apart, whole))


def packs(model: Any) -> bool:
    """Let *model* learn from rows that begin alike, and say whether its numbers then stay what they were."""
    row = np.random.default_rng(0).integers(0, model.config.vocab_size, 16).astype(np.int32)
    rows, begins = [row, np.append(row[:5], row[:3]), row[::-1].copy()], [5, 5, 9]
    before = model.config._attn_implementation
    packing.install(model)
    try:
        stream = packing.pack(rows, begins, model.device)
        with torch.inference_mode():
            states = packing.states(model.model, stream)[torch.from_numpy(stream.source).to(model.device)]
            plain = [
                model.model(input_ids=torch.from_numpy(r[None].astype(np.int64)).to(model.device), use_cache=False)
                for r in rows
            ]
            want = torch.cat([out.last_hidden_state[0, :-1] for out in plain])
            head = model.get_output_embeddings()
            off = float((head(states).log_softmax(-1) - head(want).log_softmax(-1)).abs().max())
    except (TypeError, RuntimeError) as error:
        log.debug("packing_refused", error=str(error))
        off = float("inf")
    if off > AGREE:
        model.config._attn_implementation = before
    return off <= AGREE


def _probe(vocab: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, vocab, (2, 16)))


def decoder_for(model: Any, length: int, dtype: torch.dtype) -> Decoder:
    """A decoder whose numbers are those of *model*: the hand-written one where it fits and agrees."""
    weights = published(model)
    if FastDecoder.suits(model):
        fast = FastDecoder(model, length, dtype)
        fast.load(weights)
        off = disagreement(fast, model)
        if off <= AGREE or dtype != torch.float32:
            return fast
        log.warning("fast_decoder_refused", disagreement=off)
    decoder = ModelDecoder(model, dtype)
    off = disagreement(decoder, model)
    if off > BROKEN and dtype == torch.float32:
        raise TrainerError(
            f"{model.config.model_type} models cannot be sampled from here: decoding with a cache differs from the model by {off:.2g} nats"
        )
    return decoder


@torch.inference_mode()
def disagreement(decoder: Decoder, model: Any) -> float:
    """The largest difference in log p between *model* and *decoder*, fed two rows of unlike length, by parts."""
    ids = _probe(decoder.vocab).to(decoder.device)
    n, skip = ids.shape[1], 3
    want = [model(input_ids=row[None], use_cache=False).logits[0].log_softmax(-1) for row in (ids[0], ids[1, skip:])]
    kv = KVBatch(decoder.shape, decoder.dtype, decoder.device)
    kv.reserve(2, n)
    bias = kv.bias_for([0, skip], n)
    positions = (torch.arange(n, device=ids.device) - torch.tensor([[0], [skip]], device=ids.device)).clamp_(min=0)
    worst, at = 0.0, 0
    for to in (7, 8, 9, 13, n):
        logits = decoder(ids[:, at:to], positions[:, at:to], kv.store[:, :, :2], 0, at, bias)
        got = logits.log_softmax(-1)
        for row, lead in ((0, 0), (1, skip)):
            worst = max(worst, float((got[row] - want[row][to - 1 - lead]).abs().max()))
        at = to
    return worst


def export(model: Any, folder: Path, tokenizer: str | None) -> None:
    """Write *model*, adapters merged, as a Hugging Face folder, with the files of *tokenizer*."""
    config = copy.deepcopy(model.config)
    config._attn_implementation = None
    plain = type(model)(config)
    with torch.no_grad():
        weights = published(model)
        for name, parameter in plain.named_parameters():
            parameter.copy_(weights[name])
    if getattr(model, "generation_config", None) is not None:
        plain.generation_config = model.generation_config
    plain.save_pretrained(folder)
    for name in TOKENIZER:
        if tokenizer is not None and (file := Path(tokenizer) / name).is_file():
            shutil.copyfile(file, folder / name)
