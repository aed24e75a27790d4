"""How a gateway that runs alone fares: one live line on a terminal, plain lines now and then elsewhere."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from .server import Gateway

LIVE = 1.0
PLAIN = 30.0
"""Seconds between two lines."""


class Status:
    """Watches *gateway* and writes to *file*."""

    def __init__(self, gateway: Gateway, file: TextIO) -> None:
        self._gateway, self._file = gateway, file
        self._live = file.isatty()
        self._began = time.monotonic()
        self._shown = 0

    async def watch(self) -> None:
        """Write for ever; elsewhere than on a terminal only where something was asked meanwhile."""
        at, tokens, asked = time.monotonic(), 0, 0
        while True:
            await asyncio.sleep(LIVE if self._live else PLAIN)
            now, counters = time.monotonic(), self._gateway.counters
            rate = (counters.completion_tokens - tokens) / (now - at)
            if self._live or counters.requests != asked:
                self._write(self._line(rate))
            at, tokens, asked = now, counters.completion_tokens, counters.requests

    def end(self) -> None:
        """Leave the live line."""
        if self._live and self._shown:
            self._file.write("\n")
            self._file.flush()

    def closing(self) -> str:
        """All of it, in one line."""
        counters, seconds = self._gateway.counters, time.monotonic() - self._began
        text = f"stopped after {seconds:.0f} s: {_many(counters.turns, 'turn')}, {counters.completion_tokens} tokens sampled"
        return text + (f", {_many(counters.errors, 'error')}" if counters.errors else "")

    def _line(self, rate: float) -> str:
        gateway, counters = self._gateway, self._gateway.counters
        flying = sum(len(session.flights) for session in gateway.sessions.values())
        text = f"{_many(len(gateway.sessions), 'session')}  {flying} in flight  {_many(counters.turns, 'turn')}  {rate:.0f} tokens/s"
        return text + (f"  {_many(counters.errors, 'error')}" if counters.errors else "")

    def _write(self, text: str) -> None:
        self._file.write(f"\r{text.ljust(self._shown)}" if self._live else f"{text}\n")
        self._file.flush()
        self._shown = len(text)


def _many(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
