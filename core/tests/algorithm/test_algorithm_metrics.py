"""What is measured of a step and of an evaluation."""

from __future__ import annotations

import json

import attrs
import numpy as np
import pytest

import ferrule
from ferrule.algorithm import accuracy, loss_metrics, lower, supervised
from ferrule.config.schema import PolicyConfig


@pytest.fixture
def batch(make):
    """Two trajectories of two action tokens; the second is laid over with logprobs of -1."""
    made = make.batch(make.group("t", [1, 0], "PAAO"), losses=[make.watch(0.5)])
    for row in made.rows:
        row.logprobs[1:3] = -1.0
    return attrs.evolve(made, advantages=np.array([1.0, -1.0]))


def output(batch, *deltas: list[float]) -> ferrule.StepOutput:
    """Logprobs of −1 + delta on the action tokens, −2 on the observation."""
    return ferrule.StepOutput(tuple(np.array([0, -1 + a, -1 + b, -2], np.float32) for a, b in deltas))


def test_ratios_and_kl_are_over_the_policy_s_tokens(batch):
    metrics = loss_metrics(lower(batch, PolicyConfig(), []), output(batch, [0.1, -0.2], [0.5, 0.0]))
    delta = np.array([0.1, -0.2, 0.5, 0.0])
    assert metrics["policy/ratio_mean"] == pytest.approx(np.exp(delta).mean(), rel=1e-6)
    assert metrics["policy/ratio_max"] == pytest.approx(np.exp(0.5), rel=1e-6)
    assert metrics["policy/kl_k1"] == pytest.approx(-delta.mean(), rel=1e-5)
    assert metrics["policy/kl_k3"] == pytest.approx((np.exp(delta) - 1 - delta).mean(), rel=1e-5)


@pytest.mark.parametrize(
    ("loss", "value", "clipped"),
    [
        # ratios e^.5, 1 with advantage 1; e^-.5, e^.5 with advantage -1; thresholds .8 and 1.28
        ("importance_sampling", (-np.exp(0.5) - 1 + np.exp(-0.5) + np.exp(0.5)) / 4, 0.0),
        ("ppo", (-1.28 - 1 + 0.8 + np.exp(0.5)) / 4, 0.5),
        ("cispo", (-1.28 * -0.5 - 1 * -1.0 + 0.8 * -1.5 + 1.28 * -0.5) / 4, 0.75),
    ],
)
def test_the_policy_loss_and_its_clipping_are_those_of_the_formula(batch, loss, value, clipped):
    objective = lower(batch, PolicyConfig(loss=loss, eps_clip_high=0.28), [])
    metrics = loss_metrics(objective, output(batch, [0.5, 0.0], [-0.5, 0.5]))
    assert metrics["loss/policy"] == pytest.approx(value, rel=1e-5)
    assert metrics["policy/clip_fraction"] == clipped


def test_a_loss_s_own_value_is_without_its_coefficient(make, batch):
    for coef in (0.5, 0.01):
        metrics = loss_metrics(lower(batch, PolicyConfig(), [make.watch(coef)]), output(batch, [0, 0], [0, 0]))
        assert metrics["loss/watch"] == pytest.approx(2.0, rel=1e-6)
        assert metrics["loss/watch/tokens"] == 2
    assert "loss/watch" not in loss_metrics(
        lower(batch, PolicyConfig(), [make.watch(0.0)]), output(batch, [0, 0], [0, 0])
    )


def test_a_loss_without_tokens_is_nothing(make):
    batch = make.batch(make.group("t", [1, 0], "PAAP"))
    metrics = loss_metrics(lower(batch, PolicyConfig(), [make.watch()]), output(batch, [0, 0], [0, 0]))
    assert (metrics["loss/watch"], metrics["loss/watch/tokens"]) == (0.0, 0.0)
    assert str(metrics["loss/watch"]) == "0.0", "people read it"


def test_spared_trajectories_do_not_count_in_the_policy_s_metrics(make, batch):
    objective = lower(attrs.evolve(batch, policy=np.array([True, False])), PolicyConfig(), [make.watch()])
    metrics = loss_metrics(objective, output(batch, [0.1, 0.1], [3.0, 3.0]))
    assert metrics["policy/ratio_max"] == pytest.approx(np.exp(0.1), rel=1e-6)


def test_where_the_policy_has_no_token_it_has_no_ratio(make, batch):
    objective = lower(attrs.evolve(batch, policy=np.array([False, False])), PolicyConfig(), [make.watch()])
    metrics = loss_metrics(objective, output(batch, [0, 0], [0, 0]))
    assert metrics["loss/policy"] == 0.0
    assert not any(name.startswith("policy/") for name in metrics)
    assert metrics["loss/watch"] == pytest.approx(2.0)


def test_a_ratio_beyond_bounds_is_still_a_number_that_json_holds(batch):
    metrics = loss_metrics(lower(batch, PolicyConfig(loss="importance_sampling"), []), output(batch, [2000, 0], [0, 0]))
    assert json.loads(json.dumps(metrics, allow_nan=False)) == metrics


def test_a_policy_loss_that_the_core_does_not_know_is_left_to_its_trainer(batch):
    metrics = loss_metrics(lower(batch, PolicyConfig(loss="my_own"), []), output(batch, [0, 0], [0, 0]))
    assert "loss/policy" not in metrics
    assert metrics["policy/ratio_mean"] == 1.0


def test_supervised_training_reports_its_cross_entropy(make):
    s = make.segment("PAAO")
    objective = supervised([ferrule.Row(s.ids, s.kind, s.logprobs, s.version)])
    metrics = loss_metrics(objective, ferrule.StepOutput((np.array([0, -1.0, -3.0, -9.0], np.float32),)))
    assert metrics == {"loss/policy": pytest.approx(2.0)}


def test_logprobs_that_do_not_fit_the_rows_are_refused(batch):
    with pytest.raises(ValueError, match="rows"):
        loss_metrics(lower(batch, PolicyConfig(), []), ferrule.StepOutput((np.zeros(4, np.float32),)))


class TestAccuracy:
    def test_attempts_without_a_step_count_and_are_not_right(self, make):
        played = [make.episode(f"t{i}", 0, reward=float(i < 40)) for i in range(80)]
        nothing = [
            ferrule.Episode(f"n{i}", f"n{i}", 0, (ferrule.Trajectory("agent", reward=0.0),), reward=0.0)
            for i in range(20)
        ]
        assert accuracy(played + nothing) == {"accuracy": 0.40, "no_step_rate": 0.20, "attempts": 100}

    def test_what_a_harness_without_a_model_said_is_a_step(self):
        said, silent = (ferrule.Episode(f"e{n}", "t", 0, reward=0.0, metrics={"messages": float(n)}) for n in (2, 0))
        assert accuracy([said, silent])["no_step_rate"] == 0.5

    def test_those_that_left_no_episode_count_too(self, make):
        played = [make.episode(f"t{i}", 0, reward=float(i < 40)) for i in range(80)]
        assert accuracy(played, meant=100) == {"accuracy": 0.40, "no_step_rate": 0.20, "attempts": 100}

    def test_a_failed_run_is_not_right_whatever_was_scored(self, make):
        episodes = [make.episode("a", 0), make.episode("b", 0, failure=ferrule.Failure.VERIFIER_TIMEOUT)]
        assert accuracy(episodes)["accuracy"] == 0.5

    def test_what_counts_as_right_can_be_set(self, make):
        episodes = make.group("t", [0.2, 0.5, 0.9, 1.0])
        assert accuracy(episodes)["accuracy"] == 0.25
        assert accuracy(episodes, right=0.5)["accuracy"] == 0.75

    def test_rounding_does_not_make_a_full_score_wrong(self, make):
        assert accuracy([make.episode("t", 0, reward=sum([0.1] * 10))])["accuracy"] == 1.0

    def test_no_attempts_are_no_accuracy(self):
        assert accuracy([]) == {"accuracy": 0.0, "no_step_rate": 0.0, "attempts": 0}
