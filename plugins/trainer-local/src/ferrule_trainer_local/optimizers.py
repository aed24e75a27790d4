"""AdamW, and Muon for hidden matrices with AdamW for all else; their state by parameter name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ferrule import CheckpointError, OptimParams

EMBEDDINGS = ("embed", "lm_head", "wte", "wpe")


class Optimizer:
    """``kind`` is ``adamw`` or ``muon``; learning rates and the like come anew with every step."""

    def __init__(self, kind: str, parameters: Mapping[str, Tensor]) -> None:
        self.kind, self.parameters = kind, dict(parameters)
        hidden = {
            n: p
            for n, p in parameters.items()
            if kind == "muon" and p.ndim == 2 and not any(e in n for e in EMBEDDINGS)
        }
        rest = {n: p for n, p in parameters.items() if n not in hidden}
        self.muon = torch.optim.Muon(list(hidden.values())) if hidden else None
        self.adamw = torch.optim.AdamW(list(rest.values()), fused=True) if rest else None

    def step(self, optim: OptimParams) -> None:
        """Apply the gradients."""
        if self.muon is not None:
            for group in self.muon.param_groups:
                group.update(lr=optim.lr, weight_decay=optim.weight_decay)
            step: Callable[[], object] = self.muon.step
            step()
        if self.adamw is not None:
            lr = optim.adamw_lr if self.kind == "muon" else optim.lr
            for group in self.adamw.param_groups:
                group.update(lr=lr, betas=optim.betas, eps=optim.eps, weight_decay=optim.weight_decay)
            self.adamw.step()

    def state(self) -> dict[str, Tensor]:
        """Every tensor of the state, as ``<parameter>/<entry>``."""
        names = {p: n for n, p in self.parameters.items()}
        out = {}
        for part in (self.muon, self.adamw):
            for parameter, entries in part.state.items() if part is not None else ():
                for entry, value in entries.items():
                    out[f"{names[parameter]}/{entry}"] = value
        return out

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take up a state that :meth:`state` gave."""
        parts = [part for part in (self.muon, self.adamw) if part is not None]
        owner = {p: part for part in parts for group in part.param_groups for p in group["params"]}
        for key, value in tensors.items():
            name, _, entry = key.rpartition("/")
            parameter = self.parameters.get(name)
            if parameter is None:
                raise CheckpointError(f"the optimizer's state is of a parameter {name!r} that this model does not have")
            # AdamW's own count of steps is kept where its parameter is, as fused steps want it.
            owner[parameter].state.setdefault(parameter, {})[entry] = value.to(parameter.device).clone()
