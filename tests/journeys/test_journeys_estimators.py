"""How a configuration reaches its estimator: by name, by file, with options of its own section."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ferrule
from ferrule.config import load
from ferrule.errors import ConfigError

RECIPE = Path(__file__).parents[2] / "contrib" / "gridsim" / "train.toml"
MINE = """
import ferrule


class Doubled(ferrule.Advantage, name="doubled"):
    group_baseline = True

    def estimate(self, batch):
        return 2.0 * batch.centred
"""


def advantages(*overrides: str) -> list[float]:
    """What the recipe's estimator, so changed, makes of one group of two."""
    estimator = load(RECIPE, overrides).config.advantage.make()
    return estimator.estimate(ferrule.RewardBatch(np.array([1.0, 0.0]), np.array([0, 0]))).tolist()


def test_an_option_is_read_from_the_estimators_own_section() -> None:
    assert advantages("advantage.scale=none") == [0.5, -0.5]
    assert advantages() == pytest.approx([1.0, -1.0], abs=1e-5)


@pytest.mark.parametrize("section", ["policy", "train", "filter", "rollout", "trainer"])
def test_the_same_option_anywhere_else_is_an_unknown_key(section: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(RECIPE, [f"{section}.scale=none"])
    (problem,) = raised.value.problems
    assert problem.where == f"{section}.scale"
    assert problem.message.startswith("unknown key")


def test_a_misspelt_estimator_is_told_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"no advantage is called 'gpro'; did you mean 'grpo'\?"):
        load(RECIPE, ["advantage.use=gpro"])


def test_an_estimator_in_a_users_file_works_from_the_same_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    assert advantages("advantage={use = 'mine.py:Doubled'}") == [1.0, -1.0]
