"""What one ``forward_backward`` must do, and what comes back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from .row import Row

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@attrs.frozen(eq=False)
class Objective:
    """A sum over tokens, with all normalisation already in its weights::

        loss = Σ_rows Σ_t  w_t · policy(logp_t, old_t, adv_t)  +  Σ_rows Σ_t  ce_t · (−logp_t)

    All arrays are float32[T] per row and aligned with ``row.ids`` (unshifted; position 0 never carries weight).
    ``weights`` is zero off the policy's mask. ``ce`` is None where no auxiliary loss is on. ``policy`` names the
    function, ``options`` its parameters (``eps_clip``, ``eps_clip_high``). For ``cross_entropy``, policy(logp) = −logp,
    and ``advantages`` and ``old`` are not read. ``logp`` is the model's own at temperature 1.
    ``terms`` holds each auxiliary loss's share of ``ce`` by name, coefficient included, for the metrics.
    """

    rows: tuple[Row, ...]
    policy: str
    advantages: tuple[NDArray[np.float32], ...]
    old: tuple[NDArray[np.float32], ...]
    weights: tuple[NDArray[np.float32], ...]
    ce: tuple[NDArray[np.float32], ...] | None = None
    options: Mapping[str, float] = attrs.field(factory=dict)
    terms: Mapping[str, tuple[NDArray[np.float32], ...]] = attrs.field(factory=dict)
    coefs: Mapping[str, float] = attrs.field(factory=dict)


@attrs.frozen(eq=False)
class StepOutput:
    """What a trainer returns of a ``forward_backward``.

    logprobs  float32[T] per row of the objective, under the weights before the step (position 0 is 0)
    metrics   what the backend measured itself, by name
    """

    logprobs: tuple[NDArray[np.float32], ...]
    metrics: Mapping[str, float] = attrs.field(factory=dict)
