"""A request in flight: it ends when its client goes away or its session does, and is heard of while it takes long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from .asgi import Gone, Receive

T = TypeVar("T")

WATCH_AFTER = 0.25
"""Seconds after which a request has somebody who watches whether its client is still there: most are over by then, and
need not pay for it.
"""


class Ended(Exception):
    """The session ended, or the gateway did, while the request was in flight."""


class Flight:
    """Work that the current task does, and that others may end."""

    def __init__(self, receive: Receive, beat: float, on_beat: Callable[[], Awaitable[None]]) -> None:
        self._receive, self._beat, self._on_beat = receive, beat, on_beat
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._watcher: asyncio.Task[None] | None = None
        self._beats: asyncio.Task[None] | None = None
        self._why: Exception | None = None
        self.over: asyncio.Future[None] = self._loop.create_future()
        """Done when the work is: what is left is to send its result."""

    async def fly(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of *work*. Raises Gone where the client goes away first, Ended where :meth:`end` was called."""
        timers = (
            self._loop.call_later(WATCH_AFTER, self._watch),
            self._loop.call_later(self._beat, self._silent),
        )
        try:
            return await work
        except asyncio.CancelledError:
            if self._why is None or self._task is None:
                raise
            self._task.uncancel()
            raise self._why from None
        finally:
            self.over.set_result(None)
            for timer in timers:
                timer.cancel()
            if self._watcher is not None:
                self._watcher.cancel()
            if self._beats is not None:
                # What it was about to say comes before the answer.
                self._beats.cancel()
                await asyncio.wait({self._beats})

    def end(self, why: Exception | None = None) -> None:
        """Cancel the work, once."""
        if self._why is None and not self.over.done() and self._task is not None:
            self._why = Ended() if why is None else why
            self._task.cancel()

    def _watch(self) -> None:
        self._watcher = asyncio.ensure_future(self._watching())

    async def _watching(self) -> None:
        """Until the client goes away: nothing else comes from it."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.end(Gone())

    def _silent(self) -> None:
        self._beats = asyncio.ensure_future(self._beating())

    async def _beating(self) -> None:
        try:
            while True:
                await self._on_beat()
                await asyncio.sleep(self._beat)
        except Gone as gone:
            self.end(gone)
