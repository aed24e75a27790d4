"""The sandbox ``local``: commands are plain subprocesses of this process's user. It tidies up, but isolates nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import attrs

import ferrule

__all__ = ["LocalSandbox", "LocalSandboxes"]

log = ferrule.get_logger("ferrule.sandbox.local")

BOX, COMMAND = "FERRULE_SANDBOX", "FERRULE_COMMAND"
"""Environment variables that mark a sandbox's processes, and those of one command: daemons are found by them."""

ARGUMENT_MOST = 120_000
"""Bytes of a command that go on a command line; Linux takes 131,072. A longer command runs from a file."""

USERS = {None: "agent", "agent": "agent", "root": "root", "0": "root"}


class LocalSandbox(ferrule.Sandbox):
    """A private folder, and commands that run in it as whoever runs Ferrule.

    The sandbox's absolute paths are mapped below the folder for ``read``, ``write``, ``files`` and ``cwd``; a command
    sees the host's real paths, and finds the folder of the sandbox's ``/`` in ``$FERRULE_ROOT``. The users ``agent``
    and ``root`` are the same.
    """

    def __init__(self, backend: LocalSandboxes, name: str, folder: Path, spec: ferrule.SandboxSpec) -> None:
        self.id, self._backend, self._folder, self._spec = name, backend, folder, spec
        self._root = folder / "root"
        self._files = ferrule.FileView(self._root)
        self._commands = ferrule.Commands()
        self._count = 0
        self._closed = False
        self._closing: asyncio.Task[None] | None = None

    def _path(self, path: str) -> str:
        return str(PurePosixPath(self._spec.workdir, path))

    def _user(self, user: str | None) -> None:
        if self._closed:
            raise ferrule.SandboxError(f"sandbox {self.id} is closed")
        if user not in USERS:
            raise ferrule.SandboxError(f"there is no user {user!r} in a sandbox of 'local': agent or root")

    async def exec(
        self,
        command: str,
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
        output_limit: int = ferrule.OUTPUT_LIMIT,
    ) -> ferrule.ExecResult:
        self._user(user)
        where = self._root / self._path(cwd or ".").lstrip("/")
        if not where.is_dir():
            return ferrule.ExecResult("", f"cannot change directory to {cwd!r}: no such folder\n", 125)
        self._count += 1
        mark = f"{self.id}.{self._count}"
        argv = [self._backend.shell, "-c", command]
        if len(command.encode("utf-8", "surrogateescape")) > ARGUMENT_MOST:
            script = self._folder / "tmp" / mark
            script.write_bytes(command.encode("utf-8", "surrogateescape"))
            argv = [self._backend.shell, str(script)]
        full = self._environment() | dict(self._spec.env) | dict(env or {}) | {BOX: self.id, COMMAND: mark}
        return await self._commands.run(
            argv,
            env=full,
            cwd=str(where),
            timeout=timeout,
            output_limit=output_limit,
            kill=lambda pid: _kill(pid, COMMAND, mark),
        )

    def _environment(self) -> dict[str, str]:
        # not the whole of the host's environment: keys of services are no business of an agent's commands
        own = {"HOME": self._root / "home", "TMPDIR": self._folder / "tmp", "FERRULE_ROOT": self._root}
        given = {"PATH": os.environ.get("PATH", os.defpath), "LANG": os.environ.get("LANG", "C.UTF-8"), "TERM": "dumb"}
        return given | {key: str(value) for key, value in own.items()}

    async def read(self, path: str, *, user: str | None = "root") -> bytes:
        self._user(user)
        return await asyncio.to_thread(self._files.read, self._path(path))

    async def write(self, path: str, data: bytes, *, user: str | None = None, mode: int = 0o644) -> None:
        self._user(user)
        await asyncio.to_thread(self._files.write, self._path(path), data, mode)

    def _prepare(self) -> None:
        (self._folder / "tmp").mkdir(parents=True)
        (self._root / "home").mkdir(parents=True)
        self._files.make_folder(self._spec.workdir)
        for path, data in self._spec.files.items():
            self._files.write(self._path(path), data)

    async def close(self) -> None:
        self._closed = True
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await ferrule.settle(self._closing)

    async def _close(self) -> None:
        await asyncio.to_thread(_remove, self.id, self._folder, ran=self._count > 0)
        self._commands.close()
        self._backend._forget(self)


class LocalSandboxes(ferrule.SandboxBackend, name="local"):
    """Sandboxes that isolate nothing: for trusted commands, first steps and tests. It says so once, as a warning."""

    @attrs.frozen
    class Config(ferrule.SandboxBackend.Config):
        """``folder``: where the sandboxes' folders are made; the system's folder for temporary files where absent."""

        folder: Path | None = None

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.shell = shutil.which("bash") or "/bin/sh"
        self._run = ""
        self._warned = False
        self._live: dict[str, LocalSandbox] = {}

    async def start(self, run: ferrule.RunInfo) -> None:
        self._run = run.id
        self._warn()

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "sandbox_isolates_nothing",
                sandbox="local",
                detail="commands run as your own user, with your files, your network and no limits; use 'bwrap' for what you do not trust",
            )

    async def create(self, spec: ferrule.SandboxSpec, *, label: str = "") -> LocalSandbox:
        """The folder of a new sandbox, its files written. ``cpus``, ``memory_mb`` and ``network`` of *spec* cannot
        be enforced.

        Raises SandboxError for a spec with an image, or with a workdir that is not absolute.
        """
        self._warn()
        if spec.image is not None:
            raise ferrule.SandboxError(f"the sandbox 'local' boots no images, and the task asks for {spec.image!r}")
        if not spec.workdir.startswith("/"):
            raise ferrule.SandboxError(f"workdir {spec.workdir!r} is not an absolute path")
        base = self.config.folder or Path(tempfile.gettempdir())
        name = f"ferrule-local-{os.urandom(6).hex()}"
        box = LocalSandbox(self, name, base.resolve() / name, spec)
        _register().add(name, self._run, folder=str(box._folder), label=label)
        self._live[name] = box
        try:
            await ferrule.settle(asyncio.to_thread(box._prepare))
        except OSError as error:
            await box.close()
            raise ferrule.SandboxError(f"the folder of the sandbox could not be made: {error}") from error
        except BaseException:
            await box.close()
            raise
        return box

    def _forget(self, box: LocalSandbox) -> None:
        _register().remove(box.id)
        self._live.pop(box.id, None)

    async def close(self) -> None:
        await asyncio.gather(*(box.close() for box in tuple(self._live.values())))

    @classmethod
    async def sweep(cls, run_id: str | None = None) -> list[str]:
        register, removed = _register(), []
        for entry in register.left_behind(run_id):
            folder = Path(entry.facts.get("folder", ""))
            if folder.name != entry.name:  # not an entry of ours: nothing is deleted on its word
                continue
            await asyncio.to_thread(_remove, entry.name, folder)
            register.remove(entry.name)
            removed.append(entry.name)
        return removed


def _register() -> Any:
    return ferrule.SandboxRegister("local")


def _kill(pid: int, variable: str, mark: str) -> None:
    """Kill what *mark* marks, and what descends from *pid*: a child may have cleared its environment."""

    def find() -> set[int]:
        table = ferrule.process_table()
        found = {p for p in table if p == pid or table[p].session == pid}
        found.update(ferrule.marked_processes(variable, mark))
        for process in sorted(table.values(), key=lambda process: process.start):
            if process.parent in found:
                found.add(process.pid)
        return found & set(table)

    if not ferrule.kill_all(find):
        log.warning("processes_left", sandbox="local", pids=sorted(find()))
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)  # all there is where the system has no /proc


def _remove(name: str, folder: Path, *, ran: bool = True) -> None:
    """Kill what a sandbox left running, where any command *ran* in it, and delete its folder."""
    if ran and not ferrule.kill_all(lambda: ferrule.marked_processes(BOX, name)):
        log.warning("processes_left", sandbox=name, pids=ferrule.marked_processes(BOX, name))
    if not ran:  # only files that came through write(): nothing that Python cannot walk
        shutil.rmtree(folder, ignore_errors=True)
    # not shutil.rmtree: an agent may nest folders deeper than Python recurses
    for command in (["rm", "-rf", "--"], ["chmod", "-R", "u+rwX", "--"], ["rm", "-rf", "--"]):
        if os.path.lexists(folder):
            subprocess.run([*command, str(folder)], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if os.path.lexists(folder):
        log.warning("folder_left", sandbox=name, folder=str(folder))
