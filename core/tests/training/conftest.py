from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent

CONFIG = """
name = "toy"
seed = 3
runs = "runs"
taskset = {{ use = "{toys}:ToyTasks" }}
harness = {{ use = "{toys}:Talk" }}
trainer = {{ use = "{toys}:ToyTrainer" }}
renderer = {{ use = "{toys}:ToyRenderer" }}
advantage = {{ use = "{toys}:Centred" }}

[sampling]
max_tokens = 60
[policy]
loss = "ppo"
[train]
steps = 6
tasks_per_step = 3
group_size = 4
optim = {{ lr = 0.05 }}
[eval]
every = 3
modes = ["sampled", "greedy"]
[save]
every = 2
"""


@pytest.fixture
def write(tmp_path: Path):
    """Writes a configuration of toys, *more* appended, and gives its path."""

    def write(more: str = "", **replace: str) -> Path:
        text = CONFIG.format(toys=HERE / "toys.py")
        for old, new in replace.items():
            text = text.replace({"taskset": 'ToyTasks" }', "harness": 'Talk" }'}[old], new)
        path = tmp_path / "toy.toml"
        path.write_text(text + more)
        return path

    return write


@pytest.fixture
def drive(tmp_path: Path):
    """Runs drive.py in its own process: ``(exit code, what it printed or None)``."""

    def drive(config: Path, runs: Path, run: str | None = None, **env: str) -> tuple[int, dict[str, Any] | None]:
        command = [sys.executable, str(HERE / "drive.py"), str(config), str(runs), *([run] if run else [])]
        done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=120)
        out = done.stdout.strip().splitlines()
        if done.returncode not in (0, 130, -9):
            raise AssertionError(done.stderr)
        return done.returncode, json.loads(out[-1]) if out else None

    return drive


def timeless(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if not key.startswith("time")}
