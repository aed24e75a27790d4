"""What PRPO makes of a batch of rewards."""

from __future__ import annotations

import ferrule_advantage_prpo
import numpy as np
import pytest

import ferrule

Prpo = ferrule_advantage_prpo.Prpo


def estimate(groups: list[list[float]]) -> np.ndarray:
    index = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    return Prpo(Prpo.Config()).estimate(ferrule.RewardBatch(np.concatenate(groups), index))


def test_the_baseline_and_the_scale_are_those_of_the_whole_batch() -> None:
    np.testing.assert_allclose(estimate([[1, 0], [1]]), [0.7071, -1.4142, 0.7071], atol=1e-4)


def test_groups_of_one_are_learned_from() -> None:
    np.testing.assert_allclose(estimate([[1], [0]]), [1, -1], atol=1e-5)
    assert not Prpo.group_baseline


def test_a_batch_of_equal_rewards_gives_exactly_zero() -> None:
    assert not estimate([[0.7, 0.7], [0.7]]).any()
    assert not estimate([[0.7]]).any()


def test_no_trajectories_give_no_advantages() -> None:
    assert len(Prpo(Prpo.Config()).estimate(ferrule.RewardBatch([], []))) == 0


def test_an_eps_of_zero_is_refused() -> None:
    with pytest.raises(ValueError):
        Prpo.Config(eps=0.0)
