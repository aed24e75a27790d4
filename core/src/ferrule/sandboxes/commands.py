"""Running a command to its end on an event loop: bounded output, timeouts and cancels that leave nothing running."""

from __future__ import annotations

import abc
import asyncio
import os
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from ..errors import CommandTimeout, SandboxError
from ..kinds.sandbox import OUTPUT_LIMIT, ExecResult
from .output import BoundedOutput

T = TypeVar("T")

CHUNK = 256 * 1024
PIPE_MOST = 1024 * 1024
"""More than any pipe holds: what a command has left in its pipe when it ends is at most this."""


async def settle(awaitable: Awaitable[T]) -> T:
    """Await to the very end even while being cancelled; the cancellation is raised afterwards."""
    task = asyncio.ensure_future(awaitable)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        if not task.cancelled():
            task.exception()  # seen, so that the loop does not complain of it
        raise asyncio.CancelledError
    return task.result()


class _Pipe:
    """The reading end of one of a command's outputs. It is always drained; what comes after :meth:`forget` is thrown
    away.
    """

    def __init__(self, fd: int, limit: int, ended: Callable[[_Pipe], None]) -> None:
        os.set_blocking(fd, False)
        self.fd, self.kept, self._ended = fd, BoundedOutput(limit), ended
        self._keep = True
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(fd, self.read)

    def read(self) -> bool:
        """One read; False where there was nothing to read now, or ever again."""
        if self.fd < 0:
            return False
        try:
            data = os.read(self.fd, CHUNK)
        except (BlockingIOError, InterruptedError):
            return False
        if not data:
            self.close()
            return False
        if self._keep:
            self.kept.feed(data)
        return True

    def forget(self) -> None:
        """The command is over: take what is in the pipe, and of the rest nothing."""
        most = self.kept.total + PIPE_MOST
        while self.kept.total < most and self.read():
            pass
        self._keep = False

    def close(self) -> None:
        if self.fd >= 0:
            if not self._loop.is_closed():
                self._loop.remove_reader(self.fd)
            os.close(self.fd)
            self.fd = -1
            self._ended(self)


class RunningCommand(abc.ABC):
    """A command under way, however it was started."""

    @abc.abstractmethod
    async def wait(self) -> int:
        """Its exit code, the shell's way: 128 + n after signal n. May be cancelled and called again. SandboxError
        where it is lost.
        """

    @abc.abstractmethod
    def kill(self) -> None:
        """Kill all that the command has started. Called in a thread; may block."""


class _Subprocess(RunningCommand):
    def __init__(self, process: subprocess.Popen[bytes], kill: Callable[[int], None]) -> None:
        self._process, self._kill = process, kill

    async def wait(self) -> int:
        await exited(self._process)
        code = self._process.returncode
        return 128 - code if code < 0 else code

    def kill(self) -> None:
        self._kill(self._process.pid)


class Commands:
    """The commands of one sandbox.

    A process that a command leaves behind may hold its output open; it is drained and thrown away until it ends or
    :meth:`close` is called, so that a daemon neither blocks nor dies of its own output.
    """

    def __init__(self) -> None:
        self._pipes: set[_Pipe] = set()

    async def run(
        self,
        argv: Sequence[str],
        *,
        kill: Callable[[int], None],
        env: Mapping[str, str],
        cwd: str | None = None,
        timeout: float | None = None,
        output_limit: int = OUTPUT_LIMIT,
    ) -> ExecResult:
        """Run *argv* as a subprocess in a session of its own. Its standard input is empty.

        ``kill`` is called with its pid, in a thread, on a timeout and on a cancel; it must kill all that was started.
        Raises CommandTimeout, and SandboxError where the program cannot be started or not be killed.
        """

        def start(stdout: int, stderr: int) -> RunningCommand:
            try:
                process = subprocess.Popen(
                    list(argv),
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    bufsize=0,
                    env=dict(env),
                    cwd=cwd,
                    start_new_session=True,
                )
            except OSError as error:
                raise SandboxError(f"{argv[0]} could not be started: {error}") from error
            return _Subprocess(process, kill)

        return await self.follow(start, timeout=timeout, output_limit=output_limit)

    async def follow(
        self,
        start: Callable[[int, int], RunningCommand],
        *,
        timeout: float | None = None,
        output_limit: int = OUTPUT_LIMIT,
        keep_open: bool = False,
    ) -> ExecResult:
        """Follow the command that *start* starts, given the descriptors of its stdout and stderr, to its end.

        The descriptors are closed here once it is started or, with ``keep_open``, once it has ended. Raises as
        :meth:`run`.
        """
        pipes, inner = [], []
        for _ in range(2):
            reading, writing = os.pipe()
            inner.append(writing)
            pipes.append(_Pipe(reading, output_limit, self._pipes.discard))
        self._pipes.update(pipes)
        late = False
        code = 0
        try:
            command = start(*inner)
            if not keep_open:
                _close(inner)
            try:
                async with asyncio.timeout(timeout):
                    code = await command.wait()
            except TimeoutError:
                late = True
                await settle(_end(command))
            except BaseException:
                await settle(_end(command))
                raise
        finally:
            _close(inner)
            for pipe in pipes:
                pipe.forget()
        stdout, stderr = (pipe.kept.text() for pipe in pipes)
        if late:
            assert timeout is not None
            raise CommandTimeout(timeout, stdout, stderr)
        return ExecResult(stdout, stderr, code)

    def close(self) -> None:
        """Let go of outputs that are still held open."""
        for pipe in tuple(self._pipes):
            pipe.close()


def _close(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


async def exited(process: subprocess.Popen[bytes]) -> None:
    """Wait for *process* without a thread of its own: by a pidfd where there is one, else by looking."""
    try:
        fd = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        while process.poll() is None:
            await asyncio.sleep(0.01)
        return
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    loop.add_reader(fd, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)
    process.wait()


async def _end(command: RunningCommand) -> None:
    await asyncio.to_thread(command.kill)
    try:
        async with asyncio.timeout(10.0):
            await command.wait()
    except TimeoutError:
        raise SandboxError("a command could not be killed") from None
