"""How long the estimators take over 100,000 groups of 8, beside the least that plain numpy can do, and how fast rows
are lowered.

Run it as a script; it prints medians of process CPU time. The floor knows that every group has 8 members and
reshapes; the estimators take groups of any sizes, give exactly 0 where rewards are equal, and are handed a new batch
each time, so nothing is cached.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import ferrule_advantage_grpo
import ferrule_advantage_prpo
import ferrule_advantage_reinforce_plus_plus
import ferrule_advantage_rloo
import numpy as np

import ferrule
from ferrule.algorithm import build_batch, lower
from ferrule.config.schema import FilterConfig, PolicyConfig

SIZE = 8


def median_ms(run: Callable[[], object], repeats: int) -> float:
    """Median CPU milliseconds of *run*, after one run that is not counted."""
    run()
    times = []
    for _ in range(repeats):
        began = time.process_time()
        run()
        times.append(1000 * (time.process_time() - began))
    return statistics.median(times)


def floor(rewards: np.ndarray) -> np.ndarray:
    """(r − mean) / (std + eps) of groups that are all of one size."""
    groups = rewards.reshape(-1, SIZE)
    centred = groups - groups.mean(1, keepdims=True)
    return (centred / (np.sqrt((centred * centred).mean(1, keepdims=True)) + 1e-6)).reshape(-1)


def bench_estimators(groups: int = 100_000, repeats: int = 9) -> dict[str, float]:
    """Milliseconds by estimator, and of the ``floor``."""
    rewards = np.random.default_rng(0).integers(0, 5, groups * SIZE) / 4
    index = np.repeat(np.arange(groups), SIZE)
    estimators = (
        ferrule_advantage_grpo.Grpo,
        ferrule_advantage_rloo.Rloo,
        ferrule_advantage_prpo.Prpo,
        ferrule_advantage_reinforce_plus_plus.ReinforcePlusPlusBaseline,
    )
    found = {"floor": median_ms(lambda: floor(rewards), repeats)}
    for cls in estimators:
        estimator = cls(cls.Config())
        found[cls.name] = median_ms(lambda e=estimator: e.estimate(ferrule.RewardBatch(rewards, index)), repeats)
    return found


def bench_lowering(trajectories: int = 512, tokens: int = 2048, repeats: int = 9) -> dict[str, float]:
    """Million tokens per CPU second, from episodes to an objective."""
    random = np.random.default_rng(0)
    kind = np.zeros(tokens, np.uint8)
    kind[100:] = random.integers(1, 4, tokens - 100)
    episodes = []
    for i in range(trajectories):
        ids = random.integers(0, 32_000, tokens).astype(np.int32)
        segment = ferrule.Segment(ids, kind, np.full(tokens, -1.0, np.float32), np.zeros(tokens, np.int32))
        trajectory = ferrule.Trajectory("agent", segments=[segment], reward=float(random.integers(0, 2)))
        episodes.append(ferrule.Episode(str(i), str(i // SIZE), i % SIZE, (trajectory,)))
    grpo = {"*": ferrule_advantage_grpo.Grpo(ferrule_advantage_grpo.Grpo.Config())}

    def run() -> ferrule.Objective:
        batch = build_batch(episodes, advantage=grpo, filter=FilterConfig(), vocab_size=32_000)
        return lower(batch, PolicyConfig(), [])

    return {"episodes to objective": trajectories * tokens / 1000 / median_ms(run, repeats)}


def main() -> None:
    found = bench_estimators()
    print("100,000 groups of 8, median CPU ms, and times the floor")
    for name, ms in found.items():
        print(f"  {name:30s} {ms:8.1f} {ms / found['floor']:6.2f}")
    print("lowering, million tokens per CPU second")
    for name, rate in bench_lowering().items():
        print(f"  {name:30s} {rate:8.1f}")


if __name__ == "__main__":
    main()
