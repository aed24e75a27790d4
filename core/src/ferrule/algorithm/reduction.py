"""The four reductions, as positive factors per token, so that whoever computes the loss only sums."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def factors(mask: NDArray[np.bool_], sequence: NDArray[np.int64], reduction: str) -> NDArray[np.float64]:
    """float64[M]: the factor of each token, 0 off *mask*; the reduced loss is then Σ factor · loss.

    *mask*, bool[M], and *sequence*, int64[M], say of each token of the whole optimizer step whether it counts and of
    which sequence it is. Only sequences with a token in the mask count::

        token-sum            1
        token-mean           1 / tokens in the mask
        seq-mean-token-sum   1 / sequences
        seq-mean-token-mean  1 / (sequences · tokens of this one in the mask)

    The names are verl's; its ``token-mean`` too is over the whole batch.
    """
    per_sequence = np.bincount(sequence[mask])
    live = max(int(np.count_nonzero(per_sequence)), 1)
    if reduction == "token-sum":
        factor: float | NDArray[np.float64] = 1.0
    elif reduction == "token-mean":
        factor = 1.0 / max(int(per_sequence.sum()), 1)
    elif reduction == "seq-mean-token-sum":
        factor = 1.0 / live
    elif reduction == "seq-mean-token-mean":
        factor = 1.0 / (live * per_sequence[sequence[mask]])
    else:
        raise ValueError(f"unknown reduction {reduction!r}")
    out = np.zeros(len(mask))
    out[mask] = factor
    return out
