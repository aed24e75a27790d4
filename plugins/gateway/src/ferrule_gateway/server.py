"""The gateway itself: its sessions, its socket, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import re
import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import uvicorn
from attrs import validators as v

from ferrule import (
    FerruleError,
    Renderer,
    Reply,
    Sampler,
    SamplingParams,
    forget_secret,
    get_logger,
    keep_secret,
)

from . import checks
from .app import make_app
from .errors import NO_RETRY, WireError, bad
from .hosts import is_loopback
from .http import HttpSampler
from .sessions import Counters, GatewaySession
from .source import SessionSource, Source
from .store import ID, Store
from .wire import Sampling, forced_sampling

log = get_logger("ferrule_gateway")

KEEP_ALIVE = 75
"""Seconds that an idle connection is kept: longer than what clients' pools do, or they would write into closed ones."""

LAST = 5.0
"""Seconds that clients have at the end to take what they were sent; a tenth of that where it must end at once."""

CANARY = 10
"""After so many completions, all of them empty, the upstream is called dead."""


@attrs.frozen
class GatewayOptions:
    """``[gateway]``: ``host`` and ``port`` (0 picks one; loopback unless ``allow_remote``), ``public_url`` where
    clients reach it under another address, ``body_limit`` in bytes, ``heartbeat`` and ``idle_timeout`` in seconds (0:
    sessions made over HTTP stay until they are deleted), ``max_sessions``. ``store``: a folder in which the turns of
    sessions made over HTTP are written down as they are captured, so that they outlive this process.
    """

    host: str = "127.0.0.1"
    port: int = attrs.field(default=0, validator=[v.ge(0), v.le(65535)])
    allow_remote: bool = False
    public_url: str | None = None
    body_limit: int = attrs.field(default=32 * 2**20, validator=v.ge(1024))
    heartbeat: float = attrs.field(default=30.0, validator=v.gt(0.0))
    idle_timeout: float = attrs.field(default=0.0, validator=v.ge(0.0))
    max_sessions: int = attrs.field(default=4096, validator=v.ge(1))
    store: Path | None = None


class Gateway:
    """An OpenAI-compatible server on this event loop.

    Sessions come from :meth:`add` (a rollout's agent), or over HTTP, where there is a *sampler*. *sampling* holds for
    what a request does not give. *model* is the name under which it shows itself; *token* is made where there is none.
    """

    def __init__(
        self,
        *,
        renderer: Renderer,
        sampler: Sampler | None,
        sampling: SamplingParams | None = None,
        options: GatewayOptions | None = None,
        model: str = "policy",
        vocab_size: int | None = None,
        token: str | None = None,
    ) -> None:
        self.renderer, self.sampler, self.model, self.vocab_size = renderer, sampler, model, vocab_size
        self.options = GatewayOptions() if options is None else options
        base = SamplingParams() if sampling is None else sampling
        stop_ids = frozenset((*base.stop_ids, *renderer.stop_ids))
        defaults = attrs.evolve(base, stop_ids=stop_ids)  # type: ignore[arg-type]
        self._sampling = Sampling(defaults, stops={renderer.decode([i]): i for i in sorted(stop_ids)})  # type: ignore[arg-type]
        self.token = secrets.token_urlsafe(32) if token is None else token
        keep_secret(self.token)
        self.sessions: dict[str, GatewaySession] = {}
        self.counters = Counters()
        self.store = Store(self.options.store) if self.options.store is not None else None
        self.stopping = False
        self.url = ""
        self._reaper: asyncio.Task[None] | None = None
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._warned = False

    # -- life ----------------------------------------------------------------------------------------------------------

    async def start(self, listener: socket.socket | None = None) -> None:
        """Bind, or take a *listener* that :func:`bind` gave, and serve. FerruleError at once where the port is taken, or
        the host is open to others and ``allow_remote`` is not set.
        """
        options = self.options
        if not is_loopback(options.host) and not options.allow_remote:
            raise FerruleError(
                f"gateway.host = {options.host!r} can be reached from elsewhere: set gateway.allow_remote = true where "
                "that is meant"
            )
        listener = bind(options.host, options.port) if listener is None else listener
        try:
            if isinstance(self.sampler, HttpSampler):
                await self.sampler.start()
        except BaseException:
            listener.close()
            raise
        host = options.host if ":" not in options.host else f"[{options.host}]"
        self.url = f"http://{'127.0.0.1' if host in ('0.0.0.0', '[::]') else host}:{listener.getsockname()[1]}"
        self._server = _Server(
            uvicorn.Config(
                make_app(self),
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                date_header=False,
                http="httptools",
                ws="none",
                timeout_keep_alive=KEEP_ALIVE,
            )
        )
        self._serving = asyncio.ensure_future(self._server.serve(sockets=[listener]))
        while not self._server.started and not self._serving.done():
            await asyncio.sleep(0.001)
        if self._serving.done():
            self._serving.result()
            raise FerruleError("the gateway's server ended as it started")
        if options.idle_timeout:
            self._reaper = asyncio.ensure_future(self._reap(options.idle_timeout))

    async def stop(self, grace: float = 30.0) -> None:
        """Accept nothing more, let what is in flight end within *grace* seconds, cancel the rest. What was captured
        stays readable until the sessions are gone.
        """
        self.stopping = True
        flights = [flight.over for session in self.sessions.values() for flight in session.flights]
        if flights:
            await asyncio.wait(flights, timeout=grace)
        for session in list(self.sessions.values()):
            await self.remove(session.id)
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            drop = asyncio.get_running_loop().call_later(LAST if grace > 0 else LAST / 10, self._server.drop)
            try:
                await asyncio.shield(self._serving)  # a second stop, which has no patience, goes on with it
            finally:
                drop.cancel()
            self._server = self._serving = None
        if self._reaper is not None:
            self._reaper.cancel()
            await asyncio.wait({self._reaper})
            self._reaper = None
        if isinstance(self.sampler, HttpSampler):
            await self.sampler.close()
        self._canary(1)

    # -- sessions ------------------------------------------------------------------------------------------------------

    def base_url(self, session_id: str) -> str:
        """What an OpenAI client is pointed at."""
        return f"{self.options.public_url or self.url}/s/{session_id}/v1"

    def add(self, source: Source, *, key: str) -> str:
        """Serve a session whose replies come from *source*; its id. *key* names it in logs. Its ``token`` opens what
        OpenAI's clients ask of it, and its task, and nothing else here.
        """
        slug = re.sub(r"[^A-Za-z0-9]+", "-", key).strip("-")[:60]
        id_ = f"{slug}-{secrets.token_hex(6)}" if slug else secrets.token_hex(8)
        token = secrets.token_urlsafe(32)
        keep_secret(token)
        self.sessions[id_] = GatewaySession(id_, source, self._sampling, {"key": key}, token=token)
        return id_

    async def remove(self, session_id: str) -> None:
        """Cancel what is in flight of a session and forget it; harmless where there is none."""
        session = self.sessions.get(session_id)
        if session is not None:
            await session.end()
            self.sessions.pop(session_id, None)
            if session.token is not None:
                forget_secret(session.token)

    def create(self, body: dict[str, Any]) -> GatewaySession:
        """The session that ``POST /sessions`` asks for."""
        if self.sampler is None:
            raise WireError(
                403, "sessions_not_offered", "the sessions of this gateway are made by the run that owns it"
            )
        if self.stopping:
            raise WireError(503, "shutting_down", "the gateway is shutting down")
        id_ = checks.text(body, "id")
        if id_ is None:
            id_ = secrets.token_hex(8)
        elif not ID.fullmatch(id_):
            raise bad("id", "id must be letters, digits and ._~- only, at most 128, a letter or digit first")
        elif id_ in self.sessions or (self.store is not None and id_ in self.store):
            closed = "" if id_ in self.sessions else ", closed, in the store: take another id, or DELETE it first"
            raise WireError(409, "session_exists", f"there is a session {id_!r} already{closed}", "id", NO_RETRY)
        forced = forced_sampling(body)
        metadata = body.get("metadata")
        if metadata is not None and not isinstance(metadata, dict):
            raise checks.wrong("metadata", "an object", metadata)
        if checks.too_deep(metadata):
            raise bad("metadata", f"metadata is nested deeper than {checks.DEEPEST} levels")
        if len(self.sessions) >= self.options.max_sessions:
            raise WireError(429, "too_many_sessions", f"there are {len(self.sessions)} sessions; delete some")
        source = SessionSource(id_, self.renderer, self.sampler, seed=forced.get("seed"), vocab_size=self.vocab_size)
        session = GatewaySession(
            id_, source, attrs.evolve(self._sampling, forced=forced, known={}), metadata or {}, over_http=True
        )
        if self.store is not None:
            session.writer = self.store.create(
                id_,
                {
                    "id": id_,
                    "created": session.created,
                    "model": self.model,
                    "renderer": self.renderer.name,
                    "metadata": metadata or {},
                    "sampling": {k: sorted(x) if isinstance(x, frozenset) else x for k, x in forced.items()},
                },
            )
        self.sessions[id_] = session
        return session

    def stored(self) -> list[str]:
        """The sessions that ended, and are on disk."""
        return [id_ for id_ in self.store.ids() if id_ not in self.sessions] if self.store is not None else []

    async def _reap(self, timeout: float) -> None:
        """End sessions made over HTTP that nobody used for *timeout* seconds."""
        while True:
            await asyncio.sleep(min(timeout / 4, 10.0))
            oldest = time.monotonic() - timeout
            for session in list(self.sessions.values()):
                if session.over_http and not session.flights and session.used < oldest:
                    log.info("session_idle", session=session.id, idle_timeout=timeout)
                    await self.remove(session.id)

    def captured(self, reply: Reply, empty: bool) -> None:
        """A turn stands in the ledger."""
        self.counters.captured(reply, empty)
        self._canary(CANARY)

    def _canary(self, least: int) -> None:
        counters = self.counters
        if not self._warned and least <= counters.turns == counters.empty:
            self._warned = True
            log.warning("upstream_dead", completions=counters.turns, detail="every completion so far is empty")


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the process is not its own."""

    def drop(self) -> None:
        """Cut the connections that are left: their clients take nothing, or have not sent all that they announced."""
        for connection in tuple(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens there. FerruleError where it cannot."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise FerruleError(f"port {port} of {host} is taken: choose another, or 0 for any that is free") from error
        raise FerruleError(f"the gateway cannot listen on {host}:{port}: {error.strerror or error}") from error
    return listener
