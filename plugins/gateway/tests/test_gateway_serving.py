"""A gateway's life: its port, its sessions' ends, clients that go away, an orderly stop, and secrets that stay so."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import weakref

import aiohttp
import numpy as np
import pytest
import structlog
from ferrule_gateway import Gateway, GatewayOptions

import ferrule

END = "<|im_end|>"
HELLO = [{"role": "user", "content": "hello"}]


def answer(prompt: str, number: int, key: str) -> str:
    return f"answer {number}{END}"


class Held:
    """A script whose replies wait until they are let go."""

    def __init__(self) -> None:
        self.asked, self.go, self.cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def __call__(self, prompt: str, number: int, key: str) -> str:
        self.asked.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return f"let go{END}"


async def ask_and_leave(served, id_: str, held: Held, **fields) -> None:
    request = asyncio.ensure_future(served.chat(id_, HELLO, **fields))
    await held.asked.wait()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request


# -- clients that go away ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"stream": True, "beat": True}, {"beat": True}], ids=str)
async def test_a_client_that_goes_away_cancels_its_sample_and_nothing_is_captured(serve, fields) -> None:
    fields, held = dict(fields), Held()
    served = await serve(held, heartbeat=0.05 if fields.pop("beat", False) else 30.0)
    id_ = await served.session()
    if served.gateway.options.heartbeat < 1:
        # In the middle of a stream that has begun.
        body = {"model": "m", "messages": HELLO, **fields}
        url = f"{served.gateway.url}/s/{id_}/v1/chat/completions"
        async with served.http.post(url, json=body, headers=served.auth) as got:
            assert await got.content.readany()
            got.close()
    else:
        await ask_and_leave(served, id_, held, **fields)
    await asyncio.wait_for(held.cancelled.wait(), 10)
    while served.gateway.sessions[id_].flights:
        await asyncio.sleep(0.01)
    assert (await served.trajectory(id_))["segments"] == []
    state = (await served.call("GET", f"/sessions/{id_}"))[1]
    assert (state["disconnects"], state["turns"], state["in_flight"]) == (1, 0, 0)
    held.go.set()
    _, out = await served.chat(id_, HELLO)
    assert out["choices"][0]["message"]["content"] == "let go"
    assert len((await served.trajectory(id_))["steps"]) == 1


async def test_a_newer_request_takes_the_place_of_the_one_in_flight(serve) -> None:
    held = Held()
    served = await serve(held)
    id_ = await served.session()
    first = asyncio.ensure_future(served.chat(id_, HELLO))
    await held.asked.wait()
    second = asyncio.ensure_future(served.chat(id_, HELLO))
    status, out = await first
    assert (status, out["error"]["code"]) == (409, "superseded")
    held.go.set()
    assert (await second)[0] == 200
    assert len((await served.trajectory(id_))["steps"]) == 1


# -- the end of a session ----------------------------------------------------------------------------------------------


async def test_a_session_that_is_deleted_ends_what_is_in_flight_and_is_forgotten(serve) -> None:
    held = Held()
    served = await serve(held)
    id_ = await served.session()
    request = asyncio.ensure_future(served.chat(id_, HELLO))
    await held.asked.wait()
    status, out = await served.call("DELETE", f"/sessions/{id_}")
    assert (status, out) == (200, {"id": id_, "deleted": True})
    status, out = await request
    assert (status, out["error"]["code"]) == (409, "cancelled")
    assert held.cancelled.is_set()
    assert served.sampler.open_now[id_] == 0
    assert (await served.call("GET", f"/sessions/{id_}"))[0] == 404
    assert (await served.call("GET", "/sessions"))[1]["data"] == []


async def test_sessions_are_listed_and_read_with_what_they_did(serve) -> None:
    served = await serve(answer)
    status, out = await served.call("POST", "/sessions", {"id": "one", "metadata": {"task": 3}})
    assert out == {"id": "one", "base_url": f"{served.gateway.url}/s/one/v1"}
    await served.session(id="two")
    await served.chat("one", HELLO)
    await served.chat("one", [])
    (one, two) = (await served.call("GET", "/sessions"))[1]["data"]
    assert one == (await served.call("GET", "/sessions/one"))[1]
    assert (one["id"], one["requests"], one["turns"], one["errors"], one["resets"]) == ("one", 2, 1, 1, 0)
    assert one["metadata"] == {"task": 3}
    assert one["completion_tokens"] == len(served.sampler.samples["one"][0].ids)
    assert two["turns"] == 0
    status, out = await served.call("POST", "/sessions", {"id": "one"})
    assert (status, out["error"]["code"]) == (409, "session_exists")
    assert (await served.call("GET", "/s/one/v1/models"))[1]["data"][0]["id"] == "policy"


async def test_idle_sessions_end_and_used_ones_stay(serve) -> None:
    served = await serve(answer, idle_timeout=0.4)
    idle, used = await served.session(), await served.session()
    await served.chat(idle, HELLO)
    for _ in range(8):
        await asyncio.sleep(0.1)
        await served.chat(used, HELLO)
    assert list(served.gateway.sessions) == [used]
    assert served.sampler.open_now[idle] == 0


async def test_there_are_never_more_sessions_than_allowed(serve) -> None:
    served = await serve(answer, max_sessions=2)
    first = await served.session()
    await served.session()
    status, out = await served.call("POST", "/sessions", {})
    assert (status, out["error"]["code"]) == (429, "too_many_sessions")
    await served.call("DELETE", f"/sessions/{first}")
    await served.session()


async def test_nothing_of_a_session_is_left_when_it_is_gone(serve) -> None:
    served = await serve(answer)
    gone = []
    for i in range(8):
        id_ = await served.session(id=f"s{i}")
        messages = list(HELLO)
        for _ in range(4):
            _, out = await served.chat(id_, messages)
            messages += [out["choices"][0]["message"], {"role": "user", "content": "more " * 50}]
        session = served.gateway.sessions[id_]
        gone += [
            weakref.ref(each) for each in (session, session.history, session.source, session.source._session.ledger)
        ]
        del session
        await served.call("DELETE", f"/sessions/{id_}")
    await served.http.close()
    for _ in range(3):
        await asyncio.sleep(0)
        gc.collect()
    assert [ref for ref in gone if ref() is not None] == []
    assert served.gateway.sessions == {}
    assert sum(served.sampler.open_now.values()) == 0


# -- sources of others -------------------------------------------------------------------------------------------------


class Agent:
    """A rollout's agent as the gateway sees it: it answers once, and then its rollout is over."""

    def __init__(self) -> None:
        self.seen = []

    async def reply(self, messages, tools, params):
        self.seen.append((list(messages), tools))
        if len(self.seen) > 1:
            raise ferrule.RolloutCut(ferrule.Termination.MAX_STEPS, "1 model messages")
        message = ferrule.Message("assistant", "from the agent")
        sample = ferrule.Sample(np.array([5], np.int32), np.zeros(1, np.float32), np.zeros(1, np.int32), "stop")
        return ferrule.Reply(message, ferrule.Parsed(message), 0, "stop", 3, sample)

    async def complete(self, ids, params):
        raise AssertionError

    def export(self):
        return ferrule.Trajectory("agent")


async def test_a_session_may_be_a_rollouts_and_its_end_is_said_so_that_no_client_tries_again(renderer) -> None:
    gateway = Gateway(renderer=renderer, sampler=None, options=GatewayOptions())
    await gateway.start()
    agent = Agent()
    id_ = gateway.add(agent, key="train/step-1 task#3@0")
    assert gateway.base_url(id_).startswith(f"{gateway.url}/s/train-step-1-task-3-0-")
    auth = {"authorization": f"Bearer {gateway.token}"}
    body = {"model": "any", "messages": HELLO}
    async with aiohttp.ClientSession(headers=auth) as http:
        async with http.post(f"{gateway.base_url(id_)}/chat/completions", json=body) as got:
            message = (await got.json())["choices"][0]["message"]
        body["messages"] = [*HELLO, message, {"role": "user", "content": "more"}]
        async with http.post(f"{gateway.base_url(id_)}/chat/completions", json=body) as got:
            assert got.status == 400
            assert (await got.json())["error"]["code"] == "rollout_terminated"
        async with http.post(f"{gateway.url}/sessions", json={}) as got:
            assert (got.status, (await got.json())["error"]["code"]) == (403, "sessions_not_offered")
        await gateway.remove(id_)
        await gateway.remove(id_)
        async with http.post(f"{gateway.base_url(id_)}/chat/completions", json=body) as got:
            assert got.status == 404
    # The reply came back as the very message that the agent gave.
    first = agent.seen[1][0][1]
    assert first.content == "from the agent"
    await gateway.stop()


# -- the port ----------------------------------------------------------------------------------------------------------


async def test_a_busy_port_is_a_named_error_at_once_and_port_0_picks_one(renderer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        gateway = Gateway(renderer=renderer, sampler=None, options=GatewayOptions(port=port))
        with pytest.raises(ferrule.FerruleError, match=f"port {port} of 127.0.0.1 is taken"):
            await gateway.start()
        await gateway.stop()
    free = Gateway(renderer=renderer, sampler=None)
    await free.start()
    assert not free.url.endswith(":0")
    await free.stop()
    again = Gateway(renderer=renderer, sampler=None, options=GatewayOptions(port=int(free.url.rpartition(":")[2])))
    await again.start()
    await again.stop()


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "192.0.2.1", "127.0.0.1.example.org", "localhost.example.org", "::1:2"]
)
async def test_a_host_that_others_can_reach_must_be_meant(renderer, host) -> None:
    gateway = Gateway(renderer=renderer, sampler=None, options=GatewayOptions(host=host))
    with pytest.raises(ferrule.FerruleError, match="allow_remote"):
        await gateway.start()


# -- stopping ----------------------------------------------------------------------------------------------------------


async def test_a_stop_lets_what_is_in_flight_end_and_refuses_what_is_new(serve) -> None:
    held = Held()
    served = await serve(held)
    id_ = await served.session()
    request = asyncio.ensure_future(served.chat(id_, HELLO))
    await held.asked.wait()
    source = served.gateway.sessions[id_].source
    stop = asyncio.ensure_future(served.gateway.stop(grace=20))
    await asyncio.sleep(0.05)
    assert (await served.call("GET", "/health"))[0] == 503
    status, out = await served.chat(id_, HELLO)
    assert (status, out["error"]["code"]) == (503, "shutting_down")
    held.go.set()
    status, out = await request
    assert (status, out["choices"][0]["message"]["content"]) == (200, "let go")
    await stop
    assert len(source.export().steps) == 1
    with pytest.raises(aiohttp.ClientConnectionError):
        await served.call("GET", "/health")


async def test_a_stop_does_not_wait_longer_than_its_grace(serve) -> None:
    held = Held()
    served = await serve(held)
    id_ = await served.session()
    request = asyncio.ensure_future(served.chat(id_, HELLO))
    await held.asked.wait()
    await asyncio.wait_for(served.gateway.stop(grace=0.1), 10)
    status, out = await request
    assert (status, out["error"]["code"]) == (503, "cancelled")
    assert held.cancelled.is_set()


# -- what is said ------------------------------------------------------------------------------------------------------


@pytest.fixture
def logged():
    with structlog.testing.capture_logs() as entries:
        structlog.configure(processors=structlog.get_config()["processors"])
        yield entries
    structlog.reset_defaults()


async def test_an_upstream_whose_every_completion_is_empty_is_called_dead(serve, logged) -> None:
    served = await serve(lambda prompt, number, key: END)
    id_ = await served.session()
    for _ in range(12):
        await served.chat(id_, HELLO)
    assert [e["completions"] for e in logged if e["event"] == "upstream_dead"] == [10]
    alive = await serve(lambda prompt, number, key: END if number else f"one{END}")
    id_ = await alive.session()
    for _ in range(12):
        await alive.chat(id_, HELLO)
    assert len([e for e in logged if e["event"] == "upstream_dead"]) == 1


async def test_the_token_is_in_no_log_and_no_answer(serve, logged) -> None:
    def script(prompt: str, number: int, key: str):
        return RuntimeError(f"failed with {served.gateway.token}") if number else f"hi{END}"

    served = await serve(script)
    id_ = await served.session()
    said = [await served.chat(id_, HELLO) for _ in range(2)]
    said += [await served.call("GET", path) for path in ("/sessions", f"/sessions/{id_}", "/nowhere", "/health")]
    said += [await served.call("GET", "/sessions", headers={"authorization": f"Bearer {served.gateway.token}x"})]
    assert said[1][0] == 502
    assert served.gateway.token not in json.dumps(said)
    assert served.gateway.token not in repr(logged)
    assert served.gateway.token not in repr(served.gateway)
