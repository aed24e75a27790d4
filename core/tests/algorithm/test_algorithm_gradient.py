"""The gradient of a lowered objective against a loss written out from its definition, on a small softmax model.

The model is a table of logits, one row per previous token. The objective's side sums w · policy + ce · (−logp) over
tokens with the derivatives by hand; the reference reads the definitions (advantages, means of means) and is
differentiated by finite differences.
"""

from __future__ import annotations

import numpy as np
import pytest

import ferrule
from ferrule.algorithm import lower, supervised
from ferrule.config.schema import PolicyConfig

VOCAB = 11
LOW, HIGH = 0.8, 1.28
REDUCTIONS = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "token-sum"]
ACTION, OBSERVATION = ferrule.TokenKind.ACTION, ferrule.TokenKind.OBSERVATION


def logprobs(table: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """float64[T], 0 at position 0."""
    out = np.zeros(len(ids))
    logits = table[ids[:-1]]
    out[1:] = logits[np.arange(len(ids) - 1), ids[1:]] - np.log(np.exp(logits).sum(1))
    return out


def objective_gradient(table: np.ndarray, objective: ferrule.Objective) -> np.ndarray:
    """What a backend that only sums would compute."""
    grad = np.zeros_like(table)
    for i, row in enumerate(objective.rows):
        ids, logp = row.ids, logprobs(table, row.ids)
        w, adv, old = (getattr(objective, name)[i].astype(float) for name in ("weights", "advantages", "old"))
        ratio = np.exp(logp - old)
        if objective.policy == "cross_entropy":
            by_logp = -w
        elif objective.policy == "importance_sampling":
            by_logp = -w * adv * ratio
        elif objective.policy == "ppo":
            stopped = ((adv > 0) & (ratio > HIGH)) | ((adv < 0) & (ratio < LOW))
            by_logp = np.where(stopped, 0.0, -w * adv * ratio)
        else:
            by_logp = -w * adv * np.clip(ratio, LOW, HIGH)
        if objective.ce is not None:
            by_logp = by_logp - objective.ce[i]
        for t in range(1, len(ids)):
            logits = table[ids[t - 1]]
            softmax = np.exp(logits) / np.exp(logits).sum()
            grad[ids[t - 1]] -= by_logp[t] * softmax
            grad[ids[t - 1], ids[t]] += by_logp[t]
    return grad


def reduce(sequences: list[list[float]], reduction: str) -> float:
    """The mean, or mean of means, or sum, of the losses of the tokens of each sequence; sequences without tokens do
    not count.
    """
    sequences = [s for s in sequences if s]
    if reduction == "token-sum":
        return sum(sum(s) for s in sequences)
    if reduction == "token-mean":
        return sum(sum(s) for s in sequences) / sum(len(s) for s in sequences)
    if reduction == "seq-mean-token-sum":
        return sum(sum(s) for s in sequences) / len(sequences)
    return sum(sum(s) / len(s) for s in sequences) / len(sequences)


def reference(table, at, episodes, policy: PolicyConfig, coef: float) -> float:
    """The loss from its definition; constants that carry no gradient are taken at the table *at*."""
    groups: dict[str, list[ferrule.Episode]] = {}
    for episode in episodes:
        groups.setdefault(episode.task_id, []).append(episode)
    acted, observed = [], []
    for group in groups.values():
        rewards = np.array([e.reward for e in group])
        uniform = len(set(rewards.tolist())) == 1
        for episode, reward in zip(group, rewards, strict=True):
            advantage = 0.0 if uniform else (reward - rewards.mean()) / (rewards.std() + 1e-6)
            sequence, seen = [], []
            for segment in episode.trajectories[0].segments:
                logp, fixed = logprobs(table, segment.ids), logprobs(at, segment.ids)
                values = []
                for t in range(1, len(segment)):
                    if segment.kind[t] == ACTION:
                        values.append(token_loss(policy.loss, logp[t], float(segment.logprobs[t]), advantage, fixed[t]))
                    elif segment.kind[t] == OBSERVATION:
                        seen.append(-logp[t])
                if policy.unit == "row" and not uniform:
                    acted.append(values)
                sequence += values
            if policy.unit == "trajectory" and not uniform:
                acted.append(sequence)
            observed.append(seen)
    loss = reduce(acted, policy.reduction)
    return loss + coef * reduce(observed, "seq-mean-token-mean") if coef else loss


def token_loss(name: str, logp: float, old: float, advantage: float, fixed: float) -> float:
    ratio = np.exp(logp - old)
    if name == "cross_entropy":
        return -logp
    if name == "importance_sampling":
        return -advantage * ratio
    if name == "ppo":
        return -min(advantage * ratio, advantage * min(max(ratio, LOW), HIGH))
    return -advantage * min(max(np.exp(fixed - old), LOW), HIGH) * logp


def finite_differences(function, table: np.ndarray, h: float = 1e-6) -> np.ndarray:
    grad = np.zeros_like(table)
    for at in np.ndindex(table.shape):
        up, down = table.copy(), table.copy()
        up[at] += h
        down[at] -= h
        grad[at] = (function(up) - function(down)) / (2 * h)
    return grad


def difference(a: np.ndarray, b: np.ndarray) -> float:
    assert np.linalg.norm(b) > 1e-3
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


@pytest.fixture(scope="module")
def table() -> np.ndarray:
    return np.random.default_rng(5).normal(0, 0.7, (VOCAB, VOCAB))


@pytest.fixture(scope="module")
def episodes(make):
    return [
        *make.group("t", [1, 0, 0.25], "PPAASOOSAAA", "PPPPAA"),
        *make.group("u", [0, 1], "PPAAAAAOA"),
        *make.group("flat", [0, 0], "PPAASOOOSA"),
        make.episode("t", 3, "PPPA", reward=0.6),
    ]


@pytest.mark.parametrize("unit", ["trajectory", "row"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("loss", ["importance_sampling", "ppo", "cispo", "cross_entropy"])
def test_it_is_that_of_the_definition_for_each_reduction(make, table, episodes, loss, reduction, unit):
    policy = PolicyConfig(loss=loss, eps_clip=0.2, eps_clip_high=0.28, reduction=reduction, unit=unit)
    watch = make.watch(0.3)
    objective = lower(make.batch(episodes, losses=[watch]), policy, [watch])
    expected = finite_differences(lambda at: reference(at, table, episodes, policy, 0.3), table)
    assert difference(objective_gradient(table, objective), expected) < 1e-6


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_without_a_loss_it_is_the_policy_s_alone(make, table, episodes, reduction):
    policy = PolicyConfig(eps_clip_high=0.28, reduction=reduction)
    expected = finite_differences(lambda at: reference(at, table, episodes, policy, 0.0), table)
    assert difference(objective_gradient(table, lower(make.batch(episodes), policy, [])), expected) < 1e-6


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_that_of_supervised_training_is_the_definition_s(make, table, reduction):
    segments = [make.segment("PPAASOOSA", 1), make.segment("PAAAA", 2)]
    rows = [ferrule.Row(s.ids, s.kind, s.logprobs, s.version) for s in segments]

    def loss(at: np.ndarray) -> float:
        sequences = [[-logprobs(at, s.ids)[t] for t in np.flatnonzero(s.kind == ACTION)] for s in segments]
        return reduce(sequences, reduction)

    assert (
        difference(objective_gradient(table, supervised(rows, 0.0, reduction)), finite_differences(loss, table)) < 1e-6
    )
