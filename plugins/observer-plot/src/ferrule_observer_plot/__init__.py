"""The reward of a run as a picture: training reward per step, held-out reward per evaluation."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

import ferrule


class RewardPlot(ferrule.Observer, name="plot"):
    """Keeps the reward curves of a run and draws them to ``<run>/<file>``, and to the terminal when the run ends.

    A curve of one point is no plot: the terminal is then told only where the file is. It reads ``reward/<role>/mean``
    of the stage ``train`` and ``eval/<mode>/reward`` of the stage ``eval``. A resumed run starts from the curves that
    the run's ``metrics.jsonl`` already holds.
    """

    @attrs.frozen
    class Config(ferrule.Observer.Config):
        file: str = "reward.png"
        terminal: bool = True

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._curves: dict[str, dict[int, float]] = {}

    @ferrule.hookimpl
    def ferrule_run_started(self, run: ferrule.RunInfo, config: Mapping[str, Any]) -> None:
        import json

        record = run.dir / "metrics.jsonl"
        for line in record.read_text().splitlines() if record.exists() else ():
            entry = json.loads(line)
            self._add(entry.get("stage", ""), entry.get("step", 0), entry)

    @ferrule.hookimpl
    def ferrule_metrics(self, run: ferrule.RunInfo, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        self._add(stage, step, metrics)
        if stage == "eval":
            self._save(run.dir / self.config.file)

    @ferrule.hookimpl
    def ferrule_run_finished(self, run: ferrule.RunInfo, summary: Mapping[str, Any]) -> None:
        if not self._curves:
            return
        self._save(run.dir / self.config.file)
        if self.config.terminal:
            if any(len(curve) > 1 for curve in self._curves.values()):
                print(self._text())
            print(f"plot: {run.dir / self.config.file}")

    def _add(self, stage: str, step: int, metrics: Mapping[str, Any]) -> None:
        for key, value in metrics.items():
            parts = key.split("/")
            if stage == "train" and len(parts) == 3 and parts[0] == "reward" and parts[2] == "mean":
                self._curves.setdefault(f"train ({parts[1]})", {})[step] = float(value)
            elif stage == "eval" and len(parts) == 3 and parts[0] == "eval" and parts[2] == "reward":
                self._curves.setdefault(f"held out ({parts[1]})", {})[step] = float(value)

    def _points(self) -> list[tuple[str, list[int], list[float]]]:
        return [(name, sorted(curve), [curve[step] for step in sorted(curve)]) for name, curve in self._curves.items()]

    def _save(self, path: Path) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.subplots()
        for name, steps, values in self._points():
            held_out = name.startswith("held out")
            axes.plot(steps, values, label=name, marker="o" if held_out else "", alpha=1.0 if held_out else 0.5)
        axes.set_xlabel("RL step")
        axes.set_ylabel("reward")
        axes.grid(alpha=0.3)
        if self._curves:
            axes.legend()
        whole = path.with_name(f".{path.name}.part")
        FigureCanvasAgg(figure).print_png(str(whole))
        os.replace(whole, path)

    def _text(self) -> str:
        import plotille

        figure = plotille.Figure()
        # What lies on the upper edge of the limits is not drawn, so there is one row and one column more than the axes
        # need.
        figure.width, figure.height = 61, 11
        figure.origin = False
        figure.color_mode = "names"
        figure.with_colors = False
        figure.x_label, figure.y_label = "RL step", "reward"
        figure.register_label_formatter(float, lambda value, chars, **_: f"{value:{chars}.2f}")
        points = self._points()
        first = min(0, *(steps[0] for _, steps, _ in points))
        last = max(step for _, steps, _ in points for step in steps)
        values = [value for _, _, curve in points for value in curve]
        apart = max(1, math.ceil((last - first) / 6))  # steps between two ticks, which stand ten columns apart
        figure.set_x_limits(first, first + 6.1 * apart)
        figure.x_ticks_fkt = lambda low, _: round(low)
        figure.register_label_formatter(int, lambda value, chars, **_: f"{value:<{chars}}")
        low, high = min(0.0, *values), max(1.0, *values)
        figure.set_y_limits(low, low + 1.1 * (high - low))
        figure.y_ticks_fkt = lambda value, _: value if value < low + 1.05 * (high - low) else ""
        for name, steps, curve in points:
            figure.plot(steps, curve, label=name, marker=None if name.startswith("train") else name.split("(")[1][0])
        return str(figure.show(legend=True))
