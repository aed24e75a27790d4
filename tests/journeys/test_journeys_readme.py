"""What the README shows is what a reader can do with it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
from ferrule_test_assets import qwen3

import ferrule
from ferrule.config import load

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "contrib" / "gridsim" / "train.toml"


def block(language: str) -> str:
    """The block in *language* of the README's section on a loss."""
    (section,) = re.findall(r"## A loss in one class\n(.*?)\n## ", (ROOT / "README.md").read_text(), re.DOTALL)
    (text,) = re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)
    return text


def test_the_loss_of_the_readme_fits_the_recipe_as_it_is_written_there(tmp_path: Path) -> None:
    (tmp_path / "my_losses.py").write_text(block("python"))
    recipe = RECIPE.read_text()
    for key, name in (("path", "bundle"), ("tokenizer", "tokenizer")):
        assert f'{key} = "{name}"' in recipe
        recipe = recipe.replace(f'{key} = "{name}"', f'{key} = "{RECIPE.parent / name}"')
    (tmp_path / "train.toml").write_text(f"{recipe}\n{block('toml')}")
    command = [sys.executable, "-m", "ferrule", "check", "train.toml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "loss my_losses.py:SelfImitation" in done.stdout

    *_, use = load(tmp_path / "train.toml").config.losses
    kind = np.array([0, 0, 1, 1, 2, 3, 1], np.uint8)
    row = ferrule.Row(kind.astype(np.int32), kind, np.zeros(7, np.float32), np.zeros(7, np.int32))
    loss = use.make()
    assert loss.tokens(row).tolist() == (kind == ferrule.TokenKind.ACTION).tolist()
    assert [loss.weight(row, ferrule.LossContext(reward=reward)) for reward in (0.0, 0.79, 0.8, 1.0)] == [0, 0, 1, 1]


def test_the_renderer_and_the_program_of_the_readme_fit_a_recipe_and_thinking_costs_what_it_says(
    tmp_path: Path,
) -> None:
    (section,) = re.findall(r"## Token-exact.*?\n(.*?)\n## ", (ROOT / "README.md").read_text(), re.DOTALL)
    recipe = RECIPE.read_text().replace('path = "bundle"', f'path = "{RECIPE.parent / "bundle"}"')
    for name in ("model", "renderer", "harness"):
        recipe = re.sub(rf"^\[{name}\]\n.*?\n\n", "", recipe, flags=re.DOTALL | re.MULTILINE)
    shown = "\n".join(re.findall(r"```toml\n(.*?)```", section, re.DOTALL))
    (tmp_path / "train.toml").write_text(f"{recipe}\n{shown}")
    (tmp_path / "agent.py").touch()
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "Qwen3-8B").symlink_to(qwen3(), target_is_directory=True)
    command = [sys.executable, "-m", "ferrule", "explain", "train.toml", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)["renderer"]
    assert (said["name"].partition("@")[0], said["guess"]) == ("chatml", False)
    rows = re.findall(r"^\| `(\w+)`.*? \| (\d+) \| ([\d,]+) \|$", section, re.MULTILINE)
    assert [(name, int(rows), int(tokens.replace(",", ""))) for name, rows, tokens in rows] == [
        (each["thinking"], each["rows"], each["tokens"]) for each in said["choices"]
    ]
    assert {each["steps"] for each in said["choices"]} == {12}
