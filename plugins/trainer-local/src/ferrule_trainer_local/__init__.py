"""The ``local`` trainer: real training of one model in this process with PyTorch, on a CPU or one GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import attrs
from attrs import validators as v

import ferrule

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .trainer import Work

__all__ = ["LocalTrainer", "Lora", "Tiny"]


@attrs.frozen
class Tiny:
    """The shape of a Llama-like model that is made where ``model.path`` is absent; its vocabulary is the tokenizer's.

    ``kv_heads`` is ``heads`` unless given. ``rope_theta`` is small because contexts are short.
    """

    hidden_size: int = attrs.field(default=128, validator=v.ge(2))
    layers: int = attrs.field(default=4, validator=v.ge(1))
    heads: int = attrs.field(default=4, validator=v.ge(1))
    kv_heads: int | None = attrs.field(default=None, validator=v.optional(v.ge(1)))
    intermediate_size: int = attrs.field(default=384, validator=v.ge(1))
    rope_theta: float = attrs.field(default=100.0, validator=v.gt(0.0))
    max_positions: int = attrs.field(default=512, validator=v.ge(2))
    tied: bool = True

    def __attrs_post_init__(self) -> None:
        if self.hidden_size % (2 * self.heads):
            raise ValueError(f"hidden_size {self.hidden_size} must be heads ({self.heads}) times an even number")
        if self.kv_heads and self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")


@attrs.frozen
class Lora:
    """Low-rank adapters (https://arxiv.org/abs/2106.09685) in place of full weights. No ``target_modules``: every
    linear layer but the head.
    """

    rank: int = attrs.field(default=16, validator=v.ge(1))
    alpha: float = attrs.field(default=32.0, validator=v.gt(0.0))
    dropout: float = attrs.field(default=0.0, validator=[v.ge(0.0), v.lt(1.0)])
    target_modules: tuple[str, ...] = ()


class LocalTrainer(ferrule.Trainer, name="local"):
    """Trains full weights or LoRA adapters of any Hugging Face causal model, or of a tiny one made on the spot."""

    provides = frozenset({"logprobs", "token_weights", "cross_entropy"})
    policy_losses = frozenset({"importance_sampling", "ppo", "cross_entropy"})
    optimizers = frozenset({"adamw", "muon"})

    @attrs.frozen
    class Config(ferrule.Trainer.Config):
        """``device`` ``auto`` takes a GPU where there is one. ``dtype`` ``bfloat16`` computes in it; weights stay in
        float32.

        ``threads``: PyTorch's, None leaves them; results repeat bit for bit only on the same number. ``schedule``:
        ``lockstep`` decodes only while every open session waits for a token, so that batches, and with them the last
        bits, do not hang on timing; a session that stays away for ``patience`` seconds holds the others no longer.
        Sessions whose keys agree up to their last colon are of one episode, and only one of them need wait.
        ``continuous`` never waits for anybody. ``micro_batch_tokens`` bounds a micro-batch, padding included.
        ``max_batch``: sessions decoded together, more wait. ``context_length``: the longest context sampled, the
        model's own positions by default.
        """

        tiny: Tiny = Tiny()
        lora: Lora | None = None
        device: Literal["auto", "cpu", "cuda"] = "auto"
        dtype: Literal["float32", "bfloat16"] = "float32"
        threads: int | None = attrs.field(default=None, validator=v.optional(v.ge(1)))
        schedule: Literal["lockstep", "continuous"] = "lockstep"
        patience: float = attrs.field(default=30.0, validator=v.gt(0.0))
        micro_batch_tokens: int = attrs.field(default=8192, validator=v.ge(1))
        max_batch: int = attrs.field(default=256, validator=v.ge(1))
        context_length: int | None = attrs.field(default=None, validator=v.optional(v.ge(2)))

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._work: Work | None = None

    @property
    def work(self) -> Work:
        if self._work is None:
            raise ferrule.TrainerError("the local trainer is not started")
        return self._work

    async def start(self, run: ferrule.RunInfo) -> None:
        from .trainer import Work

        if self._work is not None:
            raise ferrule.TrainerError("the local trainer is started already")
        self._work = await Work.start(self.config, run)
        self.vocab_size = self._work.vocab

    async def close(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            await work.close()

    def sampler(self) -> ferrule.Sampler:
        return self.work.sampler

    async def forward(self, rows: Sequence[ferrule.Row]) -> list[NDArray[np.float32]]:
        return await self.work.run(self.work.learner.logprobs, rows)

    async def forward_backward(self, objective: ferrule.Objective) -> ferrule.StepOutput:
        return await self.work.run(self.work.learner.forward_backward, objective)

    async def optim_step(self, optim: ferrule.OptimParams) -> dict[str, float]:
        return await self.work.run(self.work.optim_step, optim)

    async def reset_optimizer(self) -> None:
        self.work.optimizer = None

    async def publish(self) -> int:
        return await self.work.publish()

    async def save(self, name: str) -> ferrule.Checkpoint:
        return await self.work.run(self.work.save, name)

    async def restore(self, checkpoint: ferrule.Checkpoint) -> None:
        await self.work.restore(checkpoint)

    async def export(self, path: str) -> None:
        await self.work.run(self.work.export, path)
