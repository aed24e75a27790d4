"""The commands around runs, called as processes: exit codes, what is printed, what a program reads."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from ferrule.store import list_runs

HERE = Path(__file__).parent
FERRULE = [sys.executable, "-c", "from ferrule.cli import main; main()"]


def ferrule(*words: object, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*FERRULE, *map(str, words)], cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, timeout=120
    )


@pytest.fixture
def trained(write) -> Path:
    """The folder of a configuration with one finished run of two steps."""
    done = ferrule("train", write(), "--set", "train.steps=2", cwd=write().parent)
    assert done.returncode == 0, done.stderr
    return write().parent


def test_train_prints_what_is_enforced_a_line_a_step_and_the_table(write) -> None:
    done = ferrule("train", write(), "--set", "train.steps=2", "--seed", 5, cwd=write().parent)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert sum(line.startswith("sampling") for line in lines) == 1
    assert "temperature 1, top_p 1" in done.stdout
    assert [line.split()[1] for line in lines if line.startswith("step ")] == ["1", "2"]
    table = lines[lines.index(next(line for line in lines if line.startswith("evaluation"))) :]
    assert [line.split()[0] for line in table[1:3]] == ["step-0", "step-2"]
    (run,) = list_runs(write().parent / "runs")
    assert f"files: {run.dir}" in lines
    assert "\x1b" not in done.stdout


def test_json_on_stdout_is_the_summary_and_nothing_else(write) -> None:
    done = ferrule("train", write(), "--set", "train.steps=1", "--json", cwd=write().parent)
    summary = json.loads(done.stdout)
    assert summary["status"] == "done"
    assert [e["label"] for e in summary["evals"]] == ["step-0", "step-1"]
    assert "step 1" in done.stderr


def test_a_mistake_in_the_configuration_exits_2_and_leaves_no_run(write) -> None:
    config = write("[trian]\nsteps = 1\n")
    done = ferrule("train", config, cwd=config.parent)
    assert done.returncode == 2
    assert "trian" in done.stderr
    assert not (config.parent / "runs").exists()


def test_runs_are_listed_and_shown(trained) -> None:
    (listed,) = json.loads(ferrule("runs", "list", "--json", cwd=trained).stdout)
    assert (listed["status"], listed["step"], listed["kind"]) == ("done", 2, "train")
    assert listed["run"] in ferrule("runs", "list", cwd=trained).stdout
    shown = json.loads(ferrule("runs", "show", listed["run"], "--json", cwd=trained).stdout)
    assert list(shown["episodes"]) == ["eval/step-0", "train/step-1", "train/step-2", "eval/step-2"]
    assert {p["kind"] for p in shown["plugins"]} == {"taskset", "harness", "trainer", "renderer", "advantage"}
    assert all(len(p["sha256"]) == 64 for p in shown["plugins"])
    plain = ferrule("runs", "show", trained / "runs" / listed["run"], cwd=trained).stdout
    assert "train/step-2" in plain
    figures = [f"{mode}/{name}" for mode in ("sampled", "greedy") for name in ("reward", "accuracy")]
    header = next(line for line in plain.splitlines() if line.startswith("evaluation\t")).split("\t")
    assert set(header[1:]) == {*figures, "sampled/observation_ce"}


@pytest.mark.parametrize("name", ["..", "../x", "%2e%2e", "%252e%252e%252f", "a/b", "/etc", ""])
def test_what_leads_out_of_the_folder_of_runs_is_refused(trained, name) -> None:
    done = ferrule("runs", "show", name, cwd=trained)
    assert done.returncode == 1
    assert "is not the id of a run" in done.stderr


def test_an_episode_is_shown_by_kind_of_token(trained) -> None:
    (run,) = list_runs(trained / "runs")
    name = f"{run.run}/train/step-1/{_task(trained, run.run)}#0"
    plain = ferrule("show", name, cwd=trained).stdout
    assert "[prompt] <1>" in plain
    assert "[action] " in plain
    assert "\x1b" not in plain
    record = json.loads(ferrule("show", name, "--json", cwd=trained).stdout)
    segment = record["trajectories"][0]["segments"][0]
    assert len(segment["ids"]) == len(segment["kinds"])
    assert len(segment["logprobs"]) == segment["kinds"].count("A")
    coloured = _on_a_terminal("show", name, cwd=trained)
    assert "\x1b[1;32m" in coloured
    assert "[action]" not in coloured


def test_an_unknown_episode_is_an_error(trained) -> None:
    done = ferrule("show", "train/step-9/nothing#0", cwd=trained)
    assert done.returncode == 1
    assert "no episode" in done.stderr


def test_asked_for_a_place_that_holds_several_episodes_it_lists_them(trained) -> None:
    (run,) = list_runs(trained / "runs")
    for place in ("train/step-1", f"{run.run}/train/step-1", run.run):
        done = ferrule("show", place, cwd=trained)
        assert done.returncode == 1
        assert "episodes; name one:" in done.stderr
        named = [line.strip() for line in done.stderr.splitlines() if line.startswith(f"  {run.run}/")]
        assert named
        assert ferrule("show", named[0], cwd=trained).returncode == 0


def test_what_a_model_wrote_cannot_command_the_terminal() -> None:
    from ferrule.cli.show import printable

    assert printable("a\x1b]0;owned\x07b\n\tc\u202e") == "a\\x1b]0;owned\\x07b\n\tc\\x202e"


def test_live_progress_on_a_terminal(write) -> None:
    out = _on_a_terminal("train", str(write()), "--set", "train.steps=1", cwd=write().parent)
    assert "12/12" in out
    assert "episodes/s" in out
    assert "reward 0." in out
    assert "accuracy 0." in out


def test_resume_takes_nothing_that_would_change_the_run(write, trained) -> None:
    (run,) = list_runs(trained / "runs")
    done = ferrule("train", "--resume", run.run, "--set", "seed=1", cwd=trained)
    assert done.returncode == 2
    assert "configuration that it was started with" in done.stderr
    done = ferrule("train", "--resume", run.run, cwd=trained)
    assert done.returncode == 1
    assert "nothing to resume" in done.stderr


def test_an_interrupted_run_exits_130_and_says_how_to_go_on(write) -> None:
    toys = HERE / "toys.py"
    config = write(f'[[observers]]\nuse = "{toys}:Witness"\nafter = 30\nsignal = "SIGINT"\n')
    done = ferrule("train", config, cwd=config.parent)
    assert done.returncode == 130
    (run,) = list_runs(config.parent / "runs")
    assert f"ferrule train --resume {run.dir}" in done.stdout
    again = ferrule("train", "--resume", run.run, cwd=config.parent, TOY_SIGNALS="off")
    assert again.returncode == 0
    assert "resuming at RL step" in again.stdout


def test_a_resume_says_where_a_plugin_is_no_longer_what_it_was(write) -> None:
    mine = write().parent / "mine.py"
    mine.write_text((HERE / "toys.py").read_text())
    config = write(f'[[observers]]\nuse = "{HERE / "toys.py"}:Witness"\nafter = 30\nsignal = "SIGINT"\n')
    config.write_text(config.read_text().replace(f"{HERE / 'toys.py'}:Centred", "mine.py:Centred"))
    assert ferrule("train", config, cwd=config.parent).returncode == 130
    mine.write_text(mine.read_text() + "\n# changed\n")
    (run,) = list_runs(config.parent / "runs")
    done = ferrule("train", "--resume", run.run, cwd=config.parent, TOY_SIGNALS="off")
    assert done.returncode == 0, done.stderr
    assert "mine.py:Centred has changed since the run began" in done.stdout


def test_eval_plays_a_split_without_a_model(write) -> None:
    config = write()
    done = ferrule(
        "eval",
        config,
        "--split",
        "dev",
        "--limit",
        3,
        "--harness",
        f"{HERE / 'toys.py'}:Says",
        "--json",
        cwd=config.parent,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["evals"][0]["eval/sampled/reward"] == 1.0
    assert summary["evals"][0]["eval/sampled/attempts"] == 3
    assert summary["kind"] == "eval"


def test_a_run_says_what_it_dropped_and_which_optimizer_steps_it_did_not_take(write) -> None:
    config = write(taskset='ToyTasks", broken_attempt = 0 }')
    words = ("--set", "train.steps=1", "--set", "sampling.temperature=0.0", "--set", "train.tasks_per_step=12")
    for command in (("train", *words), ("eval", "--split", "train")):
        assert ferrule(command[0], config, *command[1:], cwd=config.parent).returncode == 0
    trained, evaluated = (run.run for run in list_runs(config.parent / "runs"))
    shown = ferrule("runs", "show", trained, cwd=config.parent).stdout
    assert "verifier_crashed\t1\n" in shown
    assert "uniform_group\t47\n" in shown
    assert "optimizer steps not taken: 1 (nothing left)" in shown
    assert "eval/verifier_crashed\t2\n" in ferrule("runs", "show", evaluated, cwd=config.parent).stdout


def test_a_sweep_names_a_broken_backend_and_sweeps_the_others(tmp_path) -> None:
    for name, body in (
        (
            "good",
            "class B(ferrule.SandboxBackend, name='good'):\n    async def create(self, spec, *, label=''): ...\n"
            "    @classmethod\n    async def sweep(cls, run_id=None): return [f'left-by-{run_id}']\n",
        ),
        ("bad", "raise SystemExit('no daemon here')\n"),
    ):
        (tmp_path / f"toy_{name}.py").write_text("import ferrule\n" + body)
        info = tmp_path / f"toy_{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: toy-{name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[ferrule.sandboxes]\n{name} = toy_{name}:B\n")
    done = ferrule(
        "sandboxes",
        "sweep",
        "run-1",
        "--json",
        cwd=tmp_path,
        PYTHONPATH=str(tmp_path),
        FERRULE_PLUGINS="toy-good,toy-bad",
    )
    assert done.returncode == 0, done.stderr
    swept = {entry["backend"].split("@")[0]: entry for entry in json.loads(done.stdout)}
    assert swept["good"]["removed"] == ["left-by-run-1"]
    assert "no daemon here" in swept["bad"]["error"]


def _task(folder: Path, run: str) -> str:
    from ferrule.store import RunStore

    store = RunStore.open(folder / "runs", run)
    try:
        return store.index.find(run=run, path="train/step-1")[0].task
    finally:
        store.close()


def _on_a_terminal(*words: str, cwd: Path) -> str:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [*FERRULE, *words],
        cwd=cwd,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"},
    )
    os.close(slave)
    out = b""
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:
            break
        if not chunk:
            break
        out += chunk
    os.close(master)
    assert process.wait(60) == 0
    return out.decode()
