"""A shell outside the namespaces from which a sandbox's commands are started.

It has entered the control groups once: to enter them costs milliseconds, and what it starts is born in them. It is
told of a command by one line, takes the command's arguments and outputs through ``/proc``, and answers with its exit
code.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Sequence

import ferrule

from .host import tools

COMMAND = "FERRULE_COMMAND"
"""Environment variable that marks the processes of one command."""

PREPARE = 'ulimit -f "$1"; ulimit -c 0; shift; while [ "$1" != -- ]; do echo $$ >"$1"; shift; done; shift; exec "$@"'
"""Limits the size of files (in blocks of 512 bytes) and enters the control groups that are given before ``--``."""

SERVE = """
exec 3>&1 >/dev/null
while read -r id script out err; do
    { ( exec 3>&- </dev/null >"$1/$out" 2>"$1/$err"; . "$1/$script" ); echo "E $id $?" >&3; } &
    echo "P $id $!" >&3
done
"""

KILL_SECONDS = 5.0

Find = Callable[[int, str, int, frozenset[str]], set[int]]


class Launcher:
    """The shell of one space. ``groups``: files to enter; ``limits``: a program to run it under, or nothing."""

    def __init__(self, name: str, groups: Sequence[str], limits: Sequence[str], file_blocks: int) -> None:
        self.name = name
        self._prepare = ["/bin/sh", "-c", PREPARE, "sh", str(file_blocks or "unlimited"), *groups, "--", *limits]
        self._process: subprocess.Popen[bytes] | None = None
        self._ids = itertools.count(1)
        self._running: dict[str, _Command] = {}
        self._marks: set[str] = set()
        self._unread = b""
        self._lost = False

    @property
    def alive(self) -> bool:
        return self._process is not None and not self._lost and self._process.poll() is None

    def start(self) -> None:
        argv = [
            *self._prepare,
            tools().setpriv,
            "--no-new-privs",
            "--",
            "/bin/sh",
            "-c",
            SERVE,
            "sh",
            f"/proc/{os.getpid()}/fd",
        ]
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                cwd="/",
                env={"PATH": os.environ.get("PATH", os.defpath)},
                start_new_session=True,
            )
        except OSError as error:
            raise ferrule.SandboxError(f"a shell could not be started: {error}") from error
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        asyncio.get_running_loop().add_reader(self._process.stdout.fileno(), self._read)

    def command(
        self, enter: Sequence[str], argv: Sequence[str], find: Find, give_up: Callable[[], None]
    ) -> Callable[[int, int], ferrule.RunningCommand]:
        """What starts ``enter`` (ending with ``env``'s assignments), one assignment more, and ``argv``.

        ``find`` gives a command's live processes; ``give_up`` kills everything, where they cannot be killed one by one.
        """
        mark = f"{self.name}.{secrets.token_hex(8)}"
        self._marks.add(mark)
        text = f"exec {shlex.join([*enter, f'{COMMAND}={mark}', *argv])}"

        def start(stdout: int, stderr: int) -> ferrule.RunningCommand:
            if not self.alive:
                raise ferrule.SandboxError(f"the shell of sandbox {self.name} is gone")
            assert self._process is not None
            assert self._process.stdin is not None
            running = _Command(str(next(self._ids)), text, lambda: self._kill(find, give_up, running, mark))
            self._running[running.id] = running
            line = f"{running.id} {running.script} {stdout} {stderr}\n"
            try:
                os.write(self._process.stdin.fileno(), line.encode())
            except OSError:
                self._lose()
            return running

        return start

    def _kill(self, find: Find, give_up: Callable[[], None], running: _Command, mark: str) -> None:
        def live() -> set[int]:
            return find(
                running.pid if not running.ended.is_set() else 0, mark, running.since, frozenset(self._marks - {mark})
            )

        end = time.monotonic() + KILL_SECONDS
        # once is not enough: the shell may not have come to start it yet
        while not running.ended.is_set():
            if time.monotonic() > end or not ferrule.kill_all(live):
                give_up()
                if self._process is not None:
                    self._process.kill()
                return
            running.ended.wait(0.01)
        if not ferrule.kill_all(live):
            give_up()

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            data = os.read(self._process.stdout.fileno(), 65536)
        except (BlockingIOError, InterruptedError):
            return
        if not data:
            self._lose()
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            kind, name, value = line.decode().split()
            if (running := self._running.get(name)) is None:
                continue
            if kind == "P":
                running.pid = int(value)
            else:
                running.finish(int(value))
                del self._running[name]

    def _lose(self) -> None:
        """The shell is gone, and with it the exit codes of what runs."""
        self._lost = True
        if self._process is not None and self._process.stdout is not None and not self._process.stdout.closed:
            asyncio.get_running_loop().remove_reader(self._process.stdout.fileno())
        for running in self._running.values():
            running.finish(None)
        self._running.clear()

    async def close(self) -> None:
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        self._lose()
        process.stdin.close()
        process.kill()
        await ferrule.exited(process)
        process.stdout.close()


class _Command(ferrule.RunningCommand):
    def __init__(self, name: str, script: str, kill: Callable[[], None]) -> None:
        self.id, self._kill = name, kill
        self.pid, self.ended = 0, threading.Event()
        self.since = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
        self.script = os.memfd_create("ferrule-command", os.MFD_CLOEXEC)
        with open(self.script, "wb", closefd=False) as file:
            file.write(script.encode("utf-8", "surrogateescape"))
        self._code: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    def finish(self, code: int | None) -> None:
        if not self._code.done():
            self._code.set_result(code)
            self.ended.set()
            os.close(self.script)

    async def wait(self) -> int:
        code = await asyncio.shield(self._code)
        if code is None:
            raise ferrule.SandboxError("the sandbox died under the command")
        return code

    def kill(self) -> None:
        self._kill()
