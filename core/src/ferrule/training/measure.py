"""Metrics of what was played: of an RL step's episodes, and of an evaluation's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ..algorithm import accuracy, rows_of
from ..data import Episode, Mask, StepOutput, TokenKind
from ..kinds import Trainer

CE_EPISODES = 64
"""Observation cross-entropy is taken over the first so many episodes of an evaluation."""


def played(episodes: Sequence[Episode], prefix: str) -> dict[str, float]:
    """Over *episodes*: ``<prefix>failed``, and means over those that did not fail: ``score/<name>``, ``messages``,
    ``tool_calls``, ``tool_errors``, ``cut`` and what else they count; ``termination/<how>`` as fractions of all."""
    out: dict[str, float] = {f"{prefix}failed": float(sum(e.failed for e in episodes))}
    sound = [e for e in episodes if not e.failed]
    for name, values in sorted(_columns(e.scores for e in sound).items()):
        out[f"{prefix}score/{name}"] = float(np.mean(values))
    for name, values in sorted(_columns(e.metrics for e in sound).items()):
        out[f"{prefix}{name}"] = float(np.mean(values))
    for how, count in sorted(Counter(str(e.termination) for e in episodes).items()):
        out[f"{prefix}termination/{how}"] = count / len(episodes)
    return out


def _columns(tables: Iterable[Mapping[str, float]]) -> dict[str, list[float]]:
    columns: dict[str, list[float]] = {}
    for table in tables:
        for name, value in table.items():
            columns.setdefault(name, []).append(float(value))
    return columns


def tokens(episodes: Sequence[Episode]) -> dict[str, float]:
    """``tokens/sampled`` and ``tokens/prompt`` (all that was fed, not sampled), ``rows/steps_per_row``, over all that
    was played.
    """
    segments = [s for e in episodes for t in e.trajectories for s in t.segments if len(s)]
    steps = sum(len(t.steps) for e in episodes for t in e.trajectories)
    sampled = sum(int(np.count_nonzero(s.kind == TokenKind.ACTION)) for s in segments)
    return {
        "tokens/sampled": float(sampled),
        "tokens/prompt": float(sum(len(s) for s in segments) - sampled),
        "rows/steps_per_row": steps / len(segments) if segments else 0.0,
    }


def evaluated(mode: str, episodes: Sequence[Episode], meant: int) -> dict[str, float]:
    """``eval/<mode>/reward`` over the attempts that have one, ``accuracy`` and ``no_step_rate`` over all that were
    *meant* to run, and the rest of :func:`played`.
    """
    prefix = f"eval/{mode}/"
    rewards = [e.reward for e in episodes if e.reward is not None]
    out = {f"{prefix}reward": float(np.mean(rewards))} if rewards else {}
    out |= {f"{prefix}{name}": value for name, value in accuracy(episodes, meant=meant).items()}
    return out | played(episodes, prefix)


class Running:
    """Figures of episodes while they come in, each at the same cost: ``accuracy`` over all, ``reward`` over those
    that have one.
    """

    def __init__(self) -> None:
        self._episodes = self._rewarded = 0
        self._right = self._reward = 0.0

    def add(self, episode: Episode) -> dict[str, float]:
        """Count *episode*; the figures with it."""
        self._episodes += 1
        self._right += accuracy([episode])["accuracy"]
        if episode.reward is not None:
            self._rewarded += 1
            self._reward += episode.reward
        figures = {"reward": self._reward / self._rewarded} if self._rewarded else {}
        return {**figures, "accuracy": self._right / self._episodes}


def of_trainer(output: StepOutput) -> dict[str, float]:
    """What the backend measured itself, under ``trainer/`` where it has no path of its own."""
    return {name if "/" in name else f"trainer/{name}": value for name, value in output.metrics.items()}


async def observation_ce(trainer: Trainer, episodes: Sequence[Episode]) -> float | None:
    """Mean −log p of the observation tokens of *episodes* under the current weights, in nats; None where there are
    none.
    """
    some = [e for e in episodes if not e.failed][:CE_EPISODES]
    rows = [
        row for row in rows_of([t for e in some for t in e.trajectories]) if Mask.OBSERVATION.of(row.kind)[1:].any()
    ]
    if not rows:
        return None
    logprobs = await trainer.forward(rows)
    total = count = 0.0
    for row, logp in zip(rows, logprobs, strict=True):
        mask = Mask.OBSERVATION.of(row.kind)
        mask[0] = False
        total -= float(logp[mask].sum(dtype=np.float64))
        count += int(mask.sum())
    return total / count
