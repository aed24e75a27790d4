"""Running a command to its end on an event loop: bounded output, timeouts and cancels that leave nothing running."""

from __future__ import annotations

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
    """The reading end of one of a command's outputs. It is always drained; what comes after :meth:`forget` is thrown away."""

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
        started: Callable[[int], None] | None = None,
    ) -> ExecResult:
        """Run *argv* in a session of its own. Its standard input is empty.

        ``kill`` is called with its pid, in a thread, on a timeout and on a cancel; it must kill all that was started.
        ``started`` is called with the pid at once. Exit codes are the shell's: 128 + n after signal n. Raises
        CommandTimeout, and SandboxError where the program cannot be started or not be killed.
        """
        try:
            process = subprocess.Popen(
                list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
                env=dict(env), cwd=cwd, start_new_session=True,
            )
        except OSError as error:
            raise SandboxError(f"{argv[0]} could not be started: {error}") from error
        assert process.stdout is not None
        assert process.stderr is not None
        if started is not None:
            started(process.pid)
        pipes = []
        for stream in (process.stdout, process.stderr):
            pipe = _Pipe(os.dup(stream.fileno()), output_limit, self._pipes.discard)
            stream.close()
            self._pipes.add(pipe)
            pipes.append(pipe)
        out, err = pipes
        late = False
        try:
            async with asyncio.timeout(timeout):
                await _exited(process)
        except TimeoutError:
            late = True
            await settle(_end(process, kill))
        except BaseException:
            await settle(_end(process, kill))
            raise
        finally:
            out.forget()
            err.forget()
        stdout, stderr = out.kept.text(), err.kept.text()
        if late:
            assert timeout is not None
            raise CommandTimeout(timeout, stdout, stderr)
        code = process.returncode
        return ExecResult(stdout, stderr, 128 - code if code < 0 else code)

    def close(self) -> None:
        """Let go of outputs that are still held open."""
        for pipe in tuple(self._pipes):
            pipe.close()


async def _exited(process: subprocess.Popen[bytes]) -> None:
    """Wait for *process* without a thread of its own: by a pidfd where there is one, else by looking."""
    try:
        fd = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        while process.poll() is None:
            await asyncio.sleep(0.01)
        return
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    loop.add_reader(fd, lambda: over.done() or over.set_result(None))
    try:
        await over
    finally:
        loop.remove_reader(fd)
        os.close(fd)
    process.wait()


async def _end(process: subprocess.Popen[bytes], kill: Callable[[int], None]) -> None:
    await asyncio.to_thread(kill, process.pid)
    try:
        async with asyncio.timeout(10.0):
            await _exited(process)
    except TimeoutError:
        raise SandboxError(f"process {process.pid} could not be killed") from None
