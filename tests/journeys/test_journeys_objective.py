"""From rewards to an objective through the first-party estimators and ECHO together."""

from __future__ import annotations

import ferrule_advantage_grpo
import ferrule_advantage_prpo
import ferrule_advantage_reinforce
import ferrule_advantage_reinforce_plus_plus
import ferrule_advantage_rloo
import ferrule_loss_echo
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ferrule
from ferrule.algorithm import build_batch, fold, lower
from ferrule.config.schema import FilterConfig, PolicyConfig

KINDS = {
    "P": ferrule.TokenKind.PROMPT,
    "A": ferrule.TokenKind.ACTION,
    "O": ferrule.TokenKind.OBSERVATION,
    "S": ferrule.TokenKind.SCAFFOLD,
}
ESTIMATORS = [
    ferrule_advantage_grpo.Grpo,
    ferrule_advantage_rloo.Rloo,
    ferrule_advantage_reinforce.Reinforce,
    ferrule_advantage_prpo.Prpo,
    ferrule_advantage_reinforce_plus_plus.ReinforcePlusPlusBaseline,
]
TWO_TURNS, ONE_TURN = "PPPAASOOOSAA", "PPPAAA"


def group(task: str, rewards: list[float], kinds: str) -> list[ferrule.Episode]:
    episodes = []
    for attempt, reward in enumerate(rewards):
        random = np.random.default_rng(ferrule.derive_seed(task, attempt))
        kind = np.array([KINDS[letter] for letter in kinds], np.uint8)
        segment = ferrule.Segment(
            random.integers(0, 100, len(kind)).astype(np.int32),
            kind,
            -random.random(len(kind)).astype(np.float32),
            np.zeros(len(kind), np.int32),
        )
        episodes.append(
            ferrule.Episode(
                f"{task}-{attempt}",
                task,
                attempt,
                (ferrule.Trajectory("agent", (), (segment,), reward),),
                reward=reward,
            )
        )
    return episodes


def objective(
    episodes: list[ferrule.Episode], losses=(), cls=ferrule_advantage_grpo.Grpo, **policy: object
) -> ferrule.Objective:
    batch = build_batch(
        episodes, advantage={"*": cls(cls.Config())}, filter=FilterConfig(), losses=losses, vocab_size=100
    )
    return lower(batch, PolicyConfig(**policy), losses)


def echo(**options: object) -> ferrule_loss_echo.Echo:
    return ferrule_loss_echo.Echo(ferrule_loss_echo.Echo.Config(**options))


def flat(arrays) -> np.ndarray:
    return np.concatenate(arrays)


@pytest.fixture(scope="module")
def episodes() -> list[ferrule.Episode]:
    return group("t", [1, 0, 1, 0], TWO_TURNS) + group("single", [1, 0], ONE_TURN) + group("lost", [0, 0, 0], TWO_TURNS)


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_echo_with_coefficient_zero_equals_none_bit_for_bit(episodes, cls):
    off, plain = objective(episodes, [echo(coef=0.0)], cls), objective(episodes, cls=cls)
    assert len(off.rows) == len(plain.rows)
    assert off.ce is None
    for name in ("advantages", "old", "weights"):
        assert flat(getattr(off, name)).tobytes() == flat(getattr(plain, name)).tobytes()


@pytest.mark.parametrize("reduction", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "token-sum"])
def test_echo_learns_from_lost_groups_and_leaves_the_policy_term_alone(episodes, reduction):
    plain, with_echo = objective(episodes, reduction=reduction), objective(episodes, [echo()], reduction=reduction)
    learned = [i for i, row in enumerate(with_echo.rows) if row.task_id != "lost"]
    lost = [i for i, row in enumerate(with_echo.rows) if row.task_id == "lost"]
    assert len(lost) == 3
    assert flat([fold(with_echo)[i] for i in learned]).tobytes() == flat(fold(plain)).tobytes()
    assert not any(fold(with_echo)[i].any() for i in lost)
    assert all(with_echo.ce[i].any() for i in lost)


def test_echo_is_the_mean_over_trajectories_of_the_mean_over_their_observations(episodes):
    found = objective(episodes, [echo(coef=0.1)])
    for row, ce in zip(found.rows, found.ce, strict=True):
        observed = row.kind == ferrule.TokenKind.OBSERVATION
        np.testing.assert_allclose(ce, np.where(observed, 0.1 / (7 * 3), 0), rtol=1e-6)


def test_the_environment_s_mask_takes_in_the_template(episodes):
    found = objective(episodes, [echo(mask="environment")])
    assert {int((ce != 0).sum()) for row, ce in zip(found.rows, found.ce, strict=True) if row.task_id != "single"} == {
        5
    }


@pytest.mark.parametrize("mask", ["observation", "environment"])
def test_single_turn_rollouts_get_nothing_of_echo_and_lost_ones_leave(mask):
    found = objective(group("t", [1, 0], ONE_TURN) + group("lost", [0, 0], ONE_TURN), [echo(mask=mask)])
    assert [row.task_id for row in found.rows] == ["t", "t"]
    assert not flat(found.ce).any()
    assert all(not w[:3].any() for w in found.weights)


@pytest.mark.parametrize("cls", ESTIMATORS[:2])
def test_a_masked_attempt_leaves_a_group_of_three(cls):
    episodes = group("t", [1, 0, 0, 1], TWO_TURNS)
    episodes[3].termination = ferrule.Termination.MAX_RESPONSE_LENGTH
    estimator = {"*": cls(cls.Config())}
    batch = build_batch(episodes, advantage=estimator, filter=FilterConfig(compact=True), vocab_size=100)
    three = cls(cls.Config()).estimate(ferrule.RewardBatch(np.array([1.0, 0.0, 0.0]), np.zeros(3, int)))
    np.testing.assert_array_equal(batch.advantages, three)


@settings(deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.25, 0.7, 1.0]), min_size=1, max_size=8), st.sampled_from(ESTIMATORS))
def test_whatever_the_rewards_what_is_lowered_is_finite(rewards, cls):
    found = objective(group("t", rewards, TWO_TURNS), [echo()], cls)
    for arrays in (found.advantages, found.old, found.weights, found.ce):
        assert all(np.isfinite(a).all() and a.dtype == np.float32 for a in arrays)
