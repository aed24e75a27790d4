"""Trains the recipe on several seeds and prints their table: ``python -m ferrule_gridsim.seeds``."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import attrs

from . import home

UNTRAINED, AFTER_SFT, GAIN = 0.1, 0.40, 0.12
"""What the recipe promises of the sampled reward: below the first untrained, at least the second after SFT, and at
least the third won by RL.
"""


class Unfinished(Exception):
    """A run whose metrics do not hold all that the table shows."""


@attrs.frozen
class Curve:
    """One run's evaluations: (sampled, greedy) reward by label (``untrained``, ``step-0``, …, in order), SFT steps,
    and the cross-entropy of the observations after SFT and at the end, in nats per token.
    """

    seed: int
    evals: dict[str, tuple[float, float]]
    sft_steps: int
    observation_ce: tuple[float, float]

    @property
    def last(self) -> str:
        return list(self.evals)[-1]

    @property
    def gain(self) -> float:
        """What RL added to the sampled reward."""
        return self.evals[self.last][0] - self.evals["step-0"][0]

    @property
    def kept(self) -> bool:
        """Whether it is what the recipe promises."""
        return self.evals["untrained"][0] < UNTRAINED and self.evals["step-0"][0] >= AFTER_SFT and self.gain >= GAIN


def read(folder: Path) -> Curve:
    """The curve of the run in *folder*. Raises Unfinished saying what is missing."""
    seed = json.loads((folder / "manifest.json").read_text("utf-8"))["config"].get("seed", 0)
    evals: dict[str, tuple[float, float]] = {}
    observed: dict[str, float] = {}
    sft_steps = 0
    for text in (folder / "metrics.jsonl").read_text("utf-8").splitlines():
        line = json.loads(text)
        if line["stage"] == "eval":
            evals[line["label"]] = (line["eval/sampled/reward"], line["eval/greedy/reward"])
            observed[line["label"]] = line.get("eval/sampled/observation_ce", float("nan"))
        elif line["stage"] == "sft":
            sft_steps = line["step"]
    if missing := [label for label in ("untrained", "step-0") if label not in evals]:
        raise Unfinished(f"{folder}: no evaluation {missing[0]!r} in metrics.jsonl")
    if len(evals) < 3:
        raise Unfinished(f"{folder}: no evaluation after an RL step in metrics.jsonl")
    return Curve(int(seed), evals, sft_steps, (observed["step-0"], list(observed.values())[-1]))


def table(curves: Sequence[Curve]) -> str:
    """Markdown: a line per seed, then the best and the worst of each column. Rewards are *sampled / greedy*; the
    observations' cross-entropy is that after SFT and that at the end.
    """
    labels = list(curves[0].evals)
    names = {"untrained": "untrained", "step-0": "after SFT"}
    head = [
        "seed",
        *(names.get(label, label.replace("-", " ")) for label in labels),
        "gain",
        "SFT steps",
        "observation CE",
    ]
    rows = [
        [
            str(c.seed),
            *(_pair(*c.evals[label]) for label in labels),
            f"{c.gain:+.2f}",
            str(c.sft_steps),
            f"{c.observation_ce[0]:.1f} → {c.observation_ce[1]:.1f}",
        ]
        for c in curves
    ]
    for name, pick in (("best", max), ("worst", min)):
        both = [[pick(c.evals[label][i] for c in curves) for i in (0, 1)] for label in labels]
        rows.append([name, *(_pair(*pair) for pair in both), f"{pick(c.gain for c in curves):+.2f}", "", ""])
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _pair(sampled: float, greedy: float) -> str:
    return f"{sampled:.2f} / {greedy:.2f}"


def train(seed: int, runs: Path, extra: Sequence[str]) -> Path:
    """Train on *seed* by ``ferrule train``; the folder of its run. Raises SystemExit where that fails."""
    before = set(runs.glob("*/manifest.json"))
    command = [str(Path(sys.executable).with_name("ferrule")), "train", str(home() / "train.toml")]
    for setting in (f"seed={seed}", f"runs={json.dumps(str(runs))}", f"name=gridsim-seed-{seed}", *extra):
        command += ["--set", setting]
    print("$", " ".join(command), flush=True)
    code = subprocess.run(command, check=False).returncode
    new = set(runs.glob("*/manifest.json")) - before
    if code or len(new) != 1:
        raise SystemExit(f"training on seed {seed} ended with exit code {code}; its run is below {runs}")
    return new.pop().parent


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Train GridSim on several seeds, one after the other, and print their table."
    )
    parser.add_argument("seeds", nargs="*", type=int, default=[1, 2, 3], help="default: 1 2 3")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the runs go (default: runs)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting for every run, as of ferrule train"
    )
    parser.add_argument(
        "--read", nargs="+", type=Path, metavar="RUN", help="train nothing: the table of these runs' folders"
    )
    parser.add_argument("--to", type=Path, help="also write the table to this file")
    options = parser.parse_args(arguments)
    runs = options.runs.absolute()
    try:
        curves = [read(folder) for folder in options.read or [train(seed, runs, options.set) for seed in options.seeds]]
    except (Unfinished, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    text = table(curves)
    print(text)
    if options.to is not None:
        options.to.write_text(text + "\n", "utf-8")
    broken = [curve.seed for curve in curves if not curve.kept]
    if broken:
        print(f"not what the recipe promises: seed {', '.join(map(str, broken))}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
