"""What is trained on when: tasks of a step, demonstrations of a batch, the learning rate. Functions of the seed and the
step alone.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

from ..config.schema import SftConfig
from ..data import derive_seed

T = TypeVar("T")


def tasks_of_step(tasks: Sequence[T], count: int, seed: int, step: int) -> list[T]:
    """The *count* tasks of RL *step* (from 1), all different; every task before any a second time, in an order drawn
    anew each epoch.

    Where an epoch's last tasks do not fill a step they wait for the next epoch. Fewer tasks than *count*: all of them.
    """
    count = min(count, len(tasks))
    per_epoch = len(tasks) // count
    epoch, place = divmod(step - 1, per_epoch)
    order = list(range(len(tasks)))
    random.Random(derive_seed(seed, "tasks", epoch)).shuffle(order)
    return [tasks[i] for i in order[place * count : (place + 1) * count]]


def batch_of_step(lengths: Sequence[int], size: int, seed: int, step: int) -> list[int]:
    """Indexes of the *size* demonstrations of SFT *step* (from 0), alike in length, so that little is padded.

    Four batches' worth are drawn, sorted by length, and one quarter of them is taken.
    """
    rng = random.Random(derive_seed(seed, "sft", step))
    if len(lengths) < 4 * size:
        return sorted(rng.sample(range(len(lengths)), min(size, len(lengths))))
    drawn = sorted(rng.sample(range(len(lengths)), 4 * size), key=lambda i: (lengths[i], i))
    quarter = rng.randrange(4)
    return drawn[quarter * size : (quarter + 1) * size]


def rounds(config: SftConfig) -> list[int]:
    """The steps at which a round of SFT ends: ``min_steps``, then every ``round_steps``, at last ``max_steps``."""
    last = max(config.min_steps, config.max_steps)
    ends = list(range(config.min_steps, last, config.round_steps))
    return [*ends, last]


def sft_rate(config: SftConfig, step: int) -> float:
    """The factor on the learning rate at SFT *step* (from 0): up over ``warmup``, down to a twentieth over the last
    ``decay`` of each round.
    """
    start = 0
    for end in rounds(config):
        if step < end:
            break
        start = end
    up = min(1.0, (step + 1) / config.warmup) if config.warmup else 1.0
    falling = config.decay * (end - start)
    down = min(1.0, max(0.05, (end - step) / falling)) if falling else 1.0
    return up * down
