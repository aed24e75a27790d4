"""The harness ``program``: the agent is any program that talks to an OpenAI base URL, started once for each episode."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from attrs import validators as v

from ferrule import (
    Commands,
    EpisodeFailed,
    ExecResult,
    Failure,
    FerruleError,
    Harness,
    Play,
    Rollout,
    SandboxError,
    Turn,
    existing,
    get_logger,
    marked_processes,
    masked,
    settle,
)

from .guard import RUN, Guard, family, kill_marked
from .hosts import is_loopback

if TYPE_CHECKING:
    from ferrule import RunInfo

    from .play import EpisodeSource
    from .server import Gateway

log = get_logger("ferrule.gateway")

MARK = "FERRULE_PROGRAM"
"""The environment variable that marks an episode's processes, so that all of them are found at its end."""

KEPT = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER")
"""What a program is given of the run's environment where it inherits nothing else."""


class Program(Harness, name="program"):
    """Starts a program for each episode and points it, by its environment, at a session of the run's own gateway.

    The program asks the model as it would ask OpenAI; what it was shown and what was sampled are captured, token for
    token. A program that exits with 0 ends the task's turn with the last reply. Any other exit fails the episode,
    unless the rollout was cut before: then the cut stands, and is scored.
    """

    @attrs.frozen
    class Config(Harness.Config):
        """``command``: the program's words; ``{python}`` is this interpreter, and relative paths are below ``cwd``.

        ``cwd``: the folder that it runs in, the configuration's by default. ``env``: variables beside those that
        Ferrule sets; ``inherit``: whether it has the run's environment too, or of that only what every program needs
        (PATH, HOME, the language). ``model``: the model's name, as the program sees it. ``max_output``: bytes of each
        of its outputs that are kept with the episode. ``grace``: seconds that it has to end once the rollout is cut,
        and again once it is told to terminate; then it is killed with all that it started. ``host``, ``port`` (0: any
        that is free), ``allow_remote`` and ``public_url`` are the gateway's, for programs that end up elsewhere: in a
        container, on another machine.
        """

        command: tuple[str, ...] = attrs.field(validator=v.min_len(1))
        cwd: Path = attrs.field(default=Path(), validator=existing)
        env: Mapping[str, str] = attrs.field(factory=dict)
        inherit: bool = True
        model: str = "policy"
        max_output: int = attrs.field(default=8192, validator=v.ge(0))
        grace: float = attrs.field(default=5.0, validator=v.ge(0.0))
        host: str = "127.0.0.1"
        port: int = attrs.field(default=0, validator=[v.ge(0), v.le(65535)])
        allow_remote: bool = False
        public_url: str | None = None

    config: Config

    def __init__(self, config: Any) -> None:
        """Raises FerruleError where there is no such program, or the gateway would be open to others unasked."""
        super().__init__(config)
        if not is_loopback(config.host) and not config.allow_remote:
            raise FerruleError(
                f"harness.host = {config.host!r} can be reached from elsewhere: set harness.allow_remote = true where "
                "that is meant"
            )
        self.argv = [word.replace("{python}", sys.executable) for word in config.command]
        program = self.argv[0]
        found = shutil.which(str(config.cwd / program) if os.sep in program else program)
        if found is None:
            raise FerruleError(f"harness.command: there is no program {program!r}, looked for from {config.cwd}")
        self._gateway: Gateway | None = None
        self._guard: Guard | None = None
        self._listener: socket.socket | None = None
        self._starting = asyncio.Lock()

    async def start(self, run: RunInfo) -> None:
        """Take the gateway's port. FerruleError where it is taken."""
        from .server import bind

        self._listener = bind(self.config.host, self.config.port)

    async def run(self, play: Play, rollout: Rollout) -> None:
        from .play import EpisodeSource

        turn = await play.next_turn()
        if turn is None:
            return
        gateway, guard = await self._started(rollout)
        guard.folder.mkdir(mode=0o700, exist_ok=True)  # a program may have removed it
        folder = Path(tempfile.mkdtemp(prefix="", dir=guard.folder))
        source = EpisodeSource(play, rollout)
        session = gateway.add(source, key=f"{play.task.id}#{play.attempt}")
        try:
            file = folder / "task.json"
            file.write_text(json.dumps(_task(play, turn)), "utf-8")
            result = await self._follow(play, source, self._environment(gateway, session, file), str(folder))
        finally:
            await settle(self._leave(gateway, session, source, folder))
        if rollout.ended is not None or play.failure is not None:
            return  # that is what counts, however the program took it
        if source.cut():
            return
        if result.exit_code != 0:
            command = " ".join(self.config.command)
            raise EpisodeFailed(
                Failure.HARNESS_FAILED,
                f"{command} exited with {result.exit_code}: {_tail(result.stderr or result.stdout)}",
            )
        if not rollout.steps:
            log.warning("program_asked_nothing", task=play.task.id, output=_tail(result.stderr or result.stdout))
        await source.finish()

    async def close(self) -> None:
        """Stop the gateway."""
        gateway, self._gateway = self._gateway, None
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        guard, self._guard = self._guard, None
        try:
            if gateway is not None:
                await gateway.stop(grace=self.config.grace)
        finally:
            if guard is not None:
                await guard.close()

    # -- one episode ---------------------------------------------------------------------------------------------------

    async def _started(self, rollout: Rollout) -> tuple[Gateway, Guard]:
        """The run's gateway, and what sees to its programs' end; the first episode starts them."""
        from .server import Gateway, GatewayOptions

        async with self._starting:
            if self._guard is None:
                self._guard = Guard()
            if self._gateway is None:
                gateway = Gateway(
                    renderer=rollout.agent().renderer,
                    sampler=None,
                    sampling=rollout.sampling,
                    options=GatewayOptions(
                        host=self.config.host,
                        port=self.config.port,
                        allow_remote=self.config.allow_remote,
                        public_url=self.config.public_url,
                    ),
                    model=self.config.model,
                )
                listener, self._listener = self._listener, None
                await gateway.start(listener)
                self._gateway = gateway
            return self._gateway, self._guard

    def _environment(self, gateway: Gateway, session: str, file: Path) -> dict[str, str]:
        base_url = gateway.base_url(session)
        env = dict(os.environ) if self.config.inherit else {k: os.environ[k] for k in KEPT if k in os.environ}
        env |= self.config.env
        # A proxy that the machine is set to use does not lead to a loopback address.
        for key in ("NO_PROXY", "no_proxy"):
            env[key] = ",".join(filter(None, (env.get(key), self.config.host, "127.0.0.1", "localhost")))
        return env | {
            "OPENAI_BASE_URL": base_url,
            "OPENAI_API_KEY": gateway.sessions[session].token or "",
            "OPENAI_MODEL": self.config.model,
            "FERRULE_SESSION": session,
            "FERRULE_TASK": str(file),
            RUN: str(file.parent.parent),
            "FERRULE_PLAY_URL": base_url.removesuffix("/v1") + "/play",
        }

    async def _follow(self, play: Play, source: EpisodeSource, env: Mapping[str, str], mark: str) -> ExecResult:
        """Run the program to its end, or to *grace* after that of the rollout; nothing of it is left running."""
        commands = Commands()

        def kill(pid: int) -> None:
            kill_marked(MARK, mark)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)  # all there is where the system has no /proc

        running = asyncio.ensure_future(
            commands.run(
                self.argv,
                env={**env, MARK: mark},
                cwd=str(self.config.cwd),
                kill=kill,
                output_limit=self.config.max_output,
            )
        )
        ended = asyncio.ensure_future(source.ended.wait())
        try:
            await asyncio.wait((running, ended), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((running,), timeout=self.config.grace)
            if not running.done():
                await self._terminate(running, mark)
            result = await running
            # The token is known for a secret as long as its session stands, and no longer.
            return attrs.evolve(result, stdout=masked(result.stdout), stderr=masked(result.stderr))
        except SandboxError as error:
            raise EpisodeFailed(Failure.HARNESS_FAILED, error.detail) from error
        finally:
            ended.cancel()
            try:
                await settle(self._terminate(running, mark))
            finally:
                commands.close()
                _keep(play, running)

    async def _terminate(self, running: asyncio.Future[ExecResult], mark: str) -> None:
        """End the program, which may tidy up for *grace* seconds, and then whatever is left of it."""
        known = await asyncio.to_thread(family, MARK, mark)
        if not running.done():
            for pid in await asyncio.to_thread(marked_processes, MARK, mark):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGTERM)
            await asyncio.wait((running,), timeout=self.config.grace)
        if not await asyncio.to_thread(kill_marked, MARK, mark, known):
            log.warning("processes_left", program=self.argv[0], pids=marked_processes(MARK, mark))
        if not running.done() and (await asyncio.wait((running,), timeout=1.0))[1]:
            running.cancel()
            await asyncio.wait((running,))

    async def _leave(self, gateway: Gateway, session: str, source: EpisodeSource, folder: Path) -> None:
        try:
            await gateway.remove(session)
        finally:
            await source.close()
            shutil.rmtree(folder, ignore_errors=True)


def _keep(play: Play, running: asyncio.Future[ExecResult]) -> None:
    """File what the program printed with the episode."""
    if running.done() and not running.cancelled() and running.exception() is None:
        for name in ("stdout", "stderr"):
            text = masked(getattr(running.result(), name))
            if text:
                play.artifacts[name] = text


def _task(play: Play, turn: Turn) -> dict[str, Any]:
    from .play import shown

    return {"task": play.task.id, "attempt": play.attempt, **shown(turn)}


def _tail(text: str, limit: int = 400) -> str:
    """The end of *text* on one line."""
    line = " ".join(text.split())
    return line if len(line) <= limit else "…" + line[-limit:]
