"""The model as a harness sees it: messages in, one reply out, within the limits of the episode."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np

from ..data import Message, Termination, ToolSpec, Trajectory
from ..errors import ContextOverflow, EpisodeFailed, RolloutCut
from ..kinds import Renderer, SamplerSession
from .ledger import Ledger
from .plan import Extend, Repeat, Reset, Start
from .session import Reply, Session

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .rollout import Rollout


class Agent:
    """One role of a rollout: a :class:`Session` whose requests are held to the episode's limits."""

    def __init__(
        self,
        name: str,
        rollout: Rollout,
        renderer: Renderer,
        engine: SamplerSession,
        *,
        context_length: int,
        vocab_size: int | None = None,
    ) -> None:
        self.name = name
        self._rollout, self._context_length = rollout, context_length
        self._session = Session(renderer, engine, name=name, key=rollout._key, vocab_size=vocab_size)
        stop_ids = frozenset((*rollout.sampling.stop_ids, *renderer.stop_ids))
        self._sampling = attrs.evolve(rollout.sampling, stop_ids=stop_ids)  # type: ignore[arg-type]
        self._lock = asyncio.Lock()

    @property
    def ledger(self) -> Ledger:
        """Every token that it was shown and sampled."""
        return self._session.ledger

    @property
    def renderer(self) -> Renderer:
        """What its messages are rendered and its completions read with."""
        return self._session.renderer

    @property
    def resets(self) -> int:
        """How often a request began a new segment."""
        return self._session.resets

    @property
    def context_length(self) -> int:
        """Tokens that prompt and completion may have together."""
        return self._context_length

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, length_ends: bool = True
    ) -> Reply:
        """The model's next message after *messages*, the whole conversation as the harness holds it.

        Raises RolloutCut where a limit is reached or the reply is beyond use, EpisodeFailed where the renderer or the
        engine failed. Both are final: every later call raises the same. Calls of one agent wait for each other; without
        *length_ends*, which is for a program whose conversation goes on after a reply that was cut by its length, they
        do not: a newer request takes the place of one that it repeats or overtakes, which raises Superseded, and a
        prompt that fills the context raises ContextOverflow, after which a shorter one may come.
        """
        if not length_ends:
            return await self._reply(messages, tools, length_ends)
        async with self._lock:
            return await self._reply(messages, tools, length_ends)

    async def complete(self, ids: NDArray[np.int32]) -> Reply:
        """The completion of *ids*, int32[T], the whole context: for a program that keeps the tokens itself.

        The episode's limits hold as for :meth:`reply`; what a completion is good for is the program's to judge.
        """
        ids = np.ascontiguousarray(ids, np.int32)
        return await self._limited(
            lambda: self._session.completes_again(ids),
            lambda: self._session.complete(ids, self._sampling, self._open_room),
        )

    def plan(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Start | Extend | Repeat | Reset:
        """How this request meets the ledger; changes nothing."""
        return self._session.plan(messages, tools)

    def trajectory(self, reward: float | None) -> Trajectory:
        """What this agent did, as views of the ledger."""
        return self._session.trajectory(reward)

    async def _reply(self, messages: Sequence[Message], tools: Sequence[ToolSpec], length_ends: bool) -> Reply:
        messages = messages if isinstance(messages, list) else list(messages)
        return await self._limited(
            lambda: self._session.repeats(messages, tools),
            lambda: self._session.reply(
                messages, tools, self._sampling, self._room if length_ends else self._open_room
            ),
            lambda reply: self._judge(reply, length_ends),
        )

    async def _limited(
        self,
        repeats: Callable[[], bool],
        ask: Callable[[], Awaitable[Reply]],
        judge: Callable[[Reply], None] = lambda reply: None,
    ) -> Reply:
        rollout = self._rollout
        if rollout.ended is not None:
            raise rollout.ended
        limit = rollout.limits.max_steps
        full = limit is not None and rollout.steps + rollout._flying >= limit
        # A repeat replaces a message and adds none.
        if full and not repeats():
            raise self._cut(Termination.MAX_STEPS, f"{limit} model messages")
        rollout._flying += 1
        try:
            reply = await ask()
            judge(reply)
        except (RolloutCut, EpisodeFailed) as error:
            rollout.end(error)
            raise
        finally:
            rollout._flying -= 1
        return reply

    def _judge(self, reply: Reply, length_ends: bool) -> None:
        """Cut the rollout where its reply cannot be gone on from."""
        if reply.stop_reason == "length" and length_ends:
            termination = Termination.MAX_RESPONSE_LENGTH
            detail = f"the completion was cut after {len(reply.sample.ids) if reply.sample else 0} tokens"
        elif reply.stop_reason != "length" and reply.parsed.beyond_use:
            termination = Termination.MALFORMED_REPLY
            detail = "; ".join(p.message for p in reply.parsed.problems) or "it never closes"
        else:
            return
        self._rollout.undelivered = reply.message
        raise self._cut(termination, detail)

    def _open_room(self, length: int, superseded: int) -> int:
        """As :meth:`_room`, for a program that may shorten its conversation."""
        if length >= self._context_length:
            raise ContextOverflow(length, self._context_length)
        return self._room(length, superseded)

    def _room(self, length: int, superseded: int) -> int:
        """How many tokens the limits leave after a prompt of *length*; *superseded* tokens of the ledger are about to
        be cut off.
        """
        limits, context = self._rollout.limits, self._context_length
        room = context - length
        if self.ledger.sampled == 0:
            if limits.max_prompt_tokens is not None and length > limits.max_prompt_tokens:
                raise self._cut(
                    Termination.MAX_PROMPT_LENGTH,
                    f"the first prompt has {length} tokens, over {limits.max_prompt_tokens}",
                )
            if room <= 0:
                raise self._cut(
                    Termination.MAX_PROMPT_LENGTH, f"the first prompt has {length} tokens; {context} is the context"
                )
        if room <= 0:
            raise self._cut(Termination.MAX_RESPONSE_LENGTH, f"{length} tokens; {context} is the context")
        if limits.max_response_tokens is not None:
            room = min(room, limits.max_response_tokens - self.ledger.response_tokens + superseded)
            if room <= 0:
                raise self._cut(
                    Termination.MAX_RESPONSE_LENGTH, f"over {limits.max_response_tokens} tokens after the first prompt"
                )
        return room

    def _cut(self, termination: Termination, detail: str) -> RolloutCut:
        error = RolloutCut(termination, detail)
        self._rollout.end(error)
        return error
