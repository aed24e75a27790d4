"""What every stage of a run works with: its parts, its store, its position, and the ways to play, to record and to
save.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..data import Episode, RunInfo, SamplingParams
from ..errors import FerruleError
from ..kinds import Task, Trainer
from ..logs import get_logger
from ..rollout import Player
from ..store import RunStore
from .measure import Running
from .parts import Parts
from .position import Position, keep_only, save
from .reporter import Reporter
from .stop import StopFlag, Stopped
from .summary import Summary

if TYPE_CHECKING:
    from ..config.schema import RunConfig

log = get_logger("ferrule.training")


class Run:
    """One run under way. ``position`` is changed by the stages, and marked by :meth:`done` at the end of each unit of
    work.
    """

    def __init__(
        self,
        parts: Parts,
        player: Player,
        store: RunStore,
        info: RunInfo,
        position: Position,
        reporter: Reporter,
        stop: StopFlag,
    ) -> None:
        self.parts, self.player, self.store, self.info = parts, player, store, info
        self.observers = parts.observers
        self.position, self.reporter, self.stop = position, reporter, stop
        self.status = "done"
        self.summary: Summary | None = None
        self._since = time.monotonic()
        self._saved: tuple[bool, int, int] | None = position.unit if position.checkpoint else None

    @property
    def config(self) -> RunConfig:
        return self.parts.loaded.config

    @property
    def trainer(self) -> Trainer:
        assert self.parts.trainer is not None
        return self.parts.trainer

    # -- playing --------------------------------------------------------------------------------------------------

    async def play(
        self,
        plays: Sequence[tuple[Task, int]],
        *,
        group: str,
        step: int,
        title: str,
        filed_as: str | None = None,
        sampling: SamplingParams | None = None,
        breakable: bool = False,
    ) -> list[Episode]:
        """Play each ``(task, attempt)`` once; the episodes in the order of *plays*, whatever the order in which they
        end.

        Each is filed and told of as it ends, under *filed_as* (*group* where None). *breakable*: Stopped where the run
        is asked to stop.
        """
        self.reporter.begin(title, len(plays), "episodes")
        running = Running()

        async def one(task: Task, attempt: int) -> Episode:
            episode = await self.player.play(task, attempt, step=step, group=group, sampling=sampling)
            episode.group = filed_as or group
            self.file(episode)
            self.reporter.advance(1, running.add(episode))
            if episode.failed and self.config.train.stop_on_error:
                raise FerruleError(
                    f"episode {episode.id} failed, and train.stop_on_error is set: {episode.failure}: {episode.error}"
                )
            return episode

        work = asyncio.ensure_future(_all([one(task, attempt) for task, attempt in plays]))
        asked = asyncio.ensure_future(self.stop.wait()) if breakable else None
        try:
            if asked is not None:
                await asyncio.wait({work, asked}, return_when=asyncio.FIRST_COMPLETED)
                if not work.done():
                    raise Stopped
            episodes = await work
        finally:
            for future in (work, asked):
                if future is not None and not future.done():
                    future.cancel()
                    await asyncio.wait({future})
            self.reporter.end()
        self._canary(episodes, group)
        return episodes

    def file(self, episode: Episode) -> None:
        renderer = self.parts.renderer
        self.store.file_episode(episode, renderer.decode if renderer else None)
        self.observers.call("episode_finished", run=self.info, episode=episode)

    def _canary(self, episodes: Sequence[Episode], group: str) -> None:
        if episodes and all(episode.failed for episode in episodes):
            first = episodes[0]
            stage = group.partition("/")[0]  # without the step, so that a run of such steps is warned of once
            self.warn(f"all episodes of a {stage} round failed, as this one: {first.failure}: {first.error}")
        steps = [step for e in episodes for t in e.trajectories for step in t.steps]
        if steps and all(step.stop == step.start for step in steps):
            self.warn(f"every one of {len(steps)} completions is empty: what serves the model is not answering")

    # -- recording ------------------------------------------------------------------------------------------------

    def metrics(self, stage: str, step: int, metrics: Mapping[str, float], **labels: Any) -> None:
        self.store.write_metrics(stage, step, metrics, **labels)
        self.observers.call("metrics", run=self.info, stage=stage, step=step, metrics=metrics)
        self.reporter.metrics(stage, step, metrics)

    def warn(self, text: str) -> None:
        if text not in self.position.warnings:
            self.position.warnings.append(text)
        log.info("run_warning", text=text)
        self.reporter.warn(text)

    # -- the position ---------------------------------------------------------------------------------------------

    def done(self) -> None:
        """A unit of work is done: all that was written so far belongs to the position."""
        now = time.monotonic()
        self.position.seconds += now - self._since
        self._since = now
        self.position.offsets = self.store.mark()

    async def checkpoint(self, name: str) -> None:
        """Save the trainer's state under *name* and the position with it; only the position where the weights are those
        of the last save.
        """
        if self._saved != self.position.unit:
            saved = await self.trainer.save(name)
            self.position.checkpoint = saved
            self.position.kept = [c for c in self.position.kept if c.path != saved.path] + [saved]
            self._saved = self.position.unit
        save(self.store, self.position)
        before = len(self.position.kept)
        keep_only(self.store, self.position, self.config.save.keep)
        if len(self.position.kept) != before:
            save(self.store, self.position)

    def save_position(self) -> None:
        """Save the position alone, where it still belongs to the last checkpoint (or to the untouched model)."""
        untouched = self.position.checkpoint is None and self.position.unit == (False, 0, 0)
        if untouched or self._saved == self.position.unit:
            save(self.store, self.position)


async def _all(coroutines: Sequence[Any]) -> list[Episode]:
    """All results in order. The first error, or a cancel, cancels the rest and waits for them."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
