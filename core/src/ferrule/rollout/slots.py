"""Slots: how many episodes are under way at once."""

from __future__ import annotations

import asyncio
from types import TracebackType


class Slot:
    """A slot that was taken; ``release`` gives it back, once, however often it is called."""

    __slots__ = ("_slots",)

    def __init__(self, slots: Slots) -> None:
        self._slots: Slots | None = slots

    def release(self) -> None:
        slots, self._slots = self._slots, None
        if slots is not None:
            slots._give_back()

    async def __aenter__(self) -> Slot:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Slots:
    """*n* slots, given out in the order of asking."""

    def __init__(self, n: int) -> None:
        if n < 1:
            raise ValueError("there must be at least one slot")
        self.total = n
        self._taken = 0
        self._semaphore = asyncio.Semaphore(n)

    @property
    def taken(self) -> int:
        return self._taken

    @property
    def free(self) -> int:
        return self.total - self._taken

    async def take(self) -> Slot:
        """Wait for a free slot. ``async with await slots.take():`` gives it back on every path."""
        await self._semaphore.acquire()
        self._taken += 1
        return Slot(self)

    def _give_back(self) -> None:
        self._taken -= 1
        self._semaphore.release()
