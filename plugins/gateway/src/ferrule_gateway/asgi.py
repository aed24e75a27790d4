"""Plain ASGI: reading a body within its limit, and answering."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import orjson

from .errors import WireError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"


class Gone(Exception):
    """The client went away."""


def header(scope: Scope, name: bytes) -> bytes | None:
    """The value of the header *name*, lower case."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


async def read(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The body, whole. Raises WireError 413 over *limit* bytes, without reading what the header announces as over."""
    length = header(scope, b"content-length")
    if length is not None and length.isdigit() and int(length) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        if not message.get("more_body"):
            return part if not parts else b"".join((*parts, part))
        parts.append(part)


def _too_large(limit: int) -> WireError:
    # What is left of the body the server reads and throws away: a connection that is closed on a client which is still
    # sending breaks before the client has read why.
    return WireError(413, "body_too_large", f"the body is over {limit} bytes")


class Answer:
    """One response: whole, or begun early because the client must hear something meanwhile.

    One of HTTP/1.0 knows no answer in parts (what nginx speaks to what is behind it, unless told otherwise): it is sent
    whole, whatever was begun.
    """

    def __init__(self, send: Send, version: str = "1.1") -> None:
        self._send = send
        self._in_parts = version != "1.0"
        self.begun = False

    async def _say(self, message: MutableMapping[str, Any]) -> None:
        """Send *message*. Raises Gone where the client went away while it waited to be sent."""
        try:
            await self._send(message)
        except RuntimeError as error:
            if "closed" not in str(error):  # uvloop's way to say it
                raise
            raise Gone from error

    async def whole(
        self, status: int, body: bytes, content_type: bytes = JSON, headers: Mapping[str, str] | None = None
    ) -> None:
        """Answer with *body*; where the answer has begun, with what is left of it."""
        if self.begun:
            await self._say({"type": "http.response.body", "body": body, "more_body": False})
            return
        lines = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
        lines += [(key.encode("latin-1"), value.encode("latin-1")) for key, value in (headers or {}).items()]
        self.begun = True
        await self._say({"type": "http.response.start", "status": status, "headers": lines})
        await self._say({"type": "http.response.body", "body": body, "more_body": False})

    async def begin(self, content_type: bytes) -> None:
        """Say 200; no other status can be said from here on."""
        if not self.begun and self._in_parts:
            self.begun = True
            lines = [(b"content-type", content_type), (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
            await self._say({"type": "http.response.start", "status": 200, "headers": lines})

    async def part(self, body: bytes) -> None:
        if self._in_parts:
            await self._say({"type": "http.response.body", "body": body, "more_body": True})

    async def json(self, status: int, data: Any, headers: Mapping[str, str] | None = None) -> None:
        try:
            body = orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY)
        except TypeError:  # half of a surrogate pair, of a file's name or its bytes: no UTF-8 can say it
            body = json.dumps(data, ensure_ascii=False).encode("utf-8", "replace")
        await self.whole(status, body, headers=headers)

    async def error(self, error: WireError, *, as_event: bool = False) -> None:
        """Say *error*: by its status, or in the body where 200 was said before, there *as_event* of a stream."""
        body = error.body()
        if self.begun and as_event:
            body = b"data: " + body + b"\n\n"
        await self.whole(error.status, body, headers=error.headers)
