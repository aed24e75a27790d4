"""What can go wrong on the wire, and the OpenAI-shaped error that says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from ferrule import ContextOverflow, EpisodeFailed, Failure, FerruleError, RolloutCut, Superseded

NO_RETRY = {"x-should-retry": "false"}
"""Clients of OpenAI's make retry 409, 429 and 5xx unless this says otherwise."""


class WireError(FerruleError):
    """An answer that is an error: *status*, and OpenAI's ``message``, ``code`` and ``param``."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param, self.headers = status, code, param, dict(headers or {})

    @property
    def kind(self) -> str:
        """OpenAI's ``type``."""
        if self.status == 401:
            return "authentication_error"
        if self.status == 429:
            return "rate_limit_error"
        return "invalid_request_error" if self.status < 500 else "server_error"

    def body(self) -> bytes:
        """``{"error": {...}}`` as JSON."""
        error: dict[str, Any] = {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}
        return orjson.dumps({"error": error})


class UpstreamError(EpisodeFailed):
    """What the server behind the gateway answered instead of a completion.

    ``status`` is its own, or 502 where it could not be reached or broke off, 504 where it took too long; ``code`` says
    which; ``retry_after`` is what a 429 asked for, in seconds.
    """

    def __init__(self, status: int, code: str, detail: str, retry_after: float | None = None) -> None:
        super().__init__(Failure.ENGINE_FAILED, detail)
        self.status, self.code, self.retry_after = status, code, retry_after


def bad(param: str | None, message: str, code: str = "invalid_value") -> WireError:
    """A malformed request: 400, naming its field."""
    return WireError(400, code, message, param)


def as_wire(error: BaseException) -> WireError | None:
    """The answer that *error* of a session comes to; None where it is none that is foreseen."""
    if isinstance(error, WireError):
        return error
    if isinstance(error, ContextOverflow):
        return WireError(400, "context_length_exceeded", str(error), "messages")
    if isinstance(error, RolloutCut):
        return WireError(400, "rollout_terminated", f"the rollout has ended: {error}")
    if isinstance(error, Superseded):
        # The client that retried would supersede the request that took its place.
        return WireError(409, "superseded", str(error), headers=NO_RETRY)
    if isinstance(error, UpstreamError):
        headers = {"retry-after": f"{error.retry_after:g}"} if error.retry_after is not None else None
        return WireError(error.status, error.code, error.detail, headers=headers)
    if isinstance(error, EpisodeFailed):
        if error.reason is Failure.RENDER_FAILED:
            return WireError(400, "render_failed", error.detail, "messages")
        return WireError(502, str(error.reason), error.detail)
    if isinstance(error, FerruleError):
        return WireError(500, "internal_error", str(error))
    return None
