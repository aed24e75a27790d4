"""One step of decoding for many rows: token ids in, logits of the last position out, keys and values into the cache.

:class:`FastDecoder` computes models of Llama's shape (Llama, Qwen2, Qwen3, Mistral) by hand from fused copies of their
weights; :class:`ModelDecoder` asks any transformers model. Both hold their own copy of the weights: the published ones.
"""

from __future__ import annotations

import abc
import copy
import inspect
from collections.abc import Mapping
from typing import Any

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache

from .cache import HIDDEN

FAST = frozenset({"llama", "qwen2", "qwen3", "mistral"})


class Decoder(abc.ABC):
    """``shape`` is (layers, kv heads, head size) of the cache."""

    shape: tuple[int, int, int]
    vocab: int
    dtype: torch.dtype
    device: torch.device

    @abc.abstractmethod
    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Copy *weights*, by their names in the transformers model."""

    @abc.abstractmethod
    def __call__(
        self, ids: Tensor, positions: Tensor, kv: Tensor, start: int, end: int, bias: Tensor | None, head: bool = True
    ) -> Tensor:
        """Feed *ids*, int64[B, k], at logical *positions*, int64[B, k], writing at the physical positions from *end*.

        *kv* [layers, 2, B, kv heads, T, head size]; attention sees physical positions from *start*; *bias* float[B, ≥
        end + k] is added to the scores. Returns float32[B, vocab], the logits of the last position; without *head*,
        float32[0].
        """


def attention_bias(bias: Tensor | None, start: int, end: int, k: int, like: Tensor) -> Tensor:
    """The additive mask [B or 1, 1, k, end + k - start] of k new tokens over what came before and each other."""
    n = end + k - start
    causal = torch.full((k, n), HIDDEN, dtype=like.dtype, device=like.device).triu(n - k + 1)[None, None]
    return causal if bias is None else causal + bias[:, None, None, start : end + k]


@attrs.frozen(eq=False)
class Layer:
    """One layer's fused weights. ``norms`` are the gains of queries and keys, per head, where the model normalises
    them.
    """

    qkv: Tensor
    qkv_bias: Tensor | None
    norms: Tensor | None
    o: Tensor
    o_bias: Tensor | None
    gate_up: Tensor
    down: Tensor


class FastDecoder(Decoder):
    """Queries, keys and values in one product, gates and ups in another; the norms' gains folded into the matrices
    behind
    them; heads' two halves interleaved, so that a rotation is one complex product.
    """

    def __init__(self, model: Any, length: int, dtype: torch.dtype) -> None:
        config = model.config
        self.device, self.dtype = model.device, dtype
        self.heads = config.num_attention_heads
        self.size = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.shape = (config.num_hidden_layers, config.num_key_value_heads, self.size)
        self.vocab, self.width, self.eps = config.vocab_size, config.hidden_size, config.rms_norm_eps
        self.tied = config.tie_word_embeddings
        self.act = ACT2FN[config.hidden_act]
        cos, sin = model.model.rotary_emb(
            torch.empty(0, device=self.device), torch.arange(length, device=self.device)[None]
        )
        half = self.size // 2
        self.turn = torch.complex(cos[0, :, :half].float(), sin[0, :, :half].float())[:, None]
        self.layers: list[Layer] = []

    @staticmethod
    def suits(model: Any) -> bool:
        """Whether *model* is of a shape known here; numbers are compared besides, before it is used."""
        config = model.config
        rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
        sliding = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
        return config.model_type in FAST and rope in ("default", "linear", "llama3", "yarn") and not sliding

    def load(self, weights: Mapping[str, Tensor]) -> None:
        def get(name: str) -> Tensor:
            return weights[name].detach().float()

        def interleave(x: Tensor) -> Tensor:
            shape = x.shape
            return x.view(-1, 2, self.size // 2, *shape[1:]).transpose(1, 2).reshape(shape)

        def own(x: Tensor) -> Tensor:
            return x.to(self.dtype, copy=True).contiguous()

        self.layers = []
        for i in range(self.shape[0]):
            attention, mlp = f"model.layers.{i}.self_attn.", f"model.layers.{i}.mlp."
            q, k, v = (get(f"{attention}{n}_proj.weight") for n in "qkv")
            qkv = torch.cat([interleave(q), interleave(k), v]) * get(f"model.layers.{i}.input_layernorm.weight")
            bias = norms = None
            if f"{attention}q_proj.bias" in weights:
                q, k, v = (get(f"{attention}{n}_proj.bias") for n in "qkv")
                bias = own(torch.cat([interleave(q), interleave(k), v]))
            if f"{attention}q_norm.weight" in weights:
                q, k = (interleave(get(f"{attention}{n}_norm.weight")) for n in "qk")
                norms = own(torch.cat([q.expand(self.heads, -1), k.expand(self.shape[1], -1)]))
            o_bias = f"{attention}o_proj.bias"
            gate_up = torch.cat([get(f"{mlp}gate_proj.weight"), get(f"{mlp}up_proj.weight")])
            gate_up = gate_up * get(f"model.layers.{i}.post_attention_layernorm.weight")
            self.layers.append(
                Layer(
                    own(qkv),
                    bias,
                    norms,
                    own(get(f"{attention}o_proj.weight")),
                    own(get(o_bias)) if o_bias in weights else None,
                    own(gate_up),
                    own(get(f"{mlp}down_proj.weight")),
                )
            )
        self.embed = own(get("model.embed_tokens.weight"))
        head = get("model.embed_tokens.weight" if self.tied else "lm_head.weight")
        self.head = own(head * get("model.norm.weight"))

    def _normed(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float32:
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True).add_(self.eps))
        return F.rms_norm(x, x.shape[-1:], None, self.eps)

    def __call__(
        self, ids: Tensor, positions: Tensor, kv: Tensor, start: int, end: int, bias: Tensor | None, head: bool = True
    ) -> Tensor:
        rows, k = ids.shape
        kv_heads, size, heads = self.shape[1], self.size, self.heads
        turn = self.turn[positions]
        group = heads // kv_heads
        x = F.embedding(ids, self.embed)
        causal = k > 1 and bias is None and start == end
        mask = None
        if k > 1 and not causal:
            mask = attention_bias(bias, start, end, k, x).repeat(1, 1, group, 1)
        elif k == 1 and bias is not None:
            mask = bias[:, None, start : end + 1].expand(-1, kv_heads, -1).reshape(rows * kv_heads, 1, -1)
        rotated = (heads + kv_heads) * size
        for i, w in enumerate(self.layers):
            qkv = F.linear(self._normed(x), w.qkv, w.qkv_bias)
            qk = qkv[..., :rotated].view(rows, k, heads + kv_heads, size)
            if w.norms is not None:
                qk = self._normed(qk) * w.norms
            qk = torch.view_as_complex(qk.float().view(rows, k, heads + kv_heads, size // 2, 2)) * turn
            qk = torch.view_as_real(qk).flatten(-2).to(self.dtype).transpose(1, 2)
            kv[i, 0, :, :, end : end + k] = qk[:, heads:]
            kv[i, 1, :, :, end : end + k] = qkv[..., rotated:].view(rows, k, kv_heads, size).transpose(1, 2)
            keys, values = kv[i, 0, :, :, start : end + k], kv[i, 1, :, :, start : end + k]
            q = qk[:, :heads]
            if k == 1:
                # On a CPU two plain products beat the fused kernel, which is made for many queries.
                q = q.reshape(rows * kv_heads, group, size)
                keys, values = keys.flatten(0, 1), values.flatten(0, 1)
                if mask is None:
                    scores = torch.bmm(q, keys.transpose(1, 2)).mul_(size**-0.5)
                else:
                    scores = torch.baddbmm(mask, q, keys.transpose(1, 2), alpha=size**-0.5)
                out = torch.bmm(torch.softmax(scores, -1), values).view(rows, heads, 1, size)
            elif causal:
                out = F.scaled_dot_product_attention(q, keys, values, is_causal=True, enable_gqa=group > 1)
            else:
                out = F.scaled_dot_product_attention(
                    q.reshape(rows, kv_heads, group * k, size), keys, values, attn_mask=mask
                ).view(rows, heads, k, size)
            x = x + F.linear(out.transpose(1, 2).reshape(rows, k, heads * size), w.o, w.o_bias)
            gate, up = F.linear(self._normed(x), w.gate_up).chunk(2, -1)
            x = x + F.linear(self.act(gate).mul_(up), w.down)
        return F.linear(self._normed(x[:, -1]), self.head).float() if head else torch.empty(0)


class _Window(Cache):
    """The engine's tensor behind the face of a transformers cache: new keys and values are written in place."""

    def __init__(self, kv: Tensor, start: int, end: int) -> None:
        super().__init__(layers=[])
        self.kv, self.start, self.end = kv, start, end

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        stop = self.end + key_states.shape[-2]
        self.kv[layer_idx, 0, :, :, self.end : stop] = key_states
        self.kv[layer_idx, 1, :, :, self.end : stop] = value_states
        return self.kv[layer_idx, 0, :, :, self.start : stop], self.kv[layer_idx, 1, :, :, self.start : stop]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.end - self.start

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self.end - self.start

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.end - self.start + query_length, 0

    def get_max_length(self, layer_idx: int | None = 0) -> int:
        return -1

    @property
    def is_compileable(self) -> bool:
        return False

    @property
    def is_sliding(self) -> list[bool]:
        return [False] * self.kv.shape[0]


class ModelDecoder(Decoder):
    """Any causal model of transformers whose layers all keep keys and values of one shape."""

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        config = model.config.get_text_config()
        self.model = copy.deepcopy(model).to(dtype).eval()
        self.device, self.dtype, self.vocab = model.device, dtype, config.vocab_size
        heads = config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // heads
        self.shape = (config.num_hidden_layers, getattr(config, "num_key_value_heads", None) or heads, size)
        takes = inspect.signature(model.forward).parameters
        self._cache = "cache" if "cache" in takes else "past_key_values"
        self._keep = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}

    def load(self, weights: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(weights[name])

    def __call__(
        self, ids: Tensor, positions: Tensor, kv: Tensor, start: int, end: int, bias: Tensor | None, head: bool = True
    ) -> Tensor:
        stop = end + ids.shape[1]
        mask = torch.ones(len(ids), stop - start, dtype=torch.long, device=ids.device)
        if bias is not None:
            mask = (bias[:, start:stop] == 0).long()
        cache = {self._cache: _Window(kv, start, end)}
        out = self.model(
            input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, **cache, **self._keep
        )
        logits: Tensor = out.logits
        return logits[:, -1].float() if head else torch.empty(0)
