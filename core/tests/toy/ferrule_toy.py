"""A made-up distribution's module: one small plugin of each kind, for tests of the registry and of configurations.

Its tasks are read from a JSON file: ``{split: [{"id": …, "scores": […], "sandbox": bool, "isolation": bool}]}``.
"""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import attrs
import numpy as np

import ferrule


class ToyTask(ferrule.Task):
    def __init__(self, entry):
        self.id = entry["id"]
        self.metadata = {}
        self.score_names = tuple(entry.get("scores", ["reward"]))
        self.sandbox = ferrule.SandboxSpec(image=entry.get("image")) if entry.get("sandbox") else None
        self.needs_isolation = entry.get("isolation", False)

    async def start(self, attempt, sandbox):
        raise ferrule.EpisodeFailed(ferrule.Failure.SETUP_FAILED, "toy tasks are not for playing")


class ToyTaskset(ferrule.Taskset, name="toy"):
    """Tasks from a JSON file."""

    @attrs.frozen
    class Config(ferrule.Taskset.Config):
        path: Path = attrs.field(validator=ferrule.existing)
        shuffle: bool = False

    def __init__(self, config):
        super().__init__(config)
        try:
            self.data = json.loads(config.path.read_text())
        except ValueError as error:
            raise ferrule.FerruleError(f"{config.path.name} is not JSON: {error}") from error

    @property
    def splits(self):
        return tuple(self.data)

    def tasks(self, split):
        return [ToyTask(entry) for name, entries in self.data.items() if split in (name, "all") for entry in entries]


class ToyHarness(ferrule.Harness, name="toy_tools"):
    async def run(self, play, rollout):
        await play.next_turn()


class ToyReplay(ferrule.Harness, name="toy_replay"):
    needs_model = False

    async def run(self, play, rollout):
        await play.next_turn()


class ToyRenderer(ferrule.Renderer, name="toy"):
    """One token per character."""

    stop_ids = frozenset({0})
    vocab_size = 0x110000

    @attrs.frozen
    class Config(ferrule.Renderer.Config):
        trim: bool = False

    def render(self, messages, tools=(), *, generation=True):
        ids = [ord(c) for message in messages for c in message.content]
        return ferrule.Rendered(np.array(ids, np.int32), np.full(len(ids), 3, np.uint8))

    def bridge(self, tail, messages, tools=()):
        return ferrule.NoBridge("no_bridge")

    def parse(self, ids, tools=(), *, opened=()):
        return ferrule.Parsed(ferrule.Message("assistant", self.decode(ids)))

    def decode(self, ids):
        return "".join(map(chr, ids))


class ToyTrainer(ferrule.Trainer, name="toy"):
    provides = frozenset({"cross_entropy", "logprobs"})
    policy_losses = frozenset({"ppo", "importance_sampling", "cross_entropy"})
    optimizers = frozenset({"adamw", "muon"})
    vocab_size = 0x110000

    @attrs.frozen
    class Tiny:
        layers: int = attrs.field(default=2, validator=attrs.validators.ge(1))
        width: int = 16

    @attrs.frozen
    class Config(ferrule.Trainer.Config):
        device: Literal["cpu", "cuda"] = "cpu"
        threads: int = 1
        dropout: float | None = None
        tiny: Tiny | None = None  # noqa: F821, a name of the class around it, as plugin authors write it
        weights: Path | None = attrs.field(default=None, validator=ferrule.existing)
        api_key: str = ""

    async def start(self, run):
        self.version = 0

    async def close(self):
        self.version = 0

    def sampler(self):
        return ToySampler()

    async def forward(self, rows):
        return [np.zeros(len(row), np.float32) for row in rows]

    async def forward_backward(self, objective):
        return ferrule.StepOutput(tuple(await self.forward(objective.rows)))

    async def optim_step(self, optim):
        return {"grad_norm": 0.0}

    async def reset_optimizer(self):
        self.version += 0

    async def publish(self):
        self.version += 1
        return self.version

    async def save(self, name):
        return ferrule.Checkpoint(name)

    async def restore(self, checkpoint):
        self.version = 0


class ToySession(ferrule.SamplerSession):
    async def sample(self, prompt, params):
        return ferrule.Sample(np.zeros(1, np.int32), np.zeros(1, np.float32), np.zeros(1, np.int32), "stop")


class ToySampler(ferrule.Sampler):
    context_length = 1024

    @asynccontextmanager
    async def open(self, key, *, seed):
        yield ToySession()


class ToyAdvantage(ferrule.Advantage, name="toy_grpo"):
    @attrs.frozen
    class Config(ferrule.Advantage.Config):
        eps: float = attrs.field(default=1e-6, validator=attrs.validators.gt(0.0))
        scale: Literal["std", "none"] = "std"

    def estimate(self, batch):
        return batch.centred


class ToyEcho(ferrule.AuxLoss, name="toy_echo"):
    mask = ferrule.Mask.OBSERVATION

    @attrs.frozen
    class Config(ferrule.AuxLoss.Config):
        coef: float = attrs.field(default=0.05, validator=attrs.validators.ge(0.0))

    def weight(self, row, ctx):
        return 1.0


class ToyGate(ferrule.AuxLoss, name="toy_gate"):
    needs = frozenset({"entropy"})

    def weight(self, row, ctx):
        return 1.0


class ToySandbox(ferrule.SandboxBackend, name="toy_box"):
    async def create(self, spec, *, label=""):
        raise ferrule.SandboxError("toy sandboxes are not for playing")

    @classmethod
    async def sweep(cls, run_id=None):
        return []


class ToyIsolated(ToySandbox, name="toy_jail"):
    provides = frozenset({"isolation", "users"})


class ToyWatcher(ferrule.Observer, name="toy_watcher"):
    """Prints the metrics of a run."""

    @attrs.frozen
    class Config(ferrule.Observer.Config):
        every: int = 1

    @ferrule.hookimpl
    def ferrule_metrics(self, stage, step, metrics):
        print(stage, step, metrics)
