"""The page on agents that are programs, followed: its agent is trained by its recipe, and what it leaves is, token for
token, what the in-process tool loop leaves.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ferrule_gateway import Gateway

from ferrule.config import load
from ferrule.training import train

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "programs.md"
RECIPE = ROOT / "contrib" / "gridsim" / "train.toml"
LOOP = '[harness]\nuse = "tools"\n'
SMALL = {
    "train.steps": 1,
    "train.tasks_per_step": 2,
    "train.group_size": 2,
    "eval.limit": 1,
    "eval.every": 0,
    "eval.untrained": False,
    "eval.modes": ["sampled"],
    "sft.demonstrations": 160,
    "sft.min_steps": 24,
    "sft.round_steps": 8,
    "sft.max_steps": 24,
    "sft.dev_tasks": 1,
    "filter.drop_uniform": False,
    "trainer.threads": 1,
    "trainer.patience": 300.0,  # however slowly programs start, every token is sampled in the same batch
    "observers": [],
}


def blocks() -> dict[str, str]:
    """The page's files by name."""
    return dict(re.findall(r"^```\w+\n# (\S+)\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE))


def ferrule(folder: Path, *words: str, **more: Any) -> str:
    sets = [word for key, value in (SMALL | more).items() for word in ("--set", f"{key}={json.dumps(value)}")]
    done = subprocess.run(
        [sys.executable, "-m", "ferrule", words[0], "program.toml", *words[1:], *sets, "--json"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "KMP_BLOCKTIME": "0"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["dir"])


def episodes(run: str | Path, split: str) -> dict[str, Any]:
    lines = (Path(run) / "episodes" / f"{split}.jsonl").read_text().splitlines()
    return {episode["id"]: episode for episode in map(json.loads, lines)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's files beside the recipe, whose harness is the page's."""
    folder = tmp_path_factory.mktemp("program")
    files = blocks()
    for name in ("agent.py", "summer.py"):
        (folder / name).write_text(files[name])
    recipe = RECIPE.read_text()
    for key, name in (("path", "bundle"), ("tokenizer", "tokenizer")):
        assert f'{key} = "{name}"' in recipe
        recipe = recipe.replace(f'{key} = "{name}"', f'{key} = "{RECIPE.parent / name}"')
    assert LOOP in recipe
    (folder / "program.toml").write_text(recipe.replace(LOOP, files["train.toml"]))
    return folder


@pytest.fixture(scope="module")
def trained(folder: Path) -> Path:
    """The run in which the program was trained."""
    return Path(ferrule(folder, "train"))


def test_a_program_is_trained_on_what_it_sampled(trained: Path) -> None:
    (step,) = [
        line
        for line in map(json.loads, (trained / "metrics.jsonl").read_text().splitlines())
        if line["stage"] == "train"
    ]
    assert step["grad_norm"] > 0.0
    assert abs(step["policy/ratio_max"] - 1.0) < 1e-5  # the trainer says of each token what the sampler said of it
    played = episodes(trained, "train")
    assert len(played) == 4
    for episode in played.values():
        assert episode["failure"] is None
        (trajectory,) = episode["trajectories"]
        assert trajectory["steps"]


def test_the_same_samples_through_a_program_and_through_the_tool_loop_are_the_same_rows(
    folder: Path, trained: Path
) -> None:
    more = {"eval.limit": 4, "eval.modes": ["sampled", "greedy"]}
    program = episodes(ferrule(folder, "eval", "--checkpoint", str(trained), **more), "eval")
    loop = episodes(ferrule(folder, "eval", "--checkpoint", str(trained), "--harness", "tools", **more), "eval")
    assert program.keys() == loop.keys()
    assert len(loop) == 8
    for id_, other in loop.items():
        mine = program[id_]
        assert mine["trajectories"] == other["trajectories"]  # ids, kinds, logprobs, versions, steps
        assert (mine["scores"], mine["reward"], mine["messages"]) == (
            other["scores"],
            other["reward"],
            other["messages"],
        )
    steps = [step for episode in loop.values() for step in episode["trajectories"][0]["steps"]]
    assert sum(bool(step["message"].get("tool_calls")) for step in steps) >= 4
    assert len(steps) > len(loop), "some episodes have several turns"


async def test_programs_their_gateway_and_the_rows_of_demonstrations_use_the_one_renderer_of_the_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    less = {f"sft.{name}": 1 for name in ("min_steps", "max_steps", "round_steps")}
    less |= {"sft.demonstrations": 8, "sft.batch_size": 4, "train.tasks_per_step": 1, "sampling.max_tokens": 24}
    loaded = load(folder / "program.toml", [f"{key}={json.dumps(value)}" for key, value in (SMALL | less).items()])
    cls = loaded.config.renderer.cls
    made: list[int] = []
    users: dict[str, set[int]] = {}

    def watch(owner: type, name: str, who: Any) -> None:
        method = getattr(owner, name)

        def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
            if owner is cls and name == "__init__":
                made.append(id(self))
            else:
                users.setdefault(f"{owner.__name__}.{name}", set()).add(id(who(self, kwargs)))
            return method(self, *args, **kwargs)

        monkeypatch.setattr(owner, name, watched)

    for name in ("__init__", "render", "bridge", "parse", "supervised"):
        watch(cls, name, lambda self, kwargs: self)
    watch(Gateway, "__init__", lambda self, kwargs: kwargs["renderer"])
    summary = await train(loaded)
    assert summary.status == "done"
    assert len(made) == 1
    seen = {name.rpartition(".")[2] if name != "Gateway.__init__" else "gateway" for name in users}
    assert seen >= {"render", "parse", "supervised", "gateway"}
    assert set.union(*users.values()) == set(made)
