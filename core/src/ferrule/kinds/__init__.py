"""The contracts: one module per kind of plugin, holding its base class, its hookspec and its configuration."""

from .advantage import Advantage, AdvantageSpecs, RewardBatch
from .base import Kind, Plugin, hookimpl, hookspec
from .harness import Harness, HarnessSpecs
from .loss import AuxLoss, LossContext, LossSpecs
from .observer import Observer, ObserverSpecs
from .renderer import NoBridge, Parsed, ParseProblem, Rendered, Renderer, RendererSpecs, Tail
from .sandbox import ExecResult, Sandbox, SandboxBackend, SandboxSpec, SandboxSpecs
from .taskset import Demonstration, Task, TaskRun, Taskset, TasksetSpecs, TurnSpec
from .trainer import Sample, Sampler, SamplerSession, Trainer, TrainerSpecs

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("renderer", "ferrule.renderers", Renderer, RendererSpecs),
        Kind("advantage", "ferrule.advantages", Advantage, AdvantageSpecs),
        Kind("loss", "ferrule.losses", AuxLoss, LossSpecs),
        Kind("sandbox", "ferrule.sandboxes", SandboxBackend, SandboxSpecs),
        Kind("trainer", "ferrule.trainers", Trainer, TrainerSpecs),
        Kind("taskset", "ferrule.tasksets", Taskset, TasksetSpecs),
        Kind("harness", "ferrule.harnesses", Harness, HarnessSpecs),
    )
}
"""Every kind that is chosen by name. Observers (group ``ferrule.hooks``) are told of everything and stand apart."""

__all__ = [
    "KINDS",
    "Advantage",
    "AuxLoss",
    "Demonstration",
    "ExecResult",
    "Harness",
    "Kind",
    "LossContext",
    "NoBridge",
    "Observer",
    "ObserverSpecs",
    "ParseProblem",
    "Parsed",
    "Plugin",
    "Rendered",
    "Renderer",
    "RewardBatch",
    "Sample",
    "Sampler",
    "SamplerSession",
    "Sandbox",
    "SandboxBackend",
    "SandboxSpec",
    "Tail",
    "Task",
    "TaskRun",
    "Taskset",
    "Trainer",
    "TurnSpec",
    "hookimpl",
    "hookspec",
]
