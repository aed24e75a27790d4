"""The asyncio side of sampling: sessions, and when the engine hears of what they want."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ferrule import EpisodeFailed, Failure, Sample, Sampler, SamplerSession, SamplingParams, TrainerError

from .draw import Uniforms
from .engine import Engine
from .state import Request, State

TURNS = 3
"""Turns of the event loop after which the engine hears of a request or of a session's end. Openings it hears of at
once. So whoever was ready to run when a request was made, or is set going by a session's end, has opened its own
session before a step is taken, and what is in the batch does not hang on which thread was quicker.
"""


class LocalSession(SamplerSession):
    def __init__(self, sampler: LocalSampler, state: State) -> None:
        self._sampler, self._state = sampler, state
        self._requests = 0
        self._busy = False

    async def sample(self, prompt: NDArray[np.int32], params: SamplingParams) -> Sample:
        prompt = np.ascontiguousarray(prompt, dtype=np.int32)
        self._sampler.check(prompt, params)
        if self._busy:
            raise TrainerError(f"session {self._state.key!r} was asked for a sample while another is under way")
        loop = asyncio.get_running_loop()
        uniforms = Uniforms(self._state.seed, self._requests)
        request = Request(prompt, params, uniforms, loop.create_future())
        self._requests += 1
        self._busy = True
        self._sampler.later(loop, ("ask", self._state, request))
        try:
            return await request.future
        except asyncio.CancelledError:
            request.cancelled = True
            self._sampler.engine.post(("cancel", self._state, request))
            raise
        finally:
            self._busy = False


class LocalSampler(Sampler):
    """Sessions decode together in one thread; see :class:`.engine.Engine`."""

    def __init__(self, engine: Engine, vocab: int, context_length: int) -> None:
        self.engine, self._vocab, self.context_length = engine, vocab, context_length
        self._serial = itertools.count()
        self._outbox: list[tuple[Any, ...]] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def counters(self) -> Counter[str]:
        """What was done since the start: steps, prefills, prefill_tokens, forced_tokens, sampled_tokens, reused,
        cropped, patience_expired.
        """
        return Counter(self.engine.counters)

    def check(self, prompt: NDArray[np.int32], params: SamplingParams) -> None:
        if not len(prompt):
            raise TrainerError("an empty prompt cannot be completed")
        if len(prompt) + params.max_tokens > self.context_length:
            raise TrainerError(
                f"a prompt of {len(prompt)} tokens and max_tokens {params.max_tokens} exceed the context of "
                f"{self.context_length} tokens"
            )
        low, high = int(prompt.min()), int(prompt.max())
        if low < 0 or high >= self._vocab:
            bad = low if low < 0 else high
            raise EpisodeFailed(Failure.INVALID_TOKEN, f"token {bad} is not among the model's {self._vocab}")

    def open(self, key: str, *, seed: int) -> AbstractAsyncContextManager[SamplerSession]:
        return self._session(key, seed)

    @asynccontextmanager
    async def _session(self, key: str, seed: int) -> AsyncIterator[SamplerSession]:
        state = State(key, seed, next(self._serial))
        self.engine.post(("open", state))
        try:
            yield LocalSession(self, state)
        finally:
            self.later(asyncio.get_running_loop(), ("close", state))

    def later(self, loop: asyncio.AbstractEventLoop, event: tuple[Any, ...]) -> None:
        """Tell the engine of *event* in some turns of *loop*, together with what else comes up until then."""
        self._outbox.append(event)
        if self._loop is not loop:
            self._loop = loop
            loop.call_soon(self._turn, loop, TURNS)

    def _turn(self, loop: asyncio.AbstractEventLoop, left: int) -> None:
        if left:
            loop.call_soon(self._turn, loop, left - 1)
            return
        if self._loop is loop:
            self._loop = None
        events, self._outbox = self._outbox, []
        self.engine.post(*events)
