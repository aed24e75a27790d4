"""The token ledger: what the model was shown and what it sampled, token for token, in buffers that only grow."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import attrs
import numpy as np

from ..data import Message, Segment, Step, TokenKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..kinds import Sample

S = TypeVar("S", bound=np.generic)

_FIRST_CAPACITY = 512


class _Buffer:
    """The four arrays of one segment, doubled when full.

    A token, once written, is never overwritten in place: cropping moves to fresh arrays. So a view that was handed out
    (a prompt that a sampler still compares its cache with) stays what it was.
    """

    __slots__ = ("ids", "kind", "length", "logprobs", "response", "version")

    def __init__(self) -> None:
        self.length = 0
        self.response = 0
        """How many tokens are not PROMPT."""
        self.ids = np.empty(_FIRST_CAPACITY, np.int32)
        self.kind = np.empty(_FIRST_CAPACITY, np.uint8)
        self.logprobs = np.empty(_FIRST_CAPACITY, np.float32)
        self.version = np.empty(_FIRST_CAPACITY, np.int32)

    def _move(self, capacity: int) -> None:
        """Into fresh arrays."""
        for name in ("ids", "kind", "logprobs", "version"):
            old = getattr(self, name)
            fresh = np.empty(capacity, old.dtype)
            fresh[: self.length] = old[: self.length]
            setattr(self, name, fresh)

    def append(
        self,
        ids: NDArray[np.int32],
        kind: NDArray[np.uint8] | int,
        logprobs: NDArray[np.float32] | float = 0.0,
        version: NDArray[np.int32] | int = -1,
    ) -> None:
        start, stop = self.length, self.length + len(ids)
        if stop > len(self.ids):
            self._move(max(stop, 2 * len(self.ids)))
        self.ids[start:stop] = ids
        self.kind[start:stop] = kind
        self.logprobs[start:stop] = logprobs
        self.version[start:stop] = version
        self.length = stop
        self.response += int(np.count_nonzero(self.kind[start:stop]))

    def crop(self, length: int) -> None:
        self.length = length
        self._move(len(self.ids))
        self.response = int(np.count_nonzero(self.kind[:length]))

    def view(self, array: NDArray[S], start: int = 0) -> NDArray[S]:
        out = array[start : self.length]
        out.flags.writeable = False
        return out


@attrs.frozen
class _Mark:
    """A step, without its arrays."""

    segment: int
    start: int
    stop: int
    stop_reason: str
    message: Message
    status: str
    version: int


class Ledger:
    """The tokens of one agent in one episode: segments that only grew, and the steps sampled into them.

    A prompt is appended whole when a segment opens, later as what it adds; samples follow verbatim. Until the first
    sample every token is PROMPT. ``crop`` cuts a superseded tail off before anything is built on it.
    """

    def __init__(self) -> None:
        self._buffers: list[_Buffer] = []
        self._marks: list[_Mark] = []

    def __len__(self) -> int:
        """How many segments there are."""
        return len(self._buffers)

    @property
    def sampled(self) -> int:
        """How many steps stand in the ledger."""
        return len(self._marks)

    @property
    def response_tokens(self) -> int:
        """All tokens after the first prompt, each counted once: what is PROMPT in a later segment is in an earlier
        one already.
        """
        return sum(buffer.response for buffer in self._buffers)

    def length(self, segment: int) -> int:
        """How many tokens *segment* holds."""
        return self._buffers[segment].length

    def tokens(self, segment: int, start: int = 0, stop: int | None = None) -> NDArray[np.int32]:
        """int32[T], a read-only view of the tokens of *segment* from *start* to *stop*; what it shows never changes."""
        buffer = self._buffers[segment]
        view = buffer.view(buffer.ids, start)
        return view if stop is None else view[: stop - start]

    def open(self) -> int:
        """A new, empty segment; its index."""
        self._buffers.append(_Buffer())
        return len(self._buffers) - 1

    def prompt(self, segment: int, ids: NDArray[np.int32], kinds: NDArray[np.uint8]) -> None:
        """Append prompt tokens, int32[N], with their kinds, uint8[N] (before the first sample: all PROMPT)."""
        self._buffers[segment].append(ids, kinds if self._marks else TokenKind.PROMPT)

    def sample(self, segment: int, sample: Sample, message: Message, status: str = "ok") -> int:
        """Append a completion as an ACTION step; the step's index."""
        buffer = self._buffers[segment]
        start = buffer.length
        buffer.append(sample.ids, TokenKind.ACTION, sample.logprobs, sample.versions)
        version = int(sample.versions[0]) if len(sample.ids) else -1
        self._marks.append(_Mark(segment, start, buffer.length, sample.stop_reason, message, status, version))
        return len(self._marks) - 1

    def forget(self, segment: int, length: int) -> None:
        """Cut off what was sampled from *length* on, a completion of no token included, and all after it."""
        self._marks = [mark for mark in self._marks if mark.segment != segment or mark.start < length]
        self.crop(segment, length)

    def crop(self, segment: int, length: int) -> None:
        """Cut *segment* to its first *length* tokens and forget the steps that reach beyond; the last segment goes
        when cut to nothing.
        """
        buffer = self._buffers[segment]
        if not 0 <= length <= buffer.length:
            raise ValueError(f"cannot cut a segment of {buffer.length} tokens to {length}")
        self._marks = [mark for mark in self._marks if mark.segment != segment or mark.stop <= length]
        if length == 0 and segment == len(self._buffers) - 1:
            self._buffers.pop()
        elif length < buffer.length:
            buffer.crop(length)

    def segments(self) -> tuple[Segment, ...]:
        """Every segment, as read-only views."""
        return tuple(
            Segment(b.view(b.ids), b.view(b.kind), b.view(b.logprobs), b.view(b.version)) for b in self._buffers
        )

    @property
    def steps(self) -> tuple[Step, ...]:
        """Every step in the order of sampling."""
        return self.steps_in(self.segments())

    def steps_in(self, segments: tuple[Segment, ...]) -> tuple[Step, ...]:
        """The steps, holding these *segments* (of :meth:`segments`), so that a trajectory's two lists share their
        objects.
        """
        return tuple(
            Step(segments[m.segment], m.segment, m.start, m.stop, m.stop_reason, m.message, m.status, m.version)
            for m in self._marks
        )
