"""Harnesses: the agent's own program, between a play and a model."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, ClassVar

from .base import Plugin, hookspec

if TYPE_CHECKING:
    from ..data import RunInfo
    from ..rollout import Play, Rollout


class Harness(Plugin, abc.ABC):
    """Plays episodes. One instance serves a whole run, many episodes at once, in one event loop; it keeps no state of any."""

    needs_model: ClassVar[bool] = True
    """False for one that samples nothing (replays): then no trainer is needed to evaluate."""

    roles: tuple[str, ...] = ("agent",)
    """The names under which it asks :meth:`ferrule.Rollout.agent` for a model."""

    @abc.abstractmethod
    async def run(self, play: Play, rollout: Rollout) -> None:
        """Play until ``play.next_turn()`` answers None, or return early: the core then takes the result or cuts.

        Limits (steps, tokens, time) arrive as RolloutCut from ``agent.reply``; let it pass. Any other exception fails
        the episode.
        """

    async def start(self, run: RunInfo) -> None:
        """Take what the episodes will share and may not be had (a port), so that the run fails at once where it is not.
        Called once, before anything is trained or sampled.
        """

    async def close(self) -> None:
        """Free what the episodes shared (a server, a pool). Called once when the run ends, after the last episode and
        before the trainer is closed, even where :meth:`start` failed.
        """


class HarnessSpecs:
    @hookspec(firstresult=True)
    def ferrule_harness(self, ref: Any) -> type[Harness] | None:
        """The harness class that *ref* (:class:`ferrule.plugins.Ref`) names, or None where it is not yours."""
