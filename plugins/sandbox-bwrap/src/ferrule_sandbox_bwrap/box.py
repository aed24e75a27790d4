"""One sandbox: its folder on the host, what the agent and the verifier each see of it, and their commands."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import ferrule

from . import limits
from .host import SYSTEM, make_etc, make_system, system_binds, tools
from .space import BOX, Space

if TYPE_CHECKING:
    from .backend import BwrapSandboxes

log = ferrule.get_logger("ferrule.sandbox.bwrap")

USERS = {None: "agent", "agent": "agent", "1000": "agent", "root": "root", "0": "root"}
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HOMES = {"agent": "/home/agent", "root": "/verifier"}
ARGUMENT_MOST = 120_000
"""Bytes of a command that go on a command line; Linux takes 131,072. A longer command runs from a file."""


class BwrapSandbox(ferrule.Sandbox):
    """A sandbox that isolates.

    The agent can write below the workdir, ``/tmp``, ``/home/agent`` and the folders of the spec's ``files``; the
    verifier (``root``) sees these, and has all other paths for itself: the agent has no name for them, so it can
    neither read nor change them. A file that ``root`` writes *among the agent's* is within the agent's reach.

    Where the agent kills its own namespaces, its commands end with exit code 137 and the next one gets new ones over
    the same files: an agent cannot make its episode look like a failure of the infrastructure.
    """

    def __init__(
        self, backend: BwrapSandboxes, name: str, folder: Path, uid: int | None, spec: ferrule.SandboxSpec
    ) -> None:
        self.id, self.folder, self.uid, self.spec = name, folder, uid, spec
        self._backend = backend
        self._commands = ferrule.Commands()
        self._spaces: dict[str, Space] = {}
        self._locks = {"agent": asyncio.Lock(), "root": asyncio.Lock()}
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        self._agent_root, self._own_root, self._etc = folder / "agent", folder / "verifier", folder / "etc"
        tops = {_top(spec.workdir), "tmp", "home", *(_top(self._path(path)) for path in spec.files)}
        self._shared = sorted(tops - {*SYSTEM, ""})
        owner = None if uid is None else (uid, uid)
        system = {name: ferrule.Mount(self._agent_root / name, writable=False) for name in ("proc", "dev", "sys")}
        system |= {
            name: ferrule.Mount(Path("/", name), writable=False) for name in SYSTEM if name not in (*system, "etc")
        }
        system = {name: mount for name, mount in system.items() if not mount.path.is_symlink()}
        system["etc"] = ferrule.Mount(self._etc, writable=False)
        self._agent_files = ferrule.FileView(self._agent_root, system, owner)
        self._root_files = ferrule.FileView(self._own_root, system, owner)
        for top in self._shared:
            self._share(top)

    def _share(self, top: str) -> None:
        self._root_files.mounts[top] = ferrule.Mount(self._agent_root / top, links=self._agent_files)

    def _path(self, path: str) -> str:
        return str(PurePosixPath(self.spec.workdir, path))

    def _user(self, user: str | None) -> str:
        if self._closed:
            raise ferrule.SandboxError(f"sandbox {self.id} is closed")
        if user not in USERS:
            raise ferrule.SandboxError(f"there is no user {user!r} in a sandbox of 'bwrap': agent or root")
        return USERS[user]

    def prepare(self) -> None:
        """Make the folders and write the spec's files. Blocks; OSError."""
        self.folder.mkdir(mode=0o700)
        make_etc(self._etc)
        make_system(self._agent_root, [*self._shared, *self._backend.config.bind])
        make_system(self._own_root, [*self._shared, *self._backend.config.bind])
        for view, paths in (
            (self._agent_files, ["/tmp", "/home/agent", self.spec.workdir]),
            (self._root_files, ["/verifier/tmp"]),
        ):
            for inner in paths:
                view.make_folder(inner)
        (self._agent_root / "tmp").chmod(0o1777)
        if self.uid is not None:
            shared = [self._agent_root / top for top in self._shared if top != "home"]
            for path in (self.folder, self._own_root, *shared):
                os.chown(path, self.uid, self.uid)
        for name, data in self.spec.files.items():
            self._agent_files.write(self._path(name), data)

    def _new_space(self, user: str) -> Space:
        config, spec = self._backend.config, self.spec
        own = self._agent_root if user == "agent" else self._own_root
        binds = ["--ro-bind" if user == "agent" else "--bind", str(own), "/"]
        for top in self._shared:
            binds += ["--bind", str(self._agent_root / top), f"/{top}"]
        binds += system_binds(self._etc, config.bind, spec.network)
        enter, prefix = self._backend.limit(self, user)
        return Space(
            self.id,
            user,
            binds,
            outer=self.uid,
            groups=enter,
            limits=prefix,
            network=spec.network,
            file_blocks=config.file_mb * 2048,
        )

    async def space(self, user: str) -> Space:
        """The live namespaces of *user*, made now where there are none."""
        async with self._locks[user]:
            space = self._spaces.get(user)
            if space is None or not space.alive:
                if space is not None:
                    log.warning("sandbox_namespaces_died", sandbox=self.id, user=user)
                    await space.close()
                space = self._spaces[user] = self._new_space(user)
                try:
                    await space.start()
                except BaseException:
                    await ferrule.settle(space.close())
                    del self._spaces[user]
                    raise
            if self._closed:  # closed while it started: nobody else will end it
                await ferrule.settle(space.close())
                raise ferrule.SandboxError(f"sandbox {self.id} is closed")
            return space

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
        who = self._user(user)
        if "\0" in command:
            raise ValueError("a command holds no NUL")
        own = {"PATH": PATH, "HOME": HOMES[who], "USER": who, "LOGNAME": who, "LANG": "C.UTF-8", "TERM": "dumb"}
        own["TMPDIR"] = "/verifier/tmp" if who == "root" else "/tmp"
        full = {**own, "SHELL": tools().shell, **self.spec.env, **(env or {})}
        if bad := [key for key in full if not key or "=" in key]:
            raise ValueError(f"not the name of an environment variable: {bad[0]!r}")
        argv, script = [tools().shell, "-c", command], None
        if len(command.encode("utf-8", "surrogateescape")) > ARGUMENT_MOST:
            script = f"{own['TMPDIR']}/.command-{secrets.token_hex(8)}"
            await self.write(script, command.encode("utf-8", "surrogateescape"), user=who)
            argv = [tools().shell, script]
        space = await self.space(who)
        start = space.command(argv, cwd=self._path(cwd or "."), env=full)
        try:
            result = await self._commands.follow(start, timeout=timeout, output_limit=output_limit, keep_open=True)
        except ferrule.SandboxError:
            if self._closed or who == "root" or space.alive:
                raise
            result = ferrule.ExecResult("", "", 137)
        finally:
            if script is not None:
                (self._agent_files if who == "agent" else self._root_files).remove(script)
        if result.ok or space.alive:
            return result
        if self._closed or who == "root":
            raise ferrule.SandboxError(f"sandbox {self.id} died under the command: {result.stderr[-500:]}")
        return ferrule.ExecResult(result.stdout, f"{result.stderr}\nKilled: with everything else in the sandbox\n", 137)

    async def read(self, path: str, *, user: str | None = "root") -> bytes:
        files = self._agent_files if self._user(user) == "agent" else self._root_files
        return await asyncio.to_thread(files.read, self._path(path), self._backend.config.read_mb << 20)

    async def write(self, path: str, data: bytes, *, user: str | None = None, mode: int = 0o644) -> None:
        who, where = self._user(user), self._path(path)
        files = self._agent_files if who == "agent" else self._root_files
        await asyncio.to_thread(files.write, where, data, mode)
        top = _top(where)
        if who == "agent" and top not in self._root_files.mounts and not os.path.lexists(self._own_root / top):
            # a new folder at the top is the agent's; the verifier sees it from its next namespaces on
            self._share(top)
            self._shared.append(top)
            (self._own_root / top).mkdir()
            async with self._locks["root"]:
                if (space := self._spaces.pop("root", None)) is not None:
                    await ferrule.settle(space.close())

    async def close(self) -> None:
        self._closed = True
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await ferrule.settle(self._closing)

    async def _close(self) -> None:
        for space in tuple(self._spaces.values()):
            await space.close()
        self._commands.close()
        await asyncio.to_thread(remove, self.id, self.folder, self.uid, self._backend.groups_of(self.id))
        self._backend.forget(self)


def _top(path: str) -> str:
    parts = PurePosixPath(path).parts
    return parts[1] if len(parts) > 1 else ""


def remove(name: str, folder: Path, uid: int | None, groups: list[str]) -> None:
    """Kill what is left of a sandbox, delete its folder and its control groups. Blocks; what cannot be removed is
    logged.
    """

    def find() -> set[int]:
        found = set(ferrule.marked_processes(BOX, name))
        return found | {pid for pid in ferrule.process_table() if uid is not None and _uid_of(pid) == uid}

    if not ferrule.kill_all(find):
        log.warning("processes_left", sandbox=name, pids=sorted(find()))
    # not shutil.rmtree: an agent may nest folders deeper than Python recurses
    for command in (["rm", "-rf", "--"], ["chmod", "-R", "u+rwX", "--"], ["rm", "-rf", "--"]):
        if os.path.lexists(folder):
            subprocess.run([*command, str(folder)], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if os.path.lexists(folder):
        log.warning("folder_left", sandbox=name, folder=str(folder))
    if left := limits.remove(groups):
        log.warning("control_groups_left", sandbox=name, folders=left)


def _uid_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("Uid:"))
    except (OSError, StopIteration):
        return -1
