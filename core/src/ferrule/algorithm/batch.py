"""Episodes to a batch that can be learned from: what is invalid leaves first, advantages are taken, what teaches
nothing leaves last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from ..config.schema import FilterConfig
from ..data import Episode, Row, Termination, TokenKind, Trajectory
from ..errors import FerruleError
from ..kinds import Advantage, AuxLoss
from .estimate import estimate_role
from .masks import tokens_of
from .rows import Source, rows_of

COMPACT = frozenset(
    {
        Termination.MAX_PROMPT_LENGTH,
        Termination.MAX_RESPONSE_LENGTH,
        Termination.MAX_STEPS,
        Termination.MALFORMED_REPLY,
        Termination.TIMEOUT,
        Termination.ERROR,
    }
)
"""Terminations whose trajectories compact filtering masks."""


@attrs.frozen(eq=False)
class Batch:
    """What one optimizer step learns from: N trajectories in R rows.

    rewards         float64[N]; NaN for a trajectory that has no reward and carries its own advantages
    advantages      float64[N]; for a trajectory with an advantage per token, their mean
    token_advantages  float64[number of action tokens] by trajectory, for those that carry one per token
    row_trajectory  int64[R], the trajectory of each row, ascending
    policy          bool[N], whether the policy learns from it and counts it in its denominators; an auxiliary loss
                    may, all the same
    sources         (task id, attempt) of each trajectory
    dropped         trajectories that left, by reason; a failed episode that left none counts as one
    """

    trajectories: tuple[Trajectory, ...]
    rewards: NDArray[np.float64]
    advantages: NDArray[np.float64]
    rows: tuple[Row, ...]
    row_trajectory: NDArray[np.int64]
    policy: NDArray[np.bool_]
    dropped: Counter[str] = attrs.field(factory=Counter)
    metrics: dict[str, float] = attrs.field(factory=dict)
    sources: tuple[Source, ...] = ()
    token_advantages: Mapping[int, NDArray[np.float64]] = attrs.field(factory=dict)

    def __len__(self) -> int:
        return len(self.trajectories)


def build_batch(
    episodes: Iterable[Episode],
    *,
    advantage: Mapping[str, Advantage],
    filter: FilterConfig,
    losses: Sequence[AuxLoss] = (),
    vocab_size: int,
    need_logprobs: bool = True,
) -> Batch:
    """Group, estimate, filter and lay out *episodes*.

    *advantage* maps a role (trajectory name) to its estimator; ``*`` stands for every other role. A group is all
    attempts at one task by one role. *losses* are the auxiliary ones; *need_logprobs* is False where the rollout's
    logprobs will not be read.

    What leaves, each under its reason, in this order:

    before the baseline is taken, as if it had never been played
        the episode's failure (``sandbox_failed``, …); ``compact/<termination>``; ``empty_response``: nothing was
        sampled; ``invalid_token``: an id outside the vocabulary; ``invalid_logprob``: not finite on an action token
    after it, so that siblings keep their advantages
        ``too_few_attempts``: fewer than ``min_trajectories`` in the group of an estimator with a group baseline;
        ``uniform_group``: every |advantage| of the group ≤ 1e-8, and no auxiliary loss has a token in it. Where one
        has, the group stays for that loss alone.

    Raises FerruleError for a reward that is missing or not finite, a role without an estimator, an estimator that
    gives something else than one finite advantage per trajectory, and precomputed advantages that do not fit.
    """
    dropped: Counter[str] = Counter()
    kept: list[Trajectory] = []
    sources: list[Source] = []
    for episode in episodes:
        if episode.failure is not None:
            dropped[str(episode.failure)] += max(len(episode.trajectories), 1)
            continue
        for trajectory in episode.trajectories:
            reason = _invalid(episode, trajectory, filter, vocab_size, need_logprobs)
            if reason:
                dropped[reason] += 1
            else:
                kept.append(trajectory)
                sources.append((episode.task_id, episode.attempt))

    rewards = np.array([_reward(t, s) for t, s in zip(kept, sources, strict=True)], np.float64)
    own = {
        i: _own_advantages(t, s) for i, (t, s) in enumerate(zip(kept, sources, strict=True)) if t.advantages is not None
    }
    advantages = np.array([own[i].mean() if i in own else 0.0 for i in range(len(kept))], np.float64)
    keep, policy = np.ones(len(kept), bool), np.ones(len(kept), bool)
    active = [loss for loss in losses if loss.config.coef > 0.0]
    metrics: dict[str, float] = {}

    by_role: dict[str, list[int]] = {}
    for i, trajectory in enumerate(kept):
        by_role.setdefault(trajectory.name, []).append(i)
    for role, numbers in by_role.items():
        estimator = advantage.get(role, advantage.get("*"))
        if estimator is None:
            raise FerruleError(
                f"no advantage estimator for role {role!r}: give one under this name, or one for every role"
            )
        members, starts, found = estimate_role(role, estimator, numbers, sources, rewards, own)
        advantages[members] = found.advantages
        metrics |= found.metrics
        for group, group_own, uniform in zip(
            np.split(members, starts[1:]), np.split(found.own, starts[1:]), found.uniform, strict=True
        ):
            estimated = group[~group_own]
            if estimator.group_baseline and 0 < len(estimated) < filter.min_trajectories:
                keep[estimated] = False
                dropped["too_few_attempts"] += len(estimated)
                group = group[group_own]
            if not len(group) or not uniform or not filter.drop_uniform:
                continue
            if _learned_elsewhere(active, [kept[i] for i in group], [sources[i] for i in group]):
                policy[group] = False
            else:
                keep[group] = False
                dropped["uniform_group"] += len(group)

    left = np.flatnonzero(keep)
    trajectories = tuple(kept[i] for i in left)
    left_sources = tuple(sources[i] for i in left)
    rows = tuple(rows_of(trajectories, left_sources))
    metrics |= _row_metrics(trajectories, rows)
    metrics |= {f"dropped/{reason}": float(count) for reason, count in sorted(dropped.items())}
    return Batch(
        trajectories,
        rewards[left],
        advantages[left],
        rows,
        np.array([row.trajectory for row in rows], np.int64),
        policy[left],
        dropped,
        metrics,
        left_sources,
        {new: own[old] for new, old in enumerate(left.tolist()) if old in own and np.ndim(kept[old].advantages)},
    )


def _invalid(
    episode: Episode, trajectory: Trajectory, filter: FilterConfig, vocab_size: int, need_logprobs: bool
) -> str | None:
    """The reason for which *trajectory* is no data at all, or None."""
    if filter.compact and episode.termination in COMPACT:
        return f"compact/{episode.termination}"
    if not any((segment.kind[1:] == TokenKind.ACTION).any() for segment in trajectory.segments):
        return "empty_response"
    if any(len(s) and (int(s.ids.min()) < 0 or int(s.ids.max()) >= vocab_size) for s in trajectory.segments):
        return "invalid_token"
    if need_logprobs and not all(
        np.isfinite(s.logprobs[s.kind == TokenKind.ACTION]).all() for s in trajectory.segments
    ):
        return "invalid_logprob"
    return None


def _reward(trajectory: Trajectory, source: Source) -> float:
    reward = trajectory.reward
    if reward is None:
        if trajectory.advantages is not None:
            return float("nan")
        raise FerruleError(f"{_place(trajectory, source)}: it did not fail, and has no reward")
    if not np.isfinite(reward):
        raise FerruleError(f"{_place(trajectory, source)}: its reward is {float(reward)}; a reward is a finite number")
    return float(reward)


def _own_advantages(trajectory: Trajectory, source: Source) -> NDArray[np.float64]:
    """float64[number of action tokens], of a trajectory that carries precomputed advantages."""
    count = sum(int(np.count_nonzero(segment.kind == TokenKind.ACTION)) for segment in trajectory.segments)
    values = np.asarray(trajectory.advantages, np.float64)
    if values.shape not in ((), (count,)):
        raise FerruleError(
            f"{_place(trajectory, source)}: precomputed advantages of shape {list(values.shape)} for {count} action tokens; "
            "give one number, or one per action token"
        )
    if not np.isfinite(values).all():
        raise FerruleError(f"{_place(trajectory, source)}: a precomputed advantage is not finite")
    return np.broadcast_to(values, (count,))


def _learned_elsewhere(
    losses: Sequence[AuxLoss], trajectories: Sequence[Trajectory], sources: Sequence[Source]
) -> bool:
    """Whether an auxiliary loss has a token to learn in any of *trajectories*."""
    return bool(losses) and any(tokens_of(loss, row).any() for row in rows_of(trajectories, sources) for loss in losses)


def _row_metrics(trajectories: Sequence[Trajectory], rows: Sequence[Row]) -> dict[str, float]:
    metrics = {}
    for role in dict.fromkeys(trajectory.name for trajectory in trajectories):
        steps = sum(len(trajectory.steps) for trajectory in trajectories if trajectory.name == role)
        own = [row for row in rows if row.role == role]
        metrics[f"rows/{role}/total"] = float(len(own))
        metrics[f"rows/{role}/tokens"] = float(sum(len(row) for row in own))
        metrics[f"rows/{role}/steps_per_row"] = steps / len(own)
    return metrics


def _place(trajectory: Trajectory, source: Source) -> str:
    return f"task {source[0]!r}, attempt {source[1]}, {trajectory.name}"
