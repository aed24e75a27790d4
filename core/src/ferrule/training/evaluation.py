"""Evaluation: each held-out task once per mode, with seeds that are the same whenever it is played again at the same
step.
"""

from __future__ import annotations

import time

import attrs

from ..data import SamplingParams
from .measure import evaluated, observation_ce
from .run import Run

UNTRAINED = -1
"""The step under which the untrained model's evaluation is reported where SFT stands between it and RL step 0."""


def sampling_of(run: Run, mode: str) -> SamplingParams:
    """``[sampling]`` as *mode* changes it: ``greedy`` at temperature 0, ``sampled`` at ``eval.temperature``."""
    return attrs.evolve(run.config.sampling, temperature=0.0 if mode == "greedy" else run.config.eval.temperature)


async def evaluate_at(run: Run, label: str, step: int) -> dict[str, float]:
    """Play the evaluation *label* (``untrained`` or ``step-<n>``), file it under ``eval/<label>``, and mark it done.

    Raises Stopped where the run is asked to stop meanwhile; what was played of it is then abandoned when the run is
    resumed.
    """
    config = run.config.eval
    tasks = run.parts.tasks(config.split)[: config.limit]
    # A harness that samples nothing plays every mode alike.
    modes = config.modes if run.parts.harness.needs_model else config.modes[:1]
    metrics: dict[str, float] = {}
    began = time.monotonic()
    position = run.position
    dropped: list[str] = []
    count = 0
    for mode in modes:
        episodes = await run.play(
            [(task, 0) for task in tasks],
            group=f"eval/{label}/{mode}",
            filed_as=f"eval/{label}",
            step=max(step, 0),
            title=f"eval {label}, {mode}",
            sampling=sampling_of(run, mode),
            breakable=True,
        )
        metrics |= evaluated(mode, episodes, len(tasks))
        if mode == modes[0] and run.parts.trainer is not None and "logprobs" in run.trainer.provides:
            ce = await observation_ce(run.trainer, episodes)
            if ce is not None:
                metrics[f"eval/{mode}/observation_ce"] = ce
        dropped += [f"eval/{e.failure}" for e in episodes if e.failed]
        count += len(episodes)
    metrics["time/eval"] = time.monotonic() - began
    run.metrics("eval", step, metrics, label=label)
    position.evals.append({"label": label, "step": step, **metrics})
    position.evaluated.append(label)
    position.dropped.update(dropped)
    position.episodes += count
    run.done()
    return metrics
