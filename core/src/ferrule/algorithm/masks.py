"""What an auxiliary loss is called and which tokens it is over, checked, since a loss may be anybody's code."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..data import Row
from ..errors import FerruleError
from ..kinds import AuxLoss


def label(loss: AuxLoss) -> str:
    """The name of *loss* in metrics and messages."""
    return loss.name or type(loss).__name__


def tokens_of(loss: AuxLoss, row: Row) -> NDArray[np.bool_]:
    """bool[T]: the tokens of *row* that *loss* is over, never position 0. FerruleError where the loss gives no such
    array.
    """
    mask = np.asarray(loss.tokens(row))
    if mask.dtype != np.bool_ or mask.shape != (len(row),):
        raise FerruleError(
            f"loss {label(loss)!r}: tokens() gave {mask.dtype} of shape {list(mask.shape)} for a row of {len(row)} tokens; bool[T] is wanted"
        )
    mask = mask.copy()
    mask[:1] = False
    return mask
