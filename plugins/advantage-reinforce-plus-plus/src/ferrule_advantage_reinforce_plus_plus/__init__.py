"""REINFORCE++ with baseline: each reward against its group's mean, in units of the whole batch's spread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs
import numpy as np
from attrs import validators as v

import ferrule

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ReinforcePlusPlusBaseline"]


class ReinforcePlusPlusBaseline(ferrule.Advantage, name="reinforce_plus_plus_baseline"):
    """A = (r − group mean) / (std of all centred rewards of the role + eps) (arXiv 2501.03262, the variant with
    baseline).

    The scale is one for all groups, so a group with a small spread stays small, where GRPO would blow it up. The
    standard deviation is the population's. A group whose rewards are all equal gives exactly 0, and so does a group
    of one unless ``singleton = "reward"``.
    """

    group_baseline = True

    @attrs.frozen
    class Config(ferrule.Advantage.Config):
        """Options of ``reinforce_plus_plus_baseline``.

        eps        added to the standard deviation
        singleton  what stands for the centred reward of a group of one: ``zero``, or its ``reward``
        """

        eps: float = attrs.field(default=1e-6, validator=v.gt(0.0))
        singleton: Literal["zero", "reward"] = attrs.field(default="zero", validator=v.in_(("zero", "reward")))

    def estimate(self, batch: ferrule.RewardBatch) -> NDArray[np.float64]:
        """float64[N], one per trajectory of *batch*."""
        centred = batch.centred
        if self.config.singleton == "reward":
            centred = np.where(batch.singleton[batch.index], batch.rewards, centred)
        return centred / (centred.std() + self.config.eps) if len(batch) else centred
