"""Where a session's replies come from: a rollout's agent, or a :class:`ferrule.Session` of the gateway's own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ferrule import (
    ContextOverflow,
    Message,
    Renderer,
    Reply,
    Sampler,
    SamplingParams,
    Session,
    ToolSpec,
    Trajectory,
    derive_seed,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Source(Protocol):
    """What answers the requests of one session, and keeps every token."""

    async def reply(self, messages: list[Message], tools: tuple[ToolSpec, ...], params: SamplingParams) -> Reply:
        """The model's next message after *messages*, the whole conversation."""

    async def complete(self, ids: NDArray[np.int32], params: SamplingParams) -> Reply:
        """The completion of *ids*, int32[T], the whole context."""

    def export(self) -> Trajectory:
        """All that was captured."""


class SessionSource:
    """Replies from a sampler, for a session that was created over HTTP. The sampler's session is opened with the first
    request; ``close`` gives it back.
    """

    def __init__(
        self, key: str, renderer: Renderer, sampler: Sampler, *, seed: int | None = None, vocab_size: int | None = None
    ) -> None:
        self.key, self.seed = key, seed
        self._renderer, self._sampler, self._vocab_size = renderer, sampler, vocab_size
        self._stack = AsyncExitStack()
        self._session: Session | None = None
        self._opening = asyncio.Lock()

    async def reply(self, messages: Sequence[Message], tools: Sequence[ToolSpec], params: SamplingParams) -> Reply:
        session = self._session or await self._open()
        return await session.reply(messages, tools, params, self._room)

    async def complete(self, ids: NDArray[np.int32], params: SamplingParams) -> Reply:
        session = self._session or await self._open()
        return await session.complete(ids, params, self._room)

    def export(self) -> Trajectory:
        return self._session.trajectory(None) if self._session is not None else Trajectory("agent")

    @property
    def resets(self) -> int:
        """How often a request began a new segment."""
        return self._session.resets if self._session is not None else 0

    async def close(self) -> None:
        await self._stack.aclose()

    def _room(self, length: int, superseded: int) -> int:
        room = self._sampler.context_length - length
        if room <= 0:
            raise ContextOverflow(length, self._sampler.context_length)
        return room

    async def _open(self) -> Session:
        async with self._opening:
            if self._session is None:
                seed = derive_seed("gateway", self.key) if self.seed is None else self.seed & (2**63 - 1)
                engine: Any = await self._stack.enter_async_context(self._sampler.open(self.key, seed=seed))
                self._session = Session(self._renderer, engine, name="agent", key=self.key, vocab_size=self._vocab_size)
            return self._session
