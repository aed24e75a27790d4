"""What REINFORCE makes of rewards."""

from __future__ import annotations

import ferrule_advantage_reinforce
import numpy as np

import ferrule

REINFORCE = ferrule_advantage_reinforce.Reinforce(ferrule_advantage_reinforce.Reinforce.Config())


def test_the_advantage_is_the_reward_whatever_the_group() -> None:
    batch = ferrule.RewardBatch(np.array([1.0, 0.25, -0.5, 0.7, 0.7]), np.array([0, 0, 1, 2, 2]))
    assert REINFORCE.estimate(batch).tolist() == [1.0, 0.25, -0.5, 0.7, 0.7]


def test_the_batch_keeps_its_own_rewards() -> None:
    batch = ferrule.RewardBatch(np.array([1.0, 0.5]), np.array([0, 0]))
    REINFORCE.estimate(batch)[:] = 0.0
    assert batch.rewards.tolist() == [1.0, 0.5]


def test_it_takes_no_baseline_and_so_learns_from_groups_of_one() -> None:
    assert not REINFORCE.group_baseline
