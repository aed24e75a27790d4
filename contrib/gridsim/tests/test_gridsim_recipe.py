from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from ferrule_gridsim import home
from ferrule_gridsim.seeds import read

SMALL = {
    "trainer.threads": 1,
    "sft.min_steps": 4,
    "sft.max_steps": 4,
    "sft.demonstrations": 40,
    "sft.dev_tasks": 4,
    "train.steps": 2,
    "train.tasks_per_step": 2,
    "train.group_size": 2,
    "eval.every": 1,
    "eval.limit": 4,
}


def test_the_command_trains_the_recipe_and_prints_the_table(tmp_path):
    """Smaller in every number than the recipe, and otherwise the same run: too short to learn, which the command says."""
    settings = [part for key, value in SMALL.items() for part in ("--set", f"{key}={value}")]
    done = subprocess.run(
        [sys.executable, "-m", "ferrule_gridsim.seeds", "5", "--runs", str(tmp_path), *settings],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "not what the recipe promises: seed 5" in done.stderr
    head, _, five, best, worst = done.stdout.splitlines()[-5:]
    assert head == "| seed | untrained | after SFT | step 1 | step 2 | gain | SFT steps | observation CE |"
    assert [line.split("|")[1].strip() for line in (five, best, worst)] == ["5", "best", "worst"]
    (folder,) = [path.parent for path in tmp_path.glob("*/manifest.json")]
    curve = read(folder)
    assert (curve.seed, curve.sft_steps) == (5, 4)
    assert list(curve.evals) == ["untrained", "step-0", "step-1", "step-2"]
    episodes = [json.loads(line) for line in (folder / "episodes" / "eval.jsonl").read_text().splitlines()]
    assert {episode["task"] for episode in episodes} == {"day-001", "day-003", "day-005", "day-008"}
    assert not any(episode["failure"] for episode in episodes)


def test_the_recipe_has_no_mistakes():
    command = [str(Path(sys.executable).with_name("ferrule")), "check", str(home() / "train.toml")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no mistakes" in done.stdout
