"""PRPO: each reward against the mean of the whole batch, in units of the batch's spread; groups play no part."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import numpy as np
from attrs import validators as v

import ferrule

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Prpo"]


class Prpo(ferrule.Advantage, name="prpo"):
    """A = (r − batch mean) / (batch std + eps), over all trajectories of the role.

    Introduced by the rLLM project for continual learning with one attempt per task
    (https://rllm-project.com/post.html?post=continual_learning.md). The standard deviation is the population's. A
    batch whose rewards are all equal gives exactly 0.
    """

    @attrs.frozen
    class Config(ferrule.Advantage.Config):
        """Options of ``prpo``. ``eps`` is added to the standard deviation."""

        eps: float = attrs.field(default=1e-6, validator=v.gt(0.0))

    def estimate(self, batch: ferrule.RewardBatch) -> NDArray[np.float64]:
        """float64[N], one per trajectory of *batch*."""
        rewards = batch.rewards
        if not len(rewards) or rewards.max() == rewards.min():
            return np.zeros(len(rewards))
        scaled: NDArray[np.float64] = (rewards - rewards.mean()) / (rewards.std() + self.config.eps)
        return scaled
