"""The sessions of a gateway: what each was created with, how it fares, and what is in flight."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import attrs

from ferrule import Reply

from .flight import Flight
from .history import History
from .source import SessionSource, Source
from .store import Writer
from .wire import Sampling


@attrs.define(eq=False)
class Counters:
    """What was counted, of a session or of a whole gateway."""

    requests: int = 0
    errors: int = 0
    disconnects: int = 0
    turns: int = 0
    empty: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def captured(self, reply: Reply, empty: bool) -> None:
        self.turns += 1
        self.empty += empty
        self.prompt_tokens += reply.prompt_length
        self.completion_tokens += len(reply.sample.ids) if reply.sample is not None else 0


@attrs.define(eq=False)
class GatewaySession:
    """One conversation partner: a *source* of replies and what its client knows of them."""

    id: str
    source: Source
    sampling: Sampling
    metadata: Mapping[str, Any] = attrs.field(factory=dict)
    created: float = attrs.field(factory=time.time)
    over_http: bool = False
    writer: Writer | None = None
    token: str | None = None
    """Opens this session alone, for whoever must not have the gateway's."""

    counters: Counters = attrs.field(factory=Counters)
    history: History = attrs.field(factory=History)
    flights: set[Flight] = attrs.field(factory=set)
    used: float = attrs.field(factory=time.monotonic)
    closed: bool = False

    def state(self) -> dict[str, Any]:
        """What ``GET /sessions/<id>`` answers."""
        resets = self.source.resets if isinstance(self.source, SessionSource) else None
        return {
            "id": self.id,
            "state": "open",
            "created": self.created,
            "in_flight": len(self.flights),
            "metadata": dict(self.metadata),
            **attrs.asdict(self.counters),
            **({"resets": resets} if resets is not None else {}),
        }

    def touch(self) -> None:
        """Somebody uses it."""
        self.used = time.monotonic()

    async def end(self) -> None:
        """Cancel what is in flight, wait for it, and give the sampler's session back."""
        self.closed = True
        flights = list(self.flights)
        for flight in flights:
            flight.end()
        if flights:
            await asyncio.wait([flight.over for flight in flights])
        if isinstance(self.source, SessionSource):
            await self.source.close()
        if self.writer is not None:
            self.writer.close()
