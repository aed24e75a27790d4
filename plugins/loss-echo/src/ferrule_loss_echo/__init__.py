"""ECHO: beside acting, the policy learns to predict what its environment answers, from failed attempts too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs
from attrs import validators as v

import ferrule

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Echo"]


class Echo(ferrule.AuxLoss, name="echo"):
    """Cross-entropy on the tokens that the environment answered (arXiv 2605.24517).

    Per trajectory (1/|O|) Σ_{t∈O} −log p(x_t), then the mean over the trajectories with |O| > 0, times ``coef``. O is
    the content of what the environment answered after the first sample; the initial prompt is never in it, so a
    single-turn rollout adds nothing.
    """

    mask = ferrule.Mask.OBSERVATION
    reduction = "seq-mean-token-mean"

    @attrs.frozen
    class Config(ferrule.AuxLoss.Config):
        """Options of ``echo``.

        coef  its weight beside the policy loss; 0 switches it off
        mask  ``observation``: the content of the answers; ``environment``: the template's tokens around it too
        """

        coef: float = attrs.field(default=0.05, validator=v.ge(0.0))
        mask: Literal["observation", "environment"] = attrs.field(
            default="observation", validator=v.in_(("observation", "environment"))
        )

    def tokens(self, row: ferrule.Row) -> NDArray[np.bool_]:
        """bool[T]: where *row* holds what the environment answered."""
        return ferrule.Mask(self.config.mask).of(row.kind)

    def weight(self, row: ferrule.Row, ctx: ferrule.LossContext) -> float:
        """1 for every token."""
        return 1.0
