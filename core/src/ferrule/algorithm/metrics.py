"""What the core measures alike on every backend: loss values, ratios and KL from logprobs, and accuracy over attempts."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ..data import Episode, Objective, StepOutput

Floats = NDArray[np.float64]
EXPONENT = 60.0
"""Log ratios are clipped to this for the metrics, so that a ratio beyond all bounds is still a number that JSON can
hold.
"""


def loss_metrics(objective: Objective, output: StepOutput) -> dict[str, float]:
    """Metrics of a ``forward_backward``, from the logprobs that it returned.

    loss/policy                    Σ w · policy(logp, old, adv)
    loss/<name>                    an auxiliary loss's own value, without its coefficient
    loss/<name>/tokens             how many tokens it has weight on
    policy/ratio_mean, ratio_max   of exp(logp − old), over the policy's tokens, each token counted once
    policy/clip_fraction           the part of them at which clipping stops the gradient (0 for losses that do not clip)
    policy/kl_k1, kl_k3            estimates of KL(old ‖ current) from samples of old: mean of −d, and of e^d − 1 − d,
                                   where
                                   d = logp − old (Schulman, http://joschu.net/blog/kl-approx.html)

    ``loss/policy`` is left out for a policy loss that the core does not know, and all of ``policy/`` where no ratio
    is taken (``cross_entropy``) or the policy has no token.
    """
    if [len(x) for x in output.logprobs] != [len(row) for row in objective.rows]:
        raise ValueError("the trainer's logprobs do not match the objective's rows in number or length")
    metrics: dict[str, float] = {}
    logp = _join(output.logprobs)
    weights = _join(objective.weights)
    on = weights != 0.0
    w, lp = weights[on], logp[on]
    if objective.policy == "cross_entropy":  # 0.0 - x and not -x, here and below: nothing at all is 0.0 and no -0.0
        metrics["loss/policy"] = float(0.0 - (w * lp).sum())
    else:
        adv, old = _join(objective.advantages)[on], _join(objective.old)[on]
        delta = np.clip(lp - old, -EXPONENT, EXPONENT)
        values, clipped = _policy(objective, lp, delta, adv)
        if values is not None:
            metrics["loss/policy"] = float((w * values).sum())
        if len(w):
            ratio = np.exp(delta)
            metrics["policy/ratio_mean"] = float(ratio.mean())
            metrics["policy/ratio_max"] = float(ratio.max())
            metrics["policy/clip_fraction"] = float(clipped.mean())
            metrics["policy/kl_k1"] = float(0.0 - delta.mean())
            metrics["policy/kl_k3"] = float((np.expm1(delta) - delta).mean())
    for name, term in objective.terms.items():
        ce = _join(term)
        on = ce != 0.0
        metrics[f"loss/{name}"] = float(0.0 - (ce[on] * logp[on]).sum() / objective.coefs[name])
        metrics[f"loss/{name}/tokens"] = float(np.count_nonzero(on))
    return metrics


def accuracy(episodes: Iterable[Episode], *, meant: int | None = None, right: float = 1.0) -> dict[str, float]:
    """``accuracy``, ``no_step_rate`` and ``attempts`` over every attempt that was meant to run.

    An attempt is right where its reward is at least *right*. One that failed, or in which the model never took a
    step, is an attempt all the same, and not right. *meant* is how many should have run, where some left no episode
    at all.
    """
    played = list(episodes)
    attempts = len(played) if meant is None else max(meant, len(played))
    correct = sum(not e.failed and e.reward is not None and e.reward >= right - 1e-9 for e in played)
    # A harness without a model has no trajectory; what it said is counted all the same.
    stepped = sum(
        any(len(t.steps) for t in e.trajectories) or (not e.trajectories and e.metrics.get("messages", 0) > 0)
        for e in played
    )
    return {
        "accuracy": correct / attempts if attempts else 0.0,
        "no_step_rate": (attempts - stepped) / attempts if attempts else 0.0,
        "attempts": float(attempts),
    }


def _policy(objective: Objective, logp: Floats, delta: Floats, adv: Floats) -> tuple[Floats | None, NDArray[np.bool_]]:
    """The policy loss at each token, None where it is not known here, and where clipping stops its gradient."""
    ratio = np.exp(delta)
    none = np.zeros(len(ratio), bool)
    if objective.policy == "importance_sampling":
        return -ratio * adv, none
    low = 1.0 - objective.options.get("eps_clip", 0.2)
    high = 1.0 + objective.options.get("eps_clip_high", objective.options.get("eps_clip", 0.2))
    bounded = np.clip(ratio, low, high)
    if objective.policy == "ppo":  # arXiv 1707.06347, equation 7
        return -np.minimum(ratio * adv, bounded * adv), ((ratio > high) & (adv > 0.0)) | ((ratio < low) & (adv < 0.0))
    if (
        objective.policy == "cispo"
    ):  # arXiv 2506.13585, equation 4: the clipped ratio is a constant factor, and no gradient stops
        return -bounded * adv * logp, ratio != bounded
    return None, none


def _join(arrays: Iterable[NDArray[np.float32]]) -> Floats:
    parts = list(arrays)
    return np.concatenate(parts).astype(np.float64) if parts else np.zeros(0)
