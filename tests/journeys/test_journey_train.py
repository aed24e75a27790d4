"""A training with every first-party part, as a user starts it: through the command, killed at a random step and
resumed, and with a loss of their own.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

RECIPE = Path(__file__).parents[2] / "contrib" / "gridsim" / "train.toml"
FERRULE = [sys.executable, "-c", "from ferrule.cli import main; main()"]
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "KMP_BLOCKTIME": "0"}
LOSS = '''
import attrs
import numpy as np

import ferrule


class LengthTax(ferrule.AuxLoss, name="length_tax"):
    """Cross-entropy on what was sampled, heavier the longer it ran."""

    mask = ferrule.Mask.ACTION

    @attrs.frozen
    class Config(ferrule.AuxLoss.Config):
        knee: int = attrs.field(default=16, validator=attrs.validators.ge(1))

    def weight(self, row, ctx):
        return (np.cumsum(self.tokens(row)) / self.config.knee).astype(np.float32)
'''
SMALL = {
    "train.steps": 5,
    "train.tasks_per_step": 2,
    "train.group_size": 3,
    "eval.limit": 8,
    "eval.every": 2,
    "eval.untrained": False,
    "sft.demonstrations": 160,
    "sft.min_steps": 32,
    "sft.round_steps": 8,
    "sft.max_steps": 40,
    "sft.dev_tasks": 6,
    "save.every": 2,
    "filter.drop_uniform": False,  # so short a training earns nothing: groups without a difference keep their policy term
    "trainer.threads": 1,
    "observers": [],
}


def small(folder: Path, **more: Any) -> list[str]:
    """The recipe's words on a command line, cut down to seconds, with the user's own loss."""
    (folder / "my_losses.py").write_text(LOSS)
    sets = [f"{key}={json.dumps(value)}" for key, value in {**SMALL, **more}.items()]
    sets += ['losses=[{use="my_losses.py:LengthTax", coef=0.02}]', f"runs={json.dumps(str(folder / 'runs'))}"]
    return ["train", str(RECIPE), *(word for text in sets for word in ("--set", text))]


def ferrule(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*FERRULE, *words], cwd=cwd, env=ENV, capture_output=True, text=True, timeout=300)


def metrics(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not key.startswith("time")} for line in lines]


def only_run(folder: Path) -> Path:
    (manifest,) = (folder / "runs").glob("*/manifest.json")
    return manifest.parent


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unbroken")
    done = ferrule(*small(folder), cwd=folder)
    assert done.returncode == 0, done.stderr
    return only_run(folder)


def test_a_loss_in_a_users_own_file_trains_with_every_first_party_part(unbroken: Path) -> None:
    lines = metrics(unbroken)
    steps = [line for line in lines if line["stage"] == "train"]
    assert [line["step"] for line in steps] == [1, 2, 3, 4, 5]
    assert all(line["loss/length_tax"] > 0.0 and line["grad_norm"] > 0.0 for line in steps)
    sft = [line["sft/loss"] for line in lines if "sft/loss" in line]
    assert sft[-1] < sft[0] / 2
    plugins = {(p["kind"], p["reference"]): p for p in json.loads((unbroken / "manifest.json").read_text())["plugins"]}
    assert len(plugins["loss", "my_losses.py:LengthTax"]["sha256"]) == 64
    assert plugins["trainer", "local"]["distribution"] == "ferrule-trainer-local"


def test_what_the_sampler_said_of_its_tokens_is_what_the_trainer_says(unbroken: Path) -> None:
    """Ratios are 1 at the first optimizer step of a batch, so sampler and trainer agree on every sampled token."""
    steps = [line for line in metrics(unbroken) if line["stage"] == "train"]
    for name in ("policy/ratio_max", "policy/ratio_mean"):
        assert all(abs(line[name] - 1.0) < 1e-5 for line in steps)


@pytest.mark.parametrize("stage", ["train", "sft"])
def test_killed_at_a_random_moment_and_resumed_it_measures_what_an_unbroken_run_does(
    unbroken: Path, tmp_path: Path, stage: str
) -> None:
    rng = random.Random(os.environ.get("FERRULE_TEST_SEED"))
    reach = rng.randrange(1, 30) if stage == "train" else rng.randrange(2, 32)
    process = subprocess.Popen(
        [*FERRULE, *small(tmp_path)], cwd=tmp_path, env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    watched = "episodes/train.jsonl" if stage == "train" else "metrics.jsonl"
    while process.poll() is None and not any(_lines(path) >= reach for path in tmp_path.glob(f"runs/*/{watched}")):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "the run ended before it could be killed"
    run = only_run(tmp_path)

    done = ferrule("train", "--resume", str(run), cwd=Path("/"))
    assert done.returncode == 0, done.stderr
    assert metrics(run) == metrics(unbroken), f"killed after line {reach} of {watched}"
    shown = [
        json.loads(ferrule("runs", "show", str(r), "--json", cwd=tmp_path).stdout)["episodes"] for r in (run, unbroken)
    ]
    resumed, whole = ({path: counts["filed"] for path, counts in episodes.items()} for episodes in shown)
    assert resumed == whole
    filed = [json.loads(text) for text in (run / "episodes" / "train.jsonl").read_text().splitlines()]
    assert len({episode["id"] for episode in filed}) == len(filed) == 30


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")
