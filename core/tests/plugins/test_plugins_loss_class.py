"""What a loss class declares is checked with the configuration, not at the first step; what breaks in it is named."""

from __future__ import annotations

import sys

import pytest

import ferrule
from ferrule import PluginError
from ferrule.config import Use
from ferrule.plugins import Registry

LOSS = """
import ferrule
class Mine(ferrule.AuxLoss, name="mine"):
    {line}
    def weight(self, row, ctx): return 1.0
"""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("mask = 'everything'", "its mask must be one of"),
        ("reduction = 'sum'", "its reduction must be one of 'token-mean'"),
        ("needs = 'logprobs'", "its needs must be a set of names"),
        ("needs = None", "its needs must be a set of names"),
    ],
)
def test_a_loss_that_declares_what_there_is_not_is_refused(site, tmp_path, line, said):
    (tmp_path / "mine.py").write_text(LOSS.format(line=line))
    with pytest.raises(PluginError, match=r"mine\.py:Mine") as raised:
        Registry.discover([str(site.path)]).resolve("loss", "mine.py:Mine", tmp_path)
    assert said in str(raised.value)


def test_a_loss_may_choose_its_reduction_by_its_options(site, tmp_path):
    (tmp_path / "mine.py").write_text(LOSS.format(line="reduction = property(lambda self: 'token-mean')"))
    assert Registry.discover([str(site.path)]).resolve("loss", "mine.py:Mine", tmp_path).name == "mine"


@pytest.mark.parametrize("error", [RuntimeError("no key"), SystemExit(0)])
def test_a_plugin_that_cannot_be_constructed_is_named(error):
    class Broken(ferrule.AuxLoss, name="broken"):
        def __init__(self, config):
            raise error

        def weight(self, row, ctx):
            return 1.0

    with pytest.raises(PluginError, match=rf"'mine.py:Broken' cannot be constructed: {type(error).__name__}: {error}"):
        Use("mine.py:Broken", Broken, Broken.Config(coef=1.0)).make()


@pytest.mark.parametrize("broken", [lambda: {}["gone"], lambda: sys.exit(0), lambda: "text"])
def test_a_loss_whose_weights_cannot_be_had_is_named_with_task_and_attempt(broken):
    import numpy as np

    from ferrule.algorithm import build_batch, lower
    from ferrule.config.schema import FilterConfig, PolicyConfig

    class Broken(ferrule.AuxLoss, name="broken"):
        def weight(self, row, ctx):
            return broken()

    class Zero(ferrule.Advantage, name="zero"):
        def estimate(self, batch):
            return np.zeros(len(batch.rewards))

    segment = ferrule.Segment(
        np.array([1, 2], np.int32), np.array([0, 1], np.uint8), np.zeros(2, np.float32), np.array([-1, 0], np.int32)
    )
    step = ferrule.Step(segment, 0, 1, 2, "stop", ferrule.Message("assistant", "x"), "ok", 0)
    trajectory = ferrule.Trajectory("agent", (step,), (segment,), 1.0)
    episode = ferrule.Episode("e", "day", 3, (trajectory,), ferrule.Termination.ENV_DONE, reward=1.0)
    loss = Broken(Broken.Config(coef=1.0))
    batch = build_batch(
        [episode],
        advantage={"*": Zero(Zero.Config())},
        filter=FilterConfig(drop_uniform=False, min_trajectories=1),
        losses=[loss],
        vocab_size=4,
    )
    with pytest.raises(ferrule.FerruleError, match=r"task 'day', attempt 3, agent: loss 'broken' gave no weights"):
        lower(batch, PolicyConfig(), [loss])
