"""ECHO on the local trainer, over real conversations: the observations are learned, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import ferrule_advantage_grpo
import ferrule_gridsim
import ferrule_loss_echo
import ferrule_renderer_chat_template
import ferrule_taskset_bundle
import ferrule_trainer_local
import numpy as np

import ferrule
from ferrule.algorithm import build_batch, loss_metrics, lower, supervised_row
from ferrule.config.schema import FilterConfig, PolicyConfig


def played() -> tuple[list[ferrule.Episode], ferrule.ModelSpec]:
    """Conversations of the demonstrations, all of one reward: nothing for the policy to learn from."""
    home = ferrule_gridsim.home()
    model = ferrule.ModelSpec(tokenizer=str(home / "tokenizer"))
    renderer = ferrule_renderer_chat_template.ChatTemplateRenderer(
        ferrule_renderer_chat_template.ChatTemplateRenderer.Config(), model
    )
    taskset = ferrule_taskset_bundle.BundleTaskset(ferrule_taskset_bundle.BundleTaskset.Config(path=home / "bundle"))
    episodes = []
    for i, shown in enumerate(taskset.demonstrations("train", 16, 0)):
        row = supervised_row(renderer.render(shown.messages, shown.tools, generation=False))
        segment = ferrule.Segment(row.ids, row.kind, row.logprobs, row.version)
        trajectory = ferrule.Trajectory("agent", (), (segment,), 0.5)
        episodes.append(ferrule.Episode(f"e{i}", "day", i, (trajectory,), reward=0.5))
    return episodes, model


async def test_echo_at_least_halves_the_cross_entropy_of_the_observations(tmp_path: Path) -> None:
    episodes, model = played()
    loss = ferrule_loss_echo.Echo(ferrule_loss_echo.Echo.Config(coef=1.0))
    estimator = ferrule_advantage_grpo.Grpo(ferrule_advantage_grpo.Grpo.Config())
    tiny = ferrule_trainer_local.Tiny(hidden_size=64, layers=2, heads=4, intermediate_size=128)
    trainer = ferrule_trainer_local.LocalTrainer(ferrule_trainer_local.LocalTrainer.Config(tiny=tiny, threads=1))
    await trainer.start(ferrule.RunInfo("r", tmp_path, 0, model))
    try:
        batch = build_batch(
            episodes, advantage={"*": estimator}, filter=FilterConfig(), losses=[loss], vocab_size=trainer.vocab_size
        )
        objective = lower(batch, PolicyConfig(), [loss])
        assert not any(np.any(w) for w in objective.weights), "uniform rewards teach the policy nothing"
        for row, ce in zip(objective.rows, objective.ce, strict=True):
            assert set(row.kind[ce > 0]) == {ferrule.TokenKind.OBSERVATION}
        curve = []
        for _ in range(30):
            output = await trainer.forward_backward(objective)
            curve.append(loss_metrics(objective, output)["loss/echo"])
            await trainer.optim_step(ferrule.OptimParams(lr=3e-3))
    finally:
        await trainer.close()
    assert curve[0] > 4.0, "an untrained model knows nothing of the answers"
    assert curve[-1] < curve[0] / 2
