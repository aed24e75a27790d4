"""Stopping a run: once to finish the step and save, twice to stop at once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopped(Exception):
    """A piece of work was broken off because the run was asked to stop; what it did is not counted."""


class StopFlag:
    """Asked to stop or not. :meth:`request` is called from the event loop's thread."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    @property
    def requested(self) -> bool:
        return self._event.is_set()

    def request(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()


@contextmanager
def on_signals(flag: StopFlag, task: asyncio.Task[object], say: Callable[[str], None]) -> Iterator[None]:
    """SIGINT and SIGTERM ask *flag* to stop, a second one cancels *task*, and a third has its usual effect."""
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in signals}

    def release() -> None:
        for number in signals:
            loop.remove_signal_handler(number)
            signal.signal(number, before[number])

    def handle() -> None:
        if not flag.requested:
            say("Stopping after this step; once more to stop at once.")
            flag.request()
        else:
            say("Stopping at once.")
            release()
            task.cancel()

    for number in signals:
        loop.add_signal_handler(number, handle)
    try:
        yield
    finally:
        release()
