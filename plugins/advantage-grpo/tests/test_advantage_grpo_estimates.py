"""What GRPO makes of groups of rewards."""

from __future__ import annotations

import attrs
import ferrule_advantage_grpo
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ferrule

GROUPS = [[1.0, 0.0, 0.5], [1.0, 1.0, 0.0]]


def estimate(groups: list[list[float]], **options: object) -> np.ndarray:
    index = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    batch = ferrule.RewardBatch(np.concatenate(groups), index)
    return ferrule_advantage_grpo.Grpo(ferrule_advantage_grpo.Grpo.Config(**options)).estimate(batch)


def test_four_attempts_at_one_task_are_one_group() -> None:
    np.testing.assert_allclose(estimate([[1, 0, 1, 0]]), [1, -1, 1, -1], atol=1e-5)


def test_scale_none_only_centres() -> None:
    np.testing.assert_array_equal(estimate([[1, 0]], scale="none"), [0.5, -0.5])


def test_sample_deviation_gives_the_values_of_verl_core_algos() -> None:
    np.testing.assert_allclose(estimate(GROUPS, ddof=1), [1, -1, 0, 0.5773, 0.5773, -1.1547], atol=1e-4)


@pytest.mark.parametrize("options", [{}, {"eps": 0.0}, {"ddof": 1}, {"scale": "none"}])
def test_equal_rewards_give_exactly_zero(options: dict[str, object]) -> None:
    found = estimate([[0.7, 0.7, 0.7], [0.1] * 10, [3.0]], **options)
    assert not found.any()


def test_a_lone_attempt_gets_nothing_unless_asked_for() -> None:
    assert estimate([[1.0], [1.0, 0.0]])[0] == 0.0
    assert estimate([[1.0], [1.0, 0.0]], singleton="reward")[0] == pytest.approx(1 / (1 + 1e-6), abs=1e-12)
    assert estimate([[0.25]], singleton="reward", scale="none")[0] == 0.25


def test_no_trajectories_give_no_advantages() -> None:
    assert (
        len(ferrule_advantage_grpo.Grpo(ferrule_advantage_grpo.Grpo.Config()).estimate(ferrule.RewardBatch([], [])))
        == 0
    )


@pytest.mark.parametrize(("option", "value"), [("scale", "batch"), ("ddof", 2), ("singleton", "one"), ("eps", -1.0)])
def test_values_outside_the_options_are_refused(option: str, value: object) -> None:
    with pytest.raises(ValueError):
        ferrule_advantage_grpo.Grpo.Config(**{option: value})


def test_it_declares_its_baseline_and_options() -> None:
    assert ferrule_advantage_grpo.Grpo.group_baseline
    assert {f.name: f.default for f in attrs.fields(ferrule_advantage_grpo.Grpo.Config)} == {
        "eps": 1e-6,
        "ddof": 0,
        "scale": "std",
        "singleton": "zero",
    }


reward = st.integers(-8, 8).map(lambda n: n / 4)
groups = st.lists(st.lists(reward, min_size=1, max_size=9), min_size=1, max_size=5)


@settings(deadline=None)
@given(groups, st.sampled_from(["std", "none"]))
def test_advantages_of_a_group_sum_to_zero(rewards: list[list[float]], scale: str) -> None:
    found = estimate(rewards, scale=scale)
    for part in np.split(found, np.cumsum([len(group) for group in rewards])[:-1]):
        assert abs(part.sum()) < 1e-9


@settings(deadline=None)
@given(groups, st.randoms(use_true_random=False))
def test_the_order_of_attempts_does_not_matter(rewards: list[list[float]], random: object) -> None:
    orders = [random.sample(range(len(group)), len(group)) for group in rewards]
    shuffled = estimate([[group[i] for i in order] for group, order in zip(rewards, orders, strict=True)])
    parts = np.split(estimate(rewards), np.cumsum([len(group) for group in rewards])[:-1])
    np.testing.assert_allclose(shuffled, np.concatenate([p[o] for p, o in zip(parts, orders, strict=True)]), atol=1e-9)


@settings(deadline=None)
@given(groups, st.floats(0.5, 4.0), st.integers(-3, 3))
def test_scale_and_offset_of_rewards_do_not_matter(rewards: list[list[float]], factor: float, offset: int) -> None:
    moved = [[factor * r + offset for r in group] for group in rewards]
    np.testing.assert_allclose(estimate(moved, eps=1e-12), estimate(rewards, eps=1e-12), atol=1e-6)


@settings(deadline=None)
@given(groups)
def test_groups_do_not_touch_each_other(rewards: list[list[float]]) -> None:
    np.testing.assert_allclose(estimate(rewards), np.concatenate([estimate([group]) for group in rewards]), atol=1e-12)
