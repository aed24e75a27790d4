"""RLOO: each reward against the mean of the other rewards of its group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs
import numpy as np
from attrs import validators as v

import ferrule

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Rloo"]


class Rloo(ferrule.Advantage, name="rloo"):
    """A_i = r_i − mean of the others = n/(n−1) · (r_i − mean), per group of n (arXiv 2402.14740, section 3.2).

    A group whose rewards are all equal gives exactly 0, and so does a group of one unless ``singleton = "reward"``.
    """

    group_baseline = True

    @attrs.frozen
    class Config(ferrule.Advantage.Config):
        """Options of ``rloo``. ``singleton``: what a group of one gets, ``zero`` or its ``reward``."""

        singleton: Literal["zero", "reward"] = attrs.field(default="zero", validator=v.in_(("zero", "reward")))

    def estimate(self, batch: ferrule.RewardBatch) -> NDArray[np.float64]:
        """float64[N], one per trajectory of *batch*."""
        factor = batch.size / np.maximum(batch.size - 1, 1)
        advantages = batch.centred * factor[batch.index]
        if self.config.singleton == "reward":
            advantages = np.where(batch.singleton[batch.index], batch.rewards, advantages)
        return advantages
