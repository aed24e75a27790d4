"""Progress of a run for people: live bars on a terminal, plain lines elsewhere, and the tables at the end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

import click

from ..training import Reporter, Summary

EVERY = 2.0
"""Seconds between two lines of progress where there is no terminal to draw on."""


class LineReporter(Reporter):
    """One line per RL step and evaluation; of work that takes longer, a line every few seconds. To *file*."""

    def __init__(self, file: TextIO) -> None:
        self.file = file
        self._title, self._total, self._done, self._unit = "", 0, 0, ""
        self._before = 0
        self._live: Mapping[str, float] = {}
        self._began = self._last = 0.0

    def line(self, text: str) -> None:
        click.echo(text, file=self.file)

    def header(self, facts: Sequence[tuple[str, str]]) -> None:
        width = max(len(name) for name, _ in facts)
        for name, value in facts:
            self.line(f"{name:<{width}}  {value}")

    def say(self, text: str) -> None:
        self.line(text)

    def warn(self, text: str) -> None:
        self.line(f"warning: {text}")

    def begin(self, title: str, total: int, unit: str, done: int = 0) -> None:
        self._title, self._total, self._done, self._unit, self._live = title, total, done, unit, {}
        self._before = done
        self._began = self._last = time.monotonic()

    def advance(self, count: int = 1, live: Mapping[str, float] | None = None) -> None:
        self._done += count
        self._live = live or self._live
        now = time.monotonic()
        if now - self._last >= EVERY:
            self._last = now
            rate = (self._done - self._before) / (now - self._began)
            left = (self._total - self._done) / rate if rate else 0.0
            figures = "".join(f"  {name} {value:.3f}" for name, value in self._live.items())
            self.line(
                f"{self._title}: {self._done}/{self._total} {self._unit}  {rate:.1f}/s  {_time(left)} left{figures}"
            )

    def metrics(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        text = told(stage, step, metrics)
        if text:
            self.line(text)

    def finish(self, summary: Summary) -> None:
        for text in closing(summary):
            self.line(text)


class RichReporter(LineReporter):
    """Live bars with rate, time left and running figures; lines above them."""

    def __init__(self, file: TextIO) -> None:
        super().__init__(file)
        from rich.console import Console

        self.console = Console(file=file, highlight=False)
        self._progress: Any = None
        self._bar: Any = None

    def line(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        self.console.print(f"warning: {text}", markup=False, soft_wrap=True, style="yellow")

    def begin(self, title: str, total: int, unit: str, done: int = 0) -> None:
        from rich import progress as rich

        self.end()
        super().begin(title, total, unit, done)
        self._progress = rich.Progress(
            rich.TextColumn("{task.description}"),
            rich.BarColumn(bar_width=20),
            rich.MofNCompleteColumn(),
            rich.TextColumn("{task.fields[rate]}"),
            rich.TextColumn("left"),
            rich.TimeRemainingColumn(),
            rich.TextColumn("{task.fields[live]}"),
            console=self.console,
            transient=True,
            refresh_per_second=8,
        )
        self._bar = self._progress.add_task(title, total=total, completed=done, rate="", live="")
        self._progress.start()

    def advance(self, count: int = 1, live: Mapping[str, float] | None = None) -> None:
        self._done += count
        self._live = live or self._live
        if self._progress is not None:
            rate = (self._done - self._before) / max(time.monotonic() - self._began, 1e-6)
            figures = "  ".join(f"{name} {value:.3f}" for name, value in self._live.items())
            self._progress.update(self._bar, advance=count, rate=f"{rate:.1f} {self._unit}/s", live=figures)

    def end(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def reporter_for(file: TextIO) -> Reporter:
    """Bars where *file* is a terminal, lines where it is not."""
    return RichReporter(file) if file.isatty() else LineReporter(file)


def told(stage: str, step: int, metrics: Mapping[str, float]) -> str | None:
    """A line of metrics as people read it; None for one that is not worth a line."""
    if stage == "train":
        picked = {
            name.split("/")[1]: value
            for name, value in metrics.items()
            if name.startswith("reward/") and name.endswith("/mean")
        }
        rewards = "  ".join(
            f"reward {value:.3f}" if len(picked) == 1 else f"reward {role} {value:.3f}"
            for role, value in picked.items()
        )
        parts = [f"step {step}", rewards]
        for name, label in (("loss/policy", "loss"), ("grad_norm", "grad"), ("policy/kl_k3", "kl")):
            if name in metrics:
                parts.append(f"{label} {metrics[name]:.4g}")
        parts += [
            f"{name.removeprefix('loss/')} {value:.4g}"
            for name, value in metrics.items()
            if name.startswith("loss/") and name.count("/") == 1 and name != "loss/policy"
        ]
        if metrics.get("episode/failed"):
            parts.append(f"failed {metrics['episode/failed']:g}")
        parts.append(f"rollout {metrics.get('time/rollout', 0.0):.1f} s  train {metrics.get('time/train', 0.0):.1f} s")
        return "  ".join(part for part in parts if part)
    if stage == "eval":
        figures = [f"{name.removeprefix('eval/')} {value:.3f}" for name, value in metrics.items() if headline(name)]
        return f"eval at step {step}: ".replace("step -1", "the start") + "  ".join(figures)
    if "sft/dev_reward" in metrics:
        return f"SFT step {step}: reward on the dev split {metrics['sft/dev_reward']:.3f}"
    return f"SFT step {step}: loss {metrics['sft/loss']:.3f}" if step % 50 == 0 and "sft/loss" in metrics else None


def headline(name: str) -> bool:
    """Whether a metric of an evaluation stands in tables."""
    parts = name.split("/")
    return len(parts) == 3 and parts[0] == "eval" and parts[2] in ("reward", "accuracy", "observation_ce")


def closing(summary: Summary) -> list[str]:
    """The end of a run in lines: the table of evaluations, what was dropped and why, where everything lies."""
    out = [""]
    if summary.evals:
        columns = list(dict.fromkeys(name for table in summary.evals for name in table if headline(name)))
        rows = [["evaluation", *(name.removeprefix("eval/") for name in columns)]]
        rows += [
            [table["label"], *(f"{table[name]:.3f}" if name in table else "" for name in columns)]
            for table in summary.evals
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        out += [
            "  ".join(
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        out.append("")
    if summary.dropped:
        out.append("dropped:")
        out += [
            f"  {count:>7}  {reason}"
            for reason, count in sorted(summary.dropped.items(), key=lambda item: (-item[1], item[0]))
        ]
    else:
        out.append("dropped: nothing")
    for reason, count in sorted(summary.skipped.items()):
        out.append(f"optimizer steps not taken: {count} ({reason.replace('_', ' ')})")
    out += [f"warning: {text}" for text in summary.warnings]
    episodes = f"{summary.episodes} episode{'s' if summary.episodes != 1 else ''}"
    played = f"{summary.steps} RL step{'s' if summary.steps != 1 else ''} and {episodes}"
    done = played if summary.kind == "train" else episodes
    out.append(f"{summary.status} after {done}, in {_time(summary.seconds)}")
    out.append(f"files: {summary.dir}")
    if summary.status != "done" and summary.kind == "train":
        out.append(f"go on with: ferrule train --resume {summary.dir}")
    return out


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
