"""Supervised training on demonstrations, until the model has learned enough for RL to go on from."""

from __future__ import annotations

import attrs
import numpy as np

from ..algorithm import loss_metrics, supervised, supervised_row
from ..config.schema import SftConfig
from ..data import Row, TokenKind
from ..errors import EpisodeFailed, FerruleError
from .evaluation import sampling_of
from .measure import of_trainer
from .run import Run
from .schedule import batch_of_step, rounds, sft_rate
from .stop import Stopped


async def run_sft(run: Run, config: SftConfig) -> None:
    """Go on from the position to the end of the stage. Raises Stopped between two steps where the run is asked to stop.

    After every round the reward on the dev split is taken; at ``target`` the stage ends, and without a target after
    ``min_steps``.
    """
    position = run.position
    rows = _rows(run, config)
    lengths = [len(row) for row in rows]
    ends = rounds(config) if config.target is not None else [config.min_steps]
    for number, end in enumerate(ends):
        if position.sft_step < end:
            run.reporter.begin("SFT", end, "steps", position.sft_step)
            try:
                while position.sft_step < end:
                    if run.stop.requested:
                        raise Stopped
                    await _step(run, config, rows, lengths)
            finally:
                run.reporter.end()
            await run.trainer.publish()
        if len(position.sft_rewards) <= number:
            # Before the dev split is played, so that a run that is stopped there has lost nothing.
            await run.checkpoint(f"sft-{position.sft_step}")
            position.sft_rewards.append(await _dev_reward(run, config))
            run.done()
            run.save_position()
        if config.target is not None and position.sft_rewards[number] >= config.target:
            run.reporter.say(
                f"SFT reached {position.sft_rewards[number]:.3f} on split {config.dev_split!r} "
                f"after {position.sft_step} steps"
            )
            break
    else:
        if config.target is not None:
            run.warn(
                f"SFT ended at its bound of {position.sft_step} steps with {position.sft_rewards[-1]:.3f} "
                f"on split {config.dev_split!r}, below its target of {config.target:g}"
            )
    await run.trainer.reset_optimizer()
    position.sft_done = True
    run.done()
    await run.checkpoint("sft")


def _rows(run: Run, config: SftConfig) -> list[Row]:
    """The demonstrations as rows; those that cannot be learned from are dropped, and counted where the stage begins."""
    renderer = run.parts.renderer
    assert renderer is not None
    demonstrations = run.parts.taskset.demonstrations(config.split, config.demonstrations, run.config.seed)
    limit = run.trainer.sampler().context_length
    rows: list[Row] = []
    dropped: dict[str, int] = {}
    example = ""
    for demonstration in demonstrations:
        try:
            row = supervised_row(
                renderer.supervised(demonstration.messages, demonstration.tools), demonstration.task_id
            )
        except EpisodeFailed as error:
            reason, example = f"demonstration/{error.reason}", str(error)
        else:
            if len(row) > limit:
                reason = "demonstration/too_long"
            elif not (row.kind == TokenKind.ACTION)[1:].any():
                reason = "demonstration/nothing_to_learn"
            else:
                rows.append(row)
                continue
        dropped[reason] = dropped.get(reason, 0) + 1
    if not rows:
        raise FerruleError(
            f"[sft]: none of {len(demonstrations)} demonstrations can be learned from: {dropped}. {example}".strip()
        )
    if run.position.sft_step == 0:
        run.position.dropped.update(dropped)
    return rows


async def _step(run: Run, config: SftConfig, rows: list[Row], lengths: list[int]) -> None:
    position = run.position
    chosen = [rows[i] for i in batch_of_step(lengths, config.batch_size, run.config.seed, position.sft_step)]
    rate = sft_rate(config, position.sft_step)
    optim = attrs.evolve(config.optim, lr=config.optim.lr * rate, adamw_lr=config.optim.adamw_lr * rate)
    objective = supervised(chosen, config.observation_weight, "token-mean")
    output = await run.trainer.forward_backward(objective)
    metrics = {"sft/loss": loss_metrics(objective, output)["loss/policy"]}
    if config.observation_weight:
        metrics["sft/observation_ce"] = _observed(chosen, output.logprobs)
    metrics |= {**of_trainer(output), **await run.trainer.optim_step(optim), "lr": optim.lr}
    position.sft_step += 1
    run.reporter.advance(1, {"loss": metrics["sft/loss"]})
    run.metrics("sft", position.sft_step, metrics)
    run.done()


def _observed(rows: list[Row], logprobs: tuple[np.ndarray, ...]) -> float:
    picked = [logp[1:][row.kind[1:] == TokenKind.OBSERVATION] for row, logp in zip(rows, logprobs, strict=True)]
    flat = np.concatenate(picked)
    return float(-flat.mean()) if len(flat) else 0.0


async def _dev_reward(run: Run, config: SftConfig) -> float:
    """The mean sampled reward on the dev split; an episode that failed is left out, and counted."""
    step = run.position.sft_step
    tasks = run.parts.tasks(config.dev_split)[: config.dev_tasks]
    episodes = await run.play(
        [(task, 0) for task in tasks],
        group=f"sft/step-{step}",
        step=step,
        title=f"SFT dev, step {step}",
        sampling=sampling_of(run, "sampled"),
        breakable=True,
    )
    rewards = [e.reward for e in episodes if e.reward is not None]
    run.position.dropped.update(str(e.failure) for e in episodes if e.failed)
    run.position.episodes += len(episodes)
    reward = float(np.mean(rewards)) if rewards else 0.0
    run.metrics("sft", step, {"sft/dev_reward": reward, "sft/dev_failed": float(len(episodes) - len(rewards))})
    return reward
