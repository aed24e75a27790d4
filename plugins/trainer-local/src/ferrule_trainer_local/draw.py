"""Drawing tokens for many rows at once, each with its own parameters and its own uniform numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ferrule import SamplingParams


class Uniforms:
    """One number in [0, 1) per token position of one request: a function of the session's seed, the number of the
    request
    in the session, and the position alone (a counter-based generator, Philox, keyed by the first two).
    """

    def __init__(self, seed: int, request: int) -> None:
        self._generator = np.random.Generator(np.random.Philox(key=[seed % 2**64, request]))
        self._known = np.empty(0)

    def take(self, start: int, count: int) -> np.ndarray:
        """float64[count], those of the positions from *start*."""
        while len(self._known) < start + count:
            self._known = np.concatenate([self._known, self._generator.random(64)])
        return self._known[start : start + count]


class Draw:
    """The sampling parameters of a batch of rows, laid out for one vectorised draw per step."""

    def __init__(self, params: Sequence[SamplingParams], vocab: int, device: torch.device) -> None:
        temperatures = [p.temperature for p in params]
        self._greedy = self._top = self._scale = None
        if any(t == 0 for t in temperatures):
            self._greedy = torch.tensor([t == 0 for t in temperatures], device=device)
        self._all_greedy = all(t == 0 for t in temperatures)
        if any(t not in (0, 1) for t in temperatures):
            self._scale = torch.tensor([[1 / t if t else 1.0] for t in temperatures], device=device)
        if any(p.top_p < 1 or 0 < p.top_k < vocab for p in params):
            top_k = torch.tensor([[p.top_k or vocab] for p in params], device=device)
            self._top = (top_k, torch.tensor([[p.top_p] for p in params], dtype=torch.float64, device=device))
        sets = {p.stop_ids: i for i, p in enumerate(params)}
        stops = torch.zeros(len(params) if len(sets) > 1 else 1, vocab, dtype=torch.bool, device=device)
        for i, p in enumerate(params[: len(stops)]):
            stops[i, [t for t in p.stop_ids if 0 <= t < vocab]] = True
        self._stops = stops

    def stops(self, tokens: torch.Tensor) -> torch.Tensor:
        """bool[rows]: which of *tokens*, int64[rows], end their row's request."""
        if len(self._stops) == 1:
            return self._stops[0][tokens]
        return self._stops.gather(1, tokens[:, None])[:, 0]

    def __call__(self, logits: torch.Tensor, uniforms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens int64[rows] and their log p at temperature 1, float32[rows], by inverting the distribution function
        at *uniforms*, float64[rows]; *logits* float32[rows, vocab]."""
        logp = torch.log_softmax(logits, -1)
        if self._all_greedy:
            token = logits.argmax(-1, keepdim=True)
            return token[:, 0], logp.gather(1, token)[:, 0]
        p = logp.exp() if self._scale is None else torch.softmax(logits * self._scale, -1)
        if self._top is not None:
            p = _truncate(p, *self._top)
        cdf = torch.cumsum(p, -1, dtype=torch.float64)
        token = torch.searchsorted(cdf, uniforms[:, None] * cdf[:, -1:], right=True)
        token.clamp_(max=logits.shape[-1] - 1)
        if self._greedy is not None:
            token = torch.where(self._greedy[:, None], logits.argmax(-1, keepdim=True), token)
        return token[:, 0], logp.gather(1, token)[:, 0]


def _truncate(p: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """*p* with zeros off the k likeliest tokens and off the smallest set of them that reaches mass p (after k)."""
    ranked, order = torch.sort(p, dim=-1, descending=True, stable=True)
    ranked = torch.where(torch.arange(p.shape[-1], device=p.device) < top_k, ranked, 0.0)
    mass = torch.cumsum(ranked, -1, dtype=torch.float64)
    before = (mass - ranked) / mass[:, -1:]
    ranked = torch.where(before < top_p, ranked, 0.0)
    return torch.zeros_like(p).scatter_(1, order, ranked)
