"""Trainers: hold the weights, sample from them and change them."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import attrs

from ..data import Checkpoint, Objective, OptimParams, Row, RunInfo, SamplingParams, StepOutput
from .base import Plugin, hookspec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@attrs.frozen(eq=False)
class Sample:
    """One completion of N tokens.

    ids        int32[N], the stop token included where one was sampled
    logprobs   float32[N], log p at temperature 1 under the weights that sampled, whatever the sampling temperature
    versions   int32[N], the weight version that sampled each
    stop_reason  ``stop`` or ``length``
    """

    ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    stop_reason: Literal["stop", "length"]


class SamplerSession(abc.ABC):
    """One conversation with one cache. Cancelling a request leaves the session usable."""

    concurrent: ClassVar[bool] = False
    """Whether several requests may be under way at once; else they are made one at a time."""

    @abc.abstractmethod
    async def sample(self, prompt: NDArray[np.int32], params: SamplingParams) -> Sample:
        """Complete *prompt*, int32[T], the whole context. What it shares with the cache is not computed again.

        Raises EpisodeFailed(engine_failed) where the engine broke, TrainerError where prompt and ``max_tokens`` exceed
        ``Sampler.context_length``.
        """


class Sampler(abc.ABC):
    """Samples from the last published weights."""

    context_length: int

    @abc.abstractmethod
    def open(self, key: str, *, seed: int) -> AbstractAsyncContextManager[SamplerSession]:
        """A session named *key*. Its randomness is a function of *seed*, the number of the request in the session,
        and the token's position alone.
        """


class Trainer(Plugin, abc.ABC):
    """Real training of one model. Methods are awaited one at a time, except sampling, which runs in many sessions at
    once.
    """

    provides: ClassVar[frozenset[str]] = frozenset()
    """What it can do beyond policy losses that know only advantages: ``logprobs`` (forward), ``token_weights``,
    ``cross_entropy`` terms beside a policy loss, ``kl``, ``entropy``, ``entropy_grad``, ``torch_loss``.
    """

    policy_losses: ClassVar[frozenset[str]] = frozenset()
    optimizers: ClassVar[frozenset[str]] = frozenset({"adamw"})

    vocab_size: int

    @abc.abstractmethod
    async def start(self, run: RunInfo) -> None:
        """Load or make the model. Nothing of it is loaded before. Raises TrainerError saying what is missing."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Free all; harmless when not started or called twice."""

    @abc.abstractmethod
    def sampler(self) -> Sampler:
        """The one sampler of this trainer."""

    @abc.abstractmethod
    async def forward(self, rows: Sequence[Row]) -> list[NDArray[np.float32]]:
        """float32[T] per row: log p of each token under the current weights; position 0 is 0."""

    @abc.abstractmethod
    async def forward_backward(self, objective: Objective) -> StepOutput:
        """Accumulate the gradient of *objective*, summed, split into micro-batches as the trainer likes."""

    @abc.abstractmethod
    async def optim_step(self, optim: OptimParams) -> dict[str, float]:
        """Apply and clear the accumulated gradient; ``grad_norm`` before clipping among the metrics."""

    @abc.abstractmethod
    async def reset_optimizer(self) -> None:
        """Forget the optimizer's state: a new stage begins."""

    @abc.abstractmethod
    async def publish(self) -> int:
        """Make the current weights those of the sampler, dropping caches of older ones; the new weight version."""

    @abc.abstractmethod
    async def save(self, name: str) -> Checkpoint:
        """Write weights, optimizer, version and random state under the run's folder, atomically."""

    @abc.abstractmethod
    async def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from *checkpoint*, bit for bit. Raises CheckpointError where it is incomplete or of another model."""

    async def export(self, path: str) -> None:
        """Write the weights as a Hugging Face folder that others load. Raises TrainerError where the trainer has no
        weights at hand.
        """
        from ..errors import TrainerError

        raise TrainerError(f"trainer {self.name!r} cannot export weights to {path}")


class TrainerSpecs:
    @hookspec(firstresult=True)
    def ferrule_trainer(self, ref: Any) -> type[Trainer] | None:
        """The trainer class that *ref* (:class:`ferrule.plugins.Ref`) names, or None where it is not yours."""
