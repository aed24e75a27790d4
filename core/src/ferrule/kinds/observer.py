"""Observers: told of everything that happens in a run; ordinary pluggy hooks, entry-point group ``ferrule.hooks``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..data import Episode, RunInfo
from .base import Plugin, hookspec


class Observer(Plugin):
    """Implements any of the hooks of :class:`ObserverSpecs` under ``@ferrule.hookimpl``; only those a config names
    are active, in its order.

    Hooks run in the event loop's thread, between the steps of the run. An exception in one is logged with the
    observer's name and does not end the run.
    """


class ObserverSpecs:
    @hookspec
    def ferrule_run_started(self, run: RunInfo, config: Mapping[str, Any]) -> None:
        """The run's folder exists; *config* is the configuration as it was given, ``--set`` included, as plain data
        without its secrets.
        """

    @hookspec
    def ferrule_episode_finished(self, run: RunInfo, episode: Episode) -> None:
        """An episode ended and was filed, failed ones included."""

    @hookspec
    def ferrule_metrics(self, run: RunInfo, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """A line of metrics: *stage* is ``sft``, ``train`` or ``eval``; *step* counts the stage's steps (for eval,
        the RL steps behind it; -1 for the untrained model where supervised training follows).
        """

    @hookspec
    def ferrule_run_finished(self, run: RunInfo, summary: Mapping[str, Any]) -> None:
        """The run ended: *summary* holds ``status`` (``done``, ``stopped``, ``failed``), ``evals`` (a list of metric
        tables) and ``dropped`` (counts by reason).
        """


__all__ = ["Observer", "ObserverSpecs"]
