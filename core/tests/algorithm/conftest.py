"""Small episodes from strings of token kinds, and plugin classes as a user would write them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import pytest
from attrs import validators as v

import ferrule
from ferrule.algorithm import build_batch
from ferrule.config.schema import FilterConfig

KINDS = {
    "P": ferrule.TokenKind.PROMPT,
    "A": ferrule.TokenKind.ACTION,
    "O": ferrule.TokenKind.OBSERVATION,
    "S": ferrule.TokenKind.SCAFFOLD,
}


class GroupNormal(ferrule.Advantage, name="group_normal"):
    """(r − mean) / (std + 1e-6) per group."""

    group_baseline = True

    def estimate(self, batch: ferrule.RewardBatch) -> np.ndarray:
        return batch.centred / (batch.std() + 1e-6)[batch.index]


class BatchNormal(ferrule.Advantage, name="batch_normal"):
    """Centred within the group, scaled over the batch: everything that enters it moves everybody's advantage."""

    group_baseline = True

    def estimate(self, batch: ferrule.RewardBatch) -> np.ndarray:
        centred = np.where(batch.singleton[batch.index], batch.rewards, batch.centred)
        return centred / (centred.std() + 1e-6)


class Raw(ferrule.Advantage, name="raw"):
    def estimate(self, batch: ferrule.RewardBatch) -> np.ndarray:
        return batch.rewards


class Watch(ferrule.AuxLoss, name="watch"):
    """Cross-entropy on observations."""

    mask = ferrule.Mask.OBSERVATION

    @attrs.frozen
    class Config(ferrule.AuxLoss.Config):
        coef: float = attrs.field(default=0.05, validator=v.ge(0.0))

    def weight(self, row: ferrule.Row, ctx: ferrule.LossContext) -> float:
        return 1.0


class Make:
    """Builders. A segment is a string of kinds, ``PPAASOOSAA``; a trajectory is one string or several."""

    vocab = 11
    GroupNormal, BatchNormal, Raw, Watch = GroupNormal, BatchNormal, Raw, Watch

    def segment(self, kinds: str, seed: int = 0) -> ferrule.Segment:
        random = np.random.default_rng(seed)
        kind = np.array([KINDS[letter] for letter in kinds], np.uint8)
        sampled = kind == ferrule.TokenKind.ACTION
        logprobs = np.where(sampled, -random.uniform(0.5, 3.5, len(kind)), 0.0).astype(np.float32)
        return ferrule.Segment(
            random.integers(0, self.vocab, len(kind)).astype(np.int32),
            kind,
            logprobs,
            np.where(sampled, 3, -1).astype(np.int32),
        )

    def trajectory(
        self, *segments: str, name: str = "agent", reward: float | None = 1.0, seed: int = 0, **more: Any
    ) -> ferrule.Trajectory:
        made = [self.segment(kinds, seed + 100 * i) for i, kinds in enumerate(segments)]
        steps = [
            ferrule.Step(segment, i, found.start(), found.end(), "stop", ferrule.Message("assistant", ""))
            for i, (segment, kinds) in enumerate(zip(made, segments, strict=True))
            for found in re.finditer("A+", kinds)
        ]
        return ferrule.Trajectory(name, steps, made, reward, **more)

    def episode(
        self,
        task: str,
        attempt: int,
        *segments: str,
        reward: float | None = 1.0,
        termination: ferrule.Termination = ferrule.Termination.ENV_DONE,
        failure: ferrule.Failure | None = None,
        name: str = "agent",
        **more: Any,
    ) -> ferrule.Episode:
        seed = ferrule.derive_seed(task, attempt, name) % 2**32
        trajectory = self.trajectory(*(segments or ("PPAA",)), name=name, reward=reward, seed=seed, **more)
        return ferrule.Episode(
            f"{task}-{attempt}", task, attempt, (trajectory,), termination, reward=reward, failure=failure
        )

    def group(self, task: str, rewards: Sequence[float], *segments: str) -> list[ferrule.Episode]:
        return [self.episode(task, attempt, *segments, reward=reward) for attempt, reward in enumerate(rewards)]

    def batch(
        self,
        episodes: Sequence[ferrule.Episode],
        estimator: Any = GroupNormal,
        losses: Sequence[Any] = (),
        **filter: Any,
    ) -> Any:
        roles = estimator if isinstance(estimator, dict) else {"*": estimator}
        return build_batch(
            episodes,
            advantage={role: cls(cls.Config()) for role, cls in roles.items()},
            filter=FilterConfig(**filter),
            losses=losses,
            vocab_size=self.vocab,
        )

    def watch(self, coef: float = 0.05) -> Watch:
        return Watch(Watch.Config(coef=coef))


@pytest.fixture(scope="session")
def make() -> Make:
    return Make()
