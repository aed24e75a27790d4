"""Grouping, what leaves before and after the baseline, and what is counted."""

from __future__ import annotations

import numpy as np
import pytest

import ferrule
from ferrule import Failure, Termination
from ferrule.algorithm import build_batch
from ferrule.config.schema import FilterConfig


def test_all_attempts_at_one_task_are_one_group_in_whatever_order_they_arrive(make):
    a, b = make.group("a", [1, 0, 1, 0]), make.group("b", [0, 0, 1, 0])
    batch = make.batch([e for pair in zip(a, b, strict=True) for e in pair])
    assert batch.metrics["groups/agent/total"] == 2
    found = dict(zip(batch.sources, batch.advantages, strict=True))
    np.testing.assert_allclose([found["a", i] for i in range(4)], [1, -1, 1, -1], atol=1e-5)
    np.testing.assert_allclose([found["b", i] for i in range(4)], np.array([-1, -1, 3, -1]) / np.sqrt(3), atol=1e-5)


def test_roles_are_estimated_apart_each_by_its_own_estimator(make):
    episodes = []
    for attempt, (solver, judge) in enumerate([(1.0, 0.25), (0.0, 0.75)]):
        trajectories = (
            make.trajectory("PA", name="solver", reward=solver),
            make.trajectory("PPA", name="judge", reward=judge),
        )
        episodes.append(ferrule.Episode(f"e{attempt}", "t", attempt, trajectories))
    batch = make.batch(episodes, {"judge": make.Raw, "*": make.GroupNormal})
    found = {(t.name, s[1]): a for t, s, a in zip(batch.trajectories, batch.sources, batch.advantages, strict=True)}
    assert found["judge", 0] == 0.25
    assert found["judge", 1] == 0.75
    assert found["solver", 0] == pytest.approx(1.0, abs=1e-5)
    assert found["solver", 1] == pytest.approx(-1.0, abs=1e-5)
    assert batch.metrics["reward/judge/mean"] == 0.5


def test_a_role_without_an_estimator_is_an_error(make):
    with pytest.raises(ferrule.FerruleError, match="'agent'"):
        make.batch(make.group("t", [1, 0]), {"judge": make.Raw})


def test_a_masked_attempt_leaves_a_group_of_three(make):
    episodes = make.group("t", [1, 0, 0, 1])
    episodes[3].termination = Termination.TIMEOUT
    batch = make.batch(episodes, compact=True)
    alone = make.batch(make.group("t", [1, 0, 0]))
    np.testing.assert_array_equal(batch.advantages, alone.advantages)
    assert batch.dropped == {"compact/timeout": 1}
    assert batch.metrics["dropped/compact/timeout"] == 1.0


@pytest.mark.parametrize("termination", list(Termination))
def test_compact_filtering_masks_cuts_and_spares_ends(make, termination):
    episodes = make.group("t", [1, 0, 1])
    episodes[2].termination = termination
    assert len(make.batch(episodes)) == 3
    spared = termination in (Termination.ENV_DONE, Termination.UNKNOWN)
    assert len(make.batch(episodes, compact=True)) == (3 if spared else 2)


def test_a_failed_run_never_trains_whatever_was_scored(make):
    episodes = make.group("t", [1, 0, 1])
    episodes[2].failure = Failure.SETUP_FAILED
    episodes.append(ferrule.Episode("none", "t", 3, failure=Failure.SANDBOX_FAILED))
    batch = make.batch(episodes)
    np.testing.assert_allclose(batch.advantages, [1, -1], atol=1e-5)
    assert batch.dropped == {"setup_failed": 1, "sandbox_failed": 1}


@pytest.mark.parametrize("bad", [11, 2**30, -1])
def test_a_token_outside_the_vocabulary_drops_its_trajectory_before_the_baseline(make, bad):
    episodes = make.group("t", [1, 0, 1])
    episodes[2].trajectories[0].segments[0].ids[0] = bad
    batch = make.batch(episodes)
    np.testing.assert_allclose(batch.advantages, [1, -1], atol=1e-5)
    assert batch.dropped == {"invalid_token": 1}


def test_a_logprob_that_is_no_number_drops_its_trajectory_unless_nobody_reads_it(make):
    episodes = make.group("t", [1, 0, 1], "PAAO")
    episodes[2].trajectories[0].segments[0].logprobs[1] = np.nan
    episodes[0].trajectories[0].segments[0].logprobs[3] = np.nan  # an observation's is never read
    assert make.batch(episodes).dropped == {"invalid_logprob": 1}
    everything = build_batch(
        episodes,
        advantage={"*": make.Raw(make.Raw.Config())},
        filter=FilterConfig(),
        vocab_size=11,
        need_logprobs=False,
    )
    assert len(everything) == 3


def test_an_empty_response_is_dropped_and_counted(make):
    nothing = ferrule.Episode("e", "t", 2, (ferrule.Trajectory("agent", reward=0.0),))
    batch = make.batch([*make.group("t", [1, 0]), nothing, make.episode("t", 3, "PPP", reward=0.0)])
    np.testing.assert_allclose(batch.advantages, [1, -1], atol=1e-5)
    assert batch.dropped == {"empty_response": 2}


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), None])
def test_a_reward_that_is_no_number_is_an_error_naming_task_and_attempt(make, reward):
    episodes = make.group("chess", [1, 0, 1, 0])
    episodes[2].trajectories[0].reward = reward
    with pytest.raises(ferrule.FerruleError, match="task 'chess', attempt 2"):
        make.batch(episodes)


def test_a_group_too_small_leaves_after_the_baseline_was_taken(make):
    pair, lone = make.group("pair", [1, 0]), make.group("lone", [5.0])
    with_it = make.batch(pair + lone, make.BatchNormal)
    kept_with_it = make.batch(pair + lone, make.BatchNormal, min_trajectories=1)
    assert with_it.dropped == {"too_few_attempts": 1}
    np.testing.assert_array_equal(with_it.advantages, kept_with_it.advantages[:2])
    assert not np.allclose(with_it.advantages, make.batch(pair, make.BatchNormal).advantages)


def test_a_dropped_attempt_is_counted_once_under_the_first_reason(make):
    batch = make.batch(make.group("lone", [1.0]) + make.group("t", [1, 0]))
    assert batch.dropped == {"too_few_attempts": 1}
    spared = make.batch(make.group("lone", [1.0], "PAOA"), losses=[make.watch()])
    assert len(spared) == 0
    assert spared.dropped == {"too_few_attempts": 1}


def test_an_invalid_attempt_never_enters_the_baseline(make):
    pair, lone = make.group("pair", [1, 0]), make.group("lone", [5.0])
    lone[0].failure = Failure.VERIFIER_CRASHED
    np.testing.assert_array_equal(
        make.batch(pair + lone, make.BatchNormal).advantages, make.batch(pair, make.BatchNormal).advantages
    )


def test_an_estimator_without_a_group_baseline_learns_from_lone_attempts(make):
    batch = make.batch(make.group("lone", [0.5]), make.Raw)
    assert len(batch) == 1
    assert not batch.dropped


def test_uniform_groups_leave_unless_told_otherwise(make):
    episodes = make.group("flat", [0.7, 0.7, 0.7]) + make.group("t", [1, 0])
    batch = make.batch(episodes)
    assert batch.dropped == {"uniform_group": 3}
    assert {task for task, _ in batch.sources} == {"t"}
    kept = make.batch(episodes, drop_uniform=False)
    assert len(kept) == 5
    assert kept.policy.all()
    assert not kept.advantages[:3].any()


def test_a_uniform_group_is_spared_for_a_loss_that_has_a_token_in_it(make):
    seen, unseen = make.group("seen", [0, 0], "PPAASOOSAA"), make.group("unseen", [0, 0], "PPAA")
    batch = make.batch(seen + unseen + make.group("t", [1, 0]), losses=[make.watch()])
    assert [task for task, _ in batch.sources] == ["seen", "seen", "t", "t"]
    assert batch.policy.tolist() == [False, False, True, True]
    assert batch.dropped == {"uniform_group": 2}
    off = make.batch(seen, losses=[make.watch(0.0)])
    assert len(off) == 0
    assert off.dropped == {"uniform_group": 2}


def test_groups_that_are_not_uniform_always_carry_the_policy(make):
    batch = make.batch(make.group("t", [1, 0, 0.5], "PPAASOOSAA"), losses=[make.watch()])
    assert batch.policy.all()


def test_nothing_at_all_is_an_empty_batch(make):
    batch = make.batch([])
    assert len(batch) == 0
    assert batch.rows == ()
    assert batch.advantages.shape == batch.rewards.shape == batch.policy.shape == (0,)


def test_rows_know_their_trajectory_after_others_left(make):
    episodes = make.group("flat", [1, 1]) + make.group("t", [1, 0], "PPAA", "PPPPAA")
    batch = make.batch(episodes)
    assert batch.row_trajectory.tolist() == [0, 0, 1, 1]
    assert [(r.task_id, r.attempt, r.role, r.segment) for r in batch.rows] == [
        ("t", 0, "agent", 0),
        ("t", 0, "agent", 1),
        ("t", 1, "agent", 0),
        ("t", 1, "agent", 1),
    ]
    assert batch.metrics["rows/agent/steps_per_row"] == 1.0


class TestMetrics:
    def test_groups_are_told_apart_by_what_they_teach(self, make):
        groups = {"easy": [1, 1], "hard": [0, 0], "flat": [0.5, 0.5], "lone": [0.3], "t": [1, 0], "u": [0.25, 0.75]}
        metrics = make.batch([e for task, rewards in groups.items() for e in make.group(task, rewards)]).metrics
        counts = {
            name: metrics[f"groups/agent/{name}"] for name in ("total", "informative", "too_easy", "too_hard", "flat")
        }
        assert counts == {"total": 6, "informative": 2, "too_easy": 1, "too_hard": 1, "flat": 2}
        assert metrics["advantage/agent/singletons"] == 1
        assert metrics["advantage/agent/fraction_zero"] == pytest.approx(7 / 11)

    def test_rewards_and_advantages_are_summed_up(self, make):
        metrics = make.batch(make.group("a", [1, 0]) + make.group("b", [0.25, 0.75, 0.5])).metrics
        rewards = np.array([1, 0, 0.25, 0.75, 0.5])
        assert metrics["reward/agent/mean"] == pytest.approx(rewards.mean())
        assert metrics["reward/agent/std"] == pytest.approx(rewards.std())
        assert (metrics["reward/agent/min"], metrics["reward/agent/max"]) == (0, 1)
        assert metrics["advantage/agent/mean"] == pytest.approx(0, abs=1e-9)
        assert metrics["advantage/agent/max"] == pytest.approx(np.sqrt(1.5), abs=1e-4)

    def test_percentiles_are_over_groups(self, make):
        episodes = [e for i in range(11) for e in make.group(f"t{i}", [i / 10 - 0.1 * i, i / 10 + 0.1 * i])]
        metrics = make.batch(episodes).metrics
        for percent in (10, 50, 90):
            assert metrics[f"groups/agent/mean/p{percent}"] == pytest.approx(percent / 100)
            assert metrics[f"groups/agent/std/p{percent}"] == pytest.approx(percent / 100)


class TestPrecomputed:
    def test_a_scalar_is_spread_and_stays_out_of_the_others_baseline(self, make):
        episodes = make.group("t", [1, 0, 1], "PPAAOA")
        episodes[2].trajectories[0].advantages = 0.25
        batch = make.batch(episodes)
        np.testing.assert_allclose(batch.advantages, [1, -1, 0.25], atol=1e-5)
        assert batch.token_advantages == {}

    def test_one_per_action_token_is_kept_as_it_is(self, make):
        episodes = make.group("t", [1, 0], "PPAAOA")
        episodes.append(make.episode("t", 2, "PPAAOA", reward=None, advantages=[0.5, -1.0, 2.0]))
        batch = make.batch(episodes)
        assert batch.token_advantages[2].tolist() == [0.5, -1.0, 2.0]
        assert batch.advantages[2] == 0.5
        assert batch.metrics["reward/agent/mean"] == 0.5

    @pytest.mark.parametrize("advantages", [[0.5, 1.0], [0.5] * 4, [], [[0.1, 0.2, 0.3]]])
    def test_a_length_that_does_not_fit_is_an_error(self, make, advantages):
        with pytest.raises(ferrule.FerruleError, match=r"task 't', attempt 7.*3 action tokens"):
            make.batch([make.episode("t", 7, "PPAAOA", advantages=advantages)])

    def test_one_that_is_no_number_is_an_error(self, make):
        with pytest.raises(ferrule.FerruleError, match=r"task 't', attempt 7.*not finite"):
            make.batch([make.episode("t", 7, "PPAAOA", advantages=[0.0, np.nan, 1.0])])

    def test_a_lone_one_is_not_too_few(self, make):
        batch = make.batch([make.episode("t", 0, "PPA", reward=None, advantages=0.5)])
        assert batch.advantages.tolist() == [0.5]
        assert "reward/agent/mean" not in batch.metrics


class TestEstimatorsOfOthers:
    def test_a_wrong_number_of_advantages_is_an_error_naming_the_estimator(self, make):
        class Short(ferrule.Advantage, name="short"):
            def estimate(self, batch):
                return batch.rewards[1:]

        with pytest.raises(ferrule.FerruleError, match=r"'short'.*\[1\].*2 trajectories"):
            make.batch(make.group("t", [1, 0]), Short)

    def test_an_advantage_that_is_no_number_is_an_error_naming_task_and_attempt(self, make):
        class Divides(ferrule.Advantage, name="divides"):
            def estimate(self, batch):
                return np.divide(1.0, batch.rewards, out=np.full(len(batch), np.inf), where=batch.rewards != 0)

        with pytest.raises(ferrule.FerruleError, match=r"'divides'.*task 't', attempt 1"):
            make.batch(make.group("t", [1, 0]), Divides)

    def test_a_loss_that_gives_no_mask_is_an_error_naming_it(self, make):
        class Odd(make.Watch, name="odd"):
            def tokens(self, row):
                return row.ids

        with pytest.raises(ferrule.FerruleError, match=r"'odd'.*bool"):
            make.batch(make.group("t", [1, 1], "PAOA"), losses=[Odd(Odd.Config(coef=0.1))])
