"""What the README shows is what a reader can do with it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np

import ferrule
from ferrule.config import load

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "contrib" / "gridsim" / "train.toml"


def block(language: str) -> str:
    """The README's one block in *language*."""
    (text,) = re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
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
