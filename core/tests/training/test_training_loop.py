"""The loop on toys: what is played when, what is learned, and what is written down."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import ferrule
from ferrule import FerruleError
from ferrule.config import load
from ferrule.store import RunStore, find_episode
from ferrule.training import Reporter, StopFlag, evaluate, train

HERE = Path(__file__).parent
SFT = """
[sft]
min_steps = 6
max_steps = 12
round_steps = 3
batch_size = 4
dev_tasks = 5
target = 0.99
warmup = 2
optim = { lr = 0.05 }
"""


async def test_reward_rises_on_tasks_that_were_not_trained_on(write) -> None:
    summary = await train(load(write(), ["train.steps=30", "eval.every=0", "train.optim.lr=0.2"]))
    assert summary.status == "done"
    assert [e["label"] for e in summary.evals] == ["step-0", "step-30"]
    before, after = (e["eval/sampled/reward"] for e in summary.evals)
    assert before < 0.2
    assert after > before + 0.3
    assert all(0.0 < e["eval/sampled/observation_ce"] < 10.0 for e in summary.evals)


async def test_stages_come_in_order_and_evals_are_filed_under_the_step_at_which_they_are_played(write) -> None:
    summary = await train(load(write(SFT)))
    store = RunStore.open(summary.dir)
    paths = list(store.index.counts(store.id))
    assert paths == [
        "eval/untrained",
        "sft/step-6",
        "sft/step-9",
        "sft/step-12",
        "eval/step-0",
        "train/step-1",
        "train/step-2",
        "train/step-3",
        "eval/step-3",
        "train/step-4",
        "train/step-5",
        "train/step-6",
        "eval/step-6",
    ]
    counts = store.index.counts(store.id)
    assert {counts[p]["filed"] for p in paths if p.startswith("train")} == {12}
    assert {counts[p]["filed"] for p in paths if p.startswith("eval")} == {24}  # 12 tasks once in each of two modes
    lines = list(store.metrics())
    assert [(x["stage"], x["step"]) for x in lines if x["stage"] == "train"] == [("train", n) for n in range(1, 7)]
    assert [x["step"] for x in lines if "sft/loss" in x] == list(range(1, 13))
    assert [x["step"] for x in lines if x["stage"] == "eval"] == [-1, 0, 3, 6]
    assert any("below its target" in text for text in summary.warnings)
    store.close()


async def test_sft_ends_with_the_round_in_which_the_dev_split_reaches_its_target(write) -> None:
    summary = await train(load(write(SFT), ["sft.target=0.0", "train.steps=1"]))
    lines = list(RunStore.open(summary.dir).metrics())
    assert [x["step"] for x in lines if "sft/dev_reward" in x] == [6]
    assert max(x["step"] for x in lines if x["stage"] == "sft") == 6
    assert not summary.warnings


async def test_sft_lowers_the_loss_and_its_learning_rate_follows_the_rounds(write) -> None:
    summary = await train(load(write(SFT), ["train.steps=0", "sft.min_steps=40", "sft.max_steps=40"]))
    lines = [x for x in RunStore.open(summary.dir).metrics() if "sft/loss" in x]
    assert lines[-1]["sft/loss"] < lines[0]["sft/loss"] - 0.5
    assert lines[0]["lr"] == pytest.approx(0.025)
    assert lines[20]["lr"] == pytest.approx(0.05)
    assert lines[-1]["lr"] == pytest.approx(0.05 * max(0.05, 1 / 12))


async def test_two_runs_of_one_seed_give_the_same_metrics_and_another_seed_does_not(write) -> None:
    config = write()
    runs = [await train(load(config, [f"seed={seed}"])) for seed in (3, 3, 4)]
    lines = [[timeless(x) for x in RunStore.open(s.dir).metrics()] for s in runs]
    assert lines[0] == lines[1]
    assert lines[0] != lines[2]
    assert len({s.run for s in runs}) == 3


async def test_a_failed_episode_has_no_reward_is_retried_counted_and_does_not_stop_the_run(write) -> None:
    config = write(taskset='ToyTasks", broken_attempt = 1 }')
    summary = await train(load(config, ["train.steps=4", "train.tasks_per_step=12"]))
    assert summary.status == "done"
    assert summary.dropped["verifier_crashed"] == 4
    store = RunStore.open(summary.dir)
    failed = [row for row in store.index.find(run=store.id) if row.failure]
    assert len(failed) == 4
    for row in failed:
        line = store.read_episode(row)
        assert line["reward"] is None
        assert all(t["reward"] is None for t in line["trajectories"])
        assert line["retries"] == 2
    store.close()


async def test_a_round_in_which_everything_failed_is_warned_of_once_and_teaches_nothing(write) -> None:
    config = write(taskset='ToyTasks", broken_attempt = 0, tasks = 1 }')
    summary = await train(load(config, ["train.steps=3", "train.group_size=1", "rollout.retries=0"]))
    assert summary.skipped == {"nothing_left": 3}
    assert [w for w in summary.warnings if "failed" in w] == [
        "all episodes of a train round failed, as this one: verifier_crashed: this one always crashes"
    ]


async def test_an_error_in_one_episode_stops_the_run_where_the_setting_says_so(write) -> None:
    config = write(taskset='ToyTasks", broken_attempt = 1 }')
    with pytest.raises(ferrule.FerruleError, match="stop_on_error"):
        await train(load(config, ["train.tasks_per_step=12", "train.stop_on_error=true"]))
    from ferrule.store import list_runs

    (run,) = list_runs(config.parent / "runs")
    assert run.status == "failed"


async def test_a_step_with_nothing_to_learn_from_is_skipped_under_its_reason(write) -> None:
    config = write()
    summary = await train(
        load(config, ["sampling.temperature=0.0", "train.steps=2", "eval.untrained=false", "eval.every=0"])
    )
    assert summary.skipped == {"nothing_left": 2}
    assert summary.dropped["uniform_group"] == 24
    store = RunStore.open(summary.dir)
    assert [x["skipped/nothing_left"] for x in store.metrics() if x["stage"] == "train"] == [1.0, 1.0]


async def test_an_auxiliary_loss_lowers_the_cross_entropy_of_what_is_observed(write) -> None:
    toys = HERE / "toys.py"
    plain = await train(load(write(), ["train.steps=25", "eval.every=0"]))
    config = write(f'[[losses]]\nuse = "{toys}:Observed"\ncoef = 0.3\n')
    with_loss = await train(load(config, ["train.steps=25", "eval.every=0"]))
    ce = [s.evals[-1]["eval/sampled/observation_ce"] for s in (plain, with_loss)]
    assert ce[1] < ce[0] - 0.5
    lines = [x for x in RunStore.open(with_loss.dir).metrics() if x["stage"] == "train"]
    assert all("loss/observed" in x for x in lines)


async def test_tokens_that_were_trained_on_come_back_from_the_file_bit_for_bit(write) -> None:
    from ferrule.store import episode_from_line

    summary = await train(load(write(), ["train.steps=1"]))
    store = RunStore.open(summary.dir)
    first = store.index.find(run=summary.run, path="train/step-1")[0]
    store.close()
    row, line = find_episode(summary.dir.parent, f"{summary.run}/{first.episode}")
    episode = episode_from_line(line)
    (trajectory,) = episode.trajectories
    assert len(trajectory.steps) == 2
    for step, wire in zip(trajectory.steps, line["trajectories"][0]["steps"], strict=True):
        assert step.message.content == wire["message"]["content"]
        assert (step.segment.kind[step.start : step.stop] == ferrule.TokenKind.ACTION).all()
        assert (step.logprobs < 0).all()
        assert step.logprobs.dtype == np.float32
    assert row.path == "train/step-1"


async def test_observers_are_told_of_everything_in_order(write) -> None:
    config = write(f'[[observers]]\nuse = "{HERE / "toys.py"}:Witness"\n')
    summary = await train(load(config, ["train.steps=2"]))
    told = [json.loads(x) for x in (summary.dir / "witness.jsonl").read_text().splitlines()]
    assert told[0]["hook"] == "run_started"
    assert told[-1] == {"hook": "run_finished", "status": "done"}
    assert sum(x["hook"] == "episode_finished" for x in told) == summary.episodes
    assert [x["step"] for x in told if x["hook"] == "metrics" and x["stage"] == "train"] == [1, 2]


async def test_a_stop_between_steps_saves_and_says_so(write) -> None:
    stop = StopFlag()

    class Impatient(Reporter):
        def metrics(self, stage, step, metrics):
            if stage == "train" and step == 3:
                stop.request()

    summary = await train(load(write()), reporter=Impatient(), stop=stop)
    assert (summary.status, summary.steps) == ("stopped", 3)
    state = RunStore.open(summary.dir).load_state()
    assert state["step"] == 3
    assert Path(summary.dir, state["checkpoint"]["path"]).exists()


async def test_an_evaluation_that_was_broken_off_is_abandoned_not_filed(write) -> None:
    stop = StopFlag()

    class Impatient(Reporter):
        def begin(self, title, total, unit, done=0):
            if title == "eval step-3, greedy":
                stop.request()

    summary = await train(load(write()), reporter=Impatient(), stop=stop)
    assert summary.status == "stopped"
    store = RunStore.open(summary.dir)
    counts = store.index.counts(store.id)
    assert (counts["eval/step-3"]["filed"], counts["eval/step-3"]["abandoned"]) == (0, 12)
    assert counts["train/step-3"]["filed"] == 12
    store.close()


async def test_demonstrations_that_are_not_there_are_missed_before_a_model_is_loaded(write) -> None:
    config = write(SFT, taskset='ToyTasks", demonstrations = 0 }')
    with pytest.raises(ferrule.FerruleError, match="no demonstrations"):
        await train(load(config))
    assert not list(config.parent.glob("runs/*"))


async def test_a_run_whose_folder_is_taken_away_says_so_and_closes_everything(write) -> None:
    loaded = load(write(), ["train.steps=2"])

    class Vandal(Reporter):
        def metrics(self, stage, step, metrics) -> None:
            shutil.rmtree(loaded.config.runs)

        def finish(self, summary) -> None:
            self.status = summary.status

    reporter = Vandal()
    with pytest.raises((OSError, FerruleError)) as raised:
        await train(loaded, reporter=reporter)
    assert reporter.status == "failed"
    assert "manifest" not in str(raised.value)


async def test_a_harness_is_started_first_and_closed_once_after_the_last_episode_and_before_the_trainer(
    write, tmp_path
) -> None:
    parts = tmp_path / "parts.py"
    parts.write_text(
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('close_toys', {str(HERE / 'toys.py')!r})\n"
        "toys = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(toys)\n"
        f"seen = open({str(tmp_path / 'seen')!r}, 'a', buffering=1)\n\n\n"
        "class Shared(toys.Talk, name='shared'):\n"
        "    async def start(self, run):\n"
        "        print('start', file=seen)\n"
        "    async def run(self, play, rollout):\n"
        "        await super().run(play, rollout)\n"
        "        print('episode', file=seen)\n"
        "    async def close(self):\n"
        "        print('harness', file=seen)\n\n\n"
        "class Shut(Shared, name='shut'):\n"
        "    async def start(self, run):\n"
        "        raise toys.ferrule.FerruleError('the port is taken')\n\n\n"
        "class Trainer(toys.ToyTrainer, name='traces'):\n"
        "    async def start(self, run):\n"
        "        print('trainer-start', file=seen)\n"
        "        await super().start(run)\n"
        "    async def close(self):\n"
        "        print('trainer', file=seen)\n"
        "        await super().close()\n"
    )
    config = load(write(), [f'harness={{use="{parts}:Shared"}}', f'trainer={{use="{parts}:Trainer"}}', "train.steps=1"])
    assert (await train(config)).status == "done"
    seen = (tmp_path / "seen").read_text().split()
    assert seen[:3] == ["start", "trainer-start", "episode"]
    assert seen[-3:] == ["episode", "harness", "trainer"]
    assert seen.count("harness") == seen.count("start") == 1

    (tmp_path / "seen").write_text("")
    config = load(write(), [f'harness={{use="{parts}:Shut"}}', f'trainer={{use="{parts}:Trainer"}}', "train.steps=1"])
    with pytest.raises(FerruleError, match="the port is taken"):
        await train(config)
    assert (tmp_path / "seen").read_text().split() == ["harness"]


async def test_only_the_last_checkpoints_are_kept(write) -> None:
    summary = await train(load(write(), ["save.every=1", "save.keep=2"]))
    assert sorted(p.name for p in (summary.dir / "checkpoints").iterdir()) == ["step-5", "step-6"]


async def test_an_eval_needs_no_trainer_where_the_harness_samples_nothing(write) -> None:
    config = write(harness='Says", text = "aaab" }')
    summary = await evaluate(load(config, ["eval.split=dev", "eval.limit=5"]))
    (table,) = summary.evals
    assert table["eval/sampled/reward"] == pytest.approx(0.75)
    assert table["eval/sampled/attempts"] == 5
    assert table["eval/sampled/accuracy"] == 0.0
    assert summary.kind == "eval"


async def test_an_eval_under_a_checkpoint_is_repeatable_and_is_what_the_run_itself_measured(write) -> None:
    trained = await train(load(write(), ["train.steps=6"]))
    store = RunStore.open(trained.dir)
    tables = [(await evaluate(load(write()), checkpoint=store)).evals[0] for _ in range(2)]
    assert [timeless(t) for t in tables] == [timeless(trained.evals[-1])] * 2


async def test_accuracy_counts_every_attempt_that_was_meant_to_run(write) -> None:
    from ferrule.training.measure import evaluated

    step = ferrule.Step(None, 0, 0, 1, "stop", ferrule.Message("assistant", "x"))
    stepped = (ferrule.Trajectory("agent", [step]),)
    episodes = [ferrule.Episode(f"e{i}", f"t{i}", 0, stepped, reward=1.0 if i < 40 else 0.0) for i in range(80)]
    episodes += [ferrule.Episode(f"n{i}", f"n{i}", 0, failure=ferrule.Failure.ENGINE_FAILED) for i in range(20)]
    metrics = evaluated("sampled", episodes, 100)
    assert metrics["eval/sampled/accuracy"] == 0.40
    assert metrics["eval/sampled/no_step_rate"] == 0.20
    assert metrics["eval/sampled/reward"] == 0.5


def test_running_figures_count_failed_episodes_as_not_right_and_not_as_a_reward_of_nothing() -> None:
    from ferrule.training.measure import Running

    ended = [ferrule.Episode(f"e{i}", "t", i, reward=reward) for i, reward in enumerate((1.0, 0.5))]
    ended.append(ferrule.Episode("e2", "t", 2, failure=ferrule.Failure.ENGINE_FAILED))
    running = Running()
    assert running.add(ended[2]) == {"accuracy": 0.0}
    assert running.add(ended[0]) == {"reward": 1.0, "accuracy": 0.5}
    assert running.add(ended[1]) == {"reward": 0.75, "accuracy": pytest.approx(1 / 3)}


async def test_completions_that_are_all_empty_are_said_to_be(write) -> None:
    toys = write().parent / "mute.py"
    toys.write_text(
        (HERE / "toys.py")
        .read_text()
        .replace("while len(ids) < params.max_tokens:", "while False:")
        .replace('reason = "stop" if ids[-1] in params.stop_ids else "length"', 'reason = "stop"')
    )
    config = write()
    config.write_text(config.read_text().replace(str(HERE / "toys.py") + ":ToyTrainer", str(toys) + ":ToyTrainer"))
    summary = await train(load(config, ["train.steps=1"]))
    assert any("completions is empty" in text for text in summary.warnings)


async def test_a_harness_that_samples_nothing_is_not_trained(write) -> None:
    config = write(harness='Says" }')
    with pytest.raises(ferrule.FerruleError, match="nothing to train"):
        await train(load(config))
    assert not list(config.parent.glob("runs/*"))


def timeless(line: dict) -> dict:
    return {key: value for key, value in line.items() if not key.startswith("time")}
