"""One role's rewards to its advantages, over all of its groups at once, and the metrics of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from ..errors import FerruleError
from ..kinds import Advantage, RewardBatch
from .rows import Source

ZERO = 1e-8
"""An advantage no larger than this teaches nothing."""


@attrs.frozen(eq=False)
class Estimated:
    """A role's N trajectories in G groups.

    advantages  float64[N]
    own         bool[N], True where the trajectory carries precomputed advantages, which are its own
    uniform     bool[G], True where no trajectory of the group has an advantage above 1e-8
    """

    advantages: NDArray[np.float64]
    own: NDArray[np.bool_]
    uniform: NDArray[np.bool_]
    metrics: dict[str, float]


def group_index(keys: Sequence[object]) -> NDArray[np.int64]:
    """int64[N]: the group of each key, numbered by first appearance."""
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)


def estimate_role(
    role: str,
    estimator: Advantage,
    numbers: Sequence[int],
    sources: Sequence[Source],
    rewards: NDArray[np.float64],
    own: Mapping[int, NDArray[np.float64]],
) -> tuple[NDArray[np.int64], NDArray[np.int64], Estimated]:
    """Advantages of the trajectories *numbers*, all of one role.

    Answers them sorted by group, int64[N]; where each group begins in that order, int64[G]; and what was estimated,
    in that order. Trajectories with precomputed advantages (*own*) stay out of the baseline of the others.
    """
    members = np.asarray(numbers, np.int64)
    index = group_index([sources[i][0] for i in numbers])
    order = np.argsort(index, kind="stable")
    members, index = members[order], index[order]
    starts = np.flatnonzero(np.diff(index, prepend=-1))
    is_own = np.array([i in own for i in members.tolist()], bool)

    batch = RewardBatch(rewards[members[~is_own]], group_index(index[~is_own].tolist()))
    advantages = np.array([own[i].mean() if i in own else 0.0 for i in members.tolist()])
    size = np.abs(np.array([np.abs(own[i]).max() if i in own else 0.0 for i in members.tolist()]))
    if len(batch):
        found = _estimate(role, estimator, batch, [sources[i] for i in members[~is_own]])
        advantages[~is_own], size[~is_own] = found, np.abs(found)
    uniform = np.maximum.reduceat(size, starts) <= ZERO
    metrics = _metrics(role, rewards[members], index, advantages, size, uniform)
    return members, starts, Estimated(advantages, is_own, uniform, metrics)


def _estimate(role: str, estimator: Advantage, batch: RewardBatch, sources: Sequence[Source]) -> NDArray[np.float64]:
    name = estimator.name or type(estimator).__name__
    found = np.asarray(estimator.estimate(batch), np.float64)
    if found.shape != (len(batch),):
        raise FerruleError(
            f"advantage {name!r} gave an array of shape {list(found.shape)} for the {len(batch)} trajectories of {role!r}"
        )
    bad = np.flatnonzero(~np.isfinite(found))
    if len(bad):
        task_id, attempt = sources[bad[0]]
        raise FerruleError(f"advantage {name!r} gave {found[bad[0]]} for task {task_id!r}, attempt {attempt}, {role}")
    return found


def _metrics(
    role: str,
    rewards: NDArray[np.float64],
    index: NDArray[np.int64],
    advantages: NDArray[np.float64],
    size: NDArray[np.float64],
    uniform: NDArray[np.bool_],
) -> dict[str, float]:
    """``reward/…``, ``advantage/…`` and ``groups/…`` of the role, over everything that entered the baseline."""
    starts = np.flatnonzero(np.diff(index, prepend=-1))
    groups = np.diff(starts, append=len(index))
    metrics = _summary(f"advantage/{role}", advantages)
    metrics[f"advantage/{role}/fraction_zero"] = float((size <= ZERO).mean())
    metrics[f"advantage/{role}/singletons"] = float(np.count_nonzero(groups == 1))

    known = np.isfinite(rewards)
    batch = RewardBatch(rewards[known], group_index(index[known].tolist()))
    mean, std = batch.mean, batch.std()
    if len(batch):
        metrics |= _summary(f"reward/{role}", batch.rewards)
        for name, values in (("mean", mean), ("std", std)):
            for percent, value in zip((10, 50, 90), np.percentile(values, (10, 50, 90)), strict=True):
                metrics[f"groups/{role}/{name}/p{percent}"] = float(value)

    # A group without any reward (all its advantages precomputed) is neither easy nor hard; it can only be flat.
    group_mean = np.full(len(groups), 0.5)
    group_mean[np.unique(index[known])] = mean
    easy, hard = uniform & (group_mean >= 1.0), uniform & (group_mean <= 0.0)
    for name, which in (
        ("informative", ~uniform),
        ("too_easy", easy),
        ("too_hard", hard),
        ("flat", uniform & ~easy & ~hard),
    ):
        metrics[f"groups/{role}/{name}"] = float(np.count_nonzero(which))
    metrics[f"groups/{role}/total"] = float(len(groups))
    return metrics


def _summary(prefix: str, values: NDArray[np.float64]) -> dict[str, float]:
    return {
        f"{prefix}/mean": float(values.mean()),
        f"{prefix}/std": float(values.std()),
        f"{prefix}/min": float(values.min()),
        f"{prefix}/max": float(values.max()),
    }
