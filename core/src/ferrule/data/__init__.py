"""What flows through the house: plain attrs classes, arrays in numpy."""

from .message import Message, ToolCall, ToolSpec
from .objective import Objective, StepOutput
from .params import Checkpoint, ModelSpec, OptimParams, RunInfo, SamplingParams, derive_seed
from .rollout import Episode, Group, Segment, Step, Termination, Trajectory
from .row import Mask, Row, TokenKind

__all__ = [
    "Checkpoint",
    "Episode",
    "Group",
    "Mask",
    "Message",
    "ModelSpec",
    "Objective",
    "OptimParams",
    "Row",
    "RunInfo",
    "SamplingParams",
    "Segment",
    "Step",
    "StepOutput",
    "Termination",
    "TokenKind",
    "ToolCall",
    "ToolSpec",
    "Trajectory",
    "derive_seed",
]
