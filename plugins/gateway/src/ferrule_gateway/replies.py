"""Replies in OpenAI's shape, whole and as a stream of events. What is internal (token ids, weight versions) stays here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from math import isfinite
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from ferrule import Reply

if TYPE_CHECKING:
    from numpy.typing import NDArray

PIECE = 256
"""Characters of text in one event of a stream."""

DONE = b"data: [DONE]\n\n"

Decode = Callable[[Any], str]


def chat_body(reply: Reply, sent: dict[str, Any], model: str, logprobs: Decode | None) -> dict[str, Any]:
    """A ``chat.completion``; *sent* is the message, *logprobs* decodes tokens where their logprobs were asked for."""
    choice: dict[str, Any] = {"index": 0, "message": sent, "finish_reason": finish_reason(reply, sent)}
    choice["logprobs"] = _chat_logprobs(reply, logprobs) if logprobs is not None else None
    return {
        "id": f"chatcmpl-{token_hex(12)}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [choice],
        "usage": usage(reply),
    }


def completion_body(reply: Reply, model: str, decode: Decode, *, logprobs: bool, token_ids: bool) -> dict[str, Any]:
    """A ``text_completion``. The ids of its tokens are in it where *token_ids* were asked for."""
    ids, values = sampled(reply)
    choice: dict[str, Any] = {"index": 0, "text": decode(ids), "finish_reason": reply.stop_reason, "logprobs": None}
    if logprobs:
        choice["logprobs"] = {
            "tokens": [decode(ids[i : i + 1]) for i in range(len(ids))],
            "token_logprobs": [_logprob(each) for each in values.tolist()],
            "top_logprobs": None,
            "text_offset": None,
        }
    if token_ids:
        choice["token_ids"] = ids.tolist()
    return {
        "id": f"cmpl-{token_hex(12)}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": model,
        "choices": [choice],
        "usage": usage(reply),
    }


def sampled(reply: Reply) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Ids and logprobs of its tokens; none where whoever replied tells none."""
    sample = reply.sample
    return (sample.ids, sample.logprobs) if sample is not None else (np.empty(0, np.int32), np.empty(0, np.float32))


def usage(reply: Reply) -> dict[str, int]:
    """Tokens of the prompt and of the completion."""
    completion = len(sampled(reply)[0])
    return {
        "prompt_tokens": reply.prompt_length,
        "completion_tokens": completion,
        "total_tokens": reply.prompt_length + completion,
    }


def finish_reason(reply: Reply, sent: dict[str, Any]) -> str:
    if reply.stop_reason == "length":
        return "length"
    return "tool_calls" if sent.get("tool_calls") else "stop"


def chat_events(body: dict[str, Any], with_usage: bool) -> Iterator[bytes]:
    """The events of the stream that says what *body*, of :func:`chat_body`, says."""
    choice = body["choices"][0]
    message, logprobs = choice["message"], choice["logprobs"]
    head = {name: body[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": piece} for piece in _pieces(message.get("reasoning_content"))]
    deltas += [{"content": piece} for piece in _pieces(message.get("content"))]
    for i, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        opening = {"index": i, "id": call["id"], "type": "function"}
        deltas.append({"tool_calls": [{**opening, "function": {"name": function["name"], "arguments": ""}}]})
        deltas += [
            {"tool_calls": [{"index": i, "function": {"arguments": piece}}]} for piece in _pieces(function["arguments"])
        ]
    nothing = {"usage": None} if with_usage else {}
    for delta in deltas:
        yield event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}], **nothing})
    # The logprobs are of tokens, whose ends need not be those of the pieces: they come whole, with the end.
    last = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"], "logprobs": logprobs}
    yield event({**head, "choices": [last], **nothing})
    if with_usage:
        yield event({**head, "choices": [], "usage": body["usage"]})
    yield DONE


def completion_events(body: dict[str, Any], with_usage: bool) -> Iterator[bytes]:
    """The events of the stream that says what *body*, of :func:`completion_body`, says."""
    head = {name: body[name] for name in ("id", "object", "created", "model")}
    choice = body["choices"][0]
    for piece in _pieces(choice["text"]):
        yield event({**head, "choices": [{"index": 0, "text": piece, "finish_reason": None, "logprobs": None}]})
    yield event({**head, "choices": [{**choice, "text": ""}]})
    if with_usage:
        yield event({**head, "choices": [], "usage": body["usage"]})
    yield DONE


def event(data: Any) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"


def _pieces(text: str | None) -> list[str]:
    return [text[i : i + PIECE] for i in range(0, len(text), PIECE)] if text else []


def _logprob(value: float) -> float | None:
    return value if isfinite(value) else None


def _chat_logprobs(reply: Reply, decode: Decode) -> dict[str, Any]:
    content = []
    ids, values = sampled(reply)
    for i, logprob in enumerate(values.tolist()):
        token = decode(ids[i : i + 1])
        content.append(
            {"token": token, "logprob": _logprob(logprob), "bytes": list(token.encode()), "top_logprobs": []}
        )
    return {"content": content, "refusal": None}
