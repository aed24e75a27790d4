"""Advantage estimators: rewards of groups to one advantage per trajectory."""

from __future__ import annotations

import abc
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .base import Plugin, hookspec

if TYPE_CHECKING:
    from numpy.typing import NDArray


class RewardBatch:
    """The rewards of one role over all groups of a batch: N trajectories in G groups.

    rewards  float64[N], finite
    index    int64[N], the group of each trajectory, 0 … G-1, ascending
    size, mean  float64[G] / int64[G], per group
    flat     bool[G], True where all rewards of the group are equal (a group of one is flat)
    centred  float64[N], reward minus its group's mean, exactly 0 in flat groups
    """

    def __init__(self, rewards: NDArray[np.float64], index: NDArray[np.int64]) -> None:
        self.rewards = np.asarray(rewards, np.float64)
        self.index = np.asarray(index, np.int64)

    def __len__(self) -> int:
        return len(self.rewards)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """int64[G], where each group begins."""
        return np.flatnonzero(np.diff(self.index, prepend=-1))

    @cached_property
    def size(self) -> NDArray[np.int64]:
        return np.diff(self.starts, append=len(self.index))

    @cached_property
    def mean(self) -> NDArray[np.float64]:
        return np.add.reduceat(self.rewards, self.starts) / self.size if len(self) else np.zeros(0)

    @cached_property
    def flat(self) -> NDArray[np.bool_]:
        if not len(self):
            return np.zeros(0, bool)
        flat: NDArray[np.bool_] = np.maximum.reduceat(self.rewards, self.starts) == np.minimum.reduceat(
            self.rewards, self.starts
        )
        return flat

    @cached_property
    def singleton(self) -> NDArray[np.bool_]:
        """bool[G], True for groups of one."""
        single: NDArray[np.bool_] = self.size == 1
        return single

    @cached_property
    def centred(self) -> NDArray[np.float64]:
        return np.where(self.flat[self.index], 0.0, self.rewards - self.mean[self.index])

    def std(self, ddof: int = 0) -> NDArray[np.float64]:
        """float64[G], per group; 0 in flat groups."""
        if not len(self):
            return np.zeros(0)
        return np.sqrt(np.add.reduceat(self.centred**2, self.starts) / np.maximum(self.size - ddof, 1))


class Advantage(Plugin, abc.ABC):
    """An advantage estimator. One instance serves one role; it keeps no state between batches."""

    group_baseline: ClassVar[bool] = False
    """True where the baseline is taken within the group: such an estimator learns nothing from a group of one."""

    @abc.abstractmethod
    def estimate(self, batch: RewardBatch) -> NDArray[np.float64]:
        """float64[N]: one advantage per trajectory of *batch*, finite. Called once per role and optimizer step."""


class AdvantageSpecs:
    @hookspec(firstresult=True)
    def ferrule_advantage(self, ref: Any) -> type[Advantage] | None:
        """The estimator class that *ref* (:class:`ferrule.plugins.Ref`) names, or None where it is not yours."""


__all__ = ["Advantage", "AdvantageSpecs", "RewardBatch"]
