"""The parts of a run: every plugin that the configuration names, constructed, started and closed in order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from ..data import RunInfo
from ..errors import FerruleError
from ..kinds import Advantage, AuxLoss, Harness, Renderer, SandboxBackend, Task, Taskset, Trainer
from ..logs import get_logger
from ..plugins import Observers
from ..rollout import Player, forecast

if TYPE_CHECKING:
    from ..config import Loaded

log = get_logger("ferrule.training")


@attrs.define(eq=False)
class Parts:
    """Constructed by :meth:`build`, which reads what the plugins read and starts nothing."""

    loaded: Loaded
    taskset: Taskset
    harness: Harness
    renderer: Renderer | None
    trainer: Trainer | None
    sandboxes: SandboxBackend | None
    advantage: Mapping[str, Advantage]
    losses: Sequence[AuxLoss]
    observers: Observers
    _closers: list[tuple[str, Callable[[], Awaitable[None]]]] = attrs.field(factory=list)

    @classmethod
    def build(cls, loaded: Loaded, *, train: bool) -> Parts:
        """Without *train*, a harness that samples nothing gets neither trainer nor renderer.

        Raises FerruleError where there is nothing to train, or a plugin cannot be constructed.
        """
        config = loaded.config
        harness = config.harness.make()
        model = harness.needs_model
        if train and not model:
            raise FerruleError(
                f"harness {config.harness.label!r} samples from no model, so there is nothing to train; "
                "`ferrule eval` plays it"
            )
        if train and config.trainer is None:
            raise FerruleError("there is nothing to train: add [trainer]")
        if model and config.renderer is not None and config.renderer.guess:
            log.warning("renderer_guessed", renderer=config.renderer.label, why=config.renderer.why)
        return cls(
            loaded,
            config.taskset.make(),
            harness,
            config.renderer.make(config.model) if model and config.renderer else None,
            config.trainer.make() if model and config.trainer else None,
            config.sandbox.make() if config.sandbox else None,
            {"*": config.advantage.make()} if train and config.advantage else {},
            [use.make() for use in config.losses] if train else [],
            Observers.make(config.observers),
        )

    async def start(self, run: RunInfo) -> Player:
        """Start the parts, cheapest first, and make the player. :meth:`close` is due even where this fails."""
        starting = (
            ("harness", self.harness),
            ("sandbox", self.sandboxes),
            ("taskset", self.taskset),
            ("trainer", self.trainer),
        )
        for name, part in starting:
            if part is not None:
                self._closers.append((name, part.close))
                await part.start(run)
        # Its episodes are sampled by the trainer: it is closed before that.
        self._closers.append(self._closers.pop(0))
        config = self.loaded.config
        return Player(
            self.harness,
            self.renderer,
            self.trainer.sampler() if self.trainer else None,
            self.sandboxes,
            config=config.rollout,
            sampling=config.sampling,
            vocab_size=self.trainer.vocab_size if self.trainer else None,
            run_seed=config.seed,
        )

    async def close(self) -> None:
        """Close what was started, last first; one that fails does not keep the others open."""
        while self._closers:
            name, close = self._closers.pop()
            try:
                await close()
            except Exception as error:
                log.warning("close_failed", part=name, error=f"{type(error).__name__}: {error}")

    def tasks(self, split: str) -> list[Task]:
        """The tasks of *split*, in the task set's order. FerruleError where there are none, or two have one id."""
        tasks = list(self.taskset.tasks(split))
        if not tasks:
            raise FerruleError(f"split {split!r} of task set {self.loaded.config.taskset.label!r} has no tasks")
        seen: set[str] = set()
        for task in tasks:
            if task.id in seen:
                raise FerruleError(f"two tasks of split {split!r} have the id {task.id!r}")
            seen.add(task.id)
        return tasks


async def _renderer(parts: Parts) -> str:
    """Which renderer, why, what it does with thinking and what that costs."""
    use = parts.loaded.config.renderer
    if use is None or parts.renderer is None:
        return ""
    why = f" (auto: {use.why})" if use.why else ""
    thinking = {
        "template": "earlier thinking as the model's template has it",
        "keep": "earlier thinking kept in view",
        "strip": "earlier thinking not shown again",
    }[use.config.thinking]
    if parts.renderer.extends:
        rows = await _cost(parts.renderer)
    else:
        rows = ", every message a row of its own: it extends no history"
    return f"{use.label}{why}, {thinking}{rows}"


async def _cost(renderer: Renderer) -> str:
    """How many rows a sample of replies with reasoning takes, where it is more than one."""
    try:
        sample = await forecast(renderer, tools=False)  # tools that a template leaves out would be warned of
    except Exception as error:
        log.debug("no_forecast", renderer=renderer.name, error=f"{type(error).__name__}: {error}")
        return ""
    if sample.rows <= 1:
        return ""
    return f" ({sample.steps} replies with reasoning are {sample.rows} rows; `ferrule explain` prices each choice)"


async def facts(parts: Parts, folder: str, plugins: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """What is really enforced in this run, for its header."""
    config = parts.loaded.config
    rollout, sampling = config.rollout, config.sampling
    limits = {
        "messages": rollout.max_steps,
        "prompt tokens": rollout.max_prompt_tokens,
        "response tokens": rollout.max_response_tokens,
        "seconds": rollout.timeout,
    }
    found = [
        ("run", folder),
        ("seed", str(config.seed)),
        ("harness", config.harness.label),
        ("tasks", config.taskset.label),
    ]
    if parts.trainer is not None:
        found += [
            ("trainer", f"{parts.trainer.name}, vocabulary of {parts.trainer.vocab_size}"),
            ("renderer", await _renderer(parts)),
            (
                "sampling",
                f"temperature {sampling.temperature:g}, top_p {sampling.top_p:g}, top_k {sampling.top_k or 'off'}, "
                f"at most {sampling.max_tokens} tokens a message",
            ),
        ]
    found.append(
        ("limits", ", ".join(f"{value:g} {name}" for name, value in limits.items() if value is not None) or "none")
    )
    found.append(
        ("slots", f"{rollout.slots} episodes at once, a failed one is played again up to {rollout.retries} times")
    )
    if parts.sandboxes is not None:
        found.append(
            ("sandbox", f"{parts.sandboxes.name} ({', '.join(sorted(parts.sandboxes.provides)) or 'isolates nothing'})")
        )
    if config.advantage is not None and parts.advantage:
        policy = config.policy
        losses = [f"{loss.name} × {loss.config.coef:g}" for loss in parts.losses]
        found.append(
            ("objective", ", ".join([f"{config.advantage.label}", f"{policy.loss} ({policy.reduction})", *losses]))
        )
    versions = {f"{p['distribution']} {p['version']}" for p in plugins if p.get("distribution")}
    versions |= {str(p.get("reference")) for p in plugins if not p.get("distribution")}
    found.append(("plugins", ", ".join(sorted(versions)) or "none"))
    return found
