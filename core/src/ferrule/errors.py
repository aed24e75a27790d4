"""What can go wrong, as a small tree: each error says what was wrong, where, and what to do."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from .masking import masked

__all__ = [
    "CheckpointError",
    "CommandTimeout",
    "ConfigError",
    "ContextOverflow",
    "EpisodeFailed",
    "Failure",
    "FerruleError",
    "PluginError",
    "Problem",
    "RolloutCut",
    "SandboxError",
    "Superseded",
    "ToolError",
    "TrainerError",
]


class FerruleError(Exception):
    """Base of every error that Ferrule raises on purpose; its text is fit to be shown to the user as it is. Known
    secrets are masked in it.
    """

    def __str__(self) -> str:
        return masked(super().__str__())


class Problem:
    """One mistake in a configuration.

    ``path`` is the way to it (keys and list indexes), ``line`` the 1-based line in ``source`` where known.
    """

    __slots__ = ("line", "message", "path", "source")

    def __init__(
        self, path: tuple[str | int, ...], message: str, line: int | None = None, source: str | None = None
    ) -> None:
        self.path, self.message, self.line, self.source = path, message, line, source

    @property
    def where(self) -> str:
        """The path as a user writes it: ``losses[0].coef``."""
        out = ""
        for part in self.path:
            out += f"[{part}]" if isinstance(part, int) else f".{part}" if out else str(part)
        return out

    def __str__(self) -> str:
        place = (
            f"{self.source}:{self.line}: " if self.source and self.line else f"{self.source}: " if self.source else ""
        )
        return f"{place}{self.where + ': ' if self.path else ''}{self.message}"

    def __repr__(self) -> str:
        return f"Problem({str(self)!r})"


class ConfigError(FerruleError):
    """A configuration with mistakes; ``problems`` holds all of them."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        n = len(self.problems)
        head = "1 mistake" if n == 1 else f"{n} mistakes"
        super().__init__(f"{head} in the configuration:\n" + "\n".join(f"  {p}" for p in self.problems))


class PluginError(FerruleError):
    """A reference that names no plugin, more than one, or one that cannot be used here."""


class TrainerError(FerruleError):
    """The trainer or its sampler could not do what was asked."""


class CheckpointError(FerruleError):
    """A checkpoint that is missing, incomplete or of another model."""


class Failure(enum.StrEnum):
    """Why an episode failed for reasons that are not the policy's. Such an episode never has a reward."""

    SETUP_FAILED = "setup_failed"
    SANDBOX_FAILED = "sandbox_failed"
    UPLOAD_FAILED = "upload_failed"
    VERIFIER_CRASHED = "verifier_crashed"
    VERIFIER_TIMEOUT = "verifier_timeout"
    REWARD_MISSING = "reward_missing"
    REWARD_UNREADABLE = "reward_unreadable"
    RENDER_FAILED = "render_failed"
    ENGINE_FAILED = "engine_failed"
    HARNESS_FAILED = "harness_failed"
    INVALID_TOKEN = "invalid_token"
    CANCELLED = "cancelled"


class EpisodeFailed(FerruleError):
    """The run of an episode failed: no reward, retried, then dropped under ``reason``."""

    def __init__(self, reason: Failure, detail: str) -> None:
        self.reason, self.detail = Failure(reason), masked(detail)
        super().__init__(f"{self.reason}: {detail}")


class SandboxError(EpisodeFailed):
    """A sandbox that could not be made, died, or could not be reached."""

    def __init__(self, detail: str, reason: Failure = Failure.SANDBOX_FAILED) -> None:
        super().__init__(reason, detail)


class CommandTimeout(FerruleError):
    """A command ran over its timeout and was killed with everything it had started. Expected; not a failure.

    ``stdout`` and ``stderr`` hold what it printed until then (bounded as in :class:`ferrule.ExecResult`).
    """

    def __init__(self, seconds: float, stdout: str = "", stderr: str = "") -> None:
        self.seconds, self.stdout, self.stderr = seconds, stdout, stderr
        super().__init__(f"the command was killed after {seconds:g} s")


class ToolError(FerruleError):
    """A tool's refusal: its text is the tool's answer to the model, and the play goes on."""


class RolloutCut(FerruleError):
    """Raised into a harness where the rollout ends here (a limit, a reply beyond use); the episode is scored as it
    stands.

    ``termination`` is a :class:`ferrule.Termination`.
    """

    def __init__(self, termination: enum.StrEnum, detail: str = "") -> None:
        self.termination, self.detail = termination, detail
        super().__init__(f"{termination}{': ' + detail if detail else ''}")


class Superseded(FerruleError):
    """A newer request of the same conversation took the place of this one while it was being sampled; its result is
    not kept.
    """

    def __init__(self) -> None:
        super().__init__("a newer request of this conversation took the place of this one")


class ContextOverflow(FerruleError):
    """A prompt that leaves no room for an answer: *length* tokens, where *context* is all that the model has. Raised to
    those who may shorten their conversation and go on.
    """

    def __init__(self, length: int, context: int) -> None:
        self.length, self.context = length, context
        super().__init__(f"the prompt has {length} tokens; the context is {context} tokens long")
