"""Ferrule: reinforcement-learning post-training of language-model agents, in which everything people swap is a plugin.

The names below are the public ones, and all that a plugin may use. Each is resolved on first access, so that
``import ferrule`` costs nothing and imports nothing heavy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "errors": (
        "FerruleError",
        "ConfigError",
        "ContextOverflow",
        "PluginError",
        "EpisodeFailed",
        "Failure",
        "ToolError",
        "RolloutCut",
        "Superseded",
        "SandboxError",
        "CommandTimeout",
        "TrainerError",
        "CheckpointError",
    ),
    "data": (
        "Message",
        "ToolCall",
        "ToolSpec",
        "TokenKind",
        "Mask",
        "Segment",
        "Step",
        "Trajectory",
        "Episode",
        "Group",
        "Row",
        "Objective",
        "StepOutput",
        "Termination",
        "SamplingParams",
        "OptimParams",
        "ModelSpec",
        "RunInfo",
        "Checkpoint",
        "derive_seed",
    ),
    "kinds": (
        "Plugin",
        "Renderer",
        "Rendered",
        "NoBridge",
        "Tail",
        "Parsed",
        "ParseProblem",
        "Advantage",
        "RewardBatch",
        "AuxLoss",
        "LossContext",
        "SandboxBackend",
        "Sandbox",
        "SandboxSpec",
        "ExecResult",
        "Trainer",
        "Sampler",
        "SamplerSession",
        "Sample",
        "Taskset",
        "Task",
        "TaskRun",
        "TurnSpec",
        "Demonstration",
        "Harness",
        "Observer",
        "hookimpl",
        "hookspec",
    ),
    "rendering": (
        "MARKUP",
        "CallIds",
        "Encoder",
        "Guard",
        "ReplyParser",
        "Tokens",
        "Unencodable",
        "Unreadable",
        "answer_order",
        "clean_text",
        "delta_order",
        "probe_history",
        "read_call",
        "refused_delta",
        "token_kinds",
        "typed_arguments",
    ),
    "config": ("Use", "existing", "load_config"),
    "logs": ("get_logger",),
    "masking": ("forget_secret", "keep_secret", "masked"),
    "rollout": ("Play", "Turn", "Rollout", "Agent", "Reply", "Session", "Ledger"),
    "sandboxes": (
        "OUTPUT_LIMIT",
        "BoundedOutput",
        "Commands",
        "FileView",
        "Mount",
        "RegisterEntry",
        "RunningCommand",
        "SandboxRegister",
        "exited",
        "kill_all",
        "marked_processes",
        "process_table",
        "settle",
    ),
}
_WHERE = {name: module for module, names in _HOMES.items() for name in names}

__all__ = ["__version__", *sorted(_WHERE)]

if TYPE_CHECKING:
    from .config import Use as Use
    from .config import existing as existing
    from .config import load_config as load_config
    from .data import *  # noqa: F403
    from .errors import *  # noqa: F403
    from .kinds import *  # noqa: F403
    from .logs import get_logger as get_logger
    from .masking import forget_secret as forget_secret
    from .masking import keep_secret as keep_secret
    from .masking import masked as masked
    from .rendering import *  # noqa: F403
    from .rollout import Agent as Agent
    from .rollout import Ledger as Ledger
    from .rollout import Play as Play
    from .rollout import Reply as Reply
    from .rollout import Rollout as Rollout
    from .rollout import Session as Session
    from .rollout import Turn as Turn
    from .sandboxes import *  # noqa: F403


def __getattr__(name: str) -> Any:
    try:
        module = _WHERE[name]
    except KeyError:
        raise AttributeError(f"module 'ferrule' has no attribute {name!r}") from None
    value = getattr(import_module(f"ferrule.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
