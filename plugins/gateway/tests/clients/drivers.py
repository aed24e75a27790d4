"""One request of each real client: a function of where the gateway is, the messages and the tools, to the reply as the
client gives it to its program.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

import attrs
import openai


@attrs.define(eq=False)
class Served:
    """What a client is pointed at."""

    base_url: str
    key: str
    worker: Any = None


def openai_sync(served: Served, messages: list[Any], tools: list[Any]) -> dict[str, Any]:
    with openai.OpenAI(base_url=served.base_url, api_key=served.key) as client:
        answer = client.chat.completions.create(model="policy", messages=messages, tools=tools)
    return answer.choices[0].message.model_dump(exclude_none=True)


def openai_sync_stream(served: Served, messages: list[Any], tools: list[Any]) -> dict[str, Any]:
    with (
        openai.OpenAI(base_url=served.base_url, api_key=served.key) as client,
        client.chat.completions.stream(model="policy", messages=messages, tools=tools) as stream,
    ):
        stream.until_done()  # get_final_completion() raises where a length cut the reply
        message = stream.current_completion_snapshot.choices[0].message
    return _without_extras(message.model_dump(exclude_none=True))


async def openai_async(served: Served, messages: list[Any], tools: list[Any]) -> dict[str, Any]:
    async with openai.AsyncOpenAI(base_url=served.base_url, api_key=served.key) as client:
        answer = await client.chat.completions.create(model="policy", messages=messages, tools=tools)
    return answer.choices[0].message.model_dump(exclude_none=True)


async def openai_async_stream(served: Served, messages: list[Any], tools: list[Any]) -> dict[str, Any]:
    """Chunks put together by hand, as many programs do: calls by their index."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    calls: dict[int, dict[str, Any]] = {}
    async with openai.AsyncOpenAI(base_url=served.base_url, api_key=served.key) as client:
        async for chunk in await client.chat.completions.create(
            model="policy", messages=messages, tools=tools, stream=True
        ):
            for choice in chunk.choices:
                message["content"] += choice.delta.content or ""
                for piece in choice.delta.tool_calls or ():
                    call = calls.setdefault(
                        piece.index, {"type": "function", "function": {"name": "", "arguments": ""}}
                    )
                    call["id"] = piece.id or call["id"]
                    call["function"]["name"] += piece.function.name or ""
                    call["function"]["arguments"] += piece.function.arguments or ""
    return {**message, **({"tool_calls": list(calls.values())} if calls else {})}


def litellm_whole(served: Served, messages: list[Any], tools: list[Any]) -> dict[str, Any]:
    return _litellm(served, messages, tools, stream=False)


def litellm_stream(served: Served, messages: list[Any], tools: list[Any]) -> dict[str, Any]:
    return _litellm(served, messages, tools, stream=True)


def _litellm(served: Served, messages: list[Any], tools: list[Any], *, stream: bool) -> dict[str, Any]:
    asked = {"messages": messages, "tools": tools, "api_base": served.base_url, "api_key": served.key}
    answer = served.worker(asked | {"stream": stream})
    assert "message" in answer, answer
    return answer["message"]


def curl(served: Served, messages: list[Any], tools: list[Any]) -> dict[str, Any]:
    return json.loads(_curl(served, {"messages": messages, "tools": tools}))["choices"][0]["message"]


def curl_stream(served: Served, messages: list[Any], tools: list[Any]) -> dict[str, Any]:
    text = _curl(served, {"messages": messages, "tools": tools, "stream": True})
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for event in map(json.loads, events):
        delta = event["choices"][0]["delta"]
        message["content"] += delta.get("content") or ""
        for piece in delta.get("tool_calls") or ():
            calls = message.setdefault("tool_calls", [])
            if piece["index"] == len(calls):
                calls.append({key: piece[key] for key in ("id", "type", "function")})
            else:
                calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
    return message


def _curl(served: Served, body: dict[str, Any], *options: str) -> str:
    command = ["curl", "-sS", "-N", "--fail-with-body", *options, f"{served.base_url}/chat/completions"]
    command += ["-H", f"Authorization: Bearer {served.key}", "-H", "Content-Type: application/json", "-d", "@-"]
    done = subprocess.run(command, input=json.dumps({"model": "policy", **body}), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _without_extras(message: dict[str, Any]) -> dict[str, Any]:
    """What the streaming helper adds for its caller, and no server is sent."""
    message.pop("parsed", None)
    for call in message.get("tool_calls") or ():
        call.pop("index", None)
        call["function"].pop("parsed_arguments", None)
    return message
