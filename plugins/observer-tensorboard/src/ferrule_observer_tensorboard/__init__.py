"""Metrics as TensorBoard event files, one writer per stage."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs

import ferrule


class TensorBoard(ferrule.Observer, name="tensorboard"):
    """Writes under ``<run>/<folder>/<stage>``. A metric that is not finite is left out: TensorBoard's plots break on
    it.
    """

    @attrs.frozen
    class Config(ferrule.Observer.Config):
        folder: str = "tensorboard"

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._writers: dict[str, Any] = {}

    @ferrule.hookimpl
    def ferrule_metrics(self, run: ferrule.RunInfo, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        writer = self._writers.get(stage)
        if writer is None:
            from tensorboardX import SummaryWriter

            writer = self._writers[stage] = SummaryWriter(str(run.dir / self.config.folder / stage))
        for name, value in metrics.items():
            if math.isfinite(value):
                writer.add_scalar(name, value, step)
        writer.flush()

    @ferrule.hookimpl
    def ferrule_run_finished(self, run: ferrule.RunInfo, summary: Mapping[str, Any]) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()
