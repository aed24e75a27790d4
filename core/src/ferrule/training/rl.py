"""One RL step: play groups, estimate, lower, take one optimizer step, publish."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from ..algorithm import Batch, build_batch, loss_metrics, lower, needs
from ..data import Episode, Objective
from ..kinds import Task
from .measure import of_trainer, played, tokens
from .run import Run
from .schedule import tasks_of_step


async def rl_step(run: Run, tasks: Sequence[Task], step: int) -> None:
    """Step *step*, from 1: afterwards the position stands behind it."""
    config, position = run.config.train, run.position
    chosen = tasks_of_step(tasks, config.tasks_per_step, run.config.seed, step)
    plays = [(task, attempt) for task in chosen for attempt in range(config.group_size)]
    began = time.monotonic()
    episodes = await run.play(plays, group=f"train/step-{step}", step=step, title=f"step {step}/{config.steps}")
    rolled = time.monotonic()
    metrics = {**played(episodes, "episode/"), **tokens(episodes)}
    batch, learned = await learn(run, episodes, step)
    metrics |= {**batch.metrics, **learned, "time/rollout": rolled - began, "time/train": time.monotonic() - rolled}
    position.step = step
    position.episodes += len(episodes)
    position.dropped.update(batch.dropped)
    run.metrics("train", step, metrics)
    run.done()


async def learn(run: Run, episodes: Sequence[Episode], step: int) -> tuple[Batch, dict[str, float]]:
    """One optimizer step on *episodes*, or none where nothing is left to learn from, which is counted."""
    config, parts = run.config, run.parts
    wanted = needs(parts.losses, config.policy)
    batch = build_batch(
        episodes,
        advantage=parts.advantage,
        filter=config.filter,
        losses=[x for x in parts.losses if x.config.coef > 0.0],
        vocab_size=run.trainer.vocab_size,
        need_logprobs=config.policy.loss != "cross_entropy" and not config.policy.recompute_old,
    )
    if not batch.rows:
        return batch, skipped(run, step, "nothing_left")
    logprobs = await run.trainer.forward(batch.rows) if "logprobs" in wanted else None
    objective = lower(batch, config.policy, parts.losses, logprobs=logprobs, step=run.position.optimizer_steps)
    if not has_gradient(objective):
        return batch, skipped(run, step, "no_gradient")
    output = await run.trainer.forward_backward(objective)
    metrics = {
        **loss_metrics(objective, output),
        **of_trainer(output),
        **await run.trainer.optim_step(config.train.optim),
    }
    metrics |= {"lr": config.train.optim.lr, "version": float(await run.trainer.publish())}
    run.position.optimizer_steps += 1
    return batch, metrics


def skipped(run: Run, step: int, reason: str) -> dict[str, float]:
    """Count an optimizer step that is not taken."""
    run.position.skipped[reason] += 1
    run.reporter.say(f"step {step}: no optimizer step, {reason.replace('_', ' ')}")
    return {f"skipped/{reason}": 1.0}


def has_gradient(objective: Objective) -> bool:
    """Whether any token carries weight."""
    if objective.ce is not None and any(np.any(ce) for ce in objective.ce):
        return True
    if objective.policy == "cross_entropy":
        return any(np.any(w) for w in objective.weights)
    return any(np.any(w * a) for w, a in zip(objective.weights, objective.advantages, strict=True))
