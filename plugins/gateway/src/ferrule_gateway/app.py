"""The endpoints: OpenAI's, each within a session, and those that make, read and end sessions."""

from __future__ import annotations

import contextlib
import hmac
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ferrule import Reply, get_logger

from . import replies
from .asgi import EVENTS, JSON, Answer, Gone, Receive, Scope, Send, header, read
from .errors import NO_RETRY, WireError, as_wire, bad
from .flight import Ended, Flight
from .messages import write_message
from .sessions import GatewaySession
from .source import SessionSource
from .trajectories import trajectory_body
from .wire import Asked, chat_request, completion_request, parse_json

if TYPE_CHECKING:
    from .server import Gateway

log = get_logger("ferrule_gateway")

NAMED_BY = (b"x-session-affinity", b"x-multi-turn-session-id")

CHAT = "/v1/chat/completions"

Handler = Callable[["Call"], Awaitable[None]]


class Call:
    """One request on its way to an answer."""

    __slots__ = ("answer", "receive", "scope", "session", "streams")

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope, self.receive = scope, receive
        self.answer = Answer(send, scope["http_version"])
        self.session: GatewaySession | None = None
        self.streams = False

    @property
    def session_id(self) -> str:
        return str(self.scope["path_params"]["id"])


class Endpoint:
    """An ASGI application out of a handler: whatever the handler raises becomes an OpenAI-shaped error."""

    def __init__(self, gateway: Gateway, handler: Handler) -> None:
        self._gateway, self._handler = gateway, handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(scope, receive, send)
        try:
            await self._handler(call)
        except Gone:
            self._gateway.counters.disconnects += 1
            if call.session is not None:
                call.session.counters.disconnects += 1
        except Exception as error:
            wire = as_wire(error)
            if wire is None:
                log.exception("request_failed", path=scope["path"])
                wire = WireError(500, "internal_error", f"the gateway failed: {type(error).__name__}")
            self._gateway.counters.errors += 1
            if call.session is not None:
                call.session.counters.errors += 1
            with contextlib.suppress(Gone):
                await call.answer.error(wire, as_event=call.streams)


class Api:
    """The handlers, over one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway

    # -- OpenAI's ------------------------------------------------------------------------------------------------------

    async def chat(self, call: Call) -> None:
        session = self._session(call)
        asked = chat_request(await self._asked(call, session), session.sampling)
        line = session.history.read(asked.messages, asked.tools)
        source = session.source

        async def work() -> tuple[Reply, dict[str, Any]]:
            reply = await source.reply(line.messages, line.tools, asked.params)
            sent = write_message(reply.message)
            session.history.answered(line, reply.message, sent)
            self._captured(session, reply)
            return reply, sent

        reply, sent = await self._in_flight(call, session, asked, work())
        decode = self.gateway.renderer.decode if asked.logprobs else None
        out = replies.chat_body(reply, sent, self.gateway.model, decode)
        await self._send(call, asked, out, replies.chat_events)

    async def completions(self, call: Call) -> None:
        session = self._session(call)
        asked = completion_request(await self._asked(call, session), session.sampling, self.gateway.vocab_size)

        async def work() -> Reply:
            reply = await session.source.complete(np.array(asked.prompt, np.int32), asked.params)
            self._captured(session, reply)
            return reply

        reply = await self._in_flight(call, session, asked, work())
        out = replies.completion_body(
            reply,
            self.gateway.model,
            self.gateway.renderer.decode,
            logprobs=asked.logprobs,
            token_ids=asked.token_ids,
        )
        await self._send(call, asked, out, replies.completion_events)

    async def models(self, call: Call) -> None:
        if "id" in call.scope["path_params"]:
            self._session(call, serving=False)
        data = [{"id": self.gateway.model, "object": "model", "created": 0, "owned_by": "ferrule"}]
        await call.answer.json(200, {"object": "list", "data": data})

    async def play(self, call: Call) -> None:
        """The task behind a session that is an episode's: its turns and its tools."""
        session = self._session(call)
        serve = getattr(session.source, "serve", None)
        if serve is None:
            raise WireError(404, "not_found", "behind this session is no task that could be played")
        raw = await read(call.scope, call.receive, self.gateway.options.body_limit)
        name = call.scope["path_params"]["name"]
        status, body = await serve(call.scope["method"], name, parse_json(raw) if raw.strip() else {})
        await (call.answer.whole(status, b"") if body is None else call.answer.json(status, body))

    # -- sessions ------------------------------------------------------------------------------------------------------

    async def create(self, call: Call) -> None:
        raw = await read(call.scope, call.receive, self.gateway.options.body_limit)
        session = self.gateway.create(parse_json(raw) if raw.strip() else {})
        await call.answer.json(201, {"id": session.id, "base_url": self.gateway.base_url(session.id)})

    async def sessions(self, call: Call) -> None:
        data = [session.state() for session in self.gateway.sessions.values()]
        data += [self._closed(id_) for id_ in self.gateway.stored()]
        await call.answer.json(200, {"object": "list", "data": data})

    async def state(self, call: Call) -> None:
        session = self._live_or_stored(call)
        await call.answer.json(200, session.state() if session is not None else self._closed(call.session_id))

    async def trajectory(self, call: Call) -> None:
        session = self._live_or_stored(call)
        if session is not None:
            out = trajectory_body(session.id, "open", session.source.export())
        else:
            assert self.gateway.store is not None
            out = {**trajectory_body(call.session_id, "closed"), **self.gateway.store.read(call.session_id)}
        await call.answer.json(200, out)

    async def delete(self, call: Call) -> None:
        id_ = call.session_id
        self._live_or_stored(call)
        await self.gateway.remove(id_)
        if self.gateway.store is not None:
            self.gateway.store.delete(id_)
        await call.answer.json(200, {"id": id_, "deleted": True})

    def _live_or_stored(self, call: Call) -> GatewaySession | None:
        """The session that is named; None where it is one that ended, and is on disk. Else WireError 404."""
        store, id_ = self.gateway.store, call.session_id
        if id_ not in self.gateway.sessions and store is not None and id_ in store:
            return None
        return self._session(call, serving=False)

    def _closed(self, id_: str) -> dict[str, Any]:
        assert self.gateway.store is not None
        return {**self.gateway.store.facts(id_), "id": id_, "state": "closed"}

    async def health(self, call: Call) -> None:
        gateway = self.gateway
        status = "stopping" if gateway.stopping else "ok"
        await call.answer.json(503 if gateway.stopping else 200, {"status": status, "sessions": len(gateway.sessions)})

    # -- one request ---------------------------------------------------------------------------------------------------

    def _session(self, call: Call, *, serving: bool = True) -> GatewaySession:
        id_ = call.scope["path_params"].get("id")
        if id_ is None:
            id_ = _named(call.scope)
            if id_ is None:
                raise bad(
                    None,
                    "no session is named: create one with POST /sessions and use its base_url, or name it in the header "
                    "x-session-affinity",
                    "session_required",
                )
        session = self.gateway.sessions.get(id_)
        if session is None or session.closed:
            store = self.gateway.store
            closed = store is not None and id_ in store
            what = f"the session {id_!r} is closed: create another" if closed else f"there is no session {id_!r}"
            raise WireError(404, "session_not_found", what)
        if serving:
            if self.gateway.stopping:
                raise WireError(503, "shutting_down", "the gateway is shutting down")
            session.touch()
            call.session = session
            session.counters.requests += 1
            self.gateway.counters.requests += 1
        return session

    async def _asked(self, call: Call, session: GatewaySession) -> dict[str, Any]:
        """The body. Raises WireError where the session ended while it came: what is asked now would outlive it."""
        raw = await read(call.scope, call.receive, self.gateway.options.body_limit)
        if session.closed or self.gateway.stopping:
            raise self._ended()
        return parse_json(raw)

    def _ended(self) -> WireError:
        if self.gateway.stopping:
            return WireError(503, "cancelled", "the gateway is shutting down")
        return WireError(409, "cancelled", "the session was ended", headers=NO_RETRY)

    async def _in_flight(
        self, call: Call, session: GatewaySession, asked: Asked, work: Coroutine[Any, Any, Any]
    ) -> Any:
        """The result of *work*, which ends when the client goes away or the session does."""
        if asked.seed is not None and isinstance(session.source, SessionSource) and session.source.seed is None:
            session.source.seed = asked.seed
        answer, call.streams = call.answer, asked.stream

        async def beat() -> None:
            await answer.begin(EVENTS if asked.stream else JSON)
            await answer.part(b": ping\n\n" if asked.stream else b" ")

        flight = Flight(call.receive, self.gateway.options.heartbeat, beat)
        session.flights.add(flight)
        try:
            return await flight.fly(work)
        except Ended:
            raise self._ended() from None
        finally:
            session.flights.discard(flight)
            session.touch()

    async def _send(self, call: Call, asked: Asked, body: dict[str, Any], events: Callable[..., Any]) -> None:
        if asked.stream:
            await call.answer.begin(EVENTS)
            await call.answer.whole(200, b"".join(events(body, asked.usage)), EVENTS)
        else:
            await call.answer.json(200, body)

    def _captured(self, session: GatewaySession, reply: Reply) -> None:
        ids, _ = replies.sampled(reply)
        stop_ids = self.gateway.renderer.stop_ids
        empty = len(ids) == 0 or (len(ids) == 1 and int(ids[0]) in stop_ids)
        session.counters.captured(reply, empty)
        self.gateway.captured(reply, empty)
        if session.writer is not None:
            session.writer.turn(session.source.export())


def make_app(gateway: Gateway) -> Any:
    """The ASGI application: a bearer token before everything but ``/health``."""
    api = Api(gateway)
    table: list[tuple[str, str, Handler]] = [
        ("POST", "/s/{id}/v1/chat/completions", api.chat),
        ("POST", "/s/{id}/v1/completions", api.completions),
        ("GET", "/s/{id}/v1/models", api.models),
        ("GET", "/s/{id}/play/{name}", api.play),
        ("POST", "/s/{id}/play/{name}", api.play),
        ("POST", "/v1/chat/completions", api.chat),
        ("POST", "/v1/completions", api.completions),
        ("GET", "/v1/models", api.models),
        ("POST", "/sessions", api.create),
        ("GET", "/sessions", api.sessions),
        ("GET", "/sessions/{id}", api.state),
        ("DELETE", "/sessions/{id}", api.delete),
        ("GET", "/sessions/{id}/trajectory", api.trajectory),
        ("GET", "/health", api.health),
    ]
    routes = [Route(path, Endpoint(gateway, handler), methods=[method]) for method, path, handler in table]
    inner = Starlette(routes=routes, exception_handlers={HTTPException: _not_served})
    inner.router.redirect_slashes = False  # it would lead to whatever host the request names
    chat = Endpoint(gateway, api.chat)
    expected = gateway.token.encode()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        given = _bearer(scope)
        if not (hmac.compare_digest(given, expected) or scope["path"] == "/health" or _opens(gateway, scope, given)):
            what = "is not one of this gateway" if given else "is missing"
            error = WireError(
                401, "invalid_api_key", f"the bearer token {what}", headers={"www-authenticate": "Bearer"}
            )
            with contextlib.suppress(Gone):
                await Answer(send, scope["http_version"]).error(error)
            return
        # Nearly every request is of this kind, and need not be looked for in the table.
        id_ = _chats_in(scope)
        if id_ is not None:
            scope["path_params"] = {"id": id_}
            await chat(scope, receive, send)
        else:
            await inner(scope, receive, send)

    return app


def _named(scope: Scope) -> str | None:
    """The session that a header names."""
    named = next((value for name in NAMED_BY if (value := header(scope, name))), None)
    return None if named is None else named.decode("latin-1")


def _opens(gateway: Gateway, scope: Scope, token: bytes) -> bool:
    """Whether *token* is that of the session which is asked for a completion, its models or its task."""
    path = scope["path"]
    id_ = path[3:].partition("/")[0] if path.startswith("/s/") else _named(scope) if path.startswith("/v1/") else None
    session = gateway.sessions.get(id_) if id_ else None
    return session is not None and session.token is not None and hmac.compare_digest(token, session.token.encode())


def _bearer(scope: Scope) -> bytes:
    """The bearer token of a request; the scheme is written in either case."""
    scheme, _, token = (header(scope, b"authorization") or b"").partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""


def _chats_in(scope: Scope) -> str | None:
    """The session that a chat completion is asked of by its URL; None for any other request."""
    path = scope["path"]
    if scope["method"] == "POST" and path.startswith("/s/") and path.endswith(CHAT):
        id_ = path[3 : -len(CHAT)]
        return id_ if id_ and "/" not in id_ else None
    return None


def _not_served(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    what = "this method is not for" if status == 405 else "nothing is served at"
    wire = WireError(status, "method_not_allowed" if status == 405 else "not_found", f"{what} {request.url.path}")
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    return Response(wire.body(), status, headers, "application/json")
