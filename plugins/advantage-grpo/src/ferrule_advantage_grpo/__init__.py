"""GRPO: each reward against the others of its group, in units of the group's own spread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs
import numpy as np
from attrs import validators as v

import ferrule

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Grpo"]


class Grpo(ferrule.Advantage, name="grpo"):
    """A = (r − mean) / (std + eps), per group: outcome supervision in GRPO (arXiv 2402.03300, section 4.1.2).

    With ``scale = "none"``, A = r − mean, as in Dr. GRPO (arXiv 2503.20783, section 3.2), which leaves out the
    division because it weighs groups by how easy or hard they are.

    A group whose rewards are all equal gives exactly 0, and so does a group of one unless ``singleton = "reward"``.
    """

    group_baseline = True

    @attrs.frozen
    class Config(ferrule.Advantage.Config):
        """Options of ``grpo``.

        eps        added to the standard deviation (TRL uses 1e-4)
        ddof       0: the population's standard deviation; 1: the sample's, as verl and TRL take it
        scale      ``std``, or ``none`` for Dr. GRPO
        singleton  what a group of one gets: ``zero``, or ``reward``: r / (1 + eps), or r where ``scale`` is ``none``
        """

        eps: float = attrs.field(default=1e-6, validator=v.ge(0.0))
        ddof: Literal[0, 1] = attrs.field(default=0, validator=v.in_((0, 1)))
        scale: Literal["std", "none"] = attrs.field(default="std", validator=v.in_(("std", "none")))
        singleton: Literal["zero", "reward"] = attrs.field(default="zero", validator=v.in_(("zero", "reward")))

    def estimate(self, batch: ferrule.RewardBatch) -> NDArray[np.float64]:
        """float64[N], one per trajectory of *batch*."""
        options: Grpo.Config = self.config
        centred, divisor = batch.centred, np.ones(len(batch.size))
        if options.scale == "std":
            # Flat groups are 0 whatever divides them; 1 keeps 0/0 away where eps is 0.
            divisor = np.where(batch.flat, 1.0, batch.std(options.ddof)) + options.eps
        if options.singleton == "reward":
            centred = np.where(batch.singleton[batch.index], batch.rewards, centred)
        return centred / divisor[batch.index]
