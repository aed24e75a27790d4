"""The configuration of a gateway that runs alone."""

from __future__ import annotations

import attrs

from ferrule import ModelSpec, Renderer, SamplingParams, Trainer, Use

from .http import UpstreamOptions
from .server import GatewayOptions


@attrs.frozen
class GatewayConfig:
    """``[renderer]``, ``[model]``, ``[sampling]``, ``[gateway]``, and where completions come from: ``[upstream]``, a
    server that completes token ids, or ``[trainer]``, whose sampler is then in the same process. ``name`` is the model's
    name on the wire.
    """

    renderer: Use[Renderer]
    model: ModelSpec = ModelSpec()
    trainer: Use[Trainer] | None = None
    upstream: UpstreamOptions | None = None
    sampling: SamplingParams = SamplingParams()
    gateway: GatewayOptions = GatewayOptions()
    name: str = "policy"
    seed: int = 0

    def __attrs_post_init__(self) -> None:
        if (self.trainer is None) == (self.upstream is None):
            raise ValueError("there must be [upstream] or [trainer], one of them: where completions come from")
