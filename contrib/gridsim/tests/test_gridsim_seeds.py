from __future__ import annotations

import json
from pathlib import Path

from ferrule_gridsim.seeds import main, read


def run_folder(root: Path, seed: int, rewards: dict[str, tuple[float, float]], sft: int = 450) -> Path:
    """A run's folder with what the table reads, as ``ferrule train`` writes it."""
    folder = root / f"run-{seed}"
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps({"run": folder.name, "config": {"seed": seed}}))
    lines = [{"stage": "sft", "step": step, "sft/loss": 1.0} for step in range(1, sft + 1)]
    for label, (sampled, greedy) in rewards.items():
        step = int(label.split("-")[1]) if "-" in label else -1
        lines.append(
            {
                "stage": "eval",
                "step": step,
                "label": label,
                "eval/sampled/reward": sampled,
                "eval/greedy/reward": greedy,
                **({} if label == "untrained" else {"eval/sampled/observation_ce": 9.0 - step / 10}),
            }
        )
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


GOOD = {"untrained": (0.0, 0.0), "step-0": (0.5, 0.7), "step-20": (0.6, 0.8), "step-40": (0.75, 0.9)}


def test_table_shows_every_seed_and_the_best_and_worst_of_each_column(tmp_path, capsys):
    other = {"untrained": (0.05, 0.0), "step-0": (0.45, 0.75), "step-20": (0.66, 0.7), "step-40": (0.7, 0.8)}
    folders = [run_folder(tmp_path, 1, GOOD), run_folder(tmp_path, 2, other, sft=300)]
    assert main(["--read", *map(str, folders), "--to", str(tmp_path / "table.md")]) == 0
    lines = [
        "| seed | untrained | after SFT | step 20 | step 40 | gain | SFT steps | observation CE |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        "| 1 | 0.00 / 0.00 | 0.50 / 0.70 | 0.60 / 0.80 | 0.75 / 0.90 | +0.25 | 450 | 9.0 → 5.0 |",
        "| 2 | 0.05 / 0.00 | 0.45 / 0.75 | 0.66 / 0.70 | 0.70 / 0.80 | +0.25 | 300 | 9.0 → 5.0 |",
        "| best | 0.05 / 0.00 | 0.50 / 0.75 | 0.66 / 0.80 | 0.75 / 0.90 | +0.25 |  |  |",
        "| worst | 0.00 / 0.00 | 0.45 / 0.70 | 0.60 / 0.70 | 0.70 / 0.80 | +0.25 |  |  |",
    ]
    assert capsys.readouterr().out.splitlines() == lines
    assert (tmp_path / "table.md").read_text().splitlines() == lines


def test_a_seed_that_learns_too_little_fails_the_command_and_is_named(tmp_path, capsys):
    folders = [run_folder(tmp_path, 1, GOOD), run_folder(tmp_path, 7, GOOD | {"step-40": (0.61, 0.9)})]
    assert main(["--read", *map(str, folders)]) == 1
    assert "not what the recipe promises: seed 7" in capsys.readouterr().err
    assert not read(folders[1]).kept


def test_a_run_that_is_not_finished_is_named(tmp_path, capsys):
    unfinished = run_folder(tmp_path, 3, {"untrained": (0.0, 0.0)})
    assert main(["--read", str(unfinished)]) == 1
    assert f"{unfinished}: no evaluation 'step-0'" in capsys.readouterr().err
