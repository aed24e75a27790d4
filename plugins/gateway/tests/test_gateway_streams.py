"""Streams say what whole replies say, are captured alike, and keep silence at bay."""

from __future__ import annotations

import asyncio
import json

import pytest

END = "<|im_end|>"
HELLO = [{"role": "user", "content": "hello"}]
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("add", "sub")
]
LONG = "word and ünïcödé 🙂 " * 60
REPLIES = {
    "text": f"hello{END}",
    "long": f"{LONG}{END}",
    "thoughts": f"<think>\n{LONG}\n</think>\n\nhello{END}",
    "calls": f'so\n<tool_call>\n{{"name": "add", "arguments": {{"x": "{LONG}"}}}}\n</tool_call>\n'
    f'<tool_call>\n{{"name": "sub", "arguments": {{}}}}\n</tool_call>{END}',
    "a malformed call": f"<tool_call>\n{{oops\n</tool_call>{END}",
    "nothing": END,
    "cut": LONG * 4,
}


async def events(served, id_: str, **fields):
    """The events of a stream, and its comments."""
    body = {"model": "m", "messages": HELLO, "stream": True, **fields}
    url = f"{served.gateway.url}/s/{id_}/v1/chat/completions"
    async with served.http.post(url, json=body, headers=served.auth) as answer:
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        text = (await answer.read()).decode()
    blocks = [block for block in text.split("\n\n") if block]
    comments = [block for block in blocks if block.startswith(":")]
    return [block.removeprefix("data: ") for block in blocks if not block.startswith(":")], comments


def merged(chunks):
    """The message that deltas come to, tool calls merged by index."""
    message, calls, finish = {}, {}, None
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta, finish = choice["delta"], choice["finish_reason"] or finish
            for name in ("role", "content", "reasoning_content"):
                if name in delta:
                    message[name] = message.get(name, "") + delta[name] if name != "role" else delta[name]
            for call in delta.get("tool_calls") or ():
                held = calls.setdefault(call["index"], {"function": {"name": "", "arguments": ""}})
                held.update({k: v for k, v in call.items() if k in ("id", "type")})
                for name, piece in call["function"].items():
                    held["function"][name] += piece
    if calls:
        message["tool_calls"] = [calls[i] for i in sorted(calls)]
    return message, finish


@pytest.mark.parametrize("what", REPLIES)
async def test_a_stream_says_what_the_whole_reply_says_and_is_captured_alike(serve, what: str) -> None:
    served = await serve(lambda prompt, number, key: REPLIES[what])
    whole, streamed = await served.session(), await served.session()
    _, out = await served.chat(whole, HELLO, tools=TOOLS, max_tokens=3000, logprobs=True)
    data, comments = await events(
        served, streamed, tools=TOOLS, max_tokens=3000, logprobs=True, stream_options={"include_usage": True}
    )
    assert data[-1] == "[DONE]"
    assert comments == []
    chunks = [json.loads(each) for each in data[:-1]]
    assert len({(c["id"], c["object"], c["created"], c["model"]) for c in chunks}) == 1
    assert chunks[0]["object"] == "chat.completion.chunk"
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    message, finish = merged(chunks)
    expected = out["choices"][0]
    assert finish == expected["finish_reason"]
    assert {k: v or None for k, v in message.items()} == {k: v or None for k, v in expected["message"].items()}
    assert chunks[-2]["choices"][0]["logprobs"] == expected["logprobs"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == out["usage"]
    first, second = await served.trajectory(whole), await served.trajectory(streamed)
    assert first["segments"] == second["segments"]
    assert first["steps"] == second["steps"] or what in ("calls", "a malformed call")  # calls' ids differ
    if what in ("long", "thoughts", "calls"):
        assert len(chunks) > 5


async def test_a_stream_is_known_again_and_its_usage_comes_only_where_asked_for(serve) -> None:
    served = await serve(lambda prompt, number, key: f"answer {number}{END}")
    id_ = await served.session()
    data, _ = await events(served, id_)
    assert not any("usage" in json.loads(each) for each in data[:-1])
    message, _ = merged([json.loads(each) for each in data[:-1]])
    await served.chat(id_, [*HELLO, message, {"role": "user", "content": "more"}])
    assert len((await served.trajectory(id_))["segments"]) == 1


async def test_completions_of_token_ids_stream_too(serve) -> None:
    served = await serve(lambda prompt, number, key: f"{LONG}{END}")
    id_ = await served.session()
    body = {"model": "m", "prompt": [1, 2], "stream": True, "max_tokens": 5000, "return_token_ids": True}
    async with served.http.post(
        f"{served.gateway.url}/s/{id_}/v1/completions", json=body, headers=served.auth
    ) as answer:
        data = [block.removeprefix("data: ") for block in (await answer.text()).split("\n\n") if block]
    assert data.pop() == "[DONE]"
    chunks = [json.loads(each) for each in data]
    assert "".join(c["choices"][0]["text"] for c in chunks) == f"{LONG}{END}"
    assert chunks[-1]["choices"][0]["token_ids"] == served.sampler.samples[id_][0].ids.tolist()
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def slow(prompt: str, number: int, key: str) -> str:
    await asyncio.sleep(0.35)
    return f"at last{END}"


async def failing(prompt: str, number: int, key: str) -> Exception:
    await asyncio.sleep(0.35)
    return RuntimeError("the engine fell over")


async def test_a_long_silence_is_broken_by_blanks_or_comments_and_the_reply_is_whole(serve) -> None:
    served = await serve(slow, heartbeat=0.1)
    id_ = await served.session()
    url = f"{served.gateway.url}/s/{id_}/v1/chat/completions"
    async with served.http.post(url, json={"model": "m", "messages": HELLO}, headers=served.auth) as answer:
        raw = await answer.read()
    assert answer.status == 200
    assert raw.startswith(b"   ")
    assert json.loads(raw)["choices"][0]["message"]["content"] == "at last"
    data, comments = await events(served, id_)
    assert comments == [": ping"] * 3
    assert merged([json.loads(each) for each in data[:-1]])[0]["content"] == "at last"
    assert len((await served.trajectory(id_))["steps"]) == 1


async def test_an_error_after_a_heartbeat_is_said_in_the_body_and_before_one_by_its_status(serve) -> None:
    served = await serve(failing, heartbeat=0.1)
    id_ = await served.session()
    status, out = await served.chat(id_, HELLO)
    assert status == 200
    assert out["error"]["code"] == "engine_failed"
    data, _ = await events(served, id_)
    assert [json.loads(each)["error"]["code"] for each in data] == ["engine_failed"]
    patient = await serve(failing)
    id_ = await patient.session()
    for fields in ({}, {"stream": True}):
        status, out = await patient.chat(id_, HELLO, **fields)
        assert (status, out["error"]["code"]) == (502, "engine_failed")
        assert "fell over" in out["error"]["message"]
    assert (await patient.trajectory(id_))["segments"] == []
