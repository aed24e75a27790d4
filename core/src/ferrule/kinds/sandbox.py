"""Sandboxes: where an agent's commands run and what they leave is judged."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from types import TracebackType
from typing import Any, ClassVar, Self

import attrs
from attrs import validators as v

from ..data import RunInfo
from .base import Plugin, hookspec

OUTPUT_LIMIT = 64 * 1024
"""Bytes of stdout, and of stderr, that an :class:`ExecResult` keeps by default: the head and the tail."""


@attrs.frozen
class SandboxSpec:
    """What a task asks of its sandbox. Sizes in megabytes (2**20 bytes), 0 for no limit of its own; times in seconds.

    ``image`` is for backends that boot images; others refuse a spec that names one. ``env`` reaches every command.
    ``files`` maps paths inside (relative ones to ``workdir``) to contents, written before the first command.
    """

    image: str | None = None
    cpus: float = attrs.field(default=0.0, validator=v.ge(0.0))
    memory_mb: int = attrs.field(default=0, validator=v.ge(0))
    workdir: str = "/workspace"
    env: Mapping[str, str] = attrs.field(factory=dict)
    network: bool = False
    files: Mapping[str, bytes] = attrs.field(factory=dict, repr=False)
    lifetime: float = attrs.field(default=3600.0, validator=v.gt(0.0))


@attrs.frozen
class ExecResult:
    """What a command left. ``stdout`` and ``stderr`` are bounded: head and tail, with a line that says how much was
    dropped.
    """

    stdout: str
    stderr: str
    exit_code: int

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


class Sandbox(abc.ABC):
    """One live sandbox. An async context manager; closing twice is harmless."""

    id: str

    @abc.abstractmethod
    async def exec(
        self,
        command: str,
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
        output_limit: int = OUTPUT_LIMIT,
    ) -> ExecResult:
        """Run *command* by ``bash -c`` (``sh -c`` where there is no bash).

        Relative *cwd* is below the spec's workdir. ``user`` is ``agent`` (default) or ``root``: what a verifier runs
        as; its files are out of the agent's reach. Raises CommandTimeout, SandboxError where the sandbox died.
        """

    @abc.abstractmethod
    async def read(self, path: str, *, user: str | None = "root") -> bytes:
        """The file's bytes. FileNotFoundError where it is not there; links are not followed out of the sandbox."""

    @abc.abstractmethod
    async def write(self, path: str, data: bytes, *, user: str | None = None, mode: int = 0o644) -> None:
        """Create or replace a file, its folders included, owned by *user*."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Kill all that runs inside and remove what is left. Never raises for a sandbox that is gone already."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class SandboxBackend(Plugin, abc.ABC):
    """Makes sandboxes of one sort."""

    provides: ClassVar[frozenset[str]] = frozenset()
    """``isolation``: what runs inside cannot read or change what is outside. ``users``: a verifier's files are safe
    from the agent. ``limits``: memory and cpus are enforced. ``images``: boots images.
    """

    async def start(self, run: RunInfo) -> None:
        """Called once, before the first sandbox. Raises SandboxError with what to install where the backend cannot
        work here.
        """

    @abc.abstractmethod
    async def create(self, spec: SandboxSpec, *, label: str = "") -> Sandbox:
        """A ready sandbox, registered under the run so that :meth:`sweep` finds it. Cancelling leaks nothing.
        *label* is for people.
        """

    async def close(self) -> None:
        """Close every sandbox that is still alive."""

    @classmethod
    @abc.abstractmethod
    async def sweep(cls, run_id: str | None = None) -> list[str]:
        """Remove what killed runs left behind on this machine (of *run_id*, or of any run that is dead); the names
        of what was removed.
        """


class SandboxSpecs:
    @hookspec(firstresult=True)
    def ferrule_sandbox(self, ref: Any) -> type[SandboxBackend] | None:
        """The backend class that *ref* (:class:`ferrule.plugins.Ref`) names, or None where it is not yours."""
