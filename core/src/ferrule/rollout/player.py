"""The player: takes a slot, opens what an episode needs, lets the harness play, scores, and closes everything on
every path.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING

import attrs

from ..data import Episode, SamplingParams, Termination, derive_seed
from ..errors import EpisodeFailed, Failure, RolloutCut
from ..kinds import Harness, Renderer, Sampler, SandboxBackend, Task
from ..logs import get_logger
from ..masking import masked
from .play import Play, PlayResult
from .rollout import Rollout
from .shutdown import BREAKS, being_cancelled, one_line, outlast
from .slots import Slots

if TYPE_CHECKING:
    from ..config.schema import RolloutConfig

log = get_logger("ferrule.rollout")

FINAL = frozenset({Failure.RENDER_FAILED})
"""Failures that playing again cannot mend: the renderer would refuse the same messages."""


def _first(group: ExceptionGroup[RolloutCut]) -> RolloutCut:
    """The first error inside nested groups."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, ExceptionGroup) else error


@attrs.define
class Stats:
    """What was started and what was closed, by name: ``episodes``, ``plays`` (attempts that a task began),
    ``sandboxes``, ``sessions``.
    """

    started: Counter[str] = attrs.field(factory=Counter)
    closed: Counter[str] = attrs.field(factory=Counter)

    @property
    def live(self) -> dict[str, int]:
        """How many of each are open now."""
        return {what: count - self.closed[what] for what, count in self.started.items()}


class Player:
    """Plays episodes of one run, as many at once as ``config.slots``.

    *renderer* and *sampler* are None where the harness needs no model; *sandboxes* where no task needs one.
    ``score_timeout`` and ``setup_timeout`` bound the verifier and the setup of an attempt, in seconds;
    ``config.timeout`` bounds the harness.
    """

    def __init__(
        self,
        harness: Harness,
        renderer: Renderer | None,
        sampler: Sampler | None,
        sandboxes: SandboxBackend | None = None,
        *,
        config: RolloutConfig,
        sampling: SamplingParams | None = None,
        vocab_size: int | None = None,
        run_seed: int = 0,
        score_timeout: float | None = 600.0,
        setup_timeout: float | None = 600.0,
    ) -> None:
        self.harness, self.renderer, self.sampler, self.sandboxes = harness, renderer, sampler, sandboxes
        self.config, self.sampling = config, sampling or SamplingParams()
        self.vocab_size, self.run_seed = vocab_size, run_seed
        self.slots = Slots(config.slots)
        self.stats = Stats()
        self._timeouts = {"score_timeout": score_timeout, "setup_timeout": setup_timeout}

    async def play(
        self, task: Task, attempt: int = 0, *, step: int = 0, group: str = "", sampling: SamplingParams | None = None
    ) -> Episode:
        """One episode of *task*: played, scored and closed. A failed one is played again, up to ``config.retries``
        times with other seeds; the last comes back.

        *group* is the path under which the episode is filed (``train/step-3``). Raises nothing but CancelledError, and
        that after everything is closed and the slot given back.
        """
        for retry in range(self.config.retries + 1):
            async with await self.slots.take():
                episode = await self._once(task, attempt, retry, step, group, sampling or self.sampling)
            if episode.failure is None:
                break
            last = retry == self.config.retries or episode.failure in FINAL
            log.warning(
                "episode_failed", episode=episode.id, reason=str(episode.failure), error=episode.error, again=not last
            )
            if last:
                break
        return episode

    async def _once(
        self, task: Task, attempt: int, retry: int, step: int, group: str, sampling: SamplingParams
    ) -> Episode:
        began = time.monotonic()
        name = f"{group + '/' if group else ''}{task.id}#{attempt}" + (f"~{retry}" if retry else "")
        play = Play(
            task, attempt, sandboxes=self.sandboxes, reward=self.config.reward, stats=self.stats, **self._timeouts
        )
        model = self.harness.needs_model
        rollout = Rollout(
            task,
            attempt,
            seed=derive_seed(self.run_seed, group, step, task.id, attempt, retry),
            limits=self.config,
            sampling=sampling,
            roles=self.harness.roles if model else (),
            renderer=self.renderer if model else None,
            sampler=self.sampler if model else None,
            vocab_size=self.vocab_size,
            key=name,
            stats=self.stats,
        )
        result: PlayResult | None = None
        failure: EpisodeFailed | None = None
        self.stats.started["episodes"] += 1
        try:
            await rollout.open()
            await play.start()
            result = await self._run(play, rollout)
        except EpisodeFailed as error:
            failure = error
        except asyncio.CancelledError:
            if being_cancelled():
                raise
            failure = EpisodeFailed(Failure.CANCELLED, f"harness {self.harness.name!r} was cancelled from inside")
        except BREAKS as error:
            log.debug("harness_failed", episode=name, exc_info=True)
            failure = EpisodeFailed(Failure.HARNESS_FAILED, f"harness {self.harness.name!r}: {one_line(error)}")
            # Where the harness broke over a failure that it was told of, the root is what counts.
            if play.failure is not None:
                failure = play.failure
            elif isinstance(rollout.ended, EpisodeFailed):
                failure = rollout.ended
        finally:
            try:
                await outlast(self._close(play, rollout))
            finally:
                self.stats.closed["episodes"] += 1
        reward = result.reward if result is not None else None
        return Episode(
            id=name,
            task_id=task.id,
            attempt=attempt,
            trajectories=tuple(agent.trajectory(reward) for agent in rollout.agents),
            termination=result.termination if result is not None else Termination.ERROR,
            scores=play.scores,
            reward=reward,
            messages=tuple(play.messages),
            artifacts={name: masked(text) for name, text in play.artifacts.items()},
            metrics={**play.metrics, "resets": float(sum(agent.resets for agent in rollout.agents))},
            failure=failure.reason if failure is not None else None,
            error=" ".join(failure.detail.split()) if failure is not None else None,
            group=group,
            seconds=time.monotonic() - began,
            retries=retry,
        )

    async def _run(self, play: Play, rollout: Rollout) -> PlayResult:
        """Let the harness play; then the verdict, of a play that ended or that is cut where it stands."""
        try:
            async with asyncio.timeout(self.config.timeout) as limit:
                await self.harness.run(play, rollout)
        except RolloutCut as cut:
            rollout.end(cut)
        except TimeoutError:
            if not limit.expired():
                raise
        except ExceptionGroup as group:
            # Agents that ran side by side in a task group: a cut of one arrives wrapped.
            cuts, rest = group.split(RolloutCut)
            if rest is not None or cuts is None:
                raise
            rollout.end(_first(cuts))
        # The conversations end before the verifier runs, lest others wait for them in a lock-step sampler.
        await outlast(rollout.close())
        if isinstance(rollout.ended, EpisodeFailed):
            raise rollout.ended
        if rollout.undelivered is not None and play.turn is not None:
            play.turn.record(rollout.undelivered)
        if rollout.ended is not None:
            return await play.cut(Termination(rollout.ended.termination))
        if play.over:
            return await play.result()
        return await play.cut(Termination.TIMEOUT if limit.expired() else Termination.UNKNOWN)

    async def _close(self, play: Play, rollout: Rollout) -> None:
        try:
            await rollout.close()
        finally:
            await play.close()
