"""Small parameter sets that cross the border between the core and its plugins."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import attrs
from attrs import validators as v


def derive_seed(*parts: object) -> int:
    """A seed in [0, 2**63) that depends on every part and on nothing else (run seed, step, task, attempt, …)."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


@attrs.frozen
class SamplingParams:
    """How completions are drawn. ``temperature`` 0 is greedy. ``max_tokens`` bounds one model message."""

    temperature: float = attrs.field(default=1.0, validator=v.ge(0.0))
    top_p: float = attrs.field(default=1.0, validator=[v.gt(0.0), v.le(1.0)])
    top_k: int = attrs.field(default=0, validator=v.ge(0))
    max_tokens: int = attrs.field(default=1024, validator=v.ge(1))
    stop_ids: frozenset[int] = attrs.field(default=frozenset(), converter=frozenset)


@attrs.frozen
class OptimParams:
    """One optimizer step. ``name`` is ``adamw`` or another that the trainer lists in its ``optimizers``.

    With ``muon`` (https://kellerjordan.github.io/posts/muon/) ``lr`` is for the hidden matrices, ``adamw_lr`` for all
    else. ``max_grad_norm`` clips the global norm; 0 is off.
    """

    name: str = "adamw"
    lr: float = attrs.field(default=1e-4, validator=v.gt(0.0))
    adamw_lr: float = attrs.field(default=2e-3, validator=v.gt(0.0))
    betas: tuple[float, float] = attrs.field(
        default=(0.9, 0.95), validator=v.deep_iterable(v.and_(v.ge(0.0), v.lt(1.0)))
    )
    eps: float = attrs.field(default=1e-8, validator=v.gt(0.0))
    weight_decay: float = attrs.field(default=0.0, validator=v.ge(0.0))
    max_grad_norm: float = attrs.field(default=1.0, validator=v.ge(0.0))


@attrs.frozen
class ModelSpec:
    """The model of a run.

    ``path`` is a Hugging Face folder of weights, or a name that the trainer's service knows; None where the trainer
    makes the model from its own section. ``tokenizer`` is a Hugging Face folder with the chat template; ``path``
    where absent. ``id`` is the model's public id (``Qwen/Qwen3-8B``), by which ``use = "auto"`` finds a renderer.
    """

    path: str | None = None
    tokenizer: str | None = None
    id: str | None = None

    @property
    def tokenizer_path(self) -> str | None:
        return self.tokenizer or self.path


@attrs.frozen
class RunInfo:
    """What a plugin may know of the run it serves. ``dir`` is where it may write."""

    id: str
    dir: Path
    seed: int
    model: ModelSpec
    config_dir: Path = Path()


@attrs.frozen
class Checkpoint:
    """A saved state: ``path`` is its folder or the service's name for it; ``step`` the optimizer steps behind it."""

    path: str
    step: int = 0
    metadata: dict[str, Any] = attrs.field(factory=dict)
