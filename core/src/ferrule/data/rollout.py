"""What a rollout leaves behind: episodes of trajectories of steps, over segments of tokens."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from .message import Message

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..errors import Failure


class Termination(enum.StrEnum):
    """How a rollout ended."""

    ENV_DONE = "env_done"
    MAX_STEPS = "max_steps"
    MAX_PROMPT_LENGTH = "max_prompt_length"
    MAX_RESPONSE_LENGTH = "max_response_length"
    TIMEOUT = "timeout"
    MALFORMED_REPLY = "malformed_reply"
    ERROR = "error"
    UNKNOWN = "unknown"


@attrs.frozen(eq=False)
class Segment:
    """A stretch of conversation that only grew: T tokens, as in :class:`ferrule.Row`, arrays being views."""

    ids: NDArray[np.int32]
    kind: NDArray[np.uint8]
    logprobs: NDArray[np.float32]
    version: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.ids)


@attrs.frozen(eq=False)
class Step:
    """One sampled completion: tokens ``start`` to ``stop`` of ``segment`` (stop token included, where one was sampled).

    ``prompt_length`` is ``start``: all before it in the segment was its prompt. ``stop_reason`` is ``stop`` or
    ``length``. ``status`` is the parser's: ``ok``, ``malformed`` or ``truncated``. ``version`` is the weight version of
    its first token.
    """

    segment: Segment
    segment_index: int
    start: int
    stop: int
    stop_reason: str
    message: Message
    status: str = "ok"
    version: int = 0

    @property
    def prompt_length(self) -> int:
        return self.start

    @property
    def completion(self) -> NDArray[np.int32]:
        """int32[stop - start]"""
        return self.segment.ids[self.start : self.stop]

    @property
    def logprobs(self) -> NDArray[np.float32]:
        """float32[stop - start]"""
        return self.segment.logprobs[self.start : self.stop]


@attrs.define(eq=False)
class Trajectory:
    """What one role did in one episode. ``reward`` is None where the run failed.

    ``advantages`` may carry precomputed ones: a scalar, or float[number of action tokens].
    """

    name: str
    steps: Sequence[Step] = ()
    segments: Sequence[Segment] = ()
    reward: float | None = None
    signals: dict[str, float] = attrs.field(factory=dict)
    metadata: dict[str, Any] = attrs.field(factory=dict)
    advantages: Any = None

    @property
    def action_tokens(self) -> int:
        return sum(step.stop - step.start for step in self.steps)


@attrs.define(eq=False)
class Episode:
    """One attempt at one task.

    ``failure`` is set where the run failed, with ``error`` its text; then ``reward`` and every trajectory's are None,
    whatever ``scores`` say. ``messages`` is the conversation as text, ``metrics`` counts (``messages``, ``tool_calls``,
    ``tool_errors``, ``cut`` …), ``artifacts`` texts by name (what a program printed), ``group`` the path
    under which the run's index files it (``train/step-3``).
    """

    id: str
    task_id: str
    attempt: int
    trajectories: tuple[Trajectory, ...] = ()
    termination: Termination = Termination.UNKNOWN
    scores: Mapping[str, float] = attrs.field(factory=dict)
    reward: float | None = None
    messages: tuple[Message, ...] = ()
    metrics: dict[str, float] = attrs.field(factory=dict)
    artifacts: dict[str, str] = attrs.field(factory=dict)
    failure: Failure | None = None
    error: str | None = None
    group: str = ""
    seconds: float = 0.0
    retries: int = 0

    @property
    def failed(self) -> bool:
        return self.failure is not None


@attrs.frozen(eq=False)
class Group:
    """All attempts at one task by one role."""

    task_id: str
    role: str
    trajectories: tuple[Trajectory, ...]
