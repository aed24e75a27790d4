"""REINFORCE: the reward itself, without a baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ferrule

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Reinforce"]


class Reinforce(ferrule.Advantage, name="reinforce"):
    """A = r (Williams 1992, "Simple statistical gradient-following algorithms", with baseline 0).

    It learns from every attempt with a reward other than 0, from a group of one too.
    """

    def estimate(self, batch: ferrule.RewardBatch) -> NDArray[np.float64]:
        """float64[N], one per trajectory of *batch*."""
        return batch.rewards.copy()
