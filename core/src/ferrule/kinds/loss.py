"""Auxiliary losses: token-weighted cross-entropies that are added to the policy loss."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import attrs
from attrs import validators as v

from ..data import Mask, Row
from .base import Plugin, hookspec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Reduction = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "token-sum"]


@attrs.frozen(eq=False)
class LossContext:
    """What a loss asked for in ``needs``, for one row of T tokens.

    logprobs   float32[T] under the current weights (``needs = {"logprobs"}``), else None
    reward     the trajectory's reward; advantage: its advantage (0 where the policy does not learn from it)
    step       optimizer steps made before this one
    """

    logprobs: NDArray[np.float32] | None = None
    reward: float = 0.0
    advantage: float = 0.0
    step: int = 0


class AuxLoss(Plugin, abc.ABC):
    """``coef · Agg_mask(w_t · (−log p(x_t)))``, where ``mask`` picks tokens, :meth:`weight` gives w and
    ``reduction`` is Agg.

    ``needs`` names capabilities of the trainer that the weight is computed from; a trainer that does not provide them
    is refused when the configuration is checked. A sequence in ``reduction`` is a trajectory; only those with a token
    in the mask count. An explicit ``coef = 0.0`` switches the loss off.
    """

    mask: ClassVar[Mask] = Mask.ACTION
    reduction: ClassVar[Reduction] = "seq-mean-token-mean"
    needs: ClassVar[frozenset[str]] = frozenset()

    @attrs.frozen
    class Config(Plugin.Config):
        coef: float = attrs.field(validator=v.ge(0.0))

    @abc.abstractmethod
    def weight(self, row: Row, ctx: LossContext) -> float | NDArray[np.float32]:
        """A scalar, or float32[T] of which only the tokens in the mask are read; finite; no gradient flows through it."""

    def tokens(self, row: Row) -> NDArray[np.bool_]:
        """bool[T]: the tokens of *row* that this loss is over. The class's ``mask``, unless the subclass chooses by
        its config.
        """
        return self.mask.of(row.kind)


class LossSpecs:
    @hookspec(firstresult=True)
    def ferrule_loss(self, ref: Any) -> type[AuxLoss] | None:
        """The loss class that *ref* (:class:`ferrule.plugins.Ref`) names, or None where it is not yours."""
