"""The curves that are drawn, and the files that are left."""

import json
from pathlib import Path

import pytest
from ferrule_observer_plot import RewardPlot

import ferrule


def run_info(folder: Path) -> ferrule.RunInfo:
    return ferrule.RunInfo("r", folder, 0, ferrule.ModelSpec())


def test_a_png_is_left_in_the_run_folder_and_a_plot_in_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    observer, run = RewardPlot(RewardPlot.Config()), run_info(tmp_path)
    observer.ferrule_run_started(run=run, config={})
    for step in range(5):
        observer.ferrule_metrics(run=run, stage="train", step=step, metrics={"reward/agent/mean": step / 10})
    observer.ferrule_metrics(
        run=run, stage="eval", step=5, metrics={"eval/sampled/reward": 0.6, "eval/greedy/reward": 0.7}
    )
    assert (tmp_path / "reward.png").read_bytes().startswith(b"\x89PNG")
    observer.ferrule_run_finished(run=run, summary={"status": "done"})
    shown = capsys.readouterr().out
    assert "train (agent)" in shown
    assert "held out (sampled)" in shown
    assert "held out (greedy)" in shown
    assert shown.splitlines()[-1] == f"plot: {tmp_path / 'reward.png'}"
    assert not list(tmp_path.glob(".*")), "no half-written file stays behind"


def test_of_a_single_evaluation_only_the_file_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    observer, run = RewardPlot(RewardPlot.Config()), run_info(tmp_path)
    observer.ferrule_metrics(run=run, stage="eval", step=0, metrics={"eval/sampled/reward": 0.6})
    observer.ferrule_run_finished(run=run, summary={"status": "done"})
    assert capsys.readouterr().out == f"plot: {tmp_path / 'reward.png'}\n"
    assert (tmp_path / "reward.png").exists()


def test_a_resumed_run_draws_the_steps_before_the_break(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [{"stage": "train", "step": s, "reward/agent/mean": 0.25} for s in range(3)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    observer, run = RewardPlot(RewardPlot.Config()), run_info(tmp_path)
    observer.ferrule_run_started(run=run, config={})
    observer.ferrule_metrics(run=run, stage="train", step=3, metrics={"reward/agent/mean": 0.5})
    assert observer._curves == {"train (agent)": {0: 0.25, 1: 0.25, 2: 0.25, 3: 0.5}}


def test_a_run_without_rewards_draws_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    observer, run = RewardPlot(RewardPlot.Config()), run_info(tmp_path)
    observer.ferrule_run_finished(run=run, summary={"status": "failed"})
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "reward.png").exists()


def test_the_terminal_plot_can_be_switched_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    observer, run = RewardPlot(RewardPlot.Config(terminal=False)), run_info(tmp_path)
    observer.ferrule_metrics(run=run, stage="eval", step=0, metrics={"eval/sampled/reward": 0.6})
    observer.ferrule_run_finished(run=run, summary={"status": "done"})
    assert capsys.readouterr().out == ""
    assert (tmp_path / "reward.png").exists()


@pytest.mark.parametrize("best", [0.5, 1.0, 2.5])
def test_the_terminal_plot_shows_every_evaluation_the_last_and_the_best_among_them(
    best: float, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    observer, run = RewardPlot(RewardPlot.Config()), run_info(tmp_path)
    for step, reward in ((-1, 0.0), (0, 0.1), (20, 0.2), (40, best)):
        observer.ferrule_metrics(run=run, stage="eval", step=step, metrics={"eval/sampled/reward": reward})
    observer.ferrule_run_finished(run=run, summary={"status": "done"})
    lines = capsys.readouterr().out.splitlines()
    axis = next(i for i, line in enumerate(lines) if "RL step" in line)
    assert sum(line.partition("|")[2].count("s") for line in lines[:axis]) == 4
    assert lines[axis + 1].split("|")[1].split() == ["-1", "6", "13", "20", "27", "34", "41"]
