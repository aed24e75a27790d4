"""A training sequence, and what each of its tokens is."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import attrs
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class TokenKind(enum.IntEnum):
    """What a token of a row is.

    PROMPT: everything before the trajectory's first sample and, after a reset, what an earlier row already holds.
    ACTION: sampled by the policy, its stop token included. OBSERVATION: overlaps the content of what the environment
    answered. SCAFFOLD: role headers, closes, generation prompts.
    """

    PROMPT = 0
    ACTION = 1
    OBSERVATION = 2
    SCAFFOLD = 3


class Mask(enum.Enum):
    """A set of token kinds, by name. The initial prompt is in none."""

    ACTION = "action"
    OBSERVATION = "observation"
    ENVIRONMENT = "environment"

    @property
    def kinds(self) -> frozenset[TokenKind]:
        return _KINDS[self]

    def of(self, kind: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Where *kind*, uint8[T], is in the set: bool[T]."""
        first = TokenKind.ACTION if self is Mask.ACTION else TokenKind.OBSERVATION
        mask: NDArray[np.bool_] = kind == first
        return mask | (kind == TokenKind.SCAFFOLD) if self is Mask.ENVIRONMENT else mask


_KINDS = {
    Mask.ACTION: frozenset({TokenKind.ACTION}),
    Mask.OBSERVATION: frozenset({TokenKind.OBSERVATION}),
    Mask.ENVIRONMENT: frozenset({TokenKind.OBSERVATION, TokenKind.SCAFFOLD}),
}


@attrs.frozen(eq=False)
class Row:
    """One training sequence of T tokens. Position t of every array is about token ``ids[t]`` itself, unshifted.

    ids       int32[T]
    kind      uint8[T], a :class:`TokenKind` each
    logprobs  float32[T], the sampler's log p at temperature 1 of each ACTION token; 0 elsewhere
    version   int32[T], the weight version that sampled each ACTION token; -1 elsewhere
    trajectory  index of the trajectory in its batch; task_id, attempt, role, segment: where the row came from
    """

    ids: NDArray[np.int32]
    kind: NDArray[np.uint8]
    logprobs: NDArray[np.float32]
    version: NDArray[np.int32]
    trajectory: int = 0
    task_id: str = ""
    attempt: int = 0
    role: str = "agent"
    segment: int = 0

    def __len__(self) -> int:
        return len(self.ids)
