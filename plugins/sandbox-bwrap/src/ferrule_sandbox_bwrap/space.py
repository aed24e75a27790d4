"""One set of namespaces, held open by one bwrap, which commands enter: the agent's, or the verifier's.

A bwrap for each command would take twice as long, and would kill what a command left running on purpose. The first
process inside is a shell that only reaps; it cannot be killed from inside, and all else dies with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence

import ferrule

from .host import AGENT, ROOT, as_root, tools
from .launcher import COMMAND, Launcher

BOX = "FERRULE_SANDBOX"
"""Environment variable, outside only, that marks the bwrap processes of one sandbox."""

NS_GET_PARENT = 0xB702
PF_EXITING = 0x4
NAMESPACES = ("mount", "pid", "net", "ipc", "uts", "cgroup")
REAPER = "echo ready; exec >/dev/null 2>&1; while read -r _; do :; done"

KEPT_CAPABILITIES = "-all,+dac_override,+chown,+fowner"
"""The verifier reads and changes the agent's files whatever their modes; these count for the sandbox's own uid only."""

START_SECONDS = 30.0


class Space:
    """The namespaces of *user*, ``agent`` or ``root``, of the sandbox *name*.

    ``binds`` are bwrap's arguments for its file system, ``outer`` the uid on the host (None where not root: then it is
    ours), ``groups`` the control groups' files to enter, ``limits`` a prefix for commands where there are no groups.
    """

    def __init__(
        self,
        name: str,
        user: str,
        binds: Sequence[str],
        *,
        outer: int | None,
        groups: Sequence[str],
        limits: Sequence[str],
        network: bool,
        file_blocks: int,
    ) -> None:
        self.name, self.user, self.outer = name, user, outer
        self.uid = ROOT if user == "root" else AGENT
        self._binds, self._network = binds, network
        self._process: subprocess.Popen[bytes] | None = None
        self._launcher = Launcher(name, groups, limits, file_blocks)
        self._init = 0
        self._parent_ns = -1

    @property
    def alive(self) -> bool:
        if self._process is None or self._process.poll() is not None or not self._launcher.alive:
            return False
        return self._init == 0 or not _is_dying(self._init)

    async def start(self) -> None:
        """Raises SandboxError with bwrap's own words."""
        self._launcher.start()
        info = os.pipe()
        try:
            self._process = process = subprocess.Popen(
                self._arguments(info[1]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                pass_fds=[info[1]],
                env={"PATH": os.environ.get("PATH", os.defpath), BOX: self.name},
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            os.close(info[0])
            raise ferrule.SandboxError(f"bwrap could not be started: {error}") from error
        finally:
            os.close(info[1])
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            if not await _first_bytes(process.stdout.fileno()):
                await ferrule.exited(process)
                words = process.stderr.read().decode("utf-8", "replace").strip()
                raise ferrule.SandboxError(
                    f"bwrap could not make a sandbox: {words or f'exit code {process.returncode}'}"
                )
            self._init = json.loads(os.read(info[0], 4096))["child-pid"]
            if not as_root():
                self._parent_ns = _parent_namespace(self._init)
        except TimeoutError:
            raise ferrule.SandboxError(f"bwrap was not ready after {START_SECONDS:g} s") from None
        finally:
            os.close(info[0])
            process.stdout.close()
            process.stderr.close()

    def _arguments(self, info: int) -> list[str]:
        tool = tools()
        drop = (
            []
            if self.outer is None
            else [tool.setpriv, f"--reuid={self.outer}", f"--regid={self.outer}", "--clear-groups", "--"]
        )
        unshare = ["user", "pid", "ipc", "uts", "cgroup-try", *([] if self._network else ["net"])]
        return [
            *drop,
            tool.bwrap,
            *(f"--unshare-{kind}" for kind in unshare),
            *(["--disable-userns"] if tool.disable_userns else []),
            # bash reaps orphans by itself; another shell may not, then bwrap's own first process does
            *(["--as-pid-1"] if tool.shell.endswith("bash") else []),
            "--uid",
            str(self.uid),
            "--gid",
            str(self.uid),
            "--hostname",
            "sandbox",
            "--die-with-parent",
            "--new-session",
            "--clearenv",
            "--setenv",
            "PATH",
            "/usr/bin:/bin",
            "--info-fd",
            str(info),
            *self._binds,
            "--chdir",
            "/",
            "--",
            tool.shell,
            "-c",
            REAPER,
        ]

    def command(
        self, argv: Sequence[str], *, cwd: str, env: Mapping[str, str]
    ) -> Callable[[int, int], ferrule.RunningCommand]:
        """What starts *argv* inside, with the environment *env* and nothing else."""
        tool = tools()
        names = [name for name in NAMESPACES if not (name == "net" and self._network)]
        enter = [tool.setsid, tool.nsenter, "-t", str(self._init), *(f"--{name}" for name in names)]
        if as_root():
            # enters as root of the host, whom nobody inside can touch, and is the inner user before anything of the
            # inside runs
            enter += ["--user", "-S", str(self.uid), "-G", str(self.uid), "--"]
        elif self._parent_ns < 0:
            enter += ["--user", "--preserve-credentials", "--"]
        else:
            # bwrap nests two user namespaces, and only the outer one owns the others: first that, then the inner one
            enter += [f"--user=/proc/{os.getpid()}/fd/{self._parent_ns}", "--preserve-credentials", "--"]
            enter += [tool.nsenter, "--user=/proc/1/ns/user", "--preserve-credentials", "--"]
        if self.user == "root":
            enter += [tool.setpriv, f"--bounding-set={KEPT_CAPABILITIES}", "--inh-caps=-all", "--"]
        enter += [tool.env, "-i", "-C", cwd, "--", *(f"{key}={value}" for key, value in env.items())]
        return self._launcher.command(enter, argv, self._find, self.end)

    def _find(self, pid: int, mark: str, since: int, others: frozenset[str]) -> set[int]:
        """The live processes of the command below the outer process *pid*, started at tick *since*.

        What descends from it, or bears its mark, or was born since and bears no other command's mark: a process may
        leave its parent, its session and its environment, but not its time of birth.
        """
        table = ferrule.process_table()
        children: dict[int, list[int]] = {}
        for process in table.values():
            children.setdefault(process.parent, []).append(process.pid)
        found = _below(pid, children)
        for orphan in _below(self._init, children):
            marks = _marks_of(orphan)
            if mark in marks or (table[orphan].start >= since and not marks & others):
                found.add(orphan)
        return found

    def end(self) -> None:
        """Kill everything inside, by the kernel's own rule that a pid namespace dies with its first process."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._init or self._process.pid, signal.SIGKILL)

    async def close(self) -> None:
        """End it and wait until nothing inside is left."""
        self.end()
        process = self._process
        try:
            if process is not None:
                try:
                    async with asyncio.timeout(5.0):
                        await ferrule.exited(process)
                except TimeoutError:
                    process.kill()
                    await ferrule.exited(process)
                finally:
                    assert process.stdin is not None
                    process.stdin.close()
        finally:
            await self._launcher.close()
            if self._parent_ns >= 0:
                os.close(self._parent_ns)
                self._parent_ns = -1


def _is_dying(pid: int) -> bool:
    """Whether a process is ending or gone. The first process of a namespace begins to end before those that it takes
    with it, so that whoever sees these end can tell why.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return True
    state, *numbers = text[text.rindex(b")") + 2 :].split()
    return state in (b"Z", b"X") or bool(int(numbers[5]) & PF_EXITING)


def _below(pid: int, children: Mapping[int, Sequence[int]]) -> set[int]:
    """All descendants of *pid*; of 0, which stands for a process not known, none: it is the parent of the system's
    first.
    """
    found: set[int] = set()
    todo = [pid] if pid > 1 else []
    while todo:
        for child in children.get(todo.pop(), ()):
            if child not in found:
                found.add(child)
                todo.append(child)
    return found


def _marks_of(pid: int) -> set[str]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            items = file.read().split(b"\0")
    except OSError:
        return set()
    start = COMMAND.encode() + b"="
    return {item[len(start) :].decode("utf-8", "replace") for item in items if item.startswith(start)}


def _parent_namespace(pid: int) -> int:
    """An open user namespace: the one around the innermost of *pid*; -1 where that is the one of this process."""
    fd = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    try:
        parent = fcntl.ioctl(fd, NS_GET_PARENT)
    finally:
        os.close(fd)
    os.set_inheritable(parent, False)
    if os.fstat(parent).st_ino == os.stat("/proc/self/ns/user").st_ino:
        os.close(parent)
        return -1
    return parent


async def _first_bytes(fd: int) -> bytes:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        async with asyncio.timeout(START_SECONDS):
            await ready.wait()
    finally:
        loop.remove_reader(fd)
    return os.read(fd, 64)
