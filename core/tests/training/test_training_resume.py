"""A run that was killed or stopped, and resumed, against one that never was."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import ferrule
from ferrule.config import load
from ferrule.store import RunStore, list_runs
from ferrule.training import Reporter, train

HERE = Path(__file__).parent
SFT = """
[sft]
min_steps = 6
max_steps = 9
round_steps = 3
batch_size = 4
dev_tasks = 5
target = 0.99
warmup = 2
optim = { lr = 0.05 }
"""
EPISODES = 24 + 5 + 5 + 24 + 6 * 12 + 2 * 24
"""untrained, two dev rounds, step 0, six steps, steps 3 and 6"""


def witness(after: int, signal: str = "SIGKILL", again: int = 0) -> str:
    return f'[[observers]]\nuse = "{HERE / "toys.py"}:Witness"\nafter = {after}\nsignal = "{signal}"\nagain = {again}\n'


def timeless(table: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in table.items() if not k.startswith("time")}


def lines(run: RunStore) -> list[dict[str, Any]]:
    return [timeless(line) for line in run.metrics()]


def filed(run: RunStore) -> list[tuple[str, str, float | None]]:
    return [(row.path, row.episode, row.reward) for row in run.index.find(run=run.id, status="filed")]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, Any]:
    """The metrics and episodes of the run that nobody disturbed."""
    import asyncio

    from ferrule.config import load
    from ferrule.training import train

    folder = tmp_path_factory.mktemp("unbroken")
    text = (HERE / "conftest.py").read_text().split('CONFIG = """')[1].split('"""')[0].format(toys=HERE / "toys.py")
    (folder / "toy.toml").write_text(text + SFT)
    summary = asyncio.run(train(load(folder / "toy.toml")))
    run = RunStore.open(summary.dir)
    assert summary.episodes == EPISODES
    found = {"lines": lines(run), "filed": filed(run), "evals": summary.evals, "dropped": summary.dropped}
    run.close()
    return found


@pytest.mark.parametrize("after", [10, 27, 50, 64, 97, 150, 177])
def test_killed_at_any_episode_and_resumed_it_measures_what_an_unbroken_run_does(
    write, drive, tmp_path, unbroken, after
) -> None:
    config, runs = write(SFT + witness(after)), tmp_path / "runs"
    code, _ = drive(config, runs)
    assert code == -9
    (killed,) = list_runs(runs)
    assert killed.status == "killed"
    code, end = drive(config, runs, killed.run, TOY_SIGNALS="off")
    assert (code, end) == (0, {"run": killed.run, "status": "done"})

    run = RunStore.open(runs, killed.run)
    assert lines(run) == unbroken["lines"]
    assert filed(run) == unbroken["filed"]
    every = run.index.find(run=run.id)
    state = run.load_state()
    assert [timeless(table) for table in state["evals"]] == [timeless(table) for table in unbroken["evals"]]
    assert (state["dropped"], state["episodes"]) == (unbroken["dropped"], EPISODES)
    assert len({row.episode for row in every if row.status == "filed"}) == EPISODES
    assert len(every) - EPISODES == sum(row.status == "abandoned" for row in every) < after + 1
    for row in every:
        assert run.read_episode(row)["id"] == row.episode  # abandoned ones too are where the index says
    assert [row.run for row in list_runs(runs)] == [killed.run]
    run.close()


def test_killed_twice_and_resumed_twice(write, drive, tmp_path, unbroken) -> None:
    config, runs = write(SFT + witness(80)), tmp_path / "runs"
    assert drive(config, runs)[0] == -9
    (run,) = list_runs(runs)
    assert drive(config, runs, run.run)[0] == -9  # 80 episodes after the resume, again
    assert drive(config, runs, run.run, TOY_SIGNALS="off")[0] == 0
    store = RunStore.open(runs, run.run)
    assert lines(store) == unbroken["lines"]
    assert filed(store) == unbroken["filed"]
    store.close()


@pytest.mark.parametrize("after", [28, 66, 90])
def test_the_first_interrupt_finishes_the_step_saves_and_can_be_resumed(
    write, drive, tmp_path, unbroken, after
) -> None:
    config, runs = write(SFT + witness(after, "SIGINT")), tmp_path / "runs"
    code, end = drive(config, runs)
    assert (code, end["status"]) == (130, "stopped")
    (run,) = list_runs(runs)
    assert run.status == "stopped"
    store = RunStore.open(run.dir)
    state = store.load_state()
    played = {row.path for row in store.index.find(run=run.run) if row.path.startswith("train/")}
    assert played == {f"train/step-{n}" for n in range(1, state["step"] + 1)}  # no step was broken off
    told = [json.loads(x) for x in (run.dir / "witness.jsonl").read_text().splitlines()]
    assert told[-1] == {"hook": "run_finished", "status": "stopped"}
    store.close()

    assert drive(config, runs, run.run, TOY_SIGNALS="off")[0] == 0
    store = RunStore.open(run.dir)
    assert lines(store) == unbroken["lines"]
    assert filed(store) == unbroken["filed"]
    store.close()


def test_a_second_interrupt_stops_at_once(write, drive, tmp_path, unbroken) -> None:
    import subprocess
    import sys

    config, runs = write(SFT + witness(65, "SIGINT", again=1)), tmp_path / "runs"
    done = subprocess.run(
        [sys.executable, str(HERE / "drive.py"), str(config), str(runs)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    (run,) = list_runs(runs)
    assert run.status == "stopped"
    store = RunStore.open(run.dir)
    assert len(store.index.find(run=run.run)) < 65 + 12
    store.close()
    assert drive(config, runs, run.run, TOY_SIGNALS="off")[0] == 0
    store = RunStore.open(run.dir)
    assert filed(store) == unbroken["filed"]
    store.close()


def test_sigterm_is_taken_as_an_interrupt(write, drive, tmp_path) -> None:
    config, runs = write(witness(30, "SIGTERM")), tmp_path / "runs"
    code, end = drive(config, runs)
    assert (code, end["status"]) == (130, "stopped")


def test_a_torn_last_line_is_dropped_on_resume(write, drive, tmp_path, unbroken) -> None:
    config, runs = write(SFT + witness(90)), tmp_path / "runs"
    assert drive(config, runs)[0] == -9
    (run,) = list_runs(runs)
    for name in ("metrics.jsonl", "episodes/train.jsonl"):
        with (run.dir / name).open("ab") as file:
            file.write(b'{"id": "half of a li')
    assert drive(config, runs, run.run, TOY_SIGNALS="off")[0] == 0
    store = RunStore.open(run.dir)
    assert lines(store) == unbroken["lines"]
    assert filed(store) == unbroken["filed"]
    store.close()


def test_a_lost_index_is_made_anew_from_the_files_of_the_run(write, drive, tmp_path, unbroken) -> None:
    config, runs = write(SFT + witness(90)), tmp_path / "runs"
    assert drive(config, runs)[0] == -9
    (run,) = list_runs(runs)
    for path in runs.glob("index.sqlite*"):
        path.unlink()
    assert drive(config, runs, run.run, TOY_SIGNALS="off")[0] == 0
    store = RunStore.open(run.dir)
    assert filed(store) == unbroken["filed"]
    store.close()


def test_a_run_is_written_by_one_process_at_a_time(write, drive, tmp_path) -> None:
    config, runs = write(witness(30)), tmp_path / "runs"
    drive(config, runs)
    (run,) = list_runs(runs)
    first = RunStore.open(runs, run.run, write=True)
    with pytest.raises(ferrule.FerruleError, match="another process"):
        RunStore.open(runs, run.run, write=True)
    assert list_runs(runs)[0].status == "running"
    first.close()
    RunStore.open(runs, run.run, write=True).close()


def test_a_checkpoint_that_is_gone_is_named(write, drive, tmp_path) -> None:
    import shutil

    from ferrule.training.position import Position

    config, runs = write(witness(80)), tmp_path / "runs"
    drive(config, runs)
    (run,) = list_runs(runs)
    shutil.rmtree(run.dir / "checkpoints")
    store = RunStore.open(run.dir)
    with pytest.raises(ferrule.CheckpointError, match="is gone"):
        Position.from_state(store.load_state(), run.dir)


def test_the_index_never_files_an_episode_twice(tmp_path) -> None:
    store = RunStore.create(tmp_path, "twice", {}, {})
    episode = ferrule.Episode("train/step-1/t#0", "t", 0, group="train/step-1", reward=1.0)
    store.file_episode(episode)
    with pytest.raises(ferrule.FerruleError, match="filed already"):
        store.file_episode(episode)
    assert len((store.dir / "episodes/train.jsonl").read_text().splitlines()) == 1
    with sqlite3.connect(tmp_path / "index.sqlite") as db:
        assert db.execute("SELECT count(*) FROM episodes").fetchone() == (1,)
    store.close()


async def test_a_resumed_run_removes_the_sandboxes_that_it_left_behind(write, tmp_path) -> None:
    boxes = tmp_path / "boxes.py"
    boxes.write_text(
        "from pathlib import Path\n\nimport ferrule\n\n\n"
        "class Boxes(ferrule.SandboxBackend, name='boxes'):\n"
        "    async def create(self, spec, *, label=''): raise ferrule.SandboxError('not here')\n"
        "    async def close(self): pass\n"
        "    @classmethod\n"
        "    async def sweep(cls, run_id=None):\n"
        f"        Path({str(tmp_path / 'swept')!r}).write_text(run_id)\n"
        "        return ['a', 'b']\n"
    )
    config = load(write(f"[sandbox]\nuse = '{boxes}:Boxes'\n"), ["train.steps=1"])
    said: list[str] = []

    class Listener(Reporter):
        def say(self, text: str) -> None:
            said.append(text)

    done = await train(config, reporter=Listener())
    assert not (tmp_path / "swept").exists()
    await train(config, resume=RunStore.open(done.dir, write=True), reporter=Listener())
    assert (tmp_path / "swept").read_text() == done.run
    assert "2 sandboxes that it had left behind are removed" in said
