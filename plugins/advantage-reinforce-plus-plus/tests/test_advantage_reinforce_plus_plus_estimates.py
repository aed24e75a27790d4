"""What REINFORCE++ with baseline makes of groups of rewards."""

from __future__ import annotations

import ferrule_advantage_reinforce_plus_plus
import numpy as np
import pytest

import ferrule

Estimator = ferrule_advantage_reinforce_plus_plus.ReinforcePlusPlusBaseline


def estimate(groups: list[list[float]], **options: object) -> np.ndarray:
    index = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    return Estimator(Estimator.Config(**options)).estimate(ferrule.RewardBatch(np.concatenate(groups), index))


def test_centred_within_the_group_and_scaled_over_the_batch() -> None:
    # centred: ±0.5 and ±0.1; their standard deviation is sqrt((0.25 + 0.01) / 2)
    expected = np.array([0.5, -0.5, 0.1, -0.1]) / np.sqrt(0.13)
    np.testing.assert_allclose(estimate([[1, 0], [0.6, 0.4]]), expected, atol=1e-5)


def test_equal_rewards_give_exactly_zero_beside_groups_that_differ() -> None:
    found = estimate([[0.7, 0.7, 0.7], [1, 0], [3.0]])
    assert not found[:3].any()
    assert found[5] == 0.0
    assert found[3] > 0.0


def test_a_batch_without_any_difference_is_exactly_zero() -> None:
    assert not estimate([[0.7, 0.7, 0.7], [0.1] * 10]).any()


def test_a_lone_attempt_counts_with_its_reward_only_where_asked_for() -> None:
    centred = np.array([0.6, 0.5, -0.5])
    np.testing.assert_allclose(estimate([[0.6], [1, 0]], singleton="reward"), centred / centred.std(), atol=1e-5)
    assert estimate([[0.6], [1, 0]])[0] == 0.0


def test_no_trajectories_give_no_advantages() -> None:
    assert len(Estimator(Estimator.Config()).estimate(ferrule.RewardBatch([], []))) == 0


@pytest.mark.parametrize("options", [{"eps": 0.0}, {"singleton": "one"}])
def test_values_outside_the_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Estimator.Config(**options)


def test_its_public_name_says_that_it_takes_a_baseline() -> None:
    assert Estimator.name == "reinforce_plus_plus_baseline"
    assert Estimator.group_baseline
