"""Several servers behind the gateway, and the key that they want."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
import structlog
from ferrule_gateway import HttpSampler, UpstreamOptions

import ferrule

END = "<|im_end|>"
HELLO = [{"role": "user", "content": "hello"}]


def answer(prompt: str, number: int) -> str:
    return f"answer {number}{END}"


async def test_a_session_stays_with_one_of_several_upstreams_and_they_share_the_sessions(serve, stub) -> None:
    upstreams = [await stub(answer) for _ in range(3)]
    served = await serve(sampler=HttpSampler(UpstreamOptions([u.url for u in upstreams])))
    for i in range(24):
        id_ = await served.session(id=f"s{i}")
        messages = list(HELLO)
        for _ in range(3):
            _, out = await served.chat(id_, messages)
            messages += [out["choices"][0]["message"], {"role": "user", "content": "more"}]
    seen = [{headers["x-session-affinity"] for _, headers in u.requests} for u in upstreams]
    assert sum(map(len, seen)) == 24
    assert all(seen)


async def test_a_session_moves_when_its_upstream_dies(serve, stub) -> None:
    upstreams = [await stub(answer) for _ in range(2)]
    served = await serve(sampler=HttpSampler(UpstreamOptions([u.url for u in upstreams])))
    ids = [await served.session(id=f"s{i}") for i in range(8)]
    for id_ in ids:
        await served.chat(id_, HELLO)
    await upstreams[0].stop()
    before = len(upstreams[0].requests)
    assert 0 < before < 8
    for id_ in ids:
        assert (await served.chat(id_, HELLO))[0] == 200
    assert len(upstreams[0].requests) == before
    assert len(upstreams[1].requests) == (8 - before) + 8


async def test_an_upstream_with_three_strikes_is_passed_over_until_it_answers_again(serve, stub) -> None:
    upstreams = [await stub(answer) for _ in range(2)]
    sampler = HttpSampler(UpstreamOptions([u.url for u in upstreams], check_every=0.05))
    served = await serve(sampler=sampler)
    upstreams[0].health = 503
    while sampler.pool.upstreams[0].healthy:
        await asyncio.sleep(0.02)
    assert upstreams[0].checks >= 3
    for i in range(8):
        await served.chat(await served.session(id=f"s{i}"), HELLO)
    assert (len(upstreams[0].requests), len(upstreams[1].requests)) == (0, 8)
    upstreams[0].health = 200
    while not sampler.pool.upstreams[0].healthy:
        await asyncio.sleep(0.02)
    for i in range(8, 24):
        await served.chat(await served.session(id=f"s{i}"), HELLO)
    assert upstreams[0].requests


async def test_an_upstream_that_hangs_keeps_no_other_from_being_checked(serve, stub) -> None:
    async def hang(reader, writer) -> None:
        await asyncio.sleep(3600)

    silent = await asyncio.start_server(hang, "127.0.0.1", 0)
    alive = await stub(answer)
    urls = [alive.url, f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"]
    await serve(sampler=HttpSampler(UpstreamOptions(urls, check_every=0.05)))
    async with asyncio.timeout(10):
        while alive.checks < 5:
            await asyncio.sleep(0.02)
    silent.close()


async def test_the_upstreams_key_comes_from_the_environment_and_is_in_no_log_and_no_error(
    serve, stub, monkeypatch, caplog
) -> None:
    key = "sk-upstream-5f2c9a"
    monkeypatch.setenv("SOME_VARIABLE", key)
    caplog.set_level(logging.DEBUG)
    upstream = await stub(lambda prompt, number: (401, json.dumps({"error": f"bad key {key}"}), {}))
    with structlog.testing.capture_logs() as entries:
        structlog.configure(processors=structlog.get_config()["processors"])
        served = await serve(sampler=HttpSampler(UpstreamOptions((upstream.url,), bearer_env="SOME_VARIABLE")))
        id_ = await served.session()
        status, out = await served.chat(id_, HELLO)
    structlog.reset_defaults()
    assert upstream.requests[0][1]["Authorization"] == f"Bearer {key}"
    assert (status, out["error"]["code"]) == (401, "upstream_error")
    assert "bad key ***" in out["error"]["message"]
    assert key not in json.dumps(out) + repr(entries) + caplog.text
    monkeypatch.delenv("SOME_VARIABLE")
    with pytest.raises(ferrule.FerruleError, match="SOME_VARIABLE is not set"):
        await HttpSampler(UpstreamOptions((upstream.url,), bearer_env="SOME_VARIABLE")).start()
