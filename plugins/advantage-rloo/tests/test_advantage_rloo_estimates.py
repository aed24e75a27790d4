"""What RLOO makes of groups of rewards."""

from __future__ import annotations

import ferrule_advantage_rloo
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ferrule


def estimate(groups: list[list[float]], **options: object) -> np.ndarray:
    index = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    batch = ferrule.RewardBatch(np.concatenate(groups), index)
    return ferrule_advantage_rloo.Rloo(ferrule_advantage_rloo.Rloo.Config(**options)).estimate(batch)


def test_each_reward_stands_against_the_mean_of_the_others() -> None:
    np.testing.assert_allclose(estimate([[1, 0, 0]]), [1, -0.5, -0.5], atol=1e-12)


def test_it_gives_the_values_of_verl_core_algos() -> None:
    np.testing.assert_allclose(estimate([[1, 0, 0.5], [1, 1, 0]]), [0.75, -0.75, 0, 0.5, 0.5, -1], atol=1e-12)


def test_equal_rewards_give_exactly_zero() -> None:
    assert not estimate([[0.7, 0.7, 0.7], [0.1] * 10, [3.0]]).any()


def test_a_lone_attempt_gets_nothing_unless_asked_for() -> None:
    assert estimate([[1.0], [1.0, 0.0]])[0] == 0.0
    assert estimate([[0.6], [1.0, 0.0]], singleton="reward").tolist() == [0.6, 1.0, -1.0]


def test_no_trajectories_give_no_advantages() -> None:
    assert (
        len(ferrule_advantage_rloo.Rloo(ferrule_advantage_rloo.Rloo.Config()).estimate(ferrule.RewardBatch([], [])))
        == 0
    )


def test_an_unknown_singleton_rule_is_refused() -> None:
    with pytest.raises(ValueError):
        ferrule_advantage_rloo.Rloo.Config(singleton="one")


@settings(deadline=None)
@given(st.lists(st.integers(-8, 8).map(lambda n: n / 4), min_size=2, max_size=9))
def test_it_equals_the_leave_one_out_definition(rewards: list[float]) -> None:
    expected = [r - (sum(rewards) - r) / (len(rewards) - 1) for r in rewards]
    np.testing.assert_allclose(estimate([rewards]), expected, atol=1e-12)
