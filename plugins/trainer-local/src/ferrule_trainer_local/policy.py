"""Policy losses per token, by Tinker's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

Policy = Callable[[Tensor, Tensor, Tensor, Mapping[str, float]], Tensor]


def importance_sampling(logp: Tensor, old: Tensor, advantage: Tensor, options: Mapping[str, float]) -> Tensor:
    """−ratio · advantage, ratio = exp(logp − old)."""
    return -(logp - old).exp() * advantage


def ppo(logp: Tensor, old: Tensor, advantage: Tensor, options: Mapping[str, float]) -> Tensor:
    """−min(ratio · advantage, clip(ratio, 1 − eps_clip, 1 + eps_clip_high) · advantage):
    https://arxiv.org/abs/1707.06347, equation 7, with the upper threshold apart as in DAPO,
    https://arxiv.org/abs/2503.14476.
    """
    low = options.get("eps_clip", 0.2)
    high = options.get("eps_clip_high")
    high = low if high is None else high
    ratio = (logp - old).exp()
    return -(ratio * advantage).minimum(ratio.clamp(1 - low, 1 + high) * advantage)


def cross_entropy(logp: Tensor, old: Tensor, advantage: Tensor, options: Mapping[str, float]) -> Tensor:
    """−logp."""
    return -logp


POLICIES: dict[str, Policy] = {
    "importance_sampling": importance_sampling,
    "ppo": ppo,
    "cross_entropy": cross_entropy,
}
