"""The configuration of a run, whole: what each TOML section holds, with its defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import attrs
from attrs import validators as v

from ..data import ModelSpec, OptimParams, SamplingParams
from ..kinds import Advantage, AuxLoss, Harness, Observer, Renderer, SandboxBackend, Taskset, Trainer
from .use import Use
from .validators import each_once

Reduction = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "token-sum"]


@attrs.frozen
class PolicyConfig:
    """``[policy]``: the policy loss by Tinker's names, its clip thresholds and its reduction.

    ``eps_clip_high`` is ``eps_clip`` unless given. ``unit``: a sequence in the reduction is a trajectory, or a row.
    """

    loss: str = "ppo"
    eps_clip: float = attrs.field(default=0.2, validator=v.gt(0.0))
    eps_clip_high: float | None = attrs.field(default=None, validator=v.optional(v.gt(0.0)))
    reduction: Reduction = "token-mean"
    unit: Literal["trajectory", "row"] = "trajectory"
    recompute_old: bool = False


@attrs.frozen
class FilterConfig:
    """``[filter]``: what leaves the batch, each drop counted under its reason.

    ``compact`` masks whole trajectories by their termination before grouping. ``drop_uniform`` drops groups whose
    advantages are all zero (groups that an auxiliary loss still learns from are spared and carry only that loss).
    """

    compact: bool = False
    drop_uniform: bool = True
    min_trajectories: int = attrs.field(default=2, validator=v.ge(1))


@attrs.frozen
class RolloutConfig:
    """``[rollout]``: limits of one episode. None is no limit.

    ``max_steps`` counts model messages over the whole episode; ``max_prompt_tokens`` bounds the first prompt,
    ``max_response_tokens`` all that follows it; ``timeout`` is in seconds. ``retries``: how often a failed episode is
    played again before it is dropped. ``reward`` names the score that is the reward where a task records several.
    """

    max_steps: int | None = attrs.field(default=None, validator=v.optional(v.ge(1)))
    max_prompt_tokens: int | None = attrs.field(default=None, validator=v.optional(v.ge(1)))
    max_response_tokens: int | None = attrs.field(default=None, validator=v.optional(v.ge(1)))
    timeout: float | None = attrs.field(default=None, validator=v.optional(v.gt(0.0)))
    slots: int = attrs.field(default=64, validator=v.ge(1))
    retries: int = attrs.field(default=2, validator=v.ge(0))
    reward: str | None = None


@attrs.frozen
class SftConfig:
    """``[sft]``: supervised training before RL, on the task set's demonstrations.

    The first round has ``min_steps``, those after it ``round_steps``. Goes on until at the end of a round the sampled
    reward on ``dev_split`` (``dev_tasks`` of them, once each) reaches ``target``, at most ``max_steps``; without a
    target, ends after the first round. The learning rate warms up over ``warmup`` steps; in every round it falls, to
    a twentieth, over the last ``decay`` of the round.
    """

    min_steps: int = attrs.field(default=300, validator=v.ge(1))
    max_steps: int = attrs.field(default=600, validator=v.ge(1))
    round_steps: int = attrs.field(default=150, validator=v.ge(1))
    batch_size: int = attrs.field(default=16, validator=v.ge(1))
    demonstrations: int = attrs.field(default=1500, validator=v.ge(0))
    split: str = "train"
    dev_split: str = "dev"
    dev_tasks: int = attrs.field(default=64, validator=v.ge(1))
    target: float | None = None
    warmup: int = attrs.field(default=20, validator=v.ge(0))
    decay: float = attrs.field(default=0.3, validator=[v.ge(0.0), v.le(1.0)])
    observation_weight: float = attrs.field(default=0.0, validator=v.ge(0.0))
    optim: OptimParams = OptimParams()


@attrs.frozen
class TrainConfig:
    """``[train]``: RL. Each step plays ``group_size`` attempts at each of ``tasks_per_step`` tasks of ``split``,
    then takes one optimizer step.
    """

    steps: int = attrs.field(default=40, validator=v.ge(0))
    tasks_per_step: int = attrs.field(default=4, validator=v.ge(1))
    group_size: int = attrs.field(default=8, validator=v.ge(1))
    split: str = "train"
    stop_on_error: bool = False
    optim: OptimParams = OptimParams()


@attrs.frozen
class EvalConfig:
    """``[eval]``: each task of ``split`` once per mode, before training, after SFT, every ``every`` RL steps (0:
    only first and last), and at the end.

    ``limit`` caps the tasks. ``sampled`` uses ``[sampling]`` at ``temperature``; ``greedy`` temperature 0.
    """

    split: str = "eval"
    limit: int | None = attrs.field(default=None, validator=v.optional(v.ge(1)))
    every: int = attrs.field(default=20, validator=v.ge(0))
    untrained: bool = True
    modes: tuple[Literal["sampled", "greedy"], ...] = attrs.field(
        default=("sampled",), validator=[v.min_len(1), each_once]
    )
    temperature: float = attrs.field(default=1.0, validator=v.ge(0.0))


@attrs.frozen
class SaveConfig:
    """``[save]``: a checkpoint every ``every`` RL steps and at the end (0: only at the end), the last ``keep`` kept."""

    every: int = attrs.field(default=10, validator=v.ge(0))
    keep: int = attrs.field(default=2, validator=v.ge(1))


@attrs.frozen
class RunConfig:
    """A whole configuration. Sections with ``use`` name a plugin; the keys beside it are that plugin's own.

    ``runs`` is the folder of runs. ``required`` lists distributions that must be installed, as
    ``ferrule-loss-echo>=0.1``.
    """

    taskset: Use[Taskset]
    harness: Use[Harness]
    trainer: Use[Trainer] | None = None
    renderer: Use[Renderer] | None = None
    advantage: Use[Advantage] | None = None
    losses: tuple[Use[AuxLoss], ...] = ()
    sandbox: Use[SandboxBackend] | None = None
    observers: tuple[Use[Observer], ...] = ()
    name: str = "run"
    seed: int = 0
    runs: Path = Path("runs")
    required: tuple[str, ...] = ()
    model: ModelSpec = ModelSpec()
    policy: PolicyConfig = PolicyConfig()
    filter: FilterConfig = FilterConfig()
    rollout: RolloutConfig = RolloutConfig()
    sampling: SamplingParams = SamplingParams()
    sft: SftConfig | None = None
    train: TrainConfig = TrainConfig()
    eval: EvalConfig = EvalConfig()
    save: SaveConfig = SaveConfig()
