"""Task sets: what is played, and how it is judged."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from ..data import Message, RunInfo, ToolCall, ToolSpec
from .base import Plugin, hookspec
from .sandbox import Sandbox, SandboxSpec


@attrs.frozen
class TurnSpec:
    """What the user side asks next: the system prompt in effect, the tools offered, the prompt."""

    prompt: str
    system: str | None = None
    tools: tuple[ToolSpec, ...] = ()


@attrs.frozen
class Demonstration:
    """A recorded conversation for supervised training or replay; assistant messages are what is learned from it."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    task_id: str = ""


class TaskRun(abc.ABC):
    """One attempt's own state, which no other episode sees. The core's :class:`ferrule.Play` drives it."""

    @abc.abstractmethod
    async def next_turn(self) -> TurnSpec | None:
        """The next turn, or None when the run is over."""

    @abc.abstractmethod
    async def call(self, call: ToolCall) -> str:
        """Run one tool (known to the turn, arguments an object); its answer as text. ToolError: a refusal, answered
        to the model.

        Any other exception is a failing tool, also answered to the model; only EpisodeFailed ends the run.
        """

    async def end_turn(self, reply: Message) -> None:
        """The model's *reply* ended the turn."""

    @abc.abstractmethod
    async def score(self) -> Mapping[str, float]:
        """Verify what there is, once, at the end or where the rollout was cut: finite scores by name. Raises
        EpisodeFailed where that fails.
        """

    async def close(self) -> None:
        """Free what the attempt holds (its sandbox is the core's to close). Called exactly once, whatever happened."""


class Task(abc.ABC):
    """One task, to be attempted many times."""

    id: str
    metadata: Mapping[str, Any]
    score_names: tuple[str, ...]
    """The scores that :meth:`TaskRun.score` will give, by name; empty where the task makes no reward, which is
    refused at check time.
    """

    sandbox: SandboxSpec | None = None
    """What sandbox each attempt needs; the core makes it and closes it."""

    needs_isolation: bool = False
    """True where the task must not be played in a sandbox that isolates nothing."""

    @abc.abstractmethod
    async def start(self, attempt: int, sandbox: Sandbox | None) -> TaskRun:
        """Begin an attempt; setup runs here. Raises EpisodeFailed(setup_failed) where it fails."""


class Taskset(Plugin, abc.ABC):
    """A set of tasks in named splits. Construction reads what it needs and raises FerruleError where it is not there
    or wrong.
    """

    @property
    @abc.abstractmethod
    def splits(self) -> tuple[str, ...]:
        """Names of the splits, ``all`` not among them."""

    @abc.abstractmethod
    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of *split* (``all``: of every split), in a stable order with unique ids. FerruleError, naming
        the splits, for an unknown one.
        """

    def demonstrations(self, split: str, count: int, seed: int) -> Sequence[Demonstration]:
        """*count* demonstrations on tasks of *split* (all there are where *count* is 0), a function of *seed* alone.
        None recorded: empty.
        """
        return ()

    async def start(self, run: RunInfo) -> None:
        """Called once before tasks are played."""

    async def close(self) -> None:
        """Free what :meth:`start` took."""


class TasksetSpecs:
    @hookspec(firstresult=True)
    def ferrule_taskset(self, ref: Any) -> type[Taskset] | None:
        """The task set class that *ref* (:class:`ferrule.plugins.Ref`) names, or None where it is not yours."""
