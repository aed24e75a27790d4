"""What a harness is given beside the play, and the sampler sessions behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from ..data import Message, SamplingParams, derive_seed
from ..errors import EpisodeFailed, Failure, RolloutCut
from ..kinds import Renderer, Sampler, SamplerSession, Task
from ..logs import get_logger
from .agent import Agent
from .shutdown import BREAKS, CLOSE_TIMEOUT, one_line

if TYPE_CHECKING:
    from ..config.schema import RolloutConfig
    from .player import Stats

log = get_logger("ferrule.rollout")


class Rollout:
    """What a harness is given beside the play: its agents, the limits, the task and a seed of its own.

    The core opens one sampler session for each of the harness's ``roles`` when the episode starts, not at the first
    reply: a sampler that decodes in lock-step must know early which conversations it has to wait for. They are closed
    as soon as the harness is done, before anything is scored.
    """

    def __init__(
        self,
        task: Task,
        attempt: int,
        *,
        seed: int,
        limits: RolloutConfig,
        sampling: SamplingParams,
        roles: Sequence[str] = (),
        renderer: Renderer | None = None,
        sampler: Sampler | None = None,
        vocab_size: int | None = None,
        key: str = "",
        stats: Stats | None = None,
    ) -> None:
        self.task, self.attempt, self.seed, self.limits, self.sampling = task, attempt, seed, limits, sampling
        self._roles, self._renderer, self._sampler = tuple(roles), renderer, sampler
        self._vocab_size, self._key, self._stats = vocab_size, key or f"{task.id}#{attempt}", stats
        self._agents: dict[str, Agent] = {}
        self._sessions: list[AbstractAsyncContextManager[SamplerSession]] = []
        self._asked: dict[str, Agent] = {}
        self._flying = 0
        self.ended: RolloutCut | EpisodeFailed | None = None
        """What ended the rollout, whether or not the harness let it pass."""

        self.undelivered: Message | None = None
        """A reply that was sampled but cut before the harness saw it."""

    async def open(self) -> None:
        """Open a sampler session for each role. Raises EpisodeFailed(engine_failed)."""
        if self._sampler is None or self._renderer is None:
            return
        for role in self._roles:
            try:
                manager = self._sampler.open(f"{self._key}:{role}", seed=derive_seed(self.seed, role))
                session = await manager.__aenter__()
            except EpisodeFailed:
                raise
            except BREAKS as error:
                raise EpisodeFailed(Failure.ENGINE_FAILED, f"no sampler session opened: {one_line(error)}") from error
            self._sessions.append(manager)
            if self._stats is not None:
                self._stats.started["sessions"] += 1
            self._agents[role] = Agent(
                role,
                self,
                self._renderer,
                session,
                context_length=self._sampler.context_length,
                vocab_size=self._vocab_size,
            )

    async def close(self) -> None:
        """Close the sessions, each once."""
        while self._sessions:
            manager = self._sessions.pop()
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT):
                    await manager.__aexit__(None, None, None)
            except (*BREAKS, asyncio.CancelledError) as error:
                log.warning("session_close_failed", key=self._key, error=one_line(error))
            finally:
                if self._stats is not None:
                    self._stats.closed["sessions"] += 1

    def agent(self, name: str = "agent") -> Agent:
        """The agent of one of the harness's ``roles``; the same object every time."""
        agent = self._agents.get(name)
        if agent is None:
            known = (
                ", ".join(self._agents)
                or "none are open: the harness says needs_model = False, or the run has no trainer"
            )
            raise RuntimeError(f"no agent called {name!r}; the harness's roles: {known}")
        return self._asked.setdefault(name, agent)

    @property
    def agents(self) -> tuple[Agent, ...]:
        """Those that the harness asked for."""
        return tuple(self._asked.values())

    @property
    def steps(self) -> int:
        """Model messages sampled so far, over all agents."""
        return sum(agent.ledger.sampled for agent in self._agents.values())

    def end(self, error: RolloutCut | EpisodeFailed) -> None:
        """Note what ends the rollout; the first stands."""
        if self.ended is None:
            self.ended = error
